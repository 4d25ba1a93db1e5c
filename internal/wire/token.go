package wire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
)

// TokenLife is the longest time for which a token is good.
const TokenLife = time.Hour

const (
	tokenSkew     = time.Minute // between the clocks of who makes and who checks
	tokenBytesMax = 256
	tokenVersion  = "1"
)

// ErrToken says that a token is not good, and no more: not whether its id exists.
var ErrToken = errors.New("the token is not good: malformed, expired, of another ledger, or not by the id's key")

// tokenStatement is what is signed. Its first byte is in no UTF-8 text, so that
// no server can have it signed as the nonce of a NATS connection.
func tokenStatement(origin, id string, expires int64) []byte {
	return fmt.Appendf(nil, "\xffledgerd/token/v1\n%s\n%s\n%d\n", origin, id, expires)
}

// NewToken makes the bearer token by which id reads the entries of the log of
// origin over HTTP until expires: 1.<id>.<seconds>.<signature>. Nobody keeps
// it; the ledger checks it against the key that id is registered with.
func NewToken(key nkeys.KeyPair, origin, id string, expires time.Time) (string, error) {
	if !events.ValidOrigin(origin) || !events.ValidID(id) {
		return "", fmt.Errorf("token: origin %q, id %q", origin, id)
	}
	sig, err := key.Sign(tokenStatement(origin, id, expires.Unix()))
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	return tokenVersion + "." + id + "." + strconv.FormatInt(expires.Unix(), 10) + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}

// CheckToken returns whose a token is. publicKey is the key that an id is
// registered with now, ok false where there is none.
func CheckToken(token, origin string, now time.Time, publicKey func(id string) (key string, ok bool)) (id string, err error) {
	parts := strings.Split(token, ".")
	if len(token) > tokenBytesMax || len(parts) != 4 || parts[0] != tokenVersion || !events.ValidID(parts[1]) {
		return "", ErrToken
	}
	expires, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || strconv.FormatInt(expires, 10) != parts[2] {
		return "", ErrToken
	}
	if at := now.Unix(); expires <= at || expires-at > int64((TokenLife+tokenSkew)/time.Second) {
		return "", ErrToken
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(parts[3])
	if err != nil {
		return "", ErrToken
	}
	public, ok := publicKey(parts[1])
	if !ok {
		return "", ErrToken
	}
	key, err := nkeys.FromPublicKey(public)
	if err != nil || key.Verify(tokenStatement(origin, parts[1], expires), sig) != nil {
		return "", ErrToken
	}
	return parts[1], nil
}

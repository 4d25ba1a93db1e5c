package policy

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
)

// SignersMax is how many keys may sign the policies of a ledger, and how many
// signatures come with one request.
const SignersMax = 8

// ValidSigners reports whether keys may be the signers of a ledger's policies.
func ValidSigners(keys []string) bool {
	if len(keys) > SignersMax {
		return false
	}
	for i, key := range keys {
		if !ValidPublicKey(key) || i > 0 && keys[i-1] >= key {
			return false
		}
	}
	return true
}

// Statement is what a signer of a policy signs: that the ledger of this origin
// may put the document of this digest in force, under this version.
func Statement(origin, version string, digest events.Hash) []byte {
	return fmt.Appendf(nil, "ledgerd/policy/v1\n%s\n%s\n%x\n", origin, version, digest)
}

// SignersStatement is what one of the signers so far signs to have others in
// their place: number counts the changes of a ledger's signers from 1, so that
// no change can be made twice.
func SignersStatement(origin string, number uint64, keys []string) []byte {
	return fmt.Appendf(nil, "ledgerd/signers/v1\n%s\n%d\n%s\n", origin, number, strings.Join(keys, " "))
}

// Sign signs a statement with the seed of a NATS user key. The result is the
// public key, a space, and the Ed25519 signature in base64.
func Sign(seed, statement []byte) (string, error) {
	key, err := nkeys.FromSeed(seed)
	if err != nil {
		return "", err
	}
	defer key.Wipe()
	public, err := key.PublicKey()
	if err != nil {
		return "", err
	}
	if !ValidPublicKey(public) {
		return "", fmt.Errorf("%s is not the key of a user", public)
	}
	signature, err := key.Sign(statement)
	if err != nil {
		return "", err
	}
	return public + " " + base64.StdEncoding.EncodeToString(signature), nil
}

// Signed reports whether one of the signatures is a signer's, over statement, or
// what is wrong with each.
func Signed(signers Set, statement []byte, signatures []string) (ok bool, faults []string) {
	for _, s := range signatures {
		public, encoded, _ := strings.Cut(s, " ")
		signature, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err != nil || !ValidPublicKey(public) {
			faults = append(faults, "a signature is a public key, a space and base64")
			continue
		}
		key, err := nkeys.FromPublicKey(public)
		switch fits := err == nil && key.Verify(statement, signature) == nil; {
		case fits && signers.Has(public):
			return true, nil
		case fits:
			faults = append(faults, public+" is no signer of this ledger")
		default:
			faults = append(faults, "the signature by "+public+" is over something else: another ledger, version or document")
		}
	}
	return false, faults
}

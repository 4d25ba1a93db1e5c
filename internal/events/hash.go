package events

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Hash is a SHA-256 digest. Its text form is 64 lower-case hex digits.
type Hash [sha256.Size]byte

// hexPairs are the two digits of every byte.
var hexPairs = func() (pairs [256][2]byte) {
	const digits = "0123456789abcdef"
	for i := range pairs {
		pairs[i] = [2]byte{digits[i>>4], digits[i&15]}
	}
	return pairs
}()

// Append appends the text form of h to dst.
func (h *Hash) Append(dst []byte) []byte {
	var text [2 * len(h)]byte
	for i, b := range h {
		pair := &hexPairs[b]
		text[2*i], text[2*i+1] = pair[0], pair[1]
	}
	return append(dst, text[:]...)
}

// String returns the 64 lower-case hex digits of h.
func (h Hash) String() string {
	var text [2 * len(h)]byte
	return string(h.Append(text[:0]))
}

// IsZero reports whether h is the all-zero value, which no SHA-256 of ours is
// and which stands for "none".
func (h Hash) IsZero() bool { return h == Hash{} }

// ParseHash reads 64 lower-case hex digits and nothing else.
func ParseHash[T string | []byte](s T) (Hash, error) {
	if len(s) != 2*len(Hash{}) {
		return Hash{}, fmt.Errorf("hash of %d characters, want %d", len(s), 2*len(Hash{}))
	}
	h, ok := hashOf(s)
	if !ok {
		return h, errors.New("hash has a character that is no lower-case hex digit")
	}
	return h, nil
}

// hashOf reads 64 lower-case hex digits.
func hashOf[T string | []byte](b T) (h Hash, ok bool) {
	if len(b) != 2*len(h) {
		return h, false
	}
	if !unhex(h[:], b) {
		return Hash{}, false
	}
	return h, true
}

// hexDigits is the value of each lower-case hex digit, and 0xff for every other
// byte.
var hexDigits = func() (values [256]byte) {
	for c := range values {
		values[c] = 0xff
		if i := strings.IndexByte("0123456789abcdef", byte(c)); i >= 0 {
			values[c] = byte(i)
		}
	}
	return values
}()

// unhex reads the two digits of each byte of dst, and reports whether they all
// were digits.
func unhex[T string | []byte](dst []byte, b T) bool {
	b = b[:2*len(dst)]
	seen := byte(0)
	for i := range dst {
		hi, lo := hexDigits[b[2*i]], hexDigits[b[2*i+1]]
		seen |= hi | lo
		dst[i] = hi<<4 | lo
	}
	return seen <= 15
}

// LeafHash is the RFC 6962 leaf hash of an event's stored bytes, and so also
// the prev of the event after it: H(0x00 ‖ event).
func LeafHash(event []byte) Hash {
	var room [1024]byte // as large as nearly every event; hashing in pieces costs more than a copy
	return sha256.Sum256(append(append(room[:0], 0x00), event...))
}

// NodeHash is the RFC 6962 interior hash: H(0x01 ‖ left ‖ right).
func NodeHash(left, right Hash) Hash {
	var b [1 + 2*sha256.Size]byte
	b[0] = 0x01
	copy(b[1:], left[:])
	copy(b[1+sha256.Size:], right[:])
	return sha256.Sum256(b[:])
}

// GenesisHash is the prev of event 1. It binds the whole chain to its origin,
// so that no event of another log fits: H("ledgerd/genesis/v1\n" ‖ u16be
// len(origin) ‖ origin).
func GenesisHash(origin string) Hash {
	b := append([]byte("ledgerd/genesis/v1\n"), 0, 0)
	binary.BigEndian.PutUint16(b[len(b)-2:], uint16(len(origin)))
	return sha256.Sum256(append(b, origin...))
}

// SaltLen is the length in bytes of the random salt of a commitment.
const SaltLen = 32

// PayloadCommitment is what an event says of a payload kept beside the log:
// H("ledgerd/payload/v1\n" ‖ salt[32] ‖ u64be len ‖ bytes).
func PayloadCommitment(salt [SaltLen]byte, payload []byte) Hash {
	return commitment("ledgerd/payload/v1\n", salt, payload)
}

// ArgumentsDigest commits to canonical arguments, as PayloadCommitment does to
// a payload, under its own tag.
func ArgumentsDigest(salt [SaltLen]byte, arguments []byte) Hash {
	return commitment("ledgerd/args/v1\n", salt, arguments)
}

func commitment(tag string, salt [SaltLen]byte, b []byte) Hash {
	var room [1024]byte
	text := append(append(room[:0], tag...), salt[:]...)
	text = binary.BigEndian.AppendUint64(text, uint64(len(b)))
	return sha256.Sum256(append(text, b...))
}

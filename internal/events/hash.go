package events

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
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
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != 2*len(h) {
		return h, fmt.Errorf("hash of %d characters, want %d", len(s), 2*len(h))
	}
	for i := range h {
		hi, lo := hexDigit(s[2*i]), hexDigit(s[2*i+1])
		if hi > 15 || lo > 15 {
			return Hash{}, fmt.Errorf("hash has a character that is no lower-case hex digit at %d", 2*i)
		}
		h[i] = hi<<4 | lo
	}
	return h, nil
}

// hashOf reads 64 lower-case hex digits.
func hashOf(b []byte) (h Hash, ok bool) {
	if len(b) != 2*len(h) {
		return h, false
	}
	for i := range h {
		hi, lo := hexDigit(b[2*i]), hexDigit(b[2*i+1])
		if hi > 15 || lo > 15 {
			return Hash{}, false
		}
		h[i] = hi<<4 | lo
	}
	return h, true
}

func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
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

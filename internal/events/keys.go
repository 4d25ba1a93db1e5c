package events

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// Types of events about the ledger's own keys.
const (
	TypeKeyRotated Type = "key.rotated"
	TypeKeyRetired Type = "key.retired"
)

// The ledger's own keys, as events and requests name them.
const (
	KeyCheckpoint = "checkpoint"
	KeyPermit     = "permit"
	KeySeal       = "seal"
)

func newKeyBody(t Type) Body {
	switch t {
	case TypeKeyRotated:
		return &KeyRotated{}
	case TypeKeyRetired:
		return &KeyRetired{}
	}
	return nil
}

// KeyRotated says that a new key is in force from here on, beside the one before
// it until that is retired; a seal key takes the place of the one before at once.
type KeyRotated struct {
	Key       string
	Number    uint64 // counts the keys of this kind; the first, of event 1, is 1
	PublicKey string // verifier key; empty for a seal key
}

// KeyRetired says that a key signs no more.
type KeyRetired struct {
	Key        string
	Number     uint64
	Checkpoint string // of a checkpoint key: a note that it and the one after it have signed
}

// Type returns TypeKeyRotated.
func (*KeyRotated) Type() Type { return TypeKeyRotated }

// Type returns TypeKeyRetired.
func (*KeyRetired) Type() Type { return TypeKeyRetired }

func (b *KeyRotated) fields(c *coder) {
	c.str("key", &b.Key)
	c.uint("number", &b.Number)
	c.optStr("public_key", &b.PublicKey)
}

func (b *KeyRetired) fields(c *coder) {
	c.str("key", &b.Key)
	c.uint("number", &b.Number)
	c.optStr("checkpoint", &b.Checkpoint)
}

// KeyText is the base64 of a verifier key, without its name and id. Neither of
// those has a plus; base64 may.
func KeyText(verifierKey string) string {
	parts := strings.SplitN(verifierKey, "+", 3)
	return parts[len(parts)-1]
}

// ValidVerifierKey reports whether text is the verifier key of an Ed25519 key
// called name: name+id+key, the id being that of name and key.
func ValidVerifierKey(text, name string) bool {
	rest, ok := strings.CutPrefix(text, name+"+")
	id, key, both := strings.Cut(rest, "+")
	raw, err := base64.StdEncoding.Strict().DecodeString(key)
	if !ok || !both || err != nil || len(raw) != 33 || raw[0] != 1 || base64.StdEncoding.EncodeToString(raw) != key {
		return false
	}
	sum := sha256.Sum256([]byte(name + "\n" + string(raw)))
	return hex.EncodeToString(sum[:4]) == id
}

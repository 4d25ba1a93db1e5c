package audit_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// A checkpoint under the next key of a log is no good to who pinned the one before
// it, and the error says how to follow. Damage says nothing of the kind.
func TestR81_AProofUnderTheNextKeySaysHowToFollow(t *testing.T) {
	const origin = "example.org/log"
	pinned := func() (note.Signer, *audit.Keys) {
		secret, public, err := note.GenerateKey(rand.Reader, origin)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := note.NewSigner(secret)
		if err != nil {
			t.Fatal(err)
		}
		verifier, err := audit.Pin(public)
		if err != nil {
			t.Fatal(err)
		}
		return signer, verifier
	}
	_, old := pinned()
	signer, newer := pinned()
	signed, err := store.SignCheckpoint(signer, store.Checkpoint{Origin: origin, Size: 1, Root: events.Hash{1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newer.Open(signed); err != nil {
		t.Fatal(err)
	}
	_, err = old.Open(signed)
	if err == nil || !strings.Contains(err.Error(), "rotated") || !strings.Contains(err.Error(), "pin the newer key") {
		t.Errorf("under the next key: %v", err)
	}
	signed[len(signed)-4] ^= 1
	if _, err = newer.Open(signed); err == nil || strings.Contains(err.Error(), "rotated") {
		t.Errorf("damaged: %v", err)
	}
}

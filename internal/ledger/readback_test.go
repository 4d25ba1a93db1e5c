package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// What is signed was read back: bytes that do not give the stored hash, as a
// flipped bit leaves them, come under no checkpoint and stop the ledger.
func TestNothingIsSignedThatDoesNotReadBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := Init(dir, InitOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	anchor := func() string {
		b, err := os.ReadFile(filepath.Join(dir, "anchor"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	signed := anchor()
	commit, err := l.store.Append(store.Batch{
		First: l.Durable() + 1, Events: [][]byte{[]byte("one")}, Leaves: []events.Hash{events.LeafHash([]byte("two"))},
	})
	if err == nil {
		err = commit.Wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.checkpoint(); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("signed: %v", err)
	}
	if string(l.Checkpoint()) != signed || anchor() != signed {
		t.Error("a checkpoint over the damage is announced, or the anchor has moved")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := l.Run(ended); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("Run goes on: %v", err)
	}
}

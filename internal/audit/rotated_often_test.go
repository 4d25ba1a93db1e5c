package audit_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// rotatedOften is a log whose checkpoint key number n is the last.
func rotatedOften(t *testing.T, n int) *logtest.Log {
	t.Helper()
	l := logtest.New("example.org/log", 1)
	for i := 2; i <= n; i++ {
		seed := sha256.Sum256([]byte(fmt.Sprint("key ", i)))
		vkey, err := note.NewEd25519VerifierKey(l.Origin, ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		signer, err := note.NewSigner("PRIVATE+KEY+" + l.Origin + "+" + strings.Split(vkey, "+")[1] + "+" + base64.StdEncoding.EncodeToString(append([]byte{1}, seed[:]...)))
		if err != nil {
			t.Fatal(err)
		}
		l.Next = append(l.Next, vkey)
		l.Add("admin", 0, &events.KeyRotated{Key: events.KeyCheckpoint, Number: uint64(i), PublicKey: vkey})
		l.Also = []note.Signer{signer}
		l.Retire()
	}
	return l
}

// A log may rotate its key as often as it likes: whoever pinned the first one, or
// any after it, follows to the last.
func TestR81_AnyNumberOfRotationsIsFollowed(t *testing.T) {
	l := rotatedOften(t, 300)
	shown := rotations(t, l)
	if len(shown) != 300 {
		t.Fatalf("%d keys are shown", len(shown))
	}
	for i, vkey := range map[int]string{1: l.VKey, 2: l.Next[0], 258: l.Next[256], 300: l.Next[298]} {
		k := follow(t, vkey, shown)
		if _, err := k.Open(l.Note(len(l.Entries))); err != nil || len(k.Trusted()) != 301-i {
			t.Errorf("key %d: %d trusted, %v", i, len(k.Trusted()), err)
		}
	}
	twice := append(shown[:299:299], shown[298])
	if _, err := pin(t, l.VKey).Follow(audit.EncodeRotations(twice)); err == nil {
		t.Error("one key twice")
	}
}

// What is too much to be read says nothing against a log.
func TestR81_ALimitIsNoFault(t *testing.T) {
	l := rotatedLog(t, "example.org/log")
	large := append(audit.EncodeRotations(rotations(t, l)), bytes.Repeat([]byte("\n"), audit.RotationsBytesMax)...)
	_, err := pin(t, l.VKey).Follow(large)
	var f *audit.Fault
	if !errors.Is(err, audit.ErrRotationsSize) || errors.As(err, &f) {
		t.Errorf("%v", err)
	}
}

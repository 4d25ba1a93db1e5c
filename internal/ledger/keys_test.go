package ledger_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

func keyFile(o ledger.Options, name string) string { return filepath.Join(o.Dir, "keys", name) }

func keyText(t testing.TB, o ledger.Options, name string) string {
	t.Helper()
	b, err := os.ReadFile(keyFile(o, name))
	must(t, err)
	return strings.TrimSpace(string(b))
}

// audited verifies a ledger at rest with a pinned key.
func audited(t testing.TB, o ledger.Options, vkey string, remembered []byte) *audit.Report {
	t.Helper()
	d, err := datadir.Open(o.Dir)
	must(t, err)
	defer d.Close()
	r, err := audit.VerifyLog(d.Source(), audit.Options{VKey: vkey, Remembered: remembered})
	must(t, err)
	return r
}

func anchorOf(t testing.TB, o ledger.Options) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
	must(t, err)
	return b
}

func opens(t testing.TB, signed []byte, vkey string) bool {
	t.Helper()
	v, err := note.NewVerifier(vkey)
	must(t, err)
	_, err = store.ParseCheckpoint(signed, v)
	return err == nil
}

// A checkpoint key is rotated by two events: between them each checkpoint has
// both signatures, so that who knows the old key alone reads it; after them only
// the new one. An auditor who pinned either key follows the log all the way.
func TestR81_ACheckpointKeyHandsOverToTheNext(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	first := keyText(t, o, "checkpoint.vkey")
	expect(t, s.Control("admin", "key.retire", `{"key":"checkpoint"}`), reason.RevisionConflict)
	before := s.Checkpoint()
	expect(t, s.Control("admin", "key.rotate", `{"key":"checkpoint"}`), reason.ControlDone)
	second := keyText(t, o, "checkpoint-2.vkey")
	expect(t, s.Control("admin", "key.rotate", `{"key":"checkpoint"}`), reason.RevisionConflict)
	expect(t, s.Control("admin", "key.rotate", `{"key":"permit"}`), reason.ControlDone)
	s.Stop()

	both := anchorOf(t, o)
	if !opens(t, both, first) || !opens(t, both, second) {
		t.Fatalf("not signed by both:\n%s", both)
	}
	for _, vkey := range []string{first, second} {
		if r := audited(t, o, vkey, before); r.Exit != audit.ExitPass || r.Verdict != "authentic" {
			t.Fatalf("with %s: %+v", vkey, r)
		}
	}

	s = start(t, o)
	expect(t, s.Control("admin", "key.retire", `{"key":"checkpoint"}`), reason.ControlDone)
	expect(t, s.Control("admin", "key.retire", `{"key":"permit"}`), reason.ControlDone)
	s.Stop()
	alone := anchorOf(t, o)
	if opens(t, alone, first) || !opens(t, alone, second) {
		t.Fatalf("not signed by the new key alone:\n%s", alone)
	}
	if _, err := os.Stat(keyFile(o, "checkpoint.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the retired key is still there: %v", err)
	}
	if _, err := os.Stat(keyFile(o, "permit.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the retired permit key is still there: %v", err)
	}
	if _, err := os.Stat(keyFile(o, "permit-2.key")); err != nil {
		t.Fatalf("the permit key in force: %v", err)
	}
	for _, vkey := range []string{first, second} {
		for _, kept := range [][]byte{before, both, alone} {
			if r := audited(t, o, vkey, kept); r.Exit != audit.ExitPass || r.Verdict != "authentic" {
				t.Fatalf("with %s: %+v", vkey, r)
			}
		}
	}
	if r := audited(t, o, otherKey(t), nil); r.Exit != audit.ExitFail {
		t.Fatalf("with another key: %+v", r)
	}
	s = start(t, o) // and once more, from the second key on
	expect(t, s.Control("admin", "key.rotate", `{"key":"checkpoint"}`), reason.ControlDone)
	expect(t, s.Control("admin", "key.retire", `{"key":"checkpoint"}`), reason.ControlDone)
	s.Stop()
	if r := audited(t, o, first, both); r.Exit != audit.ExitPass || r.Verdict != "authentic" {
		t.Fatalf("over three keys: %+v", r)
	}
}

func otherKey(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "other")
	must(t, ledger.Init(dir, ledger.InitOptions{}))
	return keyText(t, ledger.Options{Dir: dir}, "checkpoint.vkey")
}

// Attack 18: a retired key that signs a later size is found, and named with the
// size and the event that retired it; so is a checkpoint that lacks the line of
// a key in force.
func TestKind7_ARetiredKeyUsedAfterItsSize(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	secret := keyText(t, o, "checkpoint.key")
	expect(t, s.Control("admin", "key.rotate", `{"key":"checkpoint"}`), reason.ControlDone)
	retired := s.Control("admin", "key.retire", `{"key":"checkpoint"}`)
	expect(t, retired, reason.ControlDone)
	s.Stop()
	second := keyText(t, o, "checkpoint-2.key")

	good := anchorOf(t, o)
	v, err := note.NewVerifier(keyText(t, o, "checkpoint-2.vkey"))
	must(t, err)
	c, err := store.ParseCheckpoint(good, v)
	must(t, err)
	sign := func(secrets ...string) []byte {
		var signers []note.Signer
		for _, s := range secrets {
			signer, err := note.NewSigner(s)
			must(t, err)
			signers = append(signers, signer)
		}
		b, err := store.SignCheckpoint(signers[0], c, signers[1:]...)
		must(t, err)
		return b
	}
	for what, forged := range map[string][]byte{"alone": sign(secret), "beside": sign(secret, second)} {
		must(t, os.WriteFile(filepath.Join(o.Dir, "anchor"), forged, 0o600))
		r := audited(t, o, keyText(t, o, "checkpoint.vkey"), nil)
		if r.Exit != audit.ExitFail || len(r.Faults) == 0 {
			t.Fatalf("%s: %+v", what, r)
		}
		if what == "beside" && !strings.Contains(r.Faults[0].Found, "had retired it") {
			t.Fatalf("%s: %+v", what, r.Faults)
		}
	}
	must(t, os.WriteFile(filepath.Join(o.Dir, "anchor"), sign(secret), 0o600))
	if _, err := ledger.Open(o); !errors.Is(err, store.ErrNoAnchor) {
		t.Fatalf("opening with it: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(o.Dir, "anchor"), good, 0o600))
	replaytest.CheckLedger(t, o)
}

// Only an admin rotates, and a denial makes no key.
func TestOnlyAnAdminRotatesKeys(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	r := s.Control("watcher", "key.rotate", `{"key":"checkpoint"}`)
	if r.Allowed {
		t.Fatal(r.Text)
	}
	expect(t, s.Control("admin", "key.rotate", `{"key":"admin"}`), reason.MalformedRequest)
	s.Stop()
	if _, err := os.Stat(keyFile(o, "checkpoint-2.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a key was made: %v", err)
	}
}

// R75: a crash between the new key's file and its event leaves a file that counts
// for nothing, and the next rotation takes its place; a key in force that is not
// there refuses the start.
func TestR75_AKeyWithoutItsEventCountsForNothing(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	s.Stop()
	secret, public, err := store.NewCheckpointKey(s.Origin())
	must(t, err)
	must(t, os.WriteFile(keyFile(o, "checkpoint-2.vkey"), []byte(public+"\n"), 0o600))
	must(t, os.WriteFile(keyFile(o, "checkpoint-2.key"), []byte(secret+"\n"), 0o600))
	s = start(t, o)
	if opens(t, s.Checkpoint(), public) {
		t.Fatal("it signs")
	}
	expect(t, s.Control("admin", "key.rotate", `{"key":"checkpoint"}`), reason.ControlDone)
	s.Stop()
	if keyText(t, o, "checkpoint-2.vkey") == public || !opens(t, anchorOf(t, o), keyText(t, o, "checkpoint-2.vkey")) {
		t.Fatal("the rotation did not take its place")
	}
	must(t, os.Rename(keyFile(o, "checkpoint-2.key"), keyFile(o, "away")))
	if _, err := ledger.Open(o); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("without the key in force: %v", err)
	}
}

package backup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/backup"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

// written has researcher write n records, and returns the seqs of the decisions.
func written(s *replaytest.Session, n int) (seqs []uint64) {
	for i := range n {
		seqs = append(seqs, s.Propose("researcher", "memory.write", fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"research.notes","key":"k%d","value":"some text"}`, i)).Seq)
	}
	return seqs
}

// beside makes backups while work is under way, and says how many. Each must restore.
func beside(t *testing.T, s *replaytest.Session, work func()) (n int) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(work)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for over := false; !over; n++ {
		select {
		case <-done:
			over = true
		default:
		}
		dir := filepath.Join(t.TempDir(), "backup")
		_, err := backup.Write(s.Options.Dir, dir, backup.Options{Keys: true})
		must(t, err)
		_, _, err = backup.Check(dir, "")
		must(t, err)
	}
	return n
}

// TestKind7_ABackupBesideARotationOfTheSealKey: what was copied is opened by the keys
// that lie beside it, whichever were removed meanwhile.
func TestKind7_ABackupBesideARotationOfTheSealKey(t *testing.T) {
	s := served(t)
	written(s, 4)
	n := beside(t, s, func() {
		for range 12 {
			if r := s.Control("admin", "key.rotate", `{"key":"seal"}`); !r.Allowed {
				t.Error(r.Text)
			}
		}
	})
	s.Stop()
	t.Logf("%d backups", n)
}

// TestKind7_ABackupThatNoKeyOpens: with keys that are not of the log no backup is made.
func TestKind7_ABackupThatNoKeyOpens(t *testing.T) {
	data, _ := made(t)
	wrong := filepath.Join(t.TempDir(), "data")
	must(t, os.CopyFS(wrong, os.DirFS(data)))
	must(t, os.WriteFile(filepath.Join(wrong, "keys", "seal.key"), []byte(strings.Repeat("0", 64)+"\n"), 0o600))
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Write(wrong, dir, backup.Options{Keys: true}); !errors.Is(err, backup.ErrDamage) || !strings.Contains(err.Error(), "does not open") {
		t.Fatalf("a backup says %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Fatal("something was written")
	}
}

// TestR83_ABackupBesideErasures: a backup that was made restores, also when the log
// says of a payload that it is erased and it is not yet.
func TestR83_ABackupBesideErasures(t *testing.T) {
	s := served(t)
	seqs := written(s, 8)
	n := beside(t, s, func() {
		for _, seq := range seqs {
			if r := s.Control("admin", "payload.erase", fmt.Sprintf(`{"seqs":[%d],"basis":"mistake"}`, seq)); !r.Allowed {
				t.Error(r.Text)
			}
		}
	})
	s.Stop()
	t.Logf("%d backups", n)
}

// TestR83_NoBackupOfWhatIsNotYetErased: where nobody carries an erasure out, there
// is no backup, and once it is carried out there is.
func TestR83_NoBackupOfWhatIsNotYetErased(t *testing.T) {
	s := served(t)
	s.Control("admin", "payload.erase", fmt.Sprintf(`{"seqs":[%d],"basis":"mistake"}`, written(s, 1)[0]))
	s.Stop()
	data := s.Options.Dir
	anchor, err := os.ReadFile(filepath.Join(data, "anchor"))
	must(t, err)
	vkey, err := os.ReadFile(filepath.Join(data, "keys", "checkpoint.vkey"))
	must(t, err)
	verifier, err := note.NewVerifier(strings.TrimSpace(string(vkey)))
	must(t, err)
	st, err := store.Open(data, store.Options{}, store.AnchorCheck{Note: anchor, Verifier: verifier})
	must(t, err)
	must(t, errors.Join(st.Purge(0), st.Close())) // as if it was killed before its end

	backup.SettleWithin(t, time.Millisecond)
	before, dir := contents(t, data), filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Write(data, dir, backup.Options{}); !errors.Is(err, backup.ErrErased) || !strings.Contains(err.Error(), "event ") {
		t.Fatalf("a backup says %v", err)
	}
	if _, err := os.Stat(dir); err == nil || contents(t, data) != before {
		t.Fatal("something was written")
	}
	replaytest.Start(t, s.Options).Stop()
	_, err = backup.Write(data, dir, backup.Options{})
	must(t, err)
	_, _, err = backup.Check(dir, "")
	must(t, err)
}

// TestKind7_AKeyThatWasNotWrittenWhole: what a kill left of a new key is in no backup,
// and the next opening removes it.
func TestKind7_AKeyThatWasNotWrittenWhole(t *testing.T) {
	s := served(t)
	s.Stop()
	keys := filepath.Join(s.Options.Dir, "keys")
	left := []string{"seal-2.key.tmp", "checkpoint-2.vkey.tmp"}
	for _, name := range append(left, "notes.tmp") {
		must(t, os.WriteFile(filepath.Join(keys, name), []byte("secret"), 0o600))
	}
	write := func(dir string) error {
		_, err := backup.Write(s.Options.Dir, dir, backup.Options{Keys: true})
		return err
	}
	if err := write(filepath.Join(t.TempDir(), "backup")); err == nil || !strings.Contains(err.Error(), "notes.tmp: no key file") {
		t.Fatalf("a file that is no key: %v", err)
	}
	must(t, os.Remove(filepath.Join(keys, "notes.tmp")))
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, write(dir))
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(dir, "keys", name)); err == nil {
			t.Errorf("%s is in the backup", name)
		}
	}
	replaytest.Start(t, ledger.Options{Dir: s.Options.Dir}).Stop()
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(keys, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestKind7_AnotherKeyIsNoDamage: a good backup that the pinned key has not signed is
// not said to be damaged, and one that is damaged is not said to be whole.
func TestKind7_AnotherKeyIsNoDamage(t *testing.T) {
	_, dir := made(t)
	_, other := logtest.Key("example.org/other/1", 9)
	_, _, err := backup.Check(dir, other)
	if !errors.Is(err, backup.ErrOtherKey) || errors.Is(err, backup.ErrDamage) || !strings.Contains(err.Error(), "it is whole") {
		t.Errorf("a good one: %v", err)
	}
	data := filepath.Join(t.TempDir(), "data")
	if _, _, err := backup.Restore(dir, data, backup.RestoreOptions{VKey: other}); !errors.Is(err, backup.ErrOtherKey) {
		t.Errorf("restoring it: %v", err)
	}
	if _, err := os.Stat(data); err == nil {
		t.Error("something was written")
	}
	if _, _, err := backup.Check(missing(t, dir), other); !errors.Is(err, backup.ErrDamage) || errors.Is(err, backup.ErrOtherKey) {
		t.Errorf("a damaged one: %v", err)
	}
}

// missing is a copy of a backup without its anchor.
func missing(t *testing.T, dir string) string {
	t.Helper()
	bad := filepath.Join(t.TempDir(), "bad")
	must(t, os.CopyFS(bad, os.DirFS(dir)))
	must(t, os.Remove(filepath.Join(bad, "anchor")))
	return bad
}

package store

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"
)

// childOpen makes this test binary a second process: it tries to open the log
// in $STORE_TEST_OPEN with the anchor and key in $STORE_TEST_NOTE and _VKEY.
const childOpen = "STORE_TEST_OPEN"

func TestMain(m *testing.M) {
	if n := os.Getenv(childFail); n != "" {
		failingChild(n)
		os.Exit(0)
	}
	dir := os.Getenv(childOpen)
	if dir == "" {
		debug.SetGCPercent(400) // tens of thousands of small databases
		os.Exit(m.Run())
	}
	v, err := note.NewVerifier(os.Getenv("STORE_TEST_VKEY"))
	if err == nil {
		var s *Store
		if s, err = Open(dir, Options{}, AnchorCheck{Note: []byte(os.Getenv("STORE_TEST_NOTE")), Verifier: v}); err == nil {
			err = s.Close()
			fmt.Println("opened")
		}
	}
	if err != nil {
		fmt.Println(err)
		if errors.Is(err, ErrLocked) {
			os.Exit(3)
		}
		os.Exit(4)
	}
	os.Exit(0)
}

// openElsewhere opens dir in a second process and returns its exit code.
func (l *ledger) openElsewhere(dir, vkey string) (int, string) {
	l.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childOpen+"="+dir, "STORE_TEST_NOTE="+string(l.note), "STORE_TEST_VKEY="+vkey)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		l.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// settled waits until Pebble has deleted in the background what its last opening
// made obsolete.
func (l *ledger) settled() {
	l.t.Helper()
	names := func() string {
		entries, err := os.ReadDir(filepath.Join(l.dir, "db"))
		must(l.t, err)
		return fmt.Sprint(entries)
	}
	last, since := names(), time.Now()
	for time.Since(since) < 200*time.Millisecond {
		time.Sleep(5 * time.Millisecond)
		if now := names(); now != last {
			last, since = now, time.Now()
		}
	}
}

// R72, INT-08: a second writer is refused in the process and in another one,
// by whatever path, also when Pebble's LOCK is gone; the first goes on.
func TestR72_SecondWriterIsRefused(t *testing.T) {
	parent := t.TempDir()
	l := prepare(t, filepath.Join(parent, "d"), Options{})
	skey, vkey, err := NewCheckpointKey(testOrigin)
	must(t, err)
	l.signer, err = note.NewSigner(skey)
	must(t, err)
	l.verifier, err = note.NewVerifier(vkey)
	must(t, err)
	if err := l.init(); err != nil {
		t.Fatal(err)
	}
	// Both checks can fail: with nobody there, the other process gets in.
	if code, out := l.openElsewhere(l.dir, vkey); code != 0 || out != "opened\n" {
		t.Fatalf("nobody writes, yet: %d %s", code, out)
	}
	l.mustOpen()
	l.settled() // or what Pebble clears away of its own would be laid at the second's door
	link := filepath.Join(parent, "link")
	if err := os.Symlink(l.dir, link); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(parent, "inner") // another directory whose db is this one
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(l.dir, "db"), filepath.Join(inner, "db")); err != nil {
		t.Fatal(err)
	}
	for _, locked := range []bool{true, false} {
		if !locked {
			if err := os.Remove(filepath.Join(l.dir, "db", "LOCK")); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range []string{l.dir, link, inner} {
			second := *l
			second.dir = dir
			second.refused(ErrLocked)
			if code, out := l.openElsewhere(dir, vkey); code != 3 {
				t.Errorf("other process at %s: %d %s", dir, code, out)
			}
			l.mustAppend(2)
		}
	}
	if got := l.check(); got != 13 {
		t.Fatalf("size %d", got)
	}
	l.note = l.sign()
	l.mustClose()
	if code, out := l.openElsewhere(link, vkey); code != 0 {
		t.Fatalf("after the first closed: %d %s", code, out)
	}
	l.mustOpen()
	if got := l.check(); got != 13 {
		t.Fatalf("size %d", got)
	}
	l.mustClose()
}

func TestR72_SecondWriterInMemoryIsRefused(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	second := *l
	if err := second.open(); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	l.mustAppend(3)
	l.check()
}

// Somebody moves, removes or replaces the directory under a running writer.
func TestReplacedDirectoryStopsTheWriter(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, dir string){
		"moved": func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".away")) },
		"removed": func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "db")))
		},
		"replaced by a copy": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".away"))
			must(t, os.CopyFS(dir, os.DirFS(dir+".away")))
		},
		"link moved": func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".away"))
			must(t, os.CopyFS(dir+".copy", os.DirFS(dir+".away")))
			must(t, os.Symlink(dir+".copy", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, filepath.Join(t.TempDir(), "d"), Options{})
			l.mustAppend(5)
			must(t, l.s.Check())
			harm(t, l.dir)
			err := l.append(1)
			if !errors.Is(err, ErrStopped) || !errors.Is(err, ErrReplaced) {
				t.Fatalf("append: %v", err)
			}
			if got := l.s.Durable(); got != 6 {
				t.Errorf("durable %d", got)
			}
			if err := l.s.Check(); !errors.Is(err, ErrStopped) {
				t.Errorf("check: %v", err)
			}
			if _, err := l.s.Event(1); !errors.Is(err, ErrStopped) {
				t.Errorf("read: %v", err)
			}
			<-l.s.Stopped()
		})
	}
	t.Run("idle", func(t *testing.T) {
		l := newLedger(t, filepath.Join(t.TempDir(), "d"), Options{})
		must(t, os.Rename(l.dir, l.dir+".away"))
		if err := l.s.Check(); !errors.Is(err, ErrReplaced) {
			t.Fatalf("check: %v", err)
		}
		if err := l.append(1); !errors.Is(err, ErrStopped) {
			t.Fatalf("append: %v", err)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A store of Pebble's first format, which Pebble v2 takes for an empty
// directory as far as its markers go.
func TestOldPebbleFormatIsRefusedUntouched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	l := newLedger(t, dir, Options{})
	l.mustAppend(3)
	l.note = l.sign()
	l.mustClose()
	db := filepath.Join(dir, "db")
	manifest := files(t, vfs.Default, db, "MANIFEST-", "")
	must(t, os.WriteFile(filepath.Join(db, "CURRENT"), []byte(filepath.Base(manifest[len(manifest)-1])+"\n"), 0o600))
	for _, m := range files(t, vfs.Default, db, "marker.", "") {
		must(t, os.Remove(m))
	}
	must(t, os.Remove(filepath.Join(db, "LOCK")))
	l.refused(ErrFormat)
	if _, err := OpenReadOnly(dir, Options{}); !errors.Is(err, ErrFormat) {
		t.Fatal(err)
	}
}

func TestUnknownFormatIsRefused(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	must(t, l.s.db.Set(nameKey(metaKeys, "format"), []byte("ledgerd/3"), nil))
	l.mustClose()
	if err := l.refused(ErrFormat); !strings.Contains(err.Error(), `"ledgerd/3"`) {
		t.Error(err)
	}
}

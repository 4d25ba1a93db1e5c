package backup_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/backup"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// served is a running ledger with something in it.
func served(t testing.TB) *replaytest.Session {
	t.Helper()
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	must(t, ledger.Init(o.Dir, ledger.InitOptions{}))
	s := replaytest.Start(t, o)
	s.Family()
	return s
}

var shared struct {
	once sync.Once
	root string
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(shared.root)
	os.Exit(code)
}

// made is a backup with keys of a ledger at rest: one for all tests, not to be
// changed.
func made(t testing.TB) (data, dir string) {
	t.Helper()
	shared.once.Do(func() {
		var err error
		shared.root, err = os.MkdirTemp("", "backup")
		must(t, err)
		o := ledger.Options{Dir: filepath.Join(shared.root, "data")}
		must(t, ledger.Init(o.Dir, ledger.InitOptions{}))
		s := replaytest.Start(t, o)
		s.Family()
		s.Scenario()
		s.Stop()
		_, err = backup.Write(o.Dir, filepath.Join(shared.root, "backup"), backup.Options{Keys: true})
		must(t, err)
	})
	return filepath.Join(shared.root, "data"), filepath.Join(shared.root, "backup")
}

// A backup taken while the ledger works is whole: it verifies, every decision in
// it can be judged again, and the writer did not notice.
func TestR72_ABackupUnderLoadVerifiesAndReplays(t *testing.T) {
	s := served(t)
	done := make(chan int)
	stop := make(chan struct{})
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			s.Propose("researcher", "memory.write", fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"research.notes","key":"k%d","value":"some text"}`, n))
		}
	}()
	var last uint64
	for i := range 4 {
		dir := filepath.Join(t.TempDir(), fmt.Sprint("backup", i))
		m, err := backup.Write(s.Options.Dir, dir, backup.Options{Keys: true})
		must(t, err)
		if m.Events < last || m.Events < m.Size {
			t.Fatalf("backup %d has %d events, the checkpoint covers %d, the one before had %d", i, m.Events, m.Size, last)
		}
		last = m.Events
		checked, _, err := backup.Check(dir, "")
		must(t, err)
		if checked.Events != m.Events {
			t.Fatalf("%d events, made with %d", checked.Events, m.Events)
		}
		replayed(t, dir)
	}
	close(stop)
	if n := <-done; n < 8 {
		t.Fatalf("only %d writes went beside four backups", n)
	}
	s.Stop()
}

func replayed(t testing.TB, dir string) {
	t.Helper()
	d, err := datadir.Open(dir)
	must(t, err)
	defer d.Close()
	source, err := replay.Stored(dir, d.Store)
	must(t, err)
	r := replay.Run(source)
	if r.Err != nil || r.Found > 0 || r.Unjudged() > 0 || r.Decisions == 0 {
		t.Fatalf("replay: %v, %v, %d of %d unjudged", r.Err, r.Findings, r.Unjudged(), r.Decisions)
	}
}

// Row 62: what was restored is not gone on with, whatever else fits: others may
// hold what came after the backup.
func TestKind7_62_TheRestoredIsReadAndNotServed(t *testing.T) {
	data, dir := made(t)
	restored := filepath.Join(t.TempDir(), "deep", "restored")
	m, report, err := backup.Restore(dir, restored, backup.RestoreOptions{})
	must(t, err)
	if report.Exit != audit.ExitPass || report.Events != m.Events {
		t.Fatalf("report %+v", report)
	}
	replayed(t, restored)
	must(t, audit.WriteExport(filepath.Join(t.TempDir(), "export"), source(t, restored)))

	before := contents(t, restored)
	if _, err := ledger.Open(ledger.Options{Dir: restored}); !errors.Is(err, ledger.ErrRestored) {
		t.Fatalf("opening says %v", err)
	}
	// With the newer anchor of the ledger that was lost, it is a rollback too.
	if _, err := ledger.Open(ledger.Options{Dir: restored, Anchor: filepath.Join(data, "anchor")}); !errors.Is(err, ledger.ErrRestored) {
		t.Fatalf("opening says %v", err)
	}
	if after := contents(t, restored); after != before {
		t.Fatal("a refused opening changed the directory")
	}
}

func source(t testing.TB, dir string) *audit.Source {
	t.Helper()
	d, err := datadir.Open(dir)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d.Source()
}

// A marker taken away does not help where a newer anchor is known.
func TestKind7_62_AnOlderStateIsARollbackWithoutItsMarkerToo(t *testing.T) {
	s := served(t)
	dir := filepath.Join(t.TempDir(), "backup")
	_, err := backup.Write(s.Options.Dir, dir, backup.Options{Keys: true})
	must(t, err)
	s.Apply(replaytest.PolicyDocument("lab-2"))
	s.Stop()
	restored := filepath.Join(t.TempDir(), "restored")
	_, _, err = backup.Restore(dir, restored, backup.RestoreOptions{})
	must(t, err)
	must(t, os.Remove(filepath.Join(restored, ledger.RestoredFile)))
	if _, err := ledger.Open(ledger.Options{Dir: restored, Anchor: filepath.Join(s.Options.Dir, "anchor")}); !errors.Is(err, store.ErrBehindAnchor) {
		t.Fatalf("opening says %v", err)
	}
}

// Row 64: a backup is not obeyed. Whatever is wrong with its names refuses all of
// it, before anything is written.
func TestKind7_64_NamesAndLinksThatEscapeAreRefused(t *testing.T) {
	_, good := made(t)
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("outside"), 0o600))
	inManifest := func(name string) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, "manifest.json")
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, bytes.Replace(b, []byte(`"name": "anchor"`), []byte(`"name": "`+name+`"`), 1), 0o600))
		}
	}
	for what, spoil := range map[string]func(dir string){
		"parent":            inManifest("../x"),
		"parent below":      inManifest("db/../../x"),
		"absolute":          inManifest("/tmp/x"),
		"backslash":         inManifest(`db\\x`),
		"nul":               inManifest(`db/\u0000x`),
		"deep":              inManifest("db/a/b"),
		"stream":            inManifest("stream/x"),
		"marker":            inManifest("restored"),
		"key of another":    inManifest("keys/.ssh"),
		"empty":             inManifest(""),
		"link to file":      func(dir string) { must(t, os.Symlink(outside, filepath.Join(dir, "db", "000999.sst"))) },
		"link as directory": func(dir string) { must(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "keys2"))) },
		"link as anchor": func(dir string) {
			must(t, os.Rename(filepath.Join(dir, "anchor"), outside+".anchor"))
			must(t, os.Symlink(outside+".anchor", filepath.Join(dir, "anchor")))
		},
		"link as manifest": func(dir string) {
			must(t, os.Rename(filepath.Join(dir, "manifest.json"), outside+".json"))
			must(t, os.Symlink(outside+".json", filepath.Join(dir, "manifest.json")))
		},
		"link as db": func(dir string) {
			must(t, os.Rename(filepath.Join(dir, "db"), outside+".db"))
			must(t, os.Symlink(outside+".db", filepath.Join(dir, "db")))
		},
	} {
		t.Run(what, func(t *testing.T) { refused(t, good, spoil) })
	}
}

// refused spoils a copy of a good backup, which must then not be restored, and
// nothing must have been written.
func refused(t *testing.T, good string, spoil func(dir string)) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "backup")
	must(t, os.CopyFS(dir, os.DirFS(good)))
	spoil(dir)
	before := contents(t, root)
	_, _, err := backup.Restore(dir, filepath.Join(root, "restored"), backup.RestoreOptions{})
	if !errors.Is(err, backup.ErrNot) && !errors.Is(err, backup.ErrDamage) {
		t.Fatalf("restore says %v", err)
	}
	if after := contents(t, root); after != before {
		t.Fatalf("it wrote:\n%s\nbefore:\n%s", after, before)
	}
}

// A backup that is not whole is refused: broken off, a file changed, missing or
// too many, another log's checkpoint, a byte of the log.
func TestR81_ABackupThatIsNotWholeIsRefused(t *testing.T) {
	_, good := made(t)
	table := func(dir string) string {
		list, err := filepath.Glob(filepath.Join(dir, "db", "*.sst"))
		must(t, err)
		return list[0]
	}
	for what, spoil := range map[string]func(dir string){
		"broken off":   func(dir string) { must(t, os.Remove(filepath.Join(dir, "manifest.json"))) },
		"half written": func(dir string) { must(t, os.Truncate(filepath.Join(dir, "manifest.json"), 200)) },
		"missing":      func(dir string) { must(t, os.Remove(table(dir))) },
		"short":        func(dir string) { must(t, os.Truncate(table(dir), 100)) },
		"grown": func(dir string) {
			f, err := os.OpenFile(table(dir), os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			f.Write([]byte("x"))
			must(t, f.Close())
		},
		"too many": func(dir string) { must(t, os.WriteFile(filepath.Join(dir, "db", "stray"), nil, 0o600)) },
		"a bit": func(dir string) {
			b, err := os.ReadFile(table(dir))
			must(t, err)
			b[len(b)/2] ^= 1
			must(t, os.WriteFile(table(dir), b, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) { refused(t, good, spoil) })
	}
}

// Row 66: a directory with nothing to check is no good backup.
func TestKind7_66_NothingCheckedIsNoSuccess(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if m, _, err := backup.Check(dir, ""); err == nil {
			t.Fatalf("checked %+v", m)
		}
	}
	data, _ := made(t)
	if _, _, err := backup.Check(data, ""); !errors.Is(err, backup.ErrNot) {
		t.Fatalf("a data directory: %v", err)
	}
}

// Without --with-keys no byte of a key is in a backup, and there is a way back
// with keys kept elsewhere.
func TestABackupHoldsNoKeysUnlessAsked(t *testing.T) {
	data, _ := made(t)
	dir := filepath.Join(t.TempDir(), "backup")
	m, err := backup.Write(data, dir, backup.Options{})
	must(t, err)
	if m.Keys {
		t.Fatal("it says that it holds keys")
	}
	all := contents(t, dir)
	for _, name := range []string{"seal.key", "checkpoint.key", "checkpoint-2.key", "permit.key", "admin.nk"} {
		b, err := os.ReadFile(filepath.Join(data, "keys", name))
		if errors.Is(err, fs.ErrNotExist) { // retired
			continue
		}
		must(t, err)
		if strings.Contains(all, strings.TrimSpace(string(b))) {
			t.Fatalf("%s is in the backup", name)
		}
	}
	restored := filepath.Join(t.TempDir(), "restored")
	_, _, err = backup.Restore(dir, restored, backup.RestoreOptions{Keys: filepath.Join(data, "keys")})
	must(t, err)
	replayed(t, restored)
}

// Nothing that exists is written over.
func TestNothingIsWrittenOver(t *testing.T) {
	data, dir := made(t)
	if _, err := backup.Write(data, dir, backup.Options{}); !errors.Is(err, backup.ErrExists) {
		t.Fatalf("write says %v", err)
	}
	if _, _, err := backup.Restore(dir, data, backup.RestoreOptions{}); !errors.Is(err, backup.ErrExists) {
		t.Fatalf("restore says %v", err)
	}
}

// contents is every file below a directory, with its bytes.
func contents(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, e.Type())
		if e.Type().IsRegular() {
			text, err := os.ReadFile(path)
			b.Write(text)
			return err
		}
		return nil
	}))
	return b.String()
}

// Keys that are not the log's are refused before anything is written.
func TestR72_ForeignKeysAreRefused(t *testing.T) {
	data, _ := made(t)
	b, other := filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "other")
	_, err := backup.Write(data, b, backup.Options{})
	must(t, err)
	must(t, ledger.Init(other, ledger.InitOptions{}))
	restored := filepath.Join(t.TempDir(), "r")
	for _, name := range []string{"", "seal.key", "checkpoint.key", "checkpoint.vkey", "permit.key"} {
		keys := filepath.Join(t.TempDir(), "keys")
		must(t, os.CopyFS(keys, os.DirFS(filepath.Join(data, "keys"))))
		if name == "" {
			keys = filepath.Join(other, "keys")
		} else {
			b, err := os.ReadFile(filepath.Join(other, "keys", name))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(keys, name), b, 0o600))
		}
		if _, _, err := backup.Restore(b, restored, backup.RestoreOptions{Keys: keys}); !errors.Is(err, ledger.ErrKey) {
			t.Fatalf("%q: %v", name, err)
		}
	}
	keys := filepath.Join(t.TempDir(), "keys")
	must(t, os.CopyFS(keys, os.DirFS(filepath.Join(data, "keys"))))
	must(t, os.Remove(filepath.Join(keys, "seal.key")))
	if _, _, err := backup.Restore(b, restored, backup.RestoreOptions{Keys: keys}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("without seal.key: %v", err)
	}
	if _, err := os.Lstat(restored); err == nil {
		t.Fatal("something was written")
	}
	_, _, err = backup.Restore(b, restored, backup.RestoreOptions{Keys: filepath.Join(data, "keys")})
	must(t, err)
}

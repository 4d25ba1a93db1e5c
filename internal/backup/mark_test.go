package backup_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/backup"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// A backup with keys is not served, also once its manifest is gone: the mark is in
// the copy itself, and a manifest that leaves it out is none.
func TestKind7_62_ABackupWithoutItsManifestIsNotServed(t *testing.T) {
	_, dir := made(t)
	bare := filepath.Join(t.TempDir(), "bare")
	must(t, os.CopyFS(bare, os.DirFS(dir)))
	must(t, os.Remove(filepath.Join(bare, "manifest.json")))
	before := contents(t, bare)
	if _, err := ledger.Open(ledger.Options{Dir: bare}); !errors.Is(err, ledger.ErrRestored) {
		t.Fatalf("opening says %v", err)
	}
	if contents(t, bare) != before {
		t.Fatal("opening wrote something")
	}
	bare = filepath.Join(t.TempDir(), "bare")
	must(t, os.CopyFS(bare, os.DirFS(dir)))
	must(t, os.Remove(filepath.Join(bare, ledger.RestoredFile)))
	if _, _, err := backup.Check(bare, ""); !errors.Is(err, backup.ErrDamage) {
		t.Fatalf("a backup without its mark: %v", err)
	}
	if _, err := ledger.Open(ledger.Options{Dir: bare}); !errors.Is(err, ledger.ErrRestored) {
		t.Fatalf("and opening it: %v", err)
	}
}

// A backup of before there was a mark in it restores, and what it makes has one.
func TestKind7_62_ABackupFromBeforeTheMarkRestores(t *testing.T) {
	_, dir := made(t)
	older, restored := filepath.Join(t.TempDir(), "older"), filepath.Join(t.TempDir(), "restored")
	must(t, os.CopyFS(older, os.DirFS(dir)))
	must(t, os.Remove(filepath.Join(older, ledger.RestoredFile)))
	name := filepath.Join(older, "manifest.json")
	b, err := os.ReadFile(name)
	must(t, err)
	var m backup.Manifest
	must(t, json.Unmarshal(b, &m))
	files := len(m.Files)
	m.Files = slices.DeleteFunc(m.Files, func(f backup.File) bool { return f.Name == ledger.RestoredFile })
	if len(m.Files) != files-1 {
		t.Fatal("the manifest does not know the mark")
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	must(t, e.Encode(m))
	must(t, os.WriteFile(name, out.Bytes(), 0o600))
	for _, from := range []string{older, dir} {
		_, _, err = backup.Restore(from, restored, backup.RestoreOptions{})
		must(t, err)
		replayed(t, restored)
		if _, err := ledger.Open(ledger.Options{Dir: restored}); !errors.Is(err, ledger.ErrRestored) {
			t.Fatalf("opening says %v", err)
		}
		must(t, os.RemoveAll(restored))
	}
}

package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Check verifies the backup in dir whole, writing nothing: its manifest, the
// names, sizes and digests of all its files, and the log itself. The error wraps
// ErrNot, ErrDamage or ErrOtherKey. vkey, if any, is the key the checkpoint must be signed with.
func Check(dir, vkey string) (*Manifest, *audit.Report, error) {
	m, err := read(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range m.Files {
		got, err := digest(filepath.Join(dir, filepath.FromSlash(f.Name)))
		if err != nil {
			return nil, nil, err
		}
		if err := f.same(got); err != nil {
			return nil, nil, err
		}
	}
	report, err := verify(dir, vkey, m)
	return m, report, err
}

// read reads the manifest and compares it with what lies there.
func read(dir string) (*Manifest, error) {
	info, err := os.Lstat(filepath.Join(dir, manifestFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s has no %s; a backup that was broken off has none", ErrNot, dir, manifestFile)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(), info.Size() > manifestBytesMax:
		return nil, fmt.Errorf("%w: %s is no manifest", ErrNot, manifestFile)
	}
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	m, err := decode(b)
	if err != nil {
		return nil, err
	}
	names, err := list(dir)
	if err != nil {
		return nil, err
	}
	for i := range max(len(names), len(m.Files)) {
		switch {
		case i == len(names), i < len(m.Files) && m.Files[i].Name < names[i]:
			return nil, fmt.Errorf("%w: %s is missing", ErrDamage, m.Files[i].Name)
		case i == len(m.Files), names[i] < m.Files[i].Name:
			return nil, fmt.Errorf("%w: the manifest knows no %s", ErrDamage, names[i])
		}
	}
	return m, nil
}

// verify checks the log of a backup as an auditor would.
func verify(dir, vkey string, m *Manifest) (*audit.Report, error) {
	d, err := datadir.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamage, err)
	}
	defer d.Close()
	return verifyOpen(d, vkey, m)
}

// verifyOpen verifies it where it is open. Where it is whole and signed by keys of its
// own, of which vkey is none, that is an ErrOtherKey.
func verifyOpen(d *datadir.Dir, vkey string, m *Manifest) (*audit.Report, error) {
	report, err := verifyLog(d, vkey, m)
	if !errors.Is(err, ErrDamage) || vkey == "" {
		return report, err
	}
	if own, fault := verifyLog(d, "", m); fault == nil {
		keys := own.Keys
		if len(keys) == 0 {
			keys = []string{own.Key}
		}
		return report, fmt.Errorf("%w %s: it is whole, and its own checkpoint keys are %s", ErrOtherKey, vkey, strings.Join(keys, ", "))
	}
	return report, err
}

func verifyLog(d *datadir.Dir, vkey string, m *Manifest) (*audit.Report, error) {
	report, err := audit.VerifyLog(d.Source(), audit.Options{VKey: vkey, Remembered: []byte(m.Checkpoint)})
	switch {
	case err != nil:
		return nil, err
	case report.Exit != audit.ExitPass && len(report.Faults) > 0:
		return report, fmt.Errorf("%w: %s", ErrDamage, report.Faults[0])
	case report.Exit != audit.ExitPass:
		return report, fmt.Errorf("%w: the log could not be checked", ErrDamage)
	case report.Events != m.Events, report.Origin != m.Origin:
		return report, fmt.Errorf("%w: the log has %d events of %q, the manifest says %d of %q", ErrDamage, report.Events, report.Origin, m.Events, m.Origin)
	}
	return report, nil
}

// RestoreOptions say how a backup becomes a data directory.
type RestoreOptions struct {
	Keys string // directory with the ledger's keys, where the backup has none
	VKey string // key the checkpoint must be signed with; empty takes the log's own
}

// Restore makes the data directory data, which must not exist, of the backup in
// from. Nothing is written before the backup was verified whole. What it makes
// bears the marker: it is not served.
func Restore(from, data string, o RestoreOptions) (*Manifest, *audit.Report, error) {
	if err := absent(data); err != nil {
		return nil, nil, err
	}
	m, report, err := Check(from, o.VKey)
	if err != nil {
		return nil, report, err
	}
	if m.Keys && o.Keys != "" {
		return nil, nil, fmt.Errorf("%w: the backup holds keys itself", ErrExists)
	}
	if o.Keys != "" {
		if err := fits(from, o.Keys); err != nil {
			return nil, nil, err
		}
	}
	m, err = build(data, func(tmp string) (*Manifest, error) { return m, fill(tmp, from, m, o.Keys) })
	return m, report, err
}

// fits refuses keys that are not of the log of a backup, before they lie beside it
// and make it look damaged.
func fits(from, keys string) error {
	d, err := datadir.Open(from)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamage, err)
	}
	defer d.Close()
	old, err := ledger.ReadOld(from, d.Store)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamage, err)
	}
	return ledger.CheckKeys(keys, d.Store, old.State)
}

func fill(tmp, from string, m *Manifest, keys string) error {
	for _, f := range m.Files {
		if err := bring(tmp, from, f); err != nil {
			return err
		}
	}
	if keys != "" {
		files, err := readKeys(keys)
		if err == nil {
			err = files.write(filepath.Join(tmp, keysDir))
		}
		if err != nil {
			return fmt.Errorf("keys: %w", err)
		}
	}
	if slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == ledger.RestoredFile }) {
		return nil // its own, which says the same
	}
	return mark(tmp, m)
}

// bring copies one file, and looks at it once more on the way.
func bring(tmp, from string, f File) error {
	path := filepath.Join(tmp, filepath.FromSlash(f.Name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	src, err := root.Open(f.Name)
	if err != nil {
		return err
	}
	defer src.Close()
	got, err := copyFile(io.LimitReader(src, f.Size+1), path)
	if err != nil {
		return err
	}
	return f.same(got)
}

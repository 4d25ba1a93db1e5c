// Package backup copies a ledger's data directory, beside its writer or without
// one, and makes a data directory of such a copy again. First call: Write;
// later Check or Restore.
//
// A backup is a directory with the database, the anchor, the keys where they
// were asked for, and a manifest, written last, that names every file with its
// SHA-256. It promises that
//
//   - a backup appears under its name whole or not at all, and one without its
//     manifest, with a file too many, too few or changed is refused;
//   - nothing in a backup is obeyed: file names are plain, links are refused, and
//     nothing is written before all of it was read and the log verified;
//   - a backup, and what was restored of it, says so (ledger.RestoredFile): it can
//     be read, verified and exported, and is never served, since what came after
//     the backup may be known to others.
package backup

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Errors a caller branches on; all come wrapped with what was found.
var (
	ErrExists   = errors.New("there is something already")
	ErrNot      = errors.New("not a backup")
	ErrDamage   = errors.New("the backup is damaged")
	ErrOtherKey = errors.New("the backup was not signed by the key")
	ErrErased   = errors.New("an erasure is not carried out")
)

const (
	anchorFile = "anchor"
	dbDir      = "db"
	keysDir    = "keys"
)

// Options say what goes into a backup.
type Options struct {
	Anchor string // file of the last signed checkpoint; default DIR/anchor
	Keys   bool   // the keys too
}

// Write copies the data directory in data to dir, which must not exist. A writer
// at work there is not disturbed.
func Write(data, dir string, o Options) (_ *Manifest, err error) {
	if err := absent(dir); err != nil {
		return nil, err
	}
	if o.Anchor == "" {
		o.Anchor = filepath.Join(data, anchorFile)
	}
	v, err := settled(data, o)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	signed := await(o.Anchor, v.signed, v.Store.Durable())
	return build(dir, func(tmp string) (*Manifest, error) {
		if err := v.Store.CopyTo(tmp); err != nil {
			return nil, err
		}
		if err := writeNew(filepath.Join(tmp, anchorFile), signed); err != nil {
			return nil, err
		}
		if o.Keys {
			if err := v.keys.write(filepath.Join(tmp, keysDir)); err != nil {
				return nil, err
			}
		}
		return describe(tmp)
	})
}

// await gives a writer at work a moment to sign what was copied. It returns the
// last note that covers no more than size.
func await(path string, signed []byte, size uint64) []byte {
	for range 3 {
		if c, err := audit.ReadCheckpoint(signed); err != nil || c.Size >= size {
			break
		}
		time.Sleep(signedWithin)
		b, err := os.ReadFile(path)
		c, fault := audit.ReadCheckpoint(b)
		if err != nil || fault != nil || c.Size > size {
			break
		}
		signed = b
	}
	return signed
}

const signedWithin = 100 * time.Millisecond

// build makes dir out of a temporary directory beside it, which fill fills.
func build[T any](dir string, fill func(tmp string) (T, error)) (made T, err error) {
	var id [8]byte
	rand.Read(id[:])
	dir = filepath.Clean(dir)
	tmp := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+"."+hex.EncodeToString(id[:]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return made, err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return made, err
	}
	defer os.RemoveAll(tmp) // renamed by then, or in vain
	if made, err = fill(tmp); err != nil {
		return made, err
	}
	if err := syncTree(tmp); err != nil {
		return made, err
	}
	if err := absent(dir); err != nil {
		return made, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return made, err
	}
	return made, syncPath(filepath.Dir(dir))
}

// describe makes the manifest of the copy in tmp and writes it: the last file.
func describe(tmp string) (*Manifest, error) {
	d, err := datadir.Open(tmp)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	m, err := describeLog(d)
	if err != nil {
		return nil, err
	}
	if _, err := verifyOpen(d, "", m); err != nil { // what is said to be good is what Restore takes
		return nil, fmt.Errorf("the copy would not restore: %w", err)
	}
	if err := mark(tmp, m); err != nil {
		return nil, err
	}
	files, err := list(tmp)
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		f, err := digest(filepath.Join(tmp, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		f.Name = name
		m.Files = append(m.Files, f)
		m.Keys = m.Keys || strings.HasPrefix(name, keysDir+"/")
	}
	return m, writeNew(filepath.Join(tmp, manifestFile), m.encode())
}

// mark keeps a copy of a log from being served, also where its manifest is gone.
func mark(dir string, m *Manifest) error {
	b, err := json.Marshal(map[string]any{"origin": m.Origin, "events": m.Events, "checkpoint": m.Checkpoint})
	if err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, ledger.RestoredFile), append(b, '\n'))
}

// describeLog says which log a copy holds, and holds its end against the
// checkpoint.
func describeLog(d *datadir.Dir) (*Manifest, error) {
	source := d.Source()
	c, err := audit.ReadCheckpoint(source.Checkpoint)
	if err != nil {
		return nil, err
	}
	switch size := d.Store.Durable(); {
	case c.Origin != d.Store.Origin():
		return nil, fmt.Errorf("%w: the anchor names %q, the log is %q", ErrDamage, c.Origin, d.Store.Origin())
	case c.Size > size:
		return nil, fmt.Errorf("%w: the log ends at %d, the anchor says %d", ErrDamage, size, c.Size)
	}
	root, err := d.Store.Root(c.Size)
	if err != nil {
		return nil, err
	}
	if root != c.Root {
		return nil, fmt.Errorf("%w: root at %d is %s, the anchor says %s", ErrDamage, c.Size, root, c.Root)
	}
	return &Manifest{
		Format: manifestFormat, Origin: c.Origin, Events: d.Store.Durable(), Size: c.Size, Root: c.Root.String(), Checkpoint: string(source.Checkpoint),
	}, nil
}

func absent(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, errors.Join(ErrExists, err))
	}
	return nil
}

// writeNew writes a file that does not exist yet, durably.
func writeNew(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// copyFile copies a file to a new one and returns what went through.
func copyFile(src io.Reader, path string) (file File, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return file, err
	}
	file, err = sum(io.TeeReader(src, f))
	return file, errors.Join(err, f.Sync(), f.Close())
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncPath(path)
	})
}

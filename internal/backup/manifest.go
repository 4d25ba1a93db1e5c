package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Manifest says what a backup holds.
type Manifest struct {
	Format     string `json:"format"`
	Origin     string `json:"origin"`
	Events     uint64 `json:"events"`     // in the copy
	Size       uint64 `json:"size"`       // of them, what the checkpoint covers
	Root       string `json:"root"`       // at that size
	Checkpoint string `json:"checkpoint"` // the signed note
	Keys       bool   `json:"keys"`       // among the files
	Files      []File `json:"files"`      // by name
}

// File is one file of a backup, by its path in it, with slashes.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

const (
	manifestFile   = ledger.ManifestFile
	manifestFormat = "ledgerd-backup/1"

	manifestBytesMax = 64 << 20
)

func (m *Manifest) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(m); err != nil {
		panic(err) // strings and numbers
	}
	return b.Bytes()
}

// decode reads a manifest in the one way it is written, and refuses every name
// that is not one a backup has.
func decode(b []byte) (*Manifest, error) {
	m := &Manifest{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNot, manifestFile, err)
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("%w: format %q, this program reads %q", ErrNot, m.Format, manifestFormat)
	}
	if !bytes.Equal(m.encode(), b) {
		return nil, fmt.Errorf("%w: %s is not as it would be written", ErrNot, manifestFile)
	}
	for i, f := range m.Files {
		switch {
		case !fileName(f.Name):
			return nil, fmt.Errorf("%w: a file named %q", ErrNot, f.Name)
		case i > 0 && m.Files[i-1].Name >= f.Name:
			return nil, fmt.Errorf("%w: %q is listed twice, or out of order", ErrNot, f.Name)
		}
	}
	c, err := audit.ReadCheckpoint([]byte(m.Checkpoint))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNot, err)
	case c.Origin != m.Origin, c.Size != m.Size, c.Root.String() != m.Root, m.Size == 0, m.Events < m.Size:
		return nil, fmt.Errorf("%w: %s says other than its checkpoint", ErrNot, manifestFile)
	}
	return m, nil
}

// plain is what a file of a backup is called: letters, digits, dots, dashes and
// underscores, none of them a path's.
var plain = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,120}$`)

func plainName(name string) bool { return plain.MatchString(name) && !strings.Contains(name, "..") }

// keyName reports whether a key file may be called that.
func keyName(name string) bool {
	return plainName(name) && slices.Contains([]string{".nk", ".key", ".vkey"}, filepath.Ext(name))
}

// fileName reports whether name, with slashes, is a path that a backup has.
func fileName(name string) bool {
	if name == anchorFile || name == ledger.RestoredFile {
		return true
	}
	dir, base, ok := strings.Cut(name, "/")
	return ok && (dir == dbDir && plainName(base) || dir == keysDir && keyName(base))
}

// list names the files of a backup but for the manifest, sorted, and refuses
// whatever else lies there: links, devices, other names.
func list(dir string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case e.IsDir() && (name == "." || name == dbDir || name == keysDir):
		case e.Type().IsRegular() && name == manifestFile:
		case e.Type().IsRegular() && fileName(name):
			names = append(names, name)
		default:
			return fmt.Errorf("%w: it holds %q (%s)", ErrNot, name, e.Type())
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

func digest(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	file, err := sum(f)
	return file, errors.Join(err, f.Close())
}

func sum(r io.Reader) (File, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	return File{Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

// same compares a file with what the manifest says of it.
func (f File) same(got File) error {
	if f.Size != got.Size || f.SHA256 != got.SHA256 {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, the manifest says %d and %s", ErrDamage, f.Name, got.Size, got.SHA256, f.Size, f.SHA256)
	}
	return nil
}

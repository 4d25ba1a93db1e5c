package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/mod/sumdb/note"
)

// Anchor is the file outside the database that holds the log's last signed
// checkpoint. It only ever moves forward, and is what tells a log that lost its
// end, or was exchanged for an older copy, from a whole one. Safe for
// concurrent use in one process; the log's lock keeps others away.
type Anchor struct {
	path      string
	verifiers []note.Verifier

	mu   sync.Mutex
	note []byte // what was last read or written, verified
	at   Checkpoint
}

// NewAnchor names the anchor at path, whose notes one of the verifiers checks. It
// touches no file.
func NewAnchor(path string, verifiers ...note.Verifier) *Anchor {
	return &Anchor{path: path, verifiers: verifiers}
}

// Trust adds a key to those that may have signed the anchor.
func (a *Anchor) Trust(verifier note.Verifier) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.verifiers = append(a.verifiers, verifier)
}

// Read returns the note as it stands in the file, unchecked (Open checks it),
// or ErrNoAnchor.
func (a *Anchor) Read() ([]byte, error) {
	b, err := os.ReadFile(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoAnchor, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read anchor: %w", err)
	}
	return b, nil
}

// Create writes the first anchor of a new log. It refuses where a file exists.
func (a *Anchor) Create(signed []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := os.Lstat(a.path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("create anchor %s: %w", a.path, errors.Join(fs.ErrExist, err))
	}
	at, err := ParseCheckpoint(signed, a.verifiers...)
	if err != nil {
		return fmt.Errorf("create anchor %s: %w", a.path, err)
	}
	return a.write(signed, at)
}

// Advance replaces the note in the file by a later one, durably when it
// returns. A smaller size is refused with ErrBehindAnchor, the same size with
// another root with ErrDiverged, a file that is gone with ErrNoAnchor; the same
// checkpoint again changes nothing.
func (a *Anchor) Advance(signed []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	next, err := ParseCheckpoint(signed, a.verifiers...)
	if err != nil {
		return fmt.Errorf("advance anchor: %w", err)
	}
	current, err := a.Read()
	if err != nil {
		return fmt.Errorf("advance anchor: %w", err)
	}
	if !bytes.Equal(current, a.note) {
		if a.at, err = ParseCheckpoint(current, a.verifiers...); err != nil {
			return fmt.Errorf("advance anchor %s: %w", a.path, err)
		}
		a.note = current
	}
	switch {
	case next.Size < a.at.Size:
		return fmt.Errorf("advance anchor: %w: from %d to %d", ErrBehindAnchor, a.at.Size, next.Size)
	case next == a.at:
		return nil
	case next.Size == a.at.Size:
		return fmt.Errorf("advance anchor: %w: two roots at %d, %s and %s", ErrDiverged, next.Size, a.at.Root, next.Root)
	}
	return a.write(signed, next)
}

func (a *Anchor) write(signed []byte, at Checkpoint) error {
	if err := ReplaceFile(a.path, signed); err != nil {
		return fmt.Errorf("write anchor: %w", err)
	}
	a.note, a.at = bytes.Clone(signed), at
	return nil
}

// ReplaceFile replaces the file at path by b, whole and durably or not at all. It
// uses path.tmp: one caller at a time for a path.
func ReplaceFile(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

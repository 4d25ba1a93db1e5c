package store

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// CopyTo writes the log, as it was when it was opened for reading, to dir, which
// must hold none yet and then opens like any data directory. It is what
// Checkpoint is to a writer, for one who has only looked: the writer, if there
// is one, hears nothing of it.
func (s *Store) CopyTo(dir string) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen == nil {
		return s.Checkpoint(dir)
	}
	if s.frozen.bare {
		return errors.New("its write-ahead logs were dropped")
	}
	to := dbDir(s.fs, dir)
	if _, err := vacant(s.fs, to); err != nil {
		return fmt.Errorf("copy to %s: %w", dir, err)
	}
	if err := s.fs.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("copy to %s: %w", dir, err)
	}
	names, err := s.frozen.List(frozenDir)
	if err != nil {
		return fmt.Errorf("copy to %s: %w", dir, err)
	}
	for _, name := range names {
		if name == "LOCK" { // of this reader's own
			continue
		}
		if err := s.frozen.copyOut(name, s.fs, s.fs.PathJoin(to, name)); err != nil {
			return fmt.Errorf("copy to %s: %s: %w", dir, name, err)
		}
	}
	if err := syncDir(s.fs, to); err != nil {
		return fmt.Errorf("copy to %s: %w", dir, err)
	}
	return nil
}

// copyOut writes one file, synced.
func (f *frozenFS) copyOut(name string, sys vfs.FS, path string) error {
	src, err := f.Open(f.PathJoin(frozenDir, name))
	if err != nil {
		return err
	}
	info, err := src.Stat()
	if err != nil {
		return errors.Join(err, src.Close())
	}
	dst, err := sys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return errors.Join(err, src.Close())
	}
	_, err = io.Copy(dst, io.NewSectionReader(src, 0, info.Size()))
	return errors.Join(err, dst.Sync(), dst.Close(), src.Close())
}

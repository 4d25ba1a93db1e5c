package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dirLock is an exclusive flock on the inode of a directory. Pebble's own lock
// is a POSIX record lock on the file LOCK: it falls when anything in the same
// process closes that file, is void once the file was removed, and does not see
// that two paths lead to one directory. This one has none of these holes. The
// nil lock, that of an in-memory file system, always fits.
type dirLock struct {
	path string
	file *os.File
	info os.FileInfo
}

// Lock keeps every writer away from the data directory dir until it is released,
// or returns ErrLocked where one is at work.
func Lock(dir string, opts Options) (release func() error, err error) {
	sys := opts.fs()
	lock, err := lockDir(sys, dbDir(sys, dir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return lock.release, nil
}

// lockDir locks the directory at path, or returns ErrLocked at once.
func lockDir(vfsys vfs.FS, path string) (*dirLock, error) {
	if vfs.Root(vfsys) != vfs.Default {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = flock(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &dirLock{path, f, info}, nil
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}

// check reports ErrReplaced when path no longer leads to the locked directory.
func (l *dirLock) check() error {
	if l == nil {
		return nil
	}
	now, err := os.Stat(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(now, l.info):
		return fmt.Errorf("%w: %s", ErrReplaced, l.path)
	case err != nil:
		return fmt.Errorf("check data directory: %w", err)
	}
	return nil
}

func (l *dirLock) release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

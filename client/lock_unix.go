//go:build unix

package client

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes the lock that the file at path stands for; closing it, also by
// the end of the process, gives it back.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(ErrStoreInUse, f.Close())
	case err != nil:
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

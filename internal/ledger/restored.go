package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// RestoredFile lies in a backup, and in a data directory that was made of one. Others may
// know what came after the backup, so that the log must not go on from there.
const RestoredFile = "restored"

// ErrRestored says that a data directory was made of a backup: it can be read,
// and a new epoch can follow from it.
var ErrRestored = errors.New("restored from a backup, and not to be gone on with")

// ContinuedFile lies in a data directory whose log another epoch continues.
const ContinuedFile = "continued"

// ErrContinued says that another epoch continues a log.
var ErrContinued = errors.New("another epoch continues this log")

// ManifestFile lies in a backup, which is no data directory yet.
const ManifestFile = "manifest.json"

// checkRestored refuses a backup, a directory that was made of one, and one whose
// log goes on elsewhere.
func checkRestored(dir string) error {
	for _, name := range []string{ContinuedFile, ManifestFile, RestoredFile} {
		_, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err == nil && name == ContinuedFile:
			err = ErrContinued
		case err == nil:
			err = ErrRestored
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open %s: %s: %w", dir, name, err)
		}
	}
	return nil
}

package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// RestoredFile lies in a data directory that was made of a backup. Others may
// know what came after the backup, so that the log must not go on from there.
const RestoredFile = "restored"

// ErrRestored says that a data directory was made of a backup: it can be read,
// and a new epoch can follow from it.
var ErrRestored = errors.New("restored from a backup, and not to be gone on with")

// checkRestored refuses a directory that was made of a backup.
func checkRestored(dir string) error {
	_, err := os.Lstat(filepath.Join(dir, RestoredFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("open %s: %w", dir, ErrRestored)
}

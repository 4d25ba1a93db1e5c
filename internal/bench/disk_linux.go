package bench

import (
	"os"
	"syscall"
)

// syncData brings a file's content to disk.
func syncData(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }

const tmpfsMagic = 0x01021994 // statfs(2)

// inMemory reports whether dir lies on no disk.
func inMemory(dir string) bool {
	var s syscall.Statfs_t
	return syscall.Statfs(dir, &s) == nil && s.Type == tmpfsMagic
}

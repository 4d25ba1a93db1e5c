//go:build !linux

package bench

import "os"

// syncData brings a file's content to disk.
func syncData(f *os.File) error { return f.Sync() }

// inMemory is not known here.
func inMemory(string) bool { return false }

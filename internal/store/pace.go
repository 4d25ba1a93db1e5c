package store

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A table is built from a full memtable in one go, which on a small machine keeps
// a core busy for longer than a request waits for everything else. So whoever
// writes one rests after each piece, as long as the table is young; one that takes
// longer is not held up, nor is the log, which has room for three memtables more.
const (
	restShare = 3                      // times as long as the piece took
	restMax   = 4 * time.Millisecond   // after one piece
	restFor   = 400 * time.Millisecond // of a table's life
)

// pacedFile is a table that is being written.
type pacedFile struct {
	vfs.File
	made, at time.Time
}

func pacedTable(f vfs.File) vfs.File {
	now := time.Now()
	return &pacedFile{File: f, made: now, at: now}
}

// Write implements vfs.File.
func (f *pacedFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	now := time.Now()
	if now.Sub(f.made) < restFor {
		time.Sleep(min(restShare*now.Sub(f.at), restMax))
		now = time.Now()
	}
	f.at = now
	return n, err
}

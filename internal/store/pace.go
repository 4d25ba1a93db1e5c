package store

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A full memtable is flushed in one go, which on a small machine keeps a core
// busy for longer than a request waits for everything else. So whoever writes
// tables rests after each piece, for a while from the beginning of a flush. One
// flush close behind another does not rest, so that the log, which has room for
// three memtables more, never waits for tables.
const (
	restShare = 3                      // times as long as the piece took
	restMax   = 4 * time.Millisecond   // after one piece
	restFor   = 400 * time.Millisecond // from the beginning of a flush
	restGap   = 200 * time.Millisecond // that it must be behind the one before
)

// pace says until when tables are written with rests.
type pace struct {
	until, ended atomic.Int64 // in Unix nanoseconds
}

func (p *pace) begin(i pebble.FlushInfo) {
	if now := time.Now(); i.Input == 1 && now.Sub(time.Unix(0, p.ended.Load())) > restGap {
		p.until.Store(now.Add(restFor).UnixNano())
	}
}

func (p *pace) end(pebble.FlushInfo) {
	p.ended.Store(time.Now().UnixNano())
	p.until.Store(0)
}

// pacedFile is a table that is being written.
type pacedFile struct {
	vfs.File
	pace *pace
	at   time.Time // when its last piece was written, and rested for
}

// Write implements vfs.File.
func (f *pacedFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	now := time.Now()
	if now.UnixNano() < f.pace.until.Load() {
		time.Sleep(min(restShare*now.Sub(f.at), restMax))
		now = time.Now()
	}
	f.at = now
	return n, err
}

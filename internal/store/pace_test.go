package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tables are written with rests in proportion, for a while from the beginning of a
// flush that follows no other closely; what is written is what was given.
func TestTablesAreWrittenWithRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := ordered(vfs.NewMem())
		f, err := sys.Create("000001.sst", vfs.WriteCategoryUnspecified)
		must(t, err)
		written := int64(0)
		rests := func(worked, want time.Duration) {
			t.Helper()
			time.Sleep(worked)
			start := time.Now()
			n, err := f.Write([]byte("block"))
			if err != nil || n != 5 {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if written += 5; time.Since(start) != want {
				t.Errorf("after %s it rested for %s, want %s", worked, time.Since(start), want)
			}
		}
		const ms = time.Millisecond
		rests(ms, 0) // of a compaction
		sys.pace.begin(pebble.FlushInfo{Input: 1})
		rests(ms, 3*ms)
		rests(0, 0)
		rests(50*ms, restMax)
		rests(restFor, 0)
		sys.pace.end(pebble.FlushInfo{})
		sys.pace.begin(pebble.FlushInfo{Input: 1})
		rests(ms, 0) // close behind
		sys.pace.end(pebble.FlushInfo{})
		time.Sleep(2 * restGap)
		sys.pace.begin(pebble.FlushInfo{Input: 2})
		rests(ms, 0) // of two memtables
		sys.pace.end(pebble.FlushInfo{})
		time.Sleep(2 * restGap)
		sys.pace.begin(pebble.FlushInfo{Input: 1})
		rests(0, restMax)
		rests(ms, 3*ms)
		sys.pace.end(pebble.FlushInfo{})
		rests(ms, 0)

		must(t, f.Sync())
		must(t, f.Close())
		info, err := sys.Stat("000001.sst")
		if err != nil || info.Size() != written {
			t.Errorf("%d bytes of %d: %v", info.Size(), written, err)
		}
		log, err := sys.Create("000002.log", vfs.WriteCategoryUnspecified)
		must(t, err)
		defer log.Close()
		if _, paced := log.(*pacedFile); paced {
			t.Error("the log rests")
		}
	})
}

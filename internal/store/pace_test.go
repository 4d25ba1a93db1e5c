package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Whoever writes a table rests in proportion, not for long, and not at all once
// the table has taken its time; what is written is what was given.
func TestTablesAreWrittenWithRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := ordered(vfs.NewMem())
		f, err := sys.Create("000001.sst", vfs.WriteCategoryUnspecified)
		must(t, err)
		rested := func(worked time.Duration) time.Duration {
			time.Sleep(worked)
			start := time.Now()
			n, err := f.Write([]byte("block"))
			if err != nil || n != 5 {
				t.Fatalf("%d bytes: %v", n, err)
			}
			return time.Since(start)
		}
		for _, c := range []struct{ worked, rests time.Duration }{
			{time.Millisecond, 3 * time.Millisecond}, {0, 0}, {50 * time.Millisecond, restMax}, {restFor, 0}, {time.Millisecond, 0},
		} {
			if got := rested(c.worked); got != c.rests {
				t.Errorf("after %s it rested for %s, want %s", c.worked, got, c.rests)
			}
		}
		must(t, f.Sync())
		must(t, f.Close())
		info, err := sys.Stat("000001.sst")
		if err != nil || info.Size() != 25 {
			t.Errorf("%d bytes: %v", info.Size(), err)
		}
		log, err := sys.Create("000002.log", vfs.WriteCategoryUnspecified)
		must(t, err)
		defer log.Close()
		if _, paced := log.(*pacedFile); paced {
			t.Error("the log rests")
		}
	})
}

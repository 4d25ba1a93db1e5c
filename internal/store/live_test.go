package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// verify and export read beside a writer that appends, flushes, compacts and
// recycles WALs as fast as it can: every look is one whole, verifying prefix
// with all that was confirmed before it, and the writer notices nothing.
func TestReadOnlyBesideALiveWriter(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"disk":   {memTableBytes: 128 << 10},
		"memory": {memTableBytes: 128 << 10, FS: vfs.NewMem()},
	} {
		t.Run(name, func(t *testing.T) {
			dir := "d"
			if opts.FS == nil {
				dir = filepath.Join(t.TempDir(), "d")
			}
			l := newLedger(t, dir, opts)
			l.filler = 600
			var made atomic.Pointer[[][]byte] // what the readers may compare with
			none := l.events
			made.Store(&none)
			work := make(chan struct{}, 1) // a round of appends for each look
			var wg sync.WaitGroup
			wg.Go(func() {
				for range work {
					for range 25 {
						b := l.batch(12)
						all := l.events
						made.Store(&all)
						c, err := l.s.Append(b)
						if err == nil {
							err = c.Wait()
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
					err := l.s.PutPart(0, l.s.Durable(), text(strings.Repeat("s", 30_000)))
					parts, _ := l.s.Parts()
					err = errors.Join(err, l.s.DropParts(parts))
					// Tables of a log do not overlap, so that compactions are rare.
					if err = errors.Join(err, l.s.db.Compact(context.Background(), []byte{eventKeys}, []byte{payloadKeys + 1}, false)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			looks, moved := 0, 0
			for i := 0; i < 40 || moved < 20; i++ {
				if looks++; looks == 10_000 {
					t.Error("the writer never moved")
					break
				}
				select {
				case work <- struct{}{}:
				default:
				}
				confirmed := l.s.Durable()
				r, err := OpenReadOnly(dir, opts)
				if err != nil {
					t.Errorf("look %d: %v", i, err)
					break
				}
				if got, err := verifyTail(r, *made.Load()); err != nil || got < confirmed {
					t.Errorf("look %d: %d confirmed, saw %d: %v", i, confirmed, got, err)
				}
				if _, err := r.Append(Batch{}); !errors.Is(err, ErrReadOnly) {
					t.Errorf("append: %v", err)
				}
				if l.s.Durable() > confirmed {
					moved++
				}
				if err := r.Close(); err != nil {
					t.Errorf("look %d: %v", i, err)
				}
			}
			close(work)
			wg.Wait()
			m := l.s.db.Metrics()
			t.Logf("%d looks, %d of them while the log grew, to %d events; %d flushes, %d compactions",
				looks, moved, l.s.Durable(), m.Flush.Count, m.Compact.Count)
			if m.Compact.Count == 0 {
				t.Error("the writer was too tame")
			}
			if err := l.s.ReadBack(1, l.s.Durable()); err != nil {
				t.Error(err)
			}
			l.note = l.sign()
			l.mustClose()
			l.mustOpen()
			if l.s.Durable() != uint64(len(l.events)) {
				t.Errorf("%d of %d events", l.s.Durable(), len(l.events))
			}
		})
	}
}

// verifyTail checks the last events' bytes and tree hashes, cheaper than verifyLog.
func verifyTail(s *Store, made [][]byte) (uint64, error) {
	size := s.Durable()
	if size > uint64(len(made)) {
		return size, errors.New("more than was made")
	}
	from := size - min(size-1, 1000)
	err := s.Events(from, size, func(seq uint64, e []byte) error {
		if string(e) != string(made[seq-1]) {
			return errors.New("other bytes")
		}
		return nil
	})
	if err != nil {
		return size, err
	}
	return size, s.ReadBack(from, size)
}

// Nobody writes: reading leaves every file, and the listing, as it was, needs
// no LOCK, and goes on when the files are deleted underneath.
func TestReadOnlyLeavesNoTrace(t *testing.T) {
	l := newLedger(t, filepath.Join(t.TempDir(), "d"), Options{memTableBytes: 64 << 10})
	l.filler = 600
	for range 40 {
		l.mustAppend(20)
	}
	l.note = l.sign()
	l.mustClose()
	db := filepath.Join(l.dir, "db")
	must(t, os.Remove(filepath.Join(db, "LOCK")))
	before, stamp := contents(t, vfs.Default, l.dir), dirState(vfs.Default, db)
	r, err := OpenReadOnly(l.dir, Options{})
	must(t, err)
	if got, err := verifyLog(r, l.events); err != nil || got != 801 {
		t.Fatalf("%d %v", got, err)
	}
	same(t, before, contents(t, vfs.Default, l.dir))
	if now := dirState(vfs.Default, db); now != stamp {
		t.Errorf("directory was\n%sis\n%s", stamp, now)
	}
	must(t, os.Rename(l.dir, l.dir+".away"))
	for _, f := range files(t, vfs.Default, l.dir+".away/db", "", ".sst") {
		must(t, os.Remove(f))
	}
	if got, err := verifyLog(r, l.events); err != nil || got != 801 {
		t.Fatalf("after the files went: %d %v", got, err)
	}
	must(t, r.Close())
	if _, err := OpenReadOnly(l.dir, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
	if _, err := OpenReadOnly(l.dir+".away", Options{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("log without its tables: %v", err)
	}
}

// A damaged log opens for reading, so that a verifier can say what is wrong.
func TestReadOnlyShowsADamagedLog(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	l.mustAppend(20)
	must(t, l.s.db.Delete(numKey(eventKeys, 7), nil))
	first, _ := runsOf(t, l.s, storedCount(11), storedCount(12))
	run, err := l.s.get(numKey(hashKeys, first))
	must(t, err)
	clear(run[(storedCount(11)-first)*32:][:32])
	must(t, l.s.db.Set(numKey(hashKeys, first), run, nil))
	l.mustClose()
	r, err := OpenReadOnly("d", l.opts)
	must(t, err)
	defer r.Close()
	var last uint64
	err = r.Events(1, 21, func(seq uint64, _ []byte) error { last = seq; return nil })
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "event 7 is missing") || last != 6 {
		t.Errorf("read to %d: %v", last, err)
	}
	if _, err := r.Event(7); !errors.Is(err, ErrCorrupt) {
		t.Errorf("event 7: %v", err)
	}
	if _, err := r.Event(8); err != nil {
		t.Errorf("event 8: %v", err)
	}
	if _, _, err := r.rehash(10, 21, 0); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "event 12: ") {
		t.Errorf("rehash: %v", err)
	}
}

// A sparse file takes no room on disk and none in memory.
func TestAFileThatClaimsToBeLargeIsRefusedUnread(t *testing.T) {
	for name, size := range map[string]int64{"999999.log": 1 << 40, "MANIFEST-999999": 1 << 40, "OPTIONS-999999": 2 << 20, "marker.other.000001.x": 2 << 20} {
		l := newLedger(t, filepath.Join(t.TempDir(), "d"), Options{})
		l.mustAppend(3)
		l.mustClose()
		f, err := os.Create(filepath.Join(l.dir, "db", name))
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenReadOnly(l.dir, Options{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

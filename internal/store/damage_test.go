package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// closedLog is a log of size events, cleanly closed in memory, with its anchor
// at the end. Where every is set, so many events each go to a table of their own,
// save the last, which stay in the WAL.
func closedLog(t *testing.T, size, every int) (*ledger, *vfs.MemFS) {
	t.Helper()
	sys := vfs.NewCrashableMem()
	l := newLedger(t, "d", Options{FS: sys})
	for len(l.events) < size {
		n := min(5, size-len(l.events))
		l.mustAppend(n)
		if every > 0 && len(l.events)%every == 1 && len(l.events) < size {
			must(t, l.s.db.Flush())
		}
	}
	l.note = l.sign()
	l.check()
	l.mustClose()
	must(t, syncDir(sys, "d/db")) // what Pebble deleted stays deleted in the clones
	same(t, contents(t, sys, "d"), contents(t, sys.CrashClone(vfs.CrashCloneCfg{}), "d"))
	return l, sys
}

// sweep flips the first so many bits of one file of the log, each in a copy of
// its own, and opens: refused with the directory untouched, or all data intact.
// It returns how many were tried, refused and silent (opened, but not whole).
func sweep(t *testing.T, l *ledger, sys *vfs.MemFS, file string, bits int) (tried, refused, silent int64) {
	t.Helper()
	step := int64(every(13))
	var next, nTried, nRefused, nSilent atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for bit := next.Add(step) - step; bit < int64(bits); bit = next.Add(step) - step {
				c := *l
				img := sys.CrashClone(vfs.CrashCloneCfg{})
				c.opts = Options{FS: img}
				buf, err := img.UnsafeGetFileDataBuffer(file)
				if err != nil {
					t.Error(err)
					return
				}
				buf[bit/8] ^= 1 << (bit % 8)
				before := contents(t, img, "d")
				nTried.Add(1)
				if err := c.open(); err != nil {
					nRefused.Add(1)
					same(t, before, contents(t, img, "d"))
					if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrBehindAnchor) && !errors.Is(err, ErrFormat) {
						t.Errorf("bit %d: %v", bit, err)
					}
					continue
				}
				if size, err := verifyLog(c.s, c.events); err != nil || size != uint64(len(c.events)) {
					nSilent.Add(1)
					t.Errorf("bit %d of %s: opened with %d of %d events: %v", bit, file, size, len(c.events), err)
				}
				c.s.Close()
			}
		})
	}
	wg.Wait()
	return nTried.Load(), nRefused.Load(), nSilent.Load()
}

// The first WAL of a new Pebble hides damage: a flipped bit in it merely ends
// the log. Init's own events must not stand in such a one. (In any WAL, damage
// in the last 32 KiB looks like its end: that is what the anchor is for.)
func TestInitStartsAWALThatTellsDamage(t *testing.T) {
	t.Parallel()
	sys := vfs.NewCrashableMem()
	l := prepare(t, "d", Options{FS: sys})
	l.filler = 10_000
	must(t, Init(l.dir, l.opts, testOrigin, func(_ string, s *Store) error {
		l.s = s
		for range 10 {
			if err := l.append(1); err != nil {
				return err
			}
		}
		return nil
	}))
	logs := files(t, sys, "d/db", "", ".log")
	wal := logs[len(logs)-1]
	buf, err := sys.UnsafeGetFileDataBuffer(wal)
	must(t, err)
	told, tried := 0, 0
	for i := 0; i < len(buf)-64<<10; i += 499 {
		tried++
		buf[i] ^= 1
		if s, err := OpenReadOnly(l.dir, l.opts); err == nil {
			must(t, s.Close())
		} else if errors.Is(err, ErrCorrupt) {
			told++
		}
		buf[i] ^= 1
	}
	t.Logf("%d of %d flips told without an anchor", told, tried)
	if tried < 50 || told < tried {
		t.Error("the WAL hides damage")
	}
	s, err := OpenReadOnly(l.dir, l.opts)
	must(t, err)
	if n, err := verifyLog(s, l.events); err != nil || n != 10 {
		t.Errorf("%d %v", n, err)
	}
	must(t, s.Close())
}

// every is the step of an exhaustive loop: 1, or n under -short.
func every(n int) int {
	if testing.Short() {
		return n
	}
	return 1
}

// INT-01: every bit of the WAL that holds 40 events, after a clean close.
// Pebble alone opens nearly all of them and drops every later record.
func TestINT01_EveryBitOfTheWAL(t *testing.T) {
	t.Parallel()
	l, sys := closedLog(t, 41, 0)
	logs := files(t, sys, "d/db", "", ".log")
	wal := logs[len(logs)-1]
	buf, err := sys.UnsafeGetFileDataBuffer(wal)
	must(t, err)
	tried, refused, silent := sweep(t, l, sys, wal, len(buf)*8)
	t.Logf("%s, %d bytes: tried %d bits, refused %d, intact %d, silent %d", wal, len(buf), tried, refused, tried-refused-silent, silent)
	if tried < int64(len(buf)*8/every(13)) || refused < tried/2 {
		t.Errorf("the sweep has not swept: tried %d, refused %d", tried, refused)
	}
}

// INT-02: every bit of the MANIFEST. Pebble alone opens, loses flushed events
// and deletes their tables.
func TestINT02_EveryBitOfTheManifest(t *testing.T) {
	t.Parallel()
	l, sys := closedLog(t, 100, 40)
	if n := len(files(t, sys, "d/db", "", ".sst")); n < 2 {
		t.Fatalf("%d tables, want several", n)
	}
	current := files(t, sys, "d/db", "marker.manifest.", "")[0]
	for _, m := range files(t, sys, "d/db", "MANIFEST-", "") {
		buf, err := sys.UnsafeGetFileDataBuffer(m)
		must(t, err)
		tried, refused, silent := sweep(t, l, sys, m, len(buf)*8)
		t.Logf("%s, %d bytes: tried %d, refused %d, intact %d, silent %d", m, len(buf), tried, refused, tried-refused-silent, silent)
		inUse := strings.HasSuffix(current, sys.PathBase(m))
		if tried < int64(len(buf)*8/every(13)) || inUse && refused < tried/2 {
			t.Errorf("the sweep has not swept: tried %d, refused %d", tried, refused)
		}
	}
}

// Bit rot in the tables: refused at open, or told by the read that meets it;
// never a wrong answer.
func TestEveryByteOfATable(t *testing.T) {
	t.Parallel()
	l, sys := closedLog(t, 12, 10)
	tables := files(t, sys, "d/db", "", ".sst")
	if len(tables) < 3 {
		t.Fatalf("%d tables, want one for each kind of key", len(tables))
	}
	for _, table := range tables {
		everyByte(t, l, sys, table)
	}
}

func everyByte(t *testing.T, l *ledger, sys *vfs.MemFS, table string) {
	buf, err := sys.UnsafeGetFileDataBuffer(table)
	must(t, err)
	told, intact := 0, 0
	for i := 0; i < len(buf); i += every(7) {
		c := *l
		img := sys.CrashClone(vfs.CrashCloneCfg{})
		c.opts = Options{FS: img}
		b, err := img.UnsafeGetFileDataBuffer(table)
		must(t, err)
		b[i] ^= 0x20
		if err := c.open(); err != nil {
			told++
			continue
		}
		size, err := verifyLog(c.s, c.events)
		switch {
		case err == nil && size == uint64(len(c.events)):
			intact++
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrStopped):
			told++
		default:
			t.Errorf("byte %d of %s: read %d of %d events: %v", i, table, size, len(c.events), err)
		}
		c.s.Close()
	}
	t.Logf("%s, %d bytes: told %d, intact %d", table, len(buf), told, intact)
	if told < len(buf)/every(7)/2 {
		t.Error("the sweep has not swept")
	}
}

// F7, F8: cut at every byte, a file missing, a marker missing.
func TestMissingPiecesAreRefused(t *testing.T) {
	t.Parallel()
	l, sys := closedLog(t, 31, 20)
	logs := files(t, sys, "d/db", "", ".log")
	wal := logs[len(logs)-1]
	buf, err := sys.UnsafeGetFileDataBuffer(wal)
	must(t, err)
	fresh := func() (*ledger, *vfs.MemFS) {
		c := *l
		img := sys.CrashClone(vfs.CrashCloneCfg{})
		c.opts = Options{FS: img}
		return &c, img
	}
	rewrite := func(img *vfs.MemFS, file string, b []byte) {
		f, err := img.Create(file, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(b)
		must(t, err)
		must(t, f.Close())
	}
	cut := 0
	for n := 0; n < len(buf); n += every(11) {
		c, img := fresh()
		rewrite(img, wal, buf[:n])
		before := contents(t, img, "d")
		if err := c.open(); err == nil {
			if size, err := verifyLog(c.s, c.events); err != nil || size != 31 {
				t.Fatalf("WAL cut to %d of %d bytes: opened with %d events: %v", n, len(buf), size, err)
			}
			c.s.Close()
			continue
		}
		cut++
		same(t, before, contents(t, img, "d"))
	}
	t.Logf("WAL cut to every length below %d: refused %d", len(buf), cut)
	if cut < len(buf)/every(11)/3 { // what follows the last record is of a recycled file
		t.Errorf("only %d of %d cuts were refused", cut, len(buf))
	}
	names, err := sys.List("d/db")
	must(t, err)
	current := files(t, sys, "d/db", "marker.manifest.", "")[0]
	for _, name := range names {
		c, img := fresh()
		must(t, img.Remove("d/db/"+name))
		before := contents(t, img, "d")
		err := c.open()
		needless := name == "LOCK" || strings.HasPrefix(name, "OPTIONS-") ||
			strings.HasPrefix(name, "MANIFEST-") && !strings.HasSuffix(current, name) ||
			strings.HasSuffix(name, ".log") && "d/db/"+name != wal
		if needless != (err == nil) {
			t.Errorf("without %s: %v", name, err)
		}
		if err == nil {
			c.check()
			c.s.Close()
			continue
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrBehindAnchor) {
			t.Errorf("without %s: %v", name, err)
		}
		same(t, before, contents(t, img, "d"))
	}
}

// A MANIFEST that lost its end: a flush it no longer knows of leaves a hole
// between the tables and the WAL, far below the anchor and over whole subtrees
// of the tree, so that size and root fit. Every cut is refused or harmless.
func TestManifestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	sys := vfs.NewCrashableMem()
	l := newLedger(t, "d", Options{FS: sys, noCompactions: true})
	for _, n := range []int{199, 200, 300} {
		l.mustAppend(n)
		if n < 300 {
			must(t, l.s.db.Flush()) // the second one reuses the first one's WAL
		}
	}
	l.note = l.sign()
	l.mustClose()
	must(t, syncDir(sys, "d/db"))
	marker := files(t, sys, "d/db", "marker.manifest.", "")[0]
	manifest := "d/db/" + marker[strings.Index(marker, "MANIFEST-"):]
	buf, err := sys.UnsafeGetFileDataBuffer(manifest)
	must(t, err)
	holes := 0
	for n := 0; n < len(buf); n += every(5) {
		img := sys.CrashClone(vfs.CrashCloneCfg{})
		c := *l
		c.opts = Options{FS: img}
		f, err := img.Create(manifest, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(append([]byte(nil), buf[:n]...))
		must(t, err)
		must(t, f.Close())
		before := contents(t, img, "d")
		if err = c.open(); err == nil {
			if size, err := verifyLog(c.s, c.events); err != nil || size != 700 {
				t.Errorf("cut to %d: opened with %d events: %v", n, size, err)
			}
			c.s.Close()
			continue
		}
		same(t, before, contents(t, img, "d"))
		if strings.Contains(err.Error(), "event 2 is missing") {
			holes++
		}
	}
	t.Logf("MANIFEST cut to every length below %d: %d left a hole in the middle, all refused", len(buf), holes)
	if holes == 0 {
		t.Error("no cut made the hole")
	}
}

// A lost WAL behind a MANIFEST that knows nothing of a later table: events are
// missing in the middle while the end is there and the anchor's size fits.
func TestHoleInTheMiddleIsRefused(t *testing.T) {
	l, sys := closedLog(t, 61, 0)
	for _, hole := range [][2]uint64{{1, 2}, {20, 25}, {60, 61}, {61, 62}} {
		for _, what := range []byte{eventKeys, hashKeys} {
			img := sys.CrashClone(vfs.CrashCloneCfg{})
			c := *l
			c.opts = Options{FS: img}
			c.mustOpen()
			from, to := hole[0], hole[1]
			if what == hashKeys {
				from, to = runsOf(t, c.s, storedCount(from-1), storedCount(to-1))
			}
			must(t, c.s.db.DeleteRange(numKey(what, from), numKey(what, to), nil))
			must(t, c.s.Close())
			if what == eventKeys && hole[1] == 62 {
				c.refused(ErrBehindAnchor)
				continue
			}
			if err, want := c.refused(ErrCorrupt), fmt.Sprintf("%d is missing", from); !strings.Contains(err.Error(), want) {
				t.Errorf("%c %v: %v, want %q", what, hole, err, want)
			}
		}
	}
}

// runsOf returns where the run of tree hashes that from is in begins, and where
// the one that to-1 is in ends.
func runsOf(t *testing.T, s *Store, from, to uint64) (uint64, uint64) {
	t.Helper()
	stored, err := s.treeHashes()
	must(t, err)
	defer stored.close()
	_, err = stored.at(from)
	must(t, err)
	from = stored.first
	_, err = stored.at(to - 1)
	must(t, err)
	return from, stored.end()
}

// Runs of tree hashes that are no runs, or lie over one another, are found
// wherever the reader comes from.
func TestRunsOfTreeHashes(t *testing.T) {
	damages := map[string]func(db *pebble.DB, first uint64, run []byte) error{
		"cut short": func(db *pebble.DB, first uint64, run []byte) error {
			return db.Set(numKey(hashKeys, first), run[:len(run)-32], nil)
		},
		"cut within a hash": func(db *pebble.DB, first uint64, run []byte) error {
			return db.Set(numKey(hashKeys, first), run[:len(run)-1], nil)
		},
		"empty": func(db *pebble.DB, first uint64, _ []byte) error {
			return db.Set(numKey(hashKeys, first), nil, nil)
		},
		"too long": func(db *pebble.DB, first uint64, run []byte) error {
			return db.Set(numKey(hashKeys, first), append(run, run[:32]...), nil)
		},
		"longer by part of a hash": func(db *pebble.DB, first uint64, run []byte) error {
			return db.Set(numKey(hashKeys, first), append(run, 1, 2, 3), nil)
		},
		"another within": func(db *pebble.DB, first uint64, run []byte) error {
			return db.Set(numKey(hashKeys, first+1), run[:32], nil)
		},
		"moved": func(db *pebble.DB, first uint64, run []byte) error {
			return errors.Join(db.Delete(numKey(hashKeys, first), nil), db.Set(numKey(hashKeys, first+1), run, nil))
		},
	}
	for name, damage := range damages {
		l := newLedger(t, "d", Options{FS: vfs.NewMem()})
		for range 3 {
			l.mustAppend(20)
		}
		first, end := runsOf(t, l.s, storedCount(21), storedCount(41))
		if got := end - first; got != storedCount(41)-storedCount(21) {
			t.Fatalf("a batch left a run of %d hashes", got)
		}
		run, err := l.s.get(numKey(hashKeys, first))
		must(t, err)
		must(t, damage(l.s.db, first, run))
		if _, _, err := l.s.rehash(1, 61, 0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: rehash: %v", name, err)
		}
		var found error
		for index := first; index < end && found == nil; index++ {
			_, found = l.s.ReadHashes([]int64{int64(index)})
		}
		if !errors.Is(found, ErrCorrupt) {
			t.Errorf("%s: one by one: %v", name, found)
		}
	}
}

// A log whose tree hashes stand alone, as the first format had them, reads the
// same, and is of this release's format once it has been opened for writing.
func TestTreeHashesOfTheFirstFormat(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	l.mustAppend(40)
	want := make([]int64, storedCount(41))
	for i := range want {
		want[i] = int64(i)
	}
	hashes, err := l.s.ReadHashes(want)
	must(t, err)
	must(t, l.s.db.DeleteRange([]byte{hashKeys}, []byte{hashKeys + 1}, nil))
	for i, h := range hashes {
		must(t, l.s.db.Set(numKey(hashKeys, uint64(i)), h[:], nil))
	}
	must(t, l.s.db.Set(nameKey(metaKeys, "format"), []byte(firstFormat), nil))
	root, err := l.s.Root(41)
	must(t, err)
	l.note = l.sign()
	l.mustClose()

	r, err := OpenReadOnly("d", l.opts)
	must(t, err)
	if got, err := r.Root(41); err != nil || got != root {
		t.Errorf("root %s, want %s: %v", got, root, err)
	}
	must(t, r.Close())
	l.mustOpen()
	l.mustAppend(20)
	if got, err := l.s.Root(41); err != nil || got != root {
		t.Errorf("root %s, want %s: %v", got, root, err)
	}
	must(t, l.s.ReadBack(1, 61))
	if got, err := l.s.get(nameKey(metaKeys, "format")); err != nil || string(got) != format {
		t.Errorf("format %q: %v", got, err)
	}
	l.mustClose()
}

// An event and its tree hashes rewritten in the database, below and above the anchor.
func TestRewrittenEventIsRefused(t *testing.T) {
	l, sys := closedLog(t, 61, 0)
	for _, seq := range []uint64{1, 17, 61} {
		img := sys.CrashClone(vfs.CrashCloneCfg{})
		c := *l
		c.opts = Options{FS: img}
		c.mustOpen()
		e, err := c.s.Event(seq)
		must(t, err)
		e[len(e)-1] ^= 1
		must(t, c.s.db.Set(numKey(eventKeys, seq), e, nil))
		if err := c.s.ReadBack(seq, seq); !errors.Is(err, ErrStopped) || !errors.Is(err, ErrCorrupt) {
			t.Errorf("read back %d: %v", seq, err)
		}
		c.s.Close()
		if err := c.refused(ErrCorrupt); !strings.Contains(err.Error(), fmt.Sprintf("event %d:", seq)) {
			t.Error(err)
		}
	}
}

func TestOpenNeedsRoom(t *testing.T) {
	l, sys := closedLog(t, 21, 0)
	sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: openFreeMin - 1, TotalBytes: 1 << 40})
	l.refused(ErrStorageLow)
	s, err := OpenReadOnly(l.dir, l.opts)
	must(t, err)
	if n, err := verifyLog(s, l.events); err != nil || n != 21 {
		t.Fatalf("reading on a full disk: %d %v", n, err)
	}
	must(t, s.Close())
	sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: openFreeMin, TotalBytes: 1 << 40})
	l.mustOpen()
	if free, err := l.s.Free(); err != nil || free != openFreeMin {
		t.Errorf("free %d %v", free, err)
	}
	l.check()
	l.mustClose()
}

// Damage on a real disk, so that the frozen view, too, is of real files.
func TestTruncatedWALOnDiskIsRefused(t *testing.T) {
	l := newLedger(t, filepath.Join(t.TempDir(), "d"), Options{})
	l.mustAppend(99)
	l.note = l.sign()
	l.mustClose()
	logs := files(t, vfs.Default, filepath.Join(l.dir, "db"), "", ".log")
	wal := logs[len(logs)-1]
	must(t, os.Truncate(wal, 0))
	if err := l.refused(ErrBehindAnchor); !strings.Contains(err.Error(), "events 2–100 are lost") {
		t.Error(err)
	}
}

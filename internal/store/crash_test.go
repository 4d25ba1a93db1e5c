package store

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// image is what a crash at one moment leaves on disk, with what had been
// promised by then.
type image struct {
	fs    *vfs.MemFS
	op    string
	acked uint64 // confirmed by Wait, before the image was taken
	note  []byte // the anchor, before the image was taken
}

// crashFS takes crash images ahead of every operation that changes its MemFS.
type crashFS struct {
	*errorfs.FS
	mem *vfs.MemFS

	gate   sync.Mutex // MemFS may not be cloned inside a ReuseForWrite
	rng    *rand.Rand
	ops    int
	images []image

	acked atomic.Uint64
	note  atomic.Pointer[[]byte]
}

func newCrashFS(seed uint64) *crashFS {
	c := &crashFS{mem: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, 0))}
	c.FS = errorfs.Wrap(c.mem, c)
	return c
}

func (c *crashFS) String() string { return "crash" }

// MaybeError implements errorfs.Injector: it never errs.
func (c *crashFS) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
		return nil
	}
	img := image{op: fmt.Sprint(op.Kind, " ", op.Path), acked: c.acked.Load()}
	if n := c.note.Load(); n != nil {
		img.note = *n
	}
	c.gate.Lock()
	defer c.gate.Unlock()
	c.ops++
	for _, percent := range []int{0, 50, 100} { // of what was not synced, how much is there
		img.fs = c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.rng})
		c.images = append(c.images, img)
	}
	return nil
}

func (c *crashFS) ReuseForWrite(oldname, newname string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	c.MaybeError(errorfs.Op{Kind: errorfs.OpReuseForWrite, Path: oldname})
	c.gate.Lock()
	defer c.gate.Unlock()
	f, err := c.mem.ReuseForWrite(oldname, newname, cat)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(f, c), nil
}

// R75: a crash at every file operation of a script that makes a log, appends,
// rotates and recycles WALs, flushes, takes a snapshot, closes and opens again.
// In every image: all that Wait had confirmed is there, the log is a prefix of
// what was appended, it verifies, and it goes on.
func TestR75_CrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	c := newCrashFS(1)
	l := prepare(t, "d", Options{FS: c, memTableBytes: 16 << 10})
	l.filler = 300
	script(t, l, c)

	fresh := errors.New("no log yet")
	var before, opened, held int
	for i := 0; i < len(c.images); i += every(10) {
		img := c.images[i]
		o := *l
		o.opts = Options{FS: img.fs}
		o.note = img.note
		err := o.open()
		if err != nil && img.acked == 0 && img.note == nil {
			err = fresh
		}
		switch {
		case err == fresh:
			before++
			continue
		case err != nil:
			t.Fatalf("image %d of %d, before %s, %d confirmed: %v", i, len(c.images), img.op, img.acked, err)
		}
		size, err := verifyLog(o.s, o.events)
		if err != nil || size < img.acked {
			t.Fatalf("image %d, before %s: %d confirmed, %d there: %v", i, img.op, img.acked, size, err)
		}
		if size > img.acked {
			held++
		}
		opened++
		o.events = o.events[:size]
		_, o.prev = o.s.Head()
		o.mustAppend(2)
		if got := partsOf(t, o.s); got != "" && !strings.HasSuffix(got, ":"+strings.Repeat("s", 1000)) {
			t.Fatalf("image %d: half a part of the state: %s", i, got)
		}
		if got := o.check(); got != size+2 {
			t.Fatalf("image %d: goes on to %d, want %d", i, got, size+2)
		}
		o.mustClose()
	}
	t.Logf("covered %d of %d images of %d operations: %d before the log was there, %d opened, of these %d with events not yet confirmed; lost 0",
		before+opened, len(c.images), c.ops, before, opened, held)
	if opened < 500/every(10) || held == 0 {
		t.Error("the script is too tame")
	}
	o := *l
	o.opts = Options{FS: c.mem}
	o.note = *c.note.Load()
	o.mustOpen()
	if got := o.check(); got != uint64(len(l.events)) {
		t.Errorf("the script's own log has %d of %d events", got, len(l.events))
	}
	o.mustClose()
}

func script(t *testing.T, l *ledger, c *crashFS) {
	anchor := func() {
		n := l.sign()
		c.note.Store(&n)
		l.note = n
	}
	must(t, Init(l.dir, l.opts, testOrigin, func(_ string, s *Store) error {
		l.s = s
		if err := l.append(1); err != nil {
			return err
		}
		n := l.sign() // not the crash image's until Init has returned
		l.note = n
		return nil
	}))
	made := l.note // l.note goes on changing
	c.note.Store(&made)
	c.acked.Store(1)
	for round := range 3 {
		l.mustOpen()
		for i := range 24 {
			first, err := l.s.Append(l.batch(1 + i%5)) // two commits in flight
			must(t, err)
			second, err := l.s.Append(l.batch(2))
			must(t, err)
			must(t, second.Wait())
			c.acked.Store(l.s.Durable())
			must(t, first.Wait())
			if i%7 == 0 {
				anchor()
			}
		}
		must(t, l.s.PutPart(0, l.s.Durable(), text(strings.Repeat("s", 1000))))
		parts, err := l.s.Parts()
		must(t, err)
		must(t, l.s.DropParts(parts))
		if round == 1 {
			must(t, l.s.db.Flush())
		}
		anchor()
		l.mustClose()
	}
}

// R75: the last write torn at every byte, over nothing, over the zeros of a
// preallocated file and over the leavings of a recycled one. What was confirmed
// before it is there, and what more there is, is a prefix.
func TestR75_WriteTornAtEveryByte(t *testing.T) {
	t.Parallel()
	sys := vfs.NewCrashableMem()
	l := newLedger(t, "d", Options{FS: sys})
	l.mustAppend(30)
	l.note = l.sign()
	logs := files(t, sys, "d/db", "", ".log")
	wal := logs[len(logs)-1]
	read := func(fs *vfs.MemFS) []byte {
		b, err := fs.UnsafeGetFileDataBuffer(wal)
		must(t, err)
		return append([]byte(nil), b...)
	}
	whole := read(sys)
	for _, n := range []int{1, 2} {
		c, err := l.s.Append(l.batch(n))
		must(t, err)
		must(t, c.Wait())
	}
	after := sys.CrashClone(vfs.CrashCloneCfg{})
	torn := read(after)
	old := bytes.Repeat(whole, 2)[:len(torn)] // well-formed records of the same file, out of place
	copy(old, torn[:len(whole)])
	tried, longer := 0, 0
	for k := len(whole); k <= len(torn); k += every(11) {
		for name, rest := range map[string][]byte{"nothing": nil, "zeros": make([]byte, len(torn)), "leavings": old} {
			o := *l
			img := after.CrashClone(vfs.CrashCloneCfg{})
			o.opts = Options{FS: img}
			b := append([]byte(nil), torn[:k]...)
			if rest != nil {
				b = append(b, rest[k:]...)
			}
			f, err := img.Create(wal, vfs.WriteCategoryUnspecified)
			must(t, err)
			_, err = f.Write(b)
			must(t, err)
			must(t, f.Close())
			if err := o.open(); err != nil {
				t.Fatalf("torn at %d of %d–%d over %s: %v", k, len(whole), len(torn), name, err)
			}
			size, err := verifyLog(o.s, o.events)
			if err != nil || size < 31 {
				t.Fatalf("torn at %d over %s: %d events: %v", k, name, size, err)
			}
			if tried++; size > 31 {
				longer++
			}
			must(t, o.s.Close())
		}
	}
	t.Logf("torn at %d of %d bytes in 3 ways: %d opened, %d with some of the torn writes, lost 0", tried/3, len(torn)-len(whole)+1, tried, longer)
	if longer == 0 || longer == tried {
		t.Error("the tear was not where the writes are")
	}
}

// failOnce fails the n-th changing operation from when it is armed on.
type failOnce struct {
	armed, fired atomic.Bool
	n            atomic.Int64
	op           string
}

func (f *failOnce) String() string { return "fail once" }

func (f *failOnce) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsRead || op.Kind == errorfs.OpFileClose || !f.armed.Load() || f.n.Add(-1) != -1 {
		return nil
	}
	f.op = fmt.Sprint(op.Kind, " ", op.Path)
	f.fired.Store(true)
	return errorfs.ErrInjected
}

// childFail makes this test binary a writer on the log in $STORE_TEST_DIR whose
// n-th changing file operation fails. It says on standard output what was
// confirmed, and then how it ended; it may also die on the way.
const childFail = "STORE_TEST_FAIL"

func failingChild(n string) {
	fail := &failOnce{}
	opts := Options{FS: errorfs.Wrap(vfs.Default, fail), memTableBytes: 16 << 10}
	l := &ledger{dir: os.Getenv("STORE_TEST_DIR"), opts: opts, prev: events.GenesisHash(testOrigin), filler: 300}
	l.batch(1) // is there already
	var err error
	if l.verifier, err = note.NewVerifier(os.Getenv("STORE_TEST_VKEY")); err != nil {
		log.Fatal(err)
	}
	l.note = []byte(os.Getenv("STORE_TEST_NOTE"))
	if err = l.open(); err != nil {
		log.Fatal(err)
	}
	at, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	fail.n.Store(at)
	fail.armed.Store(true)
	go func() {
		<-l.s.Stopped()
		if _, err := l.s.Event(1); !errors.Is(err, ErrStopped) {
			fmt.Println("zombie", err)
		}
		fmt.Println("end stopped", fail.op)
		os.Exit(0) // an Append may hang in Pebble
	}()
	for range 40 {
		if err = l.append(3); err != nil {
			if !errors.Is(err, ErrStopped) {
				fmt.Println("zombie", err)
			}
			select {}
		}
		fmt.Println("confirmed", l.s.Durable())
	}
	if fail.fired.Load() {
		fmt.Println("end harmless", fail.op)
	} else {
		fmt.Println("end never")
	}
}

// F3: a failure of any one write, sync, create or rename, once, on a real disk.
// Nothing confirmed is lost, nothing is confirmed once the store has stopped,
// and what is on disk opens. Where Pebble ends the process, that is a stop.
func TestAnyFailedOperationLosesNothing(t *testing.T) {
	t.Parallel()
	base := prepare(t, filepath.Join(t.TempDir(), "d"), Options{})
	skey, vkey, err := NewCheckpointKey(testOrigin)
	must(t, err)
	base.signer, err = note.NewSigner(skey)
	must(t, err)
	base.verifier, err = note.NewVerifier(vkey)
	must(t, err)
	base.filler = 300
	must(t, base.init())
	all := *base
	all.batch(120)
	ends := map[string]int{}
	for n := 0; ends["never"] == 0; n += every(3) {
		l := all
		l.dir = fmt.Sprintf("%s.%d", base.dir, n)
		must(t, os.CopyFS(l.dir, os.DirFS(base.dir)))
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childFail+"="+strconv.Itoa(n), "STORE_TEST_DIR="+l.dir,
			"STORE_TEST_VKEY="+vkey, "STORE_TEST_NOTE="+string(base.note))
		out, err := cmd.Output()
		confirmed, end := uint64(1), "died"
		for line := range strings.Lines(string(out)) {
			fmt.Sscanf(line, "confirmed %d", &confirmed)
			fmt.Sscanf(line, "end %s", &end)
			if strings.HasPrefix(line, "zombie") {
				t.Errorf("operation %d: %s", n, line)
			}
		}
		byItself := bytes.Contains(stderr(err), []byte("(*DB).rotateWAL(")) || bytes.Contains(stderr(err), []byte("atomicfs.(*Marker).Move("))
		if end == "died" && (err == nil || !byItself) {
			t.Errorf("operation %d: %v\n%s%s", n, err, out, stderr(err))
		}
		ends[end]++
		l.mustOpen()
		if size := l.check(); size < confirmed || end != "died" && end != "stopped" && size != 121 {
			t.Errorf("operation %d, %s: %d confirmed, %d there\n%s", n, end, confirmed, size, out)
		}
		l.mustClose()
		must(t, os.RemoveAll(l.dir))
	}
	t.Logf("operations failed one by one: %v; lost 0", ends)
	if ends["stopped"] < 30/every(3) {
		t.Error("too few stops")
	}
}

func stderr(err error) []byte {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.Stderr
	}
	return nil
}

// A write-ahead log that the disk does not give is no damage: nobody is sent to
// look for what was altered. Nothing is changed, and later it opens.
func TestAnUnreadableLogIsNotDamage(t *testing.T) {
	mem := vfs.NewCrashableMem()
	l := newLedger(t, "d", Options{FS: mem})
	l.mustAppend(9)
	l.note = l.sign()
	var on atomic.Bool
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	o := *l
	o.opts = Options{FS: errorfs.Wrap(clone, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && (op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpFileReadAt) && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	}))}
	on.Store(true)
	before := dirState(clone, "d/db")
	if err := o.open(); !errors.Is(err, errorfs.ErrInjected) || errors.Is(err, ErrCorrupt) {
		t.Errorf("opened for writing: %v", err)
	}
	if _, err := OpenReadOnly("d", o.opts); !errors.Is(err, errorfs.ErrInjected) || errors.Is(err, ErrCorrupt) {
		t.Errorf("opened for reading: %v", err)
	}
	if now := dirState(clone, "d/db"); now != before {
		t.Errorf("the directory was\n%s\nand is\n%s", before, now)
	}
	on.Store(false)
	o.mustOpen()
	if got := o.check(); got != 10 {
		t.Fatalf("%d events, want 10", got)
	}
	o.mustClose()
}

// A failed sync of the WAL: Append has returned, Wait must not confirm, and
// nothing after it may.
func TestFailedSyncStopsTheStore(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var on atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	})
	l := newLedger(t, "d", Options{FS: errorfs.Wrap(mem, inject)})
	l.mustAppend(9)
	l.note = l.sign()
	on.Store(true)
	var commits []*Commit
	for range 3 {
		c, err := l.s.Append(l.batch(2))
		if err != nil {
			if !errors.Is(err, ErrStopped) {
				t.Fatal(err)
			}
			break
		}
		commits = append(commits, c)
	}
	for i := len(commits) - 1; i >= 0; i-- { // in any order
		if err := commits[i].Wait(); !errors.Is(err, ErrStopped) {
			t.Fatalf("commit %d: %v", i, err)
		}
	}
	on.Store(false) // the disk is fine again: too late
	for _, c := range commits {
		if err := c.Wait(); !errors.Is(err, ErrStopped) {
			t.Fatal(err)
		}
	}
	if _, err := l.s.Append(l.batch(1)); !errors.Is(err, ErrStopped) {
		t.Fatalf("append: %v", err)
	}
	if got := l.s.Durable(); got != 10 {
		t.Fatalf("durable %d, want 10", got)
	}
	for name, call := range map[string]func() error{
		"event":    func() error { _, err := l.s.Event(1); return err },
		"events":   func() error { return l.s.Events(1, 10, func(uint64, []byte) error { return nil }) },
		"payload":  func() error { _, _, err := l.s.Payload(3); return err },
		"data key": func() error { _, _, err := l.s.DataKey("a"); return err },
		"root":     func() error { _, err := l.s.Root(10); return err },
		"hashes":   func() error { _, err := l.s.ReadHashes([]int64{0}); return err },
		"readback": func() error { return l.s.ReadBack(1, 10) },
		"parts":    func() error { _, err := l.s.Parts(); return err },
		"part":     func() error { return l.s.ReadPart(Part{}, nil) },
		"put":      func() error { return l.s.PutPart(0, 1, nil) },
		"drop":     func() error { return l.s.DropParts(nil) },
		"backup":   func() error { return l.s.Checkpoint("b") },
		"free":     func() error { _, err := l.s.Free(); return err },
		"check":    func() error { return l.s.Check() },
		"err":      func() error { return l.s.Err() },
	} {
		if err := call(); !errors.Is(err, ErrStopped) || !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.s.Close()
	o := *l
	o.opts = Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})}
	o.mustOpen()
	if got := o.check(); got != 10 {
		t.Fatalf("%d events on disk, want 10", got)
	}
	o.mustClose()
}

// A flush that fails is retried by Pebble for ever; here it stops the store.
func TestBackgroundErrorStopsTheStore(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var on atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			return errorfs.ErrInjected
		}
		return nil
	})
	l := newLedger(t, "d", Options{FS: errorfs.Wrap(mem, inject)})
	l.mustAppend(9)
	on.Store(true)
	_, err := l.s.db.AsyncFlush()
	must(t, err)
	<-l.s.Stopped()
	if err := l.append(1); !errors.Is(err, ErrStopped) || !errors.Is(err, errorfs.ErrInjected) {
		t.Fatal(err)
	}
	on.Store(false)
	l.s.Close()
	o := *l
	o.opts = Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})}
	o.mustOpen()
	if got := o.check(); got < 10 {
		t.Fatalf("%d events on disk, want 10", got)
	}
	o.mustClose()
}

// After what Pebble calls fatal, here a MANIFEST that cannot be synced, it must
// not go on: it would write on behind the hole and spoil the MANIFEST for good.
func TestPebbleIsParkedAfterAFatalError(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	var on atomic.Bool
	var later atomic.Int64
	var l *ledger
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case !on.Load() || op.Kind.ReadOrWrite() == errorfs.OpIsRead || !strings.Contains(op.Path, "MANIFEST-"):
		case l.s.Err() != nil:
			later.Add(1)
		case op.Kind == errorfs.OpFileSync:
			return errorfs.ErrInjected
		}
		return nil
	})
	l = newLedger(t, "d", Options{FS: errorfs.Wrap(mem, inject)})
	l.mustAppend(9)
	on.Store(true)
	_, err := l.s.db.AsyncFlush()
	must(t, err)
	<-l.s.Stopped()
	time.Sleep(50 * time.Millisecond) // ample for Pebble, which would retry a thousand times a second
	if n := later.Load(); n != 0 {
		t.Errorf("%d operations on the MANIFEST after the fatal error", n)
	}
	if _, err := l.s.Append(l.batch(1)); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	if err := l.s.Close(); !errors.Is(err, ErrStopped) { // its goroutine is parked for ever
		t.Errorf("close: %v", err)
	}
	o := *l
	o.opts = Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})}
	o.mustOpen()
	if got := o.check(); got != 10 {
		t.Errorf("%d events on disk, want 10", got)
	}
	o.mustClose()
}

// P2: with the sync held back the events are in Pebble, where any reader of
// Pebble's would see them; here nobody does.
func TestNothingIsReadableBeforeItIsDurable(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var on atomic.Bool
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
			<-held
		}
		return nil
	})
	l := newLedger(t, "d", Options{FS: errorfs.Wrap(mem, inject)})
	t.Cleanup(release) // before the store is closed
	l.mustAppend(9)
	l.note = l.sign()
	on.Store(true)
	c, err := l.s.Append(l.batch(5))
	must(t, err)
	d, err := l.s.Append(l.batch(5))
	must(t, err)
	waited := make(chan error, 2)
	go func() { waited <- d.Wait() }()
	go func() { waited <- c.Wait() }()

	if _, err := l.s.get(numKey(eventKeys, 12)); err != nil {
		t.Fatalf("the event is not even in Pebble, so this shows nothing: %v", err)
	}
	if got := l.check(); got != 10 {
		t.Fatalf("head at %d", got)
	}
	seen := 0
	must(t, l.s.Events(1, 1<<62, func(uint64, []byte) error { seen++; return nil }))
	if seen != 10 {
		t.Errorf("%d events seen", seen)
	}
	must(t, l.s.Events(11, 15, func(seq uint64, _ []byte) error { return fmt.Errorf("saw %d", seq) }))
	if _, err := l.s.Event(11); !errors.Is(err, ErrNotFound) {
		t.Errorf("event 11: %v", err)
	}
	if _, ok, err := l.s.Payload(12); ok || err != nil {
		t.Errorf("payload 12: %v %v", ok, err)
	}
	if _, err := l.s.Root(11); !errors.Is(err, ErrNotFound) {
		t.Errorf("root: %v", err)
	}
	if _, err := l.s.ReadHashes([]int64{int64(storedCount(10))}); !errors.Is(err, ErrNotFound) {
		t.Errorf("hash: %v", err)
	}
	if err := l.s.ReadBack(10, 11); !errors.Is(err, ErrNotFound) {
		t.Errorf("read back: %v", err)
	}
	if err := l.s.PutPart(0, 11, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("part: %v", err)
	}
	crash := mem.CrashClone(vfs.CrashCloneCfg{})
	release()
	must(t, <-waited)
	must(t, <-waited)
	if got := l.check(); got != 20 {
		t.Fatalf("head at %d after the sync", got)
	}
	o := *l
	o.opts = Options{FS: crash}
	o.mustOpen()
	if got := o.check(); got != 10 {
		t.Fatalf("the crash before the sync left %d events, want 10", got)
	}
	o.mustClose()
}

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

const testOrigin = "ledgerd.test/store/0123456789abcdef/1"

// ledger drives a store through a log of test events: seq, prev and a filler.
type ledger struct {
	t        testing.TB
	dir      string
	opts     Options
	signer   note.Signer
	verifier note.Verifier
	s        *Store
	note     []byte   // the anchor
	events   [][]byte // all ever made, lost ones included
	prev     events.Hash
	filler   int
}

// newLedger makes and opens a log of one event in dir.
func newLedger(t testing.TB, dir string, opts Options) *ledger {
	t.Helper()
	l := prepare(t, dir, opts)
	if err := l.init(); err != nil {
		t.Fatal(err)
	}
	l.mustOpen()
	t.Cleanup(func() { l.s.Close() })
	return l
}

func prepare(t testing.TB, dir string, opts Options) *ledger {
	t.Helper()
	l := &ledger{t: t, dir: dir, opts: opts, prev: events.GenesisHash(testOrigin)}
	l.signer, l.verifier = testKey(t, testOrigin)
	return l
}

func (l *ledger) init() error {
	return Init(l.dir, l.opts, testOrigin, func(tmp string, s *Store) error {
		l.s = s
		if err := l.append(1); err != nil {
			return err
		}
		l.note = l.sign()
		return nil
	})
}

func (l *ledger) open() error {
	s, err := Open(l.dir, l.opts, AnchorCheck{Note: l.note, Verifier: l.verifier})
	if err == nil {
		l.s = s
	}
	return err
}

func (l *ledger) mustOpen() {
	l.t.Helper()
	if err := l.open(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *ledger) mustClose() {
	l.t.Helper()
	if err := l.s.Close(); err != nil {
		l.t.Fatal(err)
	}
}

// batch makes the next n events; every third has a payload.
func (l *ledger) batch(n int) Batch {
	b := Batch{First: uint64(len(l.events)) + 1}
	for range n {
		seq := uint64(len(l.events)) + 1
		e := binary.BigEndian.AppendUint64(nil, seq)
		e = append(e, l.prev[:]...)
		e = append(e, strings.Repeat("x", l.filler)...)
		l.prev = events.LeafHash(e)
		l.events = append(l.events, e)
		b.Events = append(b.Events, e)
		b.Leaves = append(b.Leaves, l.prev)
		if seq%3 == 0 {
			b.Payloads = append(b.Payloads, Payload{seq, []byte(fmt.Sprint("payload ", seq))})
		}
	}
	return b
}

// append adds n events in one commit and waits for it.
func (l *ledger) append(n int) error {
	c, err := l.s.Append(l.batch(n))
	if err != nil {
		return err
	}
	return c.Wait()
}

func (l *ledger) mustAppend(n int) {
	l.t.Helper()
	if err := l.append(n); err != nil {
		l.t.Fatal(err)
	}
}

// sign reads the log back from the anchor's place and signs its durable end.
func (l *ledger) sign() []byte {
	l.t.Helper()
	size, _ := l.s.Head()
	if err := l.s.ReadBack(1, size); err != nil {
		l.t.Fatal(err)
	}
	root, err := l.s.Root(size)
	if err != nil {
		l.t.Fatal(err)
	}
	n, err := SignCheckpoint(l.signer, Checkpoint{testOrigin, size, root})
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// check verifies the open log from its bytes alone: it is a prefix of what was
// made, chained from the origin, and every stored tree hash, root and payload
// is what x/mod's reference implementation gives. It returns the size.
func (l *ledger) check() uint64 {
	l.t.Helper()
	size, err := verifyLog(l.s, l.events)
	if err != nil {
		l.t.Fatal(err)
	}
	return size
}

func verifyLog(s *Store, made [][]byte) (uint64, error) {
	size, leaf := s.Head()
	if size > uint64(len(made)) {
		return size, fmt.Errorf("log ends at %d, only %d events were made", size, len(made))
	}
	prev := events.GenesisHash(testOrigin)
	var want []tlog.Hash
	n := uint64(0)
	err := s.Events(1, size, func(seq uint64, e []byte) error {
		n++
		if seq != n || !bytes.Equal(e, made[n-1]) {
			return fmt.Errorf("event %d is %x, made was %x", seq, e, made[n-1])
		}
		if !bytes.Equal(e[8:40], prev[:]) {
			return fmt.Errorf("event %d: prev %x, want %s", seq, e[8:40], prev)
		}
		prev = events.LeafHash(e)
		hs, err := tlog.StoredHashes(int64(n-1), e, tlog.HashReaderFunc(func(is []int64) (out []tlog.Hash, _ error) {
			for _, i := range is {
				out = append(out, want[i])
			}
			return out, nil
		}))
		if err != nil {
			return err
		}
		want = append(want, hs...)
		p, ok, err := s.Payload(seq)
		switch {
		case err != nil:
			return fmt.Errorf("payload %d: %w", seq, err)
		case ok != (seq%3 == 0) || ok && string(p) != fmt.Sprint("payload ", seq):
			return fmt.Errorf("payload %d: %q %v", seq, p, ok)
		}
		return err
	})
	if err != nil {
		return n, err
	}
	if n != size || prev != leaf && size > 0 {
		return n, fmt.Errorf("read %d events up to %s, head is %d %s", n, prev, size, leaf)
	}
	indexes := make([]int64, len(want))
	for i := range indexes {
		indexes[i] = int64(i)
	}
	got, err := s.ReadHashes(indexes)
	if err != nil {
		return n, err
	}
	if !slices.Equal(got, want) {
		return n, errors.New("stored tree hashes differ from the reference")
	}
	root, err := s.Root(size)
	if err == nil && root != naiveRoot(made[:size]) {
		err = errors.New("root differs from RFC 6962's definition")
	}
	return n, err
}

// naiveRoot is RFC 6962's definition, word for word.
func naiveRoot(es [][]byte) events.Hash {
	switch len(es) {
	case 0:
		h, _ := tlog.TreeHash(0, nil)
		return events.Hash(h)
	case 1:
		return events.LeafHash(es[0])
	}
	k := 1
	for k*2 < len(es) {
		k *= 2
	}
	return events.NodeHash(naiveRoot(es[:k]), naiveRoot(es[k:]))
}

// contents maps every file under dir to its bytes.
func contents(t testing.TB, sys vfs.FS, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	names, err := sys.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p := sys.PathJoin(dir, name)
		info, err := sys.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			for k, v := range contents(t, sys, p) {
				m[k] = v
			}
			continue
		}
		f, err := sys.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		m[p] = string(b)
	}
	return m
}

// same fails when two states of a directory differ in any file.
func same(t testing.TB, before, after map[string]string) {
	t.Helper()
	for p, b := range before {
		if a, ok := after[p]; !ok {
			t.Errorf("%s was deleted", p)
		} else if a != b {
			t.Errorf("%s was changed", p)
		}
	}
	for p := range after {
		if _, ok := before[p]; !ok {
			t.Errorf("%s was made", p)
		}
	}
}

// refused opens and wants the error; the directory must be untouched.
func (l *ledger) refused(want error) error {
	l.t.Helper()
	sys := l.opts.fs()
	before := contents(l.t, sys, l.dir)
	err := l.open()
	if err == nil {
		l.s.Close()
		l.t.Fatalf("opened, want %v", want)
	}
	if !errors.Is(err, want) {
		l.t.Fatalf("got %v, want %v", err, want)
	}
	same(l.t, before, contents(l.t, sys, l.dir))
	return err
}

func files(t testing.TB, sys vfs.FS, dir, prefix, suffix string) (out []string) {
	t.Helper()
	names, err := sys.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, n := range names {
		if strings.HasPrefix(n, prefix) && strings.HasSuffix(n, suffix) {
			out = append(out, sys.PathJoin(dir, n))
		}
	}
	return out
}

func TestLogReadsBackWhatWasAppended(t *testing.T) {
	l := newLedger(t, t.TempDir()+"/d", Options{})
	for _, n := range []int{1, 2, 64, 7, 256, 1} {
		l.mustAppend(n)
	}
	if got := l.check(); got != 332 {
		t.Fatalf("size %d", got)
	}
	l.note = l.sign()
	l.mustClose()
	l.mustOpen()
	l.mustAppend(3)
	if got := l.check(); got != 335 {
		t.Fatalf("size %d after reopening", got)
	}
	for size := range uint64(336) {
		if root, err := l.s.Root(size); err != nil || root != naiveRoot(l.events[:size]) {
			t.Fatalf("root at %d: %s %v", size, root, err)
		}
	}
	if l.s.Origin() != testOrigin {
		t.Fatalf("origin %q", l.s.Origin())
	}
	if free, err := l.s.Free(); err != nil || free == 0 {
		t.Fatalf("free %d %v", free, err)
	}
	for _, seq := range []uint64{0, 336, 1 << 60} {
		if _, err := l.s.Event(seq); !errors.Is(err, ErrNotFound) {
			t.Errorf("event %d: %v", seq, err)
		}
	}
	if _, err := l.s.Root(336); !errors.Is(err, ErrNotFound) {
		t.Errorf("root beyond the end: %v", err)
	}
}

func TestAppendRefusesWhatDoesNotFit(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	good := l.batch(3)
	for name, spoil := range map[string]func(*Batch){
		"gap":                 func(b *Batch) { b.First++ },
		"repeat":              func(b *Batch) { b.First-- },
		"no events":           func(b *Batch) { b.Events, b.Leaves = nil, nil },
		"leaf missing":        func(b *Batch) { b.Leaves = b.Leaves[1:] },
		"empty event":         func(b *Batch) { b.Events[1] = nil },
		"event too large":     func(b *Batch) { b.Events[1] = make([]byte, events.EventBytesMax+1) },
		"payload before":      func(b *Batch) { b.Payloads = []Payload{{1, nil}} },
		"payload after":       func(b *Batch) { b.Payloads = []Payload{{5, nil}} },
		"payload twice":       func(b *Batch) { b.Payloads = []Payload{{3, nil}, {3, nil}} },
		"payloads unordered":  func(b *Batch) { b.Payloads = []Payload{{4, nil}, {2, nil}} },
		"more leaves than ev": func(b *Batch) { b.Events = b.Events[:2] },
	} {
		b := good
		b.Events, b.Leaves = slices.Clone(b.Events), slices.Clone(b.Leaves)
		spoil(&b)
		if _, err := l.s.Append(b); err == nil || errors.Is(err, ErrStopped) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := l.s.Append(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	l.mustAppend(1)
	if got := l.check(); got != 5 {
		t.Fatalf("size %d", got)
	}
}

func TestDataKeysAndLargestEvent(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	l.filler = events.EventBytesMax - 40
	b := l.batch(1)
	b.Keys = map[string][]byte{"researcher": []byte("k1"), "formatter": []byte("k2")}
	c, err := l.s.Append(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	for owner, want := range b.Keys {
		if got, ok, err := l.s.DataKey(owner); err != nil || !ok || !bytes.Equal(got, want) {
			t.Errorf("%s: %q %v %v", owner, got, ok, err)
		}
	}
	if _, ok, err := l.s.DataKey("nobody"); ok || err != nil {
		t.Errorf("nobody has a key: %v", err)
	}
	l.check()
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// partsOf reads the parts of the state as after-seq:bytes.
func partsOf(t *testing.T, s *Store) string {
	t.Helper()
	parts, err := s.Parts()
	must(t, err)
	var all []string
	for _, p := range parts {
		must(t, s.ReadPart(p, func(r io.Reader) error {
			b, err := io.ReadAll(r)
			all = append(all, p.name()+":"+string(b))
			if int64(len(b)) != p.Size {
				t.Errorf("part of %d bytes, read %d", p.Size, len(b))
			}
			return err
		}))
	}
	return strings.Join(all, " ")
}

func TestPartsOfTheState(t *testing.T) {
	sys := vfs.NewCrashableMem()
	l := newLedger(t, "d", Options{FS: sys})
	l.mustAppend(9)
	if got := partsOf(t, l.s); got != "" {
		t.Fatalf("parts of nothing: %s", got)
	}
	must(t, l.s.PutPart(0, 4, text("a")))
	must(t, l.s.PutPart(4, 6, text("b")))
	must(t, l.s.PutPart(6, 10, text("c")))
	if got := partsOf(t, l.s); got != "0-4:a 4-6:b 6-10:c" {
		t.Fatal(got)
	}
	if err := l.s.PutPart(6, 11, text("d")); !errors.Is(err, ErrNotFound) {
		t.Errorf("past the end: %v", err)
	}
	if err := l.s.PutPart(6, 6, text("d")); err == nil {
		t.Error("a part of nothing")
	}
	refused := errors.New("refused")
	if err := l.s.PutPart(6, 8, func(w io.Writer) error { io.WriteString(w, "half"); return refused }); err != refused || l.s.Err() != nil {
		t.Errorf("a part that its writer refuses: %v, %v", err, l.s.Err())
	}
	reader, err := OpenReadOnly("d", l.opts)
	must(t, err)
	must(t, l.s.PutPart(4, 10, text("bc"))) // merged: leads further, so the others are no longer asked
	if got := partsOf(t, l.s); got != "0-4:a 4-10:bc" {
		t.Fatal(got)
	}
	parts, err := l.s.Parts()
	must(t, err)
	must(t, syncFile(sys.Create("d/state/tmp", vfs.WriteCategoryUnspecified)))
	must(t, syncFile(sys.Create("d/state/of somebody else", vfs.WriteCategoryUnspecified)))
	must(t, l.s.DropParts(parts))
	names, err := sys.List("d/state")
	must(t, err)
	if got := strings.Join(slices.Sorted(slices.Values(names)), " "); got != "0-4 4-10 of somebody else" {
		t.Errorf("left: %s", got)
	}
	if got := partsOf(t, reader); got != "0-4:a 4-6:b 6-10:c" {
		t.Errorf("a reader that opened before: %s", got)
	}
	must(t, reader.Close())
	if err := reader.PutPart(0, 1, text("x")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	l.check()
}

// What earlier releases kept in the database goes when it is opened.
func TestOldSnapshotGoes(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewCrashableMem()})
	l.mustAppend(3)
	key := append([]byte{oldSnapshotKeys}, "anything"...)
	must(t, l.s.db.Set(key, []byte("x"), pebble.Sync))
	l.note = l.sign()
	l.mustClose()
	l.mustOpen()
	if _, err := l.s.get(key); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	l.check()
}

func TestCheckpointIsALogOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	l := newLedger(t, dir+"/d", Options{})
	l.mustAppend(40)
	l.note = l.sign()
	if err := l.s.Checkpoint(dir + "/backup"); err != nil {
		t.Fatal(err)
	}
	if err := l.s.Checkpoint(dir + "/backup"); err == nil {
		t.Fatal("wrote over a backup")
	}
	l.mustAppend(10)
	if got := l.check(); got != 51 {
		t.Fatalf("size %d", got)
	}
	b := *l
	b.dir = dir + "/backup"
	b.mustOpen()
	if got := b.check(); got != 41 {
		t.Fatalf("backup has %d events", got)
	}
	b.mustClose()
	// R81, F19: put in the log's place it is behind the anchor.
	l.note = l.sign()
	l.mustClose()
	b.note = l.note
	if err := b.refused(ErrBehindAnchor); !strings.Contains(err.Error(), "log ends at 41, anchor says 51: events 42–51 are lost (nothing was changed)") {
		t.Error(err)
	}
}

func TestInitLeavesNothingHalfDone(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "a", "b")
	l := prepare(t, dir, Options{})
	boom := errors.New("boom")
	fail := func(string, *Store) error { return boom }
	if err := Init(dir, l.opts, testOrigin, fail); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if err := Init(dir, l.opts, testOrigin, func(string, *Store) error { return nil }); err == nil {
		t.Fatal("a log without event 1 was made")
	}
	if err := Init(dir, l.opts, "two words", fail); err == nil || errors.Is(err, boom) {
		t.Fatalf("origin with a space: %v", err)
	}
	if names, err := os.ReadDir(filepath.Join(parent, "a")); err != nil || len(names) != 0 {
		t.Fatalf("left behind: %v %v", names, err)
	}
	if err := l.open(); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("open of nothing: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // an empty directory is as good as none
		t.Fatal(err)
	}
	if err := l.init(); err != nil {
		t.Fatal(err)
	}
	before := contents(t, vfs.Default, dir)
	if err := l.init(); !errors.Is(err, ErrNotEmpty) {
		t.Fatalf("init over a log: %v", err)
	}
	same(t, before, contents(t, vfs.Default, dir))
	l.events = l.events[:1]
	l.mustOpen()
	l.check()
	l.mustClose()
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data directory is %v", info.Mode())
	}
}

func TestWaitsComeInAnyOrder(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	var commits []*Commit
	for range 5 {
		c, err := l.s.Append(l.batch(2))
		must(t, err)
		commits = append(commits, c)
	}
	for _, i := range []int{2, 0, 4, 4, 1, 3} {
		must(t, commits[i].Wait())
		if got, want := l.check(), uint64(1+2*(max(i, 2)+1)); got < want || i == 4 && got != 11 {
			t.Fatalf("after waiting for %d the log is durable to %d", i, got)
		}
	}
	if got := l.check(); got != 11 {
		t.Fatalf("durable to %d, want 11", got)
	}
}

func TestClosedStoreRefuses(t *testing.T) {
	l := newLedger(t, "d", Options{FS: vfs.NewMem()})
	l.mustAppend(4)
	c, err := l.s.Append(l.batch(1))
	if err != nil {
		t.Fatal(err)
	}
	// Closing from inside a read waits for the read; the next call is refused.
	closed := make(chan error, 1)
	err = l.s.Events(1, 5, func(seq uint64, _ []byte) error {
		if seq == 1 {
			go func() { closed <- l.s.Close() }()
			for {
				if _, err := l.s.Event(1); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); !errors.Is(err, ErrClosed) {
		t.Errorf("wait: %v", err)
	}
	if _, err := l.s.Append(l.batch(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if err := l.s.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("close: %v", err)
	}
	l.mustOpen()
	l.check()
}

func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 64, 256} {
		for _, flight := range []int{1, 4} {
			b.Run(fmt.Sprintf("events=%d/inflight=%d", n, flight), func(b *testing.B) {
				l := newLedger(b, b.TempDir()+"/d", Options{})
				l.filler = 500 - 40
				batches := make([]Batch, b.N)
				for i := range batches {
					batches[i] = l.batch(n)
				}
				b.ReportAllocs()
				b.ResetTimer()
				var pending []*Commit
				for _, batch := range batches {
					c, err := l.s.Append(batch)
					if err != nil {
						b.Fatal(err)
					}
					if pending = append(pending, c); len(pending) == flight {
						if err := pending[0].Wait(); err != nil {
							b.Fatal(err)
						}
						pending = pending[1:]
					}
				}
				for _, c := range pending {
					if err := c.Wait(); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

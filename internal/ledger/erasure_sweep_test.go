package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

// erasable is a payload or a wrapped data key as it was stored, until erased.
type erasable struct {
	what  string
	seq   uint64 // of the payload's event, 0 for a key
	bytes []byte
	under int // the erasure that destroys it, from 1
}

// eraseSweep has a ledger in memory erase twice, records and then all of an
// agent's but what is too young, and takes crash images all the while.
type eraseSweep struct {
	o       ledger.Options
	secrets []erasable
	kept    map[uint64]string // seq → a part of the payload that stays

	mu     sync.Mutex
	rng    *rand.Rand
	taking bool
	done   int    // erasures answered
	last   uint64 // payload written
	ops    int
	images []eraseImage
}

type eraseImage struct {
	image
	done int
	last uint64
}

// R83: a crash before every file operation of two erasures, with none, some or all
// of what was not synced. What was answered as erased is in no file of the image;
// once the ledger has opened, nothing of what its log says to be erased is; what
// is kept opens, also that which was sealed anew; and the log is judged clean.
func TestR83_CrashAtEveryOperationOfAnErasure(t *testing.T) {
	t.Cleanup(ledger.SetEraseStretch(1500)) // some four payloads
	w := newEraseSweep(t)
	erased, opened := 0, 0
	for i := 0; i < len(w.images); i += *sweepFlag {
		img := w.images[i]
		if err := w.stands(img.sys, img.done); err != nil {
			t.Errorf("image %d, %s, %d answered: %v", i, img.at, img.done, err)
		}
		n, err := w.open(t, &img)
		if err != nil {
			t.Errorf("image %d, %s: opened: %v", i, img.at, err)
		}
		if t.Failed() {
			break
		}
		erased, opened = erased+n, opened+1
		w.images[i].sys = nil
	}
	t.Logf("%d of %d crash images of %d operations of 2 erasures open and are judged clean; %d erasures looked for, their bytes in no file", opened, len(w.images), w.ops, erased)
	if erased == 0 || erased == 2*opened {
		t.Error("the erasures are not swept over")
	}
}

func newEraseSweep(t *testing.T) *eraseSweep {
	w := &eraseSweep{kept: map[uint64]string{}, rng: rand.New(rand.NewPCG(83, 0))}
	o, c := clocked(t)
	o, sys := inMem(t, o)
	w.o = o
	anchor := filepath.Join(o.Dir, "anchor")
	o.Store.FS = errorfs.Wrap(sys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.taking || op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		w.ops++
		img := eraseImage{image{at: fmt.Sprintf("operation %d, kind %d on %s", w.ops, op.Kind, filepath.Base(op.Path))}, w.done, w.last}
		var err error
		if img.anchor, err = os.ReadFile(anchor); err != nil {
			return err
		}
		for _, percent := range []int{0, 50, 100} {
			img.sys = sys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: w.rng})
			w.images = append(w.images, img)
		}
		return nil
	}))
	s := start(t, o)
	document := strings.Replace(replaytest.PolicyDocument("kept"), "children: 20", "children: 20, retention_days: 2", 1)
	expect(t, s.Control(ledger.AdminID, "apply", replaytest.ApplyRequest(document)), reason.ControlDone)
	var seqs []uint64
	put := func(n int) {
		for range n {
			value := strings.Repeat(fmt.Sprintf("value %d ", len(seqs)), 30)
			r := s.Propose("researcher", "memory.write", write(fmt.Sprintf("k%d", len(seqs)), `"`+value+`"`, 0, ""))
			expect(t, r, reason.OwnerWrite)
			seqs = append(seqs, r.Seq)
			w.set(func() { w.last = r.Seq })
			w.kept[r.Seq] = value
		}
	}
	put(12)
	c.pass(4 * 24 * time.Hour)
	put(4)
	w.secret(t, 1, seqs[3], seqs[7])
	w.take(t, func() {
		expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(seqs[3], seqs[7])), reason.ControlDone)
	})
	put(4)
	w.secret(t, 2, append(append(seqs[:3:3], seqs[4:7]...), seqs[8:12]...)...)
	w.take(t, func() {
		expect(t, s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"retention_end"}`), reason.ControlDone)
	})
	put(1)
	s.Stop()
	return w
}

// secret notes what the n-th erasure is to destroy.
func (w *eraseSweep) secret(t testing.TB, n int, seqs ...uint64) {
	for i, b := range rawPayloads(t, w.o, seqs...) {
		w.secrets = append(w.secrets, erasable{fmt.Sprintf("payload %d", seqs[i]), seqs[i], b[2+b[1]:], n})
	}
	if n == 2 {
		b, ok, err := storedKey(t, w.o, "researcher")
		if must(t, err); !ok {
			t.Fatal("no data key")
		}
		w.secrets = append(w.secrets, erasable{"the data key", 0, b, n})
	}
}

// take has something done while images are taken, and some more afterwards, since
// files are removed behind it.
func (w *eraseSweep) take(t testing.TB, do func()) {
	w.set(func() { w.taking = true })
	do()
	for _, percent := range []int{0, 100} { // a crash with the answer
		sys := w.o.Store.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(83, 1))})
		if err := w.stands(sys, w.done+1); err != nil {
			t.Errorf("answered, and with %d percent of what is not synced: %v", percent, err)
		}
	}
	w.set(func() { w.done++ })
	time.Sleep(20 * time.Millisecond)
	w.set(func() { w.taking = false })
}

func (w *eraseSweep) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// stands reports what the first n erasures have destroyed and still stands in a file.
func (w *eraseSweep) stands(sys *vfs.MemFS, n int) error {
	files := map[string][]byte{}
	if err := memFiles(sys, w.o.Dir, files); err != nil {
		return err
	}
	for _, secret := range w.secrets {
		for at := 0; at+12 <= len(secret.bytes) && secret.under <= n; at += 12 {
			for name, b := range files {
				if bytes.Contains(b, secret.bytes[at:at+12]) {
					return fmt.Errorf("%s is erased and stands in %s", secret.what, name)
				}
			}
		}
	}
	return nil
}

func memFiles(sys *vfs.MemFS, dir string, files map[string][]byte) error {
	names, err := sys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := sys.PathJoin(dir, name)
		info, err := sys.Stat(path)
		if err != nil {
			return err
		}
		if info.IsDir() {
			if err := memFiles(sys, path, files); err != nil {
				return err
			}
			continue
		}
		f, err := sys.Open(path)
		if err != nil {
			return err
		}
		b := make([]byte, info.Size())
		if n, err := f.ReadAt(b, 0); n < len(b) {
			return errors.Join(err, fmt.Errorf("%s: %d of %d bytes", path, n, len(b)), f.Close())
		}
		files[path] = b
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// open has an image served, and counts the erasures that its log says.
func (w *eraseSweep) open(t *testing.T, img *eraseImage) (said int, err error) {
	o := w.o
	o.Store.FS = img.sys
	if err := img.check(o, filepath.Join(t.TempDir(), "anchor")); err != nil {
		return 0, err
	}
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	if err != nil {
		return 0, err
	}
	defer st.Close()
	err = st.Events(1, st.Durable(), func(_ uint64, b []byte) error {
		if e, err := events.Parse(b); err != nil {
			return err
		} else if _, erased := e.Body.(*events.PayloadErased); erased {
			said++
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if said < img.done {
		return 0, fmt.Errorf("%d erasures answered, %d in the log", img.done, said)
	}
	if err := w.stands(img.sys, said); err != nil {
		return 0, err
	}
	return said, w.keeps(o.Dir, st, said, img.last)
}

// keeps reports what is not erased and does not open.
func (w *eraseSweep) keeps(dir string, st *store.Store, said int, last uint64) error {
	payloads, err := ledger.OpenPayloads(dir, st)
	if err != nil {
		return err
	}
	gone := map[uint64]bool{}
	for _, secret := range w.secrets {
		gone[secret.seq] = secret.under <= said
	}
	for seq, value := range w.kept {
		if seq > last {
			continue
		}
		_, b, ok, err := payloads.Open(seq)
		if err != nil || ok == gone[seq] || ok && !strings.Contains(string(b), value) {
			return fmt.Errorf("payload %d after %d erasures: %v %v", seq, said, ok, err)
		}
	}
	return nil
}

package ledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// receipts collects the answers that carry one, as they leave.
type receipts struct {
	mu      sync.Mutex
	list    []replaytest.Reply
	unknown int // answers that carry none
	late    int // receipts after one of these
}

func (r *receipts) add(reply replaytest.Reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case reply.Seq == 0:
		r.unknown++
	case r.unknown > 0:
		r.late++
		fallthrough
	default:
		r.list = append(r.list, reply)
	}
}

func (r *receipts) sofar() []replaytest.Reply {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list[:len(r.list):len(r.list)]
}

// ask sends a proposal and keeps the receipt, before anyone hears of the answer.
func ask(s *replaytest.Session, p *ledger.Proposal, got *receipts) <-chan replaytest.Reply {
	answers := make(chan replaytest.Reply, 2)
	code := s.Submit(p, func(a ledger.Answer) {
		r := replaytest.ParseReply(a)
		got.add(r)
		answers <- r
	})
	if code != "" {
		answers <- replaytest.Reply{Reason: string(code)}
	}
	return answers
}

// sitting opens the ledger, has a mixed load judged, some of it at once, and
// stops.
func sitting(t testing.TB, o ledger.Options, first bool, got *receipts) {
	t.Helper()
	s := replaytest.Start(t, o)
	if first {
		got.add(s.Family())
	}
	for i := range 8 {
		key, id := fmt.Sprintf("k%d", i), fmt.Sprintf("op-%v-%d", first, i)
		together := []<-chan replaytest.Reply{
			ask(s, proposeWrite(key, fmt.Sprintf(`"value %d"`, i), 0, id), got),
			ask(s, proposeWrite(key, fmt.Sprintf(`"value %d"`, i), 0, id), got),
			ask(s, replaytest.Proposal(wire.Propose, "formatter", "memory.read", readBody("project.client_region")), got),
			ask(s, replaytest.Proposal(wire.Propose, "researcher", "sop.validate", replaytest.SOP(id, `{"step_id":"one","action":"artifact.save"}`, `{"step_id":"two","action":"no.such"}`)), got),
		}
		for _, answer := range together {
			<-answer
		}
		<-ask(s, replaytest.Proposal(wire.Propose, "researcher", "memory.read", readBody("notes."+key)), got)
	}
	<-ask(s, replaytest.Proposal(wire.Control, "admin", "environment.set", `{"capabilities":["memory.read","memory.write","artifact.save"]}`), got)
	must(t, s.End())
}

// image is what a crash at one moment leaves: the log, the anchor, and what had
// been answered by then.
type image struct {
	sys      *vfs.MemFS
	anchor   []byte
	answered []replaytest.Reply
	at       string
}

// R75: crash images before every operation that changes the file system, from
// the first opening to the second clean stop, with nothing and with half or all of
// what was not synced. Each opens, holds every answered event, and is judged clean.
func TestR75_ACrashAtEveryOperation(t *testing.T) {
	o, sys := newMem(t)
	var got receipts
	var mu sync.Mutex
	var images []image
	anchor := filepath.Join(o.Dir, "anchor")
	total := 0
	o.Store.FS = errorfs.Wrap(sys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		total++
		// In this order: what is answered, and what is anchored, must be in the image.
		img := image{answered: got.sofar(), at: fmt.Sprintf("operation %d, kind %d on %s", total, op.Kind, filepath.Base(op.Path))}
		var err error
		if img.anchor, err = os.ReadFile(anchor); err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(75, uint64(total)))
		for _, percent := range []int{0, 50 + 50*(total%2)} {
			img.sys = sys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			images = append(images, img)
		}
		return nil
	}))
	sitting(t, o, true, &got)
	sitting(t, o, false, &got)
	replaytest.CheckLedger(t, o)

	every := int64(1)
	if testing.Short() {
		every = 8
	}
	var covered, answered atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(every) - every; i < int64(len(images)); i = next.Add(every) - every {
				img := images[i]
				if err := img.check(o, filepath.Join(t.TempDir(), "anchor")); err != nil {
					t.Errorf("crash before %s: %v", img.at, err)
					continue
				}
				covered.Add(1)
				answered.Add(int64(len(img.answered)))
			}
		})
	}
	wg.Wait()
	t.Logf("%d operations, %d of %d images open, verify and are judged clean; %d answered events looked for", total, covered.Load(), len(images), answered.Load())
	if total < 120 || len(got.list) < 80 {
		t.Errorf("%d operations and %d answers are too few to mean anything", total, len(got.list))
	}
}

// check opens the image as a restarted ledger would, and looks for what it owes.
func (img *image) check(o ledger.Options, anchor string) error {
	if err := os.WriteFile(anchor, img.anchor, 0o600); err != nil {
		return err
	}
	img.sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
	o.Anchor, o.Store.FS = anchor, img.sys
	l, err := ledger.Open(o)
	if err != nil {
		return err
	}
	err = owed(l, img.answered)
	l.Run(ended)
	_, faults := replaytest.Check(o)
	return errors.Join(err, l.Err(), faults)
}

// owed reports which answered events the log does not hold as they were told.
func owed(l *ledger.Ledger, answered []replaytest.Reply) error {
	for _, r := range answered {
		b, err := l.Event(r.Seq)
		if err != nil {
			return fmt.Errorf("answered event %d: %w", r.Seq, err)
		}
		if events.LeafHash(b).String() != r.Hash {
			return fmt.Errorf("event %d is not the one answered", r.Seq)
		}
	}
	return nil
}

// A sync fails, each in turn: from then on nobody is told anything, Run returns
// the failure, and the next opening holds what was answered.
func TestAFailedSyncStopsTheLedger(t *testing.T) {
	base, sys := newMem(t)
	var before receipts
	sitting(t, base, true, &before)
	anchor, err := os.ReadFile(filepath.Join(base.Dir, "anchor"))
	must(t, err)
	failed, unknown := 0, 0
	for index := int64(1); ; index++ {
		img := sys.CrashClone(vfs.CrashCloneCfg{})
		img.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
		o := base
		o.Anchor = filepath.Join(t.TempDir(), "anchor")
		must(t, os.WriteFile(o.Anchor, anchor, 0o600))
		var syncs, running atomic.Int64
		o.Store.FS = errorfs.Wrap(img, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if isSync(op) && strings.HasSuffix(op.Path, ".log") && running.Load() > 0 && syncs.Add(1) >= index {
				return errorfs.ErrInjected
			}
			return nil
		}))
		l, err := ledger.Open(o)
		must(t, err)
		running.Store(1)
		s := replaytest.Run(t, l, o)
		got := receipts{list: before.sofar()}
		var refused atomic.Int64
		var wg sync.WaitGroup
		for w := range 2 {
			wg.Go(func() {
				for i := range 6 {
					r := <-ask(s, proposeWrite(fmt.Sprintf("n%d-%d", w, i), `1`, 0, ""), &got)
					if r.Reason == string(reason.NotKnownCommitted) {
						refused.Add(1)
					}
				}
			})
		}
		wg.Wait()
		err = s.End()
		if syncs.Load() < index { // no sync was left to fail
			must(t, err)
			if refused.Load() > 0 {
				t.Errorf("without a failure %d were refused", refused.Load())
			}
			break
		}
		failed++
		unknown += int(refused.Load())
		if !errors.Is(err, errorfs.ErrInjected) && !strings.Contains(fmt.Sprint(err), "injected") {
			t.Fatalf("sync %d failed and Run returned %v", index, err)
		}
		if code := s.Submit(proposeWrite("after", `1`, 0, ""), nil); code != reason.NotKnownCommitted {
			t.Errorf("after the failure: %q", code)
		}
		if got.late > 0 {
			t.Errorf("sync %d failed, and %d answers came after that", index, got.late)
		}
		durable := l.Durable()
		for _, percent := range []int{0, 100} {
			kept := img.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 2))})
			signed, err := os.ReadFile(o.Anchor)
			must(t, err)
			left := image{sys: kept, anchor: signed, answered: got.sofar()}
			if err := left.check(base, filepath.Join(t.TempDir(), "anchor")); err != nil {
				t.Fatalf("sync %d failed, then opened: %v", index, err)
			}
		}
		if last := got.sofar()[len(got.list)-1]; last.Seq > durable {
			t.Errorf("answered %d, durable %d", last.Seq, durable)
		}
	}
	t.Logf("%d failed syncs, %d callers told that it is not known", failed, unknown)
	if failed < 6 || unknown < failed {
		t.Error("too few to mean anything")
	}
}

// The store stops while a sync never returns: Run returns all the same, and the
// caller is told nothing.
func TestAStuckSyncDoesNotHoldRun(t *testing.T) {
	o := newDir(t)
	g := newGate()
	o.Store.FS = g.fs(vfs.Default)
	s := start(t, o)
	g.shut()
	defer g.open()
	answer := s.Send(proposeWrite("a", `1`, 0, ""))
	<-g.waiting
	db := filepath.Join(o.Dir, "db")
	must(t, os.Rename(db, db+".moved"))
	<-s.Done()
	if err := s.End(); !errors.Is(err, store.ErrReplaced) {
		t.Errorf("Run returned %v", err)
	}
	if len(answer) > 0 {
		t.Errorf("answered without a sync: %s", (<-answer).Text)
	}
	if code := s.Submit(proposeWrite("b", `1`, 0, ""), nil); code != reason.NotKnownCommitted {
		t.Errorf("afterwards: %q", code)
	}
}

// Somebody moves the data directory away under a running ledger.
func TestR72_AMovedDirectoryStopsTheWriter(t *testing.T) {
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data"), Anchor: filepath.Join(t.TempDir(), "anchor")}
	must(t, ledger.Init(o.Dir, ledger.InitOptions{Anchor: o.Anchor}))
	s := start(t, o)
	moved := o.Dir + ".moved"
	must(t, os.Rename(o.Dir, moved))
	<-s.Done()
	if err := s.End(); !errors.Is(err, store.ErrReplaced) {
		t.Errorf("Run returned %v", err)
	}
	expect(t, s.Propose("researcher", "memory.write", write("a", `1`, 0, "")), reason.NotKnownCommitted)
	o.Dir = moved
	replaytest.Start(t, o).Stop()
}

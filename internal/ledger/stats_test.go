package ledger_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// found returns what a check says.
func found(l *ledger.Ledger, name string) ledger.Check {
	for _, c := range l.Checks() {
		if c.Name == name {
			return c
		}
	}
	return ledger.Check{}
}

// becomes waits until a check has a status.
func becomes(t testing.TB, l *ledger.Ledger, name string, status ledger.CheckStatus) ledger.Check {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c := found(l, name)
		if c.Status == status {
			return c
		}
		if time.Now().After(end) {
			t.Fatalf("check %s is %+v, want %s", name, c, status)
		}
	}
}

// A disk that hangs in a sync is told by the health checks, which go on
// answering, and is over when the disk goes on.
func TestAStuckSyncIsNotReady(t *testing.T) {
	t.Parallel()
	o, sys := newMem(t)
	g := newGate()
	o.Store.FS = g.fs(sys)
	s := start(t, o)
	becomes(t, s.Ledger, "writer", ledger.CheckOK)
	g.shut()
	answer := s.Send(proposeWrite("a", `1`, 0, "w1"))
	<-g.waiting
	c := becomes(t, s.Ledger, "writer", ledger.CheckFail)
	if !strings.Contains(c.Detail, "has not ended for") {
		t.Errorf("detail %q", c.Detail)
	}
	before := s.Ledger.Stats()
	g.open()
	expect(t, <-answer, reason.OwnerWrite)
	becomes(t, s.Ledger, "writer", ledger.CheckOK)
	if after := s.Ledger.Stats(); after.Durable <= before.Durable || after.Sync.Sum-before.Sync.Sum < 4 {
		t.Errorf("the sync that hung is not in the histogram: %v s, then %v s", before.Sync.Sum, after.Sync.Sum)
	}
	s.Stop()
}

// After a failure of the store the checks say so, whatever else they say.
func TestAFailedStoreIsNotReady(t *testing.T) {
	o, sys := newMem(t)
	var broken atomic.Bool
	o.Store.FS = errorfs.Wrap(sys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && isSync(op) && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	}))
	s := start(t, o)
	if got := found(s.Ledger, "store"); got.Status != ledger.CheckOK {
		t.Fatalf("before: %+v", got)
	}
	broken.Store(true)
	expect(t, <-s.Send(proposeWrite("a", `1`, 0, "w1")), reason.NotKnownCommitted)
	c := becomes(t, s.Ledger, "store", ledger.CheckFail)
	if !strings.Contains(c.Detail, "nothing is decided any more") || strings.Contains(c.Detail, "\n") {
		t.Errorf("detail %q", c.Detail)
	}
	s.Ledger.Stats() // of a stopped store too
	if err := s.End(); err == nil {
		t.Error("Run returned nil")
	}
}

// An anchor that cannot be moved on is told: its file system hangs.
func TestAStuckAnchorIsNotReady(t *testing.T) {
	t.Parallel()
	o := newDir(t)
	s := start(t, o)
	becomes(t, s.Ledger, "anchor", ledger.CheckOK)
	pipe := filepath.Join(o.Dir, "anchor.tmp") // opening it for writing waits for a reader
	must(t, syscall.Mkfifo(pipe, 0o600))
	expect(t, <-s.Send(proposeWrite("a", `1`, 0, "w1")), reason.OwnerWrite)
	if c := becomes(t, s.Ledger, "anchor", ledger.CheckFail); !strings.Contains(c.Detail, "the anchor has not moved for") {
		t.Errorf("detail %q", c.Detail)
	}
	expect(t, <-s.Send(proposeWrite("b", `1`, 0, "w2")), reason.OwnerWrite) // the log is the truth and goes on
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	must(t, err)
	defer reader.Close()
	if err := s.End(); err == nil { // a pipe cannot be synced
		t.Error("an anchor that is a pipe was taken")
	}
	must(t, os.Remove(pipe))
	replaytest.CheckLedger(t, o)
}

// Histograms hold what was observed, in the bucket it belongs to.
func TestHistogramsCountWhatWasObserved(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	before := s.Ledger.Stats()
	for range 10 {
		expect(t, <-s.Send(replaytest.Proposal("propose", "researcher", "memory.read", readBody("project.client_region"))), reason.VisibleFrom)
	}
	after := s.Ledger.Stats()
	sum := func(h ledger.Histogram) (n uint64) {
		for _, c := range h.Counts {
			n += c
		}
		return n
	}
	if got := sum(after.Latency) - sum(before.Latency); got != 10 {
		t.Errorf("%d latencies of 10", got)
	}
	if got := sum(after.Batch) - sum(before.Batch); got != 10 {
		t.Errorf("%d batches of 10", got)
	}
	if got := after.Batch.Sum - before.Batch.Sum; got != 10 {
		t.Errorf("%v jobs of 10", got)
	}
	if after.Latency.Sum <= before.Latency.Sum || after.Latency.Sum-before.Latency.Sum > 600 {
		t.Errorf("latencies of %v s", after.Latency.Sum-before.Latency.Sum)
	}
	for _, d := range after.Decisions {
		if d.Operation == "memory.read" && d.Reason == reason.VisibleFrom && (d.Count != 10 || !d.Allowed) {
			t.Errorf("%+v", d)
		}
	}
	s.Stop()
}

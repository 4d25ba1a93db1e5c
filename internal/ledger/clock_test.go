package ledger_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// fakeClock is a wall clock and a monotonic one that a test moves.
type fakeClock struct {
	mu      sync.Mutex
	wall    time.Time
	elapsed time.Duration
}

func newClock() *fakeClock {
	return &fakeClock{wall: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
}

func (c *fakeClock) clock() ledger.Clock {
	return ledger.Clock{
		Wall:    func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.wall },
		Elapsed: func() time.Duration { c.mu.Lock(); defer c.mu.Unlock(); return c.elapsed },
	}
}

// pass lets time go by on both clocks.
func (c *fakeClock) pass(d time.Duration) { c.jump(d); c.mu.Lock(); c.elapsed += d; c.mu.Unlock() }

// jump moves the wall clock alone.
func (c *fakeClock) jump(d time.Duration) { c.mu.Lock(); c.wall = c.wall.Add(d); c.mu.Unlock() }

func (c *fakeClock) now() events.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return events.TimeOf(c.wall)
}

// clocked is a ledger under a clock of the test's.
func clocked(t *testing.T) (ledger.Options, *fakeClock) {
	t.Helper()
	c := newClock()
	o := newDir(t)
	o.Dir += "-clocked"
	o.Clock = c.clock()
	must(t, ledger.Init(o.Dir, ledger.InitOptions{Clock: o.Clock}))
	return o, c
}

// tick has one decision made and returns its time.
func tick(t *testing.T, s *replaytest.Session) events.Time {
	t.Helper()
	return logged(t, s.Ledger, s.Propose("researcher", "memory.read", readBody("a.b"))).Time
}

func TestLedgerTimeFollowsTheWallAndNeverRunsBack(t *testing.T) {
	o, c := clocked(t)
	s := start(t, o)
	at := tick(t, s)
	if at != c.now() {
		t.Errorf("time %s, wall %s", at, c.now())
	}
	c.pass(3 * time.Second)
	if got := tick(t, s); got != c.now() {
		t.Errorf("time %s, wall %s", got, c.now())
	}
	at = c.now()
	c.jump(-time.Hour) // set back: ledger time goes on by the monotonic clock
	if got := tick(t, s); got != at {
		t.Errorf("after a jump back %s, want %s", got, at)
	}
	c.pass(2 * time.Second)
	if got, want := tick(t, s), at+2_000_000; got != want {
		t.Errorf("after a jump back and 2 s %s, want %s", got, want)
	}
	c.jump(time.Hour + 59*time.Second) // within a minute ahead: followed
	if got := tick(t, s); got != c.now() {
		t.Errorf("time %s, wall %s", got, c.now())
	}
	if faults := s.Health(); len(faults) > 0 {
		t.Errorf("health: %v", faults)
	}
	s.Stop()
}

func TestAWallClockFarAheadIsNotFollowedUntilAccepted(t *testing.T) {
	o, c := clocked(t)
	s := start(t, o)
	at := tick(t, s)
	c.jump(time.Minute + time.Microsecond)
	if len(s.Health()) != 1 {
		t.Errorf("health: %v", s.Health())
	}
	if got := tick(t, s); got != at {
		t.Errorf("time %s, want %s still", got, at)
	}
	c.jump(24 * time.Hour)
	c.pass(time.Second)
	if got, want := tick(t, s), at+1_000_000; got != want {
		t.Errorf("time %s, want %s", got, want)
	}
	expect(t, s.Propose("researcher", "clock.accept", `{}`), reason.UnsupportedOperation)
	if got := tick(t, s); got != at+1_000_000 {
		t.Errorf("an agent has moved the clock to %s", got)
	}
	r := s.Control(ledger.AdminID, "clock.accept", `{"operation_id":"accept"}`)
	expect(t, r, reason.ControlDone)
	b, err := s.Event(r.Seq + 1)
	must(t, err)
	e, err := events.Parse(b)
	must(t, err)
	accepted, ok := e.Body.(*events.ClockAccepted)
	if !ok || accepted.Wall != c.now() || e.Time != at+1_000_000 {
		t.Errorf("event %s", b)
	}
	if got := tick(t, s); got != c.now() || len(s.Health()) > 0 {
		t.Errorf("accepted %s, time %s, health %v", c.now(), got, s.Health())
	}
	c.jump(-48 * time.Hour) // a retry accepts nothing again, and neither does one that is behind go back
	at = tick(t, s)
	if again := s.Control(ledger.AdminID, "clock.accept", `{"operation_id":"accept"}`); again.Seq != r.Seq {
		t.Errorf("a retry: %s", again.Text)
	}
	expect(t, s.Control(ledger.AdminID, "clock.accept", `{}`), reason.ControlDone)
	if got := tick(t, s); got != at {
		t.Errorf("time went from %s to %s", at, got)
	}
	c.pass(2 * time.Second)
	if got, want := tick(t, s), at+2_000_000; got != want {
		t.Errorf("accepted behind and 2 s later %s, want %s", got, want)
	}
	s.Stop()
}

func TestLedgerTimeAcrossAStop(t *testing.T) {
	o, c := clocked(t)
	s := start(t, o)
	tick(t, s)
	s.Stop()
	c.jump(30 * 24 * time.Hour) // however long it was, opening takes the wall's word
	s = replaytest.Start(t, o)
	if got := tick(t, s); got != c.now() || len(s.Health()) > 0 {
		t.Errorf("time %s, wall %s, health %v", got, c.now(), s.Health())
	}
	at := tick(t, s)
	s.Stop()
	c.jump(-time.Hour)
	s = replaytest.Start(t, o)
	if got := tick(t, s); got != at {
		t.Errorf("time went from %s to %s", at, got)
	}
	c.pass(2 * time.Second)
	if got, want := tick(t, s), at+2_000_000; got != want {
		t.Errorf("opened behind and 2 s later %s, want %s", got, want)
	}
	s.Stop()
}

// Whatever the clocks do, times in the log never decrease, and an expiry that
// was near does not move far by itself.
func TestLedgerTimeUnderRandomJumps(t *testing.T) {
	o, c := clocked(t)
	s := start(t, o)
	rng := rand.New(rand.NewPCG(9, 9))
	last := tick(t, s)
	for range 300 {
		c.jump(time.Duration(rng.Int64N(int64(48*time.Hour))) - 24*time.Hour)
		passed := time.Duration(rng.Int64N(int64(5 * time.Second)))
		c.pass(passed)
		if rng.IntN(20) == 0 {
			expect(t, s.Control(ledger.AdminID, "clock.accept", `{}`), reason.ControlDone)
			last = tick(t, s)
			continue
		}
		at := tick(t, s)
		if at < last || at-last > events.Time((passed+61*time.Second).Microseconds()) {
			t.Fatalf("time went from %s to %s while %s passed", last, at, passed)
		}
		last = at
	}
	s.Stop()
}

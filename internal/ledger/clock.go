package ledger

import (
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
)

// clockJumpMax is how far the wall clock may run ahead of ledger time before a
// person must vouch for it: a clock set to next year would end every permit.
const clockJumpMax = 60 * time.Second

// Clock is where a ledger takes time from. The zero value is the machine's.
type Clock struct {
	Wall func() time.Time
	// Elapsed is the monotonic time since some fixed moment.
	Elapsed func() time.Duration
}

// ledgerClock never runs backwards: max(wall, last + elapsed since), except
// that a wall clock further ahead than clockJumpMax is not followed.
type ledgerClock struct {
	Clock
	mu      sync.Mutex
	base    events.Time
	at      time.Duration
	suspect bool
}

func newClock(c Clock, last events.Time) *ledgerClock {
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Elapsed == nil {
		start := time.Now()
		c.Elapsed = func() time.Duration { return time.Since(start) }
	}
	return &ledgerClock{Clock: c, base: max(last, events.TimeOf(c.Wall())), at: c.Elapsed()}
}

func (c *ledgerClock) now() events.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	elapsed := c.Elapsed()
	if run := elapsed - c.at; run > 0 {
		c.base += events.Time(run.Microseconds())
		c.at += run.Truncate(time.Microsecond)
	}
	wall := events.TimeOf(c.Wall())
	c.suspect = wall > c.base+events.Time(clockJumpMax.Microseconds())
	if wall > c.base && !c.suspect {
		c.base = wall
	}
	return c.base
}

// accept takes the word of a wall clock that showed wall; never backwards.
func (c *ledgerClock) accept(wall events.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wall > c.base {
		c.base, c.at = wall, c.Elapsed()
	}
	c.suspect = false
}

func (c *ledgerClock) wall() events.Time { return max(0, events.TimeOf(c.Wall())) }

// Time is the ledger's time now, as of no event. Safe for concurrent use.
func (l *Ledger) Time() events.Time { return l.clock.now() }

// isSuspect reports whether the wall clock is ahead and not followed, as of now.
func (c *ledgerClock) isSuspect() bool {
	c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspect
}

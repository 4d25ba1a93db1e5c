package audit

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Bracket is a moment, by a clock other than the ledger's, at which the log was
// seen to have a size: what the checkpoint of that size covers is not dated
// after it, and what comes later not before.
type Bracket struct {
	Size uint64
	Seen events.Time
}

// Skew is how far the ledger's clock and another may differ.
const Skew = time.Minute

// clock holds dates against brackets.
type clock struct {
	brackets []Bracket
	skew     events.Time
	compared uint64
	open     string // what could not be told of events verified earlier
}

func newClock(brackets []Bracket, skew time.Duration) clock {
	if skew <= 0 {
		skew = Skew
	}
	return clock{brackets: brackets, skew: events.Time(skew.Microseconds())}
}

// out says why an event's date cannot be, empty where it can.
func (c *clock) out(seq uint64, at events.Time) (expected string) {
	for _, b := range c.brackets {
		switch {
		case seq <= b.Size && at > b.Seen+c.skew:
			return fmt.Sprintf("not after %s, when a log of %d events was seen", b.Seen, b.Size)
		case seq > b.Size && at < b.Seen-c.skew:
			return fmt.Sprintf("not before %s, when the log had %d events", b.Seen, b.Size)
		}
	}
	return ""
}

// dated checks an event's date.
func (v *Verifier) dated(seq uint64, at events.Time) {
	if len(v.clock.brackets) == 0 {
		return
	}
	v.clock.compared++
	if expected := v.clock.out(seq, at); expected != "" {
		v.fault(Fault{Check: "clock", Seq: seq, Expected: expected, Found: at.String()})
	}
}

func (v *Verifier) clockCheck() Check {
	const name = "clock"
	if len(v.clock.brackets) == 0 || v.links {
		return Check{Name: name, Status: NotRun, Open: "dates were not held against another clock: events dated ahead or back, in order, cannot be ruled out"}
	}
	c := v.check(name, fmt.Sprintf("%d dates held against %d moments known from elsewhere", v.clock.compared, len(v.clock.brackets)))
	if c.Open = v.clock.open; c.Open != "" && c.Status == Pass {
		c.Status = Impossible
	}
	return c
}

package ledger

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Stats is what a ledger tells of itself at one moment. Nothing in it names an
// agent, a key, a namespace or a value.
type Stats struct {
	Decisions []DecisionCount // those that happened, by operation and reason
	Retries   uint64          // answered from the log: no event
	Queues    []Queue
	Latency   Histogram // seconds from Submit to the answer, of proposals
	Sync      Histogram // seconds from append to durable, of batches
	Batch     Histogram // jobs in a batch

	Durable, Signed uint64 // seq
	Checkpoints     uint64 // signed since the start
	State           projection.Sizes
	PolicyLoaded    bool
	Damaged         uint64 // answers that failed because a payload does not open
	Store           store.Stats
	FreeBytes       uint64 // on the log's file system
	Gate            int32  // storage: 0 fine, 1 no proposals, 2 nothing at all
	ClockSuspect    bool
}

// DecisionCount is how often an operation came to a reason. Both are of closed
// lists; an operation this release does not know is "unsupported".
type DecisionCount struct {
	Operation string
	Reason    reason.Code
	Allowed   bool
	Count     uint64
}

// Queue is one lane of what waits for the writer.
type Queue struct {
	Lane       string
	Depth, Max int
}

// Histogram counts observations by power of two. Counts[i] is how many were at
// most Bounds[i] and above the bound before; the last count has no bound.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Sum    float64
}

// Stats returns what the ledger tells of itself now. It asks the storage
// engine: for scrapes, not for hot paths. Safe for concurrent use.
func (l *Ledger) Stats() Stats {
	c := &l.counters
	st := Stats{
		Retries: c.retries.Load(), Queues: l.queues(),
		Latency: c.latency.read(1e6), Sync: c.sync.read(1e6), Batch: c.batch.read(1),
		Durable: l.store.Durable(), Signed: l.signed.Load(), Checkpoints: c.checkpoints.Load(),
		State: c.sizes(), PolicyLoaded: c.policy.Load(), Damaged: c.damaged.Load(),
		Gate: l.low.Load(), ClockSuspect: l.clock.isSuspect(),
	}
	st.Store, _ = l.store.Stats() // what a stopped store no longer tells, Checks says
	st.FreeBytes, _ = l.store.Free()
	for o, operation := range countedOperations {
		for r, info := range reason.All() {
			if n := c.decisions[o*len(reason.All())+r].Load(); n > 0 {
				st.Decisions = append(st.Decisions, DecisionCount{operation, info.Code, info.Allowed, n})
			}
		}
	}
	return st
}

func (l *Ledger) queues() []Queue {
	return append(l.intake.depths(),
		Queue{"render", len(l.renders), cap(l.renders)}, Queue{"commit", len(l.pipeline), cap(l.pipeline)})
}

// counters are what the writer and the answers leave behind for Stats: atomics
// that one goroutine writes, so that they cost a few nanoseconds each.
type counters struct {
	start     time.Time       // of the monotonic times here
	decisions []atomic.Uint64 // operation × reason
	retries   atomic.Uint64
	latency   histogram // µs
	sync      histogram // µs
	batch     histogram // jobs

	checkpoints atomic.Uint64
	anchored    atomic.Int64 // when the anchor was last seen to be where the log is

	agents, principals, records, operations, openRuns, doubts, denies atomic.Int64
	policy                                                            atomic.Bool
	nextExpiry                                                        atomic.Int64 // ledger time

	writing   atomic.Int64 // since when the writer has been at one batch; 0 = waiting for work
	answering atomic.Int64 // likewise the answers

	damaged   atomic.Uint64
	damagedMu sync.Mutex
	damagedAt []string // what is known not to open, the first few
}

func (c *counters) init() {
	c.start = time.Now()
	c.decisions = make([]atomic.Uint64, len(countedOperations)*len(reason.All()))
}

// now is a monotonic time, never 0.
func (c *counters) now() int64 { return int64(time.Since(c.start)) + 1 }

// answered counts a proposal that is about to be answered, at.
func (c *counters) answered(j *job, at int64) {
	c.latency.add(uint64(max(0, at-j.at) / 1000))
	if j.outcome != nil && j.outcome.Retry != 0 {
		c.retries.Add(1)
	}
}

// decided counts the decisions among durable events, those on the steps of a
// procedure that is only validated left out.
func (c *counters) decided(sealed []sealedEvent) {
	for i := range sealed {
		d, ok := sealed[i].event.Body.(*events.Decision)
		if !ok || IsStep(d) {
			continue
		}
		row, ok := operationIndex[d.Operation]
		if !ok {
			row = operationIndex[events.Unsupported]
		}
		if i, ok := reasonIndex[d.Reason]; ok {
			c.decisions[row*len(reasonIndex)+i].Add(1)
		}
	}
}

// measure takes the sizes of the state after a batch. The writer calls it.
func (c *counters) measure(s *projection.State) {
	z := s.Sizes()
	c.agents.Store(int64(z.Agents))
	c.principals.Store(int64(z.Principals))
	c.records.Store(int64(z.Records))
	c.operations.Store(int64(z.Operations))
	c.openRuns.Store(int64(z.OpenRuns))
	c.doubts.Store(int64(z.Doubts))
	c.denies.Store(int64(z.Denies))
	c.policy.Store(s.Policy != nil)
	c.nextExpiry.Store(nextExpiry(s))
}

func (c *counters) sizes() projection.Sizes {
	return projection.Sizes{
		Agents: int(c.agents.Load()), Principals: int(c.principals.Load()),
		Records: int(c.records.Load()), Operations: int(c.operations.Load()), OpenRuns: int(c.openRuns.Load()),
		Doubts: int(c.doubts.Load()), Denies: int(c.denies.Load()),
	}
}

// The rows and columns of counters.decisions. Never changed.
var (
	countedOperations = func() []string {
		list := append(wire.Operations(wire.Propose), wire.Operations(wire.Control)...)
		list = append(list, StepOperation, events.Unsupported)
		slices.Sort(list)
		return slices.Compact(list)
	}()
	operationIndex = func() map[string]int {
		index := map[string]int{}
		for i, name := range countedOperations {
			index[name] = i
		}
		return index
	}()
	reasonIndex = func() map[string]int {
		index := map[string]int{}
		for i, info := range reason.All() {
			index[string(info.Code)] = i
		}
		return index
	}()
)

// histogram counts values by power of two: bucket i holds those of at most 2^i
// above 2^(i-1), the last one all that are larger.
type histogram struct {
	counts [27]atomic.Uint64 // up to 2^25, in µs half a minute
	sum    atomic.Uint64
}

func (h *histogram) add(v uint64) {
	i := 0
	if v > 1 {
		i = min(bits.Len64(v-1), len(h.counts)-1)
	}
	h.counts[i].Add(1)
	h.sum.Add(v)
}

func (h *histogram) read(unit float64) Histogram {
	var out Histogram
	for i := range h.counts {
		out.Counts = append(out.Counts, h.counts[i].Load())
		if i < len(h.counts)-1 {
			out.Bounds = append(out.Bounds, float64(uint64(1)<<i)/unit)
		}
	}
	out.Sum = float64(h.sum.Load()) / unit
	return out
}

const (
	damagedNamed = 16 // payloads named in logs and health; the others are counted

	stuckAfter  = 5 * time.Second  // of one batch, or of its sync
	anchorAfter = 10 * time.Second // without a new checkpoint where one is due
)

// spoiled takes note of a payload that does not open. One answer fails for it;
// the ledger serves on, for what it decides does not rest on that payload.
func (l *Ledger) spoiled(err error) {
	l.counters.damaged.Add(1)
	l.counters.damagedMu.Lock()
	defer l.counters.damagedMu.Unlock()
	known := l.counters.damagedAt
	if text := err.Error(); len(known) < damagedNamed && !slices.Contains(known, text) {
		l.counters.damagedAt = append(known, text)
		l.log.Error("a payload does not open; the answer that needs it fails", "error", err)
	}
}

// CheckStatus is what a Check found.
type CheckStatus string

// What a check may find. Only a failed one keeps a ledger from being ready.
const (
	CheckOK   CheckStatus = "ok"
	CheckWarn CheckStatus = "warn"
	CheckFail CheckStatus = "fail"
)

// Check is one of the things that full service takes.
type Check struct {
	Name   string // one of few, for ever the same
	Status CheckStatus
	Detail string // one line; empty where all is well
}

// Checks looks at everything that full service takes. Safe for concurrent use.
func (l *Ledger) Checks() []Check {
	return []Check{
		l.checkStore(), l.checkStorage(), l.checkClock(), l.checkPolicy(), l.checkWriter(), l.checkAnchor(), l.checkPayloads(),
	}
}

// Health says what keeps the ledger from full service; empty when nothing
// does. Safe for concurrent use.
func (l *Ledger) Health() []string {
	var faults []string
	for _, c := range l.Checks() {
		if c.Status != CheckOK {
			faults = append(faults, c.Detail)
		}
	}
	return faults
}

func (l *Ledger) checkStore() Check {
	if err := errors.Join(l.Err(), l.store.Err()); err != nil {
		return Check{"store", CheckFail, "nothing is decided any more: " + oneLine(err)}
	}
	return Check{"store", CheckOK, ""}
}

func (l *Ledger) checkStorage() Check {
	switch l.low.Load() {
	case 0:
		return Check{"storage", CheckOK, ""}
	case 1:
		return Check{"storage", CheckFail, string(reason.StorageLow) + ": proposals are refused until there is free space"}
	}
	return Check{"storage", CheckFail, string(reason.StorageLow) + ": nothing is written until there is free space"}
}

func (l *Ledger) checkClock() Check {
	if l.clock.isSuspect() {
		return Check{"clock", CheckFail, "the wall clock is more than a minute ahead of ledger time and not followed; an admin may accept it with clock.accept"}
	}
	return Check{"clock", CheckOK, ""}
}

func (l *Ledger) checkPolicy() Check {
	if !l.counters.policy.Load() {
		return Check{"policy", CheckFail, "no policy is in force: every proposal is denied with " + string(reason.NoPolicy)}
	}
	return Check{"policy", CheckOK, ""}
}

// checkWriter finds a batch that takes too long: the disk hangs, or we do.
func (l *Ledger) checkWriter() Check {
	c := &l.counters
	now := c.now()
	for _, part := range []struct {
		since *atomic.Int64
		what  string
	}{{&c.answering, "a sync of the log"}, {&c.writing, "a batch"}} {
		if since := part.since.Load(); since != 0 && time.Duration(now-since) > stuckAfter {
			return Check{"writer", CheckFail, fmt.Sprintf("%s has not ended for %d s", part.what, (now-since)/int64(time.Second))}
		}
	}
	return Check{"writer", CheckOK, ""}
}

func (l *Ledger) checkAnchor() Check {
	behind := time.Duration(l.counters.now() - l.counters.anchored.Load())
	if behind > anchorAfter && l.signed.Load() < l.Durable() {
		return Check{"anchor", CheckFail, fmt.Sprintf("the anchor has not moved for %d s: what was answered since then could be lost unseen", int64(behind.Seconds()))}
	}
	return Check{"anchor", CheckOK, ""}
}

func (l *Ledger) checkPayloads() Check {
	l.counters.damagedMu.Lock()
	defer l.counters.damagedMu.Unlock()
	if known := l.counters.damagedAt; len(known) > 0 {
		return Check{"payloads", CheckWarn, fmt.Sprintf("%d answers failed: %s; run verify", l.counters.damaged.Load(), strings.Join(known, "; "))}
	}
	return Check{"payloads", CheckOK, ""}
}

// Age is for how long event seq has been in the log, by ledger time; 0 where
// there is none yet.
func (l *Ledger) Age(seq uint64) time.Duration {
	if seq == 0 || seq > l.Durable() {
		return 0
	}
	e, _, err := l.event(seq)
	if err != nil {
		return 0
	}
	return max(0, time.Duration(l.clock.now()-e.Time)*time.Microsecond)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

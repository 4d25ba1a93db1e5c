package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// answerAll waits for each batch's sync, in order, and only then lets anyone
// know of it: connections are cut, callers answered, followers poked.
func (l *Ledger) answerAll() {
	for {
		select {
		case b, more := <-l.pipeline:
			if !more {
				for id := range l.waiters.byRun {
					l.release(id)
				}
				return
			}
			l.answerBatch(b)
			l.intake.answered(len(b.jobs))
		case w := <-l.waiters.expired:
			l.expire(w)
		}
	}
}

func (l *Ledger) answerBatch(b *batch) {
	now := l.counters.now()
	l.counters.answering.Store(now)
	l.counters.batch.add(uint64(len(b.jobs)))
	b.turnAway()
	durable := l.settle(b)
	l.intake.settled()
	if durable && b.commit != nil {
		now = l.counters.now()
		l.counters.sync.add(uint64(now-b.at) / 1000)
	}
	if durable {
		l.counters.decided(b.sealed)
		l.dispatch(b)
	}
	for _, j := range b.jobs {
		if j.refused != "" {
			continue
		}
		if !durable {
			j.finish(notKnown)
			continue
		}
		if j.proposal != nil {
			l.counters.answered(j, now)
		}
		l.answer(j)
	}
	if durable && len(b.sealed) > 0 {
		l.tell(b.runs)
		l.wake()
	}
	l.counters.answering.Store(0)
	b.leave()
}

// dispatch sends what a durable batch has started, and says what it denies.
func (l *Ledger) dispatch(b *batch) {
	if l.Hooks.State != nil && b.state != nil {
		l.Hooks.State(b.state)
	}
	if l.Hooks.Dispatch != nil {
		for i := range b.execs {
			l.Hooks.Dispatch(b.execs[i].Action, b.execs[i].Encode())
		}
	}
}

// turnAway answers those that were not judged. They need no sync.
func (b *batch) turnAway() {
	if b.refused == 0 {
		return
	}
	for _, j := range b.jobs {
		if j.refused != "" {
			j.finish(Answer{Reply: wire.Error(j.refused), Reason: j.refused, Refused: true})
		}
	}
}

// settle reports whether everything in b, and all that b's answers rest on, is
// durable.
func (l *Ledger) settle(b *batch) bool {
	if b.failed || l.Err() != nil {
		return false
	}
	if b.commit == nil {
		return true
	}
	if err := b.commit.Wait(); err != nil {
		l.fail(fmt.Errorf("sync: %w", err))
		return false
	}
	l.register(b)
	if l.options.AnchorSync {
		if err := l.checkpoint(); err != nil {
			l.fail(err)
			return false
		}
	}
	return true
}

// register lets the registry follow a durable batch and cuts the connections
// that it ends.
func (l *Ledger) register(b *batch) {
	for i := range b.sealed {
		if id := l.registry.apply(b.sealed[i].event.Body); id != "" && l.Hooks.Cut != nil {
			l.Hooks.Cut(id)
		}
	}
}

func (l *Ledger) wake() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
	if l.Hooks.Durable != nil {
		l.Hooks.Durable(l.store.Durable())
	}
}

func (l *Ledger) answer(j *job) {
	if j.answer == nil && j.caller == nil && j.spoiled == nil && !j.erases() && j.newSeal() == 0 {
		return
	}
	if j.report != nil {
		reply := wire.Ack()
		if j.told != "" {
			reply = wire.Error(j.told)
		}
		j.finish(Answer{Reply: reply, Reason: j.told})
		return
	}
	if j.proposal == nil {
		select {
		case l.renders <- j:
		default:
			j.finish(Answer{Reply: wire.Error(reason.Overloaded), Reason: reason.Overloaded, Refused: true})
		}
		return
	}
	r, err := l.reply(j)
	if err != nil {
		// The decision stands in the log, but what was asked for cannot be
		// given: no value, no allowance. Only a payload may be at fault.
		if errors.Is(err, ErrPayload) {
			l.spoiled(err)
		} else {
			l.fail(err)
		}
		j.finish(notKnown)
		return
	}
	if j.run != nil { // a submit whose run was admitted
		wait := j.proposal.Request.Wait
		if wait > 0 && !atRest(&j.run.run) && l.hold(j, r, time.Duration(wait)*time.Millisecond) {
			return
		}
		r.Run = l.results(j.run, j.outcome.Retry == 0, "")
	}
	if l.handErasure(j, r) {
		return
	}
	j.finish(l.answerIn(j, r))
}

func answerOf(r *wire.Reply) Answer {
	return Answer{Reply: r.Encode(), Reason: reason.Told(reason.Code(r.Decision.Reason))}
}

// answerIn is answerOf, for an arrival in room that the next answer takes.
func (l *Ledger) answerIn(j *job, r *wire.Reply) Answer {
	if j.caller == nil {
		return answerOf(r)
	}
	reply := r.EncodeIn(l.replyRoom)
	if cap(reply) <= replyRoomMax {
		l.replyRoom = reply
	}
	return Answer{Reply: reply, Reason: reason.Told(reason.Code(r.Decision.Reason))}
}

// render finishes queries apart from the proposals' answers: a proof or a page
// of events takes its time.
func (l *Ledger) render() {
	for j := range l.renders {
		j.finish(Answer{Reply: j.render(), Reason: j.told})
	}
}

func (l *Ledger) reply(j *job) (*wire.Reply, error) {
	if j.spoiled != nil {
		return nil, j.spoiled
	}
	if j.outcome.Retry != 0 {
		return l.recorded(j.outcome.Retry)
	}
	o, r := j.outcome, &l.told
	if !passing(o.Decision.Operation) { // may have to wait
		r = &told{}
	}
	r.Reply = wire.Reply{Decision: o.Decision, Seq: j.sealed.event.Seq, EventID: j.sealed.event.ID, Hash: j.sealed.leaf, Faults: o.Faults, Steps: r.Steps[:0]}
	r.Steps = slices.Grow(r.Steps, len(o.Steps))
	for _, step := range o.Steps {
		r.Steps = append(r.Steps, wire.Step{StepID: step.StepID, Action: step.Action, Reason: reason.Code(step.Reason)})
	}
	for _, a := range o.Applied {
		r.Documents = append(r.Documents, wire.Document(a))
	}
	switch {
	case o.Read != nil:
		r.Record = &r.record
		return &r.Reply, l.showReading(r.Record, o.Read)
	case o.Erased != nil:
		r.Erased = o.Erased
		if len(o.Effects) > 0 {
			r.Erased.Under = r.Seq + 1
		}
	case o.Deny != nil && o.Decision.Allowed:
		r.Epoch, r.InFlight = o.Deny.Epoch, j.inFlight
	case len(o.Effects) > 0 && o.Decision.Operation != "apply":
		if showChanged(&r.record, o.Effects[len(o.Effects)-1].Body) {
			r.Record = &r.record
		}
		if w, ok := j.proposal.Request.Body.(*wire.MemoryWrite); ok {
			r.Record.Value = w.Value
		}
	}
	return &r.Reply, nil
}

// told is a reply, and room for the record that is in most.
type told struct {
	wire.Reply
	record wire.Record
}

// showReading makes r the record that was read.
func (l *Ledger) showReading(r *wire.Record, read *Reading) error {
	rec := read.Record
	value := read.Combined
	if value == nil {
		var err error
		if value, err = l.value(rec); err != nil {
			return err
		}
	}
	*r = wire.Record{
		Namespace: rec.Namespace, Key: rec.Key, Value: value, Owner: rec.Owner,
		Visibility: rec.Visibility, Class: string(read.Class), Revision: rec.Revision, Expires: rec.Expires, RunID: rec.RunID, Contributors: read.Contributors,
	}
	return nil
}

// changedRecord is the record that a memory event leaves, nil for any other.
func changedRecord(b events.Body) *wire.Record {
	r := &wire.Record{}
	if !showChanged(r, b) {
		return nil
	}
	return r
}

// showChanged is changedRecord in r, which it leaves alone where there is none.
func showChanged(r *wire.Record, b events.Body) bool {
	var rec *events.Record
	var expires events.Time
	runID := ""
	switch b := b.(type) {
	case *events.MemoryWritten:
		rec, expires, runID = &b.Record, b.Expires, b.RunID
	case *events.MemoryDeleted:
		rec = &b.Record
	default:
		return false
	}
	*r = wire.Record{Namespace: rec.Namespace, Key: rec.Key, Owner: rec.Owner, Visibility: rec.Visibility, Class: rec.Class, Revision: rec.Revision, Expires: expires, RunID: runID}
	return true
}

// value is a record's canonical value, from its payload.
func (l *Ledger) value(rec *projection.Record) ([]byte, error) {
	if v := l.values.get(rec.Written); v != nil {
		return v, nil
	}
	at, age := rec.Decision, l.values.age()
	if rec.OwnPayload {
		at = rec.Written
	}
	b, ok, err := l.payload(at)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("payload %d of a live record is missing: %w", at, ErrPayload)
	}
	if !rec.OwnPayload {
		if b, err = requestValue(b); err != nil {
			return nil, fmt.Errorf("payload %d: %w: %w", at, ErrPayload, err)
		}
	}
	l.values.put(rec.Written, b, age)
	return b, nil
}

// requestValue takes the member value out of a canonical memory request.
func requestValue(request []byte) ([]byte, error) {
	v, err := events.ParseJSON(request)
	if err != nil {
		return nil, err
	}
	value, ok := v.Get("value")
	if !ok {
		return nil, fmt.Errorf("the request has no value")
	}
	return value.AppendCanonical(nil), nil
}

// recorded rebuilds the reply to an operation decided before, from the log:
// the same receipt and outcome, never a value.
func (l *Ledger) recorded(seq uint64) (*wire.Reply, error) {
	e, leaf, err := l.event(seq)
	if err != nil {
		return nil, err
	}
	d, ok := e.Body.(*events.Decision)
	if !ok {
		return nil, fmt.Errorf("event %d is no decision", seq)
	}
	r := &wire.Reply{Decision: d, Seq: seq, EventID: e.ID, Hash: leaf}
	if r.Steps, err = l.recordedSteps(seq, d); err != nil {
		return nil, err
	}
	if seq == l.reads.Durable() {
		return r, nil
	}
	next, _, err := l.event(seq + 1)
	if _, gone := next.Body.(*events.MemoryExpired); gone && next.Cause == seq { // what was there before
		next, _, err = l.event(seq + 2)
	}
	if err != nil {
		return nil, err
	}
	if erased, ok := next.Body.(*events.PayloadErased); ok && next.Cause == seq {
		r.Erased = &wire.Erased{Seqs: erased.Seqs, Owner: erased.Owner, Before: erased.Before, Under: next.Seq, Pending: l.erasedTo.Load() < next.Seq}
	}
	if next.Cause == seq && d.Operation != "apply" {
		r.Record = changedRecord(next.Body)
	}
	return r, nil
}

// recordedSteps reads the step decisions that stand before an SOP's own.
func (l *Ledger) recordedSteps(seq uint64, whole *events.Decision) ([]wire.Step, error) {
	if whole.SOPID == "" {
		return nil, nil
	}
	var steps []wire.Step
	for at := seq - 1; at > 0; at-- {
		e, _, err := l.event(at)
		if err != nil {
			return nil, err
		}
		d, ok := e.Body.(*events.Decision)
		if !ok || d.Subject != whole.Subject || d.SOPID != whole.SOPID || !IsStep(d) {
			break
		}
		steps = append(steps, wire.Step{StepID: d.StepID, Action: d.Action, Reason: reason.Code(d.Reason)})
	}
	for i, j := 0, len(steps)-1; i < j; i, j = i+1, j-1 {
		steps[i], steps[j] = steps[j], steps[i]
	}
	return steps, nil
}

// IsStep tells an SOP step's decision from one on a whole procedure: its
// resource is sop:step, though the step id itself may be empty.
func IsStep(d *events.Decision) bool {
	return d.Operation == "sop.validate" && d.SOPID != "" && d.Resource != d.SOPID
}

func (l *Ledger) event(seq uint64) (events.Event, events.Hash, error) {
	b, err := l.reads.Event(seq)
	if err != nil {
		return events.Event{}, events.Hash{}, err
	}
	e, err := events.Parse(b)
	return e, events.LeafHash(b), err
}

const (
	checkpointEvery  = 100 * time.Millisecond
	checkpointEvents = 256
	checkpointGap    = 80 * time.Millisecond // its syncs compete with the log's own
	noteEvery        = time.Second
)

// checkpoints follows the durable log with signed checkpoints and the anchor,
// off the answers' path, and announces the latest once a second.
func (l *Ledger) checkpoints(ctx context.Context) {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	announced, sent, last := uint64(0), time.Time{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-l.poke:
			if l.store.Durable()-l.signed.Load() < checkpointEvents || time.Since(last) < checkpointGap {
				continue
			}
		}
		if l.Err() != nil {
			return
		}
		if err := l.checkpoint(); err != nil {
			l.fail(err)
			return
		}
		last = time.Now()
		if size := l.signed.Load(); size != announced && time.Since(sent) >= noteEvery {
			announced, sent = size, time.Now()
			if l.Hooks.Note != nil {
				l.Hooks.Note(l.Checkpoint())
			}
		}
	}
}

// checkpoint reads the new events back, re-hashes them, signs the tree over
// the whole durable log, and advances the anchor. What is signed is on disk.
func (l *Ledger) checkpoint() error {
	l.signing.Lock()
	defer l.signing.Unlock()
	size, signed := l.store.Durable(), l.signed.Load()
	if size == signed {
		l.counters.anchored.Store(l.counters.now())
		return nil
	}
	if err := l.store.ReadBack(signed+1, size); err != nil {
		return fmt.Errorf("read back %d to %d: %w", signed+1, size, err)
	}
	root, err := l.store.Root(size)
	if err != nil {
		return err
	}
	signers, err := l.keys.at(size)
	if err != nil {
		return err
	}
	text, err := store.SignCheckpoint(signers[0], store.Checkpoint{Origin: l.origin, Size: size, Root: root}, signers[1:]...)
	if err != nil {
		return err
	}
	if err := l.anchor.Advance(text); err != nil {
		return fmt.Errorf("anchor: %w", err)
	}
	if err := l.keys.forget(size); err != nil {
		return err
	}
	l.lastNote.Store(&text)
	l.signed.Store(size)
	l.counters.checkpoints.Add(1)
	l.counters.anchored.Store(l.counters.now())
	return nil
}

// Checkpoint is the last signed note, nil before the first.
func (l *Ledger) Checkpoint() []byte {
	if text := l.lastNote.Load(); text != nil {
		return *text
	}
	return nil
}

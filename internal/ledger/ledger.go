// Package ledger is the single writer. It takes proposals, judges each against
// the state left by the one before it, seals the outcome into the hash-chained
// log, syncs it to disk, and only then answers.
//
// First call: Init once, then Open, then Run in a goroutine of its own, then
// Submit from any. Decide is the judgement itself, a pure function.
//
// It promises that an answer leaves only after its events are durable; that
// every judged proposal leaves its decision in the log, allowed or denied; and
// that after any failure of the store nothing more is decided: Run returns the
// error, waiting callers get not_known_committed, and the next Open reads what
// is really on disk.
package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	inFlightMax    = 4    // batches syncing while the next is decided
	renderQueueMax = 1024 // queries answered from the durable log
	renderers      = 2
	readersMax     = 4 // goroutines that decode ahead of the writer

	storageEvery = 100 * time.Millisecond
	stuckMax     = 5 * time.Second // for calls into a store that has failed
)

// Answer is what a caller gets, once. Reply is the whole JSON; Reason what it
// says. A reason from the door or of an unknown outcome comes with an error
// reply and no seq.
type Answer struct {
	Reply   []byte
	Reason  reason.Code
	Refused bool // at the door, unjudged
}

// job is one thing for the writer to do: judge a proposal, take a report, look
// at the state, note what happened at the door, or look after open runs. Exactly
// one of the five is set.
type job struct {
	proposal *Proposal
	report   *wire.Report
	query    func(*projection.State) func() []byte
	note     events.Body
	tick     bool
	handler  string // whose report it is
	answer   func(Answer)
	at       int64  // when it was submitted
	bytes    int    // it holds while it waits
	caller   Caller // of an arrival, in place of answer
	isRead   sync.Once
	reading  atomic.Bool // a reader has taken it and is not done with it

	late     bool        // it has waited too long
	refused  reason.Code // before judgement
	outcome  *Outcome
	sealed   *sealedEvent    // the outcome's decision, unless it is a retry
	run      *runView        // of sop.submit, as the batch leaves it
	inFlight []wire.InFlight // what an emergency deny came too late for
	told     reason.Code     // of a report or a run's end, what the answer says
	render   func() []byte
	spoiled  error // what it rests on does not open: no outcome
}

// Ledger is an open ledger. Its fields fall into three parts.
type Ledger struct {
	// Set by Open, never changed.
	store    *store.Store // nil where a Stepper moves the log
	reads    Log          // the store, or a Stepper's log
	anchor   *store.Anchor
	sealer   *sealer
	payloads *Payloads
	keys     *ring // nil where a Stepper moves the log
	clock    *ledgerClock
	log      *slog.Logger
	options  Options
	origin   string
	name     string

	// Owned by the goroutine of Run.
	state      *projection.State
	recent     []prior               // requests with an operation id, in order, until durable
	flying     []*batch              // that sealed something, until they are durable
	procedures map[string]*procedure // of open runs
	flights    flights
	stateKey   []byte // what is handed over is made with it
	handed     uint64 // seq up to which changes of the state were handed over
	room       room   // for the next batch
	encoder    events.Encoder

	waiters   waiters // owned by the goroutine of answerAll
	told      told    // the same: the last reply that did not have to wait
	replyRoom []byte  // the same: its bytes

	// Shared.
	intake    intake
	pipeline  chan *batch
	renders   chan *job     // queries to finish
	erasures  chan *erasing // to be carried out
	erasing   atomic.Int64  // how many are judged and not carried out
	erasedTo  atomic.Uint64 // event up to which all are
	poke      chan struct{} // something new is durable
	stopped   chan struct{} // Run has returned
	failure   atomic.Pointer[error]
	low       atomic.Int32 // storage: 0 fine, 1 no proposals, 2 nothing at all
	registry  *registry
	presence  presence
	lastState atomic.Pointer[[]byte] // see ControlState
	values    valueCache
	signed    atomic.Uint64 // size of the last anchored checkpoint
	lastNote  atomic.Pointer[[]byte]
	signing   sync.Mutex // one checkpoint at a time
	counters  counters
	changes   chan handed
	behind    behind

	Hooks Hooks // set before Run
}

// batch is what one synced write carries, and who waits for it.
type batch struct {
	jobs    []*job
	commit  *store.Commit // nil where nothing was written
	at      int64         // when it was appended
	sealed  []sealedEvent
	execs   []wire.Exec // effects that have started
	runs    []runView   // that it changed
	state   []byte      // the emergency denies, where it changed them
	refused int         // jobs that were not judged
	failed  bool        // nothing of it may be told
	spare   spare
}

type sealedEvent struct {
	event events.Event
	leaf  events.Hash
}

// Submit queues a proposal. The empty code means that answer will be called,
// once, from another goroutine; any other that it was refused at the door,
// unjudged. answer may be nil. The caller must not change p any more.
func (l *Ledger) Submit(p *Proposal, answer func(Answer)) reason.Code {
	j := &job{proposal: p, answer: answer}
	if p.Request != nil {
		j.bytes = len(p.Request.Canonical)
	}
	return l.submit(j)
}

// Arrival is a proposal as it came.
type Arrival struct {
	Proposal        // its lane and subject set
	Bytes    int    // that it holds while it waits
	Caller   Caller // whose it is

	job job // room for it
}

// Caller is who brings an Arrival. It is called from other goroutines.
type Caller interface {
	// Read completes the proposal when its turn has come. It is called once, if
	// at all. A code refuses the proposal, which is answered with it, unjudged.
	Read(*Proposal) reason.Code
	// Answer is called once. The answer's Reply is the ledger's again when it returns.
	Answer(Answer)
	// Done says that nothing looks at the Arrival any more: it may be used again.
	// It is not called for each.
	Done()
}

// Receive queues a proposal to be read when its turn comes. Otherwise it is as
// Submit. Until Done the caller must not change a any more.
func (l *Ledger) Receive(a *Arrival) reason.Code {
	a.job = job{proposal: &a.Proposal, caller: a.Caller, bytes: a.Bytes}
	return l.submit(&a.job)
}

func (l *Ledger) submit(j *job) reason.Code {
	level, lane := int32(1), &l.intake.proposals
	if j.proposal.Lane == wire.Control {
		level, lane = 2, &l.intake.controls
	}
	if l.low.Load() >= level {
		return reason.StorageLow
	}
	return l.enqueue(lane, j.proposal.Subject, j)
}

// Ask runs look in the writer's goroutine, on a state that includes every
// proposal answered before; what it returns is called, and the bytes handed to
// answer, once all that is durable, in a goroutine that answers queries only.
// look must be quick and must not keep the state. Who asks is from.
func (l *Ledger) Ask(from string, look func(*projection.State) func() []byte, answer func(Answer)) reason.Code {
	return l.enqueue(&l.intake.questions, from, &job{query: look, answer: answer})
}

// Note appends an event that no proposal caused: what the server or the door
// turned away.
func (l *Ledger) Note(b events.Body) reason.Code {
	if l.low.Load() >= 2 {
		return reason.StorageLow
	}
	return l.enqueue(&l.intake.controls, events.System, &job{note: b})
}

func (l *Ledger) enqueue(lane *fairQueue, from string, j *job) reason.Code {
	j.at = l.counters.now()
	return l.intake.put(lane, from, j)
}

// Run alone changes the log. In one goroutine it repeats:
//
//	gather   what came while the last batch was syncing
//	judge    each proposal against the state left by the one before it
//	seal     the outcomes into events, applied to the state
//	commit   them in one batch, whose sync is waited for elsewhere, in order
//
// and in another answers what has been synced. Run returns nil after ctx ends
// and everything accepted is answered; any other return is the failure after
// which the log can only be opened anew.
func (l *Ledger) Run(ctx context.Context) error {
	defer close(l.stopped)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		l.serve(ctx)
	}()
	select {
	case <-finished:
		return l.shut()
	case <-l.store.Stopped():
		l.fail(l.store.Err())
	}
	select {
	case <-finished:
	case <-time.After(stuckMax): // a call into the failed store may never return
		l.refuseRest()
		return l.Err()
	}
	return l.shut()
}

// serve is Run but for the watch over the store.
func (l *Ledger) serve(ctx context.Context) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l.answerAll()
	}()
	background, stop := context.WithCancel(context.Background())
	var followers sync.WaitGroup
	for _, follow := range []func(context.Context){l.checkpoints, l.watchStorage, l.watchRuns, l.writeBehind} {
		followers.Go(func() { follow(background) })
	}
	for range renderers {
		followers.Go(l.render)
	}
	for range max(1, min(readersMax, runtime.NumCPU()/2)) {
		followers.Go(l.intake.read)
	}
	erased := make(chan struct{})
	go func() {
		defer close(erased)
		l.eraseAll()
	}()
	l.write(ctx)
	l.intake.close()
	close(l.pipeline)
	<-answered
	close(l.erasures)
	<-erased
	close(l.renders)
	stop()
	followers.Wait()
	l.refuseRest()
}

// write is the writer's loop. It ends when ctx has ended and nothing is queued,
// or with the first failure.
func (l *Ledger) write(ctx context.Context) {
	for {
		jobs := l.gather(ctx)
		if jobs == nil {
			return
		}
		b := &batch{jobs: jobs}
		b.spare.users.Add(1) // answerAll
		l.counters.writing.Store(l.counters.now())
		if err := l.judge(b); err != nil {
			b.failed = true
			l.fail(err)
		}
		l.intake.handed(len(jobs))
		l.pipeline <- b
		l.counters.writing.Store(0)
		if b.failed {
			return
		}
	}
}

// gather waits until something is queued and takes it, in fair order. It returns
// nil when ctx has ended and nothing is queued.
func (l *Ledger) gather(ctx context.Context) []*job {
	for {
		jobs, closed := l.intake.take(l.counters.now())
		if jobs != nil || closed {
			return jobs
		}
		select {
		case <-l.intake.wake:
		case <-ctx.Done():
			l.intake.close()
		}
	}
}

// readOnce reads a proposal that has not been read yet, or waits for whoever is
// reading it.
func (j *job) readOnce() {
	if j.caller != nil {
		j.isRead.Do(func() { j.refused = j.caller.Read(j.proposal) })
	}
}

// turnAway reports whether j is not to be judged: it comes too late, or was
// refused when it was read.
func (j *job) turnAway() bool {
	if j.late {
		j.isRead.Do(func() {}) // nobody reads it any more
		j.refused = reason.Overloaded
	} else {
		j.readOnce()
	}
	return j.refused != ""
}

// judge decides and seals every job of b and hands the events to the store.
// After an error nothing of b may be told.
func (l *Ledger) judge(b *batch) error {
	if err := l.Err(); err != nil {
		return err
	}
	w, err := l.judgeAll(b)
	if err != nil {
		return err
	}
	defer w.release()
	if len(w.sealed) == 0 {
		return nil
	}
	b.at = l.counters.now()
	commit, err := l.store.Append(w.batch)
	if err != nil {
		return fmt.Errorf("append %d events after %d: %w", len(w.sealed), w.batch.First-1, err)
	}
	b.commit = commit
	return l.handOver()
}

// judgeAll decides and seals every job of b.
func (l *Ledger) judgeAll(b *batch) (*sealing, error) {
	durable := l.reads.Durable()
	settled, _ := l.recentAt(durable + 1)
	l.recent = slices.Delete(l.recent, 0, settled)
	for len(l.flying) > 0 && l.flying[0].last() <= durable {
		l.flying[0].leave()
		l.flying = slices.Delete(l.flying, 0, 1)
	}
	w := newSealing(l, len(b.jobs))
	for _, j := range b.jobs {
		if j.turnAway() || l.tooManyErasures(j) {
			b.refused++
			continue
		}
		if err := l.judgeOne(w, j); err != nil {
			return nil, err
		}
		if err := l.landed(w); err != nil {
			return nil, err
		}
	}
	if err := w.expire(); err != nil {
		return nil, err
	}
	l.counters.measure(l.state)
	b.sealed = w.sealed
	if len(w.sealed) > 0 {
		l.flying = append(l.flying, b)
		b.spare.users.Add(1)
	}
	w.handOver(b)
	return w, nil
}

func (l *Ledger) judgeOne(w *sealing, j *job) error {
	switch {
	case j.query != nil:
		j.render = j.query(l.state)
		return nil
	case j.note != nil:
		return w.add(events.Event{Time: l.now(), Agent: events.System, Body: j.note}, nil)
	case j.report != nil:
		return l.judgeReport(w, j)
	case j.tick:
		return l.tick(w)
	}
	p := j.proposal
	now := l.now()
	if err := l.fillIn(w, p, now); err != nil {
		return j.spoil(err)
	}
	p.Now = now
	j.outcome = newOutcome()
	j.outcome.Decide(l.state, p)
	if j.outcome.Retry != 0 {
		l.showRun(j)
		return nil
	}
	if deny := j.outcome.Deny; deny != nil && j.outcome.Decision.Allowed {
		j.inFlight = inFlight(l.state, deny)
	}
	if err := w.canSeal(p, j.outcome); err != nil {
		return j.spoil(err)
	}
	if b, accepted := j.clockAccepted(); accepted {
		l.clock.accept(b.Wall)
	}
	if err := l.keepKey(p, j.outcome); err != nil {
		return err
	}
	if err := w.outcome(p, j.outcome, now); err != nil {
		return err
	}
	if l.keys != nil && keysChanged(j.outcome) {
		if err := l.keys.follow(l.state); err != nil {
			return err
		}
		if err := l.useSeal(p.fresh); err != nil {
			return err
		}
	}
	j.sealed = w.decision
	if l.store != nil && (j.erases() || j.newSeal() != 0) {
		l.erasing.Add(1)
	}
	if run := l.state.Run(j.outcome.Decision.RunID); run != nil && j.outcome.Decision.Allowed {
		if err := l.advance(w, run); err != nil {
			return err
		}
		l.showRun(j)
	}
	return nil
}

// showRun keeps for a submit's answer how its run stands.
func (l *Ledger) showRun(j *job) {
	p := j.proposal
	if _, ok := p.Request.Body.(*wire.SOPSubmit); !ok {
		return
	}
	decision := j.outcome.Retry
	if decision == 0 {
		decision = j.sealed.event.Seq
	}
	if run := l.state.RunAt(decision); run != nil {
		v := l.view(run)
		j.run = &v
	}
}

// spoil takes the outcome away from a job that rests on a payload or data key
// that does not open: nothing of it is in the log or the state, and it is
// answered not_known_committed. Any other error is the ledger's end.
func (j *job) spoil(err error) error {
	if !errors.Is(err, ErrPayload) {
		return err
	}
	j.outcome, j.spoiled = nil, err
	return nil
}

func (j *job) clockAccepted() (*events.ClockAccepted, bool) {
	for _, e := range j.outcome.Effects {
		if b, ok := e.Body.(*events.ClockAccepted); ok {
			return b, true
		}
	}
	return nil, false
}

// fillIn adds what only the writer knows and the log will hold: the request
// first recorded under the operation id, the wall clock an admin accepts, and what a
// run that is decided now is called.
func (l *Ledger) fillIn(w *sealing, p *Proposal, now events.Time) error {
	if p.Request == nil {
		return nil
	}
	switch b := p.Request.Body.(type) {
	case *wire.ClockAccept:
		p.Wall = l.clock.wall()
	case *wire.KeyRotate:
		if err := l.fillInKey(p, b.Key, false); err != nil {
			return err
		}
	case *wire.KeyRetire:
		if err := l.fillInKey(p, "", b.Key == events.KeyCheckpoint); err != nil {
			return err
		}
	case *wire.SOPSubmit:
		id, err := l.newRunID(now)
		if err != nil {
			return err
		}
		p.RunID, p.Observed = id, l.missing(actionsOf(b.Steps))
	}
	for _, seq := range Beside(p.Request) {
		e, err := l.sealedOrDurable(w, seq)
		if err != nil {
			return err
		}
		p.Beside = append(p.Beside, e)
	}
	op, used := l.state.Operation(p.Subject, p.Request.OperationID)
	if !used || p.Request.Operation == "memory.read" {
		return nil
	}
	if l.state.AnyErased() {
		e, err := l.sealedOrDurable(w, op.Seq)
		if err != nil {
			return err
		}
		if p.First = firstOf(p, e); p.First != nil && l.state.ErasedBy(p.First) != 0 {
			return nil
		}
	}
	var first prior
	if at, ok := l.recentAt(op.Seq); ok {
		first = l.recent[at]
	} else {
		e, _, err := l.event(op.Seq)
		if err != nil {
			return err
		}
		if d, isDecision := e.Body.(*events.Decision); isDecision {
			first.subject, first.id = d.Subject, d.OperationID
		}
		if first.request, _, err = l.payload(op.Seq); err != nil {
			return err
		}
	}
	if first.subject == p.Subject && first.id == p.Request.OperationID { // else a hit by chance, which is refused
		p.Prior = first.request
	}
	return nil
}

// firstOf is e where it is the decision that p's operation id was first used for,
// and no hit by chance.
func firstOf(p *Proposal, e *events.Event) *events.Event {
	if e == nil {
		return nil
	}
	if d, ok := e.Body.(*events.Decision); !ok || d.Subject != p.Subject || d.OperationID != p.Request.OperationID {
		return nil
	}
	return e
}

// prior is a request and the operation id that it was first made under, with
// decision seq.
type prior struct {
	seq         uint64
	subject, id string
	request     []byte
}

// recentAt is where in recent the decision seq is, or would be.
func (l *Ledger) recentAt(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(l.recent, seq, func(p prior, seq uint64) int { return cmp.Compare(p.seq, seq) })
}

// payload opens the payload beside a durable event, which must be the one that
// the event commits to.
func (l *Ledger) payload(seq uint64) (b []byte, ok bool, err error) {
	salt, b, ok, err := l.payloads.Open(seq)
	if err != nil || !ok {
		return nil, false, err
	}
	e, _, err := l.event(seq)
	if err != nil {
		return nil, false, err
	}
	if events.PayloadCommitment(salt, b) != e.Payload {
		return nil, false, fmt.Errorf("payload %d is not the one its event commits to: %w", seq, ErrPayload)
	}
	return b, true, nil
}

func (l *Ledger) now() events.Time { return max(l.clock.now(), l.state.Time) }

func (l *Ledger) fail(err error) {
	if l.failure.CompareAndSwap(nil, &err) {
		l.log.Error("the ledger stops", "error", err)
		l.intake.close()
	}
}

// Err is the failure that stopped the ledger, or nil.
func (l *Ledger) Err() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// refuseRest answers what was queued too late.
func (l *Ledger) refuseRest() {
	for {
		jobs, _ := l.intake.take(0)
		if jobs == nil {
			return
		}
		for _, j := range jobs {
			j.finish(notKnown)
		}
	}
}

var notKnown = Answer{Reply: wire.Error(reason.NotKnownCommitted), Reason: reason.NotKnownCommitted}

func (j *job) finish(a Answer) {
	switch {
	case j.caller != nil:
		j.caller.Answer(a)
	case j.answer != nil:
		j.answer(a)
	}
}

// shut leaves a checkpoint, the anchor and the whole state behind, unless the
// store has failed.
func (l *Ledger) shut() error {
	if err := l.Err(); err != nil {
		return errors.Join(err, l.store.Close())
	}
	err := l.checkpoint()
	if err == nil {
		err = l.saveState()
	}
	return errors.Join(err, l.store.Close())
}

// Done is closed when Run has returned.
func (l *Ledger) Done() <-chan struct{} { return l.stopped }

// watchStorage looks at the free space, and at whether the directory is still
// there, often enough that a burst does not fill the disk in between.
func (l *Ledger) watchStorage(ctx context.Context) {
	tick := time.NewTicker(storageEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := l.store.Check(); err != nil {
			l.fail(err)
			return
		}
		l.gateStorage()
	}
}

func (l *Ledger) gateStorage() {
	free, err := l.store.Free()
	level := int32(0)
	switch {
	case err != nil:
		l.log.Error("free space is unknown", "error", err)
		level = 1
	case free < controlFreeMin:
		level = 2
	case free < l.options.MinFree:
		level = 1
	}
	if old := l.low.Swap(level); old != level {
		l.log.Warn("storage gate", "level", level, "free_bytes", free)
	}
}

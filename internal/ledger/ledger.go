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
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
	"golang.org/x/mod/sumdb/note"
)

const (
	batchJobsMax    = 256     // answered together; keeps one sync's worth of waiting short
	batchBytesMax   = 4 << 20 // a batch stays well under a memtable
	inFlightMax     = 4       // batches syncing while the next is decided
	queueDefault    = 4096    // proposals waiting
	controlQueueMax = 256
	renderQueueMax  = 1024 // queries answered from the durable log
	renderers       = 2
)

// Answer is what a caller gets, once. Reply is the whole JSON; Reason what it
// says. A reason from the door or of an unknown outcome comes with an error
// reply and no seq.
type Answer struct {
	Reply  []byte
	Reason reason.Code
}

// job is one thing for the writer to do: judge a proposal, look at the state,
// or note what happened at the door. Exactly one of the three is set.
type job struct {
	proposal *Proposal
	query    func(*projection.State) func() []byte
	note     events.Body
	answer   func(Answer)

	outcome *Outcome
	sealed  sealedEvent // the outcome's decision, unless it is a retry
	render  func() []byte
}

// Ledger is an open ledger. Its fields fall into three parts.
type Ledger struct {
	// Set by Open, never changed.
	store   *store.Store
	anchor  *store.Anchor
	sealer  *sealer
	signer  note.Signer
	clock   *ledgerClock
	log     *slog.Logger
	options Options
	origin  string
	name    string

	// Owned by the goroutine of Run.
	state  *projection.State
	recent map[uint64][]byte // canonical requests by decision, until durable

	// Shared.
	proposals chan *job
	controls  chan *job
	pipeline  chan *batch
	renders   chan *job     // queries to finish
	poke      chan struct{} // something new is durable
	closing   chan struct{}
	closeOnce sync.Once
	stopped   chan struct{} // Run has returned
	failure   atomic.Pointer[error]
	low       atomic.Int32 // storage: 0 fine, 1 no proposals, 2 nothing at all
	registry  *registry
	values    valueCache
	signed    atomic.Uint64 // size of the last anchored checkpoint
	lastNote  atomic.Pointer[[]byte]
	signing   sync.Mutex // one checkpoint at a time

	Hooks Hooks // set before Run
}

// batch is what one synced write carries, and who waits for it.
type batch struct {
	jobs   []*job
	commit *store.Commit // nil where nothing was written
	sealed []sealedEvent
	failed bool // nothing of it may be told
}

type sealedEvent struct {
	event events.Event
	leaf  events.Hash
}

// Submit queues a proposal. The empty code means that answer will be called,
// once, from another goroutine; any other that it was refused at the door,
// unjudged. answer may be nil. The caller must not change p any more.
func (l *Ledger) Submit(p *Proposal, answer func(Answer)) reason.Code {
	lane, queue := int32(1), l.proposals
	if p.Lane == wire.Control {
		lane, queue = 2, l.controls
	}
	if l.low.Load() >= lane {
		return reason.StorageLow
	}
	return l.enqueue(queue, &job{proposal: p, answer: answer})
}

// Ask runs look in the writer's goroutine, on the state that includes every
// proposal submitted before; what it returns is called, and the bytes handed
// to answer, once all that is durable, in a goroutine that answers queries
// only. look must be quick and must not keep the state.
func (l *Ledger) Ask(look func(*projection.State) func() []byte, answer func(Answer)) reason.Code {
	return l.enqueue(l.controls, &job{query: look, answer: answer})
}

// Note appends an event that no proposal caused: what the server or the door
// turned away.
func (l *Ledger) Note(b events.Body) reason.Code {
	return l.enqueue(l.controls, &job{note: b})
}

func (l *Ledger) enqueue(queue chan *job, j *job) reason.Code {
	select {
	case <-l.closing:
		return reason.NotKnownCommitted
	default:
	}
	select {
	case queue <- j:
		return ""
	default:
		return reason.Overloaded
	}
}

// Run is the only goroutine that changes the log. It repeats:
//
//	gather   what came while the last batch was syncing
//	judge    each proposal against the state left by the one before it
//	seal     the outcomes into events, applied to the state
//	commit   them in one batch, whose sync is waited for elsewhere, in order
//
// and answer, in its own goroutine, answers what has been synced. Run returns
// nil after ctx ends and everything accepted is answered; any other return is
// the failure after which the log can only be opened anew.
func (l *Ledger) Run(ctx context.Context) error {
	defer close(l.stopped)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l.answerAll()
	}()
	background, stop := context.WithCancel(context.Background())
	var followers sync.WaitGroup
	for _, follow := range []func(context.Context){l.checkpoints, l.watchStorage} {
		followers.Go(func() { follow(background) })
	}
	for range renderers {
		followers.Go(l.render)
	}
	l.write(ctx)
	l.closeOnce.Do(func() { close(l.closing) })
	close(l.pipeline)
	<-answered
	close(l.renders)
	stop()
	followers.Wait()
	l.refuseRest()
	return l.shut()
}

// write is the writer's loop.
func (l *Ledger) write(ctx context.Context) {
	for {
		jobs := l.gather(ctx)
		if jobs == nil {
			return
		}
		b, err := l.judge(jobs)
		if err != nil {
			b.failed = true
			l.fail(err)
		}
		l.pipeline <- b
		if l.Err() != nil {
			return
		}
	}
}

// gather waits for one job and takes what else is queued, control first. It
// returns nil when ctx has ended and the queues are empty.
func (l *Ledger) gather(ctx context.Context) []*job {
	var jobs []*job
	select {
	case j := <-l.controls:
		jobs = append(jobs, j)
	default:
		select {
		case j := <-l.controls:
			jobs = append(jobs, j)
		case j := <-l.proposals:
			jobs = append(jobs, j)
		case <-ctx.Done():
			l.closeOnce.Do(func() { close(l.closing) })
		case <-l.closing:
		}
	}
	for len(jobs) < batchJobsMax {
		select {
		case j := <-l.controls:
			jobs = append(jobs, j)
			continue
		default:
		}
		select {
		case j := <-l.proposals:
			jobs = append(jobs, j)
		default:
			return jobs
		}
	}
	return jobs
}

// judge decides and seals every job and hands the events to the store. After
// an error the batch still carries its jobs, so that they are answered.
func (l *Ledger) judge(jobs []*job) (*batch, error) {
	b := &batch{jobs: jobs}
	w := newSealing(l)
	for _, j := range jobs {
		if err := l.judgeOne(w, j); err != nil {
			return b, err
		}
	}
	b.sealed = w.sealed
	if len(w.sealed) == 0 {
		return b, nil
	}
	commit, err := l.store.Append(w.batch)
	if err != nil {
		return b, fmt.Errorf("append %d events after %d: %w", len(w.sealed), w.batch.First-1, err)
	}
	b.commit = commit
	durable := l.store.Durable()
	for seq := range l.recent {
		if seq <= durable {
			delete(l.recent, seq)
		}
	}
	return b, nil
}

func (l *Ledger) judgeOne(w *sealing, j *job) error {
	switch {
	case j.query != nil:
		j.render = j.query(l.state)
		return nil
	case j.note != nil:
		return w.add(&events.Event{Time: l.now(), Agent: events.System, Body: j.note}, nil)
	}
	p := j.proposal
	now := l.now()
	if err := l.fillIn(p); err != nil {
		return err
	}
	j.outcome = Decide(l.state, p)
	if j.outcome.Retry != 0 {
		return nil
	}
	if _, accepted := j.clockAccepted(); accepted {
		l.clock.accept()
	}
	if err := w.outcome(p, j.outcome, now); err != nil {
		return err
	}
	j.sealed = w.decision
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
// first recorded under the operation id, and the wall clock an admin accepts.
func (l *Ledger) fillIn(p *Proposal) error {
	if p.Request == nil {
		return nil
	}
	p.Wall = l.clock.wall()
	op, used := l.state.Operation(p.Subject, p.Request.OperationID)
	if !used {
		return nil
	}
	if prior, ok := l.recent[op.Seq]; ok {
		p.Prior = prior
		return nil
	}
	_, prior, ok, err := l.payload(op.Seq)
	if err != nil || !ok {
		return err
	}
	p.Prior = prior
	return nil
}

// payload opens the payload beside a durable event.
func (l *Ledger) payload(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
	record, ok, err := l.store.Payload(seq)
	if err != nil || !ok {
		return salt, nil, ok, err
	}
	salt, b, err = l.sealer.open(seq, record)
	if err != nil {
		return salt, nil, false, fmt.Errorf("payload %d: %w", seq, err)
	}
	return salt, b, true, nil
}

func (l *Ledger) now() events.Time { return max(l.clock.now(), l.state.Time) }

func (l *Ledger) fail(err error) {
	if l.failure.CompareAndSwap(nil, &err) {
		l.log.Error("the ledger stops", "error", err)
		l.closeOnce.Do(func() { close(l.closing) })
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
	for _, queue := range []chan *job{l.controls, l.proposals} {
		for {
			select {
			case j := <-queue:
				j.finish(Answer{Reply: wire.Error(reason.NotKnownCommitted), Reason: reason.NotKnownCommitted})
				continue
			default:
			}
			break
		}
	}
}

func (j *job) finish(a Answer) {
	if j.answer != nil {
		j.answer(a)
	}
}

// shut leaves a checkpoint, the anchor and a snapshot of the projection
// behind, unless the store has failed.
func (l *Ledger) shut() error {
	if err := l.Err(); err != nil {
		return errors.Join(err, l.store.Close())
	}
	err := l.checkpoint()
	if err == nil {
		err = l.saveSnapshot()
	}
	return errors.Join(err, l.store.Close())
}

// Done is closed when Run has returned.
func (l *Ledger) Done() <-chan struct{} { return l.stopped }

// watchStorage looks at the free space once a second.
func (l *Ledger) watchStorage(ctx context.Context) {
	tick := time.NewTicker(time.Second)
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

package ledger

import (
	"io"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Log is what the writer reads of a log: what is durable, and nothing above.
// *store.Store is one.
type Log interface {
	Origin() string
	Durable() uint64
	Event(seq uint64) ([]byte, error)
	Events(from, to uint64, fn func(seq uint64, event []byte) error) error
	Payload(seq uint64) (record []byte, ok bool, err error)
	DataKey(owner string) (wrapped []byte, ok bool, err error)
	Parts() ([]store.Part, error)
	ReadPart(p store.Part, read func(io.Reader) error) error
}

// Stepper is the writer moved by hand: it folds, judges, seals and answers as a
// running Ledger does and with the same code, but whoever holds it keeps the
// log, says when a batch is durable, and is the clock and all chance. So a whole
// life of a ledger can be run again from one seed. It belongs to one goroutine.
type Stepper struct{ l *Ledger }

// StepperOptions are what a Stepper has of the world.
type StepperOptions struct {
	SealKey []byte    // 32 bytes
	Clock   Clock     // both functions set
	Random  io.Reader // salts, nonces, data keys and event ids
	Build   string    // recorded in ledger.opened
	Hooks   Hooks     // Cut alone is called
}

// NewStepper folds a log, as Open does, and returns the batch of ledger.opened,
// which is to be appended and made durable before anything is answered.
func NewStepper(log Log, o StepperOptions) (*Stepper, store.Batch, error) {
	options := Options{Clock: o.Clock, Build: o.Build}
	options.ensureDefaults()
	l, err := load(options, log, []sealKey{{0, o.SealKey}})
	if err != nil {
		return nil, store.Batch{}, err
	}
	l.sealer.random, l.Hooks = o.Random, o.Hooks
	w, err := l.opening()
	if err != nil {
		return nil, store.Batch{}, err
	}
	return &Stepper{l}, w.batch, nil
}

// Step is a batch of proposals judged and sealed.
type Step struct {
	Batch store.Batch // to be appended; it has no events where all are retries
	jobs  batch
}

// Outcome returns what became of the i-th proposal, and the seq of its decision,
// 0 for a retry.
func (s *Step) Outcome(i int) (*Outcome, uint64) {
	j := s.jobs.jobs[i]
	if j.sealed == nil {
		return j.outcome, 0
	}
	return j.outcome, j.sealed.event.Seq
}

// Judge decides and seals proposals in one batch. After an error the Stepper is
// not usable.
func (s *Stepper) Judge(proposals ...*Proposal) (*Step, error) {
	step := &Step{}
	step.jobs.spare.kept = true
	for _, p := range proposals {
		step.jobs.jobs = append(step.jobs.jobs, &job{proposal: p})
	}
	w, err := s.l.judgeAll(&step.jobs)
	if err != nil {
		return nil, err
	}
	step.Batch = w.batch
	return step, nil
}

// Report takes what a handler says of an effect; Answers[0] of Settle is the
// acknowledgement or refusal.
func (s *Stepper) Report(handler string, r *wire.Report) (*Step, error) {
	return s.one(&job{report: r, handler: handler})
}

// Tick looks after open runs, as a running Ledger does every tenth of a second.
func (s *Stepper) Tick() (*Step, error) { return s.one(&job{tick: true}) }

func (s *Stepper) one(j *job) (*Step, error) {
	step := &Step{}
	step.jobs.jobs, step.jobs.spare.kept = []*job{j}, true
	w, err := s.l.judgeAll(&step.jobs)
	if err != nil {
		return nil, err
	}
	step.Batch = w.batch
	return step, nil
}

// Hello notes that a handler is there: see Ledger.Hello.
func (s *Stepper) Hello(id string, actions []string) reason.Code { return s.l.Hello(id, actions) }

// Execs lists the effects that a step has started, for when it is durable.
func (s *Step) Execs() []wire.Exec { return s.jobs.execs }

// Settle takes a step, in order, whose batch has become durable, and returns the
// answers to its proposals.
func (s *Stepper) Settle(step *Step) ([]Answer, error) {
	s.l.register(&step.jobs)
	answers := make([]Answer, len(step.jobs.jobs))
	for i, j := range step.jobs.jobs {
		if j.proposal == nil {
			answers[i] = Answer{Reason: j.told}
			continue
		}
		r, err := s.l.reply(j)
		if err != nil {
			return nil, err
		}
		answers[i] = answerOf(r)
	}
	return answers, nil
}

// Erased takes note that what the log says to be erased up to an event is, and
// the data keys of those names with it: whoever holds the log has done so.
func (s *Stepper) Erased(upTo uint64, keys ...string) {
	s.l.values.clear()
	s.l.sealer.forget(keys)
	s.l.erasedTo.Store(upTo)
}

// State is what the next proposal is judged against. It must not be changed.
func (s *Stepper) State() *projection.State { return s.l.state }

// Snapshot is the state in bytes: a part of the log that stands on nothing.
func (s *Stepper) Snapshot() ([]byte, error) { return s.l.state.EncodeSnapshot(s.l.stateKey) }

// Lookup returns whose a public key is or was, as far as that is durable.
func (s *Stepper) Lookup(publicKey string) (Identity, bool) { return s.l.Lookup(publicKey) }

// Payload opens the payload beside a durable event: see Payloads.Open.
func (s *Stepper) Payload(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
	return s.l.payloads.Open(seq)
}

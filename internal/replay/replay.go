// Package replay judges a log again. It folds the events from the first on and
// gives every decision, from the state before it, the request beside it and the
// rules in force, to ledger.Decide, and compares what comes out with what is
// logged: the decision, an SOP's step decisions, the events that follow. A
// decision that the rules would not give is found even where the log's own keys
// have signed it.
//
// First call: Run(src), with Stored for the source of a data directory:
//
//	st, err := store.OpenReadOnly(dir, store.Options{})
//	src, err := replay.Stored(dir, st)
//	report := replay.Run(src)
//
// A log re-judged whole has report.Err nil, no finding and nothing unverifiable.
// An Err means that it could not be judged to its end; what was found before
// that stands.
//
// It promises to take nothing from a decision that could have been derived. What
// it must believe is what the request's own door saw: that a request was
// malformed, too large or of no known operation where nothing of it was kept,
// and what the wall clock showed when an admin accepted it. A proposal that was
// never made it cannot tell from one that was. Memory is that of the folded
// state and one outcome.
package replay

import (
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// Source is a log to judge again, and what lies beside it. Its functions may be
// called from several goroutines at a time.
type Source struct {
	Size uint64 // how many events

	// Events calls fn with the bytes of each event from from to to in order, and
	// returns fn's first error. The bytes need be good only during the call.
	Events func(from, to uint64, fn func(seq uint64, event []byte) error) error

	// Payload returns the opened payload beside an event and the salt of its
	// commitment; ok is false where it is missing or sealed from this reader. A
	// payload that does not open is ledger.ErrPayload, a finding; any other
	// error ends the run.
	Payload func(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error)

	// Payloads, which may be nil, begins a walk over the payloads of events from
	// to to: at is Payload for ascending seqs, in a fraction of the time, and what
	// it returns is good until the next call. end ends the walk.
	Payloads func(from, to uint64) (at PayloadReader, end func() error, err error)

	// State, which may be nil, returns the stored state to compare with the one
	// folded here, nil if none is stored. Its error is a finding: there is one, and
	// it is damaged or of another log.
	State func() (*projection.State, error)
}

// PayloadReader is Source.Payload.
type PayloadReader = func(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error)

// Stored is the source of an open data directory: its log, its payloads opened
// with the seal keys among its keys and those that were there when st was opened,
// the state written down beside it.
func Stored(dir string, st *store.Store, had ...ledger.SealKeys) (Source, error) {
	payloads, err := ledger.OpenPayloads(dir, st, had...)
	if err != nil {
		return Source{}, err
	}
	return Source{Size: st.Durable(), Events: st.Events, Payload: payloads.Open, Payloads: payloads.Walk, State: func() (*projection.State, error) { return ledger.StoredState(dir, st, had...) }}, nil
}

// Report is what a run found.
type Report struct {
	Events    uint64 // read, the last one judged included
	Decisions uint64 // on proposals and requests, one for each; steps not counted
	Judged    uint64 // of them, judged again
	Rebuilt   uint64 // of those judged, the ones whose request was missing but follows from the decision

	// Decisions that could not be judged for want of a payload, and the events
	// that follow from them, which were taken as they are.
	Unverifiable     map[string]uint64 // by what was missing
	UnverifiedEvents uint64
	MissingPayloads  uint64 // of events whose decision was judged

	// What an erasure has left open, which none of the above counts: by the
	// payload.erased under which it was, how many decisions and contents, and the
	// events that follow from those decisions.
	Erased       map[uint64]uint64
	ErasedEvents uint64

	UncomparedIDs uint64 // event ids that were not held against the others of their millisecond

	// UnjudgedSteps are the decisions on steps that were compared only as far as
	// they go without the procedure, be it erased or missing.
	UnjudgedSteps uint64

	Findings []Finding // the first FindingsMax
	Found    uint64    // all of them

	Stored     bool   // a stored state was there, to compare
	StoredSeq  uint64 // where it stands
	StoredSame bool   // it is the one folded here

	Err error // why the log was not judged to its end, or nil
}

// FindingsMax is how many findings a Report holds.
const FindingsMax = 100

// Finding is one event that is not what the rules give.
type Finding struct {
	Seq        uint64
	Expected   string
	Found      string
	Where      string            // in a projection; empty for the log
	Derivation *audit.Derivation // of a decision, where there is one
}

// String is the finding as one line.
func (f Finding) String() string {
	where := ""
	if f.Where != "" {
		where = f.Where + ": "
	}
	return fmt.Sprintf("event %d: %sexpected %s, found %s", f.Seq, where, f.Expected, f.Found)
}

// Unjudged is the number of decisions that could not be judged.
func (r *Report) Unjudged() uint64 { return r.Decisions - r.Judged }

func (r *Report) unverifiable(why string) {
	if r.Unverifiable == nil {
		r.Unverifiable = map[string]uint64{}
	}
	r.Unverifiable[why]++
}

func (r *Report) find(seq uint64, expected, found string) {
	r.Found++
	if len(r.Findings) < FindingsMax {
		r.Findings = append(r.Findings, Finding{Seq: seq, Expected: expected, Found: found})
	}
}

// run is one run over a log.
type run struct {
	Report
	src  Source
	s    *projection.State // before the outcome at hand, then growing with it
	prev events.Hash       // what the next event must name

	steps    []logged      // step decisions that wait for the decision on the whole
	leaves   []events.Hash // theirs
	decision events.Event
	due      []ledger.Effect // what must still follow from decision
	unjudged bool            // decision could not be judged
	slots    []slot          // what may still follow from it then
	then     []slot          // what must follow from the event at hand, before those
	erasures map[uint64]bool // the payload.erased that follow from judged decisions
	opening  bool            // nothing but doubt has come since ledger.opened
	since    events.Time     // of the last event before ledger.opened
	ids      eventIDs
	accepted accepted
	counted  map[countedOf]events.Time // the last refusal of each kind
	late     lateRuns
	first    bool // stop at the first finding
	lacks    []lack
	lack     int // how many of lacks there were with that of decision; 0 where it lacks nothing

	// judged is told of each decision on a proposal before it is folded, with
	// the proposal or why there is none; nil where nobody asks.
	judged func(found *logged, d *events.Decision, p *ledger.Proposal, missing string)

	policySeq uint64 // of the event that put the policy in force

	at      *ahead      // the event at hand
	stored  events.Hash // digest of the stored state, to compare at its seq
	scratch []byte      // for the bytes of an expected event
}

// logged is an event as it stands in the log.
type logged struct {
	events.Event
	bytes []byte
}

// Run judges the log again from event 1.
func Run(src Source) Report {
	r := &run{src: src, s: projection.New(), erasures: map[uint64]bool{}}
	r.Err = r.all()
	return r.Report
}

// RunToFirst is Run as far as the event with the first finding.
func RunToFirst(src Source) Report {
	r := &run{src: src, s: projection.New(), erasures: map[uint64]bool{}, first: true}
	r.Err = r.all()
	return r.Report
}

func (r *run) all() error {
	if r.src.Size == 0 {
		return errors.New("there are no events")
	}
	if r.src.State != nil {
		switch stored, err := r.src.State(); {
		case err != nil:
			r.find(0, "a stored state that can be used, or none", err.Error())
		case stored != nil && (stored.Seq == 0 || stored.Seq > r.src.Size):
			r.find(0, "a stored state within the log", "one at "+uintText(stored.Seq))
		case stored != nil: // two states at a time are held only where they differ
			r.Stored, r.StoredSeq, r.stored = true, stored.Seq, stored.Digest()
		}
	}
	err := r.src.readAhead(func(t *stretch) error {
		for i := range t.events {
			if err := r.event(&t.events[i]); err != nil {
				return err
			}
			if r.first && r.Found > 0 {
				return errors.New("it stopped at the first finding")
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.stepsAlone("the end of the log"); err != nil {
		return err
	}
	r.opened(r.src.Size)
	r.ended(r.src.Size, "the end of the log")
	if err := r.erased(); err != nil {
		return err
	}
	if r.Events != r.src.Size {
		return fmt.Errorf("%d of %d events could be read", r.Events, r.src.Size)
	}
	return nil
}

// event takes the next event of the log.
func (r *run) event(a *ahead) error {
	seq, found := r.Events+1, a.logged
	if a.err != nil {
		r.find(seq, "an event of a known type and form", a.err.Error())
		return fmt.Errorf("event %d cannot be read: %w", seq, a.err)
	}
	e := &found.Event
	r.at = a
	r.Events++
	r.chain(seq, e)
	r.ids.take(r, e)
	r.dated(e)
	r.ownKey(e)
	r.prev = a.leaf
	if _, doubt := e.Body.(*events.RunDoubted); !doubt {
		r.opened(seq)
	}
	switch d, ok := e.Body.(*events.Decision); {
	case ok && d.Operation == ledger.StepOperation:
		if err := r.stepsAlone("another decision"); err != nil {
			return err
		}
		return r.stepAtMoment(found, d)
	case ok && ledger.IsStep(d):
		if len(r.steps) == 0 {
			r.ended(seq, "another decision")
		}
		r.steps = append(r.steps, found)
		r.leaves = append(r.leaves, a.leaf)
		return r.checkSteps()
	case ok:
		return r.whole(found, d)
	}
	if err := r.stepsAlone(string(e.Body.Type())); err != nil {
		return err
	}
	return r.other(found)
}

// chain checks an event's place.
func (r *run) chain(seq uint64, e *events.Event) {
	if created, ok := e.Body.(*events.LedgerCreated); ok && seq == 1 {
		r.prev = events.GenesisHash(created.Origin)
	}
	if e.Seq != seq {
		r.find(seq, fmt.Sprintf("seq %d", seq), fmt.Sprintf("seq %d", e.Seq))
	}
	if e.Prev != r.prev {
		r.find(seq, "prev "+r.prev.String(), "prev "+e.Prev.String())
	}
}

// stepsAlone closes step decisions after which something else comes than the
// decision on the whole.
func (r *run) stepsAlone(found string) error {
	if len(r.steps) == 0 {
		return nil
	}
	r.find(r.steps[len(r.steps)-1].Seq, "the decision on the whole procedure after it", found)
	return r.applySteps()
}

// checkSteps keeps a forged log from growing the list of steps for ever.
func (r *run) checkSteps() error {
	if len(r.steps) <= events.SOPStepsMax {
		return nil
	}
	r.find(r.steps[0].Seq, fmt.Sprintf("at most %d step decisions", events.SOPStepsMax), "more")
	return r.applySteps()
}

func (r *run) applySteps() error {
	for i := range r.steps {
		if err := r.applyAs(&r.steps[i], nil, r.leaves[i]); err != nil {
			return err
		}
	}
	r.steps, r.leaves = r.steps[:0], r.leaves[:0]
	return nil
}

// ended closes the last outcome: nothing of it may be missing when something
// else comes.
func (r *run) ended(seq uint64, found string) {
	for _, effect := range r.due {
		r.find(seq, r.dueText(effect), found)
	}
	r.mustFollow(seq, found)
	r.due, r.unjudged = nil, false
}

// other takes an event that is no decision: one that follows from the last
// decision, or one of the few that nobody asked for.
func (r *run) other(found logged) error {
	switch {
	case r.unjudged && found.Cause == r.decision.Seq && !fromOutside(found.Body):
		return r.unjudgedEffect(found)
	case len(r.due) > 0 && !nobodyAsked(&found.Event):
		return r.effect(found)
	case ofRun(found.Body):
		return r.runEvent(found)
	}
	r.ended(found.Seq, string(found.Body.Type()))
	if !nobodyAsked(&found.Event) || found.Cause != 0 || found.Agent != events.System || !found.Payload.IsZero() {
		r.find(found.Seq, "no event: no decision gives it", describe(&found.Event))
	} else {
		r.unasked(found)
	}
	if b, ok := found.Body.(*events.LedgerOpened); ok && b.Rules > ledger.Rules {
		return fmt.Errorf("event %d: judged under rules %d from here on, this program knows rules up to %d", found.Seq, b.Rules, ledger.Rules)
	}
	open, err := r.openPayload(&found.Event, nil)
	if err != nil {
		return err
	}
	return r.apply(&found, open)
}

// nobodyAsked tells the events that no decision causes.
func nobodyAsked(e *events.Event) bool {
	switch e.Body.(type) {
	case *events.LedgerCreated, *events.LedgerOpened, *events.TransportDenied, *events.RequestsRefused:
		return true
	case *events.MemoryExpired:
		return e.Cause == 0
	}
	return false
}

// apply folds the event at hand into the state.
func (r *run) apply(found *logged, open []byte) error { return r.applyAs(found, open, r.at.leaf) }

func (r *run) applyAs(found *logged, open []byte, leaf events.Hash) error {
	if err := r.s.Apply(&found.Event, open); err != nil {
		r.find(found.Seq, "an event that fits the state before it", err.Error())
		return fmt.Errorf("event %d does not fit the state before it, so that nothing after it can be judged: %w", found.Seq, err)
	}
	r.s.Leaf = leaf
	if _, ok := found.Body.(*events.PolicyActivated); ok {
		r.policySeq = found.Seq
	}
	if r.Stored && found.Seq == r.StoredSeq {
		r.compareStored()
	}
	return nil
}

// compareStored compares the stored state with the one folded up to its seq.
func (r *run) compareStored() {
	want := r.s.Digest()
	if r.StoredSame = want == r.stored; r.StoredSame {
		return
	}
	r.find(r.StoredSeq, "the stored state to be the one folded from the log: "+want.String(), r.stored.String())
	stored, err := r.src.State()
	if err != nil || stored == nil {
		return
	}
	differences := r.s.Diff(stored, differencesMax)
	last := r.lastTouched(differences)
	for i, d := range differences {
		r.find(r.StoredSeq, orNone(d.Want), orNone(d.Got))
		if n := len(r.Findings); uint64(n) == r.Found {
			r.Findings[n-1].Where = fmt.Sprintf("projection %s, key %s, last touched by %s", d.Projection, quote(d.Key), last[i])
		}
	}
}

// openPayload returns the open payload that folding e takes, nil for most.
// expected is what the decision before it gives, for where the payload itself is
// missing.
func (r *run) openPayload(e *events.Event, expected []byte) ([]byte, error) {
	if !ledger.HasOpenPayload(e.Body) {
		return nil, nil
	}
	salt, b, ok, err := r.payload(e.Seq)
	switch {
	case err != nil:
		return nil, err
	case ok && r.fits(e, salt, b):
		return b, nil
	case expected != nil:
		return expected, nil
	}
	return nil, fmt.Errorf("event %d: its open payload is missing, so that nothing after it can be judged", e.Seq)
}

// payload opens a payload; one that does not open is a finding and counts as
// missing.
func (r *run) payload(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
	if p := r.at.payload; p != nil && r.at.Seq == seq {
		salt, b, ok, err = p.salt, p.bytes, p.ok, p.err
	} else {
		salt, b, ok, err = r.src.Payload(seq)
	}
	if errors.Is(err, ledger.ErrPayload) {
		r.find(seq, "a payload that opens", err.Error())
		return salt, nil, false, nil
	}
	if err != nil {
		return salt, nil, false, fmt.Errorf("payload %d: %w", seq, err)
	}
	return salt, b, ok, nil
}

// fits reports whether a payload is the one that an event commits to.
func (r *run) fits(e *events.Event, salt [events.SaltLen]byte, b []byte) bool {
	if p := r.at.payload; p != nil && p.ok && r.at.Seq == e.Seq {
		return p.fits
	}
	return events.PayloadCommitment(salt, b) == e.Payload
}

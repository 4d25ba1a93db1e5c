package replay

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// whole judges a decision again: with the steps before it, against the state
// before them.
func (r *run) whole(found logged, d *events.Decision) error {
	if len(r.steps) == 0 {
		r.ended(found.Seq, "another decision")
	}
	r.Decisions++
	r.lack = 0
	if r.s.Rules == 0 {
		r.find(found.Seq, "ledger.opened, which says by what rules, before any decision", describe(&found.Event))
	}
	r.decision = found.Event
	if r.s.Agent(d.Subject) != nil {
		r.overdue(&found.Event)
	}
	c, err := r.request(&found.Event, d)
	if err != nil {
		return err
	}
	if c.missing == "" {
		err = r.judge(&c, &found, d)
	}
	if err != nil {
		return err
	}
	if c.missing != "" {
		if r.judged != nil {
			r.judged(&found, d, nil, c.missing)
		}
		if c.lack == lackContent {
			r.unverifiable(c.missing)
		} else {
			r.lacking(c.lackSeq, c.lack)
		}
		r.doubt(found.Seq, d)
		r.doubtSteps(&found, d)
		if r.unjudged = true; c.lack == lackContent {
			r.slots = anything()
		} else {
			r.slots = r.follows(d)
		}
	} else {
		r.Judged++
	}
	if err := r.applySteps(); err != nil {
		return err
	}
	return r.apply(&found, nil)
}

// judge gives the case to the rules and compares.
func (r *run) judge(c *evidence, found *logged, d *events.Decision) error {
	priorMissing, err := r.prior(c, d)
	if err != nil {
		return err
	}
	c.proposal.Now = r.outcomeTime(found)
	if r.judged != nil {
		r.judged(found, d, &c.proposal, "")
	}
	o := ledger.Decide(r.s, &c.proposal)
	if o.Retry != 0 {
		r.find(found.Seq, "no event: it is the operation that "+describeSeq(o.Retry)+" has decided", describe(&found.Event))
		r.unjudged, r.slots = true, anything()
		return nil
	}
	if priorMissing && o.Decision.Reason == string(reason.OperationIDConflict) {
		op, _ := r.s.Operation(d.Subject, d.OperationID)
		c.lacks(op.Seq, lackPrior)
		return nil
	}
	if c.opened {
		o.Digest(c.salt)
	}
	if o.Hidden {
		o.Decision.Blind = "32 lower-case hex digits"
		if isBlind(d.Blind) {
			o.Decision.Blind = d.Blind
		}
	}
	r.compareSteps(found, o)
	want := events.Event{Time: r.outcomeTime(found), Agent: d.Subject, Body: o.Decision}
	if o.KeepsRequest(&c.proposal) {
		want.Payload = found.Payload // which the request fits, where it was opened
	}
	if !r.compare(found, want) {
		r.explain(found.Seq, func() *audit.Derivation { return r.derive(d, o.Decision, &c.proposal) })
	}
	r.due = o.Effects
	return nil
}

// outcomeTime is the one time that all events of the outcome have.
func (r *run) outcomeTime(whole *logged) events.Time {
	if len(r.steps) > 0 {
		return r.steps[0].Time
	}
	return whole.Time
}

// compareSteps compares the step decisions before a whole one, as far as the
// first that is not as it should be.
func (r *run) compareSteps(whole *logged, o *ledger.Outcome) {
	for i := range r.steps {
		step := &r.steps[i]
		if i == len(o.Steps) {
			r.find(step.Seq, "no further step decision", describe(&step.Event))
			return
		}
		if !r.compare(step, events.Event{Time: r.steps[0].Time, Agent: o.Decision.Subject, Body: o.Steps[i]}) {
			r.explain(step.Seq, func() *audit.Derivation {
				d := r.basis(step.Body.(*events.Decision), o.Steps[i])
				r.terms(d, o.Decision.Subject, ledger.StepCapability(o.Steps[i].Action))
				return d
			})
			return
		}
	}
	if len(o.Steps) > len(r.steps) {
		missing := o.Steps[len(r.steps)]
		r.find(whole.Seq, "the decision on step "+quote(missing.StepID)+" before it", describe(&whole.Event))
	}
}

// evidence is what is known of the request behind a decision.
type evidence struct {
	proposal ledger.Proposal
	salt     [events.SaltLen]byte
	opened   bool   // the request is the payload, and salt the commitment's
	missing  string // why there is no request; empty where there is one, or was none

	lack    uint8 // and if for want of a payload, why, and beside which event it lay
	lackSeq uint64
}

func (c *evidence) lacks(seq uint64, why uint8) {
	c.missing, c.lack, c.lackSeq = lackReasons[why], why, seq
}

// request rebuilds the proposal from the decision and the request kept beside
// it.
func (r *run) request(e *events.Event, d *events.Decision) (evidence, error) {
	c := evidence{proposal: ledger.Proposal{Lane: r.lane(d), Subject: d.Subject, Operation: d.Operation, Observed: d.Observed}}
	if d.Operation == "sop.submit" {
		c.proposal.RunID = d.RunID
		if (d.Allowed || d.RunID != "") && !isRunID(d.RunID) {
			r.find(e.Seq, "a version 7 UUID as the run's id", quote(d.RunID))
		} else if d.RunID != "" && millisecond(d.RunID) > e.Time/1000+runIDAhead {
			r.find(e.Seq, fmt.Sprintf("a run's id that begins with the decision's millisecond, %012x, or one before", uint64(e.Time/1000)), quote(d.RunID))
		}
	}
	if d.Operation != events.Unsupported && wire.Known(c.proposal.Lane, d.Operation) != d.Operation {
		r.find(e.Seq, "an operation of this release", quote(d.Operation))
	}
	r.checkIDs(e.Seq, d)
	if e.Payload.IsZero() {
		c.proposal.Refused = r.refused(e.Seq, d)
		return c, nil
	}
	salt, b, ok, err := r.payload(e.Seq)
	if err != nil {
		return c, err
	}
	if ok && !r.fits(e, salt, b) {
		r.find(e.Seq, "the payload that the event commits to", "another")
		ok = false
	}
	if !ok {
		c.proposal.Request = rebuild(&c.proposal, d)
		switch c.proposal.Request {
		case nil:
			c.lacks(e.Seq, lackRequest)
		default:
			r.Rebuilt++
		}
		return c, nil
	}
	request, code := r.decode(c.proposal.Lane, d.Operation, b)
	if code != "" || !bytes.Equal(request.Canonical, b) {
		fault := "one written otherwise"
		if code != "" {
			fault = string(code)
		}
		r.find(e.Seq, "a canonical request as payload", fault)
		c.missing = "the payload is no request"
		return c, nil
	}
	request.OperationID, request.TraceID = d.OperationID, d.TraceID
	c.proposal.Request, c.salt, c.opened = request, salt, true
	c.proposal.Beside, err = r.beside(e.Seq, request)
	return c, err
}

// runIDAhead is how many milliseconds a run's id may be ahead of its decision: earlier
// releases made it after they had read the clock for that.
const runIDAhead = 60_000

func (r *run) checkIDs(seq uint64, d *events.Decision) {
	if d.OperationID != "" && !events.ValidOperationID(d.OperationID) || d.TraceID != "" && !events.ValidTraceID(d.TraceID) {
		r.find(seq, "operation_id and trace_id within their grammar", "others")
	}
}

// lane is where a request came in. The log need not say it, since the front
// door lets agents propose and principals control, and neither do the other;
// and but for agent.register every operation has one lane.
func (r *run) lane(d *events.Decision) wire.Lane {
	propose, control := wire.Known(wire.Propose, d.Operation) == d.Operation, wire.Known(wire.Control, d.Operation) == d.Operation
	if d.Operation == events.Unsupported || propose == control {
		if r.s.Agent(d.Subject) == nil {
			return wire.Control
		}
		return wire.Propose
	}
	if control {
		return wire.Control
	}
	return wire.Propose
}

// refused is what the door found wrong with a request of which nothing was kept.
// That is taken from the log, but only where the decision looks like one at the
// door; who asked is judged before it.
func (r *run) refused(seq uint64, d *events.Decision) reason.Code {
	code := reason.Code(d.Reason)
	known := d.Operation != events.Unsupported
	switch code {
	case reason.BadReplySubject:
		return code
	case reason.MalformedRequest, reason.RequestTooLarge:
		if known {
			return code
		}
	case reason.UnsupportedOperation:
		if !known {
			return code
		}
	default:
		return reason.MalformedRequest
	}
	r.find(seq, "an operation that can be refused so", "operation "+quote(d.Operation)+" with "+string(code))
	return code
}

// rebuild makes the request of a decision whose payload is missing, where the
// decision says all that it said; nil where it does not.
func rebuild(p *ledger.Proposal, d *events.Decision) *wire.Request {
	var b []byte
	add := func(name, value string) {
		sep := byte(',')
		if len(b) == 0 {
			sep = '{'
		}
		b = append(append(append(append(b, sep, '"'), name...), '"', ':'), value...)
	}
	text := func(s string) string { return string(events.AppendString(nil, s)) }
	switch {
	case d.Operation == "memory.read":
		owner, name := cutOwner(d.Resource)
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 {
			return nil
		}
		add("key", text(name[dot+1:]))
		add("namespace", text(name[:dot]))
		if owner != "" {
			add("owner_agent_id", text(owner))
		}
	case d.Operation == "memory.delete" && d.Allowed:
		owner, name := cutOwner(d.Resource)
		dot := strings.LastIndexByte(name, '.')
		if dot < 0 {
			return nil
		}
		add("expected_revision", uintText(d.PreviousRevision))
		add("key", text(name[dot+1:]))
		add("namespace", text(name[:dot]))
		add("owner_agent_id", text(owner))
	case d.Operation == "run.cancel":
		add("run_id", text(d.Resource))
	case d.Operation == "agent.revoke":
		add("agent_id", text(d.Resource))
	case d.Operation == "principal.revoke":
		add("id", text(d.Resource))
	case d.Operation == "clock.accept":
		b = []byte("{")
	default:
		return nil
	}
	request, code := wire.Decode(p.Lane, d.Operation, append(b, '}'))
	if code != "" {
		return nil
	}
	request.OperationID, request.TraceID = d.OperationID, d.TraceID
	return request
}

func cutOwner(resource string) (owner, name string) {
	owner, name, ok := strings.Cut(resource, ":")
	if !ok {
		return "", resource
	}
	return owner, name
}

// prior finds the request first made under the decision's operation id.
func (r *run) prior(c *evidence, d *events.Decision) (missing bool, err error) {
	if c.proposal.Request == nil {
		return false, nil
	}
	op, used := r.s.Operation(d.Subject, d.OperationID)
	if !used || op.Name != d.Operation || d.Operation == "memory.read" {
		return false, nil
	}
	var first events.Event
	err = r.src.Events(op.Seq, op.Seq, func(_ uint64, b []byte) (err error) {
		first, err = events.Parse(b)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("event %d: %w", op.Seq, err)
	}
	if f, ok := first.Body.(*events.Decision); !ok || f.Subject != d.Subject || f.OperationID != d.OperationID {
		return false, nil // the index hits by chance, and the id is refused
	}
	if r.s.AnyErased() {
		c.proposal.First = &first
	}
	_, b, ok, err := r.payload(op.Seq)
	if err != nil || !ok {
		return true, err
	}
	c.proposal.Prior = b
	return false, nil
}

// checkBase compares what of a decision does not depend on the request.
func (r *run) checkBase(seq uint64, d *events.Decision) {
	base := ledger.Decide(r.s, &ledger.Proposal{Lane: r.lane(d), Subject: d.Subject, Operation: d.Operation, Refused: reason.MalformedRequest}).Decision
	switch info, known := reason.Of(reason.Code(d.Reason)); {
	case !known || info.Allowed != d.Allowed:
		r.find(seq, "a reason that goes with allowed or denied", quote(d.Reason))
	case base.Reason != string(reason.MalformedRequest) && base.Reason != d.Reason:
		r.find(seq, base.Reason, d.Reason)
	case d.PolicyVersion != base.PolicyVersion || d.PolicyDigest != base.PolicyDigest:
		r.find(seq, "policy "+base.PolicyVersion+" "+base.PolicyDigest.String(), "policy "+d.PolicyVersion+" "+d.PolicyDigest.String())
	case strings.Join(d.Lineage, " ") != strings.Join(base.Lineage, " "):
		r.find(seq, "lineage "+strings.Join(base.Lineage, " "), "lineage "+strings.Join(d.Lineage, " "))
	}
}

// effect takes an event while some must still follow from the last decision.
func (r *run) effect(found logged) error {
	at := r.align(&found)
	for _, skipped := range r.due[:max(at, 0)] {
		r.find(found.Seq, r.dueText(skipped), describe(&found.Event))
	}
	if at < 0 {
		r.find(found.Seq, r.dueText(r.due[0]), describe(&found.Event))
		open, err := r.openPayload(&found.Event, nil)
		if err != nil {
			return err
		}
		return r.apply(&found, open)
	}
	effect := r.due[at]
	r.due = r.due[at+1:]
	if _, ok := effect.Body.(*events.PayloadErased); ok {
		r.erasures[found.Seq] = true
	}
	if accepted, ok := found.Body.(*events.ClockAccepted); ok { // what the wall clock showed nobody can tell again
		if want, ok := effect.Body.(*events.ClockAccepted); ok {
			want.Wall = accepted.Wall
		}
	}
	madeByWriter(effect.Body, found.Body)
	want := events.Event{Time: r.decision.Time, Agent: r.decision.Agent, Cause: r.decision.Seq, Body: effect.Body}
	if err := r.effectPayload(&found, effect, &want); err != nil {
		return err
	}
	if !r.compare(&found, want) {
		r.explainEffect(&found, effect.Body)
	}
	open, err := r.openPayload(&found.Event, effect.Open)
	if err != nil {
		return err
	}
	return r.apply(&found, open)
}

// madeByWriter takes from a logged event what the writer made and no rule gives: a
// new key, and the note that hands over to it. Whether they are good is for the
// fold to say, and for the audit of signatures.
func madeByWriter(want, found events.Body) {
	switch found := found.(type) {
	case *events.KeyRotated:
		if want, ok := want.(*events.KeyRotated); ok {
			want.PublicKey = found.PublicKey
		}
	case *events.KeyRetired:
		if want, ok := want.(*events.KeyRetired); ok {
			want.Checkpoint = found.Checkpoint
		}
	}
}

func (r *run) dueText(effect ledger.Effect) string {
	return string(effect.Body.Type()) + ", which follows from " + describeSeq(r.decision.Seq)
}

// align finds which of the effects due an event is: the first that says the
// same, else the next one if it is of the same type, else none.
func (r *run) align(found *logged) int {
	if len(r.due) == 1 && r.due[0].Body.Type() == found.Body.Type() {
		return 0
	}
	for i, effect := range r.due {
		if effect.Body.Type() == found.Body.Type() && sameBody(effect.Body, found.Body) {
			return i
		}
	}
	if r.due[0].Body.Type() == found.Body.Type() {
		return 0
	}
	return -1
}

// effectPayload sets the commitment that an effect must have: to what the
// request brings, under the salt kept beside it.
func (r *run) effectPayload(found *logged, effect ledger.Effect, want *events.Event) error {
	expected := effect.Open
	if expected == nil {
		expected = effect.Seal
	}
	if expected == nil {
		return nil
	}
	salt, _, ok, err := r.payload(found.Seq)
	if err != nil {
		return err
	}
	if !ok {
		r.lacking(found.Seq, lackContent)
		want.Payload = found.Payload
		if want.Payload.IsZero() {
			r.find(found.Seq, "a payload: what the request brings", "none")
		}
		return nil
	}
	want.Payload = events.PayloadCommitment(salt, expected)
	return nil
}

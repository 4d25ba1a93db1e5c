package ledger

import (
	"bytes"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Rules is the version of everything that can change a verdict: the guards
// here, the functions they call, the libraries behind them. It rises with any
// such change, and ledger.opened records it.
const Rules = 2

// Proposal is one request as the front door hands it over.
type Proposal struct {
	Lane      wire.Lane
	Subject   string        // who the connection authenticated; no field of the request can say otherwise
	Operation string        // as it may stand in an event
	Refused   reason.Code   // what the door found wrong with its form; Request is then nil
	Fault     string        // the same in words, for the sender's reply alone
	Request   *wire.Request // nil if Refused
	Prior     []byte        // canonical request first recorded under the operation id, where there is one
	Wall      events.Time   // what clock.accept accepts
	Now       events.Time   // ledger time of the decision; never before the state's
	RunID     string        // what sop.submit calls its run; recorded in the decision
	Observed  []string      // actions that no handler is present for; recorded as far as they matter
	NewKey    string        // verifier key that key.rotate brings
	Handoff   string        // note that the key of key.retire and the one after it have signed

	// First is the decision recorded under the operation id, nil where there is none
	// or nothing was ever erased: it says whose its request is, and so whether that is.
	First *events.Event

	fresh *freshKey // the secret half of NewKey, until it is kept

	// Beside are the events of the log at the seqs that the function Beside lists,
	// nil for one that is not in it.
	Beside []*events.Event
}

// Outcome is what follows from a proposal: the decisions (an SOP's steps
// first, the decision on the whole last) and the events it causes, in order.
type Outcome struct {
	Steps     []*events.Decision
	Decision  *events.Decision
	Effects   []Effect
	Retry     uint64            // seq of the decision recorded for this operation id; nothing else is then set
	Read      *Reading          // the record of an allowed read
	Deny      *events.Emergency // the emergency deny that is given, or would be
	Hidden    bool              // the reply tells another reason than the log
	Erased    *wire.Erased      // what is erased, or would be
	Faults    []string          // what is wrong with an apply's documents, for its sender
	Applied   []Applied
	procedure []sop.Step // that was judged, of Steps
	args      []byte     // canonical arguments to digest into Decision

	// Room for what nearly every outcome has, so that it is allocated with it,
	// and for what a procedure takes, which the next one takes over.
	decision events.Decision
	reading  Reading
	written  events.MemoryWritten
	effects  [1]Effect
	judge    judge
	steps    []events.Decision
	room     sop.Room
}

// Effect is an event that follows from the decision.
type Effect struct {
	Body events.Body
	Open []byte // an open payload of its own, or
	Seal []byte // a sealed one
}

// Applied says what became of one document of an apply.
type Applied struct {
	Kind, ID string
	Result   string // created, updated, kept or unchanged
}

// Reading is the record that an allowed read returns.
type Reading struct {
	Record       *projection.Record
	Class        policy.Class // what it is treated as, which a later policy may have made stricter
	Combined     []byte       // canonical value where mandatory records were combined, else nil: the value is Record's
	Contributors []string     // owners whose records were combined, nearest first
}

// Decide judges one proposal against the state left by the one before it. It
// is a pure function of its arguments, so that anyone with the log can judge
// again, and a straight descent of guards: the first that fails gives the
// reason. Nothing is allowed but by reaching the end of one.
func Decide(s *projection.State, p *Proposal) *Outcome {
	o := &Outcome{}
	o.Decide(s, p)
	return o
}

// Decide is the function Decide in room that the caller has: whatever was in o
// is gone.
func (o *Outcome) Decide(s *projection.State, p *Proposal) { o.decide(s, p, nil) }

func (o *Outcome) decide(s *projection.State, p *Proposal, trace *trace) {
	*o = Outcome{decision: events.Decision{
		Subject: p.Subject, Operation: p.Operation, PolicyVersion: s.PolicyVersion(), PolicyDigest: s.PolicyDigest(),
	}, Steps: o.Steps[:0], steps: o.steps[:0], room: o.room}
	j := &o.judge
	*j = judge{s: s, p: p, d: &o.decision, out: o, trace: trace}
	if j.agent = s.Agent(p.Subject); j.agent != nil {
		j.d.Lineage = j.agent.LineageIDs()
	} else {
		j.d.Lineage = []string{p.Subject}
	}
	if p.Request != nil {
		j.d.OperationID, j.d.TraceID = p.Request.OperationID, p.Request.TraceID
		j.d.Resource = p.Request.Resource
		switch p.Request.Body.(type) {
		case *wire.GrantGive, *wire.GrantRevoke:
			j.d.Resource = p.Subject + ":" + j.d.Resource
		}
	}
	code := j.judge()
	if o.Retry != 0 {
		*o = Outcome{Retry: o.Retry}
		return
	}
	j.d.Reason, j.d.Allowed = string(code), code.Allowed()
	if !j.d.Allowed {
		j.out.Effects, j.out.Read, j.out.Erased = nil, nil, nil
	}
	if code == reason.MalformedRequest { // nothing of it is named, kept or remembered
		j.d.Resource, j.d.OperationID, j.d.TraceID = "", "", ""
	}
	j.out.Hidden = reason.Told(code) != code
	j.out.Decision = j.d
	*j = judge{}
}

type judge struct {
	s      *projection.State
	p      *Proposal
	agent  *projection.Agent // the sender, nil if it is no agent
	d      *events.Decision
	out    *Outcome
	trace  *trace            // nil where nobody asks how it came about
	facts  *policy.Facts     // that rules ask; nil until one does
	broken map[string]broken // rules that a step breaks, by its id
}

func (j *judge) judge() reason.Code {
	switch code := j.who(); {
	case j.fails("identity", code != "" && code != reason.EmergencyDeny):
		return code
	case code != "":
		j.fails("emergency", true)
		return code
	}
	req := j.p.Request
	switch {
	case j.fails("shape", j.p.Refused != ""):
		if j.p.Fault != "" {
			j.note("%s", j.p.Fault)
		}
		return j.p.Refused
	case j.fails("shape", req == nil || req.Operation != j.p.Operation):
		return reason.MalformedRequest
	}
	if j.fails("emergency", j.agent != nil && j.s.Denied(j.agent, capabilityOf(req))) {
		return reason.EmergencyDeny
	}
	if op, used := j.recorded(req); used {
		same := bytes.Equal(j.p.Prior, req.Canonical) && j.p.Prior != nil || j.p.First != nil && j.s.ErasedBy(j.p.First) != 0 // nobody can tell any more
		if j.fails("operation id", op.Name != req.Operation || !same) {
			return reason.OperationIDConflict
		}
		j.out.Retry = op.Seq
		return ""
	}
	j.fails("operation id", false)
	if j.p.Lane == wire.Control {
		return j.control()
	}
	if j.fails("policy", j.s.Policy == nil) {
		return reason.NoPolicy
	}
	return j.proposal()
}

// recorded is what was decided under the request's operation id, where it has
// one that counts: reads are judged anew each time.
func (j *judge) recorded(req *wire.Request) (projection.Operation, bool) {
	if req.OperationID == "" || req.Operation == "memory.read" {
		return projection.Operation{}, false
	}
	return j.s.Operation(j.p.Subject, req.OperationID)
}

// who is the guard before everything else: the sender exists, is not revoked,
// may use the lane, and no emergency deny takes everything from it.
func (j *judge) who() reason.Code {
	if j.agent != nil {
		switch {
		case j.agent.Revoked:
			return reason.AgentRevoked
		case j.p.Lane != wire.Propose:
			return reason.NotPermittedForRole
		case j.s.Denied(j.agent, ""):
			return reason.EmergencyDeny
		}
		return ""
	}
	principal := j.s.Principal(j.p.Subject)
	switch {
	case principal == nil:
		return reason.UnknownAgent
	case principal.Revoked:
		return reason.AgentRevoked
	case j.p.Lane != wire.Control:
		return reason.NotPermittedForRole
	case principal.Role == "admin":
		return ""
	case principal.Role == "registrar" && (j.p.Operation == "agent.register" || j.p.Operation == "agent.revoke"):
		return ""
	}
	return reason.NotPermittedForRole
}

func (j *judge) proposal() reason.Code {
	switch r := j.p.Request.Body.(type) {
	case *wire.MemoryRead:
		return j.read(r)
	case *wire.MemoryWrite:
		return j.write(r)
	case *wire.MemoryDelete:
		return j.delete(r)
	case *wire.ActionAuthorize:
		return j.authorize(r)
	case *wire.SOPValidate:
		return j.sop(&r.Procedure)
	case *wire.SOPSubmit:
		return j.submit(r)
	case *wire.RunCancel:
		return j.cancel(r)
	case *wire.GrantGive:
		return j.give(r)
	case *wire.GrantRevoke:
		return j.take(r)
	case *wire.RestrictionAdd:
		return j.restrict(r)
	case *wire.AgentRegister:
		return j.registerChild(r)
	}
	return reason.UnsupportedOperation
}

// may reports whether the sender may do itself what a capability allows.
func (j *judge) may(capability string) bool {
	ok, _ := j.s.May(j.agent, capability)
	return ok
}

func (j *judge) write(w *wire.MemoryWrite) reason.Code {
	record := j.s.Record(w.Owner, w.Namespace, w.Key)
	live := j.s.Stands(record, j.now())
	class := j.s.Policy.Class(w.Namespace, w.Key)
	switch {
	case j.fails("capability", !j.may("memory.write")):
		return reason.CapabilityNotInherited
	case j.fails("owner", w.Owner != j.p.Subject):
		j.d.Owner = w.Owner
		return reason.ActorIsNotOwner
	case j.fails("namespace", !j.agent.MayWriteIn(w.Namespace)):
		return reason.NamespaceNotAllowed
	case j.fails("value", j.p.Request.TooLarge):
		return reason.RequestTooLarge
	}
	if code := checkValue(j.s.Policy, w.Namespace, w.Key, w.Value); j.fails("value", code != "") {
		return code
	}
	if code := checkLifetime(j.s.Policy, w.Namespace, w.Key, w.Seconds, j.inRun()); j.fails("time to live", code != "") {
		j.note("%s", lifetimeText)
		return code
	}
	switch {
	case j.fails("revision", live && w.Revision == 0):
		j.d.PreviousRevision = record.Revision
		return reason.ExpectedRevisionRequired
	case j.fails("revision", live && w.Revision != record.Revision):
		j.d.PreviousRevision = record.Revision
		return reason.RevisionConflict
	case j.fails("revision", !live && w.Revision != 0):
		return reason.RevisionConflict
	}
	if j.overRecords(record) {
		return reason.QuotaExceeded
	}
	j.out.written.Record = events.Record{Owner: w.Owner, Namespace: w.Namespace, Key: w.Key, Visibility: w.Visibility, Revision: 1}
	j.ends(&j.out.written, w.Seconds)
	next := &j.out.written.Record
	j.out.Effects = j.out.effects[:0]
	if record != nil {
		j.d.PreviousRevision = record.Revision
		if gone := j.s.Expiry(record, j.now()); gone != nil {
			j.d.PreviousRevision = gone.Revision
			j.emit(gone)
		}
		next.Revision = j.d.PreviousRevision + 1
	}
	if next.Visibility == "" {
		next.Visibility = "private"
		if live {
			next.Visibility = record.Visibility
		}
	}
	if live && record.Class == policy.Secret {
		class = policy.Secret
	}
	next.Class = string(class)
	effect := Effect{Body: &j.out.written}
	if class == policy.Mandatory {
		effect.Open = w.Value
	}
	j.out.Effects = append(j.out.Effects, effect)
	return reason.OwnerWrite
}

func (j *judge) delete(r *wire.MemoryDelete) reason.Code {
	record := j.s.Live(r.Owner, r.Namespace, r.Key, j.now())
	switch {
	case j.fails("capability", !j.may("memory.write")):
		return reason.CapabilityNotInherited
	case j.fails("owner", r.Owner != j.p.Subject):
		j.d.Owner = r.Owner
		return reason.ActorIsNotOwner
	case j.fails("namespace", !j.agent.MayWriteIn(r.Namespace)):
		return reason.NamespaceNotAllowed
	case j.fails("revision", record == nil):
		return reason.RevisionConflict
	case j.fails("revision", r.Revision != record.Revision):
		j.d.PreviousRevision = record.Revision
		return reason.RevisionConflict
	}
	j.d.PreviousRevision = record.Revision
	j.out.Effects = append(j.out.Effects, Effect{Body: &events.MemoryDeleted{Record: events.Record{
		Owner: record.Owner, Namespace: record.Namespace, Key: record.Key,
		Visibility: record.Visibility, Class: string(record.Class), Revision: record.Revision + 1,
	}}})
	return reason.OwnerDelete
}

func (j *judge) read(r *wire.MemoryRead) reason.Code {
	if j.fails("capability", !j.may("memory.read")) {
		return reason.CapabilityNotInherited
	}
	code := j.find(r)
	j.fails("visibility", !code.Allowed())
	return code
}

func (j *judge) find(r *wire.MemoryRead) reason.Code {
	switch {
	case r.Owner != "":
		return j.readDirect(r)
	case j.s.Policy.Class(r.Namespace, r.Key) == policy.Mandatory:
		return j.readCombined(r.Namespace, r.Key)
	}
	hidden := ""
	levels := 0
	named, now := j.s.Named(r.Namespace, r.Key), j.now()
	for a := j.agent; a != nil; a = a.Parent {
		if record := named.Of(a.ID); j.s.Stands(record, now) {
			if j.s.Visible(record, levels) {
				j.d.Owner = a.ID
				j.show(Reading{Record: record, Class: j.s.ClassOf(record)})
				return reason.VisibleFrom
			}
			if hidden == "" {
				hidden = a.ID
			}
		}
		levels++
	}
	if hidden != "" {
		j.d.Owner = hidden
		return reason.NotVisibleFrom
	}
	return reason.RecordNotFound
}

func (j *judge) show(r Reading) {
	j.out.reading = r
	j.out.Read = &j.out.reading
}

// readDirect asks one owner's record: the reader's own or a visible
// ancestor's. A secret needs a grant, wherever it lies.
func (j *judge) readDirect(r *wire.MemoryRead) reason.Code {
	record := j.s.Live(r.Owner, r.Namespace, r.Key, j.now())
	if record == nil {
		return reason.RecordNotFound
	}
	j.d.Owner = r.Owner
	levels := 0
	for a := j.agent; a != nil; a = a.Parent {
		if a.ID == r.Owner && j.s.Visible(record, levels) {
			j.show(Reading{Record: record, Class: j.s.ClassOf(record)})
			return reason.VisibleFrom
		}
		levels++
	}
	switch {
	case j.s.ClassOf(record) != policy.Secret:
	case j.granted(r):
		j.show(Reading{Record: record, Class: policy.Secret})
		return reason.GrantedBy
	default:
		return reason.GrantRequired
	}
	return reason.NotVisibleFrom
}

func (j *judge) authorize(r *wire.ActionAuthorize) reason.Code {
	if events.ValidAction(r.Action) {
		j.d.Action = r.Action
	}
	j.out.args = r.Arguments
	switch {
	case j.fails("known action", !j.s.Policy.KnownAction(r.Action)):
		return reason.UnknownAction
	case j.fails("effective capabilities", !j.may(r.Action)):
		return reason.ActionNotInEffectiveCapabilities
	case j.fails("size", j.p.Request.TooLarge):
		return reason.RequestTooLarge
	}
	code, broken := j.rules(r.Action, r.Arguments)
	broken.tell(j.d)
	switch {
	case j.fails("argument schema", code == reason.ArgumentSchema), j.fails("requirements", code != ""):
		return code
	}
	return reason.ActionAllowed
}

// sop judges the whole procedure before anything of it could start: every step
// gets its decision, good or bad, and one bad step refuses all.
func (j *judge) sop(p *wire.Procedure) reason.Code {
	j.d.SOPID, j.d.SOPVersion = p.ID, uint64(p.Version)
	if j.fails("procedure", p.Refused != "") {
		if p.Refused == reason.SOPMalformed {
			j.note("%s", p.Fault)
		}
		return p.Refused
	}
	results, code := j.out.room.Validate(p.SOP, j.scope())
	j.fails("every step", !code.Allowed())
	j.steps(p.SOP, results)
	j.out.procedure = p.Steps
	return code
}

func (j *judge) scope() sop.Scope {
	scope := sop.Scope{Agent: j.p.Subject, Lineage: j.d.Lineage, World: j}
	if j.trace != nil {
		scope.Asked = j.trace.asked
	}
	return scope
}

// A judge is the World of the sender's procedures.
var _ sop.World = (*judge)(nil)

func (j *judge) Known(action string) bool { return j.s.Policy.KnownAction(action) }

func (j *judge) Denied(capability string) bool { return j.s.Denied(j.agent, capability) }

func (j *judge) Holds(capability string) bool { return j.may(capability) }

func (j *judge) Within(namespace string) bool { return j.agent.MayWriteIn(namespace) }

func (j *judge) Write(namespace, key string, value []byte, seconds uint64) reason.Code {
	if code := checkValue(j.s.Policy, namespace, key, value); code != "" {
		return code
	}
	return checkLifetime(j.s.Policy, namespace, key, seconds, true)
}

// steps makes the decision on each step, from what they have in common.
func (j *judge) steps(procedure sop.SOP, results []sop.StepResult) {
	o := j.out
	o.steps = slices.Grow(o.steps, len(results))[:len(results)]
	o.Steps = slices.Grow(o.Steps, len(results))
	for i := range results {
		result, step := &results[i], &o.steps[i]
		*step = *j.d
		step.Operation, step.OperationID = "sop.validate", ""
		step.StepID, step.Action, step.Resource = result.StepID, result.Action, procedure.Steps[i].Resource
		step.Reason, step.Allowed = string(result.Reason), result.Reason == reason.StepAllowed
		if !step.Allowed {
			b := j.broken[result.StepID]
			b.tell(step)
		}
		o.Steps = append(o.Steps, step)
	}
}

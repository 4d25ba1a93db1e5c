package replay

import (
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// doubtSteps holds the decisions on the steps of a procedure that is missing to
// what can be known of them.
func (r *run) doubtSteps(whole *logged, d *events.Decision) {
	r.UnjudgedSteps += uint64(len(r.steps))
	if len(r.steps) > 0 && !strings.HasPrefix(d.Operation, "sop.") {
		r.find(r.steps[0].Seq, "no decision on a step before one on "+quote(d.Operation), describe(&r.steps[0].Event))
		return
	}
	if !strings.HasPrefix(d.Operation, "sop.") {
		return
	}
	first := string(reason.SOPAdmitted) // the reason of the first step that is not allowed
	var ids []string
	for i := range r.steps {
		step := r.steps[i].Body.(*events.Decision)
		want := *step
		want.Subject, want.Lineage, want.PolicyVersion, want.PolicyDigest = d.Subject, d.Lineage, d.PolicyVersion, d.PolicyDigest
		want.Operation, want.Resource, want.OperationID, want.TraceID = "sop.validate", d.SOPID+":"+step.StepID, "", d.TraceID
		want.SOPID, want.SOPVersion, want.RunID, want.PreviousRevision, want.Observed = d.SOPID, d.SOPVersion, "", 0, nil
		if !r.compare(&r.steps[i], events.Event{Time: r.steps[0].Time, Agent: d.Subject, Body: &want}) {
			return
		}
		if !r.doubtStep(r.steps[i].Seq, step, slices.Contains(ids, step.StepID), false) {
			return
		}
		ids = append(ids, step.StepID)
		if !step.Allowed && first == string(reason.SOPAdmitted) {
			first = step.Reason
		}
	}
	early := []reason.Code{ // those of who asks are held to the state by checkBase
		reason.UnknownAgent, reason.NotPermittedForRole, reason.AgentRevoked, reason.EmergencyDeny, reason.OperationIDConflict, reason.NoPolicy,
		reason.SOPMalformed, reason.SOPVersionInvalid, reason.SOPEmpty, reason.SOPTooLarge,
	}
	late := []reason.Code{reason.QuotaExceeded, reason.MissingHandlers}
	switch {
	case len(r.steps) == 0 && !slices.Contains(early, reason.Code(d.Reason)):
		r.find(whole.Seq, "the decisions on the procedure's steps before it", describe(&whole.Event))
	case len(r.steps) > 0 && d.Reason != first &&
		(first != string(reason.SOPAdmitted) || d.Operation != "sop.submit" || !slices.Contains(late, reason.Code(d.Reason))):
		r.find(whole.Seq, first+", as its steps say", d.Reason)
	}
}

// doubtStep tries the checks of a step that need no arguments.
func (r *run) doubtStep(seq uint64, d *events.Decision, repeats, moment bool) bool {
	a := r.s.Agent(d.Subject)
	if a == nil || r.s.Policy == nil {
		r.find(seq, "no decision on a step: there is no such agent, or no policy", describe(&events.Event{Body: d}))
		return false
	}
	capability := ledger.StepCapability(d.Action)
	holds, _ := r.s.May(a, capability)
	want := reason.Code("")
	switch {
	case d.StepID == "" && !moment:
		want = reason.EmptyStepID
	case repeats:
		want = reason.DuplicateStepID
	case d.Action == events.Unsupported, d.Action == "agent.register", !r.s.Policy.KnownAction(capability):
		want = reason.UnknownAction
	case r.s.Denied(a, capability):
		want = reason.EmergencyDeny
	case !holds:
		want = reason.ActionNotInEffectiveCapabilities
	}
	judged := []reason.Code{reason.EmptyStepID, reason.DuplicateStepID, reason.UnknownAction, reason.EmergencyDeny, reason.ActionNotInEffectiveCapabilities}
	info, known := reason.Of(reason.Code(d.Reason))
	switch {
	case want != "" && d.Reason != string(want):
		r.find(seq, string(want), d.Reason)
	case want == "" && slices.Contains(judged, reason.Code(d.Reason)):
		r.find(seq, "another reason: this check lets it pass", d.Reason)
	case !known || info.Allowed != d.Allowed || d.Allowed && d.Reason != string(reason.StepAllowed):
		r.find(seq, "a reason of steps that goes with allowed or denied", quote(d.Reason))
	default:
		return true
	}
	return false
}

// doubtMoment holds the decision on a run's step at its moment, of which the
// arguments are missing, to what can be known of it.
func (r *run) doubtMoment(found *logged, d *events.Decision, current *projection.Run) {
	at := &current.Steps[current.Next]
	a := r.s.Agent(current.Agent)
	want := *d
	want.Subject, want.Lineage, want.PolicyVersion, want.PolicyDigest = current.Agent, a.LineageIDs(), r.s.PolicyVersion(), r.s.PolicyDigest()
	want.Resource, want.Action, want.OperationID, want.TraceID = current.SOPID+":"+at.ID, at.Action, "", ""
	want.SOPID, want.SOPVersion, want.StepID, want.RunID = current.SOPID, current.SOPVersion, at.ID, current.ID
	if !r.compare(found, events.Event{Time: found.Time, Agent: current.Agent, Body: &want}) {
		return
	}
	code := reason.Code("")
	switch {
	case a.Revoked:
		code = reason.AgentRevoked
	case r.s.Denied(a, ledger.StepCapability(at.Action)):
		code = reason.EmergencyDeny
	case r.s.Policy == nil:
		code = reason.NoPolicy
	case found.Time >= current.End():
		code = reason.EffectTimeout
	default:
		r.doubtStep(found.Seq, d, false, true)
		return
	}
	if d.Reason != string(code) {
		r.find(found.Seq, string(code), d.Reason)
	}
}

// momentFollows says what may follow from that decision: the effect, which of
// memory is done at once, or the end of the run.
func (r *run) momentFollows(d *events.Decision, current *projection.Run) []slot {
	at := &current.Steps[current.Next]
	if !d.Allowed {
		return []slot{exactly(&events.RunFailed{RunID: current.ID, StepID: at.ID, Reason: d.Reason})}
	}
	effect := events.Effect{RunID: current.ID, StepID: at.ID, Action: at.Action, OperationID: projection.EffectID(current.ID, at.ID)}
	if at.Action != "memory.read" && at.Action != "memory.write" && at.Action != "memory.delete" {
		return []slot{exactly(&events.EffectStarted{Effect: effect})}
	}
	effect.Handler = events.System
	slots := []slot{exactly(&events.EffectStarted{Effect: effect})}
	if at.Action != "memory.read" {
		slots = append(slots, r.ofRecord(at.Action, current.Agent)...)
	}
	return append(slots, exactly(&events.EffectFinished{Effect: effect}))
}

// ofRecord is what a memory step does to a record of the run's agent, whichever
// that is.
func (r *run) ofRecord(action, owner string) []slot {
	if action == "memory.delete" {
		return []slot{{typ: events.TypeMemoryDeleted, want: func(b events.Body) events.Body {
			found, ok := b.(*events.MemoryDeleted)
			if !ok {
				return nil
			}
			record := r.s.Live(owner, found.Namespace, found.Key, r.decision.Time)
			if record == nil || !r.s.Agent(owner).MayWriteIn(found.Namespace) {
				return nil
			}
			return &events.MemoryDeleted{Record: events.Record{
				Owner: owner, Namespace: found.Namespace, Key: found.Key,
				Visibility: record.Visibility, Class: string(record.Class), Revision: record.Revision + 1,
			}}
		}}}
	}
	within := func(pick int) func(events.Body) events.Body {
		return func(b events.Body) events.Body {
			namespace, key := "", ""
			switch b := b.(type) {
			case *events.MemoryExpired:
				namespace, key = b.Namespace, b.Key
			case *events.MemoryWritten:
				namespace, key = b.Namespace, b.Key
			}
			if namespace == "" || !r.s.Agent(owner).MayWriteIn(namespace) {
				return nil
			}
			return r.written(owner, namespace, key, ledger.StepOperation)[pick].want(b)
		}
	}
	return []slot{{optional: true, want: within(0)}, {typ: events.TypeMemoryWritten, want: within(1)}}
}

package replay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// A decision whose request is missing cannot be judged whole, but neither is it
// believed: the guards that need no request are tried again, and what follows
// must be what the decision itself lets follow.

// doubt holds the decision at hand, of which the request is missing, to the guards
// that need none.
func (r *run) doubt(seq uint64, d *events.Decision) {
	before := r.Found
	r.checkBase(seq, d)
	if r.Found != before {
		return
	}
	switch code, judged := r.certain(d); {
	case code != "" && d.Reason != string(code):
		r.find(seq, string(code), d.Reason)
	case code == "" && slices.Contains(judged, reason.Code(d.Reason)):
		r.find(seq, "another reason: this guard lets it pass", d.Reason)
	case d.Allowed && !slices.Contains(allowedAs(d.Operation), reason.Code(d.Reason)):
		r.find(seq, "a reason that allows "+quote(d.Operation), quote(d.Reason))
	case d.Reason == string(reason.MalformedRequest):
		r.find(seq, "no payload beside it: nothing of such a request is kept", "one")
	case d.Operation == "action.authorize" && d.Action != "" && d.Action != d.Resource:
		r.find(seq, "action "+quote(d.Resource), quote(d.Action))
	case d.Operation == "memory.write" && d.Allowed && d.PreviousRevision != r.revision(d.Resource):
		r.find(seq, "previous_revision "+uintText(r.revision(d.Resource)), uintText(d.PreviousRevision))
	case d.Operation == "action.authorize" && !r.mayBreak(d):
		r.find(seq, "rules that there are for "+quote(d.Action)+", and only where some are broken", fmt.Sprintf("%s with rule %s of %s, failed %v", d.Reason, quote(d.Rule), quote(d.Owner), d.Failed))
	case strings.HasPrefix(d.Operation, "grant.") && !strings.HasPrefix(d.Resource, d.Subject+":"):
		r.find(seq, "a record of "+d.Subject+" as resource", quote(d.Resource))
	}
}

// mayBreak reports whether a decision on an action tells of rules that arguments
// may have broken: those of the policy in force and of the lineage, in their order.
func (r *run) mayBreak(d *events.Decision) bool {
	code := reason.Code(d.Reason)
	a := r.s.Agent(d.Subject)
	if code != reason.RequirementFailed && code != reason.RequirementError || a == nil || r.s.Policy == nil {
		return d.Rule == "" && d.Owner == "" && len(d.Failed) == 0 && (code != reason.ArgumentSchema || a != nil && r.s.Policy != nil && r.ruled(a, d.Action))
	}
	var all []string
	rule, owner := map[string]string{}, map[string]string{}
	for _, clause := range r.s.Policy.Actions[d.Action].Require {
		all = append(all, clause.ID)
		rule[clause.ID] = clause.ID
	}
	for _, up := range slices.Backward(a.Lineage()) {
		for _, one := range up.Restrictions {
			if one.Action == d.Action {
				id := up.ID + ":" + one.ID
				all, rule[id], owner[id] = append(all, id), one.ID, up.ID
			}
		}
	}
	if len(d.Failed) == 0 || rule[d.Failed[0]] != d.Rule || owner[d.Failed[0]] != d.Owner {
		return false
	}
	for _, id := range d.Failed { // each further on than the one before
		at := slices.Index(all, id)
		if at < 0 {
			return false
		}
		all = all[at+1:]
	}
	return true
}

// ruled reports whether anything is asked of the arguments of an action.
func (r *run) ruled(a *projection.Agent, action string) bool {
	declared := r.s.Policy.Actions[action]
	return declared.Arguments != nil || len(declared.Require) > 0 || slices.ContainsFunc(a.Lineage(), func(up *projection.Agent) bool {
		return slices.ContainsFunc(up.Restrictions, func(one policy.Restriction) bool { return one.Action == action })
	})
}

// certain is the reason of the first guard that a proposal fails whatever it
// said, and the reasons of all guards that can be tried so.
func (r *run) certain(d *events.Decision) (code reason.Code, judged []reason.Code) {
	a := r.s.Agent(d.Subject)
	if a == nil || r.lane(d) != wire.Propose {
		return "", nil
	}
	whole := strings.HasPrefix(d.Operation, "sop.")
	judged = []reason.Code{reason.OperationIDConflict, reason.NoPolicy}
	if !whole { // else it may be a step's
		judged = append(judged, reason.EmergencyDeny, reason.AgentRevoked)
	}
	capability, lacks := capabilityOf(d)
	_, used := r.s.Operation(d.Subject, d.OperationID)
	switch {
	case a.Revoked:
		return reason.AgentRevoked, judged
	case r.s.Denied(a, capability):
		return reason.EmergencyDeny, judged
	case used && d.Operation != "memory.read":
		return reason.OperationIDConflict, judged
	case r.s.Policy == nil:
		return reason.NoPolicy, judged
	case d.Operation == "action.authorize":
		judged = append(judged, reason.UnknownAction)
		if !r.s.Policy.KnownAction(capability) {
			return reason.UnknownAction, judged
		}
	}
	if lacks == "" {
		return "", judged
	}
	if d.Operation != "agent.register" { // which may lack what it passes on
		judged = append(judged, lacks)
	}
	if ok, _ := r.s.May(a, capability); !ok {
		return lacks, judged
	}
	if d.Operation == "memory.write" || d.Operation == "memory.delete" {
		owner, namespace, _, _ := recordName(d.Resource)
		judged = append(judged, reason.ActorIsNotOwner, reason.NamespaceNotAllowed)
		switch {
		case owner != d.Subject:
			return reason.ActorIsNotOwner, judged
		case !a.MayWriteIn(namespace):
			return reason.NamespaceNotAllowed, judged
		}
	}
	return "", judged
}

// capabilityOf is what a proposal takes, as far as its decision says it, and the
// reason where that is lacking.
func capabilityOf(d *events.Decision) (string, reason.Code) {
	switch d.Operation {
	case "memory.read", "agent.register":
		return d.Operation, reason.CapabilityNotInherited
	case "memory.write", "memory.delete":
		return "memory.write", reason.CapabilityNotInherited
	case "action.authorize":
		return d.Resource, reason.ActionNotInEffectiveCapabilities
	}
	return "", ""
}

// allowedAs lists the reasons that allow an operation.
func allowedAs(operation string) []reason.Code {
	switch operation {
	case "memory.read":
		return []reason.Code{reason.VisibleFrom, reason.GrantedBy, reason.CombinedFrom}
	case "memory.write":
		return []reason.Code{reason.OwnerWrite}
	case "memory.delete":
		return []reason.Code{reason.OwnerDelete}
	case "action.authorize":
		return []reason.Code{reason.ActionAllowed}
	case "sop.validate", "sop.submit":
		return []reason.Code{reason.SOPAdmitted}
	case "run.cancel":
		return []reason.Code{reason.RunCancelAccepted}
	case "grant.give":
		return []reason.Code{reason.GrantGiven}
	case "grant.revoke":
		return []reason.Code{reason.GrantRevoked}
	case "restriction.add":
		return []reason.Code{reason.RestrictionAdded}
	case "agent.register", "principal.register":
		return []reason.Code{reason.Registered}
	}
	return []reason.Code{reason.ControlDone}
}

// recordName takes OWNER:NAMESPACE.KEY apart.
func recordName(resource string) (owner, namespace, key string, ok bool) {
	owner, name, named := strings.Cut(resource, ":")
	dot := strings.LastIndexByte(name, '.')
	if !named || dot < 0 {
		return "", "", "", false
	}
	return owner, name[:dot], name[dot+1:], true
}

// revision is the one that a record has when it is next written, what has expired
// counted.
func (r *run) revision(resource string) uint64 {
	owner, namespace, key, _ := recordName(resource)
	record := r.s.Record(owner, namespace, key)
	if record == nil {
		return 0
	}
	if gone := r.s.Expiry(record, r.decision.Time); gone != nil {
		return gone.Revision
	}
	return record.Revision
}

// slot is an event that may follow from a decision which could not be judged.
type slot struct {
	typ      events.Type // of what must come; empty where nothing must
	optional bool
	many     bool

	// want is what the event must be, what no decision tells taken from it; nil
	// where it is not to be.
	want func(events.Body) events.Body
}

// exactly is an event of which everything is known.
func exactly(b events.Body) slot {
	return slot{typ: b.Type(), want: func(found events.Body) events.Body {
		if found.Type() != b.Type() {
			return nil
		}
		return b
	}}
}

// anything is what follows where a finding says already that all is wrong.
func anything() []slot {
	return []slot{{optional: true, many: true, want: func(b events.Body) events.Body { return b }}}
}

// unjudgedEffect takes an event that follows from a decision that could not be
// judged: one that the decision lets follow.
func (r *run) unjudgedEffect(found logged) error {
	r.takenAsItIs()
	if found.Time != r.decision.Time || found.Agent != r.decision.Agent {
		r.find(found.Seq, "the time and agent of "+describeSeq(r.decision.Seq), describe(&found.Event))
	}
	want, at := r.slotOf(found.Body)
	for _, skipped := range r.slots[:at] {
		if !skipped.optional {
			r.find(found.Seq, string(skipped.typ)+", which follows from "+describeSeq(r.decision.Seq), describe(&found.Event))
		}
	}
	if want == nil {
		r.find(found.Seq, "no such event: "+describeSeq(r.decision.Seq)+" does not give it", describe(&found.Event))
	} else {
		if !r.slots[at].many {
			at++
		}
		r.slots = append(r.then, r.slots[at:]...)
		r.then = nil
		event := events.Event{Time: found.Time, Agent: found.Agent, Cause: found.Cause, Body: want, Payload: found.Payload}
		if !r.ownPayload(&found) {
			event.Payload = events.Hash{}
		}
		r.compare(&found, event)
	}
	open, err := r.openPayload(&found.Event, nil)
	if err != nil {
		return err
	}
	return r.apply(&found, open)
}

// slotOf finds the place of an event among those that may follow.
func (r *run) slotOf(found events.Body) (want events.Body, at int) {
	for i := range r.slots {
		if want = r.slots[i].want(found); want != nil {
			return want, i
		}
	}
	return nil, 0
}

// ownPayload tells the events that have a payload of their own: a policy, a
// mandatory record, and one whose value is in no request.
func (r *run) ownPayload(found *logged) bool {
	b, written := found.Body.(*events.MemoryWritten)
	if !written {
		return ledger.HasOpenPayload(found.Body)
	}
	d, ok := r.decision.Body.(*events.Decision)
	return b.Class == "mandatory" || ok && d.Operation != "memory.write" && d.Operation != "memory.load"
}

// mustFollow finds what of an outcome that could not be judged has not come.
func (r *run) mustFollow(seq uint64, found string) {
	for _, missing := range r.slots {
		if !missing.optional {
			r.find(seq, string(missing.typ)+", which follows from "+describeSeq(r.decision.Seq), found)
		}
	}
	r.slots = nil
}

// follows says what may follow from a decision on a proposal or control request.
func (r *run) follows(d *events.Decision) []slot {
	if !d.Allowed {
		return nil
	}
	asked := func(b events.Body) events.Body { return r.askedFor(d, b) }
	switch d.Operation {
	case "memory.write":
		owner, namespace, key, _ := recordName(d.Resource)
		return r.written(owner, namespace, key, d.Operation)
	case "memory.load":
		owner, namespace, key, _ := recordName(d.Resource)
		slots := r.written(owner, namespace, key, d.Operation)
		slots[len(slots)-1].want = func(b events.Body) events.Body {
			if found, ok := b.(*events.MemoryWritten); ok && found.Owner == owner && found.Namespace == namespace && found.Key == key {
				return r.loaded(d, found)
			}
			return nil
		}
		return slots
	case "sop.submit":
		return r.admitted(d)
	case "grant.give":
		return one(events.TypeGrantGiven, false, asked)
	case "grant.revoke":
		return one(events.TypeGrantRevoked, false, func(b events.Body) events.Body {
			g := b.(*events.GrantRevoked)
			if r.s.Grant(g.Grant, r.decision.Time) == nil {
				return nil
			}
			return named(d, b, g.Owner+":"+g.Namespace+"."+g.Key)
		})
	case "agent.register":
		return one(events.TypeAgentRegistered, false, asked)
	case "restriction.add":
		return one(events.TypeRestrictionAdded, true, asked)
	}
	return r.controlFollows(d)
}

// controlFollows is follows for what admins alone ask.
func (r *run) controlFollows(d *events.Decision) []slot {
	asked := func(b events.Body) events.Body { return r.askedFor(d, b) }
	switch d.Operation {
	case "principal.register":
		return one(events.TypePrincipalRegistered, false, asked)
	case "principal.rekey":
		return one(events.TypePrincipalRekeyed, false, asked)
	case "restriction.remove":
		return one(events.TypeRestrictionRemoved, false, asked)
	case "resource.set":
		return one(events.TypeResourceSet, true, asked)
	case "key.rotate":
		return one(events.TypeKeyRotated, false, asked)
	case "key.retire":
		return one(events.TypeKeyRetired, false, asked)
	case "environment.set":
		return one(events.TypeEnvironmentChanged, true, asked)
	case "signers.set":
		return one(events.TypeSignersSet, true, asked)
	case "emergency.lift":
		return one(events.TypeEmergencyLifted, false, asked)
	case "emergency.deny":
		return one(events.TypeEmergencyDenied, true, asked)
	case "hold.place":
		return one(events.TypeHoldPlaced, true, func(b events.Body) events.Body { return named(d, b, held(b.(*events.HoldPlaced).Hold)) })
	case "hold.lift":
		return one(events.TypeHoldLifted, false, func(b events.Body) events.Body { return named(d, b, held(b.(*events.HoldLifted).Hold)) })
	case "payload.erase":
		return r.erasing(d)
	case "run.resolve":
		return r.resolved(d)
	case "apply":
		return r.documents(d)
	}
	return nil
}

// one is an event of a type, as want says it.
func one(typ events.Type, optional bool, want func(events.Body) events.Body) []slot {
	return []slot{{typ: typ, optional: optional, want: func(b events.Body) events.Body {
		if b.Type() != typ {
			return nil
		}
		return want(b)
	}}}
}

// named is an event about what the decision names as its resource.
func named(d *events.Decision, b events.Body, name string) events.Body {
	if name != d.Resource {
		return nil
	}
	return b
}

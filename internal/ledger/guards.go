package ledger

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Guard is one step of the descent that Decide makes.
type Guard struct {
	Name   string
	Result string // passed, failed, not_reached
	Reason reason.Code
}

type guard struct {
	name  string
	codes []reason.Code
}

var (
	identityGuard   = guard{"identity", []reason.Code{reason.UnknownAgent, reason.AgentRevoked, reason.NotPermittedForRole}}
	shapeGuard      = guard{"shape", []reason.Code{reason.BadReplySubject, reason.MalformedRequest, reason.RequestTooLarge, reason.UnsupportedOperation}}
	emergencyGuard  = guard{"emergency", []reason.Code{reason.EmergencyDeny}} // a deny of everything stands before the shape
	sizeGuard       = guard{"size", []reason.Code{reason.RequestTooLarge}}
	retryGuard      = guard{"operation id", []reason.Code{reason.OperationIDConflict}}
	releaseGuard    = guard{"release", []reason.Code{reason.UnsupportedOperation}}
	policyGuard     = guard{"policy", []reason.Code{reason.NoPolicy}}
	capabilityGuard = guard{"capability", []reason.Code{reason.CapabilityNotInherited}}
	ownerGuard      = guard{"owner", []reason.Code{reason.ActorIsNotOwner}}
	namespaceGuard  = guard{"namespace", []reason.Code{reason.NamespaceNotAllowed}}
	valueGuard      = guard{"value", []reason.Code{reason.RequestTooLarge, reason.MandatoryTypeMismatch, reason.ValueNotAllowed}}
	revisionGuard   = guard{"revision", []reason.Code{reason.ExpectedRevisionRequired, reason.RevisionConflict}}
	procedureGuard  = guard{"procedure", []reason.Code{reason.SOPMalformed, reason.SOPVersionInvalid, reason.SOPEmpty, reason.SOPTooLarge}}
	stepsGuard      = guard{"every step", []reason.Code{
		reason.EmptyStepID, reason.DuplicateStepID, reason.UnknownAction, reason.ActionNotInEffectiveCapabilities,
		reason.CrossOwnerMemoryWrite, reason.ReferenceOutOfScope, reason.ArgumentSchema, reason.SOPMalformed, reason.RequestTooLarge, reason.MandatoryTypeMismatch, reason.NamespaceNotAllowed, reason.ValueNotAllowed, reason.EmergencyDeny,
		reason.RequirementFailed, reason.RequirementError,
	}}
	handlersGuard = guard{"handlers", []reason.Code{reason.MissingHandlers}}
	placeGuard    = guard{"place in the tree", []reason.Code{
		reason.MalformedRequest, reason.NameNotAllowed, reason.HierarchyCycle, reason.DuplicateAgent, reason.UnknownParent,
		reason.TooManyChildren, reason.HierarchyTooDeep, reason.KeyInUse,
	}}
)

// front are the guards before any operation's own.
var front = []guard{identityGuard, shapeGuard, emergencyGuard, retryGuard, releaseGuard, policyGuard}

// own are the guards of each operation, in the order that Decide tries them.
var own = map[string][]guard{
	"memory.read": {capabilityGuard, {"visibility", []reason.Code{
		reason.RecordNotFound, reason.NotVisibleFrom, reason.GrantRequired, reason.RecordUnavailable, reason.MandatoryTypeMismatch,
	}}},
	"memory.write":  {capabilityGuard, ownerGuard, namespaceGuard, valueGuard, revisionGuard},
	"memory.delete": {capabilityGuard, ownerGuard, namespaceGuard, revisionGuard},
	"action.authorize": {
		{"known action", []reason.Code{reason.UnknownAction}},
		{"effective capabilities", []reason.Code{reason.ActionNotInEffectiveCapabilities}},
		sizeGuard,
		{"argument schema", []reason.Code{reason.ArgumentSchema}},
		{"requirements", []reason.Code{reason.RequirementFailed, reason.RequirementError}},
	},
	"restriction.add": {{"restriction", []reason.Code{reason.RecordExists, reason.QuotaExceeded, reason.PolicyInvalid}}},
	"sop.validate":    {procedureGuard, stepsGuard},
	"sop.submit":      {procedureGuard, stepsGuard, {"open runs", []reason.Code{reason.QuotaExceeded}}, handlersGuard},
	StepOperation: {{"the run's time", []reason.Code{reason.EffectTimeout}}, stepsGuard, handlersGuard, {"the record", []reason.Code{
		reason.RecordNotFound, reason.NotVisibleFrom, reason.GrantRequired, reason.RecordUnavailable,
		reason.ActorIsNotOwner, reason.ExpectedRevisionRequired, reason.RevisionConflict,
	}}},
	"grant.give":   {{"an own secret", []reason.Code{reason.NotFound}}, {"grantee", []reason.Code{reason.NotFound}}, {"quota of grants", []reason.Code{reason.QuotaExceeded}}},
	"grant.revoke": {{"a grant in force", []reason.Code{reason.NotFound}}},
	"run.cancel":   {{"an open run of the sender's", []reason.Code{reason.NotFound, reason.RunCancelled, reason.InDoubt}}},
	"agent.register": {capabilityGuard, sizeGuard, placeGuard, {"what it passes on", []reason.Code{
		reason.CapabilityNotInherited, reason.UnknownAction,
	}}},
}

// guardsOf lists the guards of an operation in order.
func guardsOf(operation string) []guard {
	return append(append([]guard(nil), front...), own[operation]...)
}

// trace is the descent of one judgement: the guards it passed, and the one it
// failed.
type trace []Guard

// fails says to the trace what became of a guard, and returns failed. Every
// guard of a judgement is asked through it, so that what is explained is what
// was decided.
func (j *judge) fails(guard string, failed bool) bool {
	if j.trace == nil {
		return failed
	}
	result := "passed"
	if failed {
		result = "failed"
	}
	if t := *j.trace; len(t) > 0 && t[len(t)-1].Name == guard {
		t[len(t)-1].Result = result
	} else {
		*j.trace = append(t, Guard{Name: guard, Result: result})
	}
	return failed
}

// Trace is Decide with the descent it made: every guard tried in order, with
// the reason at the one that failed, and those behind it that were not reached.
func Trace(s *projection.State, p *Proposal) (*Outcome, []Guard) {
	var t trace
	o := &Outcome{}
	o.decide(s, p, &t)
	if o.Retry != 0 || o.Decision.Allowed {
		return o, t
	}
	code := reason.Code(o.Decision.Reason)
	if n := len(t); n == 0 || t[n-1].Result != "failed" {
		t = append(t, Guard{Name: o.Decision.Operation, Result: "failed"})
	}
	failed := &t[len(t)-1]
	failed.Reason = code
	return o, append(t, notReached(o.Decision.Operation, failed.Name)...)
}

// notReached lists the guards of an operation after the one named.
func notReached(operation, name string) (list []Guard) {
	found := false
	for _, g := range guardsOf(operation) {
		if found {
			list = append(list, Guard{Name: g.name, Result: "not_reached"})
		}
		found = found || g.name == name
	}
	return list
}

// Guards lists every guard of an operation in order, with what became of it
// where the outcome was code: for a decision of which no more is known. Where
// several could have given the code they are shown as one, in the last's place.
// An operation without guards of its own shows those before it only.
func Guards(operation string, code reason.Code) []Guard {
	var list []Guard
	stopped := ""
	for _, g := range guardsOf(operation) {
		switch {
		case g.stops(code) && stopped != "":
			i := slices.IndexFunc(list, func(g Guard) bool { return g.Result == "failed" })
			stopped += " or " + g.name
			list = append(list[:i], Guard{Name: stopped, Result: "failed", Reason: code})
		case g.stops(code):
			stopped = g.name
			list = append(list, Guard{Name: g.name, Result: "failed", Reason: code})
		case stopped != "":
			list = append(list, Guard{Name: g.name, Result: "not_reached"})
		default:
			list = append(list, Guard{Name: g.name, Result: "passed"})
		}
	}
	if stopped == "" && !code.Allowed() {
		list = append(list, Guard{Name: operation, Result: "failed", Reason: code})
	}
	return list
}

func (g guard) stops(code reason.Code) bool {
	for _, c := range g.codes {
		if c == code {
			return true
		}
	}
	return false
}

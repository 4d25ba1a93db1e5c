package ledger

import "github.com/ledgerd/ledgerd/internal/reason"

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
	shapeGuard      = guard{"shape", []reason.Code{reason.BadReplySubject, reason.MalformedRequest}} // its size too, where no operation has a guard for that
	emergencyGuard  = guard{"emergency", []reason.Code{reason.EmergencyDeny}}                        // a deny of everything stands before the shape
	sizeGuard       = guard{"size", []reason.Code{reason.RequestTooLarge}}
	retryGuard      = guard{"operation id", []reason.Code{reason.OperationIDConflict}}
	releaseGuard    = guard{"release", []reason.Code{reason.UnsupportedOperation}}
	policyGuard     = guard{"policy", []reason.Code{reason.NoPolicy}}
	capabilityGuard = guard{"capability", []reason.Code{reason.CapabilityNotInherited}}
	ownerGuard      = guard{"owner", []reason.Code{reason.ActorIsNotOwner}}
	valueGuard      = guard{"value", []reason.Code{reason.RequestTooLarge, reason.MandatoryTypeMismatch}}
	revisionGuard   = guard{"revision", []reason.Code{reason.ExpectedRevisionRequired, reason.RevisionConflict}}
	procedureGuard  = guard{"procedure", []reason.Code{reason.SOPMalformed, reason.SOPVersionInvalid, reason.SOPEmpty, reason.SOPTooLarge}}
	stepsGuard      = guard{"every step", []reason.Code{
		reason.EmptyStepID, reason.DuplicateStepID, reason.UnknownAction, reason.ActionNotInEffectiveCapabilities,
		reason.CrossOwnerMemoryWrite, reason.ReferenceOutOfScope, reason.ArgumentSchema, reason.RequestTooLarge, reason.MandatoryTypeMismatch,
	}}
	handlersGuard = guard{"handlers", []reason.Code{reason.MissingHandlers}}
	placeGuard    = guard{"place in the tree", []reason.Code{
		reason.NameNotAllowed, reason.HierarchyCycle, reason.DuplicateAgent, reason.UnknownParent,
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
	"memory.write":  {capabilityGuard, ownerGuard, valueGuard, revisionGuard},
	"memory.delete": {capabilityGuard, ownerGuard, revisionGuard},
	"action.authorize": {
		{"known action", []reason.Code{reason.UnknownAction}},
		{"effective capabilities", []reason.Code{reason.ActionNotInEffectiveCapabilities}},
		sizeGuard,
	},
	"sop.validate": {procedureGuard, stepsGuard},
	"sop.submit":   {procedureGuard, stepsGuard, {"open runs", []reason.Code{reason.QuotaExceeded}}, handlersGuard},
	StepOperation: {{"the run's time", []reason.Code{reason.EffectTimeout}}, stepsGuard, handlersGuard, {"the record", []reason.Code{
		reason.RecordNotFound, reason.NotVisibleFrom, reason.GrantRequired, reason.RecordUnavailable,
		reason.ActorIsNotOwner, reason.ExpectedRevisionRequired, reason.RevisionConflict,
	}}},
	"run.cancel":     {{"an open run of the sender's", []reason.Code{reason.NotFound, reason.RunCancelled, reason.InDoubt}}},
	"agent.register": {sizeGuard, placeGuard, {"capability, and what it passes on", []reason.Code{reason.CapabilityNotInherited, reason.UnknownAction}}},
}

// Guards lists every guard of an operation in order, with what became of it
// where the outcome was code. An operation without guards of its own shows
// those before it only.
func Guards(operation string, code reason.Code) []Guard {
	var list []Guard
	failed := false
	for _, g := range append(append([]guard(nil), front...), own[operation]...) {
		entry := Guard{Name: g.name, Result: "passed"}
		switch {
		case failed:
			entry.Result = "not_reached"
		case g.stops(code):
			entry.Result, entry.Reason, failed = "failed", code, true
		}
		list = append(list, entry)
	}
	if !failed && !code.Allowed() {
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

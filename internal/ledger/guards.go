package ledger

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
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
	policyGuard     = guard{"policy", []reason.Code{reason.NoPolicy}}
	capabilityGuard = guard{"capability", []reason.Code{reason.CapabilityNotInherited}}
	ownerGuard      = guard{"owner", []reason.Code{reason.ActorIsNotOwner}}
	namespaceGuard  = guard{"namespace", []reason.Code{reason.NamespaceNotAllowed}}
	valueGuard      = guard{"value", []reason.Code{reason.RequestTooLarge, reason.MandatoryTypeMismatch, reason.ValueNotAllowed}}
	lifetimeGuard   = guard{"time to live", []reason.Code{reason.ValueNotAllowed}}
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
var front = []guard{identityGuard, shapeGuard, emergencyGuard, retryGuard, policyGuard}

// own are the guards of each operation, in the order that Decide tries them.
var own = map[string][]guard{
	"memory.read": {capabilityGuard, {"visibility", []reason.Code{
		reason.RecordNotFound, reason.NotVisibleFrom, reason.GrantRequired, reason.RecordUnavailable, reason.MandatoryTypeMismatch,
	}}},
	"memory.write":  {capabilityGuard, ownerGuard, namespaceGuard, valueGuard, lifetimeGuard, revisionGuard, {"quota of records", []reason.Code{reason.QuotaExceeded}}},
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
		reason.ActorIsNotOwner, reason.ExpectedRevisionRequired, reason.RevisionConflict, reason.QuotaExceeded,
	}}},
	"grant.give":   {{"an own secret", []reason.Code{reason.NotFound}}, {"grantee", []reason.Code{reason.NotFound}}, {"quota of grants", []reason.Code{reason.QuotaExceeded}}},
	"grant.revoke": {{"a grant in force", []reason.Code{reason.NotFound}}},
	"run.cancel":   {{"an open run of the sender's", []reason.Code{reason.NotFound, reason.RunCancelled, reason.InDoubt}}},
	"agent.register": {capabilityGuard, sizeGuard, placeGuard, {"what it passes on", []reason.Code{
		reason.CapabilityNotInherited, reason.UnknownAction,
	}}, {"quota of agents", []reason.Code{reason.QuotaExceeded}}},
}

// guardsOf lists the guards of an operation in order.
func guardsOf(operation string) []guard {
	return append(append([]guard(nil), front...), own[operation]...)
}

// trace is the descent of one judgement: the guards it passed, the one it
// failed, and what came of the rules and the steps it asked.
type trace struct {
	guards []Guard
	whole  Found
	steps  []stepTrace
	asks   bool // a rule asked for a mandatory record
}

type stepTrace struct {
	step   *sop.Step
	guards []Guard
	found  Found
}

// Found is what a judgement found wrong with arguments.
type Found struct {
	Rules  []BrokenRule // the policy's first, then the root's and so on down
	Schema *policy.SchemaFault
}

// BrokenRule is a requirement that arguments do not fulfil.
type BrokenRule struct {
	ID, Owner string // no owner: the policy's
	Text      string // in CEL
	Err       string // why it could not be judged; empty where it is false
}

// found is where what is found belongs: to the step under judgement, else to
// the whole.
func (t *trace) found() *Found {
	if n := len(t.steps); n > 0 {
		return &t.steps[n-1].found
	}
	return &t.whole
}

// asked notes a check of a step.
func (t *trace) asked(step *sop.Step, check string, failed bool) {
	if n := len(t.steps); n == 0 || t.steps[n-1].step != step {
		t.steps = append(t.steps, stepTrace{step: step})
	}
	at := &t.steps[len(t.steps)-1]
	at.guards = tried(at.guards, check, failed)
}

// tried adds what became of a guard to a list of them; of one that is asked
// several times there is one entry.
func tried(list []Guard, name string, failed bool) []Guard {
	result := "passed"
	if failed {
		result = "failed"
	}
	if n := len(list); n > 0 && list[n-1].Name == name {
		list[n-1].Result = result
		return list
	}
	return append(list, Guard{Name: name, Result: result})
}

// fails says to the trace what became of a guard, and returns failed. Every
// guard of a judgement is asked through it, so that what is explained is what
// was decided.
func (j *judge) fails(guard string, failed bool) bool {
	if j.trace != nil {
		j.trace.guards = tried(j.trace.guards, guard, failed)
	}
	return failed
}

// Trace is Decide with the descent it made: every guard tried in order, with
// the reason at the one that failed, and those behind it that were not reached.
func Trace(s *projection.State, p *Proposal) (*Outcome, Descent) {
	var t trace
	o := &Outcome{}
	o.decide(s, p, &t)
	d := Descent{Guards: t.guards, Found: t.whole, Asks: t.asks}
	for i := range t.steps {
		step := &t.steps[i]
		entry := StepDescent{Guards: step.guards, Found: step.found, Capability: step.step.Capability()}
		if code := reason.Code(o.stepReason(i)); !code.Allowed() && code != "" {
			entry.Guards = unreached(entry.Guards, code, sop.Checks(step.step.Action))
		}
		d.Steps = append(d.Steps, entry)
	}
	if o.Retry != 0 || o.Decision.Allowed {
		return o, d
	}
	if n := len(d.Guards); n == 0 || d.Guards[n-1].Result != "failed" {
		d.Guards = append(d.Guards, Guard{Name: o.Decision.Operation, Result: "failed"})
	}
	var names []string
	for _, g := range guardsOf(o.Decision.Operation) {
		names = append(names, g.name)
	}
	d.Guards = unreached(d.Guards, reason.Code(o.Decision.Reason), names)
	return o, d
}

// Descent is how a judgement came about.
type Descent struct {
	Guards []Guard
	Found
	Steps []StepDescent // of a procedure, in their order
	Asks  bool          // what came out may depend on the agent's mandatory records
}

// StepDescent is how the judgement of one step came about.
type StepDescent struct {
	Guards []Guard
	Found
	Capability string // that the step needs
}

func (o *Outcome) stepReason(i int) string {
	if i >= len(o.Steps) {
		return ""
	}
	return o.Steps[i].Reason
}

// unreached gives the last guard, which failed, its reason, and adds those of
// names that stand behind it.
func unreached(list []Guard, code reason.Code, names []string) []Guard {
	failed := &list[len(list)-1]
	failed.Reason = code
	if at := slices.Index(names, failed.Name); at >= 0 {
		for _, name := range names[at+1:] {
			list = append(list, Guard{Name: name, Result: "not_reached"})
		}
	}
	return list
}

// Guards lists every guard of an operation in order, with what became of it
// where the outcome was code: for a decision of which no more is known. Where
// several could have given the code they are shown as one, in the last's place.
// An operation without guards of its own shows those before it only.
func Guards(operation string, code reason.Code) []Guard {
	return guardsFor(guardsOf(operation), operation, code)
}

// StepGuards is Guards for the step of a procedure.
func StepGuards(action string, code reason.Code) []Guard {
	var list []guard
	for _, name := range sop.Checks(action) {
		list = append(list, guard{name, stepCodes[name]})
	}
	return guardsFor(list, action, code)
}

// stepCodes are the reasons that each check of a step can give.
var stepCodes = map[string][]reason.Code{
	sop.CheckID:         {reason.EmptyStepID, reason.DuplicateStepID},
	sop.CheckKnown:      {reason.UnknownAction},
	sop.CheckEmergency:  {reason.EmergencyDeny},
	sop.CheckHolds:      {reason.ActionNotInEffectiveCapabilities},
	sop.CheckOwner:      {reason.CrossOwnerMemoryWrite},
	sop.CheckReferences: {reason.ReferenceOutOfScope},
	sop.CheckSize:       {reason.RequestTooLarge},
	sop.CheckSchema:     {reason.ArgumentSchema, reason.SOPMalformed, reason.RequestTooLarge},
	sop.CheckNamespace:  {reason.NamespaceNotAllowed},
	sop.CheckValue:      {reason.MandatoryTypeMismatch, reason.ValueNotAllowed},
	sop.CheckRules:      {reason.RequirementFailed, reason.RequirementError},
}

func guardsFor(rows []guard, operation string, code reason.Code) []Guard {
	var list []Guard
	stopped := ""
	for _, g := range rows {
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

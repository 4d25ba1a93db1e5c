package sop

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Scope is all that a judgement may know of the proposer.
type Scope struct {
	Agent   string   // who proposes
	Lineage []string // the proposer, its parent, … its root
	World

	// Asked is told what became of every check, in order; nil where nobody asks
	// how it came about.
	Asked func(step *Step, check string, failed bool)
}

// World answers what a judgement asks of the proposer.
type World interface {
	Known(action string) bool      // the policy in force knows the action
	Denied(capability string) bool // an emergency deny takes it
	Holds(capability string) bool  // it is among the proposer's effective capabilities
	Within(namespace string) bool  // the proposer may write in it

	// Write judges what memory.write would put under a name, canonical JSON, for
	// so many seconds, 0 where the step does not say; "" where nothing forbids it.
	Write(namespace, key string, value []byte, seconds uint64) reason.Code

	// Rules judges the arguments of a declared action; "" where nothing forbids
	// them.
	Rules(step *Step) reason.Code
}

// The checks of a step, as Scope.Asked names them.
const (
	CheckID         = "step id"
	CheckKnown      = "known action"
	CheckEmergency  = "emergency"
	CheckHolds      = "effective capabilities"
	CheckOwner      = "owner"
	CheckReferences = "references"
	CheckSize       = "size"
	CheckSchema     = "argument schema"
	CheckNamespace  = "namespace"
	CheckValue      = "value"
	CheckRules      = "requirements"
)

// fails tells whoever asks of a check, and returns failed.
func (s *Step) fails(scope *Scope, check string, failed bool) bool {
	if scope.Asked != nil {
		scope.Asked(s, check, failed)
	}
	return failed
}

// StepResult is the verdict on one step.
type StepResult struct {
	StepID string      // empty where the step's is
	Action string      // the step's, or events.Unsupported where that is no action's name
	Reason reason.Code // reason.StepAllowed, or the first check that fails
}

// Room is what a procedure is judged in. What Validate returns lies in it, until
// it is used again.
type Room struct{ results []StepResult }

// Validate is Room.Validate in room of its own.
func Validate(sop SOP, scope Scope) ([]StepResult, reason.Code) {
	return new(Room).Validate(sop, scope)
}

// Validate judges every step, good or bad, in the order of the steps, and the
// whole: reason.SOPAdmitted only if every step is allowed, else the reason of
// the first that is not. Scope is asked for names only; no step sees another,
// save that an id may stand once.
func (r *Room) Validate(sop SOP, scope Scope) ([]StepResult, reason.Code) {
	r.results = slices.Grow(r.results[:0], len(sop.Steps))
	whole := reason.SOPAdmitted
	if len(sop.Steps) == 0 {
		whole = reason.SOPEmpty
	}
	for i := range sop.Steps {
		step := &sop.Steps[i]
		code := step.judge(sop.Steps[:i], &scope)
		action := step.Action
		if !events.ValidAction(action) {
			action = events.Unsupported
		}
		r.results = append(r.results, StepResult{step.ID, action, code})
		if code != reason.StepAllowed && whole == reason.SOPAdmitted {
			whole = code
		}
	}
	return r.results, whole
}

// Judge is the verdict on one step alone: reason.StepAllowed or the first check
// that fails. It is how a step is judged again at its moment.
func Judge(step Step, scope Scope) reason.Code { return step.judge(nil, &scope) }

// judge descends the checks in their fixed order.
func (s *Step) judge(before []Step, scope *Scope) reason.Code {
	switch {
	case s.fails(scope, CheckID, s.ID == ""):
		return reason.EmptyStepID
	case s.fails(scope, CheckID, s.repeats(before)):
		return reason.DuplicateStepID
	case s.fails(scope, CheckKnown, !s.known(scope)):
		return reason.UnknownAction
	case s.fails(scope, CheckEmergency, scope.Denied(s.Capability())):
		return reason.EmergencyDeny
	case s.fails(scope, CheckHolds, !scope.Holds(s.Capability())):
		return reason.ActionNotInEffectiveCapabilities
	case s.fails(scope, CheckOwner, s.writesElsewhere(scope.Agent)):
		return reason.CrossOwnerMemoryWrite
	case s.fails(scope, CheckReferences, s.refersOutside(scope.Lineage)):
		return reason.ReferenceOutOfScope
	}
	if code := s.checkArguments(scope); code != "" {
		return code
	}
	return reason.StepAllowed
}

// repeats reports whether an earlier step has the same id. There are few enough
// of them to look through.
func (s *Step) repeats(before []Step) bool {
	last := len(s.ID) - 1 // where ids of one procedure are most unlike
	for i := range before {
		if id := before[i].ID; len(id) == len(s.ID) && id[last] == s.ID[last] && id == s.ID {
			return true
		}
	}
	return false
}

// known asks the policy. memory.delete is a step wherever memory.write is one;
// agent.register never is.
func (s *Step) known(scope *Scope) bool {
	switch {
	case !events.ValidAction(s.Action), s.Action == "agent.register":
		return false
	case s.Action == "memory.delete":
		return scope.Known("memory.write")
	}
	return scope.Known(s.Action)
}

// Capability is what a step needs: its action, or memory.write to delete.
func (s *Step) Capability() string {
	if s.Action == "memory.delete" {
		return "memory.write"
	}
	return s.Action
}

func (s *Step) writesElsewhere(agent string) bool {
	if s.Action != "memory.write" && s.Action != "memory.delete" {
		return false
	}
	owner, _ := s.arguments.Get("owner_agent_id")
	return owner.Kind != events.String || owner.Text != agent
}

// refersOutside looks for an owner_agent_id outside the lineage: at any depth
// in the arguments of an action, whose shape nobody has checked, and at the top
// of those of memory, whose value is data and names nobody.
func (s *Step) refersOutside(lineage []string) bool {
	if s.memory() {
		owner, ok := s.arguments.Get("owner_agent_id")
		return ok && !within(lineage, owner)
	}
	return s.arguments != nil && anyOutside(lineage, s.arguments)
}

func anyOutside(lineage []string, v *events.Value) bool {
	for i := range v.Members {
		m := &v.Members[i]
		if m.Name == "owner_agent_id" && !within(lineage, m.Value) || anyOutside(lineage, &m.Value) {
			return true
		}
	}
	for i := range v.Elements {
		if anyOutside(lineage, &v.Elements[i]) {
			return true
		}
	}
	return false
}

func within(lineage []string, owner events.Value) bool {
	return owner.Kind == events.String && slices.Contains(lineage, owner.Text)
}

// checkArguments returns no code for arguments within the limits that, for
// memory, have the shape of the direct operation and a value of the type its
// name asks for.
func (s *Step) checkArguments(scope *Scope) reason.Code {
	if s.fails(scope, CheckSize, len(s.Arguments) > events.ArgumentsBytesMax) {
		return reason.RequestTooLarge
	}
	if s.memory() {
		return s.checkMemory(scope)
	}
	code := scope.Rules(s)
	if !s.fails(scope, CheckSchema, code == reason.ArgumentSchema) {
		s.fails(scope, CheckRules, code != "")
	}
	return code
}

func (s *Step) memory() bool {
	return s.Action == "memory.read" || s.Action == "memory.write" || s.Action == "memory.delete"
}

func (s *Step) checkMemory(scope *Scope) reason.Code {
	code := s.shape()
	switch {
	case s.fails(scope, CheckSchema, code != ""):
		return code
	case s.Action == "memory.read":
		return ""
	case s.fails(scope, CheckNamespace, s.outside(scope)):
		return reason.NamespaceNotAllowed
	case s.Action == "memory.delete":
		return ""
	}
	code = s.forbidden(scope)
	s.fails(scope, CheckValue, code != "")
	return code
}

// Checks lists the checks of an action's step in their order.
func Checks(action string) []string {
	list := []string{CheckID, CheckKnown, CheckEmergency, CheckHolds, CheckOwner, CheckReferences, CheckSize, CheckSchema}
	switch action {
	case "memory.read":
		return list
	case "memory.write":
		return append(list, CheckNamespace, CheckValue)
	case "memory.delete":
		return append(list, CheckNamespace)
	}
	return append(list, CheckRules)
}

// outside reports whether a step writes where the proposer may not.
func (s *Step) outside(scope *Scope) bool {
	namespace, _ := s.arguments.Get("namespace")
	return !scope.Within(namespace.Text)
}

// forbidden asks what is wrong with the value of a write.
func (s *Step) forbidden(scope *Scope) reason.Code {
	namespace, _ := s.arguments.Get("namespace")
	key, _ := s.arguments.Get("key")
	value, _ := s.arguments.Get("value")
	ttl, _ := s.arguments.Get("ttl_seconds")
	seconds, _ := ttl.Int()
	return scope.Write(namespace.Text, key.Text, value.AppendCanonical(nil), uint64(seconds))
}

// shape holds the arguments of a memory step to those of the direct operation.
func (s *Step) shape() reason.Code {
	required, optional := []string{"namespace", "key"}, []string{"owner_agent_id"}
	switch s.Action {
	case "memory.write":
		required, optional = []string{"owner_agent_id", "namespace", "key", "value"}, []string{"visibility", "expected_revision", "ttl_seconds"}
	case "memory.delete":
		required, optional = []string{"owner_agent_id", "namespace", "key", "expected_revision"}, nil
	}
	for _, name := range required {
		if _, ok := s.arguments.Get(name); !ok {
			return reason.ArgumentSchema
		}
	}
	for _, m := range s.arguments.Members {
		if !slices.Contains(required, m.Name) && !slices.Contains(optional, m.Name) || !rightKind(m) {
			return reason.ArgumentSchema
		}
	}
	namespace, _ := s.arguments.Get("namespace")
	key, _ := s.arguments.Get("key")
	if !events.ValidNamespace(namespace.Text) || !events.ValidKey(key.Text) {
		return reason.SOPMalformed
	}
	if value, ok := s.arguments.Get("value"); ok && len(value.AppendCanonical(nil)) > events.ValueBytesMax {
		return reason.RequestTooLarge
	}
	return ""
}

func rightKind(m events.Member) bool {
	switch m.Name {
	case "owner_agent_id", "namespace", "key":
		return m.Value.Kind == events.String
	case "visibility":
		return m.Value.Kind == events.String && events.ValidVisibility(m.Value.Text)
	case "expected_revision":
		n, ok := m.Value.Int()
		return ok && n >= 1
	case "ttl_seconds":
		n, ok := m.Value.Int()
		return ok && 1 <= n && n <= events.TTLSecondsMax
	}
	return m.Value.Kind != events.Null // a value
}

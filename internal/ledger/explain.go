package ledger

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Explanation is what a request would meet, guard by guard, why it is denied,
// and what would be allowed in its place.
type Explanation struct {
	Decision *events.Decision
	Steps    []*events.Decision
	Notes    []string // what the sender is told beside the reason
	Descent
	Why
	StepWhy []Why // of Descent.Steps
}

// Why is what brings a denial about, beside the rules that arguments break.
type Why struct {
	Removed []Removed           // what it needs and its sender lacks
	Writes  []LevelWrites       // that forbid the namespace, the root's first
	Values  []policy.ValueFault // of the value
	Instead Instead
}

// Removed is a capability, and every level that lacks it.
type Removed struct {
	Capability string
	Levels     []projection.Lack
}

// LevelWrites is what an agent's writes allow.
type LevelWrites struct {
	Agent  string
	Writes policy.Set
}

// Instead is what would be allowed; empty where nothing is known of it.
type Instead struct {
	Action       string     // the sender's with the nearest name
	Agent        string     // the nearest above it that may do what it may not
	Capabilities policy.Set // that the sender may use itself
	Writes       policy.Set // where it may write
	Revision     uint64     // that the record has
}

// CapabilityOf is the capability that a request takes; empty where none is asked
// for by itself.
func CapabilityOf(r *wire.Request) string { return capabilityOf(r) }

// StepCapability is the capability that a step of an action takes.
func StepCapability(action string) string {
	step := sop.Step{Action: action}
	return step.Capability()
}

// Explain judges a request at now without any effect: no event, no value.
func Explain(s *projection.State, now events.Time, lane wire.Lane, subject, operation string, request []byte) Explanation {
	r, code, fault := wire.Read(lane, operation, request)
	if r != nil {
		r.OperationID = "" // whether an id was used before is no guard on the request
	}
	return explain(s, &Proposal{Lane: lane, Subject: subject, Operation: wire.Known(lane, operation), Refused: code, Fault: fault, Request: r, Now: now})
}

func explain(s *projection.State, p *Proposal) Explanation {
	o, descent := Trace(s, p)
	e := Explanation{Decision: o.Decision, Steps: o.Steps, Notes: o.Faults, Descent: descent}
	a := s.Agent(p.Subject)
	if a == nil || p.Request == nil || o.Retry != 0 {
		return e
	}
	e.Why = whyNot(s, a, o.Decision, capabilityOf(p.Request), p.Request.Body)
	for i, step := range descent.Steps {
		var body any
		if r, _ := wire.Decode(wire.Propose, o.Steps[i].Action, o.procedure[i].Arguments); r != nil {
			body = r.Body
		}
		e.StepWhy = append(e.StepWhy, whyNot(s, a, o.Steps[i], step.Capability, body))
	}
	return e
}

// whyNot is what stands behind a denial of a. body is the request's, or nil.
func whyNot(s *projection.State, a *projection.Agent, d *events.Decision, capability string, body any) (w Why) {
	switch reason.Code(d.Reason) {
	case reason.CapabilityNotInherited, reason.ActionNotInEffectiveCapabilities, reason.EmergencyDeny:
		w.lacks(s, a, capability, s.LacksUse(a, capability))
		if child, ok := body.(*wire.AgentRegister); ok && len(w.Removed) == 0 {
			for _, passed := range policy.NewSet(child.Capabilities...) {
				w.lacks(s, a, passed, s.Lacks(a, passed))
			}
		}
	case reason.UnknownAction:
		w.Instead.Action = policy.Nearest(capability, mayUse(s, a))
	case reason.NamespaceNotAllowed:
		switch b := body.(type) {
		case *wire.MemoryWrite:
			w.forbids(a, b.Namespace)
		case *wire.MemoryDelete:
			w.forbids(a, b.Namespace)
		}
	case reason.ValueNotAllowed:
		if b, ok := body.(*wire.MemoryWrite); ok {
			w.Values = s.Policy.ValueFaults(b.Namespace, b.Key, b.Value)
		}
	case reason.ExpectedRevisionRequired, reason.RevisionConflict:
		w.Instead.Revision = d.PreviousRevision
	}
	return w
}

// lacks notes the levels that lack a capability, and the nearest agent above
// that may do what it allows.
func (w *Why) lacks(s *projection.State, a *projection.Agent, capability string, levels []projection.Lack) {
	if capability == "" || len(levels) == 0 {
		return
	}
	w.Removed = append(w.Removed, Removed{capability, levels})
	w.Instead.Capabilities = mayUse(s, a)
	for up := a.Parent; up != nil && len(w.Removed) == 1; up = up.Parent {
		if ok, _ := s.May(up, capability); ok {
			w.Instead.Agent = up.ID
			return
		}
	}
}

// mayUse is what an agent may do itself.
func mayUse(s *projection.State, a *projection.Agent) policy.Set {
	if len(a.Use) > 0 {
		return s.Effective(a).Intersect(a.Use)
	}
	return s.Effective(a)
}

// forbids notes the levels whose writes do not allow a namespace, and what all
// of them do.
func (w *Why) forbids(a *projection.Agent, namespace string) {
	var levels []policy.Set
	for _, level := range slices.Backward(a.Lineage()) {
		levels = append(levels, level.Writes)
		if len(level.Writes) > 0 && !policy.Writable(level.Writes, namespace) {
			w.Writes = append(w.Writes, LevelWrites{level.ID, level.Writes})
		}
	}
	w.Instead.Writes = policy.CommonWrites(levels)
}

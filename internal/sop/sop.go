// Package sop reads standard operating procedures and judges every step before
// the first effect. First calls: Parse, then Validate.
//
// It is pure and touches no tool: it looks nothing up, normalises nothing that
// a handler would see, and knows of the world only what its Scope says.
package sop

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// SOP is one procedure of the documented shape.
type SOP struct {
	ID      string
	Version int64  // 1 to events.IntegerMax
	Steps   []Step // 1 to events.SOPStepsMax
}

// Step is one step. Nothing is promised of its Action: it may be any text, and
// its ID may be empty.
type Step struct {
	ID        string
	Action    string
	Arguments []byte // canonical JSON, an object

	arguments events.Value
}

// Parse reads the "sop" of a request. It returns the procedure and no code, or
// the code of the first fault of the whole, in the order of its fields; the
// procedure then has no steps, and ID and Version only where they are valid.
//
// What is wrong with one step alone is left to Validate: an empty id, an action
// that is none, arguments other than the action's.
func Parse(v events.Value) (SOP, reason.Code) {
	if v.Kind != events.Object {
		return SOP{}, reason.SOPMalformed
	}
	id, _ := v.Get("sop_id")
	version, versioned := v.Get("version")
	steps, _ := v.Get("steps")
	var sop SOP
	if id.Kind == events.String && events.ValidToken(id.Text) {
		sop.ID = id.Text
	}
	if n, ok := version.Int(); ok && n >= 1 {
		sop.Version = n
	}
	switch {
	case sop.ID == "" || !versioned || len(v.Members) != 3:
		return sop, reason.SOPMalformed
	case sop.Version == 0:
		return sop, reason.SOPVersionInvalid
	case steps.Kind != events.Array:
		return sop, reason.SOPMalformed
	case len(steps.Elements) == 0:
		return sop, reason.SOPEmpty
	case len(steps.Elements) > events.SOPStepsMax:
		return sop, reason.SOPTooLarge
	}
	parsed := make([]Step, len(steps.Elements))
	canonical := make([]byte, 0, 64*len(parsed)) // of all arguments, end to end
	for i := range steps.Elements {
		var ok bool
		if canonical, ok = parsed[i].parse(&steps.Elements[i], canonical); !ok {
			return sop, reason.SOPMalformed
		}
	}
	sop.Steps = parsed
	return sop, ""
}

// parse reads a step and appends its canonical arguments to canonical.
func (s *Step) parse(v *events.Value, canonical []byte) ([]byte, bool) {
	var id, action events.Value
	s.arguments = events.Value{Kind: events.Object}
	for i := range v.Members {
		switch m := &v.Members[i]; m.Name {
		case "step_id":
			id = m.Value
		case "action":
			action = m.Value
		case "arguments":
			s.arguments = m.Value
		default:
			return canonical, false
		}
	}
	if id.Kind != events.String || action.Kind != events.String || s.arguments.Kind != events.Object {
		return canonical, false
	}
	if id.Text != "" && !events.ValidToken(id.Text) {
		return canonical, false
	}
	start := len(canonical)
	canonical = s.arguments.AppendCanonical(canonical)
	s.ID, s.Action, s.Arguments = id.Text, action.Text, canonical[start:len(canonical):len(canonical)]
	return canonical, true
}

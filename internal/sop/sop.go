// Package sop reads standard operating procedures and judges every step before
// the first effect. First calls: Parse, then Validate.
//
// It is pure and touches no tool: it looks nothing up, normalises nothing that
// a handler would see, and knows of the world only what its Scope says.
package sop

import (
	"fmt"
	"slices"

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

	arguments *events.Value
}

var noArguments = events.Value{Kind: events.Object}

// Room is what a procedure is read and judged in. What Parse and Validate return
// lies in it, until it is used again.
type Room struct {
	steps     []Step
	canonical []byte // of all arguments, end to end
	results   []StepResult
}

// Parse is Room.Parse in room of its own.
func Parse(v events.Value) (SOP, reason.Code) { return new(Room).Parse(v) }

// Parse reads the "sop" of a request. It returns the procedure and no code, or
// the code of the first fault of the whole, in the order of its fields; the
// procedure then has no steps, and ID and Version only where they are valid.
//
// What is wrong with one step alone is left to Validate: an empty id, an action
// that is none, arguments other than the action's.
func (r *Room) Parse(v events.Value) (SOP, reason.Code) {
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
	n := len(steps.Elements)
	r.steps, r.canonical = slices.Grow(r.steps[:0], n)[:n], slices.Grow(r.canonical[:0], 64*n)
	for i := range steps.Elements {
		var ok bool
		if r.canonical, ok = r.steps[i].parse(&steps.Elements[i], r.canonical); !ok {
			return sop, reason.SOPMalformed
		}
	}
	sop.Steps = r.steps
	return sop, ""
}

// Fault says what is malformed about the "sop" of a request, for its sender:
// names of ours and places, nothing of what was sent; "" where nothing is.
func Fault(v events.Value) string {
	if v.Kind != events.Object {
		return "sop is an object"
	}
	for _, m := range v.Members {
		if m.Name != "sop_id" && m.Name != "version" && m.Name != "steps" {
			return "a procedure has sop_id, version and steps, and no other member"
		}
	}
	if id, _ := v.Get("sop_id"); id.Kind != events.String || !events.ValidToken(id.Text) {
		return "sop_id is missing or no name"
	}
	if _, ok := v.Get("version"); !ok {
		return "version is missing"
	}
	steps, _ := v.Get("steps")
	if steps.Kind != events.Array {
		return "steps is missing or no list"
	}
	for i := range steps.Elements {
		if fault := stepFault(steps.Elements[i]); fault != "" {
			return fmt.Sprintf("step %d: %s", i+1, fault)
		}
	}
	return ""
}

func stepFault(v events.Value) string {
	if v.Kind != events.Object {
		return "a step is an object"
	}
	for _, m := range v.Members {
		if m.Name != "step_id" && m.Name != "action" && m.Name != "arguments" {
			return "a step has step_id, action and arguments, and no other member"
		}
	}
	if id, _ := v.Get("step_id"); id.Kind != events.String || id.Text != "" && !events.ValidToken(id.Text) {
		return "step_id is missing or no name"
	}
	if action, _ := v.Get("action"); action.Kind != events.String {
		return "action is missing or no text"
	}
	if arguments, ok := v.Get("arguments"); ok && arguments.Kind != events.Object {
		return "arguments are an object"
	}
	return ""
}

// parse reads a step and appends its canonical arguments to canonical.
func (s *Step) parse(v *events.Value, canonical []byte) ([]byte, bool) {
	var none events.Value
	id, action := &none, &none
	s.arguments = &noArguments
	for i := range v.Members {
		switch m := &v.Members[i]; m.Name {
		case "step_id":
			id = &m.Value
		case "action":
			action = &m.Value
		case "arguments":
			s.arguments = &m.Value
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

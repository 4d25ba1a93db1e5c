// Package sop reads standard operating procedures and judges every step before
// the first effect. First calls: Parse or Scan, then Validate.
//
// It is pure and touches no tool: it looks nothing up, normalises nothing that
// a handler would see, and knows of the world only what its Scope says.
package sop

import (
	"fmt"

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
	Resource  string // what a decision on it names: the procedure and the step
	Arguments []byte // canonical JSON, an object

	arguments *events.Value // the same, where a check looks into them; else nil
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
	d := draft{procedure: sop.ID}
	var canonical []byte
	for i := range steps.Elements {
		var ok bool
		if canonical, ok = d.parse(&steps.Elements[i], canonical); !ok {
			return sop, reason.SOPMalformed
		}
	}
	sop.Steps = d.steps(canonical)
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

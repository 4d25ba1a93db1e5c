package sop

import (
	"bytes"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
)

// draft is the steps of a procedure while they are read.
type draft struct {
	procedure string // its id
	canonical []byte // in which the arguments are
	names     []byte // the resource and action of each step, end to end
	spans     [events.SOPStepsMax]span
	n         int
}

// span is where a step's names end, and where its arguments are; nowhere for
// none.
type span struct{ resource, action, from, to int }

func (d *draft) add(id, action []byte, from, to int) {
	d.names = append(append(append(d.names, d.procedure...), ':'), id...)
	at := span{len(d.names), 0, from, to}
	d.names = append(d.names, action...)
	at.action = len(d.names)
	d.spans[d.n] = at
	d.n++
}

// steps takes one piece of memory for the steps and one for their names.
func (d *draft) steps() []Step {
	names, start := string(d.names), 0
	steps := make([]Step, d.n)
	for i := range steps {
		at, step := &d.spans[i], &steps[i]
		step.Resource, step.Action = names[start:at.resource], names[at.resource:at.action]
		step.ID = step.Resource[len(d.procedure)+1:]
		start = at.action
		step.Arguments = noArguments
		if at.from < at.to {
			step.Arguments = d.canonical[at.from:at.to:at.to]
		}
		step.look()
	}
	return steps
}

// noArguments are those of a step without any. They are never changed.
var noArguments = []byte("{}")

// look makes the tree of the arguments if a check looks into them: those of
// memory, and any that name an owner somewhere.
func (s *Step) look() {
	if !s.memory() && !bytes.Contains(s.Arguments, []byte(`"owner_agent_id"`)) {
		return
	}
	v, err := events.ParseJSON(s.Arguments)
	if err != nil {
		panic("sop: canonical arguments are no JSON")
	}
	s.arguments = &v
}

func (d *draft) parse(v *events.Value) bool {
	var none events.Value
	id, action, arguments := &none, &none, &none
	for i := range v.Members {
		switch m := &v.Members[i]; m.Name {
		case "step_id":
			id = &m.Value
		case "action":
			action = &m.Value
		case "arguments":
			arguments = &m.Value
			if arguments.Kind != events.Object {
				return false
			}
		default:
			return false
		}
	}
	if id.Kind != events.String || action.Kind != events.String || id.Text != "" && !events.ValidToken(id.Text) {
		return false
	}
	from := len(d.canonical)
	if arguments != &none {
		d.canonical = arguments.AppendCanonical(d.canonical)
	}
	d.add([]byte(id.Text), []byte(action.Text), from, len(d.canonical))
	return true
}

// Scan reads the "sop" of a request that s has come to, and appends its canonical
// form to dst: what Parse makes of it, without a tree. It gives up where Parse
// finds a fault, and where something is only unusual.
func Scan(s *events.Scanner, dst []byte) (sop SOP, canonical []byte, ok bool) {
	var names [512]byte
	d := draft{canonical: dst, names: names[:0]}
	ok = s.Object()
	for first := true; ok && !s.Ends(); first = false {
		var name, text []byte
		if name, ok = s.Name(first); !ok {
			break
		}
		switch {
		case string(name) == "sop_id" && sop.ID == "":
			if text, ok = s.Plain(); ok {
				sop.ID = string(text[1 : len(text)-1])
				d.procedure, ok = sop.ID, events.ValidToken(sop.ID)
			}
			d.canonical = append(append(append(d.canonical, `{"sop_id":`...), text...), `,"steps":[`...)
		case string(name) == "version" && sop.Version == 0:
			var n uint64
			n, _, ok = s.Positive()
			sop.Version = int64(n)
		case string(name) == "steps" && sop.ID != "" && d.n == 0:
			ok = d.scan(s) && d.n > 0
		default:
			ok = false
		}
	}
	if !ok || sop.ID == "" || sop.Version == 0 || d.n == 0 {
		return SOP{}, nil, false
	}
	d.canonical = strconv.AppendInt(append(d.canonical, `],"version":`...), sop.Version, 10)
	d.canonical = append(d.canonical, '}')
	sop.Steps = d.steps()
	return sop, d.canonical, true
}

func (d *draft) scan(s *events.Scanner) bool {
	if !s.Array() {
		return false
	}
	for {
		more, ok := s.Element(d.n == 0)
		if !more {
			return ok
		}
		if d.n > 0 {
			d.canonical = append(d.canonical, ',')
		}
		if d.n == len(d.spans) || !d.step(s) {
			return false
		}
	}
}

// step reads one step, its members in any order.
func (d *draft) step(s *events.Scanner) bool {
	var id, action, arguments []byte // with their quotes
	ok := s.Object()
	for first := true; ok && !s.Ends(); first = false {
		var name []byte
		if name, ok = s.Name(first); !ok {
			break
		}
		switch {
		case string(name) == "step_id" && id == nil:
			id, ok = s.Plain()
		case string(name) == "action" && action == nil:
			action, ok = s.Plain()
		case string(name) == "arguments" && arguments == nil:
			arguments, ok = s.Value()
			ok = ok && arguments[0] == '{'
		default:
			ok = false
		}
	}
	if !ok || id == nil || action == nil || len(id) > 2 && !events.ValidToken(string(id[1:len(id)-1])) {
		return false
	}
	d.canonical = append(append(d.canonical, `{"action":`...), action...)
	from, to := 0, 0
	if arguments != nil {
		d.canonical = append(d.canonical, `,"arguments":`...)
		from = len(d.canonical)
		d.canonical = append(d.canonical, arguments...)
		to = len(d.canonical)
	}
	d.canonical = append(append(append(d.canonical, `,"step_id":`...), id...), '}')
	d.add(id[1:len(id)-1], action[1:len(action)-1], from, to)
	return true
}

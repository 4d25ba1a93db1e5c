package sop

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// draft is the steps of a procedure while they are read: where they are in a
// text that is put together meanwhile.
type draft struct {
	procedure string // its id
	spans     [events.SOPStepsMax]span
	n         int
}

// span is one step, without quotes; its arguments are nowhere where there are
// none.
type span struct{ id, action, arguments piece }

type piece struct{ from, to int }

func (p piece) len() int { return p.to - p.from }

func (p piece) of(text []byte) []byte { return text[p.from:p.to:p.to] }

// put appends a piece to a text; less is how much of it, at both ends, it is
// without.
func put(text, b []byte, less int) ([]byte, piece) {
	return append(text, b...), piece{len(text) + less, len(text) + len(b) - less}
}

// steps takes one piece of memory for the steps and one for their names. Their
// arguments stay where they are in text.
func (d *draft) steps(text []byte) []Step {
	length := 0
	for _, at := range d.spans[:d.n] {
		length += len(d.procedure) + 1 + at.id.len() + at.action.len()
	}
	var names strings.Builder
	names.Grow(length)
	for _, at := range d.spans[:d.n] {
		names.WriteString(d.procedure)
		names.WriteByte(':')
		names.Write(at.id.of(text))
		names.Write(at.action.of(text))
	}
	rest, steps := names.String(), make([]Step, d.n)
	for i := range steps {
		at, step := &d.spans[i], &steps[i]
		n := len(d.procedure) + 1 + at.id.len()
		step.Resource, rest = rest[:n], rest[n:]
		step.Action, rest = rest[:at.action.len()], rest[at.action.len():]
		step.ID = step.Resource[len(d.procedure)+1:]
		step.Arguments = noArguments
		if at.arguments.len() > 0 {
			step.Arguments = at.arguments.of(text)
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

// parse reads a step and appends it to text.
func (d *draft) parse(v *events.Value, text []byte) ([]byte, bool) {
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
		default:
			return text, false
		}
	}
	if id.Kind != events.String || action.Kind != events.String || arguments != &none && arguments.Kind != events.Object {
		return text, false
	}
	if id.Text != "" && !events.ValidToken(id.Text) {
		return text, false
	}
	at := &d.spans[d.n]
	d.n++
	text, at.id = put(text, []byte(id.Text), 0)
	text, at.action = put(text, []byte(action.Text), 0)
	if arguments != &none {
		from := len(text)
		text = arguments.AppendCanonical(text)
		at.arguments = piece{from, len(text)}
	}
	return text, true
}

// Scan reads the "sop" of a request that s has come to, and appends its canonical
// form to dst: what Parse makes of it, without a tree. It gives up where Parse
// finds a fault, and where something is only unusual.
func Scan(s *events.Scanner, dst []byte) (sop SOP, canonical []byte, ok bool) {
	var d draft
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
			dst = append(append(append(dst, `{"sop_id":`...), text...), `,"steps":[`...)
		case string(name) == "version" && sop.Version == 0:
			var n uint64
			n, _, ok = s.Positive()
			sop.Version = int64(n)
		case string(name) == "steps" && sop.ID != "" && d.n == 0:
			dst, ok = d.scan(s, dst)
		default:
			ok = false
		}
	}
	if !ok || sop.ID == "" || sop.Version == 0 || d.n == 0 {
		return SOP{}, nil, false
	}
	dst = strconv.AppendInt(append(dst, `],"version":`...), sop.Version, 10)
	sop.Steps = d.steps(dst)
	return sop, append(dst, '}'), true
}

// scan reads the list of the steps, of which there must be some.
func (d *draft) scan(s *events.Scanner, dst []byte) (canonical []byte, ok bool) {
	if !s.Array() {
		return dst, false
	}
	for {
		more, ok := s.Element(d.n == 0)
		if !more {
			return dst, ok && d.n > 0
		}
		if d.n > 0 {
			dst = append(dst, ',')
		}
		if d.n == len(d.spans) {
			return dst, false
		}
		if dst, ok = d.step(s, dst); !ok {
			return dst, false
		}
	}
}

// step reads one step, its members in any order.
func (d *draft) step(s *events.Scanner, dst []byte) (canonical []byte, ok bool) {
	var id, action, arguments []byte // with their quotes
	ok = s.Object()
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
		return dst, false
	}
	at := &d.spans[d.n]
	d.n++
	dst, at.action = put(append(dst, `{"action":`...), action, 1)
	if arguments != nil {
		dst, at.arguments = put(append(dst, `,"arguments":`...), arguments, 0)
	}
	dst, at.id = put(append(dst, `,"step_id":`...), id, 1)
	return append(dst, '}'), true
}

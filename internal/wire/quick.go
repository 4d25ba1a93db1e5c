package wire

import (
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/sop"
)

// The members of the operations that nearly all proposals are of, in canonical
// order, and those that are no part of the canonical request.
const (
	actionMember = iota
	argumentsMember
	revisionMember
	keyMember
	namespaceMember
	ownerMember
	sopMember
	valueMember
	visibilityMember
	operationIDMember
	traceIDMember
	waitMember
	memberCount

	canonicalMembers = operationIDMember // how many of them are part of it
)

var memberNames = [memberCount]string{
	"action", "arguments", "expected_revision", "key", "namespace", "owner_agent_id", "sop", "value", "visibility", "operation_id", "trace_id", "wait_ms",
}

// shape says which members an operation has, as bits.
type shape struct{ required, allowed uint }

func shapeOf(operation string) (shape, bool) {
	const name = 1<<keyMember | 1<<namespaceMember
	const any = 1<<operationIDMember | 1<<traceIDMember
	switch operation {
	case "memory.read":
		return shape{name, name | 1<<ownerMember | any}, true
	case "memory.write":
		const required = name | 1<<ownerMember | 1<<valueMember
		return shape{required, required | 1<<revisionMember | 1<<visibilityMember | any}, true
	case "memory.delete":
		const required = name | 1<<ownerMember | 1<<revisionMember
		return shape{required, required | any}, true
	case "action.authorize":
		return shape{1 << actionMember, 1<<actionMember | 1<<argumentsMember | any}, true
	case "sop.validate", "sop.submit":
		return shape{1 << sopMember, 1<<sopMember | 1<<waitMember | any}, true
	}
	return shape{}, false
}

// quick reads one of the common requests in one pass. It returns nil for any
// other, for whatever is malformed and for what is merely written in an unusual
// way: Read's other way, which takes everything, then decides. What quick
// returns is what that returns.
func quick(operation string, b []byte) *Request {
	want, ok := shapeOf(operation)
	if !ok || !utf8.Valid(b) {
		return nil
	}
	var f found
	s, ok := events.NewScanner(b)
	for first := true; ok && !s.Ends(); first = false {
		ok = f.member(&s, first, len(b))
	}
	if !ok || !s.Finished() || f.seen&want.required != want.required || f.seen&^want.allowed != 0 {
		return nil
	}
	operationID, traceID := string(f.text(operationIDMember)), string(f.text(traceIDMember))
	if f.has(operationIDMember) && !events.ValidOperationID(operationID) || f.has(traceIDMember) && !events.ValidTraceID(traceID) {
		return nil
	}
	var r *Request
	switch operation {
	case "action.authorize":
		r = f.authorize(len(b))
	case "sop.validate", "sop.submit":
		r = f.procedure(operation)
	default:
		r = f.memory(operation, len(b))
	}
	if r != nil {
		r.Operation, r.OperationID, r.TraceID = operation, operationID, traceID
	}
	return r
}

// found is what stands in a request: canonical values by member.
type found struct {
	seen     uint
	values   [memberCount][]byte
	revision uint64
	wait     uint64
	sop      sop.SOP // whose value is that of the whole request, so far
}

func (f *found) has(member int) bool { return f.seen&(1<<member) != 0 }

// text is the inside of a string.
func (f *found) text(member int) []byte {
	if v := f.values[member]; len(v) > 1 {
		return v[1 : len(v)-1]
	}
	return nil
}

// member reads one member; ok is false where it is one to leave to others.
func (f *found) member(s *events.Scanner, first bool, size int) bool {
	name, ok := s.Name(first)
	if !ok {
		return false
	}
	member := 0
	for member < memberCount && memberNames[member] != string(name) {
		member++
	}
	if member == memberCount || f.has(member) {
		return false
	}
	f.seen |= 1 << member
	switch member {
	case argumentsMember, valueMember:
		f.values[member], ok = s.Value()
	case sopMember:
		f.sop, f.values[member], ok = sop.Scan(s, append(make([]byte, 0, size), `{"sop":`...))
	case waitMember:
		f.wait, _, ok = s.Positive()
		ok = ok && f.wait <= waitMax
	case revisionMember:
		f.revision, f.values[member], ok = s.Positive()
	default:
		f.values[member], ok = s.Plain()
	}
	return ok
}

// canonical writes the request. The value, or the arguments, of a request are
// returned where they stand in it.
func (f *found) canonical(size int) (request, value []byte) {
	b := append(make([]byte, 0, size), '{')
	for member := range canonicalMembers {
		if !f.has(member) {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), memberNames[member]...), '"', ':')
		start := len(b)
		b = append(b, f.values[member]...)
		if member == argumentsMember || member == valueMember {
			value = b[start:len(b):len(b)]
		}
	}
	return append(b, '}'), value
}

// memory makes the request of one of the operations on records: one piece of
// memory for it and its body, one for its names, and one for its bytes.
func (f *found) memory(operation string, size int) *Request {
	n, m := len(f.text(ownerMember)), len(f.text(namespaceMember))
	resource := make([]byte, 0, 128)
	if f.has(ownerMember) {
		resource = append(append(resource, f.text(ownerMember)...), ':')
	}
	resource = append(append(append(resource, f.text(namespaceMember)...), '.'), f.text(keyMember)...)
	all := string(resource)
	owner, rest := "", all
	if f.has(ownerMember) {
		owner, rest = all[:n], all[n+1:]
	}
	namespace, key := rest[:m], rest[m+1:]
	visibility, known := visibilityOf(f.text(visibilityMember))
	if f.has(ownerMember) && !events.ValidID(owner) || !events.ValidNamespace(namespace) || !events.ValidKey(key) ||
		f.has(visibilityMember) && !known || string(f.values[valueMember]) == "null" {
		return nil
	}
	canonical, value := f.canonical(size)
	common := Request{Canonical: canonical, Resource: all}
	switch operation {
	case "memory.read":
		return made(common, MemoryRead{namespace, key, owner})
	case "memory.write":
		common.TooLarge = len(value) > events.ValueBytesMax
		return made(common, MemoryWrite{owner, namespace, key, value, visibility, f.revision, 0})
	}
	return made(common, MemoryDelete{owner, namespace, key, f.revision})
}

// made is a request and its body, in one piece of memory.
func made[T any](r Request, body T) *Request {
	m := &struct {
		Request
		body T
	}{r, body}
	m.Body = &m.body
	return &m.Request
}

// visibilityOf is a visibility without a copy of its own.
func visibilityOf(b []byte) (string, bool) {
	for _, v := range [...]string{"private", "children", "descendants"} {
		if v == string(b) {
			return v, true
		}
	}
	return "", false
}

func (f *found) authorize(size int) *Request {
	if f.has(argumentsMember) && f.values[argumentsMember][0] != '{' {
		return nil
	}
	canonical, arguments := f.canonical(size)
	tooLarge := len(arguments) > events.ArgumentsBytesMax
	if arguments == nil {
		arguments = noArguments
	}
	action := string(f.text(actionMember))
	return made(Request{Canonical: canonical, Resource: named(action, events.ValidAction), TooLarge: tooLarge}, ActionAuthorize{action, arguments})
}

// procedure makes the request of one of the operations on procedures.
func (f *found) procedure(operation string) *Request {
	id := f.sop.ID
	r := Request{Canonical: append(f.values[sopMember], '}'), Resource: id, Wait: int64(f.wait)}
	p := Procedure{SOP: f.sop, Length: len(f.sop.Steps), resource: id}
	if operation == "sop.submit" {
		return made(r, SOPSubmit{p})
	}
	return made(r, SOPValidate{p})
}

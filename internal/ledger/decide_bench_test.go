package ledger

import (
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// benchmarkState is a tree that is one line of agents, each with a record that
// all below it see.
func benchmarkState(b *testing.B, depth int) (s *projection.State, leaf string) {
	l := newTinyLog(b)
	l.quick = true
	l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": []string{
		"apiVersion: ledgerd/v1\nkind: Policy\nversion: v\nenvironment: [memory.read, memory.write, x.one, x.two, x.three]\nactions: {x.one: {}, x.two: {}, x.three: {}}\n",
	}}))
	for i := range depth {
		request := object{"agent_id": fmt.Sprint("a", i), "public_key": publicKey(fmt.Sprint(i)),
			"capabilities": []string{"memory.read", "memory.write", "x.one", "x.two", "x.three"}}
		if i > 0 {
			request["parent_id"] = leaf
		}
		leaf = fmt.Sprint("a", i)
		l.ask(wire.Control, AdminID, "agent.register", toJSON(request))
		l.ask(wire.Propose, leaf, "memory.write", toJSON(object{
			"owner_agent_id": leaf, "namespace": "notes", "key": leaf, "value": 1, "visibility": "descendants",
		}))
	}
	return l.state, leaf
}

func BenchmarkDecide(b *testing.B) {
	for _, depth := range []int{3, events.TreeDepthMax} {
		s, leaf := benchmarkState(b, depth)
		var steps []any
		for i := range 10 {
			steps = append(steps, object{"step_id": fmt.Sprint(i), "action": []string{"x.one", "x.two", "x.three"}[i%3], "arguments": object{"n": i}})
		}
		for _, c := range []struct {
			name, operation string
			request         object
		}{
			{"read_root", "memory.read", object{"namespace": "notes", "key": "a0"}},
			{"write", "memory.write", object{"owner_agent_id": leaf, "namespace": "notes", "key": "new", "value": object{"text": "a note of some length"}}},
			{"authorize", "action.authorize", object{"action": "x.three", "arguments": object{"path": "a/b"}}},
			{"sop10", "sop.validate", object{"sop": object{"sop_id": "s", "version": 1, "steps": steps}}},
		} {
			body := []byte(toJSON(c.request))
			r, code := wire.Decode(wire.Propose, c.operation, body)
			if code != "" {
				b.Fatal(code)
			}
			p := &Proposal{Lane: wire.Propose, Subject: leaf, Operation: c.operation, Request: r}
			if o := Decide(s, p); !o.Decision.Allowed {
				b.Fatal(o.Decision.Reason)
			}
			b.Run(fmt.Sprintf("%s/depth%d", c.name, depth), func(b *testing.B) {
				b.ReportAllocs()
				var o Outcome
				for b.Loop() {
					o.Decide(s, p)
				}
			})
			b.Run(fmt.Sprintf("decode+%s/depth%d", c.name, depth), func(b *testing.B) {
				b.ReportAllocs()
				var o Outcome
				for b.Loop() {
					r, _ := wire.Decode(wire.Propose, c.operation, body)
					p.Request = r
					o.Decide(s, p)
				}
			})
		}
	}
}

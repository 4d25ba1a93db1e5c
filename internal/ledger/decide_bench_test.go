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

// BenchmarkDecideRules is an action.authorize whose arguments are held to a schema
// and to one requirement of each of three levels.
func BenchmarkDecideRules(b *testing.B) {
	l := newTinyLog(b)
	l.quick = true
	documents := treeDocuments("    arguments: {type: object, required: [path], additionalProperties: false, properties: {path: {type: string, maxLength: 200}, size: {type: integer, minimum: 0}}}", "v")
	l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": documents}))
	for who, require := range map[string]string{"root": `args.path.within("draft")`, "middle": `!has(args.size) || args.size <= 65536`, "leaf": `args.path.endsWith(".md")`} {
		l.ask(wire.Propose, who, "restriction.add", toJSON(object{"id": "r", "action": "act", "require": require}))
	}
	r, code := wire.Decode(wire.Propose, "action.authorize", []byte(`{"action":"act","arguments":{"path":"draft/report.md","size":4096}}`))
	if code != "" {
		b.Fatal(code)
	}
	p := &Proposal{Lane: wire.Propose, Subject: "leaf", Operation: "action.authorize", Request: r}
	if o := Decide(l.state, p); !o.Decision.Allowed {
		b.Fatal(o.Decision.Reason)
	}
	b.ReportAllocs()
	var o Outcome
	for b.Loop() {
		o.Decide(l.state, p)
	}
}

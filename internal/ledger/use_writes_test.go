package ledger

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// R17: whatever an agent uses, it passes on all that it declares; its own acts
// are limited to its use, and a child is never limited by its parent's.
func TestR17_UseLimitsOnlyOnesOwnActs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newTinyLog(t)
		send := func(lane wire.Lane, who, operation string, request object) *Outcome {
			r, code := wire.Decode(lane, operation, []byte(toJSON(request)))
			if code != "" {
				t.Fatalf("%s: %s", operation, code)
			}
			return l.submit(&Proposal{Lane: lane, Subject: who, Operation: operation, Request: r})
		}
		send(wire.Control, AdminID, "apply", object{"documents": []string{naivePolicy("wide")}})
		type agent struct {
			declared, use []string // of each level, the root first
		}
		all := naivePolicies["wide"]
		some := func(from []string, least int, what string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(from), least, len(from), rapid.ID[string]).Draw(t, what)
		}
		var line []agent
		parent := ""
		for depth := range rapid.IntRange(1, 4).Draw(t, "depth") {
			a := agent{declared: some(all, 1, "declared")}
			id := "a" + string(rune('0'+depth))
			request := object{"agent_id": id, "capabilities": a.declared, "public_key": publicKey(id)}
			if parent != "" {
				request["parent_id"] = parent
			}
			if rapid.Bool().Draw(t, "limited") {
				a.use = some(a.declared, 1, "use")
				request["use"] = a.use
			}
			if o := send(wire.Control, AdminID, "agent.register", request); o.Decision.Reason != string(reason.Registered) {
				t.Fatalf("%+v", o.Decision)
			}
			line, parent = append(line, a), id
			for i, level := range line { // everyone asks for everything
				who := "a" + string(rune('0'+i))
				for _, action := range []string{"x.one", "x.two", "memory.read"} {
					held := true
					for _, above := range line[:i+1] {
						held = held && slices.Contains(above.declared, action)
					}
					want := held && (level.use == nil || slices.Contains(level.use, action))
					if o := send(wire.Propose, who, "action.authorize", object{"action": action}); o.Decision.Allowed != want {
						t.Fatalf("%s %s of %+v: %s", who, action, line, o.Decision.Reason)
					}
					if ok, _ := l.state.Holds(l.state.Agent(who), action); ok != held {
						t.Fatalf("%s holds %s: %v", who, action, ok)
					}
				}
			}
		}
		l.verify()
	})
}

// TestR17_ACoordinatorPassesOn: what use leaves out is passed on to a child all
// the same, and the child may use it.
func TestR17_ACoordinatorPassesOn(t *testing.T) {
	l := newTinyLog(t)
	all := []string{"agent.register", "memory.read", "x.one"}
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{naivePolicy("wide")}})
	l.mustAsk(reason.Registered, wire.Control, AdminID, "agent.register",
		object{"agent_id": "top", "capabilities": all, "use": []string{"agent.register"}, "public_key": publicKey("top")})
	l.authorize(reason.ActionNotInEffectiveCapabilities, "top", "x.one", object{})
	l.mustAsk(reason.Registered, wire.Propose, "top", "agent.register",
		object{"agent_id": "low", "capabilities": []string{"x.one"}, "public_key": publicKey("low")})
	l.authorize(reason.ActionAllowed, "low", "x.one", object{})
	l.mustAsk(reason.CapabilityNotInherited, wire.Propose, "top", "agent.register",
		object{"agent_id": "other", "capabilities": []string{"x.two"}, "public_key": publicKey("other")})
}

// writesLab is the worked case with writes on two levels.
func writesLab(t *testing.T) *tinyLog {
	t.Helper()
	l := newTinyLog(t)
	all := "[memory.read, memory.write, agent.register, x.one]"
	documents := []string{
		"apiVersion: ledgerd/v1\nkind: Policy\nversion: v\nenvironment: " + all + "\nactions: {x.one: {}}\nnamespaces: {report.retention_days: {value: {type: integer, minimum: 1, maximum: 365}}}\n",
		"kind: Agent\nid: top\ncapabilities: " + all + "\nwrites: [\"notes.*\", report, \"limits.*\"]\npublic_key: " + publicKey("top") + "\n",
		"kind: Agent\nid: low\nparent: top\ncapabilities: " + all + "\nwrites: [\"notes.deep.*\", \"artifacts.*\", report]\npublic_key: " + publicKey("low") + "\n",
	}
	r, code := wire.Decode(wire.Control, "apply", []byte(toJSON(object{"documents": documents})))
	if code != "" {
		t.Fatal(code)
	}
	if o := l.submit(&Proposal{Lane: wire.Control, Subject: AdminID, Operation: "apply", Request: r}); !o.Decision.Allowed {
		t.Fatal(o.Decision.Reason, o.Faults)
	}
	return l
}

// R32: where an agent may write is what it and all above it allow, by whole
// segments, in its own scope, by proposal or by a procedure's step; the same
// for deletion.
func TestR32_WritesLimitNamespaces(t *testing.T) {
	l := writesLab(t)
	for _, c := range []struct {
		who, namespace string
		want           bool
	}{
		{"top", "notes", true}, {"top", "notes.x", true}, {"top", "notesevil", false}, {"top", "notes-x", false}, {"top", "report", true}, {"top", "report.x", false}, {"top", "artifacts", false},
		{"low", "notes", false}, {"low", "notes.deep", true}, {"low", "notes.deep.er", true}, {"low", "notes.deeper", false}, {"low", "artifacts", false}, {"low", "artifacts.x", false}, {"low", "report", true},
	} {
		before := l.state.Digest()
		body := object{"owner_agent_id": c.who, "namespace": c.namespace, "key": "k", "value": 1}
		step := object{"sop_id": "s", "version": 1, "steps": []any{object{"step_id": "w", "action": "memory.write", "arguments": body}}}
		validated := l.ask(wire.Propose, c.who, "sop.validate", toJSON(object{"sop": step}))
		if validated.Decision.Allowed != c.want || !c.want && validated.Decision.Reason != string(reason.NamespaceNotAllowed) {
			t.Errorf("step of %s in %s: %s", c.who, c.namespace, validated.Decision.Reason)
		}
		o := l.ask(wire.Propose, c.who, "memory.write", toJSON(body))
		written := l.state.Live(c.who, c.namespace, "k", l.state.Time) != nil
		if o.Decision.Allowed != c.want || written != c.want || !c.want && o.Decision.Reason != string(reason.NamespaceNotAllowed) {
			t.Errorf("%s in %s: %s, written %v", c.who, c.namespace, o.Decision.Reason, written)
		}
		if !c.want {
			o = l.ask(wire.Propose, c.who, "memory.delete", toJSON(object{"owner_agent_id": c.who, "namespace": c.namespace, "key": "k", "expected_revision": 1}))
			if o.Decision.Reason != string(reason.NamespaceNotAllowed) {
				t.Errorf("deletion by %s in %s: %s", c.who, c.namespace, o.Decision.Reason)
			}
		}
		_ = before
	}
	l.verify()
}

// R28, R32: the guards of a write in their order, and the values of the worked
// case.
func TestR32_ValuesOfRetention(t *testing.T) {
	l := writesLab(t)
	write := func(who, owner, namespace string, value any, revision int) string {
		body := object{"owner_agent_id": owner, "namespace": namespace, "key": "retention_days", "value": value}
		if revision > 0 {
			body["expected_revision"] = revision
		}
		return l.ask(wire.Propose, who, "memory.write", toJSON(body)).Decision.Reason
	}
	for _, c := range []struct {
		owner, namespace string
		value            any
		revision         int
		want             reason.Code
	}{
		{"low", "elsewhere", "30", 7, reason.ActorIsNotOwner},
		{"top", "elsewhere", "30", 7, reason.NamespaceNotAllowed},
		{"top", "report", "30", 7, reason.ValueNotAllowed},
		{"top", "report", true, 0, reason.ValueNotAllowed}, {"top", "report", 0, 0, reason.ValueNotAllowed}, {"top", "report", 366, 0, reason.ValueNotAllowed},
		{"top", "report", 30, 7, reason.RevisionConflict},
		{"top", "report", 30, 0, reason.OwnerWrite}, {"top", "report", 365, 1, reason.OwnerWrite}, {"top", "report", 366, 2, reason.ValueNotAllowed},
	} {
		if got := write("top", c.owner, c.namespace, c.value, c.revision); got != string(c.want) {
			t.Errorf("%s:%s = %v at %d: %s, want %s", c.owner, c.namespace, c.value, c.revision, got, c.want)
		}
	}
	float := l.ask(wire.Propose, "top", "memory.write", `{"owner_agent_id":"top","namespace":"report","key":"retention_days","value":30.0,"expected_revision":2}`)
	if float.Decision.Reason != string(reason.ValueNotAllowed) {
		t.Error("30.0:", float.Decision.Reason)
	}
	if r := l.state.Live("top", "report", "retention_days", l.state.Time); r == nil || r.Revision != 2 {
		t.Errorf("%+v", r)
	}
	load := l.ask(wire.Control, AdminID, "memory.load", toJSON(object{"owner_agent_id": "low", "namespace": "report", "key": "retention_days", "value": 0}))
	if load.Decision.Reason != string(reason.ValueNotAllowed) || l.state.Record("low", "report", "retention_days") != nil {
		t.Error("loaded:", load.Decision.Reason)
	}
	for _, documents := range []string{"use: [x.two]", "use: []", "writes: []", "writes: [\"*\"]", "writes: [\"notes*\"]", "writes: [notes, notes]"} {
		o := l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": []string{"kind: Agent\nid: low\nparent: top\ncapabilities: [x.one]\n" + documents + "\n"}}))
		if o.Decision.Reason != string(reason.PolicyInvalid) {
			t.Errorf("%s: %s", documents, o.Decision.Reason)
		}
	}
	l.verify()
}

// R32: whatever patterns stand on the levels of a tree, a namespace may be
// written exactly if a naive reading of each of them allows it.
func TestR32_WritesIntersect(t *testing.T) {
	naive := func(pattern, namespace string) bool {
		p, n := strings.Split(pattern, "."), strings.Split(namespace, ".")
		for i, segment := range p {
			switch {
			case segment == "*":
				return true
			case i >= len(n) || n[i] != segment:
				return false
			}
		}
		return len(p) == len(n)
	}
	names := []string{"a", "a.b", "a.b.c", "ab", "b", "b.a"}
	rapid.Check(t, func(t *rapid.T) {
		l := newTinyLog(t)
		l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": []string{naivePolicy("wide")}}))
		var levels [][]string
		parent := ""
		for depth := range rapid.IntRange(1, 4).Draw(t, "depth") {
			id := "a" + string(rune('0'+depth))
			patterns := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "a.*", "a.b", "a.b.*", "b.*", "ab"}), 0, 4, rapid.ID[string]).Draw(t, "patterns")
			request := object{"agent_id": id, "capabilities": []string{"memory.write"}, "public_key": publicKey(id)}
			if parent != "" {
				request["parent_id"] = parent
			}
			if len(patterns) > 0 {
				request["writes"] = patterns
			}
			if o := l.ask(wire.Control, AdminID, "agent.register", toJSON(request)); !o.Decision.Allowed {
				t.Fatal(o.Decision.Reason)
			}
			levels, parent = append(levels, patterns), id
			for _, namespace := range names {
				want := true
				for _, patterns := range levels {
					want = want && (len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return naive(p, namespace) }))
				}
				o := l.ask(wire.Propose, id, "memory.write", toJSON(object{"owner_agent_id": id, "namespace": namespace, "key": "k", "value": 1}))
				if o.Decision.Allowed != want {
					t.Fatalf("%s in %s under %v: %s", id, namespace, levels, o.Decision.Reason)
				}
			}
		}
		l.verify()
	})
}

// R17, R32: a document that leaves use and writes out leaves them as they are;
// only the word for it lifts a limit.
func TestR17_NoLimitIsLiftedByBeingForgotten(t *testing.T) {
	l := newTinyLog(t)
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{naivePolicy("wide"),
		"kind: Agent\nid: a\ncapabilities: [memory.read, memory.write, x.one]\nuse: [memory.write, x.one]\nwrites: [\"notes.*\"]\npublic_key: " + publicKey("a") + "\n"}})
	apply := func(want reason.Code, rest string) *Outcome {
		t.Helper()
		return l.mustAsk(want, wire.Control, AdminID, "apply", object{"documents": []string{"kind: Agent\nid: a\n" + rest}})
	}
	is := func(use, writes string) {
		t.Helper()
		if a := l.state.Agent("a"); strings.Join(a.Use, " ") != use || strings.Join(a.Writes, " ") != writes {
			t.Errorf("%v %v", a.Use, a.Writes)
		}
	}
	if o := apply(reason.ControlDone, "capabilities: [memory.read, memory.write, x.one]\n"); o.Applied[0].Result != "unchanged" {
		t.Errorf("%+v", o.Applied)
	}
	is("memory.write x.one", "notes.*")
	apply(reason.ControlDone, "capabilities: [memory.read, x.one]\n")
	is("x.one", "notes.*")
	apply(reason.PolicyInvalid, "capabilities: [memory.read]\n")
	is("x.one", "notes.*")
	apply(reason.ControlDone, "capabilities: [memory.read]\nuse: [memory.read]\nwrites: [plans]\n")
	is("memory.read", "plans")
	apply(reason.ControlDone, "capabilities: [memory.read]\nuse: all\n")
	is("", "plans")
	apply(reason.ControlDone, "capabilities: [memory.read]\nwrites: all\n")
	is("", "")
	apply(reason.PolicyInvalid, "capabilities: [memory.read]\nuse: some\n")
}

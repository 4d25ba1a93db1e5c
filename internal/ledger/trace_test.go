package ledger

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// checkTrace holds an explanation to the decision that it explains: same
// outcome, the reason at the one guard that failed, every guard a row of the
// table that can give that reason, and true what is said of why and of what
// would be allowed.
func checkTrace(t rapid.TB, s *projection.State, p *Proposal, want *Outcome) {
	t.Helper()
	got, descent := Trace(s, p)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s %s: explained as %+v, decided as %+v", p.Subject, p.Operation, got, want)
	}
	if want.Retry != 0 {
		return
	}
	d := want.Decision
	rows := guardsOf(d.Operation)
	free := own[p.Operation] == nil || d.Operation == events.Unsupported
	checkGuards(t, p.Operation, descent.Guards, d, rows, free, p.Lane == wire.Propose && own[p.Operation] != nil)
	if len(descent.Steps) != len(want.Steps) {
		t.Fatalf("%d steps explained of %d", len(descent.Steps), len(want.Steps))
	}
	e := explain(s, p)
	a := s.Agent(p.Subject)
	if a == nil || p.Request == nil {
		return
	}
	if len(want.Steps) == 0 {
		checkWhy(t, s, a, d, capabilityOf(p.Request), e.Found, e.Why)
		checkInstead(t, s, p, d, e.Why)
	} else if !reflect.DeepEqual(e.Found, Found{}) || !reflect.DeepEqual(e.Why, Why{}) {
		t.Fatalf("of a whole procedure is told what is its steps': %+v %+v", e.Found, e.Why)
	}
	for i, step := range descent.Steps {
		var rows []guard
		for _, name := range sop.Checks(want.Steps[i].Action) {
			rows = append(rows, guard{name, stepCodes[name]})
		}
		checkGuards(t, "step", step.Guards, want.Steps[i], rows, false, true)
		if g := StepGuards(want.Steps[i].Action, reason.Code(want.Steps[i].Reason)); len(g) == 0 || want.Steps[i].Allowed && !reflect.DeepEqual(g, step.Guards) {
			t.Fatalf("a recorded step is explained by %+v, the judgement was %+v", g, step.Guards)
		}
		checkWhy(t, s, a, want.Steps[i], step.Capability, step.Found, e.StepWhy[i])
	}
}

// checkGuards checks the descent through rows. free rows are not in the table;
// whole says that what is allowed has passed every one.
func checkGuards(t rapid.TB, what string, guards []Guard, d *events.Decision, rows []guard, free, whole bool) {
	t.Helper()
	code := reason.Code(d.Reason)
	failed := 0
	for i, g := range guards {
		switch {
		case g.Result == "failed":
			failed++
			if g.Reason != code {
				t.Fatalf("%s: guard %s failed with %s, the decision says %s", what, g.Name, g.Reason, code)
			}
			row := slices.IndexFunc(rows, func(r guard) bool { return r.name == g.Name && r.stops(code) })
			if row < 0 && !free {
				t.Fatalf("%s: guard %q is no row of the table that gives %s", what, g.Name, code)
			}
		case g.Reason != "", (g.Result == "not_reached") != (failed == 1), failed == 0 && g.Result != "passed":
			t.Fatalf("%s %s: guard %d of %+v", what, code, i, guards)
		}
	}
	if (failed == 0) != d.Allowed {
		t.Fatalf("%s %s: %d guards failed: %+v", what, code, failed, guards)
	}
	if d.Allowed && whole {
		for _, row := range rows {
			if !slices.ContainsFunc(guards, func(g Guard) bool { return g.Name == row.name }) {
				t.Fatalf("%s is allowed and guard %q was never asked: %v", what, row.name, guards)
			}
		}
	}
}

// checkWhy holds what is said of a denial to the state, looked at again by
// other means.
func checkWhy(t rapid.TB, s *projection.State, a *projection.Agent, d *events.Decision, capability string, found Found, why Why) {
	t.Helper()
	var names []string
	for _, r := range found.Rules {
		name, text := r.ID, ""
		if r.Owner != "" {
			name = r.Owner + ":" + r.ID
			restriction, _ := s.Agent(r.Owner).Restriction(r.ID)
			text = restriction.Text
		} else {
			for _, clause := range s.Policy.Actions[d.Action].Require {
				if clause.ID == r.ID {
					text = clause.Text
				}
			}
		}
		if names = append(names, name); r.Text == "" || r.Text != text {
			t.Fatalf("rule %s is said to be %q and is %q", name, r.Text, text)
		}
	}
	code := reason.Code(d.Reason)
	if !slices.Equal(names, d.Failed) {
		t.Fatalf("%s: explained by %v, decided by %v", code, names, d.Failed)
	}
	if len(names) > 0 && (found.Rules[0].Err != "") != (code == reason.RequirementError) {
		t.Fatalf("%s: the first rule's error is %q", code, found.Rules[0].Err)
	}
	memory := strings.HasPrefix(d.Action+d.Operation, "memory.") || strings.HasPrefix(d.Action, "memory.")
	if (found.Schema != nil) != (code == reason.ArgumentSchema && !memory) {
		t.Fatalf("%s %s: schema %v", code, d.Action, found.Schema)
	}
	if len(why.Values) > 0 && code != reason.ValueNotAllowed || (len(why.Writes) > 0) != (code == reason.NamespaceNotAllowed) {
		t.Fatalf("%s: values %v, writes %v", code, why.Values, why.Writes)
	}
	checkRemoved(t, s, a, code, capability, why)
	for _, namespace := range []string{"note", "note.deep", "noteevil", "num", "rule", "secret", "else"} {
		if code == reason.NamespaceNotAllowed && a.MayWriteIn(namespace) != policy.Writable(why.Instead.Writes, namespace) {
			t.Fatalf("%s may write in %s: %v, and is told %v", a.ID, namespace, a.MayWriteIn(namespace), why.Instead.Writes)
		}
	}
}

// checkRemoved asks every level by itself what it lacks.
func checkRemoved(t rapid.TB, s *projection.State, a *projection.Agent, code reason.Code, capability string, why Why) {
	t.Helper()
	lacking := code == reason.CapabilityNotInherited || code == reason.ActionNotInEffectiveCapabilities || code == reason.EmergencyDeny
	if !lacking || capability == "" {
		if len(why.Removed) > 0 {
			t.Fatalf("%s: removed %v", code, why.Removed)
		}
		return
	}
	if len(why.Removed) == 0 {
		t.Fatalf("%s: nothing is said to lack %s", code, capability)
	}
	for _, r := range why.Removed {
		told := map[string]string{}
		for _, level := range r.Levels {
			told[level.By] = level.Why
		}
		want := map[string]string{}
		if s.Denied(a, r.Capability) {
			want[projection.EmergencyLevel] = projection.LackDenied
		}
		if !s.Environment().Has(r.Capability) {
			want[projection.EnvironmentLevel] = projection.LackEnvironment
		}
		for _, id := range a.LineageIDs() {
			switch level := s.Agent(id); {
			case level.Revoked:
				want[id] = projection.LackRevoked
			case !level.Declared.Has(r.Capability):
				want[id] = projection.LackDeclared
			case level == a && len(a.Use) > 0 && !a.Use.Has(r.Capability) && r.Capability == capability:
				want[id] = projection.LackUse
			}
		}
		if !reflect.DeepEqual(told, want) {
			t.Fatalf("%s of %s: told %v, want %v", r.Capability, a.ID, told, want)
		}
	}
	for _, held := range why.Instead.Capabilities {
		if ok, _ := s.May(a, held); !ok {
			t.Fatalf("%s is told that it may %s", a.ID, held)
		}
	}
	if len(why.Removed) > 1 {
		return
	}
	nearest := ""
	for _, id := range slices.Backward(a.LineageIDs()[1:]) {
		if ok, _ := s.May(s.Agent(id), why.Removed[0].Capability); ok {
			nearest = id
		}
	}
	if why.Instead.Agent != nearest {
		t.Fatalf("%s for %s: told %q, the nearest is %q", why.Removed[0].Capability, a.ID, why.Instead.Agent, nearest)
	}
}

// checkInstead tries what is said to be allowed.
func checkInstead(t rapid.TB, s *projection.State, p *Proposal, d *events.Decision, why Why) {
	t.Helper()
	if action := why.Instead.Action; action != "" {
		if ok, _ := s.May(s.Agent(p.Subject), action); !ok || d.Reason != string(reason.UnknownAction) {
			t.Fatalf("%s for %s: did you mean %s?", d.Reason, p.Subject, action)
		}
	}
	w, ok := p.Request.Body.(*wire.MemoryWrite)
	if why.Instead.Revision == 0 || !ok {
		return
	}
	right := *w
	right.Revision = why.Instead.Revision
	again := *p
	request := *p.Request
	request.Body, request.OperationID = &right, ""
	again.Request = &request
	if o := Decide(s, &again); !o.Decision.Allowed {
		t.Fatalf("revision %d is said to be right: %s", right.Revision, o.Decision.Reason)
	}
}

// ruledPolicy declares all that a denial can come from.
func ruledPolicy(version string) string {
	limit := map[string]string{"ruled-1": "4", "ruled-2": "2"}[version]
	return `apiVersion: ledgerd/v1
kind: Policy
version: ` + version + `
environment: [memory.read, memory.write, agent.register, x.one, x.two]
actions:
  x.one:
    arguments:
      type: object
      additionalProperties: false
      properties: {n: {type: integer, maximum: 5}, path: {type: string, maxLength: 40}}
    require:
    - {id: open, that: mandatory("rule.open") == true}
    - {id: small, that: "!has(args.n) || args.n < ` + limit + `"}
  x.two:
    arguments: {type: object, properties: {doc: {type: string, maxLength: 40}}}
    require:
    - {id: public, that: resource(args.doc).classification == "public"}
  x.three: {}
namespaces:
  rule: {class: mandatory, combine: all_true}
  secret: {class: secret}
  num: {value: {type: integer, maximum: 9}}
  num.a: {value: {minimum: 2}}
limits: {tree_depth: 5, children: 4}
`
}

var ruledTexts = []string{
	`x.one: args.n > 1`, `x.one: args.path.within("src")`, `x.one: mandatory("rule.open") == true`, `x.one: true`,
	`x.two: args.doc != "d1"`, `x.two: resource(args.doc).owner == "a"`, `x.three: size(args) == 0`, `x.three: false`,
}

// ruled are the steps of a history in a world of rules.
func (h *history) ruled() map[string]func(*rapid.T) {
	actions := h.actions()
	for _, rest := range []string{"policy", "narrow", "child", "register", "write2", "read2"} { // so that rules are reached
		delete(actions, rest)
	}
	limits := func(t *rapid.T, o object) object {
		if capabilities, ok := o["capabilities"].([]string); ok && len(capabilities) > 0 && rapid.Bool().Draw(t, "use") {
			o["use"] = capabilities[:1]
		}
		if rapid.Bool().Draw(t, "limited") {
			o["writes"] = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"note", "note.*", "note.deep.*", "num", "rule", "secret.*", "else.*"}), 1, 3, rapid.ID).Draw(t, "writes")
		}
		return o
	}
	request := func(t *rapid.T) object {
		args := object{}
		for name, values := range map[string][]any{"n": {1, 3, 6, "3"}, "path": {"src/a", "src/../a", "b"}, "doc": {"d1", "d2", "d3"}} {
			if v := rapid.SampledFrom(append(values, nil)).Draw(t, name); v != nil {
				args[name] = v
			}
		}
		return args
	}
	action := func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"x.one", "x.one", "x.two", "x.three", "x.onw", "memory.read"}).Draw(t, "action")
	}
	record := func(t *rapid.T) (owner string, o object) {
		owner = h.someone(t)
		namespace := rapid.SampledFrom([]string{"note", "note.deep", "num", "rule", "secret"}).Draw(t, "namespace")
		return owner, object{"owner_agent_id": owner, "namespace": namespace, "key": map[bool]string{true: "open", false: "a"}[namespace == "rule"]}
	}
	write := func(t *rapid.T) {
		owner, o := record(t)
		o["value"] = rapid.SampledFrom([]any{true, 1, 3, 12}).Draw(t, "value")
		if revision := rapid.IntRange(0, 2).Draw(t, "revision"); revision > 0 {
			o["expected_revision"] = revision
		}
		h.ask(t, wire.Propose, owner, "memory.write", o)
	}
	authorize := func(t *rapid.T) {
		h.ask(t, wire.Propose, h.someone(t), "action.authorize", object{"action": action(t), "arguments": request(t)})
	}
	for name, step := range map[string]func(*rapid.T){
		"ruled policy": func(t *rapid.T) {
			version := rapid.SampledFrom([]string{"ruled-1", "ruled-2"}).Draw(t, "version")
			h.ask(t, wire.Control, AdminID, "apply", object{"documents": []string{ruledPolicy(version)}})
		},
		"limited child": func(t *rapid.T) {
			id := fmt.Sprint("a", h.serial+1)
			h.registered(h.ask(t, wire.Propose, h.someone(t), "agent.register",
				limits(t, object{"agent_id": id, "capabilities": someCapabilities(t), "public_key": publicKey(id)})))
		},
		"limited root": func(t *rapid.T) {
			id := fmt.Sprint("a", h.serial+1)
			h.registered(h.ask(t, wire.Control, AdminID, "agent.register",
				limits(t, object{"agent_id": id, "parent_id": h.someone(t), "capabilities": naiveCapabilities, "public_key": publicKey(id)})))
		},
		"restrict": func(t *rapid.T) {
			action, text, _ := strings.Cut(rapid.SampledFrom(ruledTexts).Draw(t, "rule"), ": ")
			id := rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "id")
			h.ask(t, wire.Propose, h.someone(t), "restriction.add", object{"id": id, "action": action, "require": text})
		},
		"unrestrict": func(t *rapid.T) {
			h.ask(t, wire.Control, AdminID, "restriction.remove", object{"agent_id": h.someone(t), "id": "r1"})
		},
		"resource": func(t *rapid.T) {
			h.ask(t, wire.Control, AdminID, "resource.set", object{
				"id":             rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "id"),
				"classification": rapid.SampledFrom([]string{"public", "internal"}).Draw(t, "class"), "owner": "a",
			})
		},
		"give": func(t *rapid.T) {
			h.ask(t, wire.Propose, h.someone(t), "grant.give", object{"namespace": "secret", "key": "a", "to": h.someone(t), "expires_seconds": 60})
		},
		"take": func(t *rapid.T) {
			h.ask(t, wire.Propose, h.someone(t), "grant.revoke", object{"namespace": "secret", "key": "a", "to": h.someone(t)})
		},
		"deny": func(t *rapid.T) {
			h.ask(t, wire.Control, AdminID, "emergency.deny", object{"agent_id": h.someone(t), "capabilities": []string{"x.one"}, "reason": "r"})
		},
		"lift": func(t *rapid.T) {
			h.ask(t, wire.Control, AdminID, "emergency.lift", object{"epoch": rapid.IntRange(1, 3).Draw(t, "epoch")})
		},
		"ruled procedure": func(t *rapid.T) {
			who, o := record(t)
			o["value"] = 3
			steps := []any{object{"step_id": "w", "action": "memory.write", "arguments": o}}
			for i := range rapid.IntRange(0, 3).Draw(t, "steps") {
				steps = append(steps, object{"step_id": fmt.Sprint(i), "action": action(t), "arguments": request(t)})
			}
			h.ask(t, wire.Propose, who, "sop.validate", object{"sop": object{"sop_id": "s", "version": 1, "steps": steps}})
		},
	} {
		actions[name] = step
	}
	for i := range 5 {
		actions[fmt.Sprint("write ", i)], actions[fmt.Sprint("action ", i)] = write, authorize
	}
	return actions
}

// What is explained is what is decided, on over a thousand random cases in a
// world with requirements, restrictions, use, writes, value rules, mandatory
// records, grants, resources and emergency denies; the tables of testdata/decide
// and all other histories are held to it too. A short run has fewer.
func TestTrace_AgreesWithTheDecision(t *testing.T) {
	reasons := map[string]int{}
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.watch = func(_ *rapid.T, _ *history, p *Proposal, o *Outcome, _ map[string][]string) {
			reasons[o.Decision.Reason]++
			cases++
		}
		h.control(t, reason.ControlDone, "apply", object{"documents": []string{ruledPolicy("ruled-1")}})
		for _, name := range []string{"d1", "d2"} {
			h.control(t, reason.ControlDone, "resource.set", object{"id": name, "classification": "public"})
		}
		for _, id := range h.agents {
			h.control(t, reason.ControlDone, "memory.load", object{"owner_agent_id": id, "namespace": "rule", "key": "open", "value": true})
		}
		t.Repeat(h.ruled())
		h.log.verify()
	})
	t.Logf("%d cases: %v", cases, reasons)
	if testing.Short() {
		return
	}
	if cases < 1000 {
		t.Errorf("%d cases", cases)
	}
	for _, code := range []reason.Code{
		reason.ActionAllowed, reason.RequirementFailed, reason.RequirementError, reason.ArgumentSchema, reason.NamespaceNotAllowed, reason.ValueNotAllowed,
		reason.ActionNotInEffectiveCapabilities, reason.CapabilityNotInherited, reason.UnknownAction, reason.RestrictionAdded, reason.EmergencyDeny,
		reason.ExpectedRevisionRequired, reason.OwnerWrite, reason.SOPAdmitted,
	} {
		if reasons[string(code)] == 0 {
			t.Errorf("no case of %s", code)
		}
	}
}

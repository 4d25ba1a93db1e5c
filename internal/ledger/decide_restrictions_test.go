package ledger

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
	"pgregory.net/rapid"
)

const rulesPolicy = `apiVersion: ledgerd/v1
kind: Policy
version: rules-1
environment: [memory.read, memory.write, save, upload, plain]
actions:
  save:
    arguments: {type: object, required: [path], additionalProperties: false, properties: {path: {type: string, maxLength: 200}, size: {type: integer}, note: {type: string}, id: {type: string}}}
    require:
    - {id: inside, that: 'args.path.within("internal") || args.path.within("draft")'}
  upload:
    require: [{id: enabled, that: 'mandatory("policy.external_upload") == true'}]
  plain: {}
namespaces:
  policy: {class: mandatory, combine: all_true}
`

// newRules is a tree root → middle → leaf under rulesPolicy.
func newRules(t rapid.TB) *tinyLog {
	t.Helper()
	l := newTinyLog(t)
	documents := []string{rulesPolicy}
	for _, a := range []string{"root", "middle", "leaf"} {
		text := "apiVersion: ledgerd/v1\nkind: Agent\nid: " + a + "\n"
		if a == "middle" {
			text += "parent: root\n"
		} else if a == "leaf" {
			text += "parent: middle\n"
		}
		documents = append(documents, text+"capabilities: [memory.read, memory.write, save, upload, plain]\npublic_key: "+publicKey(a)+"\n")
	}
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": documents})
	return l
}

func (l *tinyLog) authorize(want reason.Code, who, action string, arguments object) *Outcome {
	l.t.Helper()
	return l.mustAsk(want, wire.Propose, who, "action.authorize", object{"action": action, "arguments": arguments})
}

func (l *tinyLog) restrict(want reason.Code, who, id, require string) {
	l.t.Helper()
	l.mustAsk(want, wire.Propose, who, "restriction.add", object{"id": id, "action": "save", "require": require})
}

func TestR61_RulesOnArguments(t *testing.T) {
	l := newRules(t)
	l.authorize(reason.ActionAllowed, "leaf", "save", object{"path": "draft/a", "size": 3})
	for _, arguments := range []object{{}, {"path": 1}, {"path": "draft/a", "size": "9"}, {"path": "draft/a", "size": 1.5}, {"path": "draft/a", "extra": 1}} {
		l.authorize(reason.ArgumentSchema, "leaf", "save", arguments)
	}
	o := l.authorize(reason.RequirementFailed, "leaf", "save", object{"path": "drafts/a"})
	if o.Decision.Rule != "inside" || o.Decision.Owner != "" || !slices.Equal(o.Decision.Failed, []string{"inside"}) {
		t.Errorf("%+v", o.Decision)
	}
	l.authorize(reason.RequirementError, "leaf", "save", object{"path": "draft/../../etc/passwd"})

	// A mandatory record of the lineage, as it is at that moment: missing denies.
	l.authorize(reason.RequirementError, "leaf", "upload", object{})
	load := func(owner string, value any) {
		l.mustAsk(reason.ControlDone, wire.Control, AdminID, "memory.load",
			object{"owner_agent_id": owner, "namespace": "policy", "key": "external_upload", "value": value})
	}
	load("root", true)
	l.authorize(reason.ActionAllowed, "leaf", "upload", object{})
	load("middle", false)
	l.authorize(reason.RequirementFailed, "leaf", "upload", object{})
	l.authorize(reason.ActionAllowed, "root", "upload", object{})
}

func TestR41_ArgumentRulesOfSteps(t *testing.T) {
	l := newRules(t)
	l.restrict(reason.RestrictionAdded, "root", "small", "!has(args.size) || args.size <= 10")
	steps := []object{
		{"step_id": "good", "action": "save", "arguments": object{"path": "draft/a"}},
		{"step_id": "shape", "action": "save", "arguments": object{"path": 1}},
		{"step_id": "where", "action": "save", "arguments": object{"path": "else/a", "size": 11}},
	}
	o := l.mustAsk(reason.ArgumentSchema, wire.Propose, "leaf", "sop.validate", object{"sop": object{"sop_id": "p", "version": 1, "steps": steps}})
	for i, want := range []reason.Code{reason.StepAllowed, reason.ArgumentSchema, reason.RequirementFailed} {
		if o.Steps[i].Reason != string(want) {
			t.Errorf("step %d: %s, want %s", i+1, o.Steps[i].Reason, want)
		}
	}
	if d := o.Steps[2]; d.Rule != "inside" || !slices.Equal(d.Failed, []string{"inside", "root:small"}) {
		t.Errorf("%+v", d)
	}
}

func TestR62_RestrictionsAreInherited(t *testing.T) {
	l := newRules(t)
	l.restrict(reason.RestrictionAdded, "middle", "b-small", "!has(args.size) || args.size <= 10")
	l.restrict(reason.RestrictionAdded, "middle", "b-small", "!has(args.size) || args.size <= 10")
	l.restrict(reason.RecordExists, "middle", "b-small", "true")
	l.restrict(reason.RestrictionAdded, "root", "z", `args.path != "draft/no"`)
	l.restrict(reason.RestrictionAdded, "leaf", "a", `args.note == "x"`)
	l.restrict(reason.PolicyInvalid, "leaf", "c", `args.path == ["a"]`)
	l.mustAsk(reason.PolicyInvalid, wire.Propose, "leaf", "restriction.add", object{"id": "c", "action": "other", "require": "true"})

	o := l.authorize(reason.RequirementFailed, "leaf", "save", object{"path": "draft/no", "size": 11})
	d := o.Decision
	if d.Rule != "z" || d.Owner != "root" || !slices.Equal(d.Failed, []string{"root:z", "middle:b-small", "leaf:a"}) {
		t.Errorf("%+v", d)
	}
	l.authorize(reason.ActionAllowed, "root", "save", object{"path": "draft/a", "size": 11})
	l.authorize(reason.RequirementFailed, "middle", "save", object{"path": "draft/a", "size": 11})

	// Only an admin takes one away.
	remove := object{"agent_id": "middle", "id": "b-small"}
	if o := l.ask(wire.Propose, "middle", "restriction.remove", toJSON(remove)); o.Decision.Allowed {
		t.Error("an agent removed its restriction")
	}
	l.authorize(reason.RequirementFailed, "middle", "save", object{"path": "draft/a", "size": 11})
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "restriction.remove", remove)
	l.authorize(reason.ActionAllowed, "middle", "save", object{"path": "draft/a", "size": 11})
	l.mustAsk(reason.NotFound, wire.Control, AdminID, "restriction.remove", remove)
}

func TestR61_ResourcesAreWhatTheRegistrySays(t *testing.T) {
	l := newRules(t)
	const public = `!has(args.id) || resource(args.id).classification == "public"`
	l.restrict(reason.PolicyInvalid, "root", "public", public) // the operator's alone, or it were a question to the registry
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{
		"kind: Agent\nid: root\ncapabilities: [memory.read, memory.write, save, upload, plain]\nrestrictions: [{id: public, action: save, require: '" + public + "'}]\n"}})
	save := object{"path": "draft/a", "id": "doc/1"}
	l.authorize(reason.RequirementError, "leaf", "save", save)
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "resource.set", object{"id": "doc/1", "classification": "secret", "tags": []string{"b", "a"}})
	l.authorize(reason.RequirementFailed, "leaf", "save", save)
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "resource.set", object{"id": "doc/1", "classification": "public"})
	l.authorize(reason.ActionAllowed, "leaf", "save", save)
	if o := l.ask(wire.Propose, "root", "resource.set", `{"id":"doc/1","classification":"public"}`); o.Decision.Allowed {
		t.Error("an agent classified a resource")
	}
}

// shape is a requirement whose meaning is written twice: in CEL, and here.
type shape struct {
	cel  string
	hold func(path string, size int, sized bool) bool
}

// shapes of requirements; what cannot be judged does not hold.
func drawShape(t *rapid.T) shape {
	n := rapid.IntRange(0, 9).Draw(t, "n")
	dir := rapid.SampledFrom([]string{"draft", "draft/a", "internal"}).Draw(t, "dir")
	switch rapid.IntRange(0, 5).Draw(t, "shape") {
	case 0:
		return shape{fmt.Sprintf("args.size <= %d", n), func(_ string, size int, sized bool) bool { return sized && size <= n }}
	case 1:
		return shape{fmt.Sprintf("!has(args.size) || args.size > %d", n), func(_ string, size int, sized bool) bool { return !sized || size > n }}
	case 2:
		return shape{fmt.Sprintf("args.path.within(%q)", dir), func(path string, _ int, _ bool) bool {
			return !strings.Contains(path, "..") && strings.HasPrefix(path, dir+"/")
		}}
	case 3:
		return shape{fmt.Sprintf("!args.path.within(%q)", dir), func(path string, _ int, _ bool) bool {
			return !strings.Contains(path, "..") && !strings.HasPrefix(path, dir+"/")
		}}
	case 4:
		return shape{fmt.Sprintf("args.size != %d", n), func(_ string, size int, sized bool) bool { return sized && size != n }}
	}
	return shape{`["draft","internal"].exists(d, args.path == d + "/x")`, func(path string, _ int, _ bool) bool {
		return path == "draft/x" || path == "internal/x"
	}}
}

// R62: over more than 10,000 judgements by rules added at random, an evaluator
// of its own says what is allowed, and no added rule allows what was denied.
func TestR62_AddingNeverAllows(t *testing.T) {
	cases := 0
	rapid.Check(t, func(rt *rapid.T) {
		l := newRules(t)
		agents := []string{"root", "middle", "leaf"}
		type request struct {
			who, path string
			size      int
			sized     bool
		}
		var requests []request
		for _, who := range agents {
			for _, path := range []string{"draft/x", "draft/a/x", "internal/x", "draft/../x", "else/x"} {
				size := rapid.IntRange(0, 9).Draw(rt, "size")
				requests = append(requests, request{who, path, size, rapid.Bool().Draw(rt, "sized")})
			}
		}
		var rules [3][]shape
		before := map[request]bool{}
		for round := range 7 {
			if round > 0 {
				owner, s := rapid.IntRange(0, 2).Draw(rt, "owner"), drawShape(rt)
				l.restrict(reason.RestrictionAdded, agents[owner], fmt.Sprintf("r%d", round), s.cel)
				rules[owner] = append(rules[owner], s)
			}
			for _, r := range requests {
				arguments := object{"path": r.path}
				if r.sized {
					arguments["size"] = r.size
				}
				allowed := l.ask(wire.Propose, r.who, "action.authorize", toJSON(object{"action": "save", "arguments": arguments})).Decision.Allowed
				want := r.path == "draft/x" || r.path == "draft/a/x" || r.path == "internal/x"
				for i := range slices.Index(agents, r.who) + 1 {
					for _, s := range rules[i] {
						want = want && s.hold(r.path, r.size, r.sized)
					}
				}
				was, judged := before[r]
				switch {
				case allowed != want:
					rt.Fatalf("%+v: allowed %v, the plain evaluator says %v", r, allowed, want)
				case judged && allowed && !was:
					rt.Fatalf("%+v: another rule allowed it", r)
				}
				before[r] = allowed
				cases++
			}
		}
	})
	if cases < 10_000 && !testing.Short() {
		t.Errorf("%d cases", cases)
	}
}

// A Resource document says what resource.set does: what differs replaces, what
// is said already changes nothing, and a faulty one changes nothing either.
func TestApply_Resources(t *testing.T) {
	l := newTinyLog(t)
	apply := func(documents ...string) *Outcome {
		return l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": documents}))
	}
	policyText := "apiVersion: ledgerd/v1\nkind: Policy\nversion: v1\nenvironment: []\n"
	first := "kind: Resource\nid: doc/1\nclassification: internal\nowner: legal\ntags: [b, a]\n"
	for _, row := range []struct {
		documents []string
		want      string
		effects   int
	}{
		{[]string{policyText, first, "kind: Resource\nid: doc/2\nclassification: public\n"}, "updated created created", 3},
		{[]string{policyText, first}, "unchanged unchanged", 0},
		{[]string{"kind: Resource\nid: doc/1\nclassification: public\n"}, "updated", 1},
	} {
		o := apply(row.documents...)
		var results []string
		for _, a := range o.Applied {
			results = append(results, a.Result)
		}
		if got := strings.Join(results, " "); !o.Decision.Allowed || got != row.want || len(o.Effects) != row.effects {
			t.Errorf("%v: %s %s, %d effects", row.documents, o.Decision.Reason, got, len(o.Effects))
		}
	}
	before := l.state.Resources()
	if len(before) != 2 || before[0].Classification != "public" || len(before[0].Tags) != 0 {
		t.Errorf("the registry: %+v", before)
	}
	for _, faulty := range []string{"kind: Resource\nid: doc 1\nclassification: public\n", "kind: Resource\nid: doc/3\n", "kind: Resource\nid: doc/3\nclassification: x\ntags: [a, a]\n", "kind: Resource\nid: doc/3\nclassification: x\nclass: y\n"} {
		if o := apply("kind: Resource\nid: doc/4\nclassification: public\n", faulty); o.Decision.Allowed || len(o.Faults) == 0 {
			t.Errorf("%s: %s", faulty, o.Decision.Reason)
		}
	}
	if o := apply(first, first); o.Decision.Allowed {
		t.Error("two documents about one resource")
	}
	if after := l.state.Resources(); !reflect.DeepEqual(before, after) {
		t.Errorf("the registry is %+v", after)
	}
	l.verify()
}

// R3, R21: nothing that a rule asked of records or of the registry is told to
// whoever is denied by it, and no agent asks by a rule of its own.
func TestR3_RulesTellNothingTheyAsked(t *testing.T) {
	l := newRules(t)
	for _, require := range []string{
		`!has(args.n) || {1:true}[mandatory("policy.external_upload")]`, `mandatory("policy.external_upload") == true`, `resource("doc/1").classification >= "m"`,
		`["doc/1"].all(i, resource(i).owner != "x")`, `true || mandatory("policy.external_upload") == true`,
	} {
		for _, who := range []string{"root", "leaf"} {
			o := l.mustAsk(reason.PolicyInvalid, wire.Propose, who, "restriction.add", object{"id": "leak", "action": "save", "require": require})
			if len(o.Effects) > 0 || len(l.state.Agent(who).Restrictions) > 0 {
				t.Errorf("%s added %s", who, require)
			}
		}
	}
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "memory.load", object{"owner_agent_id": "root", "namespace": "policy", "key": "external_upload", "value": true})
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{
		"kind: Agent\nid: root\ncapabilities: [memory.read, memory.write, save, upload, plain]\nrestrictions: [{id: odd, action: save, require: '{1:true}[mandatory(\"policy.external_upload\")]'}]\n"}})
	o := l.authorize(reason.RequirementError, "leaf", "save", object{"path": "draft/a"})
	for _, fault := range o.Faults {
		if strings.Contains(fault, "true") {
			t.Errorf("the sender is told %q", fault)
		}
	}
}

// R29: what is denied for want of a mandatory record is not allowed by a record
// of whoever is denied, nor by anyone between it and the root.
func TestR29_TheRootLaysItDown(t *testing.T) {
	l := newRules(t)
	write := func(who string, value any) {
		l.mustAsk(reason.OwnerWrite, wire.Propose, who, "memory.write", object{"owner_agent_id": who, "namespace": "policy", "key": "external_upload", "value": value})
	}
	l.authorize(reason.RequirementError, "leaf", "upload", object{})
	write("leaf", true)
	l.authorize(reason.RequirementError, "leaf", "upload", object{})
	write("middle", true)
	l.authorize(reason.RequirementError, "leaf", "upload", object{})
	l.authorize(reason.RequirementError, "middle", "upload", object{})
	write("root", true)
	l.authorize(reason.ActionAllowed, "leaf", "upload", object{})
	l.mustAsk(reason.OwnerDelete, wire.Propose, "root", "memory.delete", object{"owner_agent_id": "root", "namespace": "policy", "key": "external_upload", "expected_revision": 1})
	l.authorize(reason.RequirementError, "leaf", "upload", object{})
	l.mustAsk(reason.MandatoryTypeMismatch, wire.Propose, "root", "memory.write",
		object{"owner_agent_id": "root", "namespace": "policy", "key": "other", "value": []string{strings.Repeat("a", 9000)}})
}

// R62: a restriction that a new policy leaves without meaning neither stops the
// policy nor ends: it denies.
func TestR62_ARestrictionStopsNoPolicy(t *testing.T) {
	l := newRules(t)
	l.restrict(reason.RestrictionAdded, "middle", "small", "!has(args.size) || args.size <= 10")
	l.authorize(reason.ActionAllowed, "leaf", "save", object{"path": "draft/a", "size": 3})
	next := strings.Replace(strings.Replace(rulesPolicy, "version: rules-1", "version: rules-2", 1), "size: {type: integer}", "size: {type: string}", 1)
	o := l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{next}})
	if !slices.ContainsFunc(o.Applied, func(a Applied) bool {
		return a.Kind == "Restriction" && a.ID == "middle:small" && strings.HasPrefix(a.Result, "denies")
	}) {
		t.Errorf("%+v", o.Applied)
	}
	l.authorize(reason.RequirementError, "leaf", "save", object{"path": "draft/a", "size": "3"})
	l.authorize(reason.ActionAllowed, "root", "save", object{"path": "draft/a", "size": "3"})
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "restriction.remove", object{"agent_id": "middle", "id": "small"})
	l.authorize(reason.ActionAllowed, "leaf", "save", object{"path": "draft/a", "size": "3"})
}

// R66: agents add so many restrictions to one tree; an operator's are not counted out.
func TestR66_RestrictionsOfATree(t *testing.T) {
	l := newRules(t)
	l.quick = true
	n := 0
	for i := 0; n < policy.TreeRestrictionsMax; i++ {
		id := fmt.Sprint("kid", i)
		l.mustAsk(reason.Registered, wire.Control, AdminID, "agent.register", object{"agent_id": id, "parent_id": "root", "capabilities": []string{"save"}, "public_key": publicKey(id)})
		for k := range policy.RestrictionsMax {
			l.restrict(reason.RestrictionAdded, id, fmt.Sprint("r", k), "args.size > 1")
			n++
		}
	}
	l.restrict(reason.QuotaExceeded, "leaf", "more", "args.size > 1")
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "restriction.remove", object{"agent_id": "kid0", "id": "r0"})
	l.restrict(reason.RestrictionAdded, "leaf", "more", "args.size > 1")
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{
		"kind: Agent\nid: middle\nparent: root\ncapabilities: [memory.read, memory.write, save, upload, plain]\nrestrictions: [{id: own, action: save, require: args.size > 1}]\n"}})
}

// A restriction is judged by the policy that a state has, also where that is
// exchanged, as whoever judges a log under another policy does.
func TestAClauseIsThatOfItsPolicy(t *testing.T) {
	l := newRules(t)
	r := policy.Restriction{ID: "r", Action: "save", Text: "args.size < 10"}
	without, faults := policy.ParseDocument("apiVersion: ledgerd/v1\nkind: Policy\nversion: other\nenvironment: []\n")
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	in := l.state.Policy
	for range 2 {
		l.state.Policy = without.Policy
		if _, err := l.state.Clause(r); err == nil {
			t.Error("a clause on an action that the policy has not")
		}
		l.state.Policy = in
		if _, err := l.state.Clause(r); err != nil {
			t.Error(err)
		}
	}
}

package sop

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
)

func value(t testing.TB, text string) events.Value {
	t.Helper()
	v, err := events.ParseJSON([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// world is a World of functions; where write is nil every value may be written.
type world struct {
	known, holds func(string) bool
	write        func(namespace string, value []byte) reason.Code
}

func (w *world) Known(action string) bool       { return w.known(action) }
func (w *world) Denied(string) bool             { return false }
func (w *world) Holds(capability string) bool   { return w.holds(capability) }
func (w *world) Within(string) bool             { return true }
func (w *world) Rules(*Step) (none reason.Code) { return none }

func (w *world) Write(namespace, _ string, value []byte, _ uint64) (none reason.Code) {
	if w.write == nil {
		return none
	}
	return w.write(namespace, value)
}

// lab is the scope of researcher in the worked case.
func lab() Scope { return scopeOf(labWorld()) }

func labWorld() *world {
	p := &policy.Policy{Actions: map[string]policy.Action{"document.summarize": {}, "artifact.save": {}, "external.upload": {}}}
	effective := policy.NewSet("memory.read", "memory.write", "document.summarize", "artifact.save")
	return &world{known: p.KnownAction, holds: effective.Has}
}

func scopeOf(w *world) Scope {
	return Scope{Agent: "researcher", Lineage: []string{"researcher", "report_manager"}, World: w}
}

// stepOf is the step of a procedure with these arguments.
func stepOf(t testing.TB, id, action, arguments string) Step {
	t.Helper()
	step := Step{ID: id, Action: action, Resource: "p:" + id, Arguments: value(t, arguments).AppendCanonical(nil)}
	step.look()
	return step
}

func steps(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"step_id":"s%d","action":"artifact.save"}`, i)
	}
	return b.String()
}

func TestR42_TheWholeHasExactlyItsShape(t *testing.T) {
	const step = `{"step_id":"s","action":"artifact.save","arguments":{}}`
	whole := func(version, steps string) string {
		return `{"sop_id":"p","version":` + version + `,"steps":` + steps + `}`
	}
	withStep := func(step string) string { return whole("1", "["+step+"]") }
	for _, row := range []struct {
		name, text string
		want       reason.Code
	}{
		{"good", withStep(step), ""},
		{"arguments left out", withStep(`{"step_id":"s","action":"artifact.save"}`), ""},
		{"empty step id is the step's", withStep(`{"step_id":"","action":"artifact.save"}`), ""},
		{"odd action is the step's", withStep(`{"step_id":"s","action":"Rm -rf /\n"}`), ""},
		{"empty action is the step's", withStep(`{"step_id":"s","action":""}`), ""},
		{"largest version", whole("9007199254740991", "["+step+"]"), ""},
		{"50 steps", whole("1", "["+steps(50)+"]"), ""},

		{"null", `null`, reason.SOPMalformed},
		{"a text", `"sop"`, reason.SOPMalformed},
		{"a list", `[` + step + `]`, reason.SOPMalformed},
		{"empty", `{}`, reason.SOPMalformed},
		{"no id", `{"version":1,"steps":[` + step + `]}`, reason.SOPMalformed},
		{"no version", `{"sop_id":"p","steps":[` + step + `]}`, reason.SOPMalformed},
		{"no steps field", `{"sop_id":"p","version":1}`, reason.SOPMalformed},
		{"another field", `{"sop_id":"p","version":1,"steps":[` + step + `],"actor_id":"admin"}`, reason.SOPMalformed},
		{"another field in place of one", `{"sop_id":"p","version":1,"Steps":[` + step + `]}`, reason.SOPMalformed},
		{"empty id", `{"sop_id":"","version":1,"steps":[` + step + `]}`, reason.SOPMalformed},
		{"id of another kind", `{"sop_id":1,"version":1,"steps":[` + step + `]}`, reason.SOPMalformed},
		{"null id", `{"sop_id":null,"version":1,"steps":[` + step + `]}`, reason.SOPMalformed},
		{"id outside the grammar", `{"sop_id":"a/b","version":1,"steps":[` + step + `]}`, reason.SOPMalformed},
		{"id of 65", `{"sop_id":"` + strings.Repeat("a", 65) + `","version":1,"steps":[` + step + `]}`, reason.SOPMalformed},

		{"version 0", whole("0", "["+step+"]"), reason.SOPVersionInvalid},
		{"version -1", whole("-1", "["+step+"]"), reason.SOPVersionInvalid},
		{"version true", whole("true", "["+step+"]"), reason.SOPVersionInvalid},
		{"version 1.5", whole("1.5", "["+step+"]"), reason.SOPVersionInvalid},
		{"version 1.0", whole("1.0", "["+step+"]"), reason.SOPVersionInvalid},
		{"version 1e0", whole("1e0", "["+step+"]"), reason.SOPVersionInvalid},
		{"version in quotes", whole(`"1"`, "["+step+"]"), reason.SOPVersionInvalid},
		{"version null", whole("null", "["+step+"]"), reason.SOPVersionInvalid},
		{"version list", whole("[1]", "["+step+"]"), reason.SOPVersionInvalid},

		{"steps null", whole("1", "null"), reason.SOPMalformed},
		{"steps an object", whole("1", "{}"), reason.SOPMalformed},
		{"no steps", whole("1", "[]"), reason.SOPEmpty},
		{"51 steps", whole("1", "["+steps(51)+"]"), reason.SOPTooLarge},

		{"step a text", withStep(`"artifact.save"`), reason.SOPMalformed},
		{"step null", withStep(`null`), reason.SOPMalformed},
		{"step a list", withStep(`[]`), reason.SOPMalformed},
		{"step empty", withStep(`{}`), reason.SOPMalformed},
		{"step without id", withStep(`{"action":"artifact.save"}`), reason.SOPMalformed},
		{"step without action", withStep(`{"step_id":"s"}`), reason.SOPMalformed},
		{"step with another field", withStep(`{"step_id":"s","action":"artifact.save","args":{}}`), reason.SOPMalformed},
		{"step with agent", withStep(`{"step_id":"s","action":"artifact.save","arguments":{},"agent":"root"}`), reason.SOPMalformed},
		{"step with another field in place of arguments", withStep(`{"step_id":"s","action":"artifact.save","if":{}}`), reason.SOPMalformed},
		{"step id of another kind", withStep(`{"step_id":1,"action":"artifact.save"}`), reason.SOPMalformed},
		{"step id null", withStep(`{"step_id":null,"action":"artifact.save"}`), reason.SOPMalformed},
		{"step id outside the grammar", withStep(`{"step_id":" s","action":"artifact.save"}`), reason.SOPMalformed},
		{"action of another kind", withStep(`{"step_id":"s","action":["artifact.save"]}`), reason.SOPMalformed},
		{"action null", withStep(`{"step_id":"s","action":null}`), reason.SOPMalformed},
		{"arguments null", withStep(`{"step_id":"s","action":"artifact.save","arguments":null}`), reason.SOPMalformed},
		{"arguments a list", withStep(`{"step_id":"s","action":"artifact.save","arguments":[]}`), reason.SOPMalformed},
		{"arguments a text", withStep(`{"step_id":"s","action":"artifact.save","arguments":"{}"}`), reason.SOPMalformed},
		{"last step bad", whole("1", "["+steps(49)+`,{"step_id":"x"}]`), reason.SOPMalformed},
	} {
		sop, code := Parse(value(t, row.text))
		if code != row.want {
			t.Errorf("%s: %q, want %q", row.name, code, row.want)
		}
		if (code == "") != (len(sop.Steps) > 0) {
			t.Errorf("%s: %d steps with code %q", row.name, len(sop.Steps), code)
		}
		if _, whole := Validate(sop, lab()); code != "" && whole.Allowed() {
			t.Errorf("%s: refused by Parse and admitted by Validate", row.name)
		}
	}
}

func TestParseKeepsWhatIsValid(t *testing.T) {
	sop, code := Parse(value(t, `{"sop_id":"p-1","version":7,"steps":[{"step_id":"s","action":"artifact.save","arguments":{"b":1, "a":[true]}}]}`))
	if code != "" || sop.ID != "p-1" || sop.Version != 7 || sop.Steps[0].ID != "s" || sop.Steps[0].Action != "artifact.save" || string(sop.Steps[0].Arguments) != `{"a":[true],"b":1}` {
		t.Errorf("%+v, %q", sop, code)
	}
	sop, code = Parse(value(t, `{"sop_id":"p-1","version":0,"steps":[]}`))
	if code != reason.SOPVersionInvalid || sop.ID != "p-1" || sop.Version != 0 || sop.Steps != nil {
		t.Errorf("%+v, %q", sop, code)
	}
	sop, code = Parse(value(t, `{"sop_id":"../p","version":3,"steps":[]}`))
	if code != reason.SOPMalformed || sop.ID != "" || sop.Version != 3 {
		t.Errorf("%+v, %q", sop, code)
	}
}

// Each row is one step, judged alone, in the order of the checks: a step that
// fails several fails by the first.
func TestR41_StepsAreJudgedInOrder(t *testing.T) {
	long := strings.Repeat("a", events.ArgumentsBytesMax)
	for _, row := range []struct {
		id, action, arguments string
		want                  reason.Code
	}{
		{"", "no.such", `{}`, reason.EmptyStepID},
		{"", "artifact.save", `{}`, reason.EmptyStepID},

		{"s", "no.such", `{}`, reason.UnknownAction},
		{"s", "no.such", `{"owner_agent_id":"other"}`, reason.UnknownAction},
		{"s", "help", `{}`, reason.UnknownAction},
		{"s", "", `{}`, reason.UnknownAction},
		{"s", "Artifact.save", `{}`, reason.UnknownAction},
		{"s", "artifact.save ", `{}`, reason.UnknownAction},
		{"s", "artifact.*", `{}`, reason.UnknownAction},
		{"s", "agent.register", `{}`, reason.UnknownAction},
		{"s", "memory.wipe_all", `{}`, reason.UnknownAction},
		{"s", "memory.load", `{}`, reason.UnknownAction},
		{"s", "sop.submit", `{}`, reason.UnknownAction},
		{"s", "action.authorize", `{}`, reason.UnknownAction},

		{"s", "external.upload", `{}`, reason.ActionNotInEffectiveCapabilities},
		{"s", "external.upload", `{"owner_agent_id":"other","x":"` + long + `"}`, reason.ActionNotInEffectiveCapabilities},

		{"s", "memory.write", `{"namespace":"n","key":"k","value":1}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.write", `{}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.write", `{"owner_agent_id":"report_manager","namespace":"n","key":"k","value":1}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.write", `{"owner_agent_id":"stranger","namespace":"n","key":"k","value":1}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.write", `{"owner_agent_id":["researcher"],"namespace":"n","key":"k","value":1}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.write", `{"owner_agent_id":null,"namespace":"n","key":"k","value":1}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.delete", `{"owner_agent_id":"report_manager","namespace":"n","key":"k","expected_revision":1}`, reason.CrossOwnerMemoryWrite},
		{"s", "memory.delete", `{"namespace":"n","key":"k","expected_revision":1}`, reason.CrossOwnerMemoryWrite},

		{"s", "memory.read", `{"namespace":"n","key":"k","owner_agent_id":"formatter"}`, reason.ReferenceOutOfScope},
		{"s", "memory.read", `{"namespace":"n","key":"k","owner_agent_id":"stranger"}`, reason.ReferenceOutOfScope},
		{"s", "memory.read", `{"namespace":"n","key":"k","owner_agent_id":7}`, reason.ReferenceOutOfScope},
		{"s", "memory.read", `{"namespace":"n","key":"k","owner_agent_id":null}`, reason.ReferenceOutOfScope},
		{"s", "memory.read", `{"owner_agent_id":"Researcher"}`, reason.ReferenceOutOfScope},
		{"s", "artifact.save", `{"owner_agent_id":"stranger"}`, reason.ReferenceOutOfScope},
		{"s", "artifact.save", `{"to":[{"owner_agent_id":"stranger"}]}`, reason.ReferenceOutOfScope},
		{"s", "artifact.save", `{"owner_agent_id":true}`, reason.ReferenceOutOfScope},

		{"s", "artifact.save", `{"x":"` + long + `"}`, reason.RequestTooLarge},
		{"s", "memory.read", `{"namespace":"n","key":"k","x":"` + long + `"}`, reason.RequestTooLarge},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":"` + long + `"}`, reason.RequestTooLarge},
		{"s", "memory.read", `{}`, reason.ArgumentSchema},
		{"s", "memory.read", `{"namespace":"n"}`, reason.ArgumentSchema},
		{"s", "memory.read", `{"namespace":"n","key":"k","agent_id":"x"}`, reason.ArgumentSchema},
		{"s", "memory.read", `{"namespace":1,"key":"k"}`, reason.ArgumentSchema},
		{"s", "memory.read", `{"namespace":"n","key":null}`, reason.ArgumentSchema},
		{"s", "memory.read", `{"namespace":"n","key":"k","operation_id":"o"}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k"}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":null}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1,"visibility":"public"}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1,"visibility":null}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1,"expected_revision":0}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1,"expected_revision":1.0}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1,"expected_revision":"1"}`, reason.ArgumentSchema},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1,"ttl_seconds":0}`, reason.ArgumentSchema},
		{"s", "memory.delete", `{"owner_agent_id":"researcher","namespace":"n","key":"k"}`, reason.ArgumentSchema},
		{"s", "memory.delete", `{"owner_agent_id":"researcher","namespace":"n","key":"k","expected_revision":1,"value":1}`, reason.ArgumentSchema},
		{"s", "memory.read", `{"namespace":"Notes","key":"k"}`, reason.SOPMalformed},
		{"s", "memory.read", `{"namespace":"n","key":"a.b"}`, reason.SOPMalformed},
		{"s", "memory.read", `{"namespace":"","key":""}`, reason.SOPMalformed},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n.*","key":"k","value":1}`, reason.SOPMalformed},

		{"s", "artifact.save", `{}`, reason.StepAllowed},
		{"s", "artifact.save", `{"owner_agent_id":"report_manager","path":"a/b"}`, reason.StepAllowed},
		{"s", "memory.read", `{"namespace":"n","key":"k"}`, reason.StepAllowed},
		{"s", "memory.read", `{"namespace":"n","key":"k","owner_agent_id":"researcher"}`, reason.StepAllowed},
		{"s", "memory.read", `{"namespace":"n","key":"k","owner_agent_id":"report_manager"}`, reason.StepAllowed},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":{"owner_agent_id":"stranger"}}`, reason.StepAllowed},
		{"s", "memory.write", `{"owner_agent_id":"researcher","namespace":"n","key":"k","value":false,"visibility":"children","expected_revision":3}`, reason.StepAllowed},
		{"s", "memory.delete", `{"owner_agent_id":"researcher","namespace":"n","key":"k","expected_revision":1}`, reason.StepAllowed},
	} {
		step := stepOf(t, row.id, row.action, row.arguments)
		results, whole := Validate(SOP{ID: "p", Version: 1, Steps: []Step{step}}, lab())
		if len(results) != 1 || results[0].Reason != row.want {
			t.Errorf("%q %.120s: %v, want %s", row.action, row.arguments, results, row.want)
		}
		if want := row.want; want == reason.StepAllowed && whole != reason.SOPAdmitted || want != reason.StepAllowed && whole != want {
			t.Errorf("%q %.120s: the whole is %s", row.action, row.arguments, whole)
		}
		if a := results[0].Action; a != row.action && (a != events.Unsupported || events.ValidAction(row.action)) {
			t.Errorf("action %q is written as %q", row.action, a)
		}
	}
}

// A step needs memory.write to delete, and holding it is asked under that name.
func TestDeletingNeedsMemoryWrite(t *testing.T) {
	step := stepOf(t, "s", "memory.delete", `{"owner_agent_id":"researcher","namespace":"n","key":"k","expected_revision":1}`)
	w := labWorld()
	w.holds = policy.NewSet("memory.read", "memory.delete").Has
	if _, whole := Validate(SOP{ID: "p", Version: 1, Steps: []Step{step}}, scopeOf(w)); whole != reason.ActionNotInEffectiveCapabilities {
		t.Errorf("without memory.write: %s", whole)
	}
}

// The capability is asked for before the owner, and the owner before the
// lineage, whatever the policy knows.
func TestR41_CapabilityBeforeOwnerBeforeLineage(t *testing.T) {
	w := labWorld()
	w.known = func(string) bool { return true }
	judge := func(action string) reason.Code {
		results, _ := Validate(SOP{Steps: []Step{stepOf(t, "s", action, `{"owner_agent_id":"stranger"}`)}}, scopeOf(w))
		return results[0].Reason
	}
	if got := judge("memory.write"); got != reason.CrossOwnerMemoryWrite {
		t.Errorf("with the capability: %s", got)
	}
	w.holds = policy.NewSet("memory.read").Has
	if got := judge("memory.write"); got != reason.ActionNotInEffectiveCapabilities {
		t.Errorf("without the capability: %s", got)
	}
	if got := judge("memory.read"); got != reason.ReferenceOutOfScope {
		t.Errorf("reading a stranger's record: %s", got)
	}
	if got := judge("agent.register"); got != reason.UnknownAction {
		t.Errorf("agent.register as a step: %s", got)
	}
}

func TestR60_WithoutPolicyNoStepIsKnown(t *testing.T) {
	var none *policy.Policy
	w := &world{known: none.KnownAction, holds: func(string) bool { return true }}
	for _, action := range []string{"memory.read", "memory.write", "memory.delete", "artifact.save"} {
		results, _ := Validate(SOP{Steps: []Step{stepOf(t, "s", action, `{}`)}}, scopeOf(w))
		if results[0].Reason != reason.UnknownAction {
			t.Errorf("%s: %s", action, results[0].Reason)
		}
	}
	if _, whole := Validate(SOP{}, lab()); whole.Allowed() {
		t.Errorf("a procedure without steps: %s", whole)
	}
}

// Ten steps, the tenth forbidden: every step has its verdict, exactly the tenth
// is refused, and so is the whole, for the same reason.
func TestR40_OneForbiddenStepRefusesTheWhole(t *testing.T) {
	text := `{"sop_id":"export","version":1,"steps":[` + steps(9) + `,{"step_id":"upload","action":"external.upload"}]}`
	procedure, code := Parse(value(t, text))
	if code != "" {
		t.Fatal(code)
	}
	results, whole := Validate(procedure, lab())
	if len(results) != 10 || whole != reason.ActionNotInEffectiveCapabilities {
		t.Fatalf("%d results, whole %s", len(results), whole)
	}
	for i, r := range results[:9] {
		if r.Reason != reason.StepAllowed || r.StepID != fmt.Sprintf("s%d", i) {
			t.Errorf("step %d: %+v", i+1, r)
		}
	}
	if r := results[9]; r != (StepResult{"upload", "external.upload", reason.ActionNotInEffectiveCapabilities}) {
		t.Errorf("step 10: %+v", r)
	}
}

func TestR40_TheRefusalListsEveryReason(t *testing.T) {
	procedure, code := Parse(value(t, `{"sop_id":"p","version":1,"steps":[
		{"step_id":"a","action":"artifact.save"},
		{"step_id":"","action":"artifact.save"},
		{"step_id":"a","action":"no.such"},
		{"step_id":"b","action":"NO SUCH"},
		{"step_id":"c","action":"external.upload"},
		{"step_id":"d","action":"memory.write","arguments":{"owner_agent_id":"report_manager"}},
		{"step_id":"e","action":"memory.read","arguments":{"owner_agent_id":"formatter"}},
		{"step_id":"f","action":"memory.read"},
		{"step_id":"g","action":"document.summarize"}]}`))
	if code != "" {
		t.Fatal(code)
	}
	want := []StepResult{
		{"a", "artifact.save", reason.StepAllowed},
		{"", "artifact.save", reason.EmptyStepID},
		{"a", "no.such", reason.DuplicateStepID},
		{"b", "unsupported", reason.UnknownAction},
		{"c", "external.upload", reason.ActionNotInEffectiveCapabilities},
		{"d", "memory.write", reason.CrossOwnerMemoryWrite},
		{"e", "memory.read", reason.ReferenceOutOfScope},
		{"f", "memory.read", reason.ArgumentSchema},
		{"g", "document.summarize", reason.StepAllowed},
	}
	results, whole := Validate(procedure, lab())
	if !slices.Equal(results, want) || whole != reason.EmptyStepID {
		t.Errorf("whole %s, results\n%v\nwant\n%v", whole, results, want)
	}
}

// Judging asks for names and nothing else: not for a step's arguments, and for
// nothing of a step that is refused before.
func TestR44_JudgingAsksOnlyForNames(t *testing.T) {
	var asked []string
	lab := labWorld()
	w := &world{
		known: func(a string) bool { asked = append(asked, "known "+a); return lab.known(a) },
		holds: func(c string) bool { asked = append(asked, "holds "+c); return lab.holds(c) },
	}
	const before = `{"path":"/etc/passwd"}`
	var list []Step
	for _, step := range [][2]string{{"", "artifact.save"}, {"a", "artifact.save"}, {"a", "artifact.save"}, {"b", "no.such"}, {"c", "No Such"}} {
		list = append(list, stepOf(t, step[0], step[1], before))
	}
	Validate(SOP{Steps: list}, scopeOf(w))
	if want := []string{"known artifact.save", "holds artifact.save", "known no.such"}; !slices.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
	for _, step := range list {
		if string(step.Arguments) != before {
			t.Errorf("arguments became %s", step.Arguments)
		}
	}
}

var stepPool = []string{
	`{"step_id":"%s","action":"artifact.save"}`,
	`{"step_id":"%s","action":"document.summarize","arguments":{"owner_agent_id":"report_manager"}}`,
	`{"step_id":"%s","action":"memory.read","arguments":{"namespace":"n","key":"k"}}`,
	`{"step_id":"%s","action":"external.upload"}`,
	`{"step_id":"%s","action":"no.such"}`,
	`{"step_id":"%s","action":"memory.write","arguments":{"namespace":"n","key":"k","value":1}}`,
	`{"step_id":"%s","action":"memory.read","arguments":{"namespace":"n","key":"k","owner_agent_id":"stranger"}}`,
	`{"step_id":"%s","action":"memory.read","arguments":{"key":"k"}}`,
}

// The order of steps with different ids changes no verdict; a repeated id
// refuses the whole wherever it stands; one bad step more never admits.
func TestVerdictsDoNotDependOnTheOrderOfSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "steps")
		list := make([]Step, n)
		for i := range list {
			v, err := events.ParseJSON(fmt.Appendf(nil, rapid.SampledFrom(stepPool).Draw(t, "step"), fmt.Sprintf("s%d", i)))
			if err != nil {
				t.Fatal(err)
			}
			d := draft{procedure: "p"}
			canonical, _ := d.parse(&v, nil)
			list[i] = d.steps(canonical)[0]
		}
		verdicts := map[string]reason.Code{}
		results, whole := Validate(SOP{Steps: list}, lab())
		bad := false
		for _, r := range results {
			verdicts[r.StepID] = r.Reason
			bad = bad || !r.Reason.Allowed()
		}
		if bad == whole.Allowed() {
			t.Fatalf("whole %s with %v", whole, results)
		}
		shuffled := rapid.Permutation(list).Draw(t, "shuffled")
		results, again := Validate(SOP{Steps: shuffled}, lab())
		for i, r := range results {
			if r.StepID != shuffled[i].ID || r.Reason != verdicts[r.StepID] {
				t.Fatalf("%+v, before %s", r, verdicts[r.StepID])
			}
		}
		if again.Allowed() != whole.Allowed() {
			t.Fatalf("whole %s, then %s", whole, again)
		}
		at := rapid.IntRange(0, n).Draw(t, "at")
		doubled := slices.Insert(slices.Clone(list), at, list[rapid.IntRange(0, n-1).Draw(t, "which")])
		results, whole = Validate(SOP{Steps: doubled}, lab())
		count := 0
		for _, r := range results {
			if r.Reason == reason.DuplicateStepID {
				count++
			}
		}
		if count != 1 || whole.Allowed() {
			t.Fatalf("%d duplicates, whole %s", count, whole)
		}
	})
}

func FuzzParseAndValidate(f *testing.F) {
	f.Add(`{"sop_id":"p","version":1,"steps":[{"step_id":"s","action":"artifact.save","arguments":{"a":1}}]}`)
	f.Add(`{"sop_id":"p","version":1.0,"steps":[]}`)
	for i, s := range stepPool {
		f.Add(`{"sop_id":"p","version":1,"steps":[` + fmt.Sprintf(s, "x") + `,` + fmt.Sprintf(stepPool[(i+1)%len(stepPool)], "x") + `]}`)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := events.ParseJSON([]byte(text))
		if err != nil {
			return
		}
		procedure, code := Parse(v)
		if (code == "") != (len(procedure.Steps) > 0) || len(procedure.Steps) > events.SOPStepsMax || code.Allowed() {
			t.Fatalf("%d steps, code %q", len(procedure.Steps), code)
		}
		if code != "" {
			return
		}
		if !events.ValidToken(procedure.ID) || procedure.Version < 1 {
			t.Fatalf("accepted %+v", procedure)
		}
		results, whole := Validate(procedure, lab())
		bad := false
		for i, r := range results {
			if _, ok := reason.Of(r.Reason); !ok || r.StepID != procedure.Steps[i].ID || !events.ValidAction(r.Action) {
				t.Fatalf("result %+v", r)
			}
			bad = bad || r.Reason != reason.StepAllowed
		}
		if len(results) != len(procedure.Steps) || bad == (whole == reason.SOPAdmitted) {
			t.Fatalf("%v, whole %s", results, whole)
		}
	})
}

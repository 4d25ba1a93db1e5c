package trial

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/policy"
)

const house = `apiVersion: ledgerd/v1
kind: Policy
version: v1
environment: [memory.read, x.one, x.two]
actions:
  x.one: {}
  x.two: {}
  x.three: {}
namespaces:
  vault: {class: secret}
  vault.deep: {class: secret}
---
kind: Agent
id: top
capabilities: [memory.read, x.one]
---
kind: Agent
id: low
parent: top
capabilities: [memory.read, x.two]
---
kind: Principal
id: tools
role: handler
actions: [x.one, x.four]
`

func parse(t *testing.T, text string) ([]policy.Part, []policy.Document) {
	t.Helper()
	documents, faults := policy.ParseFile("house.yaml", text)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return policy.SplitFile("house.yaml", text), documents
}

func cases(t *testing.T, text string) []policy.Case {
	t.Helper()
	c, faults := policy.ParseCases("cases.yaml", "apiVersion: ledgerd/v1\nkind: Cases\npolicy: house.yaml\ncases:\n"+text)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return c.Cases
}

func TestRun_ShowsWhatWasExpectedAndFound(t *testing.T) {
	parts, documents := parse(t, house)
	failures, faults := Run(parts, documents, cases(t, `
- {name: right, agent: top, operation: x.one, decision: allowed, reason: action_allowed}
- {name: wrong, agent: low, operation: x.one, decision: allowed, reason: action_allowed}
- {name: other reason, agent: low, operation: x.two, decision: denied, reason: unknown_action}
- {name: no such rule, agent: top, operation: x.one, decision: allowed, reason: action_allowed, rule: a}
- name: a step before it that is denied
  given: [{agent: low, operation: x.one}]
  agent: top
  operation: x.one
  decision: allowed
  reason: action_allowed
- {name: a float, agent: top, operation: x.one, arguments: '{"a":1.5}', decision: allowed, reason: action_allowed}
`))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var got []string
	for _, f := range failures {
		got = append(got, f.Case.Name+": want "+f.Want+", got "+f.Got)
	}
	want := []string{
		"wrong: want allowed action_allowed, got denied action_not_in_effective_capabilities",
		"other reason: want denied unknown_action, got denied action_not_in_effective_capabilities",
		"no such rule: want allowed action_allowed by rule a, got allowed action_allowed",
		"a step before it that is denied: want allowed action_allowed, got given step 1: denied action_not_in_effective_capabilities",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("failures:\n%s", strings.Join(got, "\n"))
	}
}

func TestRun_NoCaseIsAFault(t *testing.T) {
	parts, documents := parse(t, house)
	if _, faults := Run(parts, documents, nil); len(faults) == 0 {
		t.Error("nothing was tried and nothing said")
	}
}

func TestNew_SaysWhatTheApplySays(t *testing.T) {
	parts, documents := parse(t, strings.Replace(house, "parent: top", "parent: nobody", 1))
	if _, faults := New(parts, documents); len(faults) != 1 || !strings.Contains(faults[0], "unknown_parent low") {
		t.Errorf("faults %v", faults)
	}
}

func TestLint_Warnings(t *testing.T) {
	parts, documents := parse(t, house)
	var got strings.Builder
	for _, w := range Lint(parts, documents) {
		w.Excerpt = ""
		got.WriteString(w.String() + "\n")
	}
	want := `house.yaml:4:35: nobody holds x.two, which the environment has; declare it for an agent, or leave it out
house.yaml:6:3: x.one takes any object of arguments; say with arguments: what it takes
house.yaml:7:3: x.two takes any object of arguments; say with arguments: what it takes
house.yaml:7:3: no handler may serve x.two, so that no procedure with it ever starts; add it to a handler's actions
house.yaml:8:3: x.three takes any object of arguments; say with arguments: what it takes
house.yaml:8:3: x.three is not in the environment, so that nobody can do it and no rule of it ever counts; add it there, or leave it out
house.yaml:8:3: no handler may serve x.three, so that no procedure with it ever starts; add it to a handler's actions
house.yaml:11:3: the rule for vault.deep is never the one that counts: the one for vault says the same; leave it out
house.yaml:20:29: low declares x.two and will not hold it: the agent top does not; declare it there too, or leave it out
house.yaml:25:18: tools serves x.four, which the policy does not declare
`
	if got.String() != want {
		t.Errorf("warnings:\n%s", got.String())
	}
}

// Each likely mistake is told with its place and a way to mend it, and its
// opposite is not.
func TestLint_Rules(t *testing.T) {
	const head = `apiVersion: ledgerd/v1
kind: Policy
version: v1
environment: [memory.write, x.one]
actions:
  x.one:
    arguments: {type: object, properties: {n: {type: integer}, file_path: {type: string}, kind: {enum: [a]}}}
`
	const agent = "---\nkind: Agent\nid: top\ncapabilities: [memory.write, x.one]\n"
	const child = "---\nkind: Agent\nid: low\nparent: top\ncapabilities: [memory.write]\n"
	const bound = "    require:\n    - {id: path, that: args.file_path.within(\"src\")}\n"
	for _, row := range []struct{ name, text, want string }{
		{"nothing wrong", head + bound + agent, ""},
		{"a path of any kind", head + agent, `house.yaml:6:3: x.one takes any text as file_path; say with require: what it may be, such as args.file_path.within("some/directory")`},
		{"a URL of any kind", strings.Replace(head, "file_path", "callback-url", 1) + agent, `house.yaml:6:3: x.one takes any text as callback-url; say with require: what it may be, such as host(args.` + "`callback-url`" + `).name == "example.com"`},
		{"a path by its letters", head + strings.Replace(bound, "within", "startsWith", 1) + agent, `house.yaml:6:3: the requirements of x.one look at the letters of file_path, which a path climbs out of with ../; ask args.file_path.within("some/directory")`},
		{"a URL by its letters", strings.Replace(head, "file_path", "url", 1) + "    require:\n    - {id: u, that: args.url.startsWith(\"https://example.com\")}\n" + agent, `house.yaml:6:3: the requirements of x.one look at the letters of url, which do not tell its host: https://example.com@evil.net; ask host(args.url).name == "example.com"`},
		{"a record that is not mandatory", head + bound + "    - {id: open, that: mandatory(\"polcy.up\") == true}\nnamespaces: {policy: {class: mandatory, combine: all_true}}\n" + agent, `house.yaml:10:12: requirement open of x.one asks mandatory("polcy.up"), and no namespace rule has class: mandatory over that name, so that it always denies (did you mean policy?)`},
		{"a parent spelt in another way", head + bound + agent + strings.Replace(child, "parent: top", "parent: topp", 1), "house.yaml:3:1: who holds what was not looked at, since the file does not stand on its own: apply is denied: unknown_parent low\nhouse.yaml:17:9: the parent topp is no agent of this file, and has to be registered already; did you mean top?"},
		{"a pattern is a bound", strings.Replace(head, "file_path: {type: string}", "file_path: {type: string, pattern: ^src/}", 1) + agent, ""},
		{"always true", head + bound + "    - {id: all, that: 1 < 2}\n" + agent, "house.yaml:10:12: requirement all of x.one is true whatever the arguments are, so that it never denies; ask something of args, or leave it out"},
		{"always true in spite of args", head + bound + "    - {id: all, that: args.n > 1 || true}\n" + agent, "house.yaml:10:12: requirement all of x.one is true whatever the arguments are, so that it never denies; ask something of args, or leave it out"},
		{"always false", head + bound + "    - {id: none, that: args.n > 1 && false}\n" + agent, "house.yaml:10:12: requirement none of x.one is false whatever the arguments are, so that nobody can do it; ask something of args, or take the capability away"},
		{"a switch is no constant", head + bound + "    - {id: open, that: mandatory(\"a.b\") == true}\nnamespaces: {a: {class: mandatory, combine: all_true}}\n" + agent, ""},
		{"a restriction that is always true", head + bound + agent + "restrictions:\n- {id: r, action: x.one, require: 'true'}\n", "house.yaml:15:8: requirement r of x.one is true whatever the arguments are, so that it never denies; ask something of args, or leave it out"},
		{"a restriction on what is not declared", head + bound + agent + child + "restrictions:\n- {id: r, action: x.one, require: args.n > 1}\n", "house.yaml:20:8: restriction r is on x.one, which low does not declare, so that nobody it binds can do it; declare it, or leave the restriction out"},
		{"a namespace spelt in another way", head + bound + "namespaces: {notes: {class: secret}}\n" + agent + "writes: [note.*, else]\n", "house.yaml:15:10: no namespace that the file names is under note.*; did you mean notes?"},
		{"one beneath it is known", head + bound + "namespaces: {notes.deep: {class: secret}}\n" + agent + "writes: [notes.*]\n", ""},
		{"above allows nothing of it", head + bound + agent + "writes: [notes.*, report]\n" + child + "writes: [notes.deep, reports.*]\n", "house.yaml:20:22: low may not write in reports.*, since the writes of agent top above it have nothing of it; add it there, or leave it out"},
	} {
		parts, documents := parse(t, row.text)
		var got []string
		for _, w := range Lint(parts, documents) {
			w.Excerpt = ""
			got = append(got, w.String())
		}
		if text := strings.Join(got, "\n"); text != row.want {
			t.Errorf("%s:\n%s", row.name, text)
		}
	}
}

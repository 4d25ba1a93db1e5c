package policy

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustPolicy(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := Load([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const classes = `kind: Policy
version: classes-1
environment: []
namespaces:
  credentials: {class: secret}
  policy: {class: mandatory, combine: all_true}
  report.retention_days: {class: mandatory, combine: all_true}
  notes: {class: preference}
  notes.private: {class: secret}
  notes.private.deep: {class: secret}
`

func TestARuleCoversWholeSegments(t *testing.T) {
	p := mustPolicy(t, classes)
	for _, row := range []struct {
		namespace, key string
		want           Class
	}{
		{"credentials", "token", Secret},
		{"credentials.prod", "token", Secret},
		{"credentials.prod.eu", "token", Secret},
		{"credentialsevil", "token", Preference},
		{"credential", "s", Preference},
		{"my.credentials", "token", Preference},
		{"policy", "external_upload", Mandatory},
		{"report", "retention_days", Mandatory},
		{"report.retention_days", "x", Mandatory},
		{"report", "retention_days_2", Preference},
		{"report", "title", Preference},
		{"notes", "x", Preference},
		{"notes", "private", Secret},
		{"notes.private", "x", Secret},
		{"notes.private.deep", "x", Secret},
		{"notes.privateer", "x", Preference},
		{"project", "client_region", Preference},
	} {
		if got := p.Class(row.namespace, row.key); got != row.want {
			t.Errorf("Class(%s, %s) = %s, want %s", row.namespace, row.key, got, row.want)
		}
	}
}

// The look-up agrees with the definition, written without any search.
func TestClassIsThatOfTheLongestRule(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "aa", "a-b", "a_b"})
	name := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), ".")
	})
	rapid.Check(t, func(t *rapid.T) {
		var rules []NamespaceRule
		for _, n := range rapid.SliceOfNDistinct(name, 0, 8, rapid.ID[string]).Draw(t, "rules") {
			rules = append(rules, NamespaceRule{Name: n, Class: rapid.SampledFrom([]Class{Preference, Secret, Mandatory}).Draw(t, "class")})
		}
		slices.SortFunc(rules, func(a, b NamespaceRule) int { return strings.Compare(a.Name, b.Name) })
		namespace, key := name.Draw(t, "namespace"), part.Draw(t, "key")
		want, longest := Preference, -1
		for _, r := range rules {
			if strings.HasPrefix(namespace+"."+key+".", r.Name+".") && len(r.Name) > longest {
				want, longest = r.Class, len(r.Name)
			}
		}
		if got := (&Policy{Namespaces: rules}).Class(namespace, key); got != want {
			t.Fatalf("Class(%s, %s) under %v = %s, want %s", namespace, key, rules, got, want)
		}
	})
}

func TestR7_KnownActionsAreDeclaredOrMemory(t *testing.T) {
	p := mustPolicy(t, "kind: Policy\nversion: v\nenvironment: []\nactions: {artifact.save: {}}\n")
	for action, want := range map[string]bool{
		"memory.read": true, "memory.write": true, "artifact.save": true,
		"memory.delete": false, "agent.register": false, "memory.wipe_all": false,
		"artifact": false, "artifact.save.x": false, "artifact.savex": false, "Artifact.save": false, "": false,
		"read": false, "help": false,
	} {
		if got := p.KnownAction(action); got != want {
			t.Errorf("KnownAction(%q) = %v", action, got)
		}
	}
}

func TestCheckCapabilitiesNamesWhatMeansNothing(t *testing.T) {
	p := mustPolicy(t, "kind: Policy\nversion: v\nenvironment: []\nactions: {artifact.save: {}}\n")
	set := NewSet("memory.read", "memory.write", "agent.register", "artifact.save", "memory.delete", "external.upload")
	if got := CheckCapabilities(p, set); !slices.Equal(got, []string{"external.upload", "memory.delete"}) {
		t.Errorf("undeclared: %v", got)
	}
	if got := CheckCapabilities(p, nil); got != nil {
		t.Errorf("undeclared in the empty set: %v", got)
	}
}

func TestR60_WithoutAPolicyEveryAnswerIsTheClosedOne(t *testing.T) {
	var none *Policy
	if none.KnownAction("memory.read") || none.KnownAction("artifact.save") {
		t.Error("no policy knows an action")
	}
	if got := none.Class("project", "client_region"); got != Secret {
		t.Errorf("no policy calls a record %s", got)
	}
	if got := CheckCapabilities(none, NewSet("memory.read", "artifact.save")); !slices.Equal(got, []string{"artifact.save"}) {
		t.Errorf("undeclared without a policy: %v", got)
	}
}

func TestR29_AllTrueTakesBooleansAndNothingElse(t *testing.T) {
	for _, row := range []struct {
		values    string // separated by spaces
		value, ok bool
	}{
		{"true", true, true},
		{"false", false, true},
		{"true true true", true, true},
		{"true false true", false, true},
		{"false false", false, true},
		{"", false, false},
		{`true "true"`, false, false},
		{`"false"`, false, false},
		{"1", false, false},
		{"0 false", false, false},
		{"null", false, false},
		{"true null", false, false},
		{"[true]", false, false},
		{`{"a":true}`, false, false},
		{"True", false, false},
	} {
		var values [][]byte
		for _, v := range strings.Fields(row.values) {
			values = append(values, []byte(v))
		}
		value, ok := Combine(AllTrue, values)
		if (string(value) == "true") != row.value || ok != row.ok {
			t.Errorf("%s: %v, %v", row.values, value, ok)
		}
	}
}

// A record more only tightens: it never turns a false or an error into true.
func TestR29_ARecordMoreOnlyTightens(t *testing.T) {
	value := rapid.SampledFrom([]string{"true", "false", "1", `"true"`})
	rapid.Check(t, func(t *rapid.T) {
		var values [][]byte
		for _, v := range rapid.SliceOfN(value, 1, 6).Draw(t, "values") {
			values = append(values, []byte(v))
		}
		at := rapid.IntRange(0, len(values)).Draw(t, "at")
		more := slices.Insert(slices.Clone(values), at, []byte(value.Draw(t, "more")))
		before, ok := Combine(AllTrue, values)
		after, okAfter := Combine(AllTrue, more)
		if string(after) == "true" && string(before) != "true" || okAfter && !ok {
			t.Fatalf("%s gives %v %v, %s gives %v %v", values, before, ok, more, after, okAfter)
		}
	})
}

func TestActionsMayLimitTheirEffects(t *testing.T) {
	p, err := Load([]byte("apiVersion: ledgerd/v1\nkind: Policy\nversion: v1\nenvironment: []\nactions:\n" +
		"  quick: {timeout: 100ms, retry: never, output: {max_bytes: 1}}\n  slow: {timeout: 1h}\n  plain: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		action  string
		timeout int64
		bytes   int
	}{
		{"quick", 100_000, 1}, {"slow", 3600_000_000, OutputDefault}, {"plain", TimeoutDefault, OutputDefault}, {"none", TimeoutDefault, OutputDefault},
	} {
		if got, size := p.Timeout(row.action), p.MaxOutput(row.action); got != row.timeout || size != row.bytes {
			t.Errorf("%s: %d µs and %d bytes, want %d and %d", row.action, got, size, row.timeout, row.bytes)
		}
	}
}

// The same text read twice differs in nothing, and a requirement of another text
// is a change.
func TestDifferences_OfRequirements(t *testing.T) {
	text := func(that string) string {
		return "kind: Policy\nversion: v1\nenvironment: []\nactions:\n  x.one:\n    arguments: {type: object, properties: {n: {type: integer}}}\n    require: [{id: r, that: " + that + "}]\nnamespaces: {n: {value: {type: integer}}}\n"
	}
	load := func(that string) *Policy {
		p, err := Load([]byte(text(that)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if list := Differences(load("args.n > 1"), load("args.n > 1")); len(list) != 0 {
		t.Errorf("the same: %v", list)
	}
	if list := Differences(load("args.n > 1"), load("args.n > 2")); len(list) != 1 || list[0] != `action x.one requirement r: "args.n > 1" becomes "args.n > 2"` {
		t.Errorf("another: %v", list)
	}
}

// What differs is said, not only that something does.
func TestDifferences_SayWhatBecomesOfWhat(t *testing.T) {
	load := func(text string) *Policy {
		p, err := Load([]byte("kind: Policy\nversion: v\nenvironment: []\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	was := load(`actions:
  a.b: {timeout: 5s, arguments: {type: object, properties: {n: {type: integer, maximum: 5}, m: {type: string}}}}
namespaces: {x: {class: task, ttl_seconds: 60}, y: {value: {type: integer}}}
`)
	next := load(`actions:
  a.b: {arguments: {type: object, properties: {n: {type: integer, maximum: 9}, o: true}}}
namespaces: {x: {class: secret}, y: {}}
`)
	want := []string{
		`action a.b: arguments/properties/m {"type":"string"} is gone; arguments/properties/n/maximum 5 becomes 9; arguments/properties/o true is new; timeout in microseconds 5000000 becomes 30000000`,
		`namespace rule x: class task becomes secret; ttl_seconds 60 becomes 0`,
		`namespace rule y: value has no schema any more`,
	}
	if got := Differences(was, next); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := AgentDifferences(&Agent{Parent: "top"}, &Agent{ID: "a"}); len(got) != 1 || !strings.Contains(got[0], "beneath top") {
		t.Errorf("%q", got)
	}
	fits := []Restriction{{ID: "r", Action: "a.b", Text: "args.n < 3"}, {ID: "s", Action: "a.b", Text: "args.m == 'x'"}, {ID: "t", Action: "gone", Text: "true"}}
	if got := Misfits(next, "a", fits); len(got) != 2 || !strings.Contains(got[0], "restriction s") || !strings.Contains(got[1], "restriction t") {
		t.Errorf("%q", got)
	}
}

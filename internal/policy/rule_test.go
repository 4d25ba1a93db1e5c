package policy

import (
	"fmt"
	"strings"
	"testing"
)

const saveSchema = `{"type":"object","required":["path"],"additionalProperties":false,"properties":{
 "path":{"type":"string","maxLength":200},"size":{"type":"integer"},"url":{"type":"string","maxLength":500},"type":{"type":"string","maxLength":100},
 "digest":{"type":"string"},"tags":{"type":"array","maxItems":20,"items":{"type":"string","maxLength":50}},"to":{"type":"object","properties":{"name":{"type":"string"}}},
 "ratio":{"type":"number"},"id":{"type":"string"},"blocked":{"type":"boolean"},"namespace":{"type":"string"},"any":{}}}`

func clausePolicy(t testing.TB) *Policy {
	t.Helper()
	s, err := CompileSchema(parsed(t, saveSchema))
	if err != nil {
		t.Fatal(err)
	}
	return &Policy{Actions: map[string]Action{"save": {Arguments: s}, "free": {}}}
}

func holds(t testing.TB, p *Policy, action, clause, arguments string) (bool, error) {
	t.Helper()
	c, err := p.CompileClause(action, "c", clause)
	if err != nil {
		t.Fatalf("%s: %v", clause, err)
	}
	a, err := NewArguments([]byte(arguments))
	if err != nil {
		t.Fatalf("%s: %v", arguments, err)
	}
	return c.Holds(a, &Facts{
		Mandatory: func(name string) ([]byte, int, bool) {
			return fmt.Append(nil, name == "policy.on"), 5, strings.HasPrefix(name, "policy.o")
		},
		Resource: func(id string) (Resource, bool) {
			return Resource{ID: id, Classification: "internal", Owner: "legal", Tags: []string{"a"}}, id == "doc"
		},
	})
}

func TestR61_ClausesJudgeArguments(t *testing.T) {
	p := clausePolicy(t)
	for _, row := range []struct{ clause, arguments, want string }{
		{`args.path.within("internal") || args.path.within("draft")`, `{"path":"draft/a"}`, "true"},
		{`["internal","draft"].exists(d, args.path.within(d))`, `{"path":"draft/a"}`, "true"},
		{`args.path.within("draft")`, `{"path":"drafts/a"}`, "false"},
		{`!has(args.size) || args.size <= 1048576`, `{"path":"a"}`, "true"},
		{`!has(args.size) || args.size <= 1048576`, `{"path":"a","size":1048577}`, "false"},
		{`args.size <= 9007199254740990`, `{"path":"a","size":9007199254740991}`, "false"},
		{`args.size <= 9007199254740991`, `{"path":"a","size":9007199254740991}`, "true"},
		{`args.size > 1`, `{"path":"a"}`, "error"},
		{`args.ratio < 2.5`, `{"path":"a","ratio":2}`, "true"}, {`args.ratio <= 2`, `{"path":"a","ratio":2.5}`, "false"},
		{`args.digest != "x"`, `{"path":"a"}`, "error"}, {`!(args.blocked == true)`, `{"path":"a"}`, "error"},
		{`!(args.digest in ["x"])`, `{"path":"a"}`, "error"},
		{`args.tags.all(t, t in ["a","b"])`, `{"path":"a","tags":["a","c"]}`, "false"},
		{`args.to.name == "x"`, `{"path":"a","to":{"name":"x"}}`, "true"}, {`args.to.name == "x"`, `{"path":"a","to":{}}`, "error"},
		{`mandatory("policy.on") == true`, `{"path":"a"}`, "true"}, {`mandatory("policy.off") == true`, `{"path":"a"}`, "false"},
		{`mandatory("policy.x") == false`, `{"path":"a"}`, "error"}, {`mandatory("other.on") != true`, `{"path":"a"}`, "error"}, {`mandatory("on") == true || false`, `{"path":"a"}`, "error"},
		{`resource(args.id).classification in ["public","internal"]`, `{"path":"a","id":"doc"}`, "true"},
		{`resource(args.id).owner == "legal" && "a" in resource(args.id).tags`, `{"path":"a","id":"doc"}`, "true"},
		{`resource(args.id).classification != "secret"`, `{"path":"a","id":"none"}`, "error"},
		{`mime(args.type) in ["text/plain"]`, `{"path":"a","type":"Text/Plain; charset=UTF-8"}`, "true"},
		{`mime(args.type) == "text/plain"`, `{"path":"a","type":"text/plain, text/html"}`, "error"},
		{`host(args.url).name == "archive.example.eu" && host(args.url).port == 443 && host(args.url).scheme == "https"`, `{"path":"a","url":"HTTPS://Archive.Example.EU/x"}`, "true"},
		{`host(args.url).name == "archive.example.eu"`, `{"path":"a","url":"https://archive.example.eu.evil.net/"}`, "false"},
		{`host(args.url).class == "public"`, `{"path":"a","url":"https://169.254.169.254/"}`, "false"},
		{`args.namespace.ns("notes.*")`, `{"path":"a","namespace":"notes.x"}`, "true"}, {`args.namespace.ns("notes.*")`, `{"path":"a","namespace":"notesevil"}`, "false"},
		{`args.any == "x"`, `{"path":"a","any":["x"]}`, "false"}, {`args.any <= 10`, `{"path":"a","any":"9"}`, "error"},
	} {
		ok, err := holds(t, p, "save", row.clause, row.arguments)
		got := map[bool]string{true: "true", false: "false"}[ok]
		if err != nil {
			got = "error"
		}
		if ok && err != nil || got != row.want {
			t.Errorf("%s of %s: %s (%v), want %s", row.clause, row.arguments, got, err, row.want)
		}
	}
	if ok, err := holds(t, p, "free", `args.x == "a"`, `{"x":"a"}`); !ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := holds(t, p, "free", `args.x.startsWith("a")`, `{"x":["a"]}`); ok || err == nil {
		t.Error(ok, err)
	}
}

// CASES 68: what the types show to be wrong is refused when it is applied.
func TestR60_ClausesThatCannotMeanIt(t *testing.T) {
	p := clausePolicy(t)
	for _, row := range []struct{ clause, fault string }{
		{`args.path == ["a"]`, "no matching overload"}, {`args.path in "a"`, "no matching overload"}, {`args.size.startsWith("9")`, "no matching overload"},
		{`args.pth == "a"`, "undefined field"}, {`arg.path == "a"`, "undeclared reference"}, {`args.path`, "is true or false"}, {`args.any`, "is true or false"},
		{`args.to.all(k, true)`, "must be list"}, {`{"a":1}.all(k, true)`, "over lists only"}, {`args.any.all(k, true)`, "over lists only"}, {`args.all(k, true)`, ""},
		{`args.tags.map(t, t) == []`, "undeclared reference"}, {`@facts == 1`, "character"}, {`dyn(args.path) == 1`, "undeclared reference"},
		{`timestamp("2026-01-01T00:00:00Z") < timestamp(args.path)`, "undeclared reference"}, {``, "character"}, {`true &&`, "character"},
		{`args.tags.all(a, args.tags.all(b, args.tags.all(c, args.tags.all(d, a == b && c == d))))`, "could cost"},
		{strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200), ""}, {strings.Repeat(" ", 3000) + "true", "at most"}, {`1 == 1.0 || "a" == 1`, "no matching overload"},
		{"`@facts` == 1", ""}, {`@mandatory(1, "a.b")`, "character"}, {`mandatory("a.b", true)`, "undeclared reference"},
	} {
		if c, err := p.CompileClause("save", "c", row.clause); err == nil || !strings.Contains(err.Error(), row.fault) || c != nil {
			t.Errorf("%.100s: %v, want %q", row.clause, err, row.fault)
		}
	}
	if _, err := p.CompileClause("other", "c", "true"); err == nil {
		t.Error("a clause on an action that is not declared")
	}
}

// TestR61_ErrorsQuoteNothing: what a clause asked beside the arguments stands in
// no error, whatever the clause makes of it.
func TestR61_ErrorsQuoteNothing(t *testing.T) {
	p := clausePolicy(t)
	const secret = "hidden-value"
	facts := &Facts{
		Mandatory: func(string) ([]byte, int, bool) { return []byte(`"` + secret + `"`), 0, true },
		Resource:  func(string) (Resource, bool) { return Resource{ID: "x", Classification: secret}, true },
	}
	for _, text := range []string{
		`{"a":true}[mandatory("policy.on")]`, `{1:true}[mandatory("policy.on")]`, `int(mandatory("policy.on")) == 1`, `["a"][mandatory("policy.on")] == "b"`,
		`{"":true}[resource(args.id).classification + "/" + resource(args.id).owner]`, `int(resource(args.id).classification) > 0`,
		`args.path.within(mandatory("policy.on"))`, `host(resource(args.id).classification).name == "a"`, `mime(mandatory("policy.on")) == ""`, `bool(mandatory("policy.on"))`,
	} {
		c, err := p.CompileClause("save", "c", text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !c.Asks {
			t.Errorf("%s asks for nothing", text)
		}
		a, err := NewArguments([]byte(`{"path":"a","id":"doc"}`))
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Holds(a, facts); ok || err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v %v", text, ok, err)
		}
	}
	if c, err := p.CompileClause("save", "c", `args.path == "mandatory"`); err != nil || c.Asks {
		t.Error(c, err)
	}
}

// TestR66_ClausesAreBoundBeforeTheyRun: by what compiling, matching and asking
// could cost, for any arguments that the schema takes.
func TestR66_ClausesAreBoundBeforeTheyRun(t *testing.T) {
	p := clausePolicy(t)
	nested := "[" + strings.Repeat("[", 16) + strings.Repeat("]", 16) + "]"
	for text, fault := range map[string]string{
		`!args.path.matches("(a?){999}b")`:                                    "too large",
		`args.path.matches("(a?){400}b")`:                                     "could cost",
		`matches(args.digest, "a")`:                                           "could cost",
		`args.digest.matches("abcdefghijkl")`:                                 "could cost", // its length is not bound
		`args.path.matches(args.path)`:                                        "stands there",
		`args.path.matches("a" + "b")`:                                        "stands there",
		`args.path.matches("(")`:                                              "none of RE2",
		`args.path.matches("^[a-z]{1,20}(/[a-z0-9]{1,20})*$")`:                "",
		nested + " == " + nested:                                              "of [ and {",
		strings.Repeat("{[]:", 20) + "1" + strings.Repeat("}", 20) + " == {}": "of [ and {",
		`double("NaN") > 1.0`:                                                 "undeclared reference",
	} {
		_, err := p.CompileClause("save", "c", text)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, want %q", text, err, fault)
		}
	}
	// Mandatory records are read once a judgement, and what was read counts.
	read, asked := 8, 0
	facts := &Facts{Mandatory: func(string) ([]byte, int, bool) { asked++; return []byte("true"), read, true }}
	c, err := p.CompileClause("free", "c", `mandatory("policy.a") == true && mandatory("policy.a") == true && mandatory("policy.b") == true`)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := NewArguments([]byte(`{}`))
	for range 3 {
		if ok, err := c.Holds(a, facts); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	read = 10 * judgementCost
	facts = &Facts{Mandatory: facts.Mandatory}
	if ok, err := c.Holds(a, facts); ok || err == nil {
		t.Error("too much was read, and that is no error")
	}
}

// TestR61_TypesOfMembersAreTheirOwn: a member named a.b is not the member b of a.
func TestR61_TypesOfMembersAreTheirOwn(t *testing.T) {
	s, err := CompileSchema(parsed(t, `{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"object","properties":{"x":{"type":"string"}}}}},
 "a.b":{"type":"object","properties":{"x":{"type":"integer"}}},"a/\"b\"":{"type":"object","properties":{"x":{"type":"boolean"}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	p := &Policy{Actions: map[string]Action{"save": {Arguments: s}}}
	if _, err := p.CompileClause("save", "c", `args.a.b.x == "text"`); err != nil {
		t.Error(err)
	}
	if _, err := p.CompileClause("save", "c", `args.a.b.x == 1`); err == nil {
		t.Error("the type of another member was taken")
	}
}

// TestR66_WhatOneCallTakes: a pattern is compiled once and never for nothing, and
// what compares two values, or measures one, counts all that is in them.
func TestR66_WhatOneCallTakes(t *testing.T) {
	p := clausePolicy(t)
	ones, judged := "["+strings.TrimSuffix(strings.Repeat("1,", 400), ",")+"]", 0
	for text, arguments := range map[string]string{
		ones + `.all(i, "".matches("(?i)` + strings.Repeat(`\\pL?`, 100) + `"))`: `{"path":"a"}`,
		`args.any == args.any && args.any == args.any && args.any == args.any`:   `{"path":"a","any":[` + strings.TrimSuffix(strings.Repeat("[[]],", 2000), ",") + `]}`,
		`args.any in [args.any, 1, 2]`:                                           `{"path":"a","any":[` + strings.TrimSuffix(strings.Repeat("[[[]]],", 3000), ",") + `]}`,
		ones + `.all(i, size(args.digest) > 0)`:                                  `{"path":"a","digest":"` + strings.Repeat("a", 60_000) + `"}`,
	} {
		c, err := p.CompileClause("save", "c", text)
		if err != nil {
			continue // refused before it could cost anything
		}
		judged++
		a, err := NewArguments([]byte(arguments))
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Holds(a, &Facts{}); ok || err == nil || !strings.Contains(err.Error(), "costs more") {
			t.Errorf("%.60s: %v %v", text, ok, err)
		}
	}
	if judged < 2 {
		t.Errorf("%d clauses were judged", judged)
	}
	if n, ok := patternSteps("(" + strings.Repeat("a.", 900) + "){1000}"); !ok || n <= patternStepsMax {
		t.Errorf("%d steps", n)
	}
	if _, err := NewArguments([]byte(`{"l":[` + strings.TrimSuffix(strings.Repeat("1,", 10_000), ",") + `]}`)); err == nil {
		t.Error("arguments of any number of values")
	}
}

package wire

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

// same fails unless the quick way, where it takes a request, makes of it what
// the other way does. It reports whether the quick way took it.
func same(t *testing.T, operation string, b []byte) bool {
	t.Helper()
	got := quick(operation, b)
	if got == nil {
		return false
	}
	want, code, fault := read(operation, operations[Propose][operation], b)
	if code != "" || !reflect.DeepEqual(got, want) {
		t.Fatalf("%s %q is read quickly as %+v of %+v,\nelse as %+v: %q %q", operation, b, got, got.Body, want, code, fault)
	}
	return true
}

// quickly are requests that the quick way takes, though some are unusual.
var quickly = []struct{ operation, request string }{
	{"memory.read", `{"namespace":"notes.a","key":"k"}`},
	{"memory.read", " {\t\"key\" : \"k\" ,\r\n\"namespace\":\"n\", \"owner_agent_id\":\"bob\",\"trace_id\":\"t 1\",\"operation_id\":\"o\"} \n"},
	{"memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":"a note","operation_id":"1"}`},
	{"memory.write", `{"value":{"b":[1, 2.50 ,-3e4],"a":{"y":true,"x":null},"é":0},"owner_agent_id":"bob","namespace":"n","key":"k","visibility":"children","expected_revision":123}`},
	{"memory.write", `{"value":"line\nand \"quote\" and \\ and é","owner_agent_id":"bob","namespace":"n","key":"k"}`},
	{"memory.write", `{"value":{"c":1,"b":{"z":1,"y":{}},"a":[[],[[]]]},"owner_agent_id":"bob","namespace":"n","key":"k"}`},
	{"memory.delete", `{"owner_agent_id":"bob","namespace":"n","key":"k","expected_revision":9}`},
	{"action.authorize", `{"action":"pay","arguments":{"to":"x","amount":9007199254740991}}`},
	{"action.authorize", `{"action":"No Action","arguments":{}}`},
	{"action.authorize", `{"action":"pay"}`},
	{"sop.validate", `{"sop":{"sop_id":"p","version":1,"steps":[{"step_id":"a","action":"x.one","arguments":{"n":1}}]},"operation_id":"o"}`},
	{"sop.validate", `{"sop":{"sop_id":"p","steps":[{"action":"x.one","arguments":{},"step_id":"a"},{"action":"x.one","step_id":"a"}],"version":999999999999999}}`},
	{"sop.validate", ` { "sop" : { "version" : 7 , "sop_id" : "p.1" , "steps" : [ { "arguments" : { "a" : [ 1 , "x y" ], "b\"" : { } } , "step_id" : "" , "action" : "" } ] } , "wait_ms" : 60000 } `},
	{"sop.submit", `{"sop":{"sop_id":"p","version":1,"steps":[{"step_id":"a","action":"No Action é"},{"step_id":"b","action":"memory.read","arguments":{"key":"k","namespace":"n"}}]},"wait_ms":1,"trace_id":"t"}`},
	{"sop.submit", `{"sop":{"sop_id":"p","version":1,"steps":[{"step_id":"a","action":"x","arguments":{"to":[{"owner_agent_id":"b"}]}},{"step_id":"b","action":"x","arguments":{"z":1,"a":"owner_agent_id"}}]}}`},
}

// procedure is a request for one of n steps, the last of which is last.
func procedure(n int, last string) string {
	var b strings.Builder
	for i := range n - 1 {
		fmt.Fprintf(&b, `{"step_id":"s%d","action":"bench.act","arguments":{"path":"draft/%d.md"}},`, i, i)
	}
	return `{"sop":{"sop_id":"bench","version":1,"steps":[` + b.String() + last + `]},"operation_id":"7-0-3.12"}`
}

func TestQuickTakesCommonRequests(t *testing.T) {
	for _, c := range quickly {
		if !same(t, c.operation, []byte(c.request)) && !strings.Contains(c.request, `"é":`) {
			t.Errorf("%s %s is left to the other way", c.operation, c.request)
		}
	}
	for _, over := range []int{0, 1} {
		text := `"` + strings.Repeat("x", events.ValueBytesMax-2+over) + `"`
		same(t, "memory.write", fmt.Appendf(nil, `{"owner_agent_id":"bob","namespace":"n","key":"k","value":%s}`, text))
		text = `"` + strings.Repeat("x", events.ArgumentsBytesMax-8+over) + `"`
		same(t, "action.authorize", fmt.Appendf(nil, `{"action":"x","arguments":{"a":%s}}`, text))
	}
}

func TestQuickTakesProcedures(t *testing.T) {
	long := strings.Repeat("x", events.ArgumentsBytesMax)
	for _, last := range []string{
		`{"step_id":"z","action":"x"}`, `{"step_id":"z","action":"x","arguments":{"a":"` + long + `"}}`,
		`{"step_id":"z","action":"` + long + `"}`, `{"step_id":"s0","action":"memory.write","arguments":{"value":{"owner_agent_id":[]},"key":1}}`,
	} {
		for _, n := range []int{1, 10, events.SOPStepsMax} {
			if !same(t, "sop.validate", []byte(procedure(n, last))) {
				t.Errorf("%d steps that end with %.60s are left to the other way", n, last)
			}
		}
	}
}

// What is wrong with a procedure has its reason from the other way.
func TestQuickTakesNoFaultyProcedure(t *testing.T) {
	const step = `{"step_id":"s","action":"x","arguments":{}}`
	whole := func(members string) string { return `{"sop":{` + members + `}}` }
	faulty := []string{
		`{}`, `{"sop":null}`, `{"sop":[]}`, `{"sop":"p"}`, whole(``), procedure(events.SOPStepsMax+1, step),
		whole(`"sop_id":"p","version":1`), whole(`"sop_id":"p","steps":[` + step + `]`), whole(`"version":1,"steps":[` + step + `]`),
		whole(`"sop_id":"p","version":1,"steps":[]`), whole(`"sop_id":"p","version":1,"steps":{}`), whole(`"sop_id":"p","version":1,"steps":null`),
		whole(`"sop_id":"p","version":1,"steps":[],"steps":[` + step + `]`), whole(`"sop_id":"p","version":1,"steps":[` + step + `],"steps":[` + step + `]`),
		whole(`"sop_id":"p","sop_id":"p","version":1,"steps":[` + step + `]`), whole(`"sop_id":"p","version":1,"version":1,"steps":[` + step + `]`),
		whole(`"sop_id":"p","version":1,"steps":[` + step + `],"more":1`), whole(`"sop_id":"p","version":1,"steps":[` + step + `,]`),
		whole(`"sop_id":"p","version":1,"steps":[,` + step + `]`), whole(`"sop_id":"p","version":1,"steps":[` + step + step + `]`),
		whole(`"sop_id":"p","version":1,"steps":[` + step + `],`), `{"sop":{"sop_id":"p","version":1,"steps":[` + step + `]`,
		`{"sop":{"sop_id":"p","version":1,"steps":[` + step + `]},"wait_ms":60001}`, `{"sop":{"sop_id":"p","version":1,"steps":[` + step + `]},"wait_ms":-1}`,
		`{"sop":{"sop_id":"p","version":1,"steps":[` + step + `]},"wait_ms":"1"}`, `{"sop":{"sop_id":"p","version":1,"steps":[` + step + `]},"key":"k"}`,
		`{"sop":{"sop_id":"p","version":1,"steps":[` + step + `]},"sop":{"sop_id":"p","version":1,"steps":[` + step + `]}}`,
	}
	for _, id := range []string{`""`, `"a/b"`, `" p"`, `7`, `null`, `["p"]`, `"` + strings.Repeat("p", 65) + `"`} {
		faulty = append(faulty, whole(`"sop_id":`+id+`,"version":1,"steps":[`+step+`]`))
	}
	for _, version := range []string{`0`, `-1`, `01`, `1.0`, `1e0`, `"1"`, `true`, `null`, `[1]`, `9007199254740992`} {
		faulty = append(faulty, whole(`"sop_id":"p","version":`+version+`,"steps":[`+step+`]`))
	}
	for _, step := range []string{
		`1`, `null`, `[]`, `{}`, `{"step_id":"s"}`, `{"action":"x"}`, `{"step_id":"s","action":"x","args":{}}`, `{"step_id":" s","action":"x"}`,
		`{"step_id":7,"action":"x"}`, `{"step_id":"s","action":["x"]}`, `{"step_id":null,"action":"x"}`, `{"step_id":"s","action":null}`,
		`{"step_id":"s","action":"x","arguments":null}`, `{"step_id":"s","action":"x","arguments":[]}`, `{"step_id":"s","action":"x","arguments":"{}"}`,
		`{"step_id":"s","step_id":"s","action":"x"}`, `{"step_id":"s","action":"x","action":"x"}`, `{"step_id":"s","action":"x","arguments":{},"arguments":{}}`,
		`{"step_id":"s","action":"x","arguments":{"a":1,"a":1}}`, `{"step_id":"s","action":"x","arguments":{"a":1,"b":1,"a":1}}`,
		`{"step_id":"s","action":"x","arguments":{"a":01}}`, `{"step_id":"s","action":"x","arguments":{"a":1,}}`, `{"step_id":"s","action":"x",}`,
		`{"step_id":"s","action":"x","arguments":` + strings.Repeat(`{"a":`, events.JSONDepthMax-4) + `{}` + strings.Repeat(`}`, events.JSONDepthMax-4) + `}`,
		"{\"step_id\":\"s\",\"action\":\"a\x01\"}", "{\"step_id\":\"s\",\"action\":\"a\xff\"}", `{"step_id":"s","action":"\u0000"}`, `{"step_id":"s","action":"\ud800"}`,
	} {
		faulty = append(faulty, whole(`"sop_id":"p","version":1,"steps":[`+step+`]`))
	}
	for _, request := range faulty {
		for _, operation := range []string{"sop.validate", "sop.submit"} {
			if same(t, operation, []byte(request)) {
				t.Errorf("%s %s is taken", operation, request)
			}
		}
	}
	deepest := `{"step_id":"s","action":"x","arguments":` + strings.Repeat(`{"a":`, events.JSONDepthMax-5) + `{}` + strings.Repeat(`}`, events.JSONDepthMax-5) + `}`
	if request := whole(`"sop_id":"p","version":1,"steps":[` + deepest + `]`); !same(t, "sop.validate", []byte(request)) {
		t.Errorf("%s is left to the other way", request)
	}
}

// What breaks the profile or the shape is never taken quickly.
func TestQuickTakesNothingMalformed(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	same(t, "memory.write", []byte(`{"owner_agent_id":"b","namespace":"n","key":"k","value":`+deep(events.JSONDepthMax-1)+`}`))
	for _, value := range []string{
		"null", "01", "-0", "-0.0", "1.", ".5", "1e", "1e+", "+1", "1e999", "9007199254740992", "1 2", "tru", "True", "nul", "[1,]", "[,1]", "[1 2]", "{,}",
		`{"a":1,}`, `{"a"}`, `{"a":1,"a":2}`, `{"b":1,"a":1,"b":2}`, `{"\u0061":1,"a":2}`, `{a:1}`, `{"a":1;"b":2}`, `"`, `"\x"`, `"\u000`, `"\ud800"`, "\"\x01\"", "\"\xff\"",
		`"\u0000"`, deep(events.JSONDepthMax), "", "NaN", `'a'`, `[`, `{"a":`, "\"\\", "1}{",
	} {
		for _, request := range []string{
			`{"owner_agent_id":"b","namespace":"n","key":"k","value":` + value + `}`,
			`{"value":` + value + `,"owner_agent_id":"b","namespace":"n","key":"k"}`,
		} {
			if same(t, "memory.write", []byte(request)) {
				t.Errorf("%s is taken", request)
			}
		}
	}
	for _, c := range []struct{ operation, request string }{
		{"memory.read", `{"namespace":"n"}`}, {"memory.read", `{"namespace":"n","key":"k","value":1}`}, {"memory.read", `{"namespace":"n","key":"k","key":"k"}`},
		{"memory.read", `{"namespace":"n","\u006bey":"k","key":"j"}`}, {"memory.read", `{"namespace":"n","key":"k"}{}`}, {"memory.read", `{"namespace":"n","key":"K"}`},
		{"memory.read", `{"namespace":"n.","key":"k"}`}, {"memory.read", `{"namespace":"n","key":7}`}, {"memory.read", `{"namespace":"n","key":"k","owner_agent_id":"sys"}`},
		{"memory.read", `{"namespace":"n","key":"k","owner_agent_id":""}`}, {"memory.read", `{"namespace":"n","key":"k","operation_id":""}`},
		{"memory.read", `{"namespace":"n","key":"k","trace_id":"\u00e9"}`}, {"memory.read", `{"namespace":"n","key":"k","Key":"k"}`}, {"memory.read", `["namespace"]`},
		{"memory.read", "\ufeff" + `{"namespace":"n","key":"k"}`}, {"memory.read", ``}, {"memory.read", `{`}, {"memory.read", `{}`}, {"memory.read", "null"},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"visibility":"all"}`},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"visibility":""}`},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"expected_revision":0}`},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"expected_revision":-1}`},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"expected_revision":01}`},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"expected_revision":1.0}`},
		{"memory.write", `{"owner_agent_id":"b","namespace":"n","key":"k","value":1,"ttl_seconds":1}`},
		{"memory.delete", `{"owner_agent_id":"b","namespace":"n","key":"k"}`}, {"memory.delete", `{"owner_agent_id":"b","namespace":"n","key":"k","expected_revision":1,"value":1}`},
		{"action.authorize", `{"arguments":{}}`}, {"action.authorize", `{"action":"x","arguments":[]}`}, {"action.authorize", `{"action":"x","arguments":null}`},
		{"action.authorize", `{"action":"x","value":1}`}, {"action.authorize", `{"action":null}`},
	} {
		if same(t, c.operation, []byte(c.request)) {
			t.Errorf("%s %s is taken", c.operation, c.request)
		}
	}
}

// FuzzDecodeQuick compares the two ways: whatever the bytes, what the quick one
// takes the other takes too, as the same request with the same canonical bytes.
func FuzzDecodeQuick(f *testing.F) {
	names := []string{"memory.read", "memory.write", "memory.delete", "action.authorize", "sop.validate", "sop.submit"}
	f.Add(uint8(4), []byte(procedure(3, `{"arguments":{"b":1,"a":[{}]},"action":"x","step_id":"z"}`)))
	for i, name := range names {
		for _, c := range quickly {
			if c.operation == name {
				f.Add(uint8(i), []byte(c.request))
			}
		}
		for _, e := range examples(f) {
			if e.operation == name {
				f.Add(uint8(i), []byte(e.request))
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) { same(t, names[int(which)%len(names)], b) })
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct{ name, operation, request string }{
		{"read", "memory.read", `{"namespace":"notes","key":"agent42-17"}`},
		{"write", "memory.write", `{"owner_agent_id":"agent42","namespace":"work","key":"7-0-3","value":"The quick brown fox jumps over the lazy dog.","expected_revision":12,"operation_id":"7-0-3.12"}`},
		{"authorize", "action.authorize", `{"action":"bench.act","arguments":{"path":"draft/report.md","size":4096},"operation_id":"7-0-3.12"}`},
		{"sop10", "sop.validate", procedure(10, `{"step_id":"s9","action":"bench.act","arguments":{"path":"draft/9.md"}}`)},
		{"sop10 spaced", "sop.validate", strings.NewReplacer(",", ", ", ":", ": ").Replace(procedure(10, `{"step_id":"s9","action":"memory.read","arguments":{"key":"k","namespace":"n"}}`))},
	} {
		b.Run(c.name+"/quick", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if quick(c.operation, []byte(c.request)) == nil {
					b.Fatal("left to the other way")
				}
			}
		})
		b.Run(c.name+"/tree", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, code, _ := read(c.operation, operations[Propose][c.operation], []byte(c.request)); code != "" {
					b.Fatal(code)
				}
			}
		})
	}
}

package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
)

// example is one operation with every member it takes.
type example struct {
	lane      Lane
	operation string
	request   string
	body      any
	optional  []string // members that may be left out
	anything  []string // members of any kind but null
}

func value(t testing.TB, s string) events.Value {
	t.Helper()
	v, err := events.ParseJSON([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// noProcedure is what {"sop_id":"s"} is decoded to.
var noProcedure = Procedure{SOP: sop.SOP{ID: "s"}, Refused: reason.SOPMalformed, Fault: "version is missing", resource: "s"}

func examples(t testing.TB) []example {
	return []example{
		{Propose, "memory.read", `{"namespace":"a.b","key":"k","owner_agent_id":"bob"}`,
			&MemoryRead{"a.b", "k", "bob"}, []string{"owner_agent_id"}, nil},
		{Propose, "memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":{"b":1,"a":[true]},"visibility":"children","expected_revision":7,"ttl_seconds":60}`,
			&MemoryWrite{"bob", "n", "k", []byte(`{"a":[true],"b":1}`), "children", 7, 60}, []string{"visibility", "expected_revision", "ttl_seconds"}, []string{"value"}},
		{Propose, "memory.delete", `{"owner_agent_id":"bob","namespace":"n","key":"k","expected_revision":7}`,
			&MemoryDelete{"bob", "n", "k", 7}, nil, nil},
		{Propose, "action.authorize", `{"action":"x.one","arguments":{"b":1.50,"a":"\u00e9"}}`,
			&ActionAuthorize{"x.one", []byte(`{"a":"é","b":1.50}`)}, []string{"arguments"}, nil},
		{Propose, "sop.validate", `{"sop":{"sop_id":"s"},"wait_ms":60000}`,
			&SOPValidate{noProcedure}, []string{"wait_ms"}, []string{"sop"}},
		{Propose, "agent.register", `{"agent_id":"kid","capabilities":["x.two","x.one"],"public_key":"U"}`,
			&AgentRegister{AgentID: "kid", Capabilities: []string{"x.two", "x.one"}, PublicKey: "U"}, nil, nil},
		{Control, "apply", `{"documents":["a","b"],"expected_version":"v1","dry_run":true,"signatures":["U s"]}`,
			&Apply{[]string{"a", "b"}, "v1", true, []string{"U s"}}, []string{"expected_version", "dry_run", "signatures"}, nil},
		{Control, "agent.register", `{"agent_id":"kid","parent_id":"bob","capabilities":[],"public_key":"U"}`,
			&AgentRegister{AgentID: "kid", ParentID: "bob", Capabilities: []string{}, PublicKey: "U"}, []string{"parent_id"}, nil},
		{Control, "agent.revoke", `{"agent_id":"bob"}`, &AgentRevoke{"bob"}, nil, nil},
		{Control, "principal.register", `{"id":"p","role":"handler","public_key":"U","actions":["x.one"],"groups":["Sec"],"root":"bob"}`,
			&PrincipalRegister{"p", "handler", "U", []string{"x.one"}, []string{"Sec"}, "bob"}, []string{"actions", "groups", "root"}, nil},
		{Control, "principal.rekey", `{"id":"p","public_key":"U"}`, &PrincipalRekey{"p", "U"}, nil, nil},
		{Control, "principal.revoke", `{"id":"p"}`, &PrincipalRevoke{"p"}, nil, nil},
		{Control, "memory.load", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":"v","visibility":"private"}`,
			&MemoryLoad{"bob", "n", "k", []byte(`"v"`), "private"}, []string{"visibility"}, []string{"value"}},
		{Control, "environment.set", `{"capabilities":["x.one"]}`, &EnvironmentSet{[]string{"x.one"}}, nil, nil},
		{Control, "clock.accept", `{}`, &ClockAccept{}, nil, nil},
		{Propose, "sop.submit", `{"sop":{"sop_id":"s"},"wait_ms":250}`, &SOPSubmit{noProcedure}, []string{"wait_ms"}, []string{"sop"}},
		{Propose, "run.cancel", `{"run_id":"r-1"}`, &RunCancel{"r-1"}, nil, nil},
		{Propose, "grant.give", `{"namespace":"n","key":"k","to":"bob","expires_seconds":60,"uses":2}`, &GrantGive{"n", "k", "bob", 60, 2}, []string{"uses"}, nil},
		{Propose, "grant.revoke", `{"namespace":"n","key":"k","to":"bob"}`, &GrantRevoke{"n", "k", "bob"}, nil, nil},
		{Propose, "restriction.add", `{"id":"a","action":"save","require":"true"}`, &RestrictionAdd{"a", "save", "true"}, nil, nil},
		{Control, "restriction.remove", `{"agent_id":"bob","id":"a"}`, &RestrictionRemove{"bob", "a"}, nil, nil},
		{Control, "resource.set", `{"id":"doc/1","classification":"public"}`, &ResourceSet{ID: "doc/1", Classification: "public"}, nil, nil},
		{Control, "key.rotate", `{"key":"seal"}`, &KeyRotate{"seal"}, nil, nil},
		{Control, "key.retire", `{"key":"checkpoint"}`, &KeyRetire{"checkpoint"}, nil, nil},
		{Control, "signers.set", `{"keys":["U"],"signatures":["U s"]}`, &SignersSet{[]string{"U"}, []string{"U s"}}, []string{"signatures"}, nil},
		{Control, "run.resolve", `{"run_id":"r-1","step_id":"a","outcome":"not_done"}`, &RunResolve{"r-1", "a", "not_done"}, nil, nil},
		{Control, "emergency.deny", `{"agent_id":"bob","capabilities":["x.one"],"reason":"why","dry_run":true}`, &EmergencyDeny{"bob", []string{"x.one"}, false, true}, []string{"dry_run"}, nil},
		{Control, "emergency.lift", `{"epoch":7}`, &EmergencyLift{7}, nil, nil},
		{Control, "payload.erase", `{"seqs":[7,9],"basis":"mistake","comment":"why","dry_run":true}`, &PayloadErase{Seqs: []uint64{7, 9}, Basis: "mistake", DryRun: true}, []string{"comment", "dry_run"}, []string{"seqs"}},
		{Control, "hold.place", `{"owner_agent_id":"bob","namespace":"n","key":"k","comment":"why"}`, &HoldPlace{events.Hold{Owner: "bob", Namespace: "n", Key: "k"}}, []string{"comment"}, nil},
		{Control, "hold.lift", `{"seq":7}`, &HoldLift{events.Hold{Seq: 7}}, nil, nil},
	}
}

func members(t testing.TB, request string) map[string]json.RawMessage {
	t.Helper()
	m := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(request), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func marshal(m map[string]json.RawMessage) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func TestDecode(t *testing.T) {
	covered := map[Lane][]string{}
	for _, e := range examples(t) {
		covered[e.lane] = append(covered[e.lane], e.operation)
		m := members(t, e.request)
		m["operation_id"], m["trace_id"] = json.RawMessage(`"op ~1"`), json.RawMessage(`"t"`)
		r, code := Decode(e.lane, e.operation, marshal(m))
		if code != "" {
			t.Errorf("%s: %s", e.operation, code)
			continue
		}
		if r.Operation != e.operation || r.OperationID != "op ~1" || r.TraceID != "t" || r.TooLarge || !reflect.DeepEqual(r.Body, e.body) {
			t.Errorf("%s: %+v with %+v", e.operation, r, r.Body)
		}
		delete(m, "operation_id")
		delete(m, "trace_id")
		delete(m, "wait_ms")
		if want := value(t, string(marshal(m))).AppendCanonical(nil); string(r.Canonical) != string(want) {
			t.Errorf("%s: canonical %s, want %s", e.operation, r.Canonical, want)
		}
		again, code := Decode(e.lane, e.operation, r.Canonical)
		if code != "" || string(again.Canonical) != string(r.Canonical) || !reflect.DeepEqual(again.Body, r.Body) {
			t.Errorf("%s: the canonical form is another request: %s %+v", e.operation, code, again)
		}
	}
	for lane, names := range covered {
		if got := Operations(lane); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(names))) {
			t.Errorf("%s has %v, examples have %v", lane, got, names)
		}
	}
}

// Every member: left out, null, of every other kind, twice, in another case;
// and one that is none of the operation's.
func TestDecodeRefusesAnyOtherShape(t *testing.T) {
	kinds := map[string]string{"bool": "true", "integer": "1", "float": "1.5", "string": `"x"`, "array": "[]", "list": `[1]`, "object": "{}", "null": "null"}
	for _, e := range examples(t) {
		refused := func(what string, request []byte) {
			t.Helper()
			if r, code := Decode(e.lane, e.operation, request); code != reason.MalformedRequest || r != nil {
				t.Errorf("%s with %s: %q\n%s", e.operation, what, code, request)
			}
		}
		full := members(t, e.request)
		for name, was := range full {
			m := maps.Clone(full)
			delete(m, name)
			if _, code := Decode(e.lane, e.operation, marshal(m)); (code == "") != slices.Contains(e.optional, name) {
				t.Errorf("%s without %s: %q", e.operation, name, code)
			}
			for kind, literal := range kinds {
				if slices.Contains(e.anything, name) && kind != "null" || sameKind(string(was), literal) {
					continue
				}
				m[name] = json.RawMessage(literal)
				refused(name+" as "+kind, marshal(m))
			}
			m = maps.Clone(full)
			m[strings.ToUpper(name)] = was
			refused(name+" twice, once in capitals", marshal(m))
			delete(m, name)
			refused(name+" in capitals", marshal(m))
			refused(name+" twice", []byte(strings.Replace(e.request, "{", fmt.Sprintf("{%q:%s,", name, was), 1)))
		}
		for _, foreign := range []string{"actor_id", "subject", "agent", "lane", "operation", "type", ""} {
			m := maps.Clone(full)
			m[foreign] = json.RawMessage(`"bob"`)
			refused("member "+foreign, marshal(m))
		}
		for name, bad := range map[string][]string{
			"operation_id": {`""`, `null`, `1`, `"a\nb"`, `"é"`, `"` + strings.Repeat("a", 129) + `"`},
			"trace_id":     {`""`, `null`, `1`, `"a\u007fb"`, `"` + strings.Repeat("a", 65) + `"`},
		} {
			for _, literal := range bad {
				m := maps.Clone(full)
				m[name] = json.RawMessage(literal)
				refused(name+" "+literal, marshal(m))
			}
		}
		for _, text := range []string{"", " ", "null", "[]", `"x"`, "{", e.request + "x", e.request + e.request, "\xef\xbb\xbf" + e.request, e.request[:len(e.request)-1]} {
			refused("the text "+text, []byte(text))
		}
	}
}

// sameKind reports whether a literal is so much like the example's that the
// decoder may well take it.
func sameKind(example, literal string) bool {
	switch example[0] {
	case '"':
		return literal[0] == '"'
	case '[':
		return literal == "[]"
	case '{':
		return literal[0] == '{'
	case 't', 'f':
		return literal == "true"
	}
	return literal == "1"
}

func TestDecodeRefusesBadNames(t *testing.T) {
	for _, c := range []struct {
		lane               Lane
		operation, request string
	}{
		{Propose, "memory.read", `{"namespace":"A","key":"k"}`},
		{Propose, "memory.read", `{"namespace":"a.b.c.d.e.f.g.h.i","key":"k"}`},
		{Propose, "memory.read", `{"namespace":"a..b","key":"k"}`},
		{Propose, "memory.read", `{"namespace":"a","key":"k.l"}`},
		{Propose, "memory.read", `{"namespace":"a","key":"k\u0131"}`},
		{Propose, "memory.read", `{"namespace":"a","key":"k","owner_agent_id":"none"}`},
		{Propose, "memory.write", `{"owner_agent_id":"Bob","namespace":"n","key":"k","value":1}`},
		{Propose, "memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":1,"visibility":"public"}`},
		{Propose, "memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":1,"expected_revision":0}`},
		{Propose, "memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":1,"expected_revision":-1}`},
		{Propose, "memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":1,"ttl_seconds":0}`},
		{Propose, "agent.register", `{"agent_id":"kid","capabilities":["A"],"public_key":"U"}`},
		{Propose, "agent.register", `{"agent_id":"kid","capabilities":["a","a"],"public_key":"U"}`},
		{Propose, "agent.register", `{"agent_id":"kid","capabilities":[],"public_key":"U","parent_id":"bob"}`},
		{Control, "agent.register", `{"agent_id":"kid","capabilities":[],"public_key":"U","parent_id":""}`},
		{Control, "agent.revoke", `{"agent_id":"Bob"}`},
		{Control, "principal.register", `{"id":"p","role":"handler","public_key":"U","actions":["A"]}`},
		{Control, "principal.register", `{"id":"p","role":"handler","public_key":"U","actions":["a","a"]}`},
		{Control, "principal.register", `{"id":"p","role":"approver","public_key":"U","groups":["a b"]}`},
		{Control, "principal.register", `{"id":"p","role":"observer","public_key":"U","root":"Bob"}`},
		{Control, "principal.rekey", `{"id":"","public_key":"U"}`},
		{Control, "apply", `{"documents":[],"expected_version":"a b"}`},
		{Control, "apply", `{"documents":[],"dry_run":"true"}`},
		{Control, "apply", `{"documents":[null]}`},
		{Propose, "sop.validate", `{"sop":{},"wait_ms":60001}`},
		{Propose, "sop.validate", `{"sop":{},"wait_ms":-1}`},
	} {
		if _, code := Decode(c.lane, c.operation, []byte(c.request)); code != reason.MalformedRequest {
			t.Errorf("%s %s: %q", c.operation, c.request, code)
		}
	}
}

// What a registration or an authorization names is left for the judge to
// refuse, with a code of its own.
func TestDecodeLeavesNamesWithACodeOfTheirOwn(t *testing.T) {
	for operation, request := range map[string]string{
		"action.authorize": `{"action":"No Action"}`,
		"agent.register":   `{"agent_id":"No Id","capabilities":[],"public_key":"no key"}`,
		"sop.validate":     `{"sop":7}`,
	} {
		if _, code := Decode(Propose, operation, []byte(request)); code != "" {
			t.Errorf("%s: %s", operation, code)
		}
	}
	if r, code := Decode(Propose, "action.authorize", []byte(`{"action":"x"}`)); code != "" || string(r.Body.(*ActionAuthorize).Arguments) != "{}" {
		t.Error("arguments are not {} by default")
	}
}

// Read tells a sender what is wrong, in words of ours: whatever it sent stays
// out of them.
func TestReadSaysWhatIsWrong(t *testing.T) {
	for request, want := range map[string]string{
		`{"namespace":"n","key":"k"}`:                                  "",
		`{"namespace":"n","key":"k","operation_id":"canary\n"}`:        "operation_id: ",
		`{"namespace":"CANARY","key":"k"}`:                             "namespace: ",
		`{"namespace":"n"}`:                                            "key: ",
		`{"namespace":"n","key":"k","canary":1}`:                       "a field ",
		`["canary"]`:                                                   "not a JSON object",
		`{"namespace":"n","key":"k","value":"canary"`:                  "byte 43: ",
		`{"canary":1,"canary":2}`:                                      "byte 23: ",
		`{"namespace":"n","key":"k","owner_agent_id":"Canary Canary"}`: "owner_agent_id: ",
	} {
		r, code, fault := Read(Propose, "memory.read", []byte(request))
		if (code == "") != (want == "") || (r == nil) == (code == "") || !strings.HasPrefix(fault, want) || (fault == "") != (want == "") ||
			strings.Contains(strings.ToLower(fault), "canary") {
			t.Errorf("%s: %q %q, want %q", request, code, fault, want)
		}
	}
}

func TestDecodeMarksSize(t *testing.T) {
	text := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	list := func(n int) string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf(`"x.%d"`, i))
		}
		return "[" + strings.Join(names, ",") + "]"
	}
	for _, c := range []struct {
		lane               Lane
		operation, request string
		max                int
		grow               func(int) string
	}{
		{Propose, "memory.write", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":%s}`, events.ValueBytesMax, text},
		{Control, "memory.load", `{"owner_agent_id":"bob","namespace":"n","key":"k","value":%s}`, events.ValueBytesMax, text},
		{Propose, "action.authorize", `{"action":"x","arguments":{"a":%s}}`, events.ArgumentsBytesMax - len(`{"a":}`), text},
		{Propose, "agent.register", `{"agent_id":"kid","capabilities":%s,"public_key":"U"}`, events.CapabilitiesMax, list},
		{Control, "environment.set", `{"capabilities":%s}`, events.CapabilitiesMax, list},
		{Control, "principal.register", `{"id":"p","role":"handler","public_key":"U","actions":%s}`, events.CapabilitiesMax, list},
	} {
		for _, over := range []int{0, 1} {
			r, code := Decode(c.lane, c.operation, fmt.Appendf(nil, c.request, c.grow(c.max+over)))
			if code != "" || r.TooLarge != (over == 1) {
				t.Errorf("%s with %d more than allowed: %q", c.operation, over, code)
			}
		}
	}
	padded := []byte(`{"namespace":"n","key":"k"}` + strings.Repeat(" ", events.RequestBytesMax))
	if _, code := Decode(Propose, "memory.read", padded[:events.RequestBytesMax]); code != "" {
		t.Error("the largest request:", code)
	}
	if _, code := Decode(Propose, "memory.read", padded[:events.RequestBytesMax+1]); code != reason.RequestTooLarge {
		t.Error("one byte more:", code)
	}
}

func TestKnownOperations(t *testing.T) {
	for _, c := range []struct {
		lane      Lane
		operation string
		known     bool
	}{
		{Propose, "memory.write", true}, {Control, "memory.write", false}, {Control, "apply", true}, {Propose, "apply", false},
		{Propose, "sop.submit", true}, {Propose, "grant.give", true}, {Propose, "restriction.add", true}, {Propose, "restriction.take", false}, {Control, "emergency.deny", true}, {Control, "hold.place", true}, {Control, "backup.now", false},
		{Query, "memory.read", false}, {"", "memory.read", false}, {Propose, "", false}, {Propose, "Memory.Write", false},
	} {
		want := events.Unsupported
		if c.known {
			want = c.operation
		}
		if got := Known(c.lane, c.operation); got != want {
			t.Errorf("%s %s is written as %s", c.lane, c.operation, got)
		}
		if _, code := Decode(c.lane, c.operation, []byte("{}")); (code == reason.UnsupportedOperation) == c.known {
			t.Errorf("%s %s: %q", c.lane, c.operation, code)
		}
	}
}

// Whatever the bytes, a request that decodes is the same request again in its
// canonical form, with names within their grammar.
func FuzzDecode(f *testing.F) {
	all := examples(f)
	for i, e := range all {
		f.Add(uint8(i), []byte(e.request))
		for _, text := range []string{
			`{"action":"memory.read","action":"memory.delete"}`, `{"action":"memory.read","\u0061ction":"memory.delete"}`,
			`{"action":"memory.read","ACTION":"memory.delete"}`, "{\"action\":\"memory.read\xff\"}",
			`{"action":"memory.read"}{"action":"memory.delete"}`, `{"action":"pay","arguments":{"amount":9007199254740993}}`,
			`{"arguments":` + strings.Repeat("[", 100) + `}`, `{"action":"memory.write","agent":"root","args":{}}`,
		} {
			f.Add(uint8(i), []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		e := all[int(which)%len(all)]
		r, code, fault := Read(e.lane, e.operation, b)
		if (r == nil) == (code == "") || (code == reason.MalformedRequest) == (fault == "") || code != "" && code != reason.MalformedRequest && code != reason.RequestTooLarge {
			t.Fatalf("%v and %q", r, code)
		}
		if r == nil {
			return
		}
		again, code := Decode(e.lane, e.operation, r.Canonical)
		if code != "" || string(again.Canonical) != string(r.Canonical) || !reflect.DeepEqual(again.Body, r.Body) ||
			again.TooLarge != r.TooLarge {
			t.Fatalf("%s and canonically %s: %q", b, r.Canonical, code)
		}
		if again.OperationID != "" || again.TraceID != "" {
			t.Fatalf("the canonical form has an id: %s", r.Canonical)
		}
	})
}

package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

func decision(code reason.Code) *events.Decision {
	return &events.Decision{
		Subject: "bob", Lineage: []string{"bob", "root"}, Operation: "memory.read", Resource: "n.k",
		Allowed: code.Allowed(), Reason: string(code), PolicyVersion: "v1", OperationID: "op", TraceID: "t",
	}
}

const receipt = `"seq":7,"event_id":"01000000-0000-0000-0000-0000000000ff","hash":"` + "0000000000000000000000000000000000000000000000000000000000000000" + `","operation_id":"op"`

func TestReplyShapes(t *testing.T) {
	head := func(code reason.Code) string {
		allowed := "false"
		if code.Allowed() {
			allowed = "true"
		}
		return `{"type":"io.ledgerd.decision.v1","allowed":` + allowed + `,"reason_code":"` + string(code) + `","message":"` + code.Text() +
			`","subject":"bob","operation":"memory.read","resource":"n.k","policy_version":"v1",` + receipt
	}
	owned := func(code reason.Code) *events.Decision {
		d := decision(code)
		d.Owner, d.Rule, d.Failed = "root", "r1", []string{"r1", "r2"}
		return d
	}
	for name, c := range map[string]struct {
		reply Reply
		want  string
	}{
		"bare":   {Reply{Decision: decision(reason.ActionAllowed)}, head(reason.ActionAllowed) + `}`},
		"denied": {Reply{Decision: owned(reason.ActorIsNotOwner)}, head(reason.ActorIsNotOwner) + `,"owner":"root","rule":"r1","failed":["r1","r2"]}`},
		"hidden": {Reply{Decision: owned(reason.NotVisibleFrom)}, head(reason.RecordUnavailable) + `}`},
		"absent": {Reply{Decision: decision(reason.RecordNotFound)}, head(reason.RecordUnavailable) + `}`},
		"secret": {Reply{Decision: owned(reason.GrantRequired)}, head(reason.RecordUnavailable) + `}`},
		"hidden, to who may read the log": {Reply{Decision: owned(reason.NotVisibleFrom), Full: true},
			head(reason.NotVisibleFrom) + `,"owner":"root","rule":"r1","failed":["r1","r2"]}`},
		"read": {
			Reply{Decision: owned(reason.CombinedFrom), Record: &Record{
				Namespace: "n", Key: "k", Value: []byte(`{"a":"é"}`), Owner: "root", Visibility: "children", Class: "mandatory", Revision: 3, Contributors: []string{"bob", "root"},
			}},
			head(reason.CombinedFrom) + `,"owner":"root","rule":"r1","failed":["r1","r2"],"record":{"namespace":"n","key":"k","value":{"a":"é"},"owner_agent_id":"root",` +
				`"visibility":"children","mutable_by":"owner","class":"mandatory","revision":3,"contributors":["bob","root"]}}`,
		},
		"changed": {
			Reply{Decision: decision(reason.OwnerDelete), Record: &Record{Namespace: "n", Key: "k", Owner: "bob", Visibility: "private", Class: "secret", Revision: 4}},
			head(reason.OwnerDelete) + `,"record":{"namespace":"n","key":"k","owner_agent_id":"bob","visibility":"private","mutable_by":"owner","class":"secret","revision":4}}`,
		},
		"steps": {
			Reply{Decision: decision(reason.UnknownAction), Steps: []Step{{"a", "x.one", reason.StepAllowed}, {"", "unsupported", reason.EmptyStepID}}},
			head(reason.UnknownAction) + `,"decisions":[{"step_id":"a","action":"x.one","allowed":true,"reason_code":"step_allowed"},` +
				`{"step_id":"","action":"unsupported","allowed":false,"reason_code":"empty_step_id"}]}`,
		},
		"documents": {
			Reply{Decision: decision(reason.ControlDone), Documents: []Document{{"Agent", "bob", "created"}, {"Memory", "bob:n.k", "kept"}}},
			head(reason.ControlDone) + `,"documents":[{"kind":"Agent","id":"bob","result":"created"},{"kind":"Memory","id":"bob:n.k","result":"kept"}]}`,
		},
		"faults": {
			Reply{Decision: decision(reason.PolicyInvalid), Faults: []string{"document 1: 2:3: \"\n\x1b[2J"}},
			head(reason.PolicyInvalid) + `,"failed":["document 1: 2:3: \"\n\u001b[2J"]}`,
		},
	} {
		c.reply.Seq, c.reply.EventID = 7, [16]byte{0: 1, 15: 0xff}
		got := string(c.reply.Encode())
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		if _, err := events.ParseJSON([]byte(got)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// R21: with a reason that is not told, nothing of the reply but the receipt
// depends on what is hidden.
func TestR21_HiddenReasonsReadAlike(t *testing.T) {
	told := map[string]bool{}
	for _, info := range reason.All() {
		if reason.Told(info.Code) == info.Code {
			continue
		}
		d := decision(info.Code)
		d.Owner, d.Rule, d.Failed, d.Blind = "owner-"+string(info.Code), "rule", []string{"x"}, "blind"
		reply := string((&Reply{Decision: d}).Encode())
		for _, secret := range []string{string(info.Code), "owner-", "rule", "blind"} {
			if strings.Contains(reply, secret) {
				t.Errorf("%s is told: %s", secret, reply)
			}
		}
		told[reply] = true
	}
	if len(told) != 1 {
		t.Errorf("%d different replies", len(told))
	}
}

func TestErrorShape(t *testing.T) {
	want := `{"type":"io.ledgerd.error.v1","reason_code":"rate_limited","message":"` + reason.RateLimited.Text() + `"}`
	if got := string(Error(reason.RateLimited)); got != want {
		t.Errorf("got %s", got)
	}
}

func TestDecodeQuery(t *testing.T) {
	for _, c := range []struct {
		what, request string
		want          QueryRequest
	}{
		{"capabilities", ``, QueryRequest{}},
		{"capabilities", `{"agent_id":"bob","at":7}`, QueryRequest{AgentID: "bob", At: 7}},
		{"decision", `{"seq":7}`, QueryRequest{Seq: 7}},
		{"decision", `{"operation_id":"op","agent_id":"bob"}`, QueryRequest{OperationID: "op", AgentID: "bob"}},
		{"explain", `{"seq":7}`, QueryRequest{Seq: 7}},
		{"explain", `{"operation":"memory.read","request":{"b":1,"a":2}}`, QueryRequest{Operation: "memory.read", Request: []byte(`{"a":2,"b":1}`)}},
		{"proof", `{"seq":1}`, QueryRequest{Seq: 1}}, {"proof", `{"seq":1,"event":true}`, QueryRequest{Seq: 1, Event: true}},
		{"consistency", `{"from":1}`, QueryRequest{From: 1}}, {"rotations", `{}`, QueryRequest{}}, {"consistency", `{"from":2,"to":2}`, QueryRequest{From: 2, To: 2}},
		{"checkpoint", `{}`, QueryRequest{}},
		{"agents", `{"root":"bob","after":"bob","limit":5}`, QueryRequest{Root: "bob", After: "bob", Limit: 5}},
		{"runs", ``, QueryRequest{}}, {"runs", `{"from":7,"limit":5}`, QueryRequest{From: 7, Limit: 5}},
		{"events", `{"from":1,"limit":2,"category":"memory","agent":"bob"}`, QueryRequest{From: 1, Limit: 2, Category: "memory", Agent: "bob"}},
	} {
		got, code := DecodeQuery(c.what, []byte(c.request))
		if code != "" {
			t.Errorf("%s %s: %s", c.what, c.request, code)
			continue
		}
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(c.want)
		if string(a) != string(b) {
			t.Errorf("%s %s: %s, want %s", c.what, c.request, a, b)
		}
	}
	for _, c := range []struct{ what, request string }{
		{"capabilities", `{"agent_id":"Bob"}`}, {"capabilities", `{"at":0}`}, {"capabilities", `{"actor":"bob"}`}, {"capabilities", `[]`},
		{"capabilities", `null`}, {"capabilities", `{"agent_id":null}`}, {"capabilities", `{"agent_id":"bob","agent_id":"bob"}`},
		{"decision", `{}`}, {"decision", `{"seq":1,"operation_id":"op"}`}, {"decision", `{"seq":1.0}`}, {"decision", `{"operation_id":""}`},
		{"explain", `{}`}, {"explain", `{"operation":"memory.read"}`}, {"explain", `{"request":{}}`}, {"explain", `{"seq":1,"request":{}}`},
		{"explain", `{"seq":1,"operation":"memory.read"}`}, {"explain", `{"seq":1,"operation":"memory.read","request":{}}`},
		{"explain", `{"operation":"memory.read","request":[]}`}, {"explain", `{"operation":"memory.read","request":null}`},
		{"proof", `{}`}, {"proof", `{"seq":-1}`}, {"proof", `{"seq":1,"event":1}`}, {"consistency", `{}`}, {"consistency", `{"from":0}`}, {"consistency", `{"from":3,"to":2}`}, {"consistency", `{"to":2}`}, {"checkpoint", `{"seq":1}`}, {"rotations", `{"seq":1}`}, {"agents", `{"limit":0}`}, {"runs", `{"from":0}`}, {"runs", `{"agent_id":"bob"}`},
		{"events", `{}`}, {"events", `{"from":1}`}, {"events", `{"from":0,"limit":1}`}, {"events", `{"from":1,"limit":1,"category":"a.b"}`},
	} {
		if got, code := DecodeQuery(c.what, []byte(c.request)); code != reason.MalformedRequest || got != nil {
			t.Errorf("%s %s: %+v %q", c.what, c.request, got, code)
		}
	}
	for _, what := range []string{"", "sessions", "memory.read", "Capabilities"} {
		if _, code := DecodeQuery(what, nil); code != reason.UnsupportedOperation {
			t.Errorf("%q: %q", what, code)
		}
	}
	if _, code := DecodeQuery("proof", []byte(`{"seq":1}`+strings.Repeat(" ", events.RequestBytesMax))); code != reason.RequestTooLarge {
		t.Errorf("a large query: %q", code)
	}
}

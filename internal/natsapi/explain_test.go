package natsapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// ruled is a ledger whose actions have requirements, one of them on a mandatory
// record.
func ruled(t *testing.T) *front {
	f := openFrontWithout(t)
	documents := []string{`apiVersion: ledgerd/v1
kind: Policy
version: ruled-1
environment: [memory.read, memory.write, agent.register, artifact.save, artifact.send]
actions:
  artifact.save:
    arguments: {type: object, properties: {size: {type: integer, maximum: 100}}}
    require: [{id: small, that: args.size < 10}]
  artifact.send:
    require: [{id: open, that: mandatory("desk.open") == true}]
namespaces:
  desk: {class: mandatory, combine: all_true}
  credentials: {class: secret}
`}
	parent := ""
	for _, id := range []string{"top", "mid", "low"} {
		documents = append(documents, "kind: Agent\nid: "+id+parent+"\ncapabilities: [memory.read, memory.write, artifact.save, artifact.send]\npublic_key: "+f.key(id)+"\n")
		parent = "\nparent: " + id
	}
	documents = append(documents, "kind: Principal\nid: nook\nrole: observer\nroot: mid\npublic_key: "+f.key("nook")+"\n")
	body, err := json.Marshal(map[string]any{"documents": documents})
	if err != nil {
		t.Fatal(err)
	}
	want(t, f.ask("admin", "control", "apply", string(body)), "control_done")
	for id, size := range map[string]int{"top": 8, "mid": 6, "low": 4} {
		want(t, f.propose(id, "restriction.add", fmt.Sprintf(`{"id":"size","action":"artifact.save","require":"args.size < %d"}`, size)), "restriction_added")
	}
	want(t, f.propose("top", "memory.write", `{"owner_agent_id":"top","namespace":"desk","key":"open","value":true,"visibility":"descendants"}`), "owner_write")
	return f
}

func (f *front) explained(id, body string) wire.Explanation {
	f.t.Helper()
	r := f.ask(id, "query", "explain", body)
	var e wire.Explanation
	if err := json.Unmarshal([]byte(r.Text), &e); err != nil || e.Subject == "" {
		f.t.Fatalf("%s explains %s: %s", id, body, r.Text)
	}
	return e
}

// Who is bound by a rule may read it; an observer of one subtree reads none from
// outside of it, and is told its name.
func TestExplain_WhoReadsWhichRule(t *testing.T) {
	f := ruled(t)
	const asked = `{"agent_id":"low","operation":"action.authorize","request":{"action":"artifact.save","arguments":{"size":50}}}`
	all := "small=args.size < 10 top:size=args.size < 8 mid:size=args.size < 6 low:size=args.size < 4"
	for id, want := range map[string]string{"low": all, "mid": all, "top": all, "admin": all, "nook": "small= top:size= mid:size=args.size < 6 low:size=args.size < 4"} {
		var list []string
		for _, r := range f.explained(id, asked).Rules {
			name := r.ID
			if r.Owner != "" {
				name = r.Owner + ":" + r.ID
			}
			list = append(list, name+"="+r.Require)
		}
		if got := strings.Join(list, " "); got != want {
			t.Errorf("%s is told %s", id, got)
		}
	}
	if r := f.ask("nook", "query", "capabilities", `{"agent_id":"low"}`); !strings.Contains(r.Text, `{"agent_id":"top","id":"size","action":"artifact.save"},{"agent_id":"mid","id":"size","action":"artifact.save","require":`) {
		t.Errorf("an observer of mid is told %s", r.Text)
	}
	denied := f.propose("low", "action.authorize", `{"action":"artifact.save","arguments":{"size":50}}`)
	if e := f.explained("nook", fmt.Sprintf(`{"seq":%d}`, denied.Seq)); len(e.Rules) != 4 || e.Rules[0].Require+e.Rules[1].Require != "" || e.Rules[2].Require == "" {
		t.Errorf("the recorded one: %+v", e.Rules)
	}
}

// R22: where the answer would depend on another's records, an agent above is
// not given it, whatever they are.
func TestR22_ExplainTellsNothingOfRecordsBelow(t *testing.T) {
	f := ruled(t)
	ask := func(id, operation, request string) string {
		return f.ask(id, "query", "explain", fmt.Sprintf(`{"agent_id":"low","operation":%q,"request":%s}`, operation, request)).Text
	}
	send := `{"action":"artifact.send"}`
	procedure := `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"artifact.send"}]}}`
	give := `{"namespace":"credentials","key":"pw","to":"mid","expires_seconds":60}`
	before := []string{ask("top", "action.authorize", send), ask("top", "sop.validate", procedure), ask("top", "grant.give", give)}
	if e := f.explained("low", `{"operation":"action.authorize","request":`+send+`}`); !e.Allowed {
		t.Errorf("low itself: %+v", e)
	}
	want(t, f.propose("low", "memory.write", `{"owner_agent_id":"low","namespace":"desk","key":"open","value":false}`), "owner_write")
	want(t, f.propose("low", "memory.write", `{"owner_agent_id":"low","namespace":"credentials","key":"pw","value":"x"}`), "owner_write")
	after := []string{ask("top", "action.authorize", send), ask("top", "sop.validate", procedure), ask("top", "grant.give", give)}
	for i := range before {
		if before[i] != after[i] || !strings.Contains(after[i], string(reason.NotPermittedForRole)) {
			t.Errorf("before %s\nafter  %s", before[i], after[i])
		}
	}
	if e := f.explained("low", `{"operation":"action.authorize","request":`+send+`}`); e.Allowed || len(e.Rules) != 1 {
		t.Errorf("low itself: %+v", e)
	}
	if e := f.explained("admin", `{"agent_id":"low","operation":"action.authorize","request":`+send+`}`); e.Allowed {
		t.Errorf("the admin is told %+v", e)
	}
}

// However much there is to say, an answer fits; what is left out is counted.
func TestExplain_FitsAReply(t *testing.T) {
	f := ruled(t)
	long := strings.Repeat(`args.size < 10 && "<<<<>>>>&&&&" != "" && `, 40) + `args.size < 1`
	for _, id := range []string{"top", "mid", "low"} {
		for i := range policy.RestrictionsMax - 1 {
			want(t, f.propose(id, "restriction.add", fmt.Sprintf(`{"id":"r%d","action":"artifact.save","require":%s}`, i, events.AppendString(nil, long))), "restriction_added")
		}
	}
	var steps []string
	for i := range events.SOPStepsMax {
		steps = append(steps, fmt.Sprintf(`{"step_id":"s%d","action":"artifact.save","arguments":{"size":90}}`, i))
	}
	r := f.ask("low", "query", "explain", `{"operation":"sop.validate","request":{"sop":{"sop_id":"s","version":1,"steps":[`+strings.Join(steps, ",")+`]}}}`)
	var e wire.Explanation
	if err := json.Unmarshal([]byte(r.Text), &e); err != nil || len(r.Text) > events.ReplyBytesMax {
		t.Fatalf("%d bytes: %v", len(r.Text), err)
	}
	told, leftOut := 0, 0
	for _, d := range e.Decisions {
		told, leftOut = told+len(d.Rules), leftOut+d.LeftOut
	}
	if all := events.SOPStepsMax * (1 + 3*policy.RestrictionsMax); told+leftOut != all || e.Decisions[0].Rules[1].Require == "" {
		t.Errorf("%d told, %d left out of %d", told, leftOut, all)
	}
}

func TestResources_Pages(t *testing.T) {
	f := ruled(t)
	for _, id := range []string{"c", "a", "b"} {
		want(t, f.ask("admin", "control", "resource.set", `{"id":"`+id+`","classification":"x"}`), "control_done")
	}
	after, got := "", ""
	for range 4 {
		var page wire.Resources
		body := `{"limit":1` + after + `}`
		if err := json.Unmarshal([]byte(f.ask("admin", "query", "resources", body).Text), &page); err != nil || len(page.Resources) != 1 {
			t.Fatalf("%s: %+v, %v", body, page, err)
		}
		got += page.Resources[0].ID
		if page.Next == "" {
			break
		}
		after = `,"after":"` + page.Next + `"`
	}
	if got != "abc" {
		t.Errorf("pages %s", got)
	}
	for id, code := range map[string]string{"nook": "not_permitted_for_role", "low": "not_permitted_for_role"} {
		if r := f.ask(id, "query", "resources", `{}`); r.Reason != code {
			t.Errorf("%s: %s", id, r.Text)
		}
	}
}

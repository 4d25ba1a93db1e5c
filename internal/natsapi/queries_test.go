package natsapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// TestR22_QueriesLookNeitherUpNorInto: what an agent asks about others tells it
// nothing of their records, decisions or tree.
func TestR22_QueriesLookNeitherUpNorInto(t *testing.T) {
	f := openFront(t)
	want(t, f.propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"credentials","key":"pw","value":"x","operation_id":"mine"}`), "owner_write")
	own := f.propose("researcher", "memory.read", `{"namespace":"credentials","key":"pw"}`)
	for _, c := range []struct{ as, what, body, reason string }{
		{"report_manager", "explain", `{"agent_id":"researcher","operation":"memory.read","request":{"namespace":"credentials","key":"pw"}}`, "not_permitted_for_role"},
		{"report_manager", "explain", `{"agent_id":"researcher","operation":"memory.write","request":{"owner_agent_id":"researcher","namespace":"credentials","key":"pw","value":1}}`, "not_permitted_for_role"},
		{"formatter", "explain", `{"agent_id":"researcher","operation":"action.authorize","request":{"action":"artifact.save"}}`, "not_found"},
		{"watcher", "explain", `{"agent_id":"admin","operation":"apply","request":{"documents":["x"]}}`, "not_permitted_for_role"},
		{"formatter", "decision", `{"operation_id":"mine","agent_id":"researcher"}`, "not_found"},
		{"formatter", "decision", fmt.Sprintf(`{"seq":%d}`, own.Seq), "not_found"},
		{"formatter", "explain", fmt.Sprintf(`{"seq":%d}`, own.Seq), "not_found"},
		{"formatter", "proof", fmt.Sprintf(`{"seq":%d}`, own.Seq), "not_found"},
		{"formatter", "capabilities", `{"agent_id":"researcher"}`, "not_found"},
		{"formatter", "capabilities", `{"at":3}`, "not_permitted_for_role"},
		{"formatter", "explain", `{"operation":"action.authorize","request":{"action":"artifact.save","arguments":{"a":"` + strings.Repeat("x", 20<<10) + `"}}}`, "request_too_large"},
	} {
		if r := f.ask(c.as, "query", c.what, c.body); r.Reply.Reason != c.reason || r.Type != "io.ledgerd.error.v1" {
			t.Errorf("%s asks %s %.80s: %s", c.as, c.what, c.body, r.Text)
		}
	}
	// Above what is below it, an agent sees decisions and rights.
	for what, body := range map[string]string{
		"decision": fmt.Sprintf(`{"seq":%d}`, own.Seq), "capabilities": `{"agent_id":"researcher"}`,
		"explain": `{"agent_id":"researcher","operation":"action.authorize","request":{"action":"artifact.save"}}`, "proof": fmt.Sprintf(`{"seq":%d}`, own.Seq),
	} {
		if r := f.ask("report_manager", "query", what, body); r.Type == "io.ledgerd.error.v1" {
			t.Errorf("the manager asks %s: %s", what, r.Text)
		}
	}
	// An observer with a root is told of that subtree alone.
	want(t, f.ask("admin", "control", "principal.register", `{"id":"nook","role":"observer","root":"formatter","public_key":"`+f.key("nook")+`"}`), "registered")
	f.propose("formatter", "memory.read", `{"namespace":"project","key":"client_region"}`)
	page := f.ask("nook", "query", "events", `{"from":1,"limit":1000}`)
	if strings.Contains(page.Text, `\"agent\":\"researcher\"`) || !strings.Contains(page.Text, `\"agent\":\"formatter\"`) {
		t.Errorf("events of another subtree: %s", page.Text)
	}
	if r := f.ask("nook", "query", "rotations", `{}`); r.Reply.Reason != "not_permitted_for_role" {
		t.Errorf("events of the ledger's own: %s", r.Text)
	}
	if r := f.ask("nook", "query", "explain", `{"agent_id":"formatter","operation":"memory.read","request":{"namespace":"credentials","key":"storage_token"}}`); strings.Contains(r.Text, "report_manager\",\"guards") || strings.Contains(r.Text, `"owner"`) {
		t.Errorf("an owner outside its subtree: %s", r.Text)
	}
}

// TestR66_SizeAndQueriesCount: a large message costs more of the rate than a
// small one, a query costs as a proposal does, and a registrar has a rate too.
func TestR66_SizeAndQueriesCount(t *testing.T) {
	f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst = 0.001, 65 })
	large := `{"owner_agent_id":"researcher","namespace":"notes","key":"k","value":"` + strings.Repeat("v", 240<<10) + `"}`
	want(t, f.propose("researcher", "memory.write", large), "request_too_large")
	want(t, f.propose("researcher", "memory.write", large), "rate_limited")
	for i := range 70 {
		if r := f.ask("formatter", "query", "checkpoint", `{}`); (r.Reply.Reason == "rate_limited") != (i >= 65) {
			t.Fatalf("query %d: %s", i, r.Text)
		}
	}
	for i := range 70 {
		if r := f.ask("clerk", "control", "agent.revoke", `{"agent_id":"nobody"}`); (r.Reply.Reason == "rate_limited") != (i >= 65) {
			t.Fatalf("verb %d: %s", i, r.Text)
		}
	}
	for range 70 {
		want(t, f.ask("admin", "control", "agent.revoke", `{"agent_id":"nobody"}`), "not_found")
	}
}

// TestR66_ARequestCostsWhatItCanCause: as many tokens as events.
func TestR66_ARequestCostsWhatItCanCause(t *testing.T) {
	const step = `{"step_id":"s%d","action":"memory.read","arguments":{"namespace":"project","key":"client_region"}}`
	procedure := func(n int) string {
		steps := make([]string, n)
		for i := range steps {
			steps[i] = fmt.Sprintf(step, i)
		}
		return `{"sop":{"sop_id":"s","version":1,"steps":[` + strings.Join(steps, ",") + `]}}`
	}
	read := `{"namespace":"project","key":"client_region"}`
	for _, row := range []struct {
		operation, request string
		cost               int
	}{
		{"memory.read", read, 1}, {"action.authorize", `{"action":"artifact.save"}`, 1}, {"sop.validate", procedure(7), 8}, {"sop.submit", procedure(7), 39},
		{"memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"k","value":1}`, 2}, {"run.cancel", `{"run_id":"none"}`, 2},
	} {
		f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst = 0.001, 60 })
		if r := f.propose("researcher", row.operation, row.request); r.Reply.Reason == "rate_limited" {
			t.Fatalf("%s: %s", row.operation, r.Text)
		}
		left := 0
		for f.propose("researcher", "memory.read", read).Reply.Reason != "rate_limited" {
			left++
		}
		if left != 60-row.cost {
			t.Errorf("%s costs %d, want %d", row.operation, 60-left, row.cost)
		}
	}
}

// TestR66_AQueryCostsTheResultsItShows: each ended step of a run one more.
func TestR66_AQueryCostsTheResultsItShows(t *testing.T) {
	f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst = 0.001, 60 })
	const step = `{"step_id":"s%d","action":"memory.read","arguments":{"namespace":"project","key":"client_region"}}`
	r := f.propose("researcher", "sop.submit", `{"sop":{"sop_id":"s","version":1,"steps":[`+fmt.Sprintf(step, 1)+","+fmt.Sprintf(step, 2)+","+fmt.Sprintf(step, 3)+`]}}`) // 19 tokens
	var run struct {
		Run struct {
			RunID string `json:"run_id"`
		} `json:"run"`
	}
	if err := json.Unmarshal([]byte(r.Text), &run); err != nil || run.Run.RunID == "" {
		t.Fatalf("%s: %v", r.Text, err)
	}
	whole, one := fmt.Sprintf(`{"run_id":%q}`, run.Run.RunID), fmt.Sprintf(`{"run_id":%q,"step_id":"s2"}`, run.Run.RunID)
	for i := range 10 { // 4 tokens each
		if r := f.ask("researcher", "query", "run", whole); r.Reply.Reason == "rate_limited" {
			t.Fatalf("query %d: %s", i, r.Text)
		}
	}
	if r := f.ask("researcher", "query", "run", one); r.Reply.Reason != "rate_limited" { // 1 is left, it takes 2
		t.Errorf("a query too many: %s", r.Text)
	}
}

// TestR66_OneIDTakesNotEveryConnection: the rest are refused, recorded, and
// free again when the others close.
func TestR66_OneIDTakesNotEveryConnection(t *testing.T) {
	f := openFront(t)
	at := f.head()
	var open []*nats.Conn
	for range 80 {
		nc, err := f.dial("researcher")
		if err != nil {
			break
		}
		open = append(open, nc)
	}
	if len(open) != 64 {
		t.Errorf("%d connections of one id", len(open))
	}
	want(t, f.propose("formatter", "memory.read", `{"namespace":"project","key":"client_region"}`), "visible_from")
	eventually(t, "the refusal is recorded", func() bool {
		for _, e := range f.since(at) {
			if b, ok := e.Body.(*events.TransportDenied); ok && b.ID == "researcher" && b.Code == natsapi.DeniedAuth {
				return true
			}
		}
		return false
	})
	for _, nc := range open {
		nc.Close()
	}
	eventually(t, "they are free again", func() bool {
		nc, err := f.dial("researcher")
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
}

// What binds an agent it may know, however much it is: texts are left out
// before the answer is.
func TestRestrictionsAreListedWhereTheyBind(t *testing.T) {
	f := openFront(t)
	long := strings.Repeat(`args.path != "<>&" && `, 80) + `args.path != ""`
	for _, id := range []string{"report_manager", "researcher", "formatter"} {
		for i := range policy.RestrictionsMax {
			r := f.ask(id, "propose", "restriction.add", fmt.Sprintf(`{"id":"r%d","action":"artifact.save","require":%s}`, i, events.AppendString(nil, long)))
			if r.Reason != string(reason.RestrictionAdded) {
				t.Fatal(r.Text)
			}
		}
	}
	var has wire.Capabilities
	r := f.ask("formatter", "query", "capabilities", `{}`)
	if err := json.Unmarshal([]byte(r.Text), &has); err != nil {
		t.Fatal(err)
	}
	if n := len(has.Restrictions); n != 3*policy.RestrictionsMax || has.Restrictions[0].AgentID != "report_manager" || has.Restrictions[0].Require != long || has.Restrictions[n-1].AgentID != "formatter" {
		t.Errorf("%d restrictions: %.300s", n, r.Text)
	}
	if len(r.Text) > events.ReplyBytesMax {
		t.Errorf("an answer of %d bytes", len(r.Text))
	}
	if r := f.ask("report_manager", "query", "capabilities", `{}`); strings.Contains(r.Text, `"researcher"`) {
		t.Errorf("the restrictions of those below are not one's own: %.300s", r.Text)
	}
	if r := f.ask("researcher", "query", "capabilities", `{"agent_id":"report_manager"}`); r.Reason != string(reason.NotFound) {
		t.Errorf("a look upwards: %.300s", r.Text)
	}
}

// TestGrantsAreListedToThoseTheyConcern, page by page, and to nobody else.
func TestGrantsAreListedToThoseTheyConcern(t *testing.T) {
	f := openFront(t)
	if r := f.ask("report_manager", "propose", "memory.write", `{"owner_agent_id":"report_manager","namespace":"credentials","key":"token","value":"hidden"}`); !r.Allowed {
		t.Fatal(r.Text)
	}
	for _, to := range []string{"researcher", "formatter"} {
		if r := f.ask("report_manager", "propose", "grant.give", fmt.Sprintf(`{"namespace":"credentials","key":"token","to":%q,"expires_seconds":60}`, to)); !r.Allowed {
			t.Fatal(r.Text)
		}
	}
	list := func(id, body string) (page wire.Grants, text string) {
		t.Helper()
		r := f.ask(id, "query", "grants", body)
		if err := json.Unmarshal([]byte(r.Text), &page); err != nil {
			t.Fatal(r.Text, err)
		}
		return page, r.Text
	}
	for id, want := range map[string]string{"report_manager": "formatter researcher", "researcher": "researcher", "formatter": "formatter", "admin": "formatter researcher"} {
		page, text := list(id, `{}`)
		var to []string
		for _, g := range page.Grants {
			to = append(to, g.To)
		}
		if strings.Join(to, " ") != want || strings.Contains(text, "hidden") {
			t.Errorf("%s: %s", id, text)
		}
	}
	first, _ := list("admin", `{"limit":1}`)
	second, _ := list("admin", fmt.Sprintf(`{"limit":1,"after":%q}`, first.Next))
	if len(first.Grants) != 1 || len(second.Grants) != 1 || second.Next != "" || first.Grants[0].To != "formatter" || second.Grants[0].To != "researcher" {
		t.Errorf("%+v, %+v", first, second)
	}
	if page, text := list("researcher", `{"after":"zzz"}`); len(page.Grants) != 0 {
		t.Error(text)
	}
	if r := f.ask("clerk", "query", "grants", `{}`); r.Reason != string(reason.NotPermittedForRole) {
		t.Error(r.Text)
	}
}

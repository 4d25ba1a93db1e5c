package natsapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const ack = `{"type":"io.ledgerd.ack.v1","ok":true}`

func saveProcedure(sop string) string {
	return `{"sop":{"sop_id":"` + sop + `","version":1,"steps":[{"step_id":"save","action":"artifact.save","arguments":{"z":1,"a":"\u003c"}}]}}`
}

// openOrder has a run begun whose one effect waits for its report, and returns
// the effect's message as the handler tools got it.
func openOrder(t *testing.T, f *front) *nats.Msg {
	t.Helper()
	orders, err := f.conn("tools").QueueSubscribeSync("gov.main.exec.artifact.save", "exec-artifact.save")
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Unsubscribe()
	if r := f.ask("tools", "effect", "hello", `{"actions":["artifact.save"]}`); r.Text != ack {
		t.Fatalf("hello: %s", r.Text)
	}
	if r := f.propose("researcher", "sop.submit", saveProcedure("p")); !r.Allowed {
		t.Fatalf("submit: %s", r.Text)
	}
	order, err := orders.NextMsg(30 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return order
}

// An order goes out without a reply subject, with the judged, canonical
// arguments; a report is answered when it is in the log, and answered the same
// when it is said again.
func TestAnOrderAndItsReport(t *testing.T) {
	f := openFront(t)
	order := openOrder(t, f)
	exec, ok := wire.DecodeExec(order.Data)
	if !ok || order.Reply != "" || len(order.Header) != 0 || string(exec.Arguments) != `{"a":"<","z":1}` || exec.Agent != "researcher" || !bytes.Equal(exec.Encode(), order.Data) {
		t.Errorf("the order: %+v, %s", order, order.Data)
	}
	at := f.head()
	for range 2 {
		if r := f.ask("tools", "effect", "report", `{"operation_id":"`+exec.OperationID+`","ok":true,"result":[1]}`); r.Text != ack {
			t.Errorf("report: %s", r.Text)
		}
	}
	after := f.since(at)
	if len(after) != 2 || after[0].Body.Type() != events.TypeEffectFinished || after[1].Body.Type() != events.TypeRunFinished {
		t.Errorf("the log has %+v", after)
	}
}

// What is no report of a handler's own effect is refused, leaves the run as it
// is, and is counted.
func TestReportsThatAreRefused(t *testing.T) {
	f := openFront(t)
	if r := f.ask("admin", "control", "principal.register", `{"id":"others","role":"handler","actions":["document.summarize"],"public_key":"`+f.key("others")+`"}`); !r.Allowed {
		t.Fatal(r.Text)
	}
	exec, _ := wire.DecodeExec(openOrder(t, f).Data)
	id := `"operation_id":"` + exec.OperationID + `"`
	at := f.head()
	for _, c := range []struct{ as, what, body, code string }{
		{"others", "report", `{` + id + `,"ok":true}`, "not_permitted_for_role"},
		{"tools", "report", `{"operation_id":"` + exec.RunID + `/other","ok":true}`, "not_found"},
		{"tools", "report", `{"operation_id":"nothing","ok":true}`, "not_found"},
		{"tools", "report", ``, "malformed_request"},
		{"tools", "report", `{` + id + `}`, "malformed_request"},
		{"tools", "report", `{` + id + `,"ok":1}`, "malformed_request"},
		{"tools", "report", `{` + id + `,"ok":true,"error":"x"}`, "malformed_request"},
		{"tools", "report", `{` + id + `,"ok":false,"result":1}`, "malformed_request"},
		{"tools", "report", `{` + id + `,"ok":true,"result":null}`, "malformed_request"},
		{"tools", "report", `{` + id + `,"ok":true,"handler":"others"}`, "malformed_request"},
		{"tools", "report", `{` + id + `,` + id + `,"ok":true}`, "malformed_request"},
		{"tools", "report", `{` + id + `,"ok":true,"result":"` + strings.Repeat("x", wire.ReportMax) + `"}`, "request_too_large"},
		{"tools", "hello", `{"actions":["artifact.save","document.summarize"]}`, "not_permitted_for_role"},
		{"tools", "hello", `{"actions":["*"]}`, "malformed_request"},
		{"tools", "hello", `{"actions":"artifact.save"}`, "malformed_request"},
		{"tools", "hello", `{}`, "malformed_request"},
		{"tools", "hello", `{"actions":["artifact.save"],"id":"others"}`, "malformed_request"},
	} {
		r := f.ask(c.as, "effect", c.what, c.body)
		if r.Reply.Reason != c.code || !strings.HasPrefix(r.Text, `{"type":"io.ledgerd.error.v1"`) || r.header.Get("Ledgerd-Reason") != c.code {
			t.Errorf("%s %s %.80s: %s", c.as, c.what, c.body, r.Text)
		}
	}
	f.refusedToo(t, at, "tools", "malformed_request", "request_too_large", "not_permitted_for_role", "not_found")
	if r := f.ask("tools", "effect", "report", `{`+id+`,"ok":true}`); r.Text != ack {
		t.Errorf("the true report: %s", r.Text)
	}
}

// refusedToo waits until the log counts refusals of id for these codes, and
// checks that it holds nothing else after at.
func (f *front) refusedToo(t *testing.T, at uint64, id string, codes ...string) {
	t.Helper()
	eventually(t, "counted", func() bool {
		seen := map[string]bool{}
		for _, e := range f.since(at) {
			b, ok := e.Body.(*events.RequestsRefused)
			if !ok {
				t.Fatalf("the log has %s", e.Body.Type())
			}
			if b.ID == id {
				seen[b.Code] = true
			}
		}
		for _, code := range codes {
			if !seen[code] {
				return false
			}
		}
		return true
	})
}

// A report whose answer would go elsewhere is neither taken nor answered; one
// that asks for no answer is taken.
func TestReportsWithForeignReplySubjects(t *testing.T) {
	f := openFront(t)
	exec, _ := wire.DecodeExec(openOrder(t, f).Data)
	report := []byte(`{"operation_id":"` + exec.OperationID + `","ok":true}`)
	peer, err := f.conn("researcher").SubscribeSync("_INBOX.researcher.>")
	if err != nil {
		t.Fatal(err)
	}
	f.conn("researcher").Flush()
	at := f.head()
	for _, to := range []string{"_INBOX.researcher.x", "gov.main.control.admin.apply", "led.main.x", "_INBOX.tools", "_INBOX.tools.*", "_INBOX.toolsx.y"} {
		for _, name := range []string{"hello", "report"} {
			if err := f.conn("tools").PublishRequest("gov.main.effect.tools."+name, to, report); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.refusedToo(t, at, "tools", "bad_reply_subject")
	if m, err := peer.NextMsg(50 * time.Millisecond); err == nil {
		t.Errorf("somebody else got %s", m.Data)
	}
	if err := f.conn("tools").Publish("gov.main.effect.tools.report", report); err != nil {
		t.Fatal(err)
	}
	eventually(t, "taken", func() bool {
		all := f.since(at)
		return all[len(all)-1].Body.Type() == events.TypeRunFinished
	})
}

// Handlers have a rate of their own, which proposals do not use up.
func TestReportsHaveTheirOwnRate(t *testing.T) {
	f := openFront(t, func(c *natsapi.Config) { c.Rate, c.Burst = 1e-6, 100 })
	f.node.SlowReports(3)
	for i, want := range []string{ack, ack, ack, "rate_limited", "rate_limited"} {
		if r := f.ask("tools", "effect", "hello", `{"actions":["artifact.save"]}`); !strings.Contains(r.Text, want) {
			t.Errorf("hello %d: %s", i, r.Text)
		}
	}
}

// control.state is told to all but agents and observers: after every change and
// every few seconds.
func TestR64_ControlStateIsAnnounced(t *testing.T) {
	f := openFront(t)
	for _, id := range []string{"tools", "clerk", "admin"} {
		sub, err := f.conn(id).SubscribeSync("gov.main.control.state")
		if err != nil {
			t.Fatal(err)
		}
		f.conn(id).Flush()
		next := func() string {
			m, err := sub.NextMsg(30 * time.Second)
			if err != nil {
				t.Fatalf("%s hears nothing: %v", id, err)
			}
			return string(m.Data)
		}
		calm := next()
		if !strings.Contains(calm, `"type":"io.ledgerd.control_state.v1"`) || !strings.HasSuffix(calm, `"denies":[]}`) {
			t.Errorf("%s: %s", id, calm)
		}
		r := f.ask("admin", "control", "emergency.deny", `{"agent_id":"researcher","capabilities":["artifact.save"],"reason":"test"}`)
		if !r.Allowed {
			t.Fatal(r.Text)
		}
		denied := next()
		for denied == calm {
			denied = next()
		}
		if !strings.Contains(denied, `"agent_id":"researcher","capabilities":["artifact.save"]`) {
			t.Errorf("%s: %s", id, denied)
		}
		epoch := denied[strings.Index(denied, `"epoch":`)+len(`"epoch":`):]
		epoch = epoch[:strings.IndexByte(epoch, ',')]
		if r := f.ask("admin", "control", "emergency.lift", `{"epoch":`+epoch+`}`); !r.Allowed {
			t.Fatal(r.Text)
		}
		for s := next(); !strings.HasSuffix(s, `"denies":[]}`); s = next() {
			if s != denied {
				t.Errorf("%s: %s", id, s)
			}
		}
	}
	for _, id := range []string{"researcher", "watcher"} {
		sub, err := f.conn(id).SubscribeSync("gov.main.control.state")
		if err == nil {
			f.conn(id).Flush()
			_, err = sub.NextMsg(50 * time.Millisecond)
		}
		if err == nil {
			t.Errorf("%s hears control.state", id)
		}
	}
}

// What is on its way is listed to whoever sees its agent, page by page, and is
// gone from the list with its end.
func TestOpenRunsAreListedToThoseWhoSeeThem(t *testing.T) {
	f := openFront(t)
	exec, _ := wire.DecodeExec(openOrder(t, f).Data)
	if r := f.propose("researcher", "sop.submit", saveProcedure("q")); !r.Allowed {
		t.Fatal(r.Text)
	}
	list := func(as, body string) (out wire.Runs) {
		t.Helper()
		if r := f.ask(as, "query", "runs", body); json.Unmarshal([]byte(r.Text), &out) != nil || r.Reply.Reason != "" {
			t.Fatalf("%s: %s", as, r.Text)
		}
		return out
	}
	for _, as := range []string{"researcher", "report_manager", "admin"} {
		runs := list(as, `{}`).Runs
		if len(runs) != 2 || runs[0].RunID != exec.RunID || runs[0].SOPID != "p" || runs[1].SOPID != "q" || runs[0].State != "running" ||
			runs[0].Agent != "researcher" || runs[0].Steps != 1 || runs[0].Done != 0 || runs[0].StepID != "save" || runs[0].Decision >= runs[1].Decision {
			t.Errorf("%s is told %+v", as, runs)
		}
	}
	first := list("admin", `{"limit":1}`)
	if rest := list("admin", fmt.Sprintf(`{"from":%d}`, first.Next)); len(first.Runs) != 1 || len(rest.Runs) != 1 || rest.Next != 0 || rest.Runs[0].SOPID != "q" {
		t.Errorf("pages: %+v, %+v", first, rest)
	}
	if runs := list("formatter", `{}`).Runs; len(runs) != 0 {
		t.Errorf("formatter, who is beneath, is told %+v", runs)
	}
	if r := f.ask("tools", "query", "runs", `{}`); r.Reply.Reason != "not_permitted_for_role" {
		t.Errorf("a handler: %s", r.Text)
	}
	if r := f.ask("tools", "effect", "report", `{"operation_id":"`+exec.OperationID+`","ok":true}`); r.Text != ack {
		t.Fatal(r.Text)
	}
	if runs := list("researcher", `{}`).Runs; len(runs) != 1 || runs[0].SOPID != "q" {
		t.Errorf("after the first run's end: %+v", runs)
	}
}

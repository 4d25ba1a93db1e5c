package natsapi_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/natsapi"
)

// row is one line of testdata/abuse.jsonl: what others let through, and the
// reason it has here.
type row struct {
	ID, As, Operation, Encoding, Reason string
	Input                               json.RawMessage
}

func (r row) bytes(t *testing.T, key string) []byte {
	t.Helper()
	var text string
	var gen struct {
		Prefix, Unit, Suffix string
		N                    int
	}
	if r.Encoding == "gen" {
		if err := json.Unmarshal(r.Input, &gen); err != nil {
			t.Fatal(err)
		}
		return []byte(gen.Prefix + strings.Repeat(gen.Unit, gen.N) + gen.Suffix)
	}
	if err := json.Unmarshal(r.Input, &text); err != nil {
		t.Fatal(err)
	}
	if r.Encoding == "base64" {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return []byte(strings.ReplaceAll(text, "$KEY", key))
}

// TestAbuseTable sends each row and looks at what it left: exactly one denial
// of this reason by this agent (an SOP one more for each step), an unchanged
// tree, unchanged capabilities and an unchanged memory.
func TestAbuseTable(t *testing.T) {
	f := openFront(t)
	table, err := os.Open("testdata/abuse.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	rows := 0
	picture := func() string {
		text := ""
		for _, q := range []reply{f.ask("admin", "query", "agents", `{}`), f.ask("researcher", "query", "capabilities", `{}`)} {
			text += q.Text[:strings.LastIndex(q.Text, `"seq"`)]
		}
		return text
	}
	before := picture()
	for scanner := bufio.NewScanner(table); scanner.Scan(); rows++ {
		var r row
		if err := json.Unmarshal(scanner.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		at := f.head()
		got := f.send(r.As, "gov.main.propose."+r.As+"."+r.Operation, r.bytes(t, f.key(fmt.Sprintf("nobody-%d", rows))), nil)
		if got.Reply.Reason != r.Reason || got.Allowed {
			t.Errorf("%s: %s, want %s", r.ID, got.Text, r.Reason)
			continue
		}
		steps := 0
		for _, e := range f.since(at) {
			d, ok := e.Body.(*events.Decision)
			if !ok || d.Subject != r.As {
				t.Errorf("%s left %s by %s", r.ID, e.Body.Type(), e.Agent)
				continue
			}
			if d.StepID != "" {
				steps++
				continue
			}
			if d.Allowed || d.Reason != r.Reason || e.Seq != got.Seq || r.Reason == "malformed_request" && (d.Resource != "" || !e.Payload.IsZero()) {
				t.Errorf("%s left %+v", r.ID, d)
			}
		}
		if n := f.head() - at; n != uint64(1+steps) || r.ID == "SOP-01" && steps != 10 {
			t.Errorf("%s left %d events, %d of them steps", r.ID, n, steps)
		}
	}
	if after := picture(); after != before {
		t.Errorf("before %s\nafter %s", before, after)
	}
	if r := f.propose("report_manager", "memory.read", `{"namespace":"report","key":"retention_days"}`); value(r) != "30" || r.Record.Revision != 1 {
		t.Errorf("the record is now %s", r.Text)
	}
	t.Logf("%d rows", rows)
}

// TestSUB_05_ForeignReplySubjects: the answer goes nowhere, and the denial is
// the only trace.
func TestSUB_05_ForeignReplySubjects(t *testing.T) {
	f := openFront(t)
	peer, err := f.conn("formatter").SubscribeSync("_INBOX.formatter.>")
	if err != nil {
		t.Fatal(err)
	}
	f.conn("formatter").Flush()
	nc := f.conn("researcher")
	for _, to := range []string{
		"led.main.decision.researcher.allowed.memory.read", "gov.main.propose.report_manager.memory.read", "gov.main.control.admin.apply",
		"_INBOX.formatter.x", "_INBOX.researcher", "_INBOX.researcher2.x", "_INBOX.researcher.*", "_INBOX.researcher.>", "$JS.API.STREAM.DELETE.LEDGER_main", "_INBOX.>",
	} {
		at := f.head()
		if err := nc.PublishRequest("gov.main.propose.researcher.memory.read", to, []byte(`{"namespace":"project","key":"client_region"}`)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "judged "+to, func() bool { return f.head() > at })
		list := f.since(at)
		d, ok := list[0].Body.(*events.Decision)
		if !ok || len(list) != 1 || d.Reason != "bad_reply_subject" || d.Allowed || d.Resource != "" || d.Subject != "researcher" {
			t.Errorf("%s left %+v", to, list[0].Body)
		}
		// A query like it is dropped, without an event.
		if err := nc.PublishRequest("gov.main.query.researcher.capabilities", to, nil); err != nil {
			t.Fatal(err)
		}
	}
	at := f.head()
	want(t, f.propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`), "visible_from")
	if n := f.head() - at; n != 1 {
		t.Errorf("%d events after the queries, want the read's own", n)
	}
	if m, err := peer.NextMsg(50 * time.Millisecond); err == nil {
		t.Errorf("the peer got %s on %s", m.Data, m.Subject)
	}
	// No reply subject at all is fine: the outcome is found by operation id.
	if err := nc.Publish("gov.main.propose.researcher.memory.write", []byte(`{"owner_agent_id":"researcher","namespace":"notes","key":"quiet","value":1,"operation_id":"quiet-1"}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the write is found", func() bool {
		return strings.Contains(f.ask("researcher", "query", "decision", `{"operation_id":"quiet-1"}`).Text, `"owner_write"`)
	})
}

// TestSUB_01_StrangeSubjects: what the server delivers and no operation has is
// answered, counted, and judged by nobody.
func TestSUB_01_StrangeSubjects(t *testing.T) {
	f := openFront(t)
	at := f.head()
	strange := []string{"*", ">", "memory.*", "Memory.Read", "memory.read.x.y.z.q.w", strings.Repeat("a", 100), "mem\u00f6ry", "a\x7fb", "$SYS"}
	for _, tail := range strange {
		r := f.send("researcher", "gov.main.propose.researcher."+tail, []byte(`{}`), nil)
		if r.Reply.Reason != "malformed_request" || r.Seq != 0 || r.Type != "io.ledgerd.error.v1" {
			t.Errorf("%q: %s", tail, r.Text)
		}
	}
	eventually(t, "they are counted", func() bool {
		n := uint64(0)
		for _, e := range f.since(at) {
			switch b := e.Body.(type) {
			case *events.RequestsRefused:
				if b.ID == "researcher" && b.Code == "malformed_request" {
					n += b.Count
				}
			case *events.Decision:
				t.Fatalf("judged: %+v", b)
			}
		}
		return n == uint64(len(strange))
	})
	// Within the grammar, but no operation of this release: one decision each.
	for _, op := range []string{"restriction.take", "memory.wipe", "grant.lend", "emergency.deny", "apply", "agent.revoke"} {
		at := f.head()
		want(t, f.propose("researcher", op, `{}`), "unsupported_operation")
		if list := f.since(at); len(list) != 1 || list[0].Body.(*events.Decision).Operation != events.Unsupported {
			t.Errorf("%s left %+v", op, list)
		}
	}
}

// TestWhateverAnAgentSends: random bytes as subject tokens and bodies stop
// neither the writer nor the feed. The seed is printed; volume is in the log.
func TestWhateverAnAgentSends(t *testing.T) {
	f := openFront(t)
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewSource(seed))
	nc := f.conn("researcher")
	names := []string{"memory.read", "memory.write", "memory.delete", "action.authorize", "sop.validate", "agent.register", "capabilities", "explain", "events", "proof"}
	bodies := []string{
		`{"namespace":"project","key":"client_region","owner_agent_id":"report_manager"}`,
		`{"owner_agent_id":"researcher","namespace":"notes","key":"k","value":{"a":[1,2.5,null]},"expected_revision":1,"operation_id":"x"}`,
		`{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"memory.write","arguments":{"owner_agent_id":"researcher","namespace":"n","key":"k","value":1}}]}}`,
		`{"action":"artifact.save","arguments":{"path":"x"}}`, `{"agent_id":"k","capabilities":["memory.read"],"public_key":"U"}`, `{"seq":3}`,
	}
	const sent = 3000
	for i := range sent {
		subject := "gov.main." + []string{"propose", "query"}[random.Intn(2)] + ".researcher." + names[random.Intn(len(names))]
		if random.Intn(4) == 0 {
			subject = "gov.main.propose.researcher." + token(random) + "." + token(random)
		}
		body := []byte(bodies[random.Intn(len(bodies))])
		for range random.Intn(4) {
			switch at := random.Intn(len(body) + 1); random.Intn(3) {
			case 0:
				body = append(body[:at:at], append([]byte{byte(random.Intn(256))}, body[at:]...)...)
			case 1:
				body = body[:at]
			case 2:
				if at < len(body) {
					body[at] = byte(random.Intn(256))
				}
			}
		}
		if err := nc.PublishRequest(subject, "_INBOX.researcher.fuzz", body); err != nil {
			t.Fatalf("seed %d, message %d on %q: %v", seed, i, subject, err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	want(t, f.propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`), "visible_from")
	f.caughtUp()
	report := f.stop()
	t.Logf("seed %d: %d messages, %d events, %d decisions", seed, sent, report.events, report.decisions)
}

// token is random, but nothing that ends a protocol line.
func token(random *rand.Rand) string {
	b := make([]byte, 1+random.Intn(20))
	for i := range b {
		for b[i] = 0; b[i] == 0 || bytes.IndexByte([]byte(" \t\r\n."), b[i]) >= 0; {
			b[i] = byte(random.Intn(256))
		}
	}
	return string(b)
}

// TestTheLongestSubjectPublishes uses names as long as they may be.
func TestTheLongestSubjectPublishes(t *testing.T) {
	f := openFront(t)
	long := strings.Repeat("x", events.IDBytesMax)
	want(t, f.ask("admin", "control", "agent.register", `{"agent_id":"`+long+`","capabilities":["memory.read","memory.write"],"public_key":"`+f.key(long)+`"}`), "registered")
	key, namespace := strings.Repeat("k", events.KeyBytesMax), strings.Repeat("n", events.NamespaceBytesMax)
	body := `{"owner_agent_id":"` + long + `","namespace":"` + namespace + `","key":"` + key + `","value":"` + strings.Repeat("v", events.ValueBytesMax-2) + `","operation_id":"` + strings.Repeat("o", events.OperationIDBytesMax) + `"}`
	want(t, f.propose(long, "memory.write", body), "owner_write")
	want(t, f.propose(long, "memory.write", strings.Replace(body, `:"v`, `:"vv`, 1)), "operation_id_conflict")
	want(t, f.propose(long, "memory.write", strings.Replace(strings.Replace(body, `:"v`, `:"vv`, 1), `:"o`, `:"p`, 1)), "request_too_large")
	r := f.propose(long, "memory.read", `{"namespace":"`+namespace+`","key":"`+key+`"}`)
	want(t, r, "visible_from")
	if len(value(r)) != events.ValueBytesMax {
		t.Errorf("value of %d bytes", len(value(r)))
	}
	if n := len(f.stream()); uint64(n) != f.head() {
		t.Errorf("%d on the stream, %d in the log", n, f.head())
	}
	big := f.propose("researcher", "action.authorize", `{"action":"artifact.save","arguments":{"a":"`+strings.Repeat("a", events.RequestBytesMax)+`"}}`)
	want(t, big, "request_too_large")
}

// TestRepliesNeverCross: two agents use equal operation ids and reply
// tokens at once.
func TestRepliesNeverCross(t *testing.T) {
	f := openFront(t)
	type answer struct {
		Subject string `json:"subject"`
	}
	const n = 2000
	subs := map[string]*nats.Subscription{}
	for _, id := range []string{"researcher", "formatter"} {
		sub, err := f.conn(id).SubscribeSync("_INBOX." + id + ".same.*")
		if err != nil {
			t.Fatal(err)
		}
		subs[id] = sub
	}
	for i := range n {
		for id := range subs {
			body := fmt.Sprintf(`{"namespace":"project","key":"client_region","operation_id":"same-%d"}`, i)
			if err := f.conn(id).PublishRequest("gov.main.propose."+id+".memory.read", fmt.Sprintf("_INBOX.%s.same.%d", id, i), []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, sub := range subs {
		for range n {
			m, err := sub.NextMsg(20 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			var a answer
			if err := json.Unmarshal(m.Data, &a); err != nil || a.Subject != id {
				t.Fatalf("%s got %s", id, m.Data)
			}
		}
	}
}

// TestR91_R92_WhatAnswers asks every query as every role, and every lane with
// the wrong role's key, and compares with the table in docs/API.md.
func TestR91_R92_WhatAnswers(t *testing.T) {
	f := openFront(t)
	requests := map[string]string{
		"capabilities": `{"agent_id":"formatter"}`, "explain": `{"agent_id":"formatter","operation":"memory.read","request":{"namespace":"project","key":"client_region"}}`,
		"decision": `{"seq":3}`, "proof": `{"seq":3}`, "checkpoint": `{}`, "consistency": `{"from":1}`, "agents": `{}`, "principals": `{}`, "events": `{"from":1,"limit":5}`,
		"rotations": `{}`, "policy": `{}`, "history": `{}`, "resources": `{}`, "grants": `{}`, "denies": `{}`,
	}
	open := map[string]string{
		"formatter": "capabilities explain checkpoint consistency grants", // seq 3 is the admin's: not its own
		"clerk":     "checkpoint consistency", "tools": "checkpoint consistency",
		"auditor": "capabilities explain decision proof checkpoint consistency rotations agents principals events policy history resources grants denies",
		"watcher": "capabilities explain decision proof checkpoint consistency rotations agents principals events policy history resources grants denies",
		"admin":   "capabilities explain decision proof checkpoint consistency rotations agents principals events policy history resources grants denies",
	}
	for id, list := range open {
		for what, body := range requests {
			at := f.head()
			r := f.ask(id, "query", what, body)
			if answered, may := r.Type != "io.ledgerd.error.v1", strings.Contains(" "+list+" ", " "+what+" "); answered != may {
				t.Errorf("%s asks %s: %s", id, what, r.Text)
			}
			if f.head() != at {
				t.Errorf("the query %s left an event", what)
			}
		}
	}
	r := f.ask("auditor", "query", "events", `{"from":1,"limit":1000}`)
	var page struct {
		Events     []string
		Next, Head uint64
	}
	if err := json.Unmarshal([]byte(r.Text), &page); err != nil || uint64(len(page.Events)) != f.head() || page.Next != f.head()+1 || page.Head != f.head() {
		t.Errorf("%d events, next %d, head %d: %v", len(page.Events), page.Next, page.Head, err)
	}
	for i, e := range f.since(0) {
		if b, _ := e.Append(nil); page.Events[i] != string(b) {
			t.Errorf("event %d is not its bytes", i+1)
		}
	}
	for _, verb := range []string{"apply", "environment.set", "principal.register", "memory.load"} {
		at := f.head()
		if err := f.conn("clerk").PublishRequest("gov.main.control.clerk."+verb, "_INBOX.clerk.x", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		f.conn("clerk").Flush()
		eventually(t, "the server refuses "+verb, func() bool {
			for _, e := range f.since(at) {
				if b, ok := e.Body.(*events.TransportDenied); ok && b.ID == "clerk" && b.Code == natsapi.DeniedPublish {
					return true
				}
			}
			return false
		})
	}
	// The micro service answers its discovery to the admin, and to nobody else.
	sub, err := f.conn("admin").SubscribeSync("_INBOX.admin.discovery")
	if err == nil {
		err = f.conn("admin").PublishRequest("$SRV.INFO.ledgerd", sub.Subject, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	told := ""
	for range 2 { // one for what agents ask, one for control
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("$SRV.INFO: %v", err)
		}
		told += string(m.Data)
	}
	for _, lane := range []string{"propose.", "query.", "control.*.", "effect."} {
		if !strings.Contains(told, `"gov.main.`+lane+`\u003e"`) && !strings.Contains(told, `"gov.main.`+lane+`>"`) {
			t.Errorf("$SRV.INFO does not tell of %s: %s", lane, told)
		}
	}
}

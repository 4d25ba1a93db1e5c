package natsapi

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A connection of ledgerd's own that was cut connects anew, though the library
// reads the server's greeting with the connection locked: whoever sends then is
// answered again.
func TestR66_AnOwnConnectionThatWasCutComesBack(t *testing.T) {
	s, err := StartServer(ServerOptions{Ledger: "main", StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Lookup: func(string) (Identity, bool) { return Identity{}, false }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx) // which waits for a connection that is stuck
	}()
	flow := &inflow{server: s.ns}
	again := make(chan struct{}, 1)
	nc, err := s.Connect(WorkResponder, nats.InProcessServer(flow), nats.ReconnectHandler(func(*nats.Conn) { again <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	flow.nc.Store(nc)
	id, err := nc.GetClientID()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ns.DisconnectClientByID(id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-again:
	case <-time.After(30 * time.Second):
		t.Fatal("it does not connect anew")
	}
	if err := nc.FlushTimeout(30 * time.Second); err != nil {
		t.Error(err)
	}
}

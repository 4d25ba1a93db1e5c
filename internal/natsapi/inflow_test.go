package natsapi

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// startInflow has a bot, and a connection of ours that is sent to through a flow.
func startInflow(t *testing.T) (*bench, *inflow, *nats.Conn) {
	t.Helper()
	b := startBench(t)
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	flow := &inflow{server: b.ns}
	nc, err := b.Connect(WorkResponder, nats.InProcessServer(flow))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	flow.nc.Store(nc)
	return b, flow, nc
}

// LOAD: a sender faster than the handler is slowed down by the server; nothing
// it sent is dropped on the way to the handler, which counts each.
func TestWhatComesTooFastWaitsAndIsNotDropped(t *testing.T) {
	b, flow, nc := startInflow(t)
	const sent = 150_000
	var handled atomic.Int64
	sub, err := nc.Subscribe("gov.main.propose.>", func(*nats.Msg) {
		for end := time.Now().Add(5 * time.Microsecond); time.Now().Before(end); {
		}
		flow.handled.Add(1)
		handled.Add(1)
	})
	if err == nil {
		err = errors.Join(sub.SetPendingLimits(waitingMax+1024, -1), nc.Flush())
	}
	if err != nil {
		t.Fatal(err)
	}
	bot := b.client(t, "bot")
	for range sent {
		if err := bot.Publish("gov.main.propose.bot.memory.read", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if err := bot.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	for last := int64(-1); handled.Load() != last; time.Sleep(500 * time.Millisecond) {
		last = handled.Load()
	}
	if n := handled.Load(); n != sent || b.dropped() != 0 {
		t.Errorf("%d of %d handled, %d dropped", n, sent, b.dropped())
	}
}

// What an inflow waits for and nobody of ours will handle, it does not wait for
// again: the connection goes on being read.
func TestAnInflowDoesNotWaitForOthersMessages(t *testing.T) {
	b, _, nc := startInflow(t)
	var came atomic.Int64
	if _, err := nc.Subscribe("gov.main.propose.>", func(*nats.Msg) { came.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	bot := b.client(t, "bot")
	const sent = 4 * waitingMax
	for range sent {
		if err := bot.Publish("gov.main.propose.bot.memory.read", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all came though none was counted", func() bool { return came.Load() == sent })
}

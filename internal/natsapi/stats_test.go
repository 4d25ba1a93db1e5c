package natsapi

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// What one of ledgerd's own subscriptions cannot take is lost without an
// answer: it is counted, also when the subscription is gone.
func TestWhatOurOwnSubscriptionsDropIsCounted(t *testing.T) {
	b := startBench(t)
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	nc := b.own(t, WorkResponder)
	hold, taken := make(chan struct{}), make(chan struct{}, 100)
	sub, err := nc.Subscribe("gov.main.propose.>", func(*nats.Msg) {
		taken <- struct{}{}
		<-hold
	})
	if err == nil {
		err = sub.SetPendingLimits(4, 1<<20)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := b.dropped(); n != 0 {
		t.Fatalf("%d dropped before anything was sent", n)
	}
	bot := b.client(t, "bot")
	publish := func(n int) {
		for range n {
			if err := bot.Publish("gov.main.propose.bot.memory.read", []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		if err := bot.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	publish(1)
	<-taken // it is being handled, and four at most may wait
	publish(20)
	lost := uint64(0)
	eventually(t, "at least 16 of 20 counted as dropped", func() bool { lost = b.dropped(); return lost >= 16 })
	close(hold)
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if n := b.dropped(); n != lost || n > 20 {
		t.Errorf("%d dropped once the subscription is gone, %d before", n, lost)
	}
}

package natsapi

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// unsent takes answers and does not send them.
type unsent struct{}

func (unsent) Publish(string, []byte) error { return nil }
func (unsent) PublishMsg(*nats.Msg) error   { return nil }

// What it costs to turn one request of a flood away, the message itself and the
// sending of the answer left out.
func BenchmarkRefuse(b *testing.B) {
	dir := b.TempDir()
	if err := ledger.Init(dir, ledger.InitOptions{}); err != nil {
		b.Fatal(err)
	}
	l, err := ledger.Open(ledger.Options{Dir: dir, QueueMax: 8}) // nobody judges what is queued
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := l.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	m := request{"gov.main.propose.bot.action.authorize", "_INBOX.bot.load.1234", nil, unsent{}}
	for _, at := range []struct {
		code reason.Code
		rate limit
	}{{reason.RateLimited, limit{1, 0}}, {reason.Overloaded, limit{1e9, 1e9}}} {
		b.Run(string(at.code), func(b *testing.B) {
			a := &api{ledger: l, name: "main", refused: NewRefusals(16), turnedAway: newReasonTally(), rates: newRates(at.rate, at.rate, l.Root)}
			for range 16 { // until the queue is full
				a.judge(m, wire.Propose)
			}
			b.ReportAllocs()
			for b.Loop() {
				a.judge(m, wire.Propose)
			}
			if a.turnedAway.read()[string(at.code)] == 0 {
				b.Error("nothing was refused")
			}
		})
	}
}

package natsapi

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// unsent is a request whose answer is put together and not sent.
type unsent struct{ subject, reply string }

func (r unsent) Subject() string { return r.subject }
func (r unsent) Reply() string   { return r.reply }
func (r unsent) Data() []byte    { return nil }
func (r unsent) Respond(b []byte, opts ...micro.RespondOpt) error {
	m := &nats.Msg{Subject: r.reply, Data: b}
	for _, opt := range opts {
		opt(m)
	}
	return nil
}

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
	m := unsent{"gov.main.propose.bot.action.authorize", "_INBOX.bot.load.1234"}
	for _, at := range []struct {
		code reason.Code
		rate limit
	}{{reason.RateLimited, limit{1, 0}}, {reason.Overloaded, limit{1e9, 1e9}}} {
		b.Run(string(at.code), func(b *testing.B) {
			a := &api{ledger: l, name: "main", refused: NewRefusals(16), turnedAway: newReasonTally(), rates: newRates(at.rate, at.rate, l.Root)}
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

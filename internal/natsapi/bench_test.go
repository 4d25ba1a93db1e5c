package natsapi

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// One event through the feed, and the same message through the bare client.
func BenchmarkFeed(b *testing.B) {
	b.Run("feed", func(b *testing.B) {
		f := &fed{bench: startBench(b), log: newLog(b, b.N)}
		f.feed = f.newFeed(FeedOptions{})
		b.ResetTimer()
		runFeed(b, f.feed)
		f.caughtUp(b)
	})
	b.Run("bare", func(b *testing.B) {
		f := &fed{bench: startBench(b), log: newLog(b, b.N)}
		f.feed = f.newFeed(FeedOptions{})
		js, err := jetstream.New(f.own(b, FeedWriter), jetstream.WithPublishAsyncMaxPending(feedWindow))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := js.CreateStream(testCtx(b), f.feed.config()); err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		for _, event := range f.log.events {
			if _, err := js.PublishMsgAsync(&nats.Msg{Subject: "led.main.x", Data: event}, jetstream.WithStallWait(deadline)); err != nil {
				b.Fatal(err)
			}
		}
		<-js.PublishAsyncComplete()
	})
}

package natsapi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// halted waits until the feed has stopped with ErrDisagrees and text.
func halted(t testing.TB, f *Feed, text string) {
	t.Helper()
	eventually(t, "the feed halts", func() bool { return f.Status().Halted != nil })
	if err := f.Status().Halted; !errors.Is(err, ErrDisagrees) || !strings.Contains(err.Error(), text) {
		t.Errorf("halted with %v, want %q", err, text)
	}
}

// 10,000 events, with more appended all the while: each in the stream once, in
// order, at its seq.
func TestR74_EveryEventOnceInOrder(t *testing.T) {
	f := startFed(t, 0)
	for range 100 {
		f.log.grow(t, 100)
		f.feed.Notify()
	}
	f.caughtUp(t)
	f.check(t)
	if n := f.feed.Status().Published; n != 10_000 {
		t.Errorf("published %d", n)
	}
}

// What is not durable is not published, however much of it there is.
func TestR74_NeverAheadOfTheLog(t *testing.T) {
	f := startFed(t, 10)
	f.log.mu.Lock()
	for range 50 {
		f.log.append(t)
	}
	f.log.durable = 30
	f.log.reads = func(seq uint64) error {
		if seq > 30 {
			t.Errorf("event %d read, which is not durable", seq)
		}
		return nil
	}
	f.log.mu.Unlock()
	for range 100 {
		f.feed.Notify()
	}
	f.caughtUp(t)
	f.check(t)
}

// The server goes away in the middle of a burst and comes back: nothing is lost
// or doubled.
func TestR74_ServerRestartMidBurst(t *testing.T) {
	b := &bench{reg: newRegistry()}
	o := b.options(t)
	var current atomic.Pointer[Server]
	start := func() *Server {
		s, err := StartServer(o)
		if err != nil {
			t.Fatal(err)
		}
		current.Store(s)
		return s
	}
	f := &fed{bench: b, log: newLog(t, 3000)}
	b.Server = start()
	f.feed = f.newFeed(FeedOptions{Connect: func(opts ...nats.Option) (*nats.Conn, error) {
		return current.Load().Connect(FeedWriter, opts...)
	}})
	runFeed(t, f.feed)
	for range 4 {
		at := f.feed.Status().Published
		eventually(t, "the feed moves", func() bool { return f.feed.Status().Published > at })
		shutdown(t, current.Load())
		f.log.grow(t, 1000)
		b.Server = start()
	}
	t.Cleanup(func() { shutdown(t, current.Load()) })
	f.caughtUp(t)
	f.check(t)
}

// JetStream's directory is lost, or an older copy of it is put back: the stream
// is filled from the log.
func TestR74_StreamLostOrOld(t *testing.T) {
	b := &bench{reg: newRegistry()}
	o := b.options(t)
	old := t.TempDir()
	f := &fed{bench: b, log: newLog(t, 500)}
	round := func(published func()) {
		t.Helper()
		s, err := StartServer(o)
		if err != nil {
			t.Fatal(err)
		}
		b.Server = s
		f.feed = f.newFeed(FeedOptions{})
		stop := runFeed(t, f.feed)
		f.caughtUp(t)
		f.check(t)
		stop()
		shutdown(t, s)
		published()
	}
	round(func() {
		if err := os.CopyFS(filepath.Join(old, "copy"), os.DirFS(o.StoreDir)); err != nil {
			t.Fatal(err)
		}
	})
	f.log.grow(t, 500)
	round(func() {
		if err := os.RemoveAll(filepath.Join(o.StoreDir, "jetstream")); err != nil {
			t.Fatal(err)
		}
	})
	round(func() { o.StoreDir = filepath.Join(old, "copy") })
	round(func() {})
}

// The stream is deleted under a running feed: it is made anew and filled from
// seq 1.
func TestR74_StreamDeletedWhileRunning(t *testing.T) {
	f := startFed(t, 400)
	js := f.breaker(t)
	if err := js.DeleteStream(testCtx(t), "LEDGER_main"); err != nil {
		t.Fatal(err)
	}
	f.log.grow(t, 100)
	f.feed.Notify()
	eventually(t, "the stream is back", func() bool {
		_, err := f.js.Stream(testCtx(t), "LEDGER_main")
		return err == nil
	})
	f.caughtUp(t)
	f.check(t)
}

// An acknowledgement is lost: the event is in the stream though the feed does
// not know. It looks, finds its own event, and goes on.
func TestR74_AckLost(t *testing.T) {
	f := startFed(t, 10)
	for range 20 {
		f.log.mu.Lock()
		f.log.append(t)
		seq := uint64(len(f.log.events))
		event := f.log.events[seq-1]
		f.log.mu.Unlock()
		// What the feed would have sent, before the feed does.
		subject, header, err := f.log.source().Meta(seq, event)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.js.PublishMsg(testCtx(t), &nats.Msg{Subject: subject, Header: header, Data: event}, jetstream.WithExpectLastSequence(seq-1)); err != nil {
			t.Fatal(err)
		}
		f.log.grow(t, 3)
		f.feed.Notify()
		f.caughtUp(t)
	}
	f.check(t)
}

// Two feeds at once, as after a botched restart: still each event once.
func TestR74_TwoFeeds(t *testing.T) {
	f := startFed(t, 1)
	second := f.newFeed(FeedOptions{})
	runFeed(t, second)
	for range 20 {
		f.log.grow(t, 50)
		f.feed.Notify()
		second.Notify()
	}
	f.caughtUp(t)
	eventually(t, "the second feed knows", func() bool { return second.Status().Published == 1001 })
	f.check(t)
}

// Someone else wrote to the stream: the feed halts and says so, whether it is at
// rest, behind, or starting.
func TestR74_ForeignMessageHalts(t *testing.T) {
	f := startFed(t, 10)
	if _, err := f.js.Publish(testCtx(t), "led.main.decision.bot.allowed", []byte(`{"v":1,"seq":11}`)); err != nil {
		t.Fatal(err)
	}
	f.log.grow(t, 5)
	f.feed.Notify()
	halted(t, f.feed, "message 11 is not the event of that seq")
	if f.feed.Status().Published != 10 {
		t.Errorf("published %d", f.feed.Status().Published)
	}

	again := f.newFeed(FeedOptions{})
	if err := again.CheckTail(testCtx(t)); !errors.Is(err, ErrDisagrees) {
		t.Errorf("the check says %v", err)
	}
	if err := again.Run(testCtx(t)); !errors.Is(err, ErrDisagrees) {
		t.Errorf("ran: %v", err)
	}
	info, err := f.js.Stream(testCtx(t), "LEDGER_main")
	if err != nil || info.CachedInfo().State.LastSeq != 11 {
		t.Errorf("the halted feed wrote on: %v %+v", err, info.CachedInfo().State)
	}
}

// A foreign message that is followed by the log's own events: found too by a
// feed that knows how far it had come, and at the next start if it is not far back.
func TestR74_ForeignMessageBelowTheTail(t *testing.T) {
	for _, behind := range []int{1, feedWindow + 50} {
		f := startFed(t, 10)
		f.log.mu.Lock()
		for range behind + 1 {
			f.log.append(t)
		}
		foreign := slices.Clone(f.log.events[10:])
		f.log.mu.Unlock()
		foreign[0] = []byte("{}")
		for _, data := range foreign {
			if _, err := f.js.Publish(testCtx(t), "led.main.x.y.z", data); err != nil {
				t.Fatal(err)
			}
		}
		f.log.grow(t, 5)
		f.feed.Notify()
		halted(t, f.feed, "message 11 is not")
		if behind > 1 {
			continue
		}
		if err := f.newFeed(FeedOptions{}).CheckTail(testCtx(t)); !errors.Is(err, ErrDisagrees) {
			t.Errorf("the next start says %v", err)
		}
	}
}

// A foreign message in the middle of a burst: nothing of ours is stored behind
// it, or the halt would be forgotten at the next start.
func TestR74_ForeignMessageMidBurst(t *testing.T) {
	f := startFed(t, 10)
	var once sync.Once
	f.log.mu.Lock()
	f.log.reads = func(seq uint64) error {
		if seq == 700 {
			once.Do(func() {
				if _, err := f.js.Publish(testCtx(t), "led.main.x.y.z", []byte("{}")); err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}
	f.log.mu.Unlock()
	f.log.grow(t, 2000)
	f.feed.Notify()
	halted(t, f.feed, "is not the event of that seq")
	stream, err := f.js.Stream(testCtx(t), "LEDGER_main")
	if err != nil {
		t.Fatal(err)
	}
	last, err := stream.GetMsg(testCtx(t), stream.CachedInfo().State.LastSeq)
	if err != nil || string(last.Data) != "{}" {
		t.Errorf("behind the foreign message: %s %v", last.Data, err)
	}
	if err := f.newFeed(FeedOptions{}).CheckTail(testCtx(t)); !errors.Is(err, ErrDisagrees) {
		t.Errorf("the next start says %v", err)
	}
}

// A foreign message between the look at the tail and the first publish.
func TestR74_ForeignMessageBeforeTheFirst(t *testing.T) {
	f := &fed{bench: startBench(t), log: newLog(t, 5)}
	js := f.writer(t)
	feed := f.newFeed(FeedOptions{})
	var once sync.Once
	feed.src.Meta = func(seq uint64, b []byte) (string, nats.Header, error) {
		once.Do(func() {
			if _, err := js.Publish(testCtx(t), "led.main.x.y.z", []byte("{}")); err != nil {
				t.Error(err)
			}
		})
		return f.log.source().Meta(seq, b)
	}
	runFeed(t, feed)
	halted(t, feed, "message 1 is not")
	stream, err := js.Stream(testCtx(t), "LEDGER_main")
	if err != nil || stream.CachedInfo().State.LastSeq != 1 {
		t.Errorf("wrote behind it: %v %+v", err, stream.CachedInfo().State)
	}
}

// A stream whose events all grew too old goes on behind them; one that was
// emptied otherwise does not.
func TestR74_EmptyStream(t *testing.T) {
	f := startFed(t, 10)
	f.stop() // it would set the limits right
	js := f.breaker(t)
	c := f.feed.config()
	aged := c
	aged.MaxAge, aged.Duplicates = 100*time.Millisecond, 100*time.Millisecond
	if _, err := js.UpdateStream(testCtx(t), aged); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is dropped", func() bool {
		s, err := js.Stream(testCtx(t), "LEDGER_main")
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
	f.log.grow(t, 10)
	again := f.newFeed(FeedOptions{MaxAge: aged.MaxAge})
	stop := runFeed(t, again)
	eventually(t, "it goes on", func() bool { return again.Status().Published == 20 })
	stop()
	eventually(t, "all is dropped", func() bool {
		s, err := js.Stream(testCtx(t), "LEDGER_main")
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
	if _, err := js.UpdateStream(testCtx(t), c); err != nil {
		t.Fatal(err)
	}
	if err := f.newFeed(FeedOptions{}).CheckTail(testCtx(t)); !errors.Is(err, ErrDisagrees) || !strings.Contains(err.Error(), "emptied") {
		t.Errorf("the check says %v", err)
	}
}

// The stream is ahead of the log, as when the log was restored from a copy: the
// start is refused and a feed halts.
func TestR74_StreamAheadHalts(t *testing.T) {
	f := startFed(t, 50)
	restored := f.newFeed(FeedOptions{})
	restored.src.Durable = func() uint64 { return 40 }
	err := restored.CheckTail(testCtx(t))
	if !errors.Is(err, ErrDisagrees) || !strings.Contains(err.Error(), "the stream ends at 50, the log at 40") {
		t.Errorf("the check says %v", err)
	}
	runFeed(t, restored)
	halted(t, restored, "the stream ends at 50, the log at 40")
	f.check(t)
}

// Another log's stream, even if its tail cannot be told apart, and a stream made
// otherwise are refused.
func TestR74_StrangeStreamHalts(t *testing.T) {
	for name, change := range map[string]func(*jetstream.StreamConfig){
		"origin":   func(c *jetstream.StreamConfig) { c.Metadata = map[string]string{streamOriginKey: "elsewhere"} },
		"none":     func(c *jetstream.StreamConfig) { c.Metadata = nil },
		"subjects": func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "led.other.>") },
		"deletes":  func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"purges":   func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		"limit":    func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 },
		"first":    func(c *jetstream.StreamConfig) { c.FirstSeq = 7 },
		"memory":   func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"copies":   func(c *jetstream.StreamConfig) { c.RePublish = &jetstream.RePublish{Source: ">", Destination: "gov.>"} },
		"direct":   func(c *jetstream.StreamConfig) { c.AllowDirect = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fed{bench: startBench(t), log: newLog(t, 5)}
			feed := f.newFeed(FeedOptions{})
			c := feed.config()
			change(&c)
			if _, err := f.writer(t).CreateStream(testCtx(t), c); err != nil {
				t.Fatal(err)
			}
			if err := feed.CheckTail(testCtx(t)); !errors.Is(err, ErrDisagrees) {
				t.Errorf("the check says %v", err)
			}
			if err := feed.Run(testCtx(t)); !errors.Is(err, ErrDisagrees) {
				t.Errorf("ran: %v", err)
			}
		})
	}
}

// How much the stream keeps may change from start to start; what is dropped is
// the oldest, and the feed goes on.
func TestR74_LimitsMayChange(t *testing.T) {
	f := &fed{bench: startBench(t), log: newLog(t, 200)}
	ctx := testCtx(t)
	for _, o := range []FeedOptions{{}, {MaxBytes: 20 << 10}, {MaxBytes: 1 << 30, MaxAge: 24 * 3600e9}} {
		f.feed = f.newFeed(o)
		stop := runFeed(t, f.feed)
		f.caughtUp(t)
		f.log.grow(t, 100)
		f.feed.Notify()
		f.caughtUp(t)
		stream, err := f.writer(t).Stream(ctx, "LEDGER_main")
		if err != nil {
			t.Fatal(err)
		}
		info := stream.CachedInfo()
		if want := f.feed.config(); info.Config.MaxBytes != want.MaxBytes || info.Config.MaxAge != want.MaxAge {
			t.Errorf("%+v: stream keeps %+v", o, info.Config)
		}
		if info.State.LastSeq != f.log.source().Durable() {
			t.Errorf("%+v: %+v", o, info.State)
		}
		last, err := stream.GetMsg(ctx, info.State.LastSeq)
		if err != nil || string(last.Data) != string(f.log.events[info.State.LastSeq-1]) {
			t.Errorf("tail: %v", err)
		}
		stop()
	}
}

// A log that cannot be read, or leaves a gap, ends Run with its fault; nothing
// beyond it is published.
func TestR74_UnreadableLogEndsRun(t *testing.T) {
	broken := errors.New("checksum mismatch")
	for name, change := range map[string]func(*FeedSource){
		"error": func(s *FeedSource) {
			each := s.Events
			s.Events = func(from, to uint64, fn func(uint64, []byte) error) error {
				return each(from, to, func(seq uint64, b []byte) error {
					if seq == 8 {
						return broken
					}
					return fn(seq, b)
				})
			}
		},
		"gap": func(s *FeedSource) {
			each := s.Events
			s.Events = func(from, to uint64, fn func(uint64, []byte) error) error {
				return each(from, to, func(seq uint64, b []byte) error {
					if seq == 8 {
						return nil
					}
					return fn(seq, b)
				})
			}
		},
		"short": func(s *FeedSource) {
			each := s.Events
			s.Events = func(from, to uint64, fn func(uint64, []byte) error) error { return each(from, min(to, 7), fn) }
		},
		"meta": func(s *FeedSource) {
			meta := s.Meta
			s.Meta = func(seq uint64, b []byte) (string, nats.Header, error) {
				if seq == 8 {
					return "", nil, broken
				}
				return meta(seq, b)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fed{bench: startBench(t), log: newLog(t, 20)}
			feed := f.newFeed(FeedOptions{})
			change(&feed.src)
			err := feed.Run(testCtx(t))
			var source *sourceError
			if !errors.As(err, &source) || feed.Status().Halted == nil {
				t.Errorf("ran: %v", err)
			}
			stream, err := f.writer(t).Stream(testCtx(t), "LEDGER_main")
			if err != nil || stream.CachedInfo().State.LastSeq > 7 {
				t.Errorf("stream: %v %+v", err, stream.CachedInfo().State)
			}
		})
	}
}

// A log that its owner has closed ends the feed and raises no alarm.
func TestR74_AClosedLogIsNoFault(t *testing.T) {
	f := &fed{bench: startBench(t), log: newLog(t, 20)}
	feed := f.newFeed(FeedOptions{})
	each := feed.src.Events
	feed.src.Events = func(from, to uint64, fn func(uint64, []byte) error) error {
		return errors.Join(each(from, min(to, 7), fn), store.ErrClosed)
	}
	if err := feed.Run(testCtx(t)); err != nil || feed.Status().Halted != nil {
		t.Errorf("ran: %v, halted: %v", err, feed.Status().Halted)
	}
	stream, err := f.writer(t).Stream(testCtx(t), "LEDGER_main")
	if err != nil || stream.CachedInfo().State.LastSeq > 7 {
		t.Errorf("stream: %v %+v", err, stream.CachedInfo().State)
	}
}

// The largest event there is fits with the longest subject and headers.
func TestR74_LargestEventPublishes(t *testing.T) {
	f := &fed{bench: startBench(t), log: newLog(t, 0)}
	id := strings.Repeat("i", events.IDBytesMax)
	e := events.Event{
		Seq: 1, Prev: events.GenesisHash(testOrigin), ID: [16]byte{6: 0x70, 8: 0x80}, Agent: id,
		Body: &events.AgentUpdated{AgentID: id},
	}
	body := e.Body.(*events.AgentUpdated)
	b, err := e.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) < events.EventBytesMax-70 {
		body.Capabilities = append(body.Capabilities, strings.Repeat("c", min(64, events.EventBytesMax-len(b)-5)))
		if b, err = e.Append(nil); err != nil {
			t.Fatal(err)
		}
	}
	f.log.events, f.log.durable = [][]byte{b}, 1
	f.feed = f.newFeed(FeedOptions{})
	meta := f.feed.src.Meta
	f.feed.src.Meta = func(seq uint64, b []byte) (string, nats.Header, error) {
		subject, h, err := meta(seq, b)
		h.Set("traceparent", strings.Repeat("t", 55))
		return subject, h, err
	}
	runFeed(t, f.feed)
	f.caughtUp(t)
	f.check(t)
}

// CheckStream looks at a stored stream before anything serves: none, a fitting
// and a lagging one are fine, one ahead is not.
func TestR74_CheckStreamBeforeServing(t *testing.T) {
	b := &bench{reg: newRegistry()}
	o := b.options(t)
	f := &fed{bench: b, log: newLog(t, 30)}
	feed := FeedOptions{Ledger: "main", Origin: testOrigin}
	check := func(durable uint64) error {
		src := f.log.source()
		src.Durable = func() uint64 { return durable }
		return CheckStream(testCtx(t), o, feed, src)
	}
	if err := check(30); err != nil {
		t.Errorf("no stream: %v", err)
	}
	if entries, err := os.ReadDir(o.StoreDir); err != nil || len(entries) > 0 {
		t.Errorf("the check wrote %v, %v", entries, err)
	}
	s, err := StartServer(o)
	if err != nil {
		t.Fatal(err)
	}
	b.Server = s
	f.feed = f.newFeed(FeedOptions{})
	stop := runFeed(t, f.feed)
	f.caughtUp(t)
	stop()
	shutdown(t, s)
	for durable, ok := range map[uint64]bool{30: true, 31: true, 29: false, 0: false} {
		if err := check(durable); (err == nil) != ok || err != nil && !errors.Is(err, ErrDisagrees) {
			t.Errorf("log at %d, stream at 30: %v", durable, err)
		}
	}
	f.log.events[29] = []byte("{}")
	if err := check(30); !errors.Is(err, ErrDisagrees) {
		t.Errorf("another event 30: %v", err)
	}
}

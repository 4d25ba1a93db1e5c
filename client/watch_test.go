package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/natsapi"
)

// history makes n chained events.
func history(t *testing.T, n int) [][]byte {
	t.Helper()
	const origin = "ledgerd.local/main/test/1"
	prev := events.GenesisHash(origin)
	var log [][]byte
	for seq := uint64(1); seq <= uint64(n); seq++ {
		e := events.Event{Seq: seq, Prev: prev, Time: events.Time(seq), Agent: events.System}
		e.ID[6], e.ID[8], e.ID[15] = 0x70, 0x80, byte(seq)
		e.Body = &events.LedgerOpened{Rules: 1, Build: "test"}
		if seq == 1 {
			e.Body = &events.LedgerCreated{Format: events.Format, Origin: origin, Ledger: "main", AdminID: "admin"}
		}
		b, err := e.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		log, prev = append(log, b), events.LeafHash(b)
	}
	return log
}

// outlet publishes whatever log a test gives it, true or not.
type outlet struct {
	mu  sync.Mutex
	log [][]byte
	*natsapi.Feed
}

func (o *outlet) set(log [][]byte) {
	o.mu.Lock()
	o.log = log
	o.mu.Unlock()
	o.Notify()
}

func (d *door) publish(t *testing.T, log [][]byte) *outlet {
	t.Helper()
	o := &outlet{log: log}
	o.Feed = natsapi.NewFeed(natsapi.FeedOptions{
		Ledger: "main", Origin: "test",
		Connect: func(opts ...nats.Option) (*nats.Conn, error) { return d.Connect(natsapi.FeedWriter, opts...) },
	}, natsapi.FeedSource{
		Durable: func() uint64 { o.mu.Lock(); defer o.mu.Unlock(); return uint64(len(o.log)) },
		Events: func(from, to uint64, fn func(uint64, []byte) error) error {
			for seq := from; seq <= to; seq++ {
				o.mu.Lock()
				b := o.log[seq-1]
				o.mu.Unlock()
				if err := fn(seq, b); err != nil {
					return err
				}
			}
			return nil
		},
		Meta: func(_ uint64, b []byte) (string, nats.Header, error) {
			e, err := events.Parse(b)
			if err != nil {
				return "led.main.unknown.sys.unknown", nil, nil
			}
			return e.StreamSubject("main"), nil, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return o
}

var errEnough = errors.New("enough")

// collect watches from seq from until the event last was handed out.
func collect(ctx context.Context, c *client.Client, from, last uint64) (got [][]byte, err error) {
	err = c.Watch(ctx, from, func(e client.Event) error {
		got = append(got, bytes.Clone(e.Bytes))
		if e.Seq == last {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return got, err
}

func observed(t *testing.T, log [][]byte) (*door, *outlet, *client.Client) {
	t.Helper()
	d := openDoor(t, map[string]string{"watcher": natsapi.RoleObserver})
	o := d.publish(t, log)
	return d, o, d.connect(t, client.Options{ID: "watcher"})
}

func TestR71_WatchHandsOutTheExactBytesInOrder(t *testing.T) {
	log := history(t, 1000)
	_, _, c := observed(t, log)
	for _, from := range []uint64{0, 1, 2, 999, 1000} {
		got, err := collect(deadline(t), c, from, 1000)
		if err != nil {
			t.Fatalf("from %d: %v", from, err)
		}
		if want := log[max(from, 1)-1:]; !slicesEqual(got, want) {
			t.Errorf("from %d: %d events, want %d, or other bytes", from, len(got), len(want))
		}
	}
}

func slicesEqual(a, b [][]byte) bool {
	return bytes.Equal(bytes.Join(a, []byte("\n")), bytes.Join(b, []byte("\n")))
}

func TestWatchFollowsAcrossLostConnections(t *testing.T) {
	log := history(t, 60)
	d, o, c := observed(t, log[:10])
	var got [][]byte
	err := c.Watch(deadline(t), 1, func(e client.Event) error {
		got = append(got, bytes.Clone(e.Bytes))
		switch {
		case e.Seq == 60:
			return errEnough
		case e.Seq%10 == 0:
			d.Disconnect("watcher")
			o.set(log[:e.Seq+10])
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if !slicesEqual(got, log) {
		t.Errorf("%d events, want each of 60 once", len(got))
	}
}

// R74: what a tampered outlet shows is found by seq or by prev.
func TestR74_WatchFindsATamperedStream(t *testing.T) {
	alter := func(seq int, change func([]byte) []byte) func([][]byte) [][]byte {
		return func(log [][]byte) [][]byte {
			out := append([][]byte(nil), log...)
			out[seq-1] = change(out[seq-1])
			return out
		}
	}
	for name, c := range map[string]struct {
		tamper func([][]byte) [][]byte
		err    error
		says   string
		after  int // events handed out before
	}{
		"an event left out": {func(log [][]byte) [][]byte { return append(append([][]byte(nil), log[:4]...), log[5:]...) },
			client.ErrGap, "expected event 5, found 6", 4},
		"an event twice": {func(log [][]byte) [][]byte { return append(append([][]byte(nil), log[:5]...), log[4:]...) },
			client.ErrForked, "expected event 6, found 5", 5},
		"an event changed": {alter(5, func(b []byte) []byte { return bytes.Replace(b, []byte(`"test"`), []byte(`"tesu"`), 1) }),
			client.ErrForked, "event 6 says its predecessor is", 5},
		"no event": {alter(5, func([]byte) []byte { return []byte(`{"v":1}`) }), client.ErrForked, "expected event 5, found bytes", 4},
		"another log's event 1": {alter(1, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("/test/1"), []byte("/test/2")) }),
			client.ErrForked, "event 1 says its predecessor is", 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, cl := observed(t, c.tamper(history(t, 9)))
			got, err := collect(deadline(t), cl, 1, 9)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v: %s", err, c.err, c.says)
			}
			if len(got) != c.after {
				t.Errorf("%d events handed out, want %d", len(got), c.after)
			}
		})
	}
}

func TestResumeChecksWhatIsRemembered(t *testing.T) {
	log := history(t, 9)
	_, _, c := observed(t, log)
	last := uint64(0)
	err := c.Resume(deadline(t), 4, events.LeafHash(log[3]), func(e client.Event) error {
		last = e.Seq
		if e.Seq == 9 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || last != 9 {
		t.Errorf("resume: %v at %d", err, last)
	}
	err = c.Resume(deadline(t), 4, events.LeafHash([]byte("another")), func(client.Event) error { return errEnough })
	if !errors.Is(err, client.ErrForked) {
		t.Errorf("another past: %v", err)
	}
}

// A stream that was lost is filled anew from the log; a follower ahead of it
// waits, and goes on where it was.
func TestWatchWaitsForAStreamBehindItsCursor(t *testing.T) {
	log := history(t, 20)
	_, o, c := observed(t, log[:3])
	if _, err := collect(deadline(t), c, 1, 3); err != nil {
		t.Fatal(err)
	}
	ctx := deadline(t)
	started, done := make(chan struct{}), make(chan error, 1)
	var got [][]byte
	go func() {
		close(started)
		var err error
		got, err = collect(ctx, c, 15, 20)
		done <- err
	}()
	<-started
	for n := 4; n <= 20; n++ {
		o.set(log[:n])
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !slicesEqual(got, log[14:]) {
		t.Errorf("%d events, want 15 to 20", len(got))
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	_, _, c := observed(t, history(t, 2))
	ctx, cancel := context.WithCancel(context.Background())
	err := c.Watch(ctx, 1, func(e client.Event) error {
		if e.Seq == 2 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), fmt.Sprint("at seq ", 3)) {
		t.Fatal(err)
	}
}

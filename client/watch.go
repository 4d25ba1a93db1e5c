package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/events"
)

// The observer's way to the stream: the JetStream API of the stream's account
// as it is imported under this prefix.
const streamAPI = "LJS.API"

// Errors that end a Watch; what was expected and what came is in the text.
var (
	// ErrGap: an event is missing from the stream.
	ErrGap = errors.New("the stream has a gap")
	// ErrForked: an event does not continue the one before it, or is none.
	ErrForked = errors.New("the stream is not one log")
)

// Event is one event of the log as it stands in the stream.
type Event struct {
	events.Event
	Hash  Hash   // leaf hash of Bytes, the prev of the event after it
	Bytes []byte // the exact bytes
}

// ParseEvent reads the exact bytes of an event, as a page of Events holds them.
func ParseEvent(b []byte) (Event, error) {
	e, err := events.Parse(b)
	if err != nil {
		return Event{}, err
	}
	return Event{Event: e, Hash: events.LeafHash(b), Bytes: b}, nil
}

// Watch follows the stream of the ledger from the event with seq from (0 or 1:
// from the first) and calls fn with each event, in order, from this goroutine.
// A lost connection is taken up where it was lost. Watch returns when ctx ends,
// with the error of fn, with ErrPermissionViolation for an id that may not
// follow the stream, and with ErrGap or ErrForked where the stream is not the
// continuation of what was handed out before.
func (c *Client) Watch(ctx context.Context, from uint64, fn func(Event) error) error {
	return c.watch(ctx, &follower{next: max(from, 1), fn: fn})
}

// Resume is Watch from the event after seq, whose leaf hash the caller
// remembers: the next event must continue it.
func (c *Client) Resume(ctx context.Context, seq uint64, hash Hash, fn func(Event) error) error {
	return c.watch(ctx, &follower{next: seq + 1, prev: hash, fn: fn})
}

// follower is the cursor of one Watch.
type follower struct {
	ledger string
	next   uint64 // seq of the event to come
	prev   Hash   // its prev; zero where that is not known
	fn     func(Event) error
	fresh  bool // nothing was handed out since the consumer at hand was made
	missed int  // consumers in a row whose events began after next
}

// missedMax is how many consumers in a row must begin beyond the event to come
// before it counts as missing; one may just have lost it with a connection.
const missedMax = 3

// errAgain ends a session that is to be followed by another.
var errAgain = errors.New("resume")

func (c *Client) watch(ctx context.Context, f *follower) error {
	f.ledger = c.ledger
	guarded, release := c.guard(ctx, streamAPI+".")
	defer release()
	js, err := jetstream.NewWithAPIPrefix(c.nc, streamAPI)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	for attempt := 0; ; attempt++ {
		before := f.next
		err := c.follow(guarded, js, f)
		if !errors.Is(err, errAgain) {
			return fmt.Errorf("watch %s at seq %d: %w", c.ledger, f.next, err)
		}
		if f.next > before {
			attempt = 0
		}
		if !sleep(guarded, backoff(attempt)) {
			return fmt.Errorf("watch %s at seq %d: %w", c.ledger, f.next, context.Cause(guarded))
		}
	}
}

// follow reads the stream through one ephemeral consumer until something needs
// another one.
func (c *Client) follow(ctx context.Context, js jetstream.JetStream, f *follower) error {
	create, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	stream := "LEDGER_" + c.ledger
	name := NewOperationID()
	consumer, err := js.CreateConsumer(create, stream, jetstream.ConsumerConfig{
		Name: name, AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: f.next,
		InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return c.streamError(ctx, err)
	}
	defer c.drop(js, stream, name)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(256), jetstream.PullExpiry(10*time.Second),
		jetstream.PullHeartbeat(2*time.Second), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return c.streamError(ctx, err)
	}
	defer messages.Stop()
	f.fresh = true
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return c.streamError(ctx, err)
		}
		if err := f.take(m.Subject(), m.Data()); err != nil {
			return err
		}
	}
}

// streamError is the end of ctx or of the connection, what the server refuses
// for good, or errAgain: a stream that is not there (yet), a consumer or a
// connection that went away.
func (c *Client) streamError(ctx context.Context, err error) error {
	var refused *jetstream.APIError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.nc.IsClosed():
		return c.closedCause()
	case errors.As(err, &refused) && refused.Code == 400:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return errAgain
}

// drop deletes a consumer that is not needed any more; one that cannot be
// deleted now goes by itself when it has been inactive for a while.
func (c *Client) drop(js jetstream.JetStream, stream, name string) {
	if c.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ctx, stream, name)
	}
}

// take checks that b is the event to come and hands it out.
func (f *follower) take(subject string, b []byte) error {
	e, err := events.Parse(b)
	if err != nil {
		return fmt.Errorf("%w: expected event %d, found bytes that are none: %w", ErrForked, f.next, err)
	}
	switch {
	case e.Seq > f.next && f.missed < missedMax:
		f.missed++
		return errAgain
	case e.Seq > f.next:
		return fmt.Errorf("%w: expected event %d, found %d", ErrGap, f.next, e.Seq)
	case e.Seq < f.next && f.fresh:
		return nil // the stream ended before our cursor: the server began at its end
	case e.Seq < f.next:
		return fmt.Errorf("%w: expected event %d, found %d again", ErrForked, f.next, e.Seq)
	}
	expected := f.prev
	if created, ok := e.Body.(*events.LedgerCreated); ok && e.Seq == 1 {
		expected = events.GenesisHash(created.Origin)
	}
	if !expected.IsZero() && e.Prev != expected {
		return fmt.Errorf("%w: event %d says its predecessor is %s, expected %s", ErrForked, e.Seq, e.Prev, expected)
	}
	if s := e.StreamSubject(f.ledger); s != subject {
		return fmt.Errorf("%w: event %d stands under %q, expected %q", ErrForked, e.Seq, subject, s)
	}
	hash := events.LeafHash(b)
	if err := f.fn(Event{Event: e, Hash: hash, Bytes: b}); err != nil {
		return err
	}
	f.next, f.prev, f.fresh, f.missed = e.Seq+1, hash, false, 0
	return nil
}

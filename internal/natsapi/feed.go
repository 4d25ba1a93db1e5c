package natsapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// ErrDisagrees says that the stream holds what the log does not: the log was
// restored from an old copy, or someone else wrote. There is no repair in
// place; a person decides which of the two is the evidence.
var ErrDisagrees = errors.New("the stream disagrees with the log")

// FeedSource is the log as the feed sees it.
type FeedSource struct {
	// Durable is the last seq that is synced; it never falls.
	Durable func() uint64
	// Events calls fn for each event from … to in order, with its exact bytes,
	// which fn does not keep, and returns fn's error as it is.
	Events func(from, to uint64, fn func(seq uint64, event []byte) error) error
	// Meta is the subject and the headers an event is published with; the
	// Nats-Msg-Id among them is its own.
	Meta func(seq uint64, event []byte) (subject string, header nats.Header, err error)
}

// FeedOptions configure NewFeed.
type FeedOptions struct {
	Ledger string
	Origin string // of the log, kept with the stream: another log's stream is refused
	// Connect opens the FeedWriter's connection; called again when it is lost.
	Connect func(...nats.Option) (*nats.Conn, error)
	// MaxBytes and MaxAge bound what the stream keeps; zero is no bound. The
	// log keeps everything.
	MaxBytes int64
	MaxAge   time.Duration
	Log      *slog.Logger // default: nowhere
}

// FeedStatus is where the feed stands.
type FeedStatus struct {
	Published uint64 // the stream holds the log up to here
	Halted    error  // why it stopped for good; wraps ErrDisagrees, or is of the log
	Fault     error  // what it is retrying after, nil when all is well
}

// Feed copies the log to the stream: the same bytes, each event once, in order,
// its stream sequence its seq.
//
// It keeps no cursor. The stream's tail is the cursor, and every publish names
// the sequence it must follow, so that a lost acknowledgement, a second
// publisher or a late retry cannot make a hole or a double. After any trouble
// the feed looks at the tail again: if that is the log's event it goes on
// behind it, if the stream is gone it is made and filled anew, and if the tail
// is anything else the feed halts.
//
// Run is the only goroutine that publishes; the other methods are safe to call
// at any time.
type Feed struct {
	o      FeedOptions
	src    FeedSource
	log    *slog.Logger
	stream []string // its name, as a header
	poke   chan struct{}

	nc   *nats.Conn // Run's own, with what belongs to it
	js   jetstream.JetStream
	lost chan struct{} // closed with nc

	mu     sync.Mutex
	status FeedStatus
}

const (
	feedWindow  = 512             // publishes without an answer yet
	feedAnswers = 64              // publishes that one answer is asked for
	feedChunk   = 1024            // events read from the log in one go
	feedTimeout = 5 * time.Second // of the answer to a publish
	feedIdle    = time.Second     // between looks at the log without a Notify
	feedWaitMin = 20 * time.Millisecond
	feedWaitMax = 5 * time.Second

	streamMessageMax    = events.EventBytesMax + 16<<10 // an event and its headers
	streamDuplicates    = 100 * time.Millisecond        // the least: nothing relies on ids being told apart, and each is remembered so long
	streamConsumerIdle  = time.Hour                     // a reader gone for longer starts again from its own cursor
	streamOriginKey     = "ledgerd.origin"
	streamServerKeyPart = "_nats." // metadata the server adds itself
)

// NewFeed makes a feed; Run starts it.
func NewFeed(o FeedOptions, src FeedSource) *Feed {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Feed{o: o, src: src, log: log, stream: []string{StreamName(o.Ledger)}, poke: make(chan struct{}, 1)}
}

// Notify says that Durable has grown. It never blocks.
func (f *Feed) Notify() {
	select {
	case f.poke <- struct{}{}:
	default:
	}
}

// Status returns where the feed stands.
func (f *Feed) Status() FeedStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Feed) set(change func(*FeedStatus)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
}

// Run follows the log until ctx ends (nil), the stream disagrees with it
// (ErrDisagrees) or it cannot be read. Any other trouble is retried.
func (f *Feed) Run(ctx context.Context) error {
	defer f.disconnect()
	wait := feedWaitMin
	for {
		before := f.Status().Published
		err := f.follow(ctx)
		var source *sourceError
		switch {
		case ctx.Err() != nil, errors.Is(err, store.ErrClosed): // the end of a ledger that is being stopped
			return nil
		case errors.Is(err, ErrDisagrees), errors.As(err, &source):
			f.set(func(s *FeedStatus) { s.Halted = err })
			f.log.Error("feed halted", "error", err)
			return err
		}
		f.set(func(s *FeedStatus) { s.Fault = err })
		f.log.Warn("feed interrupted", "error", err)
		if f.Status().Published > before {
			wait = feedWaitMin
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, feedWaitMax)
	}
}

// sourceError is a fault of the log, not of the stream.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the log for the feed: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// follow finds the tail and publishes what comes behind it, until something is
// amiss.
func (f *Feed) follow(ctx context.Context) error {
	if err := f.connect(); err != nil {
		return err
	}
	tail, err := f.look(ctx, true)
	if err != nil {
		return err
	}
	f.set(func(s *FeedStatus) { s.Published, s.Fault = tail, nil })
	return f.pump(ctx, tail)
}

func (f *Feed) connect() error {
	if f.nc != nil && !f.nc.IsClosed() {
		return nil
	}
	lost := make(chan struct{})
	nc, err := f.o.Connect(nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(lost) }))
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(feedTimeout))
	if err != nil {
		nc.Close()
		return fmt.Errorf("jetstream context: %w", err)
	}
	f.nc, f.js, f.lost = nc, js, lost
	return nil
}

func (f *Feed) disconnect() {
	if f.nc != nil {
		f.nc.Close()
	}
}

// CheckTail looks whether the stream, if there is one, fits the log; the error
// wraps ErrDisagrees if not. It changes nothing, is for use before Run, and is
// best asked before anything is written to the log.
func (f *Feed) CheckTail(ctx context.Context) error {
	if err := f.connect(); err != nil {
		return err
	}
	defer f.disconnect()
	_, err := f.look(ctx, false)
	return err
}

// CheckStream does what Feed.CheckTail does for the stream stored in
// server.StoreDir, with a server of its own that does not listen.
func CheckStream(ctx context.Context, o ServerOptions, f FeedOptions, src FeedSource) error {
	if _, err := os.Stat(filepath.Join(o.StoreDir, "jetstream")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	o.Listen = ""
	o.Lookup = func(string) (Identity, bool) { return Identity{}, false }
	s, err := StartServer(o)
	if err != nil {
		return err
	}
	f.Connect = func(opts ...nats.Option) (*nats.Conn, error) { return s.Connect(FeedWriter, opts...) }
	err = NewFeed(f, src).CheckTail(ctx)
	return errors.Join(err, s.Shutdown(ctx))
}

// look returns the last sequence of the stream after making sure that it is the
// ledger's stream and that its tail is the log's event of that seq. A missing
// stream is made if create is set, else counts as empty. Each call to the server
// has the client library's own timeout, five seconds, if ctx has no deadline.
func (f *Feed) look(ctx context.Context, create bool) (uint64, error) {
	stream, err := f.open(ctx, create)
	if stream == nil || err != nil {
		return 0, err
	}
	state := stream.CachedInfo().State
	if durable := f.src.Durable(); state.LastSeq > durable {
		return 0, fmt.Errorf("%w: the stream ends at %d, the log at %d", ErrDisagrees, state.LastSeq, durable)
	}
	if state.Msgs == 0 && state.LastSeq > 0 && stream.CachedInfo().Config.MaxAge == 0 {
		return 0, fmt.Errorf("%w: the stream was emptied", ErrDisagrees)
	}
	// All that came since the last acknowledgement is compared, and in any case
	// the last few: behind them, each event holds the hash of the one before.
	from := state.LastSeq - min(state.LastSeq, feedWindow) + 1
	if p := f.Status().Published; p > 0 {
		from = min(from, p+1)
	}
	for seq := max(from, state.FirstSeq); seq <= state.LastSeq; seq++ {
		if err := f.compare(ctx, stream, seq); err != nil {
			return 0, err
		}
	}
	return state.LastSeq, nil
}

// config is the stream as it has to be. No direct gets: they are a way to read
// that nobody is given.
func (f *Feed) config() jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:              StreamName(f.o.Ledger),
		Description:       "every event of the ledger, byte for byte; the sequence is the event's seq",
		Subjects:          []string{"led." + f.o.Ledger + ".>"},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardOld,
		Replicas:          1,
		FirstSeq:          1,
		DenyDelete:        true,
		DenyPurge:         true,
		MaxConsumers:      maxConsumers,
		MaxMsgs:           -1,
		MaxMsgsPerSubject: -1,
		MaxBytes:          -1,
		MaxAge:            f.o.MaxAge,
		MaxMsgSize:        streamMessageMax,
		Duplicates:        streamDuplicates,
		ConsumerLimits:    jetstream.StreamConsumerLimits{InactiveThreshold: streamConsumerIdle},
		Metadata:          map[string]string{streamOriginKey: f.o.Origin},
	}
	if f.o.MaxBytes > 0 {
		c.MaxBytes = f.o.MaxBytes
	}
	if c.MaxAge > 0 && c.MaxAge < c.Duplicates {
		c.Duplicates = c.MaxAge
	}
	return c
}

// open finds the stream and refuses one that is not as config makes it, save what
// it is called and how much it keeps and admits, which is adjusted. A missing
// stream is made. Without create nothing is changed, and a missing stream is nil.
func (f *Feed) open(ctx context.Context, create bool) (jetstream.Stream, error) {
	want := f.config()
	stream, err := f.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !create {
			return nil, nil
		}
		stream, err = f.js.CreateStream(ctx, want)
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", want.Name, err)
	}
	got := stream.CachedInfo().Config
	got.Metadata = ownMetadata(got.Metadata)
	if reflect.DeepEqual(got, want) {
		return stream, nil
	}
	got.Description, got.MaxBytes, got.MaxAge, got.Duplicates = want.Description, want.MaxBytes, want.MaxAge, want.Duplicates
	got.MaxConsumers, got.ConsumerLimits, got.MaxMsgSize = want.MaxConsumers, want.ConsumerLimits, want.MaxMsgSize
	if !reflect.DeepEqual(got, want) {
		if origin := got.Metadata[streamOriginKey]; origin != f.o.Origin {
			return nil, fmt.Errorf("%w: stream %s is of the log %q", ErrDisagrees, want.Name, origin)
		}
		return nil, fmt.Errorf("%w: stream %s was not made by ledgerd, or was changed", ErrDisagrees, want.Name)
	}
	if !create {
		return stream, nil
	}
	if stream, err = f.js.UpdateStream(ctx, want); err != nil {
		return nil, fmt.Errorf("adjust the limits of stream %s: %w", want.Name, err)
	}
	return stream, nil
}

func ownMetadata(m map[string]string) map[string]string {
	own := map[string]string{}
	for k, v := range m {
		if !strings.HasPrefix(k, streamServerKeyPart) {
			own[k] = v
		}
	}
	return own
}

// compare makes sure that message seq of the stream is event seq of the log.
func (f *Feed) compare(ctx context.Context, stream jetstream.Stream, seq uint64) error {
	msg, err := stream.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		info, err := stream.Info(ctx)
		if err != nil {
			return fmt.Errorf("look for message %d: %w", seq, err)
		}
		if info.State.FirstSeq > seq {
			return nil // the stream's limits have dropped it meanwhile
		}
		return fmt.Errorf("%w: message %d is missing", ErrDisagrees, seq)
	}
	if err != nil {
		return fmt.Errorf("read message %d of the stream: %w", seq, err)
	}
	same := false
	err = f.src.Events(seq, seq, func(_ uint64, event []byte) error {
		same = bytes.Equal(event, msg.Data)
		return nil
	})
	if err != nil {
		return &sourceError{err}
	}
	if !same {
		return fmt.Errorf("%w: message %d is not the event of that seq", ErrDisagrees, seq)
	}
	return nil
}

// inflight is a publish whose answer is waited for.
type inflight struct {
	seq uint64
	ack jetstream.PubAckFuture
}

// pump publishes the events behind tail, and then those that follow, with at
// most feedWindow unanswered. An answer is asked for one of every feedAnswers and
// for the last: it is for all before it too, since each names the sequence and
// the id of the one before, so that behind one that fails all fail. (The sequence
// alone would let the second of two in where another's message took the place of
// the first.) It returns at the first answer that is an error.
func (f *Feed) pump(ctx context.Context, tail uint64) error {
	var window []inflight
	answered := tail
	oldest := func() error {
		p := window[0]
		window, answered = window[1:], p.seq
		return f.await(ctx, p)
	}
	next, before := tail+1, ""
	for {
		if to := min(f.src.Durable(), next+feedChunk-1); next <= to {
			err := f.read(next, to, func(seq uint64, event []byte) error {
				for len(window) > 0 && seq-answered > feedWindow {
					if err := oldest(); err != nil {
						return err
					}
				}
				m, err := f.message(seq, event, before)
				if err != nil {
					return err
				}
				next, before = seq+1, m.Header.Get(nats.MsgIdHdr)
				if seq%feedAnswers != 0 && seq != to {
					return f.send(seq, m)
				}
				p, err := f.publish(seq, m)
				window = append(window, p)
				return err
			})
			if err != nil {
				return err
			}
			continue
		}
		if len(window) > 0 {
			if err := oldest(); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.lost:
			return nats.ErrConnectionClosed
		case <-f.poke:
		case <-time.After(feedIdle):
		}
	}
}

// read calls fn for the events from … to, and tells a fault of the log from an
// error of fn's.
func (f *Feed) read(from, to uint64, fn func(seq uint64, event []byte) error) error {
	next := from
	var own error
	err := f.src.Events(from, to, func(seq uint64, event []byte) error {
		if seq != next {
			return fmt.Errorf("event %d where %d was due", seq, next)
		}
		next++
		own = fn(seq, event)
		return own
	})
	switch {
	case own != nil:
		return own
	case err != nil:
		return &sourceError{err}
	case next != to+1:
		return &sourceError{fmt.Errorf("event %d is missing", next)}
	}
	return nil
}

// message is event seq, to follow the message with the id before; empty for the
// one behind a tail that was looked at. It holds on to event.
func (f *Feed) message(seq uint64, event []byte, before string) (*nats.Msg, error) {
	subject, header, err := f.src.Meta(seq, event)
	if err != nil {
		return nil, &sourceError{fmt.Errorf("event %d: %w", seq, err)}
	}
	if header == nil {
		header = nats.Header{}
	}
	header[nats.ExpectedStreamHdr] = f.stream
	header[nats.ExpectedLastSeqHdr] = []string{strconv.FormatUint(seq-1, 10)}
	if before != "" {
		header[nats.ExpectedLastMsgIdHdr] = []string{before}
	}
	return &nats.Msg{Subject: subject, Header: header, Data: event}, nil
}

// send publishes a message that is not answered. As with publish, the client has
// copied the message when it returns, so that the event is free again.
func (f *Feed) send(seq uint64, m *nats.Msg) error {
	if err := f.nc.PublishMsg(m); err != nil {
		return fmt.Errorf("publish event %d: %w", seq, err)
	}
	return nil
}

// publish is send with an answer, to be waited for.
func (f *Feed) publish(seq uint64, m *nats.Msg) (inflight, error) {
	ack, err := f.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return inflight{}, fmt.Errorf("publish event %d: %w", seq, err)
	}
	return inflight{seq, ack}, nil
}

// await waits for the answer to p and checks it.
func (f *Feed) await(ctx context.Context, p inflight) error {
	select {
	case ack := <-p.ack.Ok():
		if ack.Sequence != p.seq {
			return fmt.Errorf("%w: event %d became message %d", ErrDisagrees, p.seq, ack.Sequence)
		}
		f.set(func(s *FeedStatus) { s.Published = p.seq })
		return nil
	case err := <-p.ack.Err():
		return fmt.Errorf("publish event %d: %w", p.seq, err)
	case <-f.lost:
		return fmt.Errorf("publish event %d: %w", p.seq, nats.ErrConnectionClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

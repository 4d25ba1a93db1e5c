package natsapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/time/rate"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
)

// Config says how a ledger is served.
type Config struct {
	StoreDir  string // of the stream
	Listen    string // host:port, port 0 for any free one
	TLS       *tls.Config
	Rate      float64 // tokens per agent and second; 0 = no limit, for trees neither
	Burst     int     // the dearest request must fit
	TreeRate  float64 // tokens per tree and second, of all its agents together; 0 = ten times Rate
	TreeBurst int     // 0 = ten times Burst
	Version   string  // semantic version, shown by the micro service
	NoFeed    bool    // for measurements: no stream
	Log       *slog.Logger
}

// Node is a ledger being served: server, handlers and feed.
type Node struct {
	ledger   *ledger.Ledger
	server   *Server
	services []micro.Service
	feed     *Feed
	api      *api
	denied   *Refusals
	kept     tally // of denied, since the start
	log      *slog.Logger

	cancel   context.CancelFunc
	running  sync.WaitGroup
	failed   chan error
	counting sync.Mutex  // of summary, and of what follows
	counted  events.Time // up to when refusals have been summarised
}

// Look returns a check for ledger.Options.Look: the stream in storeDir, if
// there is one, must not be ahead of the log or hold another event at its end.
func Look(storeDir string, log *slog.Logger) func(*store.Store) error {
	return func(s *store.Store) error {
		b, err := s.Event(1)
		if err != nil {
			return err
		}
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		created, ok := e.Body.(*events.LedgerCreated)
		if !ok {
			return fmt.Errorf("event 1 is %s", e.Body.Type())
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return CheckStream(ctx,
			ServerOptions{Ledger: created.Ledger, StoreDir: storeDir, Log: log},
			FeedOptions{Ledger: created.Ledger, Origin: s.Origin(), Log: log},
			FeedSource{Durable: s.Durable, Events: s.Events, Meta: meta(created.Ledger, s.Origin())})
	}
}

// Start serves l, whose Run must not have been called yet: it sets the hooks,
// starts the server, and answers as soon as Run does.
func Start(l *ledger.Ledger, c Config) (*Node, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.TreeRate == 0 {
		c.TreeRate = 10 * c.Rate
	}
	if c.TreeBurst == 0 {
		c.TreeBurst = 10 * c.Burst
	}
	n := &Node{ledger: l, denied: NewRefusals(refusalsMax), kept: newTally(DeniedAuth, DeniedPublish, DeniedSubscribe), log: c.Log, failed: make(chan error, 1), counted: l.Time()}
	n.api = &api{
		ledger: l, name: l.Name(), refused: NewRefusals(refusalsMax), turnedAway: newReasonTally(), folds: make(chan struct{}, 1),
		rates:   newRates(limit{rate.Limit(c.Rate), c.Burst}, limit{rate.Limit(c.TreeRate), c.TreeBurst}, l.Root),
		reports: newRates(limit{0, reportBurst}, limit{reportRate, reportBurst}, l.Root),
	}
	if c.Rate > 0 {
		n.api.reports.one.rate = reportRate
	}
	var err error
	n.server, err = StartServer(ServerOptions{
		Ledger: l.Name(), StoreDir: c.StoreDir, Listen: c.Listen, TLS: c.TLS, Log: c.Log,
		Lookup: func(key string) (Identity, bool) {
			i, ok := l.Lookup(key)
			return Identity{ID: i.ID, Role: i.Role, Actions: i.Actions, Groups: i.Groups, Root: i.Root, Revoked: i.Revoked}, ok
		},
		OnDenied: func(d Denied) {
			n.kept.add(d.Code)
			n.denied.Add(d.ID, d.Code, time.Now())
		},
	})
	if err != nil {
		return nil, err
	}
	if err := n.connect(c); err != nil {
		return nil, errors.Join(err, n.Close(context.Background()))
	}
	return n, nil
}

const refusalsMax = 1024 // ids kept apart in one second's summary

func (n *Node) connect(c Config) error {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	work, err := n.server.Connect(WorkDispatcher)
	if err != nil {
		return err
	}
	announce, err := n.announcer(work)
	if err != nil {
		return err
	}
	out := &dispatcher{nc: work, prefix: "gov." + n.ledger.Name() + ".", fault: n.log.Error, state: n.ledger.ControlState()}
	n.ledger.Hooks = ledger.Hooks{Cut: func(id string) { n.server.Disconnect(id) }, Note: announce, Dispatch: out.exec, State: out.announce}
	n.running.Go(func() { out.repeat(ctx) })
	if !c.NoFeed {
		n.feed = NewFeed(FeedOptions{
			Ledger: n.ledger.Name(), Origin: n.ledger.Origin(), Log: c.Log, MaxBytes: defaultMaxStore / 10 * 9,
			Connect: func(o ...nats.Option) (*nats.Conn, error) { return n.server.Connect(FeedWriter, o...) },
		}, FeedSource{Durable: n.ledger.Durable, Events: n.ledger.Events, Meta: meta(n.ledger.Name(), n.ledger.Origin())})
		n.ledger.Hooks.Durable = func(uint64) { n.feed.Notify() }
		n.running.Go(func() { n.follow(ctx) })
	}
	for part, lanes := range map[Part][]string{WorkResponder: {"propose", "query"}, ControlResponder: {"control", "effect"}, FeedResponder: {"query"}} {
		if err := n.serve(part, lanes, c.Version); err != nil {
			return err
		}
	}
	n.running.Go(func() { n.summarise(ctx) })
	n.running.Go(func() {
		n.server.guard(ctx, func(id string) { n.api.count(id, reason.Overloaded) })
	})
	n.running.Go(func() {
		select {
		case err := <-n.server.Failed():
			n.fail(fmt.Errorf("nats server: %w", err))
		case <-ctx.Done():
		}
	})
	return nil
}

// answerBytes is how much of a batch's answers goes to the server at once: more
// than it reads at once, or it would make itself a larger or a smaller buffer all
// the time.
const answerBytes = 128 << 10

// serve registers the micro service on one of the responders: in WORK there are
// two instances, so that control requests and reports are not behind what agents
// send on any connection. In FEED, where nothing may discover services, it only
// answers queries.
func (n *Node) serve(part Part, lanes []string, version string) error {
	flow := &inflow{server: n.server.ns}
	nc, err := n.server.Connect(part, nats.InProcessServer(flow), nats.WriteBufferSize(answerBytes))
	if err != nil {
		return err
	}
	flow.nc.Store(nc)
	handlers := map[string]func(request){"propose": n.api.propose, "query": n.api.query, "control": n.api.control, "effect": n.api.effect}
	gov := "gov." + n.ledger.Name() + "."
	if part == FeedResponder {
		return n.serveFeed(nc, gov+"query.>")
	}
	service, err := micro.AddService(nc, micro.Config{
		Name: "ledgerd", Version: version, Description: "governed memory and actions for agents", QueueGroup: "ledgerd",
		Metadata:     map[string]string{"ledger": n.ledger.Name(), "origin": n.ledger.Origin()},
		StatsHandler: func(*micro.Endpoint) any { return map[string]uint64{"seq": n.ledger.Durable()} },
	})
	if err != nil {
		return fmt.Errorf("micro service: %w", err)
	}
	n.services = append(n.services, service)
	for _, lane := range lanes {
		handle := handlers[lane]
		subject := gov + lane + ".>"
		if lane == "control" {
			subject = gov + "control.*.>"
		}
		if err := service.AddEndpoint(lane, micro.HandlerFunc(func(m micro.Request) {
			handle(request{m.Subject(), m.Reply(), m.Data(), nc})
			flow.handled.Add(1)
		}), micro.WithEndpointSubject(subject),
			micro.WithEndpointPendingLimits(pendingMessages, pendingBytes)); err != nil {
			return fmt.Errorf("endpoint %s: %w", lane, err)
		}
	}
	return nc.Flush()
}

// serveFeed answers queries of observers and auditors.
func (n *Node) serveFeed(nc *nats.Conn, subject string) error {
	_, err := nc.Subscribe(subject, func(m *nats.Msg) { n.api.query(request{m.Subject, m.Reply, m.Data, nc}) })
	if err != nil {
		return err
	}
	return nc.Flush()
}

// announcer publishes signed checkpoints in both accounts.
func (n *Node) announcer(work *nats.Conn) (func([]byte), error) {
	feed, err := n.server.Connect(FeedDispatcher)
	if err != nil {
		return nil, err
	}
	subject := "gov." + n.ledger.Name() + ".checkpoint"
	return func(signed []byte) {
		if err := errors.Join(work.Publish(subject, signed), feed.Publish(subject, signed)); err != nil {
			n.log.Warn("checkpoint not announced", "error", err)
		}
	}, nil
}

// follow runs the feed. A feed that halts is an alarm, not an end: the log is
// the truth and goes on, and Health says so.
func (n *Node) follow(ctx context.Context) {
	if err := n.feed.Run(ctx); err != nil {
		n.log.Error("the feed has halted: the stream is not the log; nothing more is published", "error", err)
	}
}

// summarise turns what was refused into one event a second per id and code.
func (n *Node) summarise(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			n.summary()
			return
		case <-tick.C:
			n.summary()
		}
	}
}

func (n *Node) summary() {
	n.counting.Lock() // Drain is in another goroutine
	defer n.counting.Unlock()
	from, to := n.counted, n.ledger.Time()
	for _, r := range n.denied.Drain() {
		n.note(&events.TransportDenied{Refusals: refusals(r, from, to)})
	}
	for _, r := range n.api.refused.Drain() {
		n.note(&events.RequestsRefused{Refusals: refusals(r, from, to)})
	}
	n.counted = to
}

func (n *Node) note(b events.Body) {
	if code := n.ledger.Note(b); code != "" && code != reason.NotKnownCommitted {
		n.log.Error("a summary of refusals was not recorded", "reason", string(code))
	}
}

// refusals dates what was counted between two moments in the ledger's own time, which
// no wall clock turns back.
func refusals(r Refusal, from, to events.Time) events.Refusals {
	at := func(t time.Time) events.Time {
		return max(from, to-events.Time(max(0, time.Since(t)).Microseconds()))
	}
	of := events.Refusals{ID: r.ID, Code: r.Code, Count: r.Count, First: at(r.First)}
	if of.Last = of.First; r.Count > 1 {
		of.Last = max(of.First, at(r.Last))
	}
	return of
}

func meta(name, origin string) func(uint64, []byte) (string, nats.Header, error) {
	source := "/ledgers/" + name
	return func(seq uint64, b []byte) (string, nats.Header, error) {
		l, err := events.ParseLabel(b)
		if err != nil {
			return "", nil, err
		}
		id := origin + "/" + strconv.FormatUint(seq, 10)
		values := [...]string{id, "1.0", id, source, "io.ledgerd." + string(l.Type) + ".v1", l.Time.String(), "application/json"}
		header := make(nats.Header, 12) // the feed adds what the message must follow
		for i, name := range [len(values)]string{"Nats-Msg-Id", "ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time", "ce-datacontenttype"} {
			header[name] = values[i : i+1 : i+1]
		}
		return l.Subject(name), header, nil
	}
}

func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default:
	}
}

// Failed receives the fault after which the node serves no more.
func (n *Node) Failed() <-chan error { return n.failed }

// URL is where clients connect.
func (n *Node) URL() string { return n.server.URL() }

// Health says what keeps the node from full service; empty when nothing does.
func (n *Node) Health() []string {
	var faults []string
	for _, c := range n.Checks() {
		if c.Status != ledger.CheckOK {
			faults = append(faults, c.Detail)
		}
	}
	return faults
}

// Feed is where the stream stands; the zero status without a feed.
func (n *Node) Feed() FeedStatus {
	if n.feed == nil {
		return FeedStatus{}
	}
	return n.feed.Status()
}

// Drain takes no more requests. What is accepted is still answered.
func (n *Node) Drain() {
	n.summary()
	for _, s := range n.services {
		if err := s.Stop(); err != nil {
			n.log.Warn("micro service", "error", err)
		}
	}
}

// Close ends the node; call Drain and let the ledger's Run return before.
func (n *Node) Close(ctx context.Context) error {
	if n.cancel != nil {
		n.cancel()
	}
	n.running.Wait()
	return n.server.Shutdown(ctx)
}

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
)

// overloadFigures are what Options.Overload measures.
var overloadFigures = []figure{
	{"refused", "requests refused of 20 agents at their rate, one more at 100 times its own", "", atMost(0), ""},
	{"victims", "p99 of the 20 beside that one ÷ p99 of the 20 alone", "×", atMost(2), ""},
	{"fair", "requests refused of 20 agents at a quarter of the peak, one more at 4 times the peak and no rate limit", "", atMost(0), ""},
	{"goodput", "decisions/s at 4 times the load of the peak ÷ peak", "×", atLeast(0.9), ""},
	{"control", "p99 of emergency.deny and lift at that load", "ms", atMost(50), ""},
	{"unanswered", "requests never answered, of all", "", atMost(0), ""},
	{"uncounted", "refusals that requests.refused does not count, or counts too often", "", atMost(0), ""},
	{"recovery", "time from the end of that load until answers take at most twice the idle p99", "s", atMost(2), ""},
}

const (
	others    = 20  // agents beside the one that sends too much
	times     = 100 // its rate
	perAgent  = 500 // requests a second, the default of serve
	settleMax = 20 * time.Second
)

// overload measures what a ledger does with more than it can or may do.
func (b *bench) overload() error {
	b.agents = max(b.agents, 32*(others+2)) // trees enough
	n, err := b.newNode("overload", false)
	if err != nil {
		return err
	}
	peak, err := b.peak(n)
	if err == nil {
		err = b.beyond(n, peak)
	}
	if err := errors.Join(err, n.stop()); err != nil {
		return err
	}
	agents := n.agents
	rate := min(perAgent, peak/(3*others)) // the 20 are no load, wherever this runs
	n, err = b.openNode(n.dir, false, func(c *natsapi.Config) { c.Rate, c.Burst = rate, int(2*rate)+events.SOPStepsMax })
	if err != nil {
		return err
	}
	n.agents = agents
	err = b.flood(n, rate)
	b.report.set("unanswered", true, "of "+count(float64(b.total.sent))+" sent", float64(b.total.sent-b.total.judged-b.total.refused))
	b.report.set("uncounted", true, "of "+count(float64(b.total.refused))+" refused", float64(b.total.refused)-float64(b.total.counted))
	return errors.Join(err, n.stop())
}

// tally is what came of requests.
type tally struct{ sent, judged, refused, counted int }

// roots returns agents of different trees.
func (n *node) roots(total int) []*agent {
	var list []*agent
	for _, a := range n.agents {
		if a.parent == nil && len(list) < total {
			list = append(list, a)
		}
	}
	return list
}

// peak is how many decisions a second twenty agents get with as much
// outstanding as brings most.
func (b *bench) peak(n *node) (float64, error) {
	var rates []float64
	for range b.Runs {
		r, err := b.onNode(n, drive{outstanding: 1000, mix: "authorize", agents: n.roots(others)}, 0)
		if err != nil {
			return 0, fmt.Errorf("the peak: %w", err)
		}
		rates = append(rates, r.rate)
	}
	b.say("peak: %s decisions/s", count(median(rates)))
	return median(rates), nil
}

// beyond sends four times what the ledger can do, without any rate limit.
func (b *bench) beyond(n *node, peak float64) error {
	agents := n.roots(others + 1)
	var good, control, recovery, refused []float64
	base := ""
	for range b.Runs {
		idle, err := b.pour(n, agents[:others], func(int) float64 { return peak / 4 / others }, nil)
		if err != nil {
			return err
		}
		admin, err := n.admin()
		if err != nil {
			return err
		}
		load := func(int) float64 { return 4 * peak / others }
		over, err := b.pour(n, agents[:others], load, admin)
		admin.close()
		if err != nil {
			return err
		}
		bare, err := b.bare(n, agents[:others], load)
		if err != nil {
			return err
		}
		back, err := b.recovery(n, agents[0], 2*idle.p99())
		if err != nil {
			return err
		}
		fair, err := b.pour(n, agents, func(i int) float64 {
			if i == others {
				return 4 * peak
			}
			return peak / 4 / others
		}, nil)
		if err != nil {
			return err
		}
		lost := 0
		for _, f := range fair.flows[:others] {
			lost += f.refused
		}
		good = append(good, over.goodput()/peak)
		control = append(control, millis(percentile(admin.took, 99)))
		recovery = append(recovery, back.Seconds())
		refused = append(refused, float64(lost))
		base = fmt.Sprintf("%s/s of %s/s, %s/s offered, CPU %.1f µs each, of which %.1f µs where an echo answers all of it at once", count(over.goodput()), count(peak),
			count(float64(over.sent)/over.window.Seconds()), 1000*millis(over.cpu), 1000*millis(bare.cpu))
		b.say("beyond the peak: %s", base)
	}
	b.report.set("fair", true, "", refused...)
	b.report.set("goodput", true, base+", in the last run: whoever sends takes part of the same cores", good...)
	b.report.set("control", true, "one after another, 20 ms apart", control...)
	b.report.set("recovery", true, "ten in a row, one every 5 ms", recovery...)
	return nil
}

// flood has one agent send a hundred times its rate beside twenty at theirs.
func (b *bench) flood(n *node, rate float64) error {
	agents := n.roots(others + 1)
	var ratio, refused []float64
	base := ""
	for run := range b.Runs {
		b.say("%s: %d of %d", b.report.figure("victims"), run+1, b.Runs)
		alone, err := b.pour(n, agents[:others], func(int) float64 { return rate }, nil)
		if err != nil {
			return err
		}
		beside, err := b.pour(n, agents, func(i int) float64 {
			if i == others {
				return times * rate
			}
			return rate
		}, nil)
		if err != nil {
			return err
		}
		lost := 0
		for _, f := range alone.flows {
			lost += f.refused
		}
		for _, f := range beside.flows[:others] {
			lost += f.refused
		}
		ratio = append(ratio, float64(beside.p99())/float64(alone.p99()))
		refused = append(refused, float64(lost))
		base = fmt.Sprintf("%.2f ms ÷ %.2f ms at %s/s each; of the one's %s requests %s were refused", millis(beside.p99()), millis(alone.p99()),
			count(rate), count(float64(beside.flows[others].sent)), count(float64(beside.flows[others].refused)))
	}
	b.report.set("refused", true, "", refused...)
	b.report.set("victims", true, base+" in the last run", ratio...)
	return nil
}

// recovery waits until an agent's requests are answered fast again.
func (b *bench) recovery(n *node, a *agent, fast time.Duration) (time.Duration, error) {
	start := time.Now()
	f, err := newFlow(n.front.URL(), a, 0)
	if err != nil {
		return 0, err
	}
	defer f.nc.Close()
	inRow := 0
	for time.Since(start) < settleMax {
		at := time.Now()
		if _, err := f.nc.Request(f.subject, f.body, settleMax); err != nil {
			return 0, fmt.Errorf("after the load: %w", err)
		}
		if inRow++; time.Since(at) > fast {
			inRow = 0
		}
		if inRow == 10 {
			return time.Since(start), nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start), nil
}

// loaded is what came of a load.
type loaded struct {
	flows  []*flow
	window time.Duration
	cpu    time.Duration // of the whole process, for each request sent
	tally
}

func (l *loaded) goodput() float64 {
	n := 0
	for _, f := range l.flows {
		n += f.inTime
	}
	return float64(n) / l.window.Seconds()
}

// p99 is of the agents at their rate, the first twenty.
func (l *loaded) p99() time.Duration {
	var took []time.Duration
	for _, f := range l.flows[:min(others, len(l.flows))] {
		took = append(took, f.took...)
	}
	return percentile(took, 99)
}

func percentile(took []time.Duration, p int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*p/100]
}

// pour has agents send at their rates, on a clock, and an admin, if there is
// one, change things meanwhile. It returns when all is answered or nothing more
// will be, and adds the sum of it to b.total.
func (b *bench) pour(n *node, agents []*agent, rate func(i int) float64, admin *admin) (*loaded, error) {
	before := n.ledger.Durable()
	l, err := b.send(n.front.URL(), agents, rate, admin)
	if err != nil {
		return nil, err
	}
	counted, err := n.counted(before, l.refused)
	b.total.sent, b.total.judged, b.total.refused = b.total.sent+l.sent, b.total.judged+l.judged, b.total.refused+l.refused
	b.total.counted += counted
	return l, err
}

// bare sends the same to an echo: what that takes is the part of whoever sends,
// of the server, and of the connection into it.
func (b *bench) bare(n *node, agents []*agent, rate func(i int) float64) (l *loaded, err error) {
	e, err := b.startEcho()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	e.knows(n.agents)
	return b.send(e.server.URL(), agents, rate, nil)
}

// send has agents send at their rates, as pour says.
func (b *bench) send(url string, agents []*agent, rate func(i int) float64, admin *admin) (*loaded, error) {
	l := &loaded{window: b.Duration}
	defer func() {
		for _, f := range l.flows {
			f.nc.Close()
		}
	}()
	for i, a := range agents {
		f, err := newFlow(url, a, int(rate(i)*b.Duration.Seconds())+1)
		if err != nil {
			return nil, err
		}
		l.flows = append(l.flows, f)
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.Duration)
	defer cancel()
	var all sync.WaitGroup
	start, used := time.Now(), cpuTime()
	for i, f := range l.flows {
		all.Go(func() { f.run(start, start.Add(b.Duration), rate(i)) })
	}
	if admin != nil {
		all.Go(func() { admin.run(ctx) })
	}
	all.Wait()
	if err := settle(b.ctx, l.flows); err != nil {
		return nil, err
	}
	for _, f := range l.flows {
		l.sent, l.judged, l.refused = l.sent+f.sent, l.judged+f.judged, l.refused+f.refused
	}
	l.cpu = (cpuTime() - used) / time.Duration(max(1, l.sent))
	if admin != nil && admin.err != nil {
		return nil, admin.err
	}
	return l, nil
}

// counted waits until the log after seq counts as many refusals, and returns how
// many it does count.
func (n *node) counted(seq uint64, want int) (int, error) {
	sum := 0
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		head := n.ledger.Durable()
		if head > seq {
			err := n.ledger.Events(seq+1, head, func(_ uint64, raw []byte) error {
				if !bytes.Contains(raw, []byte(events.TypeRequestsRefused)) {
					return nil
				}
				e, err := events.Parse(raw)
				if r, ok := e.Body.(*events.RequestsRefused); ok {
					sum += int(r.Count)
				}
				return err
			})
			if err != nil {
				return 0, err
			}
		}
		if seq = head; sum >= want || time.Now().After(end) {
			return sum, nil
		}
	}
}

// flow is one agent that sends on a clock, whatever becomes of it.
type flow struct {
	nc      *nats.Conn
	subject string
	inbox   string
	body    []byte
	sent    int

	mu      sync.Mutex
	end     time.Time
	at      []time.Time     // when each was due
	took    []time.Duration // of the judged
	judged  int
	inTime  int // of them before the end
	refused int
	fault   error
}

var refusedAnswer = []byte(`{"type":"io.ledgerd.error.v1"`)

func newFlow(url string, a *agent, requests int) (*flow, error) {
	f := &flow{
		subject: "gov.main.propose." + a.id + ".action.authorize", inbox: "_INBOX." + a.id + ".load.",
		body: []byte(`{"action":"bench.act","arguments":{"path":"draft/report.md","size":4096}}`), at: make([]time.Time, requests),
	}
	var err error
	f.nc, err = nats.Connect(url, nats.Nkey(a.public, a.key.Sign), nats.NoReconnect(), nats.CustomInboxPrefix("_INBOX."+a.id))
	if err != nil {
		return nil, fmt.Errorf("connect as %s: %w", a.id, err)
	}
	sub, err := f.nc.Subscribe(f.inbox+"*", f.answered)
	if err == nil {
		err = errors.Join(sub.SetPendingLimits(-1, -1), f.nc.Flush())
	}
	if err != nil {
		f.nc.Close()
		return nil, fmt.Errorf("connect as %s: %w", a.id, err)
	}
	return f, nil
}

// run sends what is due until the end.
func (f *flow) run(start, end time.Time, rate float64) {
	f.mu.Lock()
	f.end = end
	f.mu.Unlock()
	for f.sent < len(f.at) {
		due := start.Add(time.Duration(float64(f.sent) / rate * float64(time.Second)))
		if !due.Before(end) {
			return
		}
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		} else if time.Now().After(end) {
			return // what could not be sent in time is not sent
		}
		f.mu.Lock()
		f.at[f.sent] = due
		f.mu.Unlock()
		if err := f.nc.PublishRequest(f.subject, f.inbox+strconv.Itoa(f.sent), f.body); err != nil {
			f.mu.Lock()
			f.fault = err
			f.mu.Unlock()
			return
		}
		f.sent++
	}
}

func (f *flow) answered(m *nats.Msg) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := strconv.Atoi(m.Subject[len(f.inbox):])
	switch {
	case err != nil || i >= len(f.at):
		f.fault = fmt.Errorf("an answer on %q", m.Subject)
	case bytes.HasPrefix(m.Data, allowedAnswer):
		f.judged++
		f.took = append(f.took, now.Sub(f.at[i]))
		if now.Before(f.end) {
			f.inTime++
		}
	case bytes.HasPrefix(m.Data, refusedAnswer):
		f.refused++
	default:
		f.fault = fmt.Errorf("answered %s", m.Data)
	}
}

// settle waits until all that the flows sent is answered, or nothing more comes
// for a while: the row of the unanswered tells.
func settle(ctx context.Context, flows []*flow) error {
	last, since := 0, time.Now()
	for {
		answers, sent := 0, 0
		for _, f := range flows {
			f.mu.Lock()
			answers, sent = answers+f.judged+f.refused, sent+f.sent
			err := f.fault
			f.mu.Unlock()
			if err == nil && f.nc.IsClosed() {
				err = fmt.Errorf("the connection that sends on %s is closed: %w", f.subject, f.nc.LastError())
			}
			if err != nil {
				return err
			}
		}
		if answers != last {
			last, since = answers, time.Now()
		}
		if answers == sent || time.Since(since) > settleMax {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// admin denies and lifts, one after the other.
type admin struct {
	nc   *nats.Conn
	took []time.Duration
	err  error
}

func (n *node) admin() (*admin, error) {
	seed, err := os.ReadFile(filepath.Join(n.dir, "keys", "admin.nk"))
	if err != nil {
		return nil, fmt.Errorf("the admin's key: %w", err)
	}
	key, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil {
		return nil, fmt.Errorf("the admin's key: %w", err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("the admin's key: %w", err)
	}
	nc, err := nats.Connect(n.front.URL(), nats.Nkey(public, key.Sign), nats.NoReconnect(), nats.CustomInboxPrefix("_INBOX."+ledger.AdminID))
	if err != nil {
		return nil, fmt.Errorf("connect as the admin: %w", err)
	}
	return &admin{nc: nc}, nil
}

func (a *admin) close() { a.nc.Close() }

// run denies a capability to one agent and lifts that again, until ctx ends.
func (a *admin) run(ctx context.Context) {
	for ctx.Err() == nil && a.err == nil {
		epoch := a.ask("emergency.deny", `{"agent_id":"chain31","capabilities":["bench.act"],"reason":"a measurement"}`)
		a.ask("emergency.lift", fmt.Sprintf(`{"epoch":%d}`, epoch))
	}
}

func (a *admin) ask(verb, body string) (epoch uint64) {
	at := time.Now()
	m, err := a.nc.Request("gov.main.control."+ledger.AdminID+"."+verb, []byte(body), settleMax)
	if err != nil {
		a.err = fmt.Errorf("%s: %w", verb, err)
		return 0
	}
	a.took = append(a.took, time.Since(at))
	var r struct {
		Allowed bool   `json:"allowed"`
		Epoch   uint64 `json:"epoch"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil || !r.Allowed {
		a.err = fmt.Errorf("%s: answered %s: %w", verb, m.Data, err)
	}
	time.Sleep(20 * time.Millisecond)
	return r.Epoch
}

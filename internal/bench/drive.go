package bench

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// drive says how a server is loaded, from one connection for each agent.
type drive struct {
	url         string
	echo        bool // answers are not looked at
	agents      []*agent
	outstanding int     // requests not yet answered, over all connections
	clock       float64 // requests a second whatever is outstanding; 0 sends one for every answer
	mix         string
	noIDs       bool
	ruled       bool // actions have a schema and three inherited requirements
	window      time.Duration
	serial      uint64 // tells this drive's names from those of any other
}

// result is what a drive saw in its window.
type result struct {
	rate     float64 // answers a second
	p50, p99 time.Duration
	cpu      time.Duration // of the whole process, senders included, for each answer
}

const (
	warmUp     = 4 // the window begins after a part of it this small
	answersMax = 20 * time.Second
)

// run loads the server and measures once it has warmed up.
func (d drive) run(ctx context.Context) (r result, answers int, err error) {
	connections := min(len(d.agents), d.outstanding)
	start := time.Now().Add(20 * time.Millisecond)
	from := start.Add(d.window / warmUp)
	var senders []*sender
	defer func() {
		for _, s := range senders {
			s.nc.Close()
		}
	}()
	for i := range connections {
		s, err := d.connect(d.agents[i], d.outstanding/connections, uint64(i))
		if err != nil {
			return result{}, 0, err
		}
		s.from, s.until = from, from.Add(d.window)
		senders = append(senders, s)
	}
	var all sync.WaitGroup
	used := cpuTime()
	for _, s := range senders {
		all.Go(func() {
			if d.clock > 0 {
				s.onClock(start, d.clock/float64(connections))
			} else {
				s.onAnswers()
			}
		})
	}
	all.Wait()
	var took []time.Duration
	end, total := from.Add(d.window), 0
	for _, s := range senders {
		if err := s.finish(ctx); err != nil {
			return result{}, 0, err
		}
		took = append(took, s.took...)
		total += s.answers
		if d.clock > 0 && s.last.After(end) {
			end = s.last
		}
	}
	if len(took) == 0 {
		return result{}, 0, nil
	}
	slices.Sort(took)
	return result{
		rate: float64(len(took)) / end.Sub(from).Seconds(),
		p50:  took[len(took)/2], p99: took[len(took)*99/100],
		cpu: (cpuTime() - used) / time.Duration(max(1, total)),
	}, len(took), nil
}

// sender is one connection and what it has outstanding.
type sender struct {
	*drive
	nc      *nats.Conn
	as      *agent
	line    []*agent
	inbox   string
	weights [4]int
	subject [4]string
	action  string // what it asks for where it may
	good    string // the members of a procedure all of whose steps are allowed
	bad     string // and of one whose last is not

	from, until time.Time  // the window; nothing is sent after it
	free        chan *slot // of a clock
	failed      chan error

	mu    sync.Mutex // held to send and to take an answer
	slots []slot
	busy  int
	took  []time.Duration // by the answers that count

	answers int       // that came, counted or not
	last    time.Time // when the last of them came
}

// slot is one request that may be outstanding. Its record is written by nobody
// else, so that it knows the revision to expect.
type slot struct {
	reply    string
	record   string
	rng      *rand.Rand
	sent     time.Time
	count    uint64
	revision uint64
	op       int
	allowed  bool // what the answer must say
	body     []byte
}

// The operations of a mix.
const (
	read = iota
	write
	authorize
	sop
)

// mixes are how many of a hundred proposals are of each operation. A tenth of
// each is denied.
var mixes = map[string][4]int{
	"standard":  {read: 60, write: 20, authorize: 15, sop: 5},
	"read":      {read: 100},
	"write":     {write: 100},
	"authorize": {authorize: 100},
	"sop":       {sop: 100},
}

// Mixes lists what Options.Mix can be.
func Mixes() []string { return []string{"standard", "read", "write", "authorize", "sop"} }

// operations are the names of a mix's operations.
var operations = [4]string{"memory.read", "memory.write", "action.authorize", "sop.validate"}

// newSender has requests to send and nothing yet to send them with.
func newSender(d *drive, as *agent, slots int, number uint64) *sender {
	s := &sender{
		drive: d, as: as, line: as.lineage(), inbox: "_INBOX." + as.id + ".", weights: mixes[d.mix],
		slots: make([]slot, slots), free: make(chan *slot, slots), failed: make(chan error, 1),
		action: "bench.act",
	}
	if d.ruled {
		s.action = "bench.ruled"
	}
	s.good, s.bad = procedure(s.action, s.action), procedure(s.action, "bench.other")
	for op, name := range operations {
		s.subject[op] = "gov.main.propose." + as.id + "." + name
	}
	for i := range s.slots {
		s.slots[i] = slot{
			reply:  s.inbox + strconv.Itoa(i),
			record: fmt.Sprintf("%d-%d-%d", d.serial, number, i),
			rng:    rand.New(rand.NewPCG(d.serial, number<<32|uint64(i))),
		}
		s.free <- &s.slots[i]
	}
	return s
}

func (d drive) connect(as *agent, slots int, number uint64) (*sender, error) {
	s := newSender(&d, as, slots, number)
	var err error
	s.nc, err = nats.Connect(d.url, nats.Nkey(as.public, as.key.Sign), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { s.fail(err) }))
	if err != nil {
		return nil, fmt.Errorf("connect as %s: %w", as.id, err)
	}
	sub, err := s.nc.Subscribe(s.inbox+"*", s.answered)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = s.nc.Flush()
	}
	if err != nil {
		s.nc.Close()
		return nil, fmt.Errorf("connect as %s: %w", as.id, err)
	}
	return s, nil
}

// onAnswers sends a request for each slot, and another for each answer.
func (s *sender) onAnswers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.slots {
		s.send(&s.slots[i], time.Now())
	}
}

// onClock sends requests when they are due, or as soon after as a slot is free.
// Their time counts from when they were due. Those that could not be sent long
// after the window count with the time they have waited by then.
func (s *sender) onClock(start time.Time, rate float64) {
	giveUp := s.until.Add(2 * s.window)
	late := time.NewTimer(time.Until(giveUp))
	defer late.Stop()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if !due.Before(s.until) {
			return
		}
		time.Sleep(time.Until(due))
		select {
		case k := <-s.free:
			s.mu.Lock()
			s.send(k, due)
			s.mu.Unlock()
			continue
		case <-late.C:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for ; due.Before(s.until); due = due.Add(time.Duration(float64(time.Second) / rate)) {
			if !due.Before(s.from) {
				s.took = append(s.took, giveUp.Sub(due))
			}
		}
		return
	}
}

func (s *sender) send(k *slot, at time.Time) {
	s.next(k)
	k.sent = at
	s.busy++
	if err := s.nc.PublishRequest(s.subject[k.op], k.reply, k.body); err != nil {
		s.fail(err)
	}
}

var (
	allowedAnswer = []byte(`{"type":"io.ledgerd.decision.v1","allowed":true,`)
	deniedAnswer  = []byte(`{"type":"io.ledgerd.decision.v1","allowed":false,`)
)

// answered takes an answer, on the connection's own goroutine.
func (s *sender) answered(m *nats.Msg) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := strconv.Atoi(m.Subject[len(s.inbox):])
	if err != nil || i >= len(s.slots) {
		s.fail(fmt.Errorf("an answer on %q", m.Subject))
		return
	}
	k := &s.slots[i]
	want := deniedAnswer
	if k.allowed {
		want = allowedAnswer
	}
	if !s.echo && !bytes.HasPrefix(m.Data, want) {
		s.fail(fmt.Errorf("%s as %s was answered %s, want %s", k.body, s.as.id, m.Data, want))
	}
	if k.op == write && k.allowed {
		k.revision++
	}
	counts := now // that the answer came in the window or, on a clock, that it was due there
	if s.clock > 0 {
		counts = k.sent
	}
	if !counts.Before(s.from) && counts.Before(s.until) {
		s.took = append(s.took, now.Sub(k.sent))
	}
	s.last = now
	s.answers++
	s.busy--
	switch {
	case s.clock > 0:
		s.free <- k
	case now.Before(s.until) && len(s.failed) == 0:
		s.send(k, now)
	}
}

func (s *sender) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// finish waits until everything sent is answered.
func (s *sender) finish(ctx context.Context) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
		s.mu.Lock()
		busy, last := s.busy, s.last
		s.mu.Unlock()
		switch {
		case time.Now().Before(s.until):
		case busy == 0:
			return nil
		case time.Since(last) > answersMax && time.Since(s.until) > answersMax:
			return fmt.Errorf("%d requests as %s were never answered", busy, s.as.id)
		}
	}
}

// next makes the slot's next request and says what its answer must be.
func (s *sender) next(k *slot) {
	k.op, k.allowed = 0, k.rng.IntN(10) > 0
	for share := k.rng.IntN(100); share >= s.weights[k.op]; k.op++ {
		share -= s.weights[k.op]
	}
	b := append(k.body[:0], '{')
	switch k.op {
	case read:
		b = s.appendRead(b, k)
	case write:
		b = s.appendWrite(b, k)
	case authorize:
		action := s.action
		if !k.allowed {
			action = "bench.other"
		}
		b = append(append(append(b, `"action":"`...), action...), `","arguments":{"path":"draft/report.md","size":4096}`...)
	case sop:
		if k.allowed {
			b = append(b, s.good...)
		} else {
			b = append(b, s.bad...)
		}
	}
	if !s.noIDs && k.op != read {
		b = append(append(b, `,"operation_id":"`...), k.record...)
		b = append(strconv.AppendUint(append(b, '.'), k.count, 10), '"')
	}
	k.count++
	k.body = append(b, '}')
}

// appendRead asks for a record of someone of the lineage, or for none.
func (s *sender) appendRead(b []byte, k *slot) []byte {
	owner := s.line[k.rng.IntN(len(s.line))]
	b = append(append(b, `"namespace":"notes","key":"`...), owner.id...)
	if !k.allowed {
		b = append(b, "-none"...)
	}
	b = append(b, '-')
	return append(strconv.AppendInt(b, int64(k.rng.IntN(owner.values)), 10), '"')
}

// appendWrite changes the slot's own record, or one of somebody else.
func (s *sender) appendWrite(b []byte, k *slot) []byte {
	owner := s.as
	if !k.allowed {
		owner = s.as.parent
	}
	b = append(append(b, `"owner_agent_id":"`...), owner.id...)
	b = append(append(b, `","namespace":"work","key":"`...), k.record...)
	b = append(append(append(b, `","value":"`...), filler...), '"')
	if k.allowed && k.revision > 0 {
		b = strconv.AppendUint(append(b, `,"expected_revision":`...), k.revision, 10)
	}
	return b
}

// procedure is a request's members with a procedure of ten steps, the last of
// which is the last action.
func procedure(action, last string) string {
	var b strings.Builder
	b.WriteString(`"sop":{"sop_id":"bench","version":1,"steps":[`)
	for i := range 10 {
		if i < 9 {
			fmt.Fprintf(&b, `{"step_id":"s%d","action":%q,"arguments":{"path":"draft/%d.md"}},`, i, action, i)
			continue
		}
		fmt.Fprintf(&b, `{"step_id":"s%d","action":%q,"arguments":{"path":"draft/%d.md"}}]}`, i, last, i)
	}
	return b.String()
}

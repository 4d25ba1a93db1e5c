package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// benchPolicy knows an action without rules and one with a schema, which agents
// have, and another that they have not.
const benchPolicy = `apiVersion: ledgerd/v1
kind: Policy
version: bench-1
environment: [memory.read, memory.write, bench.act, bench.ruled]
actions:
  bench.act: {}
  bench.other: {}
  bench.ruled:
    arguments:
      type: object
      required: [path]
      additionalProperties: false
      properties:
        path: {type: string, minLength: 1, maxLength: 200}
        size: {type: integer, minimum: 0, maximum: 1048576}
`

// benchRestrictions are the clauses on bench.ruled that the first three levels
// of every tree add.
var benchRestrictions = []string{`args.path.within("draft")`, `!has(args.size) || args.size <= 65536`, `args.path.endsWith(".md")`}

// agent is one agent of the load.
type agent struct {
	id     string
	parent *agent // nil for a root
	depth  int    // 1 for a root
	leaf   bool   // the deepest of its tree
	key    nkeys.KeyPair
	public string
	values int // its records, named by its id and a number
}

// lineage is the agent, its parent, … its root.
func (a *agent) lineage() []*agent {
	var line []*agent
	for ; a != nil; a = a.parent {
		line = append(line, a)
	}
	return line
}

// node is a ledger of ours, served.
type node struct {
	dir    string
	agents []*agent
	feed   bool
	ledger *ledger.Ledger
	front  *natsapi.Node
	loaded uint64 // events before the first measurement
	lags   []float64

	cancel context.CancelFunc
	ended  chan error
}

// newNode makes a ledger, fills it with agents and records, and serves it.
func (b *bench) newNode(name string, feed bool) (*node, error) {
	b.say("filling a ledger with %s agents and %s records", count(float64(b.agents)), count(float64(b.values)))
	dir := filepath.Join(b.dir, name)
	if err := ledger.Init(dir, ledger.InitOptions{}); err != nil {
		return nil, err
	}
	n, err := b.openNode(dir, feed)
	if err != nil {
		return nil, err
	}
	n.agents = namedAgents(b.agents)
	if err = makeKeys(n.agents); err == nil {
		err = n.load(b.values)
	}
	if err == nil {
		_, err = n.caughtUp(b.ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.stop())
	}
	b.agents, n.loaded = len(n.agents), n.ledger.Durable()
	return n, nil
}

// openNode opens and serves the ledger in dir, without limits unless change sets
// some.
func (b *bench) openNode(dir string, feed bool, change ...func(*natsapi.Config)) (*node, error) {
	l, err := ledger.Open(ledger.Options{Dir: dir, Build: b.Build})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{dir: dir, feed: feed, ledger: l, cancel: cancel, ended: make(chan error, 1)}
	config := natsapi.Config{StoreDir: filepath.Join(n.dir, "stream"), Listen: "127.0.0.1:0", Version: b.Version, NoFeed: !feed}
	for _, c := range change {
		c(&config)
	}
	n.front, err = natsapi.Start(l, config)
	if err != nil {
		cancel()
		return nil, errors.Join(err, l.Run(ctx))
	}
	go func() { n.ended <- l.Run(ctx) }()
	return n, nil
}

func (n *node) stop() error {
	n.front.Drain()
	n.cancel()
	err := <-n.ended
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(err, n.front.Close(ctx))
}

// namedAgents makes trees of depth 3 to 8, and two chains of depth 16.
func namedAgents(total int) []*agent {
	var list []*agent
	add := func(parent *agent, prefix string) *agent {
		a := &agent{id: fmt.Sprintf("%s%d", prefix, len(list)), parent: parent, depth: 1}
		if parent != nil {
			a.depth = parent.depth + 1
		}
		list = append(list, a)
		return a
	}
	for range 2 {
		var a *agent
		for range 16 {
			a = add(a, "chain")
		}
	}
	const width = 4 // agents of each level, the first of which has the next level below it
	for tree := 0; len(list) < total; tree++ {
		first := add(nil, "agent")
		for level := 2; level <= 3+tree%6; level++ {
			parent := first
			for i := range width {
				if a := add(parent, "agent"); i == 0 {
					first = a
				}
			}
		}
		first.leaf = true
	}
	return list
}

func makeKeys(agents []*agent) (err error) {
	for _, a := range agents {
		if a.key, err = nkeys.CreateUser(); err != nil {
			return err
		}
		if a.public, err = a.key.PublicKey(); err != nil {
			return err
		}
	}
	return nil
}

// load registers the agents and gives each its share of the records, visible to
// those below.
func (n *node) load(records int) error {
	apply, err := json.Marshal(map[string]any{"documents": []string{benchPolicy}})
	if err != nil {
		return err
	}
	err = n.fill(wire.Control, "apply", 1, func(int) (string, []byte) { return ledger.AdminID, apply })
	if err != nil {
		return err
	}
	err = n.fill(wire.Control, "agent.register", len(n.agents), func(i int) (string, []byte) {
		a := n.agents[i]
		parent := ""
		if a.parent != nil {
			parent = fmt.Sprintf(`"parent_id":%q,`, a.parent.id)
		}
		return ledger.AdminID, fmt.Appendf(nil, `{"agent_id":%q,%s"capabilities":["memory.read","memory.write","bench.act","bench.ruled"],"public_key":%q}`, a.id, parent, a.public)
	})
	if err != nil {
		return err
	}
	var restricting []*agent
	for _, a := range n.agents {
		if a.depth <= len(benchRestrictions) {
			restricting = append(restricting, a)
		}
	}
	err = n.fill(wire.Propose, "restriction.add", len(restricting), func(i int) (string, []byte) {
		a := restricting[i]
		return a.id, fmt.Appendf(nil, `{"id":"r%d","action":"bench.ruled","require":%q}`, a.depth, benchRestrictions[a.depth-1])
	})
	if err != nil {
		return err
	}
	each := max(1, records/len(n.agents))
	for _, a := range n.agents {
		a.values = each
	}
	return n.fill(wire.Propose, "memory.write", each*len(n.agents), func(i int) (string, []byte) {
		a := n.agents[i/each]
		return a.id, fmt.Appendf(nil, `{"owner_agent_id":%q,"namespace":"notes","key":"%s-%d","value":%q,"visibility":"descendants"}`, a.id, a.id, i%each, filler)
	})
}

// filler is the value of every record, 100 bytes.
const filler = "The quick brown fox jumps over the lazy dog while the ledger keeps count of what it saw it do; amen."

const fillMax = 200 // at once; the control queue takes 256

// fill submits requests in process, in order, and fails with the first that is
// not allowed.
func (n *node) fill(lane wire.Lane, operation string, total int, request func(i int) (subject string, body []byte)) error {
	var all sync.WaitGroup
	free := make(chan struct{}, fillMax)
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	for i := 0; i < total && len(failed) == 0; i++ {
		subject, body := request(i)
		decoded, code := wire.Decode(lane, operation, body)
		if code != "" {
			fail(fmt.Errorf("%s: %s", operation, code))
			break
		}
		free <- struct{}{}
		all.Add(1)
		done := func(a ledger.Answer) {
			if !a.Reason.Allowed() {
				fail(fmt.Errorf("%s as %s: %s", operation, subject, a.Reply))
			}
			<-free
			all.Done()
		}
		p := &ledger.Proposal{Lane: lane, Subject: subject, Operation: operation, Request: decoded}
		if code := n.ledger.Submit(p, done); code != "" {
			done(ledger.Answer{Reason: code})
		}
	}
	all.Wait()
	select {
	case err := <-failed:
		return fmt.Errorf("fill the ledger: %w", err)
	default:
		return nil
	}
}

const catchUpMax = 2 * time.Minute

// caughtUp waits for the feed, where there is one, to reach what is durable now,
// and returns how long it took.
func (n *node) caughtUp(ctx context.Context) (time.Duration, error) {
	if !n.feed {
		return 0, nil
	}
	start, target := time.Now(), n.ledger.Durable()
	for {
		s := n.front.Feed()
		waited := time.Since(start)
		switch {
		case s.Published >= target:
			return waited, nil
		case s.Halted != nil:
			return 0, s.Halted
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case waited > catchUpMax:
			return 0, fmt.Errorf("the feed is at %d of %d after %s: %w", s.Published, target, waited, s.Fault)
		}
		time.Sleep(time.Millisecond)
	}
}

// pair returns the two agents that send in a run: run by run from trees of other
// depths, 11 in sum.
func (n *node) pair(run int) []*agent {
	a, b := n.deepest(3+run%6, run/6), n.deepest(8-run%6, run/6)
	if a == b {
		b = n.deepest(8-run%6, run/6+1)
	}
	return []*agent{a, b}
}

// deepest returns the at-th agent at the bottom of a tree of some depth, around.
func (n *node) deepest(depth, at int) *agent {
	var found []*agent
	for _, a := range n.agents {
		if a.leaf && a.depth == depth {
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		return n.agents[len(n.agents)-1]
	}
	return found[at%len(found)]
}

// chains returns the agents at some depth of the two chains.
func (n *node) chains(depth int) []*agent { return []*agent{n.agents[depth-1], n.agents[16+depth-1]} }

// echo is the bare part: a server like the ledger's, the same kind of connection
// into it, and a subscription that answers at once.
type echo struct {
	server *natsapi.Server
	known  sync.Map // public key → agent id
}

func (b *bench) startEcho() (*echo, error) {
	return b.startFront("echo", func(nc *nats.Conn) error {
		answer := append(make([]byte, 0, 300), refusedAnswer...)[:300]
		_, err := nc.Subscribe("gov.main.propose.>", func(m *nats.Msg) {
			_ = nc.Publish(m.Reply, answer) // an answer that is missing ends the run
		})
		return err
	})
}

// startFront starts a server and has a connection into it served.
func (b *bench) startFront(name string, serve func(nc *nats.Conn) error) (*echo, error) {
	e := &echo{}
	var err error
	e.server, err = natsapi.StartServer(natsapi.ServerOptions{
		Ledger: "main", StoreDir: filepath.Join(b.dir, name), Listen: "127.0.0.1:0",
		Lookup: func(key string) (natsapi.Identity, bool) {
			id, ok := e.known.Load(key)
			if !ok {
				return natsapi.Identity{}, false
			}
			return natsapi.Identity{ID: id.(string), Role: natsapi.RoleAgent}, true
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	nc, err := e.server.Connect(natsapi.WorkResponder)
	if err == nil {
		err = serve(nc)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the %s: %w", name, err), e.stop())
	}
	return e, nil
}

// knows lets agents in.
func (e *echo) knows(agents []*agent) {
	for _, a := range agents {
		e.known.Store(a.public, a.id)
	}
}

func (e *echo) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return e.server.Shutdown(ctx)
}

// onNode loads a node as d says. With a feed it then waits for it.
func (b *bench) onNode(n *node, d drive, run int) (result, error) {
	d.url = n.front.URL()
	r, err := b.run(n, d, run)
	if err != nil || !n.feed {
		return r, err
	}
	lag, err := n.caughtUp(b.ctx)
	n.lags = append(n.lags, lag.Seconds())
	return r, err
}

// onEcho loads the echo just so, as the same agents.
func (b *bench) onEcho(e *echo, n *node, d drive, run int) (result, error) {
	e.knows(n.agents)
	d.url, d.echo = e.server.URL(), true
	return b.run(n, d, run)
}

// run loads a server. Where nothing was answered in the window, on a machine
// with much else to do, it takes a longer one.
func (b *bench) run(n *node, d drive, run int) (result, error) {
	if d.agents == nil {
		d.agents = n.pair(run)
	}
	for d.window = b.Duration; d.window < answersMax; d.window *= 2 {
		b.serial++
		d.serial = b.serial
		r, answers, err := d.run(b.ctx)
		if err != nil || answers > 0 {
			return r, err
		}
	}
	return result{}, fmt.Errorf("no answer within %s", d.window)
}

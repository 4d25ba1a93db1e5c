package sim

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// The small scope is every forest of at most five agents, up to renaming the
// agents, with everything below on every agent. All of it is folded from events,
// one event from one state to the next, so that whatever the state keeps for
// speed is kept through all of these histories. -whole runs all of it; without, forests
// of four and five agents are sampled.

const (
	scopeAgents       = 5
	scopeCapabilities = 4
)

// forest is the parent of each agent, -1 for a root; parents come first.
type forest []int

// forests returns one of every forest of exactly n agents: those whose parent
// lists differ only by the agents' names are one.
func forests(n int) (list []forest) {
	seen := map[string]bool{}
	var grow func(f forest)
	grow = func(f forest) {
		if len(f) == n {
			if shape := f.shape(-1); !seen[shape] {
				seen[shape] = true
				list = append(list, slices.Clone(f))
			}
			return
		}
		for parent := -1; parent < len(f); parent++ {
			grow(append(f, parent))
		}
	}
	grow(forest{})
	return list
}

// shape is the tree below an agent without names.
func (f forest) shape(at int) string {
	var below []string
	for i, parent := range f {
		if parent == at {
			below = append(below, f.shape(i))
		}
	}
	slices.Sort(below)
	return "(" + strings.Join(below, "") + ")"
}

// line is an agent, its parent, and so on.
func (f forest) line(i int) (line []int) {
	for ; i >= 0; i = f[i] {
		line = append(line, i)
	}
	return line
}

// scope is a state in which one event leads to the next.
type scope struct {
	t      *testing.T
	s      *projection.State
	f      forest
	agents []*projection.Agent
	states int64
}

var scopeNames = []string{"agent.register", "memory.read", "memory.write", "x.one"}

// setOf lists the capabilities of a mask.
var setOf = func() (sets [1 << scopeCapabilities][]string) {
	for mask := range sets {
		for i, name := range scopeNames {
			if mask>>i&1 == 1 {
				sets[mask] = append(sets[mask], name)
			}
		}
	}
	return sets
}()

// newScope registers a forest's agents, which declare nothing, under a policy
// whose environment is a mask.
func newScope(t *testing.T, f forest, environment int, classes map[string]string) *scope {
	c := &scope{t: t, s: projection.New(), f: f}
	c.apply(&events.LedgerCreated{Format: events.Format, Origin: logOrigin, Ledger: ledgerName, AdminID: "admin", AdminPublicKey: "admin"}, nil)
	c.apply(&events.LedgerOpened{Rules: ledger.Rules, Build: "sim"}, nil)
	p := &policyDoc{version: "v", environment: setOf[environment], actions: []string{"x.one"}, classes: classes, depth: 16, children: 256}
	text := []byte(p.yaml())
	c.apply(&events.PolicyActivated{Version: "v", Digest: sha(text), Rules: ledger.Rules}, text)
	for i, parent := range f {
		b := &events.AgentRegistered{AgentID: agentName(i), PublicKey: agentName(i)}
		if parent >= 0 {
			b.ParentID = agentName(parent)
		}
		c.apply(b, nil)
	}
	for i := range f {
		c.agents = append(c.agents, c.s.Agent(agentName(i)))
	}
	return c
}

func agentName(i int) string { return [...]string{"a", "b", "c", "d", "e"}[i] }

func (c *scope) apply(b events.Body, open []byte) {
	e := events.Event{Seq: c.s.Seq + 1, Time: c.s.Time, Agent: events.System, Body: b}
	if err := c.s.Apply(&e, open); err != nil {
		c.t.Fatal(err)
	}
}

// spread runs shards on all processors and returns how many states they saw.
func spread(t *testing.T, shards int, run func(shard int) int64) int64 {
	var next, states atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(shards) && !t.Failed(); i = next.Add(1) - 1 {
				states.Add(run(int(i)))
			}
		})
	}
	wg.Wait()
	return states.Load()
}

// sampled: of so many shards of forests of n agents one is run.
func sampled(n int) int {
	switch {
	case *whole || n < 4:
		return 1
	case n == 4:
		return 4
	}
	return 48
}

// R14, R15: effective sets. Every forest of at most five agents × what each
// declares of four capabilities (16 to the power of the agents) × the environment
// up to renaming capabilities (the first 0 to 4 of them), and, for up to three
// agents, × every narrowing.
func TestSmallScopeEffective(t *testing.T) {
	total := int64(0)
	for n := 1; n <= scopeAgents; n++ {
		list := forests(n)
		const environments = scopeCapabilities + 1
		states := spread(t, len(list)*environments, func(shard int) int64 {
			if shard%sampled(n) != 0 {
				return 0
			}
			environment := 1<<(shard%environments) - 1
			c := newScope(t, list[shard/environments], environment, nil)
			narrowings := 1
			if n <= 3 {
				narrowings = 1 << scopeCapabilities
			}
			for narrowed := narrowings - 1; narrowed >= 0; narrowed-- {
				env := environment
				if narrowings > 1 {
					env &= narrowed
					c.apply(&events.EnvironmentChanged{Capabilities: setOf[narrowed]}, nil)
				}
				c.declarations(env)
			}
			return c.states
		})
		t.Logf("%d agents: %d forests, %d states", n, len(list), states)
		total += states
	}
	t.Logf("effective sets: %d states, whole %v", total, *whole)
}

// declarations goes through everything that the agents may declare, one
// capability of one agent changing at a time, and compares in each state.
func (c *scope) declarations(environment int) {
	declared := make([]int, len(c.f))
	lines := make([][]int, len(c.f))
	for i := range c.f {
		lines[i] = c.f.line(i)
		c.declare(i, 0)
	}
	for at := uint(0); ; {
		c.states++
		for i, a := range c.agents {
			want := environment
			for _, level := range lines[i] {
				want &= declared[level]
			}
			c.check(a, want)
			if parent := c.f[i]; parent >= 0 && want&^c.mask(c.agents[parent]) != 0 {
				c.t.Errorf("%v %v: %s holds more than its parent", c.f, declared, a.ID)
			}
		}
		at++
		bit := bits.TrailingZeros(at) // of a Gray code
		if bit >= len(c.f)*scopeCapabilities || c.t.Failed() {
			return
		}
		i := bit / scopeCapabilities
		declared[i] ^= 1 << (bit % scopeCapabilities)
		c.declare(i, declared[i])
	}
}

func (c *scope) declare(i, mask int) {
	c.apply(&events.AgentUpdated{AgentID: agentName(i), Capabilities: setOf[mask]}, nil)
}

// mask is what the real state says that an agent holds.
func (c *scope) mask(a *projection.Agent) (mask int) {
	for i, name := range scopeNames {
		if ok, _ := c.s.Holds(a, name); ok {
			mask |= 1 << i
		}
	}
	return mask
}

func (c *scope) check(a *projection.Agent, want int) {
	if got := c.mask(a); got != want {
		c.t.Errorf("%v: %s holds %04b, want %04b", c.f, a.ID, got, want)
	}
	if c.states&15 != 0 { // the set as a list is the same question, asked more slowly
		return
	}
	if got := c.s.Effective(a); !slices.Equal([]string(got), setOf[want]) && len(got)+len(setOf[want]) > 0 {
		c.t.Errorf("%v: effective(%s) is %v, want %v", c.f, a.ID, got, setOf[want])
	}
}

// R13, R14: denies. Every forest of at most five agents × what each declares of
// two capabilities × both environments of each × every narrowing or none × every
// set of revoked agents.
func TestSmallScopeRevoked(t *testing.T) {
	total := int64(0)
	for n := 1; n <= scopeAgents; n++ {
		list := forests(n)
		states := spread(t, len(list)<<n, func(shard int) int64 {
			if shard%sampled(n) != 0 {
				return 0
			}
			f, revoked := list[shard>>n], shard&(1<<n-1)
			states := int64(0)
			for environment := range 4 {
				states += revocations(t, f, environment, revoked)
			}
			return states
		})
		t.Logf("%d agents: %d forests, %d states", n, len(list), states)
		total += states
	}
	t.Logf("revocations: %d states, whole %v", total, *whole)
}

// revocations goes through the declarations of two capabilities before and
// after each agent is revoked: what is declared cannot be changed afterwards.
func revocations(t *testing.T, f forest, environment, revoked int) (states int64) {
	for declared := range 1 << (2 * len(f)) {
		c := newScope(t, f, environment, nil)
		for i := range f {
			c.declare(i, declared>>(2*i)&3)
		}
		for i := range f {
			if revoked>>i&1 == 1 {
				c.apply(&events.AgentRevoked{AgentID: agentName(i)}, nil)
			}
		}
		for narrowed := -1; narrowed < 4; narrowed++ {
			env := environment
			if narrowed >= 0 {
				env &= narrowed
				c.apply(&events.EnvironmentChanged{Capabilities: setOf[narrowed]}, nil)
			}
			states++
			for i, a := range c.agents {
				want := env
				for _, level := range f.line(i) {
					want &= declared >> (2 * level) & 3
					if revoked>>level&1 == 1 {
						want = 0
					}
				}
				if got := c.mask(a); got != want {
					t.Fatalf("%v declares %b, revoked %b, environment %b narrowed %d: %s holds %02b, want %02b", f, declared, revoked, environment, narrowed, a.ID, got, want)
				}
			}
		}
	}
	return states
}

// what one agent may have under a name: nothing, or a record.
type scopeRecord struct {
	visibility string
	class      string
	value      string // of a mandatory one
}

// R21, R22, R29, R30: reads. Every forest of at most five agents × what each of
// them has under one name × every reader × asked for by name and of every owner,
// judged by Decide. A name is of one class; under a preference records may have
// been secret before.
func TestSmallScopeReads(t *testing.T) {
	kinds := map[string][]scopeRecord{"note": {{}}, "rule": {{}}, "secret": {{}}}
	for _, visibility := range []string{"private", "children", "descendants"} {
		kinds["note"] = append(kinds["note"], scopeRecord{visibility, "preference", ""})
		kinds["secret"] = append(kinds["secret"], scopeRecord{visibility, "secret", ""})
		kinds["rule"] = append(kinds["rule"], scopeRecord{visibility, "mandatory", "true"}, scopeRecord{visibility, "mandatory", "false"})
	}
	kinds["note"] = append(kinds["note"], scopeRecord{"descendants", "secret", ""}, scopeRecord{"children", "secret", ""})
	total := int64(0)
	for n := 1; n <= scopeAgents; n++ {
		list := forests(n)
		names := []string{"note", "rule", "secret"}
		states := spread(t, len(list)*len(names), func(shard int) int64 {
			if shard%sampled(n) != 0 {
				return 0
			}
			c := newScope(t, list[shard/len(names)], 15, map[string]string{"rule": "mandatory", "secret": "secret"})
			for i := range c.f {
				c.declare(i, 15)
			}
			c.reads(names[shard%len(names)], kinds[names[shard%len(names)]])
			return c.states
		})
		t.Logf("%d agents: %d forests, %d states", n, len(list), states)
		total += states
	}
	t.Logf("reads: %d states, each read by everybody in every way, whole %v", total, *whole)
}

// reads goes through all that the agents may have under a name, one record
// changing at a time.
func (c *scope) reads(name string, kinds []scopeRecord) {
	has := make([]int, len(c.f))
	up := make([]bool, len(c.f))
	for i := range up {
		up[i] = true
	}
	requests := map[string]*wire.Request{}
	for _, owner := range append([]string{""}, []string{"a", "b", "c", "d", "e"}[:len(c.f)]...) {
		body := fmt.Sprintf(`{"namespace":%q,"key":"k"}`, name)
		if owner != "" {
			body = fmt.Sprintf(`{"namespace":%q,"key":"k","owner_agent_id":%q}`, name, owner)
		}
		r, code := wire.Decode(wire.Propose, "memory.read", []byte(body))
		if code != "" {
			c.t.Fatal(code)
		}
		requests[owner] = r
	}
	for {
		c.states++
		for reader := range c.f {
			for owner, request := range requests {
				c.read(name, kinds, has, reader, owner, request)
			}
		}
		i := 0
		for ; i < len(c.f); i++ { // a Gray code of len(kinds) digits: up to the end and down again
			next := has[i] + 1
			if !up[i] {
				next = has[i] - 1
			}
			if next >= 0 && next < len(kinds) {
				c.put(i, name, kinds[has[i]], kinds[next])
				has[i] = next
				break
			}
			up[i] = !up[i]
		}
		if i == len(c.f) || c.t.Failed() {
			return
		}
	}
}

// put changes what an agent has. A secret record becomes another only after it
// is deleted.
func (c *scope) put(i int, name string, old, next scopeRecord) {
	record := events.Record{Owner: agentName(i), Namespace: name, Key: "k", Visibility: old.visibility, Class: old.class, Revision: 1}
	if r := c.s.Record(record.Owner, name, "k"); r != nil {
		record.Revision = r.Revision + 1
	}
	if old.class != "" && (next.class == "" || old.class == "secret" && next.class != "secret") {
		c.apply(&events.MemoryDeleted{Record: record}, nil)
		record.Revision++
	}
	if next.class == "" {
		return
	}
	record.Visibility, record.Class = next.visibility, next.class
	var open []byte
	if next.value != "" {
		open = []byte(next.value)
	}
	c.apply(&events.MemoryWritten{Record: record}, open)
}

// read compares one read with what it must come to.
func (c *scope) read(name string, kinds []scopeRecord, has []int, reader int, owner string, request *wire.Request) {
	want, from, value := naiveRead(c.f, kinds, has, reader, owner, name)
	o := ledger.Decide(c.s, &ledger.Proposal{Lane: wire.Propose, Subject: agentName(reader), Operation: "memory.read", Request: request})
	got := ""
	if o.Read != nil {
		got = string(o.Read.Combined)
	}
	if o.Decision.Reason != string(want) || o.Decision.Owner != from || got != value || (o.Read != nil) != want.Allowed() {
		c.t.Errorf("%v %s %v: %s reads of %q: %s from %q, combined %q, want %s from %q, %q", c.f, name, has, agentName(reader), owner, o.Decision.Reason, o.Decision.Owner, got, want, from, value)
	}
}

// naiveRead is what a read comes to: RULES R21, R22, R29, R30 word by word.
func naiveRead(f forest, kinds []scopeRecord, has []int, reader int, owner, name string) (code reason.Code, from, value string) {
	secret := func(r scopeRecord) bool { return r.class == "secret" }
	visible := func(level int, r scopeRecord) bool {
		return level == 0 || !secret(r) && (r.visibility == "descendants" || r.visibility == "children" && level == 1)
	}
	line := f.line(reader)
	if owner != "" {
		at := int(owner[0] - 'a')
		r := kinds[has[at]]
		level := slices.Index(line, at)
		switch {
		case r.class == "":
			return reason.RecordNotFound, "", ""
		case level >= 0 && visible(level, r):
			return reason.VisibleFrom, owner, ""
		case secret(r):
			return reason.GrantRequired, owner, ""
		}
		return reason.NotVisibleFrom, owner, ""
	}
	shown, hidden, all := -1, -1, "true"
	for level, at := range line {
		r := kinds[has[at]]
		switch {
		case r.class == "":
			continue
		case visible(level, r) && shown < 0:
			shown = at
		case !visible(level, r) && hidden < 0:
			hidden = at
		}
		if r.value == "false" {
			all = "false"
		}
	}
	switch {
	case shown < 0 && hidden < 0:
		return reason.RecordNotFound, "", ""
	case shown < 0:
		return reason.NotVisibleFrom, agentName(hidden), ""
	case name == "rule":
		return reason.CombinedFrom, agentName(shown), all
	}
	return reason.VisibleFrom, agentName(shown), ""
}

// R14, R64: emergency denies. Every forest of at most five agents × who declares
// the first of two capabilities × for every agent as the top of a subtree, and for
// the whole ledger, a deny of nothing, of the first capability or of everything;
// then all of them lifted again.
func TestSmallScopeDenies(t *testing.T) {
	total := int64(0)
	for n := 1; n <= scopeAgents; n++ {
		list := forests(n)
		states := spread(t, len(list)<<n, func(shard int) int64 {
			if shard%sampled(n) != 0 {
				return 0
			}
			return denials(t, list[shard>>n], shard&(1<<n-1))
		})
		t.Logf("%d agents: %d forests, %d states", n, len(list), states)
		total += states
	}
	t.Logf("emergency denies: %d states, whole %v", total, *whole)
}

// denials goes through every way to deny two capabilities, the first of which
// the agents of a mask declare.
func denials(t *testing.T, f forest, declared int) (states int64) {
	ways := 3
	for range f {
		ways *= 3
	}
	for way := range ways {
		c := newScope(t, f, 3, nil)
		for i := range f {
			c.declare(i, 2|declared>>i&1)
		}
		var denies []events.Emergency
		taken := make([]int, len(f)) // by the denies on each agent's own subtree
		all := 0
		for i, rest := 0, way; i <= len(f); i, rest = i+1, rest/3 {
			if rest%3 == 0 {
				continue
			}
			d := events.Emergency{Scope: events.ScopeAll, Epoch: uint64(len(denies)) + 1, All: rest%3 == 2}
			mask := 3
			if !d.All {
				d.Capabilities, mask = setOf[1], 1
			}
			if i < len(f) {
				d.Scope, taken[i] = agentName(i), mask
			} else {
				all = mask
			}
			c.apply(&events.EmergencyDenied{Emergency: d}, nil)
			denies = append(denies, d)
		}
		states += 2
		compare := func(taken []int, all int) {
			for i, a := range c.agents {
				want := 3 &^ all
				for _, level := range f.line(i) {
					want &= (2 | declared>>level&1) &^ taken[level]
				}
				if got := c.mask(a); got != want {
					t.Errorf("%v declares %b, denied %v: %s holds %02b, want %02b", f, declared, denies, a.ID, got, want)
				}
			}
		}
		compare(taken, all)
		for _, d := range denies {
			c.apply(&events.EmergencyLifted{Emergency: d}, nil)
		}
		compare(make([]int, len(f)), 0)
		if t.Failed() {
			return states
		}
	}
	return states
}

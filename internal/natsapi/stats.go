package natsapi

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Stats is what the door and the feed tell of themselves at one moment. The
// keys of the maps are of closed lists, and those that never happened are left
// out.
type Stats struct {
	Connections   int               // clients, ledgerd's own among them
	Refused       map[string]uint64 // before judgement, by reason code
	Denied        map[string]uint64 // by the server itself: DeniedAuth …
	SlowConsumers uint64            // connections the server dropped because they did not read
	Dropped       uint64            // requests that ledgerd's own subscriptions could not take
	Feed          FeedStatus
	FeedLag       uint64        // events on disk that the stream lacks
	FeedAge       time.Duration // of the oldest of them, by ledger time
}

// Stats returns what the door and the feed tell of themselves now. Safe for
// concurrent use.
func (n *Node) Stats() Stats {
	s := Stats{
		Connections: n.server.ns.NumClients(), Refused: n.api.turnedAway.read(), Denied: n.kept.read(),
		SlowConsumers: uint64(n.server.ns.NumSlowConsumers()), Dropped: n.server.dropped(), Feed: n.Feed(),
	}
	if n.feed != nil {
		s.FeedLag = n.ledger.Durable() - min(n.ledger.Durable(), s.Feed.Published)
		s.FeedAge = n.ledger.Age(s.Feed.Published + 1)
	}
	return s
}

// feedLagMax is how old an event may be that the stream still lacks. A stream
// that is filled anew after its loss takes longer, and the node is not ready.
const feedLagMax = time.Minute

// Checks looks at everything that full service takes, the ledger's own checks
// first. Safe for concurrent use.
func (n *Node) Checks() []ledger.Check {
	return append(n.ledger.Checks(), n.checkConnections(), n.checkFeed())
}

// checkConnections finds one of ledgerd's own connections that is down: what
// arrives is then not answered.
func (n *Node) checkConnections() ledger.Check {
	for part, nc := range n.server.own() {
		if nc.Status() != nats.CONNECTED {
			return ledger.Check{Name: "connections", Status: ledger.CheckFail, Detail: "ledgerd's own connection as " + string(part) + " is down"}
		}
	}
	return ledger.Check{Name: "connections", Status: ledger.CheckOK}
}

func (n *Node) checkFeed() ledger.Check {
	check := ledger.Check{Name: "feed", Status: ledger.CheckFail}
	s := n.Stats()
	switch {
	case s.Feed.Halted != nil:
		check.Detail = "the feed has halted: " + s.Feed.Halted.Error()
	case s.Feed.Fault != nil:
		check.Detail = "the feed waits: " + s.Feed.Fault.Error()
	case s.FeedAge > feedLagMax:
		check.Detail = fmt.Sprintf("the feed is %d events and %d s behind the log", s.FeedLag, int64(s.FeedAge.Seconds()))
	default:
		check.Status = ledger.CheckOK
	}
	return check
}

// tally counts by names of a closed list, without a lock.
type tally map[string]*atomic.Uint64

func newTally(names ...string) tally {
	t := tally{}
	for _, name := range names {
		t[name] = new(atomic.Uint64)
	}
	return t
}

// newReasonTally counts by reason code.
func newReasonTally() tally {
	var names []string
	for _, info := range reason.All() {
		names = append(names, string(info.Code))
	}
	return newTally(names...)
}

func (t tally) add(name string) {
	if n := t[name]; n != nil {
		n.Add(1)
	}
}

func (t tally) read() map[string]uint64 {
	out := map[string]uint64{}
	for name, n := range t {
		if v := n.Load(); v > 0 {
			out[name] = v
		}
	}
	return out
}

// own lists ledgerd's own connections that are open or to be reopened, but for
// the feed's, which looks after itself.
func (s *Server) own() map[Part]*nats.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[Part]*nats.Conn{}
	for _, c := range s.conns {
		if c.part != FeedWriter {
			out[c.part] = c.nc
		}
	}
	return out
}

// lagging remembers a subscription of ours that dropped what it was sent.
func (s *Server) lagging(sub *nats.Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.slow[sub]; !known {
		s.slow[sub] = 0
	}
}

// dropped is how many requests our own subscriptions lost. A subscription that
// has ended counts with what it had lost when last asked.
func (s *Server) dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum uint64
	for sub, last := range s.slow {
		if n, err := sub.Dropped(); err == nil {
			last = uint64(max(0, n))
			s.slow[sub] = last
		}
		sum += last
	}
	return sum
}

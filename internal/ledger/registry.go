package ledger

import (
	"sync"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// Identity is who a public key belongs to.
type Identity struct {
	ID        string
	Role      string // agent, or a principal's role
	PublicKey string
	Actions   []string
	Groups    []string
	Root      string
}

// registry answers whose a key is, for connections: only what is durable, and
// nobody who is revoked. Safe for concurrent use.
type registry struct {
	mu    sync.RWMutex
	byKey map[string]Identity
	keyOf map[string]string
}

func newRegistry(s *projection.State) *registry {
	r := &registry{byKey: map[string]Identity{}, keyOf: map[string]string{}}
	for _, id := range s.AgentIDs() {
		if a := s.Agent(id); !a.Revoked {
			r.put(Identity{ID: id, Role: "agent", PublicKey: a.PublicKey})
		}
	}
	for _, id := range s.PrincipalIDs() {
		if p := s.Principal(id); !p.Revoked {
			r.put(Identity{ID: id, Role: p.Role, PublicKey: p.PublicKey, Actions: p.Actions, Groups: p.Groups, Root: p.Root})
		}
	}
	return r
}

func (r *registry) put(i Identity) {
	r.byKey[i.PublicKey] = i
	r.keyOf[i.ID] = i.PublicKey
}

// apply follows one durable event and returns whose connections it ends.
func (r *registry) apply(b events.Body) (cut string) {
	switch b.(type) {
	case *events.AgentRegistered, *events.AgentRevoked, *events.PrincipalRegistered, *events.PrincipalRekeyed, *events.PrincipalRevoked:
	default:
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch b := b.(type) {
	case *events.AgentRegistered:
		r.put(Identity{ID: b.AgentID, Role: "agent", PublicKey: b.PublicKey})
	case *events.PrincipalRegistered:
		r.put(Identity{ID: b.ID, Role: b.Role, PublicKey: b.PublicKey, Actions: b.Actions, Groups: b.Groups, Root: b.Root})
	case *events.AgentRevoked:
		delete(r.byKey, r.keyOf[b.AgentID])
		return b.AgentID
	case *events.PrincipalRevoked:
		delete(r.byKey, r.keyOf[b.ID])
		return b.ID
	case *events.PrincipalRekeyed:
		i := r.byKey[r.keyOf[b.ID]]
		delete(r.byKey, i.PublicKey)
		i.PublicKey = b.PublicKey
		r.put(i)
		return b.ID
	}
	return ""
}

// Lookup returns whose a public key is. Safe for concurrent use; what it
// knows is durable.
func (l *Ledger) Lookup(publicKey string) (Identity, bool) {
	l.registry.mu.RLock()
	defer l.registry.mu.RUnlock()
	i, ok := l.registry.byKey[publicKey]
	return i, ok
}

// valueCache keeps the values read last, by the seq of the event that wrote
// them, in two generations: when one is full the older goes.
type valueCache struct {
	mu       sync.Mutex
	new, old map[uint64][]byte
	bytes    int
}

const valueCacheBytes = 16 << 20 // each generation

func (c *valueCache) get(seq uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.new[seq]; v != nil {
		return v
	}
	return c.old[seq]
}

func (c *valueCache) put(seq uint64, v []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += len(v) + 64; c.bytes > valueCacheBytes || c.new == nil {
		c.old, c.new, c.bytes = c.new, map[uint64][]byte{}, len(v)+64
	}
	c.new[seq] = v
}

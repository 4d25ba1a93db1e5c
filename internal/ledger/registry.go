package ledger

import (
	"sync"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// Identity is who a public key belongs to, or belonged to.
type Identity struct {
	ID        string
	Role      string // agent, or a principal's role
	PublicKey string
	Actions   []string
	Groups    []string
	Root      string
	Revoked   bool // its holder is revoked, or has another key now: it opens nothing
}

// registry answers whose a key is, for connections. It knows only what is
// durable, and keeps dead keys, so that their use is put to a name. Safe for
// concurrent use.
type registry struct {
	mu    sync.RWMutex
	byKey map[string]Identity
	keyOf map[string]string // id → its key, the last one
	roots map[string]string // agent with a parent → the root of its tree
}

func newRegistry(s *projection.State) *registry {
	r := &registry{byKey: map[string]Identity{}, keyOf: map[string]string{}, roots: map[string]string{}}
	s.Keys(func(key, id string) {
		r.byKey[key] = Identity{ID: id, PublicKey: key, Revoked: true}
	})
	for _, id := range s.AgentIDs() {
		a := s.Agent(id)
		r.put(Identity{ID: id, Role: "agent", PublicKey: a.PublicKey, Revoked: a.Revoked})
		if a.Parent != nil {
			root := a.Parent
			for root.Parent != nil {
				root = root.Parent
			}
			r.roots[id] = root.ID
		}
	}
	for _, id := range s.PrincipalIDs() {
		p := s.Principal(id)
		r.put(Identity{ID: id, Role: p.Role, PublicKey: p.PublicKey, Actions: p.Actions, Groups: p.Groups, Root: p.Root, Revoked: p.Revoked})
	}
	return r
}

func (r *registry) put(i Identity) {
	r.byKey[i.PublicKey] = i
	r.keyOf[i.ID] = i.PublicKey
}

// revoke ends the key that id has and returns who it was.
func (r *registry) revoke(id string) Identity {
	i := r.byKey[r.keyOf[id]]
	dead := i
	dead.Revoked = true
	r.put(dead)
	return i
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
		if b.ParentID != "" {
			r.roots[b.AgentID] = r.root(b.ParentID)
		}
	case *events.PrincipalRegistered:
		r.put(Identity{ID: b.ID, Role: b.Role, PublicKey: b.PublicKey, Actions: b.Actions, Groups: b.Groups, Root: b.Root})
	case *events.AgentRevoked:
		cut = b.AgentID
		r.revoke(cut)
	case *events.PrincipalRevoked:
		cut = b.ID
		r.revoke(cut)
	case *events.PrincipalRekeyed:
		cut = b.ID
		i := r.revoke(cut)
		i.PublicKey = b.PublicKey
		r.put(i)
	}
	return cut
}

func (r *registry) root(id string) string {
	if root, ok := r.roots[id]; ok {
		return root
	}
	return id
}

// Root is the root of the tree an agent is in, and anybody else itself. It never
// changes. Safe for concurrent use.
func (l *Ledger) Root(id string) string {
	l.registry.mu.RLock()
	defer l.registry.mu.RUnlock()
	return l.registry.root(id)
}

// Lookup returns whose a public key is or was. Safe for concurrent use; what
// it knows is durable.
func (l *Ledger) Lookup(publicKey string) (Identity, bool) {
	l.registry.mu.RLock()
	defer l.registry.mu.RUnlock()
	i, ok := l.registry.byKey[publicKey]
	return i, ok
}

// Role is the role of id's last key, empty for nobody. Safe for concurrent use.
func (l *Ledger) Role(id string) string { return l.registered(id).Role }

// registered is who id is, durably, by its last key; the zero Identity for
// nobody.
func (l *Ledger) registered(id string) Identity {
	l.registry.mu.RLock()
	defer l.registry.mu.RUnlock()
	return l.registry.byKey[l.registry.keyOf[id]]
}

// valueCache keeps the values read last, by the seq of the event that wrote
// them, in two generations: when one is full the older goes.
type valueCache struct {
	mu       sync.Mutex
	new, old map[uint64][]byte
	bytes    int
	cleared  int // how often
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

func (c *valueCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.new, c.old, c.bytes = nil, nil, 0
	c.cleared++
}

// age tells put what was read before the cache was cleared.
func (c *valueCache) age() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cleared
}

func (c *valueCache) put(seq uint64, v []byte, age int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if age != c.cleared {
		return
	}
	if c.bytes += len(v) + 64; c.bytes > valueCacheBytes || c.new == nil {
		c.old, c.new, c.bytes = c.new, map[uint64][]byte{}, len(v)+64
	}
	c.new[seq] = v
}

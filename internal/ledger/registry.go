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

	tree string // an agent's root, empty for a root
}

// registry answers whose a key is, for connections. It knows only what is
// durable, and keeps dead keys, so that their use is put to a name. Safe for
// concurrent use.
type registry struct {
	mu    sync.RWMutex
	byKey map[string]*Identity // none is changed once it is here
	byID  map[string]*Identity // by its key, the last one
}

func newRegistry(s *projection.State) *registry {
	n := s.Sizes()
	room := (n.Agents + n.Principals) * 5 / 4 // so that no part of a map has to grow
	r := &registry{byKey: make(map[string]*Identity, room), byID: make(map[string]*Identity, room)}
	for a := range s.Agents() {
		tree := ""
		for root := a.Parent; root != nil; root = root.Parent {
			tree = root.ID
		}
		r.put(Identity{ID: a.ID, Role: "agent", PublicKey: a.PublicKey, Revoked: a.Revoked, tree: tree})
	}
	for _, id := range s.PrincipalIDs() {
		p := s.Principal(id)
		r.put(Identity{ID: id, Role: p.Role, PublicKey: p.PublicKey, Actions: p.Actions, Groups: p.Groups, Root: p.Root, Revoked: p.Revoked})
	}
	s.Keys(func(key, id string) {
		if r.byKey[key] == nil {
			r.byKey[key] = &Identity{ID: id, PublicKey: key, Revoked: true}
		}
	})
	return r
}

func (r *registry) put(i Identity) {
	r.byKey[i.PublicKey], r.byID[i.ID] = &i, &i
}

// revoke ends the key that id has.
func (r *registry) revoke(id string) {
	i := r.last(id)
	i.Revoked = true
	r.put(i)
}

// last is who id is by its last key; the zero Identity for nobody.
func (r *registry) last(id string) Identity {
	if i := r.byID[id]; i != nil {
		return *i
	}
	return Identity{}
}

// apply follows one event and returns whose connections it ends.
func (r *registry) apply(b events.Body) (cut string) {
	switch b.(type) {
	case *events.LedgerCreated, *events.AgentRegistered, *events.AgentRevoked, *events.PrincipalRegistered, *events.PrincipalRekeyed, *events.PrincipalRevoked:
	default:
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch b := b.(type) {
	case *events.LedgerCreated:
		r.put(Identity{ID: b.AdminID, Role: "admin", PublicKey: b.AdminPublicKey})
	case *events.AgentRegistered:
		i := Identity{ID: b.AgentID, Role: "agent", PublicKey: b.PublicKey}
		if b.ParentID != "" {
			i.tree = r.root(b.ParentID)
		}
		r.put(i)
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
		i := r.last(cut)
		r.byKey[i.PublicKey] = &Identity{ID: i.ID, PublicKey: i.PublicKey, Revoked: true}
		i.PublicKey = b.PublicKey
		r.put(i)
	}
	return cut
}

func (r *registry) root(id string) string {
	if i := r.byID[id]; i != nil && i.tree != "" {
		return i.tree
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
	i := l.registry.byKey[publicKey]
	if i == nil {
		return Identity{}, false
	}
	return *i, true
}

// Role is the role of id's last key, empty for nobody. Safe for concurrent use.
func (l *Ledger) Role(id string) string { return l.registered(id).Role }

// registered is who id is, durably, by its last key; the zero Identity for
// nobody.
func (l *Ledger) registered(id string) Identity {
	l.registry.mu.RLock()
	defer l.registry.mu.RUnlock()
	return l.registry.last(id)
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

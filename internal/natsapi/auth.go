package natsapi

import (
	"encoding/base64"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// door decides who gets in, with what rights, and remembers which connection is
// whose, so that refusals can be put to a name and a revocation can cut.
//
// A connection is entered in the table before the registry is asked about its
// key. A revocation that happens in between finds it there, marked as not
// settled, and has the registry asked again.
type door struct {
	ledger string
	lookup func(publicKey string) (Identity, bool)
	denied func(Denied)
	fault  func(msg string, args ...any) // tells of what only a bug of ours can cause
	own    map[string]Part               // ledgerd's own public keys
	rights map[Part]Rights               // and what each part may do

	most int // connections of all but admins

	// Set before the server starts.
	server   *server.Server
	accounts map[string]*server.Account

	mu      sync.Mutex
	conns   map[uint64]*conn // by the server's connection id, which is never reused
	probes  map[string]bool  // local addresses of the start-up probes
	sweepAt int              // size of conns at which the closed ones are dropped
}

// conn is what is known of a connection that presented itself.
type conn struct {
	key     string
	id      string // of the key, proven or only claimed; empty for an unknown key
	part    Part   // of ledgerd's own connections
	settled bool   // id is what the registry says
	stale   bool   // the registry may have changed while it was asked
	probe   bool   // one of the start-up probes
}

const sweepMin = 128 // connections remembered before the first look for closed ones

// Check implements server.Authentication. It refuses unless the key is
// registered, not revoked, and has signed this connection's nonce.
func (d *door) Check(ca server.ClientAuthentication) bool {
	opts := ca.GetOpts()
	remote, inProcess := "", false
	if addr := ca.RemoteAddress(); addr != nil {
		remote, inProcess = addr.String(), addr.Network() == "pipe"
	}
	c := &conn{key: opts.Nkey}
	if inProcess {
		c.part = d.own[opts.Nkey]
	}
	if !d.enter(ca.GetID(), c, remote) {
		return false
	}
	var rights Rights
	var who Identity
	if c.part != "" {
		d.settle(c, "")
		rights = d.rights[c.part]
	} else if found, ok := d.identify(c); ok {
		who, rights = found, Permissions(d.ledger, found)
	}
	if c.part == "" && (d.crowded(c.id, ca.GetID()) || who.Role != RoleAdmin && d.server.NumClients() > d.most) {
		return false
	}
	if ca.Kind() != server.CLIENT || !signed(opts.Nkey, opts.Sig, ca.GetNonce()) {
		return false
	}
	// The server takes an absent list for "everything".
	account := d.accounts[rights.Account]
	if account == nil || len(rights.Publish) == 0 || len(rights.Subscribe) == 0 {
		return false
	}
	ca.RegisterUser(&server.User{
		Account: account,
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: rights.Publish},
			Subscribe: &server.SubjectPermission{Allow: rights.Subscribe},
		},
	})
	return true
}

// connectionsPerID keeps one id from taking every connection there is.
const connectionsPerID = 64

// crowded reports whether id has as many live connections as it may, the one
// called self not counted. The server is asked outside of d.mu, as in sweep.
func (d *door) crowded(id string, self uint64) bool {
	var cids []uint64
	d.mu.Lock()
	for cid, c := range d.conns {
		if c.id == id && c.part == "" && cid != self {
			cids = append(cids, cid)
		}
	}
	d.mu.Unlock()
	if len(cids) < connectionsPerID {
		return false
	}
	live := 0
	for _, cid := range cids {
		if d.server.GetClient(cid) != nil {
			live++
		}
	}
	return live >= connectionsPerID
}

// who is whose a connection is, and in what role; both are empty for ledgerd's
// own.
func (d *door) who(cid uint64) (id, role string) {
	d.mu.Lock()
	c := d.conns[cid]
	d.mu.Unlock()
	if c == nil || c.part != "" {
		return "", ""
	}
	who, _ := d.lookup(c.key)
	return who.ID, who.Role
}

// presented reports whether a connection has said who it is.
func (d *door) presented(cid uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conns[cid] != nil
}

// enter records c under cid. It reports false for a connection that presents
// itself twice: its subscriptions and the refusals already counted belong to
// who it was first.
func (d *door) enter(cid uint64, c *conn, remote string) bool {
	d.sweep()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns[cid] != nil {
		return false
	}
	c.probe = d.probes[remote]
	d.conns[cid] = c
	return true
}

// identify asks the registry who holds c's key, again if someone was cut off
// meanwhile.
func (d *door) identify(c *conn) (Identity, bool) {
	for {
		d.mu.Lock()
		c.stale = false
		d.mu.Unlock()
		who, ok := d.lookup(c.key)
		if !ok {
			who = Identity{}
		}
		if d.settle(c, who.ID) {
			return who, ok
		}
	}
}

// settle records what the registry said; false if it has to be asked again.
func (d *door) settle(c *conn, id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.stale {
		return false
	}
	c.id, c.settled = id, true
	return true
}

// cut closes every connection that belongs reports true for and returns how
// many there were. Connections whose key is being looked up are looked up
// again. The registry must have changed before.
func (d *door) cut(belongs func(*conn) bool) int {
	var cids []uint64
	d.mu.Lock()
	for cid, c := range d.conns {
		switch {
		case !c.settled:
			c.stale = true
		case c.part == "" && belongs(c):
			cids = append(cids, cid)
		}
	}
	d.mu.Unlock()
	n := 0
	for _, cid := range cids {
		if d.server.DisconnectClientByID(cid) == nil {
			n++
		}
	}
	return n
}

// sweep forgets closed connections; the server does not tell when one closes.
// It is called outside of d.mu, which the server may want while it holds its
// own locks, and does work only each time the table has doubled.
func (d *door) sweep() {
	d.mu.Lock()
	if len(d.conns) < d.sweepAt {
		d.mu.Unlock()
		return
	}
	cids := make([]uint64, 0, len(d.conns))
	for cid := range d.conns {
		cids = append(cids, cid)
	}
	d.mu.Unlock()

	var closed []uint64
	for _, cid := range cids {
		if d.server.GetClient(cid) == nil {
			closed = append(closed, cid)
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	for _, cid := range closed {
		delete(d.conns, cid)
	}
	d.sweepAt = max(sweepMin, 2*len(d.conns))
}

// signed reports whether sig is key's signature of nonce. The server accepts
// both base64 alphabets, as do its own checks.
func signed(key, sig string, nonce []byte) bool {
	if len(nonce) == 0 || !nkeys.IsValidPublicUserKey(key) {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil {
		if raw, err = base64.StdEncoding.DecodeString(sig); err != nil {
			return false
		}
	}
	pub, err := nkeys.FromPublicKey(key)
	return err == nil && pub.Verify(nonce, raw) == nil
}

package natsapi

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// What is sent to ledgerd waits in the server until ledgerd's own connection
// takes it, which is fast (see inflow), but not as fast as many connections that do
// nothing but send. The server slows senders down when three quarters of maxPending
// wait, by 10 ms for each read, and closes the connection that is sent to when
// all of it is used: ours, and what waits there is lost. Before either, the guard
// closes the connections of whoever sends most: sixty that flood fill a quarter of
// maxPending in the time that a busy machine lets the guard wait for its turn.
// Whoever keeps to any rate is never that one.
const (
	guardEvery   = 20 * time.Millisecond
	guardClosely = time.Millisecond     // once watchedMin wait
	watchedMin   = maxPending / 8       // bytes
	pressureMax  = maxPending / 2       // bytes
	pressureWait = 5 * time.Millisecond // over which it is seen who sends most
	loudMin      = 64 << 10             // bytes in that time: nobody does so at any lawful rate
)

// guard looks after the pressure on ledgerd's own connections, and after the
// admins' reserve, until ctx ends. cut is told of an id whose connections were closed.
func (s *Server) guard(ctx context.Context, cut func(id string)) {
	tick, slow := time.NewTimer(guardEvery), time.NewTicker(time.Second)
	defer tick.Stop()
	defer slow.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-slow.C:
			s.thin()
			continue
		case <-tick.C:
		}
		if s.ns.NumClients() > s.door.most {
			s.evict()
		}
		waits := s.waits()
		for ; waits > pressureMax && ctx.Err() == nil; waits = s.waits() {
			id := s.loudest()
			if id == "" {
				break
			}
			s.log.Warn("cut off: it sends faster than anybody can read", "id", id, "connections", s.Disconnect(id))
			cut(id)
		}
		if waits > watchedMin {
			tick.Reset(guardClosely)
		} else {
			tick.Reset(guardEvery)
		}
	}
}

// waits is how many bytes wait for that of ledgerd's own connections for which
// most do.
func (s *Server) waits() (most int64) {
	for part, nc := range s.own() {
		if part != WorkResponder && part != ControlResponder && part != FeedResponder || nc.Status() != nats.CONNECTED {
			continue
		}
		cid, err := nc.GetClientID()
		if err != nil {
			continue
		}
		z, err := s.ns.Connz(&server.ConnzOptions{CID: cid})
		if err == nil && len(z.Conns) == 1 {
			most = max(most, int64(z.Conns[0].Pending))
		}
	}
	return most
}

// loudest is the id whose connections bring most bytes right now, empty if
// nobody's do.
func (s *Server) loudest() string {
	before := s.received()
	time.Sleep(pressureWait)
	by := map[string]int64{}
	for cid, bytes := range s.received() {
		if id := s.door.idOf(cid); id != "" {
			by[id] += bytes - before[cid]
		}
	}
	most := "" // brings nothing
	for _, id := range slices.Sorted(maps.Keys(by)) {
		if by[id] > by[most] {
			most = id
		}
	}
	if by[most] < loudMin {
		return "" // what waits is from before
	}
	return most
}

// received is how many bytes each connection has brought, by its number.
func (s *Server) received() map[uint64]int64 {
	in := map[uint64]int64{}
	z, err := s.ns.Connz(&server.ConnzOptions{Limit: s.ns.NumClients() + 1})
	if err != nil {
		return in
	}
	for _, c := range z.Conns {
		in[c.Cid] = c.InBytes
	}
	return in
}

// thin closes the connections of ids that have more subscriptions, all together,
// than one connection may have: each answer to one that subscribes to its inbox
// again and again is delivered as often, before the next answer to anybody.
// Handlers are let be: they subscribe for each action, in queue groups.
func (s *Server) thin() {
	z, err := s.ns.Connz(&server.ConnzOptions{Limit: s.ns.NumClients() + 1})
	if err != nil {
		return
	}
	subscriptions := map[string]int{}
	for _, c := range z.Conns {
		if id, role := s.door.who(c.Cid); id != "" && role != RoleHandler {
			subscriptions[id] += int(c.NumSubs)
		}
	}
	for id, n := range subscriptions {
		if n > maxSubscriptions {
			s.log.Warn("cut off: more subscriptions than it can need", "id", id, "subscriptions", n, "connections", s.Disconnect(id))
			s.door.denied(Denied{ID: id, Code: DeniedSubscribe})
		}
	}
}

const presentMin = 200 * time.Millisecond // to say who one is, where connections are scarce

// evict closes connections that have been open for a while without saying whose
// they are: the admins' reserve would be full of them.
func (s *Server) evict() {
	z, err := s.ns.Connz(&server.ConnzOptions{Limit: s.ns.NumClients() + 1})
	if err != nil {
		return
	}
	for _, c := range z.Conns {
		if !s.door.presented(c.Cid) && z.Now.Sub(c.Start) > presentMin {
			_ = s.ns.DisconnectClientByID(c.Cid) // it may have gone by itself
		}
	}
}

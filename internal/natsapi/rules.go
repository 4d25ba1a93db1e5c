package natsapi

import (
	"cmp"
	"slices"

	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// restrictionsOn lists what binds an agent, the root's first, as far as w may
// read it.
func restrictionsOn(s *projection.State, w asker, a *projection.Agent) (list []wire.Restriction) {
	room := replyRoom / 2
	for _, level := range slices.Backward(a.Lineage()) {
		for _, r := range restrictionsOf(level) {
			if room -= len(wire.Encode(r)); room < 0 || !w.readsRules(s, level.ID) {
				r.Require = ""
			}
			list = append(list, r)
		}
	}
	return list
}

// restrictionsOf lists an agent's own.
func restrictionsOf(a *projection.Agent) (list []wire.Restriction) {
	for _, r := range a.Restrictions {
		list = append(list, wire.Restriction{AgentID: a.ID, ID: r.ID, Action: r.Action, Require: r.Text})
	}
	return list
}

// resources shows the registry, or one entry of it. It is the whole ledger's.
func resources(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	out := wire.Resources{Resources: []wire.Resource{}, Seq: s.Seq}
	if q.Resource != "" {
		r, ok := s.Resource(q.Resource)
		if !ok {
			return refusal(reason.NotFound)
		}
		out.Resources = append(out.Resources, resource(r))
		return func() []byte { return wire.Encode(out) }
	}
	var rest []policy.Resource
	s.EachResource(func(r policy.Resource) {
		if r.ID > q.After {
			rest = append(rest, r)
		}
	})
	return func() []byte { // sorting them is no work for the writer's goroutine
		slices.SortFunc(rest, func(a, b policy.Resource) int { return cmp.Compare(a.ID, b.ID) })
		size := 0
		for _, r := range rest {
			entry := resource(r)
			size += len(wire.Encode(entry)) + 1
			if n := len(out.Resources); size > replyRoom || q.Limit > 0 && uint64(n) == q.Limit {
				out.Next = out.Resources[n-1].ID
				break
			}
			out.Resources = append(out.Resources, entry)
		}
		return wire.Encode(out)
	}
}

func resource(r policy.Resource) wire.Resource {
	return wire.Resource{ID: r.ID, Classification: r.Classification, Owner: r.Owner, Tags: r.Tags}
}

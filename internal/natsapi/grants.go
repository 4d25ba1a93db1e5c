package natsapi

import (
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// grants lists the grants in force: to an agent those that it gave and those
// that it was given, to others those whose owner they see.
func grants(s *projection.State, w asker, q *wire.QueryRequest, now events.Time) func() []byte {
	out := wire.Grants{Grants: []wire.Grant{}, Seq: s.Seq}
	var all []wire.Grant
	s.EachGrant(now, func(g *projection.Grant) {
		if w.role == RoleAgent && g.Owner != w.id && g.To != w.id || w.role != RoleAgent && !w.sees(s, g.Owner) {
			return
		}
		if entry := (wire.Grant{Owner: g.Owner, Namespace: g.Namespace, Key: g.Key, To: g.To, Expires: g.Expires.String(), Uses: g.Uses}); entry.Name() > q.After {
			all = append(all, entry)
		}
	})
	return func() []byte {
		slices.SortFunc(all, func(a, b wire.Grant) int { return strings.Compare(a.Name(), b.Name()) })
		size := 0
		for _, entry := range all {
			size += len(wire.Encode(entry)) + 1
			if n := len(out.Grants); size > replyRoom || q.Limit > 0 && uint64(n) == q.Limit {
				out.Next = out.Grants[n-1].Name()
				break
			}
			out.Grants = append(out.Grants, entry)
		}
		return wire.Encode(out)
	}
}

// denies lists the emergency denies in force, by epoch. They are the whole
// ledger's.
func denies(s *projection.State, w asker) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	out := wire.Denies{Denies: ledger.Denies(s), Epoch: s.DenyEpoch, Seq: s.Seq}
	return func() []byte { return wire.Encode(out) }
}

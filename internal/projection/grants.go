package projection

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Grant lets one agent read one secret of another.
type Grant struct {
	events.Grant
	Expires events.Time
	Uses    uint64 // left; meaningful where it is counted
	Counted bool
}

// Grant returns what an agent was granted of a record, nil where nothing holds
// at ledger time now.
func (s *State) Grant(name events.Grant, now events.Time) *Grant {
	if g := s.grants[name]; g != nil && s.lends(g, now) {
		return g
	}
	return nil
}

// EachGrant calls fn with the grants that hold at now, in no order.
func (s *State) EachGrant(now events.Time, fn func(*Grant)) {
	for _, g := range s.grants {
		if s.lends(g, now) {
			fn(g)
		}
	}
}

// Grants lists the grants that hold at now, by record and grantee.
func (s *State) Grants(now events.Time) []Grant {
	var list []Grant
	s.EachGrant(now, func(g *Grant) { list = append(list, *g) })
	slices.SortFunc(list, func(a, b Grant) int { return compareGrants(a.Grant, b.Grant) })
	return list
}

// lends reports whether a grant holds: its time has not come, nor its record's.
func (s *State) lends(g *Grant, now events.Time) bool {
	return now < g.Expires && s.Live(g.Owner, g.Namespace, g.Key, now) != nil
}

func compareGrants(a, b events.Grant) int {
	return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Key, b.Key), cmp.Compare(a.To, b.To))
}

func (s *State) give(b *events.GrantGiven, at events.Time) error {
	owner, to := s.agents[b.Owner], s.agents[b.To]
	if owner == nil || owner.Revoked || to == nil || to.Revoked || owner == to || b.Expires <= at || s.Live(b.Owner, b.Namespace, b.Key, at) == nil {
		return fmt.Errorf("%w: a grant of nothing, to nobody, or expired", ErrInconsistent)
	}
	s.endGrants(func(g *Grant) bool { return g.Expires <= at })
	s.grants[b.Grant] = &Grant{Grant: b.Grant, Expires: b.Expires, Uses: b.Uses, Counted: b.Uses > 0}
	return nil
}

func (s *State) revokeGrant(b *events.GrantRevoked) error {
	if s.grants[b.Grant] == nil {
		return fmt.Errorf("%w: no such grant", ErrInconsistent)
	}
	delete(s.grants, b.Grant)
	return nil
}

// use counts a read under a grant, which its decision alone tells.
func (s *State) use(d *events.Decision) error {
	if !d.Allowed || d.Reason != string(reason.GrantedBy) {
		return nil
	}
	_, name, _ := strings.Cut(d.Resource, ":")
	dot := max(strings.LastIndexByte(name, '.'), 0)
	g := s.grants[events.Grant{Owner: d.Owner, Namespace: name[:dot], Key: strings.TrimPrefix(name[dot:], "."), To: d.Subject}]
	switch {
	case g == nil:
		return fmt.Errorf("%w: no grant to read under", ErrInconsistent)
	case !g.Counted:
	case g.Uses == 1:
		delete(s.grants, g.Grant)
	default:
		used := *g
		used.Uses--
		s.grants[g.Grant] = &used
	}
	return nil
}

// endGrants ends those that dead says: with their record, or with either agent.
func (s *State) endGrants(dead func(*Grant) bool) {
	for name, g := range s.grants {
		if dead(g) {
			delete(s.grants, name)
		}
	}
}

func (w *snapshotWriter) grants(s *State) {
	names := make([]events.Grant, 0, len(s.grants))
	for name := range s.grants {
		names = append(names, name)
	}
	slices.SortFunc(names, compareGrants)
	w.uint(uint64(len(names)))
	for _, name := range names {
		g := s.grants[name]
		w.text(g.Owner)
		w.text(g.Namespace)
		w.text(g.Key)
		w.text(g.To)
		w.uint(uint64(g.Expires))
		w.uint(g.Uses)
		w.flag(g.Counted)
	}
}

func (r *snapshotReader) grants(s *State) {
	s.grants = map[events.Grant]*Grant{}
	var before events.Grant
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		g := &Grant{Grant: events.Grant{Owner: r.text(), Namespace: r.text(), Key: r.text(), To: r.text()}, Expires: r.time(), Uses: r.uint(), Counted: r.flag()}
		if len(s.grants) > 0 && compareGrants(before, g.Grant) >= 0 || g.Counted != (g.Uses > 0) {
			r.fail("grants out of order, or used up")
		}
		before = g.Grant
		s.grants[g.Grant] = g
	}
}

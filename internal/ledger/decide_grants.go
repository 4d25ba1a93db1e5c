package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// now is the time of the decision: what has expired is gone from the moment
// ledger time reaches it.
func (j *judge) now() events.Time { return max(j.p.Now, j.s.Time) }

// give lets one agent read one secret of the sender's for a time.
func (j *judge) give(r *wire.GrantGive) reason.Code {
	record := j.s.Live(j.p.Subject, r.Namespace, r.Key, j.now())
	to := j.s.Agent(r.To)
	switch {
	case j.fails("an own secret", record == nil || j.s.ClassOf(record) != policy.Secret):
		j.note("the sender has no secret of this name")
		return reason.NotFound
	case j.fails("grantee", to == nil || to.Revoked || to == j.agent):
		j.note("a grant is to another agent that is registered and not revoked")
		return reason.NotFound
	}
	own, tree, all := 0, 0, 0
	given := events.Grant{Owner: j.p.Subject, Namespace: r.Namespace, Key: r.Key, To: r.To}
	j.s.EachGrant(j.now(), func(g *projection.Grant) {
		owner := j.s.Agent(g.Owner)
		if holds, _ := j.s.Holds(owner, "memory.read"); !holds || g.Grant == given {
			return // counts for nothing, or is replaced
		}
		all++
		if owner.Root() == j.agent.Root() {
			tree++
		}
		if owner == j.agent {
			own++
		}
	})
	if j.fails("quota of grants", own >= events.GrantsOfOneMax || tree >= events.GrantsOfTreeMax || all >= events.GrantsMax) {
		return reason.QuotaExceeded
	}
	j.emit(&events.GrantGiven{Grant: given, Expires: j.now() + events.Time(r.Seconds)*1_000_000, Uses: r.Uses})
	return reason.GrantGiven
}

func (j *judge) take(r *wire.GrantRevoke) reason.Code {
	name := events.Grant{Owner: j.p.Subject, Namespace: r.Namespace, Key: r.Key, To: r.To}
	if j.fails("a grant in force", j.s.Grant(name, j.now()) == nil) {
		return reason.NotFound
	}
	j.emit(&events.GrantRevoked{Grant: name})
	return reason.GrantRevoked
}

// granted reports whether the sender reads a secret under a grant that holds
// now. It is only as good as its giver's own right to read, and never counts in
// a procedure: a run's results would outlive it.
func (j *judge) granted(r *wire.MemoryRead) bool {
	owner := j.s.Agent(r.Owner)
	if owner == nil || j.d.Operation == StepOperation {
		return false
	}
	holds, _ := j.s.Holds(owner, "memory.read")
	return holds && j.s.Grant(events.Grant{Owner: r.Owner, Namespace: r.Namespace, Key: r.Key, To: j.p.Subject}, j.now()) != nil
}

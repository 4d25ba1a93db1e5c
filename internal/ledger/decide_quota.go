package ledger

import "github.com/ledgerd/ledgerd/internal/projection"

// quota is one limit of a policy: of an agent, or of its whole tree. 0 limits
// nothing.
type quota struct {
	what       string
	has, most  int // of the agent itself
	all, limit int // of its tree
}

// over reports whether one more would be beyond a quota; the decision then names
// whose it is: the agent, or the root of its tree.
func (j *judge) over(guard string, q quota) bool {
	switch {
	case j.fails(guard, q.most > 0 && q.has >= q.most):
		j.d.Owner = j.agent.ID
		j.note("%s has %d %s, as many as an agent may have", j.agent.ID, q.has, q.what)
	case j.fails(guard, q.limit > 0 && q.all >= q.limit):
		j.d.Owner = j.agent.Root().ID
		j.note("the tree of %s has as many %s as a tree may have", j.d.Owner, q.what)
	default:
		return false
	}
	return true
}

// overRecords is over for a write: a new record takes a place, unless it takes
// that of one which is gone and of which that is not yet said.
func (j *judge) overRecords(record *projection.Record) bool {
	const guard = "quota of records"
	if record != nil && !record.Deleted {
		return j.fails(guard, false)
	}
	q := &j.s.Policy.Quotas
	return j.over(guard, quota{"records", j.agent.Records, q.Records, j.agent.Root().Tree.Records, q.TreeRecords})
}

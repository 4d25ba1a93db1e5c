package projection

// Usage is what an agent and all beneath it have, which quotas of a tree limit.
// It is counted as it changes, on the way up to the root, and anew where a state
// is read.
type Usage struct {
	Records      int // neither deleted nor said to be gone
	Agents       int // not revoked
	Runs         int // open
	Restrictions int // whoever added them, of revoked agents too
}

func (a *Agent) add(u Usage) {
	for ; a != nil; a = a.Parent {
		a.Tree.Records += u.Records
		a.Tree.Agents += u.Agents
		a.Tree.Runs += u.Runs
		a.Tree.Restrictions += u.Restrictions
	}
}

// Root is the agent at the top of a's tree.
func (a *Agent) Root() *Agent {
	for a.Parent != nil {
		a = a.Parent
	}
	return a
}

// countRecord counts that now is in the place of old, nil for none.
func (s *State) countRecord(old, now *Record) {
	n := 0
	if now != nil && !now.Deleted {
		n++
	}
	if old != nil && !old.Deleted {
		n--
	}
	if owner := s.agents[now.Owner]; n != 0 && owner != nil {
		owner.Records += n
		owner.add(Usage{Records: n})
	}
}

package projection

// Sizes says how much a state holds.
type Sizes struct {
	Agents, Principals, Records, Operations int // revoked and deleted ones included
	OpenRuns, Doubts                        int // doubts are among the open runs
	Denies                                  int // emergency denies in force
}

// Sizes counts what the state holds. It takes no time that grows with it.
func (s *State) Sizes() Sizes {
	return Sizes{len(s.agents), len(s.principals), s.records.count, s.operations.count, s.OpenCount(), s.doubts, len(s.denies)}
}

package projection

import "github.com/ledgerd/ledgerd/internal/policy"

// Under calls fn while another policy is in force and some agents are as their
// documents say, and then puts everything back: what would have been decided, had
// it been so. fn must not apply events.
func (s *State) Under(p *policy.Policy, documents map[string]*policy.Agent, fn func()) {
	was, before := s.Policy, map[*Agent]Agent{}
	for id, d := range documents {
		if a := s.agents[id]; a != nil {
			before[a] = *a
			a.Declared, a.Use, a.Writes = d.Capabilities, d.Use, d.Writes
		}
	}
	s.Policy = p
	s.rights++
	defer func() {
		s.Policy = was
		for a, old := range before {
			a.Declared, a.Use, a.Writes = old.Declared, old.Use, old.Writes
		}
		s.rights++
	}()
	fn()
}

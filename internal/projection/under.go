package projection

import "github.com/ledgerd/ledgerd/internal/policy"

// Under calls fn while another policy is in force and some agents declare other
// capabilities, and then puts everything back: what would have been decided, had
// it been so. fn must not apply events.
func (s *State) Under(p *policy.Policy, declared map[string]policy.Set, fn func()) {
	was, declares := s.Policy, map[*Agent]policy.Set{}
	for id, set := range declared {
		if a := s.agents[id]; a != nil {
			declares[a], a.Declared = a.Declared, set
		}
	}
	s.Policy = p
	s.rights++
	defer func() {
		s.Policy = was
		for a, set := range declares {
			a.Declared = set
		}
		s.rights++
	}()
	fn()
}

package policy

import "slices"

// Set is a set of capabilities: sorted, without repetition. Make one with
// NewSet or ParseDocument; the nil Set is empty. Sets are never changed in
// place, so they may be shared.
type Set []string

// NewSet returns the set of names.
func NewSet(names ...string) Set {
	s := slices.Clone(names)
	slices.Sort(s)
	return Set(slices.Compact(s))
}

// Has reports whether name is in s.
func (s Set) Has(name string) bool {
	_, ok := slices.BinarySearch(s, name)
	return ok
}

// Intersect returns what is in both s and t.
func (s Set) Intersect(t Set) Set { return s.filter(t.Has) }

// Minus returns what is in s and not in t.
func (s Set) Minus(t Set) Set { return s.filter(func(name string) bool { return !t.Has(name) }) }

// SubsetOf reports whether every name in s is in t.
func (s Set) SubsetOf(t Set) bool { return len(s.Minus(t)) == 0 }

// Equal reports whether s and t hold the same names.
func (s Set) Equal(t Set) bool { return slices.Equal(s, t) }

func (s Set) filter(keep func(string) bool) Set {
	var kept Set
	for _, name := range s {
		if keep(name) {
			kept = append(kept, name)
		}
	}
	return kept
}

package policy

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// names is a small alphabet, so that random sets meet.
var names = rapid.SampledFrom([]string{"memory.read", "memory.write", "agent.register", "a", "a.b", "a.b-c", "a_b", "b"})

func sets() *rapid.Generator[Set] {
	return rapid.Custom(func(t *rapid.T) Set {
		return NewSet(rapid.SliceOfN(names, 0, 8).Draw(t, "names")...)
	})
}

func TestSetIsSortedAndWithoutRepetition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(names, 0, 12).Draw(t, "list")
		s := NewSet(list...)
		if !slices.IsSorted(s) || len(slices.Compact(slices.Clone(s))) != len(s) {
			t.Fatalf("NewSet(%v) = %v", list, s)
		}
		for _, name := range []string{"a", "b", "memory.read", "c"} {
			if s.Has(name) != slices.Contains(list, name) {
				t.Fatalf("%v.Has(%q) = %v", s, name, s.Has(name))
			}
		}
		if shuffled := NewSet(rapid.Permutation(list).Draw(t, "shuffled")...); !shuffled.Equal(s) {
			t.Fatalf("%v and %v differ", shuffled, s)
		}
	})
}

func TestSetAlgebra(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := sets().Draw(t, "a"), sets().Draw(t, "b"), sets().Draw(t, "c")
		both := a.Intersect(b)
		for _, name := range NewSet(slices.Concat(a, b, c)...) {
			if both.Has(name) != (a.Has(name) && b.Has(name)) {
				t.Fatalf("%q in %v ∩ %v = %v", name, a, b, both)
			}
			if a.Minus(b).Has(name) != (a.Has(name) && !b.Has(name)) {
				t.Fatalf("%q in %v − %v", name, a, b)
			}
		}
		switch {
		case !both.Equal(b.Intersect(a)):
			t.Fatal("intersection does not commute")
		case !both.Intersect(c).Equal(a.Intersect(b.Intersect(c))):
			t.Fatal("intersection does not associate")
		case !a.Intersect(a).Equal(a) || !a.Minus(a).Equal(nil):
			t.Fatal("a set with itself")
		case a.SubsetOf(b) != both.Equal(a):
			t.Fatalf("%v.SubsetOf(%v) = %v", a, b, a.SubsetOf(b))
		case a.Equal(b) != (a.SubsetOf(b) && b.SubsetOf(a)):
			t.Fatal("equality is not containment both ways")
		}
	})
}

// Whatever is declared below, no intersection along a lineage ever holds more
// than the one above it.
func TestR15_IntersectionAlongALineageOnlyShrinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		effective := sets().Draw(t, "environment")
		for _, declared := range rapid.SliceOfN(sets(), 0, 6).Draw(t, "lineage") {
			below := effective.Intersect(declared)
			if !below.SubsetOf(effective) || !below.SubsetOf(declared) {
				t.Fatalf("%v ∩ %v = %v", effective, declared, below)
			}
			effective = below
		}
	})
}

func TestSetOperationsLeaveTheirOperandsAlone(t *testing.T) {
	list := []string{"b", "a"}
	a, b := NewSet(list...), NewSet("a", "c")
	a.Intersect(b)
	a.Minus(b)
	if !slices.Equal(list, []string{"b", "a"}) || !a.Equal(NewSet("a", "b")) || !b.Equal(NewSet("a", "c")) {
		t.Fatalf("list %v, a %v, b %v", list, a, b)
	}
}

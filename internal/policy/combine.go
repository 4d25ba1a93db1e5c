package policy

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// AllTrue and the others say how the mandatory records of a lineage come to one
// value. Each takes values of one type, and goes one way only as records are
// added: a descendant's can tighten and never loosen what stands above it.
const (
	AllTrue      = "all_true"     // booleans: true only if all are
	AnyTrue      = "any_true"     // booleans: true if one is
	Min          = "min"          // integers: the least
	Max          = "max"          // integers: the greatest
	Union        = "union"        // lists of texts: what any holds
	Intersection = "intersection" // lists of texts: what all hold
)

// Combinations lists them.
var Combinations = []string{AllTrue, AnyTrue, Min, Max, Union, Intersection}

// Typed reports whether canonical JSON is of the type that a combination takes.
func Typed(how string, value []byte) bool {
	_, ok := Combine(how, [][]byte{value})
	return ok && len(value) <= MandatoryBytesMax
}

// MandatoryBytesMax bounds a mandatory record's value, since all of a lineage's
// are read wherever one is asked for.
const MandatoryBytesMax = 8192

// Combine combines the values of mandatory records, each canonical JSON, into
// canonical JSON: lists sorted, each text once. ok is false if there are none,
// if any is of another type, or if the result is larger than a value may be:
// then there is no value, and whoever needs one denies.
func Combine(how string, values [][]byte) (value []byte, ok bool) {
	if len(values) == 0 {
		return nil, false
	}
	var all []events.Value
	for _, v := range values {
		parsed, err := events.ParseJSON(v)
		if err != nil {
			return nil, false
		}
		all = append(all, parsed)
	}
	var combined events.Value
	switch how {
	case AllTrue, AnyTrue:
		combined, ok = combineBooleans(how, all)
	case Min, Max:
		combined, ok = combineIntegers(how, all)
	case Union, Intersection:
		combined, ok = combineLists(how, all)
	}
	if !ok {
		return nil, false
	}
	value = combined.AppendCanonical(nil)
	return value, len(value) <= events.ValueBytesMax
}

func combineBooleans(how string, all []events.Value) (events.Value, bool) {
	decides := events.False // one of these settles it
	if how == AnyTrue {
		decides = events.True
	}
	combined := all[0]
	for _, v := range all {
		if v.Kind != events.True && v.Kind != events.False {
			return v, false
		}
		if v.Kind == decides {
			combined = v
		}
	}
	return combined, true
}

func combineIntegers(how string, all []events.Value) (events.Value, bool) {
	combined := all[0]
	least, ok := combined.Int()
	for _, v := range all {
		n, integer := v.Int()
		if !ok || !integer {
			return v, false
		}
		if how == Min && n < least || how == Max && n > least {
			combined, least = v, n
		}
	}
	return combined, true
}

func combineLists(how string, all []events.Value) (events.Value, bool) {
	var combined Set
	for i, v := range all {
		list, ok := textsOf(v)
		switch {
		case !ok:
			return v, false
		case i == 0:
			combined = list
		case how == Union:
			combined = NewSet(slices.Concat(combined, list)...)
		default:
			combined = combined.Intersect(list)
		}
	}
	out := events.Value{Kind: events.Array}
	for _, text := range combined {
		out.Elements = append(out.Elements, events.Value{Kind: events.String, Text: text})
	}
	return out, true
}

func textsOf(v events.Value) (Set, bool) {
	if v.Kind != events.Array {
		return nil, false
	}
	var list []string
	for _, e := range v.Elements {
		if e.Kind != events.String {
			return nil, false
		}
		list = append(list, e.Text)
	}
	return NewSet(list...), true
}

// Combination is how the records under a name are combined; empty where the
// name is not mandatory.
func (p *Policy) Combination(namespace, key string) string {
	if p == nil {
		return ""
	}
	rule, _ := covering(p.Namespaces, []byte(namespace+"."+key))
	return rule.Combine
}

// AllowsValue reports whether a value, canonical JSON, is one that every rule
// over its name takes: a deeper rule adds to those above it.
func (p *Policy) AllowsValue(namespace, key string, value []byte) bool {
	if p == nil {
		return false
	}
	for _, rule := range p.Namespaces {
		if rule.Value != nil && covers(rule.Name, namespace+"."+key) && rule.Value.ValidateJSON(value) != nil {
			return false
		}
	}
	return true
}

// covers reports whether a rule's name is name or a prefix of it by whole
// segments.
func covers(rule, name string) bool {
	return len(rule) <= len(name) && name[:len(rule)] == rule && (len(rule) == len(name) || name[len(rule)] == '.')
}

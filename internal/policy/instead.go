package policy

import "slices"

// What a denial may name in the place of what was asked for.

// Nearest is the candidate that a slip of the keyboard could have made name of,
// or empty.
func Nearest(name string, candidates Set) string {
	near, _ := nearest(name, candidates)
	return near
}

// CommonWrites are the patterns that every level's writes allow; nil where no
// level limits it.
func CommonWrites(levels []Set) Set {
	var all []string
	limited := false
	for _, level := range levels {
		if len(level) > 0 {
			limited = true
			all = append(all, level...)
		}
	}
	if !limited {
		return nil
	}
	return NewSet(slices.DeleteFunc(all, func(pattern string) bool {
		return slices.ContainsFunc(levels, func(level Set) bool { return len(level) > 0 && !Includes(level, pattern) })
	})...)
}

// ValueFault is a value rule that a value breaks.
type ValueFault struct {
	Rule   string // the namespace rule's name
	Schema string // what it asks for, canonical JSON
	Fault  *SchemaFault
}

// ValueFaults lists the value rules over a name that a value breaks.
func (p *Policy) ValueFaults(namespace, key string, value []byte) (list []ValueFault) {
	if p == nil {
		return nil
	}
	for _, rule := range p.Namespaces {
		if rule.Value == nil || !covers(rule.Name, namespace+"."+key) {
			continue
		}
		if err := rule.Value.ValidateJSON(value); err != nil {
			fault, ok := err.(*SchemaFault)
			if !ok {
				fault = &SchemaFault{Why: err.Error()}
			}
			list = append(list, ValueFault{rule.Name, string(rule.Value.value.AppendCanonical(nil)), fault})
		}
	}
	return list
}

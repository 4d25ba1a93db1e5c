package policy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Differences says in words what a candidate would change of the policy in
// force; nothing where they mean the same.
func Differences(was, next *Policy) []string {
	if was == nil {
		was = &Policy{Version: "none"}
	}
	var list []string
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if was.Version != next.Version {
		say("version: %s becomes %s", was.Version, next.Version)
	}
	list = append(list, SetDifferences("environment", was.Environment, next.Environment)...)
	byName := func(rules []NamespaceRule) map[string]NamespaceRule {
		m := map[string]NamespaceRule{}
		for _, rule := range rules {
			m[rule.Name] = rule
		}
		return m
	}
	list = append(list, changes("action", was.Actions, next.Actions)...)
	list = append(list, changes("namespace rule", byName(was.Namespaces), byName(next.Namespaces))...)
	if was.Version != "none" && was.TreeDepth != next.TreeDepth {
		say("limits: tree_depth %d becomes %d", was.TreeDepth, next.TreeDepth)
	}
	if was.Version != "none" && was.Children != next.Children {
		say("limits: children %d becomes %d", was.Children, next.Children)
	}
	return list
}

// SetDifferences says which capabilities come and which go.
func SetDifferences(what string, was, next Set) (list []string) {
	for _, name := range next.Minus(was) {
		list = append(list, fmt.Sprintf("%s: %s is added", what, name))
	}
	for _, name := range was.Minus(next) {
		list = append(list, fmt.Sprintf("%s: %s is taken away", what, name))
	}
	return list
}

func changes[V any](what string, was, next map[string]V) (list []string) {
	names := maps.Clone(next)
	maps.Copy(names, was)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, had := was[name]
		b, has := next[name]
		switch {
		case !had:
			list = append(list, fmt.Sprintf("%s %s is new", what, name))
		case !has:
			list = append(list, fmt.Sprintf("%s %s is gone", what, name))
		case !reflect.DeepEqual(a, b):
			list = append(list, fmt.Sprintf("%s %s is changed", what, name))
		}
	}
	return list
}

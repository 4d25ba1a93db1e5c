package policy

import (
	"fmt"
	"maps"
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
	list = append(list, changes("action", was.Actions, next.Actions, Action.same)...)
	for _, name := range slices.Sorted(maps.Keys(next.Actions)) {
		if old, had := was.Actions[name]; had {
			list = append(list, changes("action "+name+" requirement", clauseTexts(old), clauseTexts(next.Actions[name]), func(a, b string) bool { return a == b })...)
		}
	}
	list = append(list, changes("namespace rule", byName(was.Namespaces), byName(next.Namespaces), NamespaceRule.same)...)
	if was.Version != "none" && was.TreeDepth != next.TreeDepth {
		say("limits: tree_depth %d becomes %d", was.TreeDepth, next.TreeDepth)
	}
	before := was.Quotas.list()
	for i, q := range next.Quotas.list() {
		if q.most != before[i].most {
			say("limits: %s %d becomes %d (0 is none)", q.name, before[i].most, q.most)
		}
	}
	if was.Version != "none" && was.Children != next.Children {
		say("limits: children %d becomes %d", was.Children, next.Children)
	}
	return list
}

// AgentDifferences says in words what an Agent document would change of the
// agent, nil where it is new. What an apply leaves as it is, a restriction that
// the document has not, is no difference.
func AgentDifferences(was, next *Agent) (list []string) {
	what := "agent " + next.ID
	if was == nil {
		return []string{what + " is new"}
	}
	list = append(list, SetDifferences(what, was.Capabilities, next.Capabilities)...)
	use, writes := next.Limits(was.Use, was.Writes)
	list = append(list, SetDifferences(what+" use", was.Use, use)...)
	list = append(list, SetDifferences(what+" writes", was.Writes, writes)...)
	for _, r := range next.Restrictions {
		i := slices.IndexFunc(was.Restrictions, func(had Restriction) bool { return had.ID == r.ID })
		switch {
		case i < 0:
			list = append(list, fmt.Sprintf("%s restriction %s is added", what, r.ID))
		case was.Restrictions[i] != r:
			list = append(list, fmt.Sprintf("%s restriction %s says something else; an admin removes it first", what, r.ID))
		}
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

// same leaves out the requirements, each of which is compared by itself.
func (a Action) same(b Action) bool {
	return a.Arguments.text() == b.Arguments.text() && a.Timeout == b.Timeout && a.MaxBytes == b.MaxBytes
}

func (r NamespaceRule) same(other NamespaceRule) bool {
	return r.Class == other.Class && r.Combine == other.Combine && r.Seconds == other.Seconds && r.Value.text() == other.Value.text()
}

// text is the schema as canonical JSON, empty for none.
func (s *Schema) text() string {
	if s == nil {
		return ""
	}
	return string(s.value.AppendCanonical(nil))
}

func clauseTexts(a Action) map[string]string {
	texts := map[string]string{}
	for _, clause := range a.Require {
		texts[clause.ID] = clause.Text
	}
	return texts
}

func changes[V any](what string, was, next map[string]V, same func(a, b V) bool) (list []string) {
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
		case !same(a, b):
			list = append(list, fmt.Sprintf("%s %s is changed", what, name))
		}
	}
	return list
}

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
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
	list = append(list, changes("action", was.Actions, next.Actions, Action.becomes)...)
	for _, name := range slices.Sorted(maps.Keys(next.Actions)) {
		if old, had := was.Actions[name]; had {
			list = append(list, changes("action "+name+" requirement", clauseTexts(old), clauseTexts(next.Actions[name]), becomesText)...)
		}
	}
	list = append(list, changes("namespace rule", byName(was.Namespaces), byName(next.Namespaces), NamespaceRule.becomes)...)
	if was.Version != "none" && was.TreeDepth != next.TreeDepth {
		say("limits: tree_depth %d becomes %d", was.TreeDepth, next.TreeDepth)
	}
	before := was.Quotas.list()
	for i, q := range next.Quotas.list() {
		if q.most != before[i].most {
			say("limits: %s %d becomes %d (0 is none)", q.name, before[i].most, q.most)
		}
	}
	if was.RetentionDays != next.RetentionDays {
		say("limits: retention_days %d becomes %d (0 is none)", was.RetentionDays, next.RetentionDays)
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
	if next.Parent != was.Parent {
		list = append(list, fmt.Sprintf("%s is beneath %s, and apply moves no agent: the document will be refused", what, cmp.Or(was.Parent, "no one")))
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

// Misfits says which restrictions of agents mean nothing under a policy, and so
// deny whatever they are about.
func Misfits(p *Policy, id string, restrictions []Restriction) (list []string) {
	for _, r := range restrictions {
		if _, err := p.CompileClause(r.Action, r.ID, r.Text); err != nil {
			list = append(list, fmt.Sprintf("agent %s restriction %s does not fit any more, and denies: %s: %v", id, r.ID, r.Action, err))
		}
	}
	return list
}

// becomes says in words what of an action is another, less the requirements,
// each of which is compared by itself; empty for nothing.
func (a Action) becomes(b Action) string {
	parts := schemaDifferences("arguments", a.Arguments, b.Arguments)
	number := func(what string, was, next, otherwise int64) {
		if was, next = cmp.Or(was, otherwise), cmp.Or(next, otherwise); was != next {
			parts = append(parts, fmt.Sprintf("%s %d becomes %d", what, was, next))
		}
	}
	number("timeout in microseconds", a.Timeout, b.Timeout, TimeoutDefault)
	number("max_bytes", int64(a.MaxBytes), int64(b.MaxBytes), OutputDefault)
	return strings.Join(parts, "; ")
}

func (r NamespaceRule) becomes(other NamespaceRule) string {
	var parts []string
	word := func(what, was, next string) {
		if was != next {
			parts = append(parts, fmt.Sprintf("%s %s becomes %s", what, cmp.Or(was, "none"), cmp.Or(next, "none")))
		}
	}
	word("class", string(r.Class), string(other.Class))
	word("combine", r.Combine, other.Combine)
	word("ttl_seconds", fmt.Sprint(r.Seconds), fmt.Sprint(other.Seconds))
	return strings.Join(append(parts, schemaDifferences("value", r.Value, other.Value)...), "; ")
}

func becomesText(was, next string) string {
	if was == next {
		return ""
	}
	return fmt.Sprintf("%q becomes %q", was, next)
}

// schemaDifferencesMax bounds what is said of one schema.
const schemaDifferencesMax = 8

// schemaDifferences says at which places two schemas differ.
func schemaDifferences(what string, was, next *Schema) (list []string) {
	switch {
	case was == nil && next == nil:
		return nil
	case was == nil:
		return []string{what + " has a schema now"}
	case next == nil:
		return []string{what + " has no schema any more"}
	}
	var compare func(at string, a, b events.Value)
	compare = func(at string, a, b events.Value) {
		before, after := string(a.AppendCanonical(nil)), string(b.AppendCanonical(nil))
		if before == after || len(list) > schemaDifferencesMax {
			return
		}
		if a.Kind != events.Object || b.Kind != events.Object {
			list = append(list, fmt.Sprintf("%s %s becomes %s", at, before, after))
			return
		}
		for _, m := range a.Members {
			if other, has := b.Get(m.Name); has {
				compare(at+"/"+m.Name, m.Value, other)
			} else {
				list = append(list, fmt.Sprintf("%s/%s %s is gone", at, m.Name, m.Value.AppendCanonical(nil)))
			}
		}
		for _, m := range b.Members {
			if _, had := a.Get(m.Name); !had {
				list = append(list, fmt.Sprintf("%s/%s %s is new", at, m.Name, m.Value.AppendCanonical(nil)))
			}
		}
	}
	compare(what, was.value, next.value)
	if len(list) > schemaDifferencesMax {
		list = append(list[:schemaDifferencesMax], "and more")
	}
	return list
}

func clauseTexts(a Action) map[string]string {
	texts := map[string]string{}
	for _, clause := range a.Require {
		texts[clause.ID] = clause.Text
	}
	return texts
}

// changes says what comes, what goes, and by becomes how the rest differs.
func changes[V any](what string, was, next map[string]V, becomes func(a, b V) string) (list []string) {
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
		default:
			if how := becomes(a, b); how != "" {
				list = append(list, fmt.Sprintf("%s %s: %s", what, name, how))
			}
		}
	}
	return list
}

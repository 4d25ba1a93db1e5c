package trial

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/policy"
)

// requirements looks for rules that say nothing, and for arguments that reach
// outside and are held to no rule.
func (l *linter) requirements() {
	for _, name := range sorted(l.policy.Actions) {
		action := l.policy.Actions[name]
		for _, clause := range action.Require {
			l.constant(l.at, clause.ID, name, clause.Text)
			l.unlaid(l.at, clause.ID, name, clause.Text)
		}
		for _, argument := range action.OpenTexts() {
			member := member(argument)
			ask := outside(argument, member)
			asked := func(how func(text string) bool) bool {
				return slices.ContainsFunc(action.Require, func(c *policy.Clause) bool { return how(c.Text) })
			}
			switch {
			case ask == "":
			case !asked(func(text string) bool { return mentions(text, member) }):
				l.warn(l.at, name+":", "%s takes any text as %s; say with require: what it may be, such as %s", name, argument, ask)
			case strings.Contains(ask, ".within(") && !asked(func(text string) bool { return strings.Contains(text, member+".within(") }):
				l.warn(l.at, name+":", "the requirements of %s look at the letters of %s, which a path climbs out of with ../; ask %s", name, argument, ask)
			case strings.HasPrefix(ask, "host(") && !asked(func(text string) bool { return strings.Contains(text, "host("+member+")") }):
				l.warn(l.at, name+":", "the requirements of %s look at the letters of %s, which do not tell its host: https://example.com@evil.net; ask %s", name, argument, ask)
			}
		}
	}
	for i, d := range l.documents {
		if d.Agent == nil {
			continue
		}
		for _, r := range d.Agent.Restrictions {
			l.constant(i, r.ID, r.Action, r.Text)
			l.unlaid(i, r.ID, r.Action, r.Text)
			if !d.Agent.Capabilities.Has(r.Action) {
				l.warn(i, r.ID, "restriction %s is on %s, which %s does not declare, so that nobody it binds can do it; declare it, or leave the restriction out", r.ID, r.Action, d.Agent.ID)
			}
		}
	}
}

var mandatoryName = regexp.MustCompile(`\bmandatory\(\s*["']([^"']*)["']\s*\)`)

// unlaid looks for mandatory records that a requirement asks for and no rule
// makes mandatory.
func (l *linter) unlaid(document int, id, action, text string) {
	for _, m := range mandatoryName.FindAllStringSubmatch(text, -1) {
		dot := strings.LastIndexByte(m[1], '.')
		if dot > 0 && l.policy.Combination(m[1][:dot], m[1][dot+1:]) != "" {
			continue
		}
		var names policy.Set
		for _, rule := range l.policy.Namespaces {
			if rule.Class == policy.Mandatory {
				names = append(names, rule.Name)
			}
		}
		hint := ""
		if near := policy.Nearest(m[1][:max(dot, 0)], policy.NewSet(names...)); near != "" {
			hint = fmt.Sprintf(" (did you mean %s?)", near)
		}
		l.warn(document, id, "requirement %s of %s asks mandatory(%q), and no namespace rule has class: mandatory over that name, so that it always denies%s", id, action, m[1], hint)
	}
}

// references looks for agents that a document names and the file has not: they
// may be registered already, or be spelt in another way.
func (l *linter) references() {
	var ids policy.Set
	for _, d := range l.documents {
		if d.Agent != nil {
			ids = append(ids, d.Agent.ID)
		}
	}
	ids = policy.NewSet(ids...)
	for i, d := range l.documents {
		what, id := "", ""
		switch {
		case d.Agent != nil && d.Agent.Parent != "":
			what, id = "parent", d.Agent.Parent
		case d.Memory != nil:
			what, id = "owner", d.Memory.Owner
		case d.Principal != nil && d.Principal.Root != "":
			what, id = "root", d.Principal.Root
		}
		if what == "" || ids.Has(id) {
			continue
		}
		hint := ""
		if near := policy.Nearest(id, ids); near != "" {
			hint = fmt.Sprintf("; did you mean %s?", near)
		}
		l.warn(i, id, "the %s %s is no agent of this file, and has to be registered already%s", what, id, hint)
	}
}

func (l *linter) constant(document int, id, action, text string) {
	value, constant := l.policy.Constant(action, text)
	switch {
	case !constant:
	case value:
		l.warn(document, id, "requirement %s of %s is true whatever the arguments are, so that it never denies; ask something of args, or leave it out", id, action)
	default:
		l.warn(document, id, "requirement %s of %s is false whatever the arguments are, so that nobody can do it; ask something of args, or take the capability away", id, action)
	}
}

// member is an argument as requirements name it.
func member(argument string) string {
	if strings.ContainsAny(argument, "-./ ") {
		return "args.`" + argument + "`"
	}
	return "args." + argument
}

// mentions reports whether a requirement names a member, and not only one whose
// name is longer.
func mentions(text, member string) bool {
	for {
		_, rest, ok := strings.Cut(text, member)
		if !ok {
			return false
		}
		if rest == "" || rest[0] != '_' && (rest[0] < '0' || rest[0] > '9') && (rest[0]|0x20 < 'a' || rest[0]|0x20 > 'z') {
			return true
		}
		text = rest
	}
}

// outside says what to ask of an argument that by its name leads outside, empty
// for any other.
func outside(argument, member string) string {
	words := strings.FieldsFunc(strings.ToLower(argument), func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	last := ""
	if len(words) > 0 {
		last = words[len(words)-1]
	}
	switch last {
	case "path", "file", "filename", "filepath", "dir", "directory", "folder":
		return member + `.within("some/directory")`
	case "url", "uri", "href", "link", "endpoint", "webhook":
		return "host(" + member + `).name == "example.com"`
	case "host", "hostname", "domain":
		return member + ` in ["example.com"]`
	}
	return ""
}

// writes looks for patterns that come to nothing.
func (l *linter) writes() {
	agents := map[string]*policy.Agent{}
	var declared policy.Set
	for _, rule := range l.policy.Namespaces {
		declared = append(declared, rule.Name)
	}
	for _, d := range l.documents {
		switch {
		case d.Agent != nil:
			agents[d.Agent.ID] = d.Agent
		case d.Memory != nil:
			declared = append(declared, d.Memory.Namespace)
		}
	}
	declared = policy.NewSet(declared...)
	for i, d := range l.documents {
		if d.Agent == nil {
			continue
		}
		for _, pattern := range d.Agent.Writes {
			if by := excludes(agents, d.Agent, pattern); by != "" {
				l.warn(i, pattern, "%s may not write in %s, since the writes of agent %s above it have nothing of it; add it there, or leave it out", d.Agent.ID, pattern, by)
			}
			base := strings.TrimSuffix(pattern, ".*")
			known := slices.ContainsFunc(declared, func(name string) bool { return policy.Overlap(base+".*", name+".*") })
			if near := policy.Nearest(base, declared); !known && near != "" {
				l.warn(i, pattern, "no namespace that the file names is under %s; did you mean %s?", pattern, near)
			}
		}
	}
}

// excludes is the nearest agent above one whose writes have nothing of a
// pattern.
func excludes(agents map[string]*policy.Agent, a *policy.Agent, pattern string) string {
	for range len(agents) { // a circle is told elsewhere
		a = agents[a.Parent]
		if a == nil {
			return ""
		}
		if len(a.Writes) > 0 && !slices.ContainsFunc(a.Writes, func(above string) bool { return policy.Overlap(above, pattern) }) {
			return a.ID
		}
	}
	return ""
}

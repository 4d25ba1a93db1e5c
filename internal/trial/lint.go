package trial

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/policy"
)

// Lint says what is likely a mistake in documents without a fault: what grants
// less, or forbids less, than whoever wrote it may think. It never says that a
// policy is good.
func Lint(parts []policy.Part, documents []policy.Document) []policy.Fault {
	l := &linter{parts: parts, documents: documents}
	for i, d := range documents {
		if d.Policy != nil {
			l.policy, l.at = d.Policy, i
		}
	}
	if l.policy == nil {
		return nil
	}
	t, faults := New(parts, documents)
	if len(faults) > 0 {
		l.warn(l.at, "version", "who holds what was not looked at, since the file does not stand on its own: %s", strings.Join(faults, "; "))
	} else {
		l.rights(t)
	}
	l.references()
	l.actions()
	l.requirements()
	l.writes()
	l.namespaces()
	l.handlers()
	slices.SortStableFunc(l.warnings, func(a, b policy.Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return l.warnings
}

type linter struct {
	parts     []policy.Part
	documents []policy.Document
	policy    *policy.Policy
	at        int // the policy's place among the documents
	warnings  []policy.Fault
}

// warn points at the first place in a document where a name stands by itself.
func (l *linter) warn(document int, name, format string, args ...any) {
	part := l.parts[document]
	w := policy.Fault{File: part.File, Line: part.Line + 1, Column: 1, Message: fmt.Sprintf(format, args...)}
	for i, text := range strings.Split(part.Text, "\n") {
		code, _, _ := strings.Cut(text, " #")
		if at := word(code, name); at >= 0 && !strings.HasPrefix(strings.TrimSpace(text), "#") {
			w.Line, w.Column, w.Excerpt = part.Line+i+1, utf8.RuneCountInString(text[:at])+1, policy.Excerpt(text)
			break
		}
	}
	l.warnings = append(l.warnings, w)
}

// word is where name stands in a line with no letter of a name beside it, or -1.
func word(line, name string) int {
	ofName := func(b byte) bool {
		return b == '.' || b == '_' || b == '-' || '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
	}
	for from := 0; ; {
		i := strings.Index(line[from:], name)
		if i < 0 {
			return -1
		}
		i += from
		end := i + len(name)
		if (i == 0 || !ofName(line[i-1])) && (end == len(line) || !ofName(line[end])) {
			return i
		}
		from = end
	}
}

// rights looks for capabilities that come to nothing.
func (l *linter) rights(t *Trial) {
	held := map[string]bool{}
	agents := 0
	for i, d := range l.documents {
		if d.Agent == nil {
			continue
		}
		agents++
		a := t.state.Agent(d.Agent.ID)
		for _, capability := range t.state.Effective(a) {
			held[capability] = true
		}
		for _, capability := range d.Agent.Capabilities {
			if ok, by := t.state.Holds(a, capability); !ok {
				l.warn(i, capability, "%s declares %s and will not hold it: the %s does not; declare it there too, or leave it out", a.ID, capability, level(by))
			}
		}
	}
	if agents == 0 {
		return
	}
	for _, capability := range l.policy.Environment {
		if !held[capability] {
			l.warn(l.at, capability, "nobody holds %s, which the environment has; declare it for an agent, or leave it out", capability)
		}
	}
}

func level(by string) string {
	if by == "environment" {
		return "environment"
	}
	return "agent " + by
}

// actions looks for actions that are not limited, or never asked for.
func (l *linter) actions() {
	for _, name := range sorted(l.policy.Actions) {
		if l.policy.Actions[name].Open() {
			l.warn(l.at, name+":", "%s takes any object of arguments; say with arguments: what it takes", name)
		}
		if !l.policy.Environment.Has(name) {
			l.warn(l.at, name+":", "%s is not in the environment, so that nobody can do it and no rule of it ever counts; add it there, or leave it out", name)
		}
	}
}

// namespaces looks for rules that change nothing.
func (l *linter) namespaces() {
	for _, rule := range l.policy.Namespaces {
		dot := strings.LastIndexByte(rule.Name, '.')
		if dot < 0 {
			if rule.Plain() {
				l.warn(l.at, rule.Name+":", "the rule for %s says what holds without it; leave it out", rule.Name)
			}
			continue
		}
		above, ok := l.policy.Rule(rule.Name[:dot])
		if ok && above.Class == rule.Class && above.Combine == rule.Combine && rule.ClassOnly() {
			l.warn(l.at, rule.Name+":", "the rule for %s is never the one that counts: the one for %s says the same; leave it out", rule.Name, above.Name)
		}
	}
}

// handlers looks for actions that nobody may serve. A file without handlers
// leaves them to another.
func (l *linter) handlers() {
	served, any := map[string]bool{}, false
	for i, d := range l.documents {
		if d.Principal == nil || d.Principal.Role != "handler" {
			continue
		}
		any = true
		for _, action := range d.Principal.Actions {
			served[action] = true
			if _, declared := l.policy.Actions[action]; !declared {
				l.warn(i, action, "%s serves %s, which the policy does not declare", d.Principal.ID, action)
			}
		}
	}
	if !any {
		return
	}
	for _, name := range sorted(l.policy.Actions) {
		if !served[name] {
			l.warn(l.at, name+":", "no handler may serve %s, so that no procedure with it ever starts; add it to a handler's actions", name)
		}
	}
}

func sorted(actions map[string]policy.Action) []string {
	var names []string
	for name := range actions {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

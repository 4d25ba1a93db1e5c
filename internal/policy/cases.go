package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Cases is one file of cases: what the documents of a policy file must give.
type Cases struct {
	Policy string // the policy file, from where the cases lie
	Cases  []Case
}

// Case is one question to a policy and its only right answer.
type Case struct {
	Name   string
	Line   int    // from 1
	Given  []Step // what was done before it, each of it allowed
	Step          // what is asked
	Reason reason.Code
	Rule   string   // empty: not compared
	Failed []string // nil: not compared
}

// Step is one proposal of a case.
type Step struct {
	Agent     string
	Operation string
	Request   []byte // JSON: an operation's request, or an action's arguments
}

// ParseCases reads a file of cases, or returns every fault of it. A file
// without a case is a fault: it would show nothing.
func ParseCases(name, text string) (Cases, []Fault) {
	parts := SplitFile(name, text)
	if len(parts) != 1 {
		return Cases{}, []Fault{{File: name, Line: 1, Column: 1, Message: fmt.Sprintf("a file of cases holds one document of kind Cases, not %d", len(parts))}}
	}
	root, r := read(parts[0].Text)
	d := decoder{reader: r}
	c := d.cases(root, parts[0].Line)
	sortFaults(r.faults)
	for i := range r.faults {
		r.faults[i].File = name
		r.faults[i].Line += parts[0].Line
	}
	return c, r.faults
}

func (d *decoder) cases(root node, above int) (c Cases) {
	f := d.fields(root, "Cases", "apiVersion", "kind", "policy", "cases")
	d.require(root, "Cases", f, "apiVersion", "kind", "policy", "cases")
	if n, ok := f["apiVersion"]; ok {
		d.oneOf(n, "apiVersion", []string{APIVersion})
	}
	if n, ok := f["kind"]; ok {
		d.oneOf(n, "kind", []string{"Cases"})
	}
	if n, ok := f["policy"]; ok {
		c.Policy = d.word(n, "policy")
	}
	list, ok := f["cases"]
	switch {
	case !ok:
		return c
	case list.kind != listKind:
		d.faultf(list, "cases is a list, not %s", list.kind)
	case len(list.items) == 0:
		d.faultf(list, "there is no case; a file that tests nothing shows nothing")
	}
	names := map[string]bool{}
	for _, item := range list.items {
		one := d.oneCase(item)
		if one.Line += above; one.Name != "" && names[one.Name] {
			d.faultf(item, "a second case %s; give it another name", quote(one.Name))
		}
		names[one.Name] = true
		c.Cases = append(c.Cases, one)
	}
	return c
}

func (d *decoder) oneCase(n node) Case {
	f := d.fields(n, "case", "name", "given", "agent", "operation", "arguments", "decision", "reason", "rule", "failed")
	d.require(n, "case", f, "name", "decision", "reason")
	c := Case{Line: n.place.line + 1, Step: d.step(n, "case", f)}
	if name, ok := f["name"]; ok {
		c.Name = d.word(name, "name")
	}
	if given, ok := f["given"]; ok {
		if given.kind != listKind {
			d.faultf(given, "given is a list of what was done before, not %s", given.kind)
		}
		for _, item := range given.items {
			c.Given = append(c.Given, d.step(item, "given step", d.fields(item, "given step", "agent", "operation", "arguments")))
		}
	}
	d.verdict(f, &c)
	if rule, ok := f["rule"]; ok {
		c.Rule = d.word(rule, "rule")
	}
	if failed, ok := f["failed"]; ok {
		c.Failed = []string{}
		if failed.kind != listKind {
			d.faultf(failed, "failed is a list of rules, not %s", failed.kind)
		}
		for _, item := range failed.items {
			c.Failed = append(c.Failed, d.word(item, "entry of failed"))
		}
	}
	return c
}

// verdict reads a decision and its reason, which must go together: a case that
// can never hold is a mistake in the case.
func (d *decoder) verdict(f map[string]node, c *Case) {
	decision := ""
	if n, ok := f["decision"]; ok {
		decision = d.oneOf(n, "decision", []string{"allowed", "denied"})
	}
	n, ok := f["reason"]
	if !ok {
		return
	}
	c.Reason = reason.Code(d.word(n, "reason"))
	info, known := reason.Of(c.Reason)
	switch {
	case c.Reason == "":
	case !known:
		var codes []string
		for _, info := range reason.All() {
			codes = append(codes, string(info.Code))
		}
		d.faultf(n, "%s is no reason code%s", quote(string(c.Reason)), didYouMean(string(c.Reason), codes))
	case decision != "" && info.Allowed != (decision == "allowed"):
		d.faultf(n, "%s is never the reason of a decision that is %s", quote(string(c.Reason)), decision)
	}
}

func (d *decoder) step(n node, what string, f map[string]node) (s Step) {
	d.require(n, what, f, "agent", "operation")
	s.Request = []byte("{}")
	if agent, ok := f["agent"]; ok {
		s.Agent = d.id(agent, "agent")
	}
	if operation, ok := f["operation"]; ok {
		s.Operation = d.name(operation, "operation", events.ValidAction, actionGrammar)
	}
	switch arguments, ok := f["arguments"]; {
	case !ok:
	case arguments.kind == textKind: // JSON, for what YAML cannot say here: floats, null, keys twice
		s.Request = []byte(strings.TrimSpace(arguments.text))
	case arguments.kind == mappingKind:
		faults := len(d.faults)
		if v := d.json(arguments); len(d.faults) == faults {
			s.Request = v.AppendCanonical(nil)
		}
	default:
		d.faultf(arguments, "arguments is a mapping, or JSON as a text, not %s", arguments.kind)
	}
	return s
}

// IsCases reports whether a text says that it is a file of cases, to tell who
// takes it for a policy file.
func IsCases(text string) bool {
	return slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.ReplaceAll(line, " ", ""), "kind:Cases")
	})
}

// WithKey adds public_key to an Agent or Principal document in block or flow
// style, and changes nothing else.
func WithKey(text, public string) (string, error) {
	line := "public_key: " + public
	candidates := []string{text + line + "\n"}
	if first := strings.TrimLeft(text, " "); len(first) < len(text) {
		candidates = append(candidates, text+text[:len(text)-len(first)]+line+"\n")
	}
	if end := strings.LastIndexByte(text, '}'); end >= 0 {
		candidates = append(candidates, text[:end]+", "+line+text[end:])
	}
	for _, candidate := range candidates {
		doc, faults := ParseDocument(candidate)
		if len(faults) > 0 {
			continue
		}
		if doc.Agent != nil && doc.Agent.PublicKey == public || doc.Principal != nil && doc.Principal.PublicKey == public {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("cannot add the line %q by itself; add it to the document", line)
}

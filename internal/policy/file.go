package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Part is one document of a file, as it is to be sent.
type Part struct {
	File string
	Line int // lines of the file before this document
	Text string
}

// SplitFile cuts a file at its "---" lines. A document's text is the same
// wherever it stands in a file and whichever way the file ends its lines: line
// feeds, no empty lines at either end, one line feed after the last. Parts of
// nothing but comments are left out. The documents are not read yet; a "---"
// with text behind it is left to ParseDocument to refuse.
func SplitFile(name, text string) []Part {
	var parts []Part
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	start := 0
	add := func(end int) {
		first, last, content := start, end, false
		for first < last && strings.Trim(lines[first], " ") == "" {
			first++
		}
		for first < last && strings.Trim(lines[last-1], " ") == "" {
			last--
		}
		for _, line := range lines[first:last] {
			trimmed := strings.TrimLeft(line, " ")
			content = content || trimmed != "" && trimmed[0] != '#'
		}
		if content {
			parts = append(parts, Part{name, first, strings.Join(lines[first:last], "\n") + "\n"})
		}
	}
	for i, line := range lines {
		if comment, _, _ := strings.Cut(line, "#"); separator(line) && strings.TrimRight(comment, " ") == "---" {
			add(i)
			start = i + 1
		}
	}
	add(len(lines))
	return parts
}

// ParseFile reads every document of a file and checks what one document cannot
// show: that the first says its apiVersion, that none says the same thing
// twice, and that capabilities are declared where the file has a Policy. It
// returns the documents in the order of their parts, or every fault.
func ParseFile(name, text string) ([]Document, []Fault) {
	parts := SplitFile(name, text)
	if len(parts) == 0 {
		return nil, []Fault{{File: name, Line: 1, Column: 1, Message: "the file holds no document"}}
	}
	var documents []Document
	var faults []Fault
	report := func(part Part, found ...Fault) {
		for _, f := range found {
			f.File = part.File
			f.Line += part.Line
			faults = append(faults, f)
		}
	}
	for i, part := range parts {
		doc, found := parse(part.Text)
		report(part, found...)
		if i == 0 && doc.unversioned {
			report(part, faultAt(doc.lines, place{}, "the first document of a file says apiVersion: "+APIVersion))
		}
		documents = append(documents, doc)
	}
	for i, found := range checkTogether(documents) {
		report(parts[i], found...)
	}
	if len(faults) > 0 {
		sortFaults(faults)
		return nil, faults[:min(len(faults), faultsMax)]
	}
	return documents, nil
}

// checkTogether returns, by index, the faults that documents have together,
// beside those that each has on its own: what could not be read of one is not
// held against another. It is silent about what only the ledger knows,
// such as whether a parent exists.
func checkTogether(documents []Document) map[int][]Fault {
	faults := map[int][]Fault{}
	first := map[string]bool{}
	var active Document
	for i, doc := range documents {
		name := doc.subject()
		if name == "" {
			continue
		}
		if first[name] {
			faults[i] = append(faults[i], faultAt(doc.lines, place{}, "a second document about "+name+"; keep one"))
		}
		first[name] = true
		if doc.Policy != nil && active.Policy == nil {
			active = doc
		}
	}
	if active.Policy == nil {
		return faults
	}
	for i, doc := range documents {
		if doc.Memory != nil && doc.Memory.Value != nil {
			faults[i] = append(faults[i], active.Policy.memoryFaults(doc)...)
		}
		if doc.Agent != nil && active.allActions {
			faults[i] = append(faults[i], active.agentFaults(doc)...)
		}
	}
	return faults
}

// agentFaults are the capabilities and restrictions of an Agent document that
// mean nothing under a Policy document.
func (active Document) agentFaults(doc Document) (faults []Fault) {
	p := active.Policy
	for _, capability := range CheckCapabilities(p, doc.Agent.Capabilities) {
		faults = append(faults, faultAt(doc.lines, doc.capabilities[capability], undeclared(p, capability)))
	}
	for _, r := range doc.Agent.Restrictions {
		_, err := p.CompileClause(r.Action, r.ID, r.Text)
		if active.untyped[r.Action] {
			err = untypedFaults(r.Text)
		}
		switch _, declared := p.Actions[r.Action]; {
		case r.Action == "" || r.Text == "":
			continue
		case !declared:
			err = fmt.Errorf("action %s of restriction %s is not declared%s", quote(r.Action), r.ID, didYouMean(r.Action, slices.Collect(maps.Keys(p.Actions))))
		case err == nil:
			continue
		}
		faults = append(faults, faultAt(doc.lines, doc.rules[r.ID], err.Error()))
	}
	sortFaults(faults)
	return faults
}

// memoryFaults are what p's rules say against the value of a Memory document.
// None quotes it.
func (p *Policy) memoryFaults(doc Document) (faults []Fault) {
	m := doc.Memory
	name := m.Namespace + "." + m.Key
	if how := p.Combination(m.Namespace, m.Key); how != "" && !Typed(how, m.Value) {
		faults = append(faults, faultAt(doc.lines, doc.value, fmt.Sprintf("%s is mandatory with combine: %s, which takes another type", name, how)))
	}
	for _, f := range p.ValueFaults(m.Namespace, m.Key, m.Value) {
		faults = append(faults, faultAt(doc.lines, doc.value, fmt.Sprintf("the value rule of %s does not take this value of %s: it breaks %s, which says %s", f.Rule, name, f.Fault.Place, f.Fault.Says)))
	}
	return faults
}

// subject says what the document is about: "policy", "id ID" for an Agent or a
// Principal, whose ids are one space, or "memory OWNER:NAMESPACE.KEY". Of two
// documents about one thing, one is too many. One that cannot be told has none.
func (doc Document) subject() string {
	switch {
	case doc.Policy != nil:
		return "policy"
	case doc.Agent != nil && doc.Agent.ID != "":
		return "id " + doc.Agent.ID
	case doc.Principal != nil && doc.Principal.ID != "":
		return "id " + doc.Principal.ID
	case doc.Resource != nil && doc.Resource.ID != "":
		return "resource " + doc.Resource.ID
	case doc.Memory != nil && doc.Memory.Owner != "" && doc.Memory.Namespace != "" && doc.Memory.Key != "":
		m := doc.Memory
		return fmt.Sprintf("memory %s:%s.%s", m.Owner, m.Namespace, m.Key)
	}
	return ""
}

package policy

import (
	"regexp/syntax"

	"github.com/ledgerd/ledgerd/internal/events"
)

// checksMax is how much of a schema may be held against one value: keywords,
// times the values that they are held against. It bounds what a request can
// make its judgement cost, whatever schema there is.
const checksMax = 10_000

// textPerCheck is how many steps of a pattern cost as much as a check.
const textPerCheck = 100

// overweight reports whether the schema would take more than checksMax checks of
// v. It counts all branches of a schema, whether they would be come to or not.
func (s *Schema) overweight(v events.Value) bool {
	w := weighing{schema: s, left: checksMax}
	w.weigh(s.value, v)
	return w.left < 0
}

type weighing struct {
	schema *Schema
	left   int
}

func (w *weighing) weigh(schema, v events.Value) {
	for i := range schema.Members {
		if w.left < 0 {
			return
		}
		w.left--
		keyword, holds := schema.Members[i].Name, schema.Members[i].Value
		switch keyword {
		case "$ref":
			w.weigh(w.schema.resolve(events.Value{Kind: events.Object, Members: schema.Members[i : i+1]}), v)
		case "not", "if", "then", "else":
			w.weigh(holds, v)
		case "allOf", "anyOf", "oneOf":
			for _, branch := range holds.Elements {
				w.weigh(branch, v)
			}
		case "dependentSchemas":
			for _, m := range holds.Members {
				w.weigh(m.Value, v)
			}
		case "enum":
			for _, one := range holds.Elements {
				w.compare(one, v)
			}
		case "const":
			w.compare(holds, v)
		case "pattern":
			w.pattern(holds.Text, v.Text)
		default:
			w.beneath(keyword, holds, v)
		}
	}
}

// beneath weighs the keywords that are held against what is in v.
func (w *weighing) beneath(keyword string, holds, v events.Value) {
	switch keyword {
	case "items", "contains", "unevaluatedItems":
		for _, e := range v.Elements {
			w.weigh(holds, e)
		}
	case "prefixItems":
		for i := range min(len(holds.Elements), len(v.Elements)) {
			w.weigh(holds.Elements[i], v.Elements[i])
		}
	case "uniqueItems":
		for _, e := range v.Elements {
			w.compare(e, e)
		}
		w.left -= min(len(v.Elements), 20) * 10 // up to twenty are compared with each other
	case "properties":
		for _, m := range holds.Members {
			if held, ok := v.Get(m.Name); ok {
				w.weigh(m.Value, held)
			}
		}
	case "additionalProperties", "unevaluatedProperties":
		for _, m := range v.Members {
			w.weigh(holds, m.Value)
		}
	case "propertyNames":
		for _, m := range v.Members {
			w.weigh(holds, events.Value{Kind: events.String, Text: m.Name})
		}
	case "patternProperties":
		for _, p := range holds.Members {
			for _, m := range v.Members {
				w.pattern(p.Name, m.Name)
				w.weigh(p.Value, m.Value)
			}
		}
	}
	if v.Kind == events.Array || v.Kind == events.Object {
		w.left -= (len(v.Elements) + len(v.Members)) / 10
	}
}

// compare weighs the comparison of two values.
func (w *weighing) compare(a, b events.Value) {
	w.left--
	if a.Kind != b.Kind || w.left < 0 {
		return
	}
	w.left -= len(a.Text) / textPerCheck
	for i := range min(len(a.Elements), len(b.Elements)) {
		w.compare(a.Elements[i], b.Elements[i])
	}
	for i := range min(len(a.Members), len(b.Members)) {
		w.compare(a.Members[i].Value, b.Members[i].Value)
	}
}

func (w *weighing) pattern(pattern, text string) {
	w.left -= len(text) * w.schema.steps[pattern] / textPerCheck
}

// patternSteps is how many steps a pattern takes at most for each byte that it
// is held against, or false if it is no pattern of RE2.
func patternSteps(pattern string) (int, bool) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, false
	}
	if treeSize(parsed, patternStepsMax) > patternStepsMax { // compiling it would take as long
		return patternStepsMax + 1, true
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, false
	}
	n := 0
	for i := range program.Inst {
		n += 1 + len(program.Inst[i].Rune)/8 // a class is searched
	}
	return n, true
}

// treeSize is about how many steps a pattern compiles to, or more than most.
func treeSize(re *syntax.Regexp, most int) int {
	n := 1 + len(re.Rune)/8
	for _, sub := range re.Sub {
		if n += treeSize(sub, most); n > most {
			return most + 1
		}
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, most+1)
}

// patternStepsMax bounds a pattern by itself.
const patternStepsMax = 2000

// patternsIn adds the steps of every pattern in a schema to steps.
func patternsIn(schema events.Value, steps map[string]int) {
	add := func(pattern string) { steps[pattern], _ = patternSteps(pattern) }
	for _, m := range schema.Members {
		if m.Name == "pattern" && m.Value.Kind == events.String {
			add(m.Value.Text)
		}
		if m.Name == "patternProperties" {
			for _, p := range m.Value.Members {
				add(p.Name)
			}
		}
		patternsIn(m.Value, steps)
	}
	for _, e := range schema.Elements {
		patternsIn(e, steps)
	}
}

// exact reports whether every number in v is what readers of it as a double take
// it for: the digits that are there and no others.
func exact(v events.Value) bool {
	switch v.Kind {
	case events.Number:
		return exactNumber(v.Text)
	case events.Array:
		for i := range v.Elements {
			if !exact(v.Elements[i]) {
				return false
			}
		}
	case events.Object:
		for i := range v.Members {
			if !exact(v.Members[i].Value) {
				return false
			}
		}
	}
	return true
}

// values counts the values in v, itself included.
func values(v events.Value) int {
	n := 1
	for i := range v.Elements {
		n += values(v.Elements[i])
	}
	for i := range v.Members {
		n += values(v.Members[i].Value)
	}
	return n
}

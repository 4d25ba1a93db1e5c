package policy

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Constant reports whether a requirement comes to the same whatever the
// arguments and the facts are, and to what.
func (p *Policy) Constant(action, text string) (value, constant bool) {
	defer func() {
		if recover() != nil {
			value, constant = false, false
		}
	}()
	declared := declareTypes(p.Actions[action].Arguments)
	e, err := baseEnv.Extend(cel.CustomTypeProvider(declared), cel.Variable("args", declared.root))
	if err != nil {
		return false, false
	}
	checked, issues := e.Compile(text)
	if issues.Err() != nil {
		return false, false
	}
	program, err := e.Program(checked, cel.EvalOptions(cel.OptPartialEval), cel.CostLimit(clauseCost))
	if err != nil {
		return false, false
	}
	vars, err := cel.PartialVars(map[string]any{}, cel.AttributePattern("args"), cel.AttributePattern(factsName))
	if err != nil {
		return false, false
	}
	out, _, err := program.Eval(vars)
	if b, known := out.(types.Bool); err == nil && known {
		return bool(b), true
	}
	return false, false
}

// OpenTexts lists the members of an action's arguments that are any text at
// all: with no enum, const, pattern or format.
func (a Action) OpenTexts() (names []string) {
	if a.Arguments == nil {
		return nil
	}
	properties, _ := a.Arguments.value.Get("properties")
	for _, m := range properties.Members {
		v := a.Arguments.resolve(m.Value)
		t, _ := v.Get("type")
		if t.Kind != events.String || t.Text != "string" {
			continue
		}
		bound := false
		for _, keyword := range []string{"enum", "const", "pattern", "format"} {
			_, there := v.Get(keyword)
			bound = bound || there
		}
		if !bound {
			names = append(names, m.Name)
		}
	}
	return names
}

// Overlap reports whether two patterns of writes name any namespace in common.
func Overlap(a, b string) bool { return Includes(Set{a}, b) || Includes(Set{b}, a) }

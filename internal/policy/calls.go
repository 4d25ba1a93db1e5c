package policy

import (
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/ledgerd/ledgerd/internal/events"
)

// FunctionsVersion is that of the functions which clauses call. It rises with
// any change of what one of them says, together with the rules version.
const FunctionsVersion = 1

const (
	mandatoryCall = "@mandatory"
	resourceCall  = "@resource"
)

// ourFunctions are the functions beside CEL's own.
var ourFunctions = map[string]bool{"within": true, "ns": true, "host": true, "mime": true, mandatoryCall: true, resourceCall: true}

var (
	hostType     = types.NewObjectType("@host")
	resourceType = types.NewObjectType("@resource")
)

// factTypes are the objects that functions return.
var factTypes = map[string]map[string]*types.FieldType{
	"@host": {
		"scheme": {Type: types.StringType}, "name": {Type: types.StringType}, "port": {Type: types.IntType}, "class": {Type: types.StringType},
	},
	"@resource": {
		"id": {Type: types.StringType}, "classification": {Type: types.StringType}, "owner": {Type: types.StringType},
		"tags": {Type: types.NewListType(types.StringType)},
	},
}

func functionOptions() []cel.EnvOption {
	text := types.StringType
	return []cel.EnvOption{
		cel.Function("within", cel.MemberOverload("string_within", []*cel.Type{text, text}, types.BoolType, cel.BinaryBinding(onTexts(within)))),
		cel.Function("ns", cel.MemberOverload("string_ns", []*cel.Type{text, text}, types.BoolType, cel.BinaryBinding(onTexts(ns)))),
		cel.Function("host", cel.Overload("host_string", []*cel.Type{text}, hostType, cel.UnaryBinding(callHost))),
		cel.Function("mime", cel.Overload("mime_string", []*cel.Type{text}, text, cel.UnaryBinding(callMIME))),
		cel.Function(mandatoryCall, cel.Overload("mandatory", []*cel.Type{factsType, text}, types.DynType, cel.BinaryBinding(callMandatory))),
		cel.Function(resourceCall, cel.Overload("resource", []*cel.Type{factsType, text}, resourceType, cel.BinaryBinding(callResource))),
		cel.Macros(asksFacts("mandatory", mandatoryCall), asksFacts("resource", resourceCall)),
	}
}

// asksFacts hands a function the facts, which no text can name.
func asksFacts(name, call string) cel.Macro {
	return cel.GlobalMacro(name, 1, func(f cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *common.Error) {
		return f.NewCall(call, f.NewIdent(factsName), args[0]), nil
	})
}

func onTexts(fn func(a, b string) (bool, error)) func(a, b ref.Val) ref.Val {
	return func(a, b ref.Val) ref.Val {
		x, ok := a.(types.String)
		y, also := b.(types.String)
		if !ok || !also {
			return types.NoSuchOverloadErr()
		}
		result, err := fn(string(x), string(y))
		if err != nil {
			return types.WrapErr(err)
		}
		return types.Bool(result)
	}
}

func callHost(v ref.Val) ref.Val {
	url, ok := v.(types.String)
	if !ok {
		return types.NoSuchOverloadErr()
	}
	h, err := parseHost(string(url))
	if err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(map[string]any{"scheme": h.Scheme, "name": h.Name, "port": int64(h.Port), "class": h.Class})
}

func callMIME(v ref.Val) ref.Val {
	s, ok := v.(types.String)
	if !ok {
		return types.NoSuchOverloadErr()
	}
	essence, err := mime(string(s))
	if err != nil {
		return types.WrapErr(err)
	}
	return types.String(essence)
}

func callMandatory(f, v ref.Val) ref.Val {
	facts, ok := f.(*factsValue)
	name, text := v.(types.String)
	if !ok || !text || !validRecordName(string(name)) || facts.Facts == nil || facts.Mandatory == nil {
		return types.WrapErr(errNoFact)
	}
	known, asked := facts.known[string(name)]
	if !asked {
		known = facts.mandatory(string(name))
		if facts.known == nil {
			facts.known = map[string]ref.Val{}
		}
		facts.known[string(name)] = known
	}
	return known
}

// mandatory asks for a record, once a judgement, and counts what that reads.
func (f *Facts) mandatory(name string) ref.Val {
	value, read, ok := f.Mandatory(name)
	if f.spent += uint64(read) / 10; f.spent > judgementCost {
		return types.WrapErr(errSpent)
	}
	if !ok {
		return types.WrapErr(errNoFact)
	}
	parsed, err := events.ParseJSON(value)
	if err != nil || !exact(parsed) {
		return types.WrapErr(errNoFact)
	}
	return types.DefaultTypeAdapter.NativeToValue(celValue(parsed))
}

// validRecordName takes namespace.key.
func validRecordName(name string) bool { return validRuleName(name) && strings.Contains(name, ".") }

func callResource(f, v ref.Val) ref.Val {
	facts, ok := f.(*factsValue)
	id, text := v.(types.String)
	if !ok || !text || facts.Facts == nil || facts.Resource == nil {
		return types.WrapErr(errNoFact)
	}
	r, ok := facts.Resource(string(id))
	if !ok {
		return types.WrapErr(errNoFact)
	}
	tags := r.Tags
	if tags == nil {
		tags = []string{}
	}
	return types.DefaultTypeAdapter.NativeToValue(map[string]any{"id": r.ID, "classification": r.Classification, "owner": r.Owner, "tags": tags})
}

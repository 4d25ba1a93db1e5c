package policy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Clause is one requirement on an action's arguments, in CEL. Only true lets
// through: false, an error, anything else denies.
type Clause struct {
	ID   string
	Text string
	Asks bool // of mandatory records or resources, beside the arguments

	program cel.Program
}

// Resource is what the registry says of an object that arguments name.
type Resource struct {
	ID             string
	Classification string
	Owner          string
	Tags           []string
}

// Facts is what a clause may ask beside the arguments, as it is when judged.
type Facts struct {
	// The combined record of namespace.key, and how many bytes were read for it.
	Mandatory func(name string) (value []byte, read int, ok bool)
	Resource  func(id string) (r Resource, ok bool)

	spent uint64             // by the clauses of one judgement
	vars  map[string]any     // what their texts name
	known map[string]ref.Val // mandatory records that were asked for
}

// Bounds of a clause. Evaluation is never bounded by time: a verdict must not
// depend on the machine.
const (
	ClauseBytesMax      = 2048
	ClausesMax          = 32        // of an action
	TreeRestrictionsMax = 256       // of a tree, beyond which its agents add none
	RestrictionsMax     = 16        // of an agent; with those of a whole lineage a decision still fits an event
	clauseCost          = 10_000    // units of CEL while it is judged
	judgementCost       = 50_000    // of all clauses of one judgement, a procedure's steps together
	clauseCostBound     = 1_000_000 // the most it could cost, by its text and the schema
	clauseDepth         = 64
	clauseBrackets      = 32 // [ and {; what checking the types of nested ones takes grows fast
)

// CompileClause compiles a requirement on an action's arguments against the
// types that the action's schema declares.
func (p *Policy) CompileClause(action, id, text string) (*Clause, error) {
	if p == nil {
		return nil, errors.New("no policy is in force")
	}
	declared, ok := p.Actions[action]
	if !ok {
		return nil, fmt.Errorf("action %s is not declared", quote(action))
	}
	clause, err := compileClause(declared.Arguments, text)
	if err != nil {
		return nil, err
	}
	clause.ID = id
	return clause, nil
}

// untypedFaults are those that a clause has whatever the types of the arguments.
func untypedFaults(text string) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the clause cannot be read")
		}
	}()
	if len(text) > ClauseBytesMax {
		return fmt.Errorf("a clause is at most %d bytes", ClauseBytesMax)
	}
	e, err := baseEnv.Extend(cel.Variable("args", types.DynType))
	if err != nil {
		return err
	}
	if _, issues := e.Compile(text); issues.Err() != nil {
		return compileFaults(issues.Errors())
	}
	return nil
}

func compileClause(schema *Schema, text string) (clause *Clause, err error) {
	defer func() {
		if recover() != nil {
			clause, err = nil, errors.New("the clause cannot be compiled")
		}
	}()
	if len(text) > ClauseBytesMax {
		return nil, fmt.Errorf("a clause is at most %d bytes", ClauseBytesMax)
	}
	if n := strings.Count(text, "[") + strings.Count(text, "{"); n > clauseBrackets {
		return nil, fmt.Errorf("a clause has at most %d of [ and {, not %d", clauseBrackets, n)
	}
	declared := declareTypes(schema)
	e, err := baseEnv.Extend(cel.CustomTypeProvider(declared), cel.Variable("args", declared.root))
	if err != nil {
		return nil, err
	}
	checked, issues := e.Compile(text)
	if issues.Err() != nil {
		return nil, compileFaults(issues.Errors())
	}
	if checked.OutputType() != types.BoolType {
		if checked.OutputType() == types.DynType {
			return nil, errors.New("a clause is true or false, and this may be anything; compare it, such as == true")
		}
		return nil, fmt.Errorf("a clause is true or false, not %s", checked.OutputType())
	}
	if err := overLists(checked.NativeRep()); err != nil {
		return nil, err
	}
	costs := callCosts{}
	if err := costs.matches(checked.NativeRep()); err != nil {
		return nil, err
	}
	estimator := &sizes{schema: schema, costs: costs}
	bound, err := e.EstimateCost(checked, estimator)
	if err != nil {
		return nil, err
	}
	if estimator.one > clauseCost { // its limit is looked at between calls, not within one
		return nil, fmt.Errorf("matches could cost %d, more than %d; bound the text by maxLength, or take a smaller pattern", estimator.one, clauseCost)
	}
	if bound.Max > clauseCostBound {
		return nil, fmt.Errorf("the clause could cost %d, more than %d; bound its arguments by maxItems and maxLength", bound.Max, clauseCostBound)
	}
	program, err := e.Program(checked, cel.CostTracking(costs), cel.CostLimit(clauseCost),
		cel.OptimizeRegex(interpreter.MatchesRegexOptimization)) // a pattern is compiled here, not at every call
	if err != nil {
		return nil, err
	}
	root := ast.NavigateAST(checked.NativeRep())
	asks := len(ast.MatchDescendants(root, ast.FunctionMatcher(mandatoryCall)))+len(ast.MatchDescendants(root, ast.FunctionMatcher(resourceCall))) > 0
	return &Clause{Text: text, Asks: asks, program: program}, nil
}

// compileFaults says everything that is wrong with a clause. What a syntax error
// makes of the rest is no fault of its own.
func compileFaults(issues []*cel.Error) error {
	var told []string
	for _, e := range issues {
		message, syntax := strings.CutPrefix(e.Message, "Syntax error: ")
		message, _, _ = strings.Cut(message, " expecting ")
		switch {
		case strings.Contains(message, "'<EOF>'"):
			message = "the clause ends too early"
		case strings.HasPrefix(message, "token recognition error at: '="):
			message = "= is no operator; == compares"
		case message == "mismatched input 'and'", message == "mismatched input 'or'", message == "extraneous input 'and'", message == "extraneous input 'or'":
			message = "conditions are joined by && and ||"
		}
		told = append(told, fmt.Sprintf("character %d: %s", e.Location.Column()+1, message))
		if syntax {
			break
		}
	}
	return errors.New(strings.Join(told, "; "))
}

// weightOf is how much there is to go over in a value: the library counts a list
// as its elements alone, whatever they hold.
func weightOf(v ref.Val, most uint64) uint64 {
	switch v := v.(type) {
	case types.String:
		return uint64(len(v)) / 10
	case types.Bytes:
		return uint64(len(v)) / 10
	case traits.Lister:
		n := uint64(1)
		for it := v.Iterator(); n < most && it.HasNext() == types.True; {
			n += 1 + weightOf(it.Next(), most)
		}
		return n
	case traits.Mapper:
		n := uint64(1)
		for it := v.Iterator(); n < most && it.HasNext() == types.True; {
			n += 1 + weightOf(v.Get(it.Next()), most)
		}
		return n
	}
	return 0
}

// Holds judges arguments by a clause. An error is as good as false, and says
// nothing of any value: what a clause asks beside the arguments is not known to
// whoever is told.
func (c *Clause) Holds(arguments *Arguments, facts *Facts) (ok bool, err error) {
	defer func() {
		if recover() != nil {
			ok, err = false, errors.New("the clause cannot be judged")
		}
	}()
	if facts.spent > judgementCost {
		return false, errSpent
	}
	facts.spent += clauseCost // unless it is known better
	if facts.vars == nil {
		facts.vars = map[string]any{factsName: &factsValue{facts}}
	}
	if arguments.value == nil {
		arguments.value = celValue(arguments.parsed)
	}
	facts.vars["args"] = arguments.value
	out, details, err := c.program.Eval(facts.vars)
	if details != nil && details.ActualCost() != nil {
		facts.spent -= clauseCost - min(clauseCost, *details.ActualCost())
	}
	if err != nil {
		return false, plainError(err)
	}
	if b, isBool := out.(types.Bool); isBool {
		return bool(b), nil
	}
	return false, errors.New("the clause is not true or false")
}

// plainError is an evaluation's error without the library's words, which quote
// what was compared or looked up.
func plainError(err error) error {
	for _, ours := range []error{errPath, errNames, errHost, errMIME, errNoFact, errSpent} {
		if errors.Is(err, ours) {
			return ours
		}
	}
	for _, known := range [][2]string{
		{"cost limit exceeded", "the clause costs more than it may"},
		{"no such overload", "a value is of another type"},
		{"no such key", "a member is not there"}, {"no such field", "a member is not there"}, {"no such attribute", "a member is not there"},
		{"index out of bounds", "a list has fewer elements"},
	} {
		if strings.Contains(err.Error(), known[0]) {
			return errors.New(known[1])
		}
	}
	return errors.New("the clause cannot be judged")
}

// Arguments are an action's arguments as rules take them. Every number in them
// is exact.
type Arguments struct {
	parsed events.Value
	value  any // as clauses take them; nil until the first does
}

// NewArguments reads canonical arguments.
func NewArguments(text []byte) (*Arguments, error) {
	v, err := events.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	if v.Kind != events.Object {
		return nil, errors.New("arguments are an object")
	}
	if !exact(v) {
		return nil, errInexact
	}
	if n := values(v); n > checksMax {
		return nil, fmt.Errorf("arguments of %d values; rules are held against at most %d", n, checksMax)
	}
	return &Arguments{parsed: v}, nil
}

// celValue is v with its integers as integers.
func celValue(v events.Value) any {
	return native(v, func(number events.Value) any {
		if n, ok := number.Int(); ok {
			return n
		}
		return goNumber(number)
	})
}

// overLists refuses a comprehension over anything that is not known to be a
// list: what it costs over a map depends on the order of the map.
func overLists(checked *ast.AST) error {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(checked), ast.KindMatcher(ast.ComprehensionKind)) {
		if t := checked.GetType(e.AsComprehension().IterRange().ID()); t.Kind() != types.ListKind {
			return fmt.Errorf("all, exists and exists_one go over lists only, not over %s; declare it as type: array", t)
		}
	}
	return nil
}

// declared are the types that a schema gives to arguments.
type declared struct {
	*types.Registry
	root    *cel.Type
	structs map[string]map[string]*types.FieldType
}

func declareTypes(schema *Schema) *declared {
	d := &declared{Registry: types.NewEmptyRegistry(), structs: map[string]map[string]*types.FieldType{}}
	for name, fields := range factTypes {
		d.structs[name] = fields
	}
	d.root = types.NewMapType(types.StringType, types.DynType)
	if schema != nil {
		if t := d.object("@args", schema, schema.value); t != nil {
			d.root = t
		}
	}
	return d
}

// typeOf is the type of whatever a schema takes; dyn where it takes several.
func (d *declared) typeOf(name string, schema *Schema, v events.Value) *cel.Type {
	v = schema.resolve(v)
	t, _ := v.Get("type")
	switch t.Text {
	case "string":
		return types.StringType
	case "integer":
		return types.IntType
	case "boolean":
		return types.BoolType
	case "array":
		items, uniform := v.Get("items")
		if _, mixed := v.Get("prefixItems"); mixed || !uniform {
			return types.NewListType(types.DynType)
		}
		return types.NewListType(d.typeOf(name+"[]", schema, items))
	case "object":
		if t := d.object(name, schema, v); t != nil {
			return t
		}
		return types.NewMapType(types.StringType, types.DynType)
	}
	return types.DynType
}

// object is nil where the schema names no properties.
func (d *declared) object(name string, schema *Schema, v events.Value) *cel.Type {
	v = schema.resolve(v)
	properties, ok := v.Get("properties")
	if !ok {
		return nil
	}
	fields := make(map[string]*types.FieldType, len(properties.Members))
	for _, m := range properties.Members {
		fields[m.Name] = &types.FieldType{Type: d.typeOf(name+"/"+strconv.Quote(m.Name), schema, m.Value)}
	}
	d.structs[name] = fields
	return types.NewObjectType(name)
}

// resolve follows references to definitions, which end.
func (s *Schema) resolve(v events.Value) events.Value {
	for {
		to, ok := v.Get("$ref")
		if _, typed := v.Get("type"); !ok || typed {
			return v
		}
		defs, _ := s.value.Get("$defs")
		if v, ok = defs.Get(strings.TrimPrefix(to.Text, definitions)); !ok {
			return events.Value{}
		}
	}
}

func (d *declared) FindStructType(name string) (*types.Type, bool) {
	if _, ok := d.structs[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return nil, false
}

func (d *declared) FindStructFieldNames(name string) ([]string, bool) {
	fields, ok := d.structs[name]
	names := make([]string, 0, len(fields))
	for n := range fields {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, ok
}

func (d *declared) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	t, ok := d.structs[name][field]
	return t, ok
}

func (d *declared) NewValue(name string, _ map[string]ref.Val) ref.Val {
	return types.NewErr("a clause makes no %s", name)
}

// sizes bounds what arguments can weigh by their schema.
type sizes struct {
	schema *Schema
	costs  callCosts
	one    uint64 // the most that a single call of matches could cost
}

func (s *sizes) EstimateSize(element cost.AstNode) *cost.SizeEstimate {
	path := element.Path()
	bound := uint64(events.ArgumentsBytesMax)
	switch {
	case len(path) == 0 && element.ComputedSize() != nil:
		return nil
	case len(path) > 0 && path[0] == "args" && s.schema != nil:
		v := s.schema.value
		for _, name := range path[1:] {
			v = s.schema.resolve(v)
			if name == "@items" {
				v, _ = v.Get("items")
			} else {
				properties, _ := v.Get("properties")
				v, _ = properties.Get(name)
			}
		}
		v = s.schema.resolve(v)
		for _, keyword := range []string{"maxLength", "maxItems", "maxProperties"} {
			max, _ := v.Get(keyword)
			if n, ok := max.Int(); ok && n >= 0 {
				bound = min(bound, uint64(n))
			}
		}
	}
	return &cost.SizeEstimate{Max: bound}
}

func (s *sizes) EstimateCallCost(function, _ string, target *cost.AstNode, args []cost.AstNode) *cost.CallEstimate {
	_, ours := ourFunctions[function]
	if !ours && function != "matches" {
		return nil
	}
	most := uint64(0)
	if target != nil {
		args = append([]cost.AstNode{*target}, args...)
	}
	for _, a := range args {
		size := s.EstimateSize(a)
		if size == nil {
			size = a.ComputedSize()
		}
		if steps, ok := s.costs.steps(a.Expr()); ok {
			most = (most + 1) * steps
			continue
		}
		most += min(size.Max, events.ArgumentsBytesMax)
	}
	if !ours {
		s.one = max(s.one, 1+most/10)
	}
	return &cost.CallEstimate{CostEstimate: cost.Estimate{Min: 1, Max: 1 + most/10}}
}

// callCosts is what our functions cost when they are called, and matches, the
// patterns of which it has with their steps.
type callCosts map[string]uint64

// matches notes the patterns of a clause, which have to stand in it: what one
// costs must be known before it is held against anything.
func (c callCosts) matches(checked *ast.AST) error {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(checked), ast.FunctionMatcher("matches")) {
		args := e.AsCall().Args()
		pattern, isText := args[len(args)-1].AsLiteral().(types.String)
		if args[len(args)-1].Kind() != ast.LiteralKind || !isText {
			return errors.New("the pattern of matches is a text that stands there")
		}
		n, ok := patternSteps(string(pattern))
		if !ok || n > patternStepsMax {
			return errors.New("the pattern of matches is none of RE2, or too large")
		}
		c[string(pattern)] = uint64(n)
	}
	return nil
}

// steps is of an expression that is a pattern.
func (c callCosts) steps(e ast.Expr) (n uint64, ok bool) {
	if e == nil || e.Kind() != ast.LiteralKind {
		return 0, false
	}
	if text, isText := e.AsLiteral().(types.String); isText {
		n, ok = c[string(text)]
	}
	return n, ok
}

func (c callCosts) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if function == "matches" && len(args) == 2 {
		text, _ := args[0].(types.String)
		pattern, _ := args[1].(types.String)
		units := 1 + uint64(len(text)+1)*c[string(pattern)]/10
		return &units
	}
	if function == "_==_" || function == "_!=_" || function == "@in" || function == "size" {
		units := uint64(1)
		for _, a := range args {
			units += weightOf(a, clauseCost)
		}
		return &units
	}
	if _, ours := ourFunctions[function]; !ours {
		return nil
	}
	units := uint64(1)
	for _, a := range args {
		if s, ok := a.(types.String); ok {
			units += uint64(len(s)) / 10
		}
	}
	return &units
}

// factsValue carries what a clause may ask to the functions that ask it. No
// text of a clause can name it.
type factsValue struct{ *Facts }

const factsName = "@facts"

var factsType = types.NewOpaqueType(factsName)

func (*factsValue) ConvertToNative(reflect.Type) (any, error) { return nil, errNoFact }
func (*factsValue) ConvertToType(ref.Type) ref.Val            { return types.NewErr("no value") }
func (*factsValue) Equal(ref.Val) ref.Val                     { return types.False }
func (*factsValue) Type() ref.Type                            { return factsType }
func (f *factsValue) Value() any                              { return f }

// excluded are the functions of CEL that clauses do without: those about time,
// and those whose results depend on the version of a library's tables.
var excluded = []string{
	"timestamp", "duration", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear",
	"getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "dyn",
	"double", // of a text it takes NaN, which is not greater than anything
}

var baseEnv = func() *cel.Env {
	subset := env.NewLibrarySubset().AddIncludedMacros("has", "all", "exists", "exists_one")
	for _, name := range excluded {
		subset.AddExcludedFunctions(env.NewFunction(name))
	}
	options := []cel.EnvOption{
		cel.StdLib(cel.StdLibSubset(subset)),
		cel.CrossTypeNumericComparisons(true),
		cel.EnableIdentifierEscapeSyntax(),
		cel.ParserRecursionLimit(clauseDepth),
		cel.ParserExpressionSizeLimit(ClauseBytesMax),
		cel.Variable(factsName, factsType),
	}
	e, err := cel.NewCustomEnv(append(options, functionOptions()...)...)
	if err != nil {
		panic(err)
	}
	return e
}()

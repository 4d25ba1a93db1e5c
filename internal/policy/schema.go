package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	errorkind "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Schema says which JSON values are taken: JSON Schema 2020-12 without what
// reaches outside the document, refers to itself or is not enforced. Two values
// that differ only in how the text was written are judged alike, save that an
// "integer" is written without '.' and 'e'. It may be used by many at once.
type Schema struct {
	compiled *jsonschema.Schema
	value    events.Value   // the schema itself, for the types it declares
	steps    map[string]int // of its patterns
}

// CompileSchema compiles a schema that stands in no document. What is wrong
// with it has no place then.
func CompileSchema(v events.Value) (*Schema, error) {
	d := decoder{reader: &reader{}}
	s := d.schema(nodeOf(v), "schema")
	if len(d.faults) > 0 {
		return nil, errors.New(d.faults[0].Message)
	}
	return s, nil
}

// Validate returns nil if the schema takes v, else one of the reasons, always
// the same one. It may quote v, so it is for the sender alone.
func (s *Schema) Validate(v events.Value) error {
	if !exact(v) {
		return errInexact
	}
	return s.validate(v)
}

// ValidateArguments is Validate for arguments.
func (s *Schema) ValidateArguments(a *Arguments) error { return s.validate(a.parsed) }

// ValidateJSON is Validate for a value that is JSON text still.
func (s *Schema) ValidateJSON(text []byte) error {
	v, err := events.ParseJSON(text)
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func (s *Schema) validate(v events.Value) error {
	if s.overweight(v) {
		return fmt.Errorf("it takes more than %d checks of the schema", checksMax)
	}
	err := s.compiled.Validate(goValue(v))
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return err
	}
	first := leaf(invalid)
	fault := &SchemaFault{At: pointer(first.InstanceLocation), Why: withoutPlace(first.Error())}
	if _, place, ok := strings.Cut(first.SchemaURL, "#"); ok {
		fault.Place = strings.Join(append([]string{place}, first.ErrorKind.KeywordPath()...), "/")
		if says, ok := s.at(fault.Place); ok {
			fault.Says = string(says.AppendCanonical(nil))
		}
	}
	return fault
}

// SchemaFault is one reason why a schema does not take a value. It may quote
// the value, so it is for the sender alone.
type SchemaFault struct {
	At, Why string // where in the value, and what is wrong there
	Place   string // the keyword of the schema that forbids it, such as /properties/size/maximum
	Says    string // what that keyword says, canonical JSON; empty if it is not found
}

func (f *SchemaFault) Error() string { return f.At + ": " + f.Why }

// withoutPlace leaves away what the library says of the place, which is said
// already.
func withoutPlace(text string) string {
	if place, why, ok := strings.Cut(text, "': "); ok && strings.HasPrefix(place, "at '") && !strings.HasSuffix(place, `\`) {
		return why
	}
	return text
}

// at is what stands at a place in the schema, as SchemaFault has places.
func (s *Schema) at(place string) (v events.Value, ok bool) {
	v, ok = s.value, true
	for token := range strings.SplitSeq(strings.TrimPrefix(place, "/"), "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		if unescaped, err := url.PathUnescape(token); err == nil {
			token = unescaped
		}
		if v.Kind == events.Array {
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v.Elements) {
				return events.Value{}, false
			}
			v = v.Elements[i]
			continue
		}
		if v, ok = v.Get(token); !ok {
			return events.Value{}, false
		}
	}
	return v, true
}

// leaf is the innermost cause that comes first by place, then by words: the
// library meets the members of an object in any order.
func leaf(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	if len(e.Causes) == 0 {
		return e
	}
	var first *jsonschema.ValidationError
	for _, cause := range e.Causes {
		next := leaf(cause)
		if first == nil || before(next, first) {
			first = next
		}
	}
	return first
}

func before(a, b *jsonschema.ValidationError) bool {
	if order := slices.Compare(a.InstanceLocation, b.InstanceLocation); order != 0 {
		return order < 0
	}
	return cmp.Or(cmp.Compare(a.Error(), b.Error()), cmp.Compare(a.SchemaURL, b.SchemaURL)) < 0
}

func pointer(at []string) string {
	if len(at) == 0 {
		return "the whole"
	}
	return "/" + strings.Join(at, "/")
}

// goValue is v as the library takes it.
func goValue(v events.Value) any { return native(v, goNumber) }

// goNumber keeps an integer's literal, so that nothing of it is lost; another
// number is a float64 here as everywhere.
func goNumber(v events.Value) any {
	if !strings.ContainsAny(v.Text, ".eE") {
		return json.Number(v.Text)
	}
	f, _ := strconv.ParseFloat(v.Text, 64)
	return f
}

// native is v in maps, slices, texts and booleans, its numbers as number has them.
func native(v events.Value, number func(events.Value) any) any {
	switch v.Kind {
	case events.True, events.False:
		return v.Kind == events.True
	case events.String:
		return v.Text
	case events.Number:
		return number(v)
	case events.Array:
		list := make([]any, len(v.Elements))
		for i := range v.Elements {
			list[i] = native(v.Elements[i], number)
		}
		return list
	case events.Object:
		members := make(map[string]any, len(v.Members))
		for i := range v.Members {
			members[v.Members[i].Name] = native(v.Members[i].Value, number)
		}
		return members
	}
	return nil
}

// What a keyword of a schema holds.
const (
	plain    = iota // no schema
	oneSub          // a schema
	listSub         // schemas
	namedSub        // schemas by name
)

// keywords are those of 2020-12 that are enforced, and those that only say
// something to people.
var keywords = map[string]int{
	"$schema": plain, "$comment": plain, "title": plain, "description": plain, "examples": plain, "deprecated": plain,
	"type": plain, "enum": plain, "const": plain, "format": plain, "$ref": plain,
	"multipleOf": plain, "maximum": plain, "exclusiveMaximum": plain, "minimum": plain, "exclusiveMinimum": plain,
	"maxLength": plain, "minLength": plain, "pattern": plain,
	"maxItems": plain, "minItems": plain, "uniqueItems": plain, "maxContains": plain, "minContains": plain,
	"maxProperties": plain, "minProperties": plain, "required": plain, "dependentRequired": plain,
	"not": oneSub, "if": oneSub, "then": oneSub, "else": oneSub, "items": oneSub, "contains": oneSub,
	"additionalProperties": oneSub, "propertyNames": oneSub, "unevaluatedItems": oneSub, "unevaluatedProperties": oneSub,
	"allOf": listSub, "anyOf": listSub, "oneOf": listSub, "prefixItems": listSub,
	"properties": namedSub, "patternProperties": namedSub, "dependentSchemas": namedSub, "$defs": namedSub,
}

// formats are checked, each by rules that do not change with the machine.
var formats = []string{"date", "date-time", "ipv4", "ipv6", "uuid"}

const (
	draft        = "https://json-schema.org/draft/2020-12/schema"
	definitions  = "#/$defs/"
	schemaURL    = "ledgerd:schema"
	schemaSubMax = 2000 // schemas in a schema, each as often as it is referred to
)

// schema reads a schema. It is nil if there is any fault in it.
func (d *decoder) schema(n node, what string) *Schema {
	faults := len(d.faults)
	v := d.json(n)
	w := schemaWalk{decoder: d, root: n, open: map[string]bool{}}
	w.sub(n)
	sorted, err := events.ParseJSON(v.AppendCanonical(nil))
	if err != nil {
		d.faultf(n, "%s is not within the JSON profile: %v", what, err)
		return nil
	}
	for _, m := range malformations(goValue(sorted)) {
		if at := n.find(m.InstanceLocation); !d.faulty(at, faults) {
			d.faultf(at, "%s: %s", what, m.Error())
		}
	}
	if len(d.faults) > faults || !n.whole() {
		return nil
	}
	compiled, err := compileSchema(goValue(sorted))
	if err != nil {
		d.faultf(n, "%s: %s", what, err)
		return nil
	}
	steps := map[string]int{}
	patternsIn(sorted, steps)
	return &Schema{compiled, sorted, steps}
}

// faulty reports whether one of the faults from the index since on stands at n.
func (d *decoder) faulty(n node, since int) bool {
	here := faultAt(d.lines, n.place, "")
	return slices.ContainsFunc(d.faults[since:], func(f Fault) bool { return f.Line == here.Line && f.Column == here.Column })
}

// arguments reads the schema of an action's arguments, which are an object.
func (d *decoder) arguments(n node) *Schema {
	s := d.schema(n, "arguments")
	if s == nil {
		return nil
	}
	if t, typed := s.value.Get("type"); s.value.Kind != events.Object || typed && t.Text != "object" {
		d.faultf(n, "arguments are an object; write type: object, or {} for any")
		return nil
	}
	return s
}

func newCompiler() *jsonschema.Compiler {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.AssertFormat()
	c.RegisterVocabulary(integers)
	c.AssertVocabs()
	return c
}

// compileSchema compiles what is found to be a schema.
func compileSchema(v any) (*jsonschema.Schema, error) {
	c := newCompiler()
	if err := c.AddResource(schemaURL, v); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// malformations are all that is wrong with v where the schema of schemas says
// what one looks like, one for each place.
func malformations(v any) []*jsonschema.ValidationError {
	schemas, err := newCompiler().Compile(draft)
	if err == nil {
		err = schemas.Validate(v)
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return nil
	}
	list := leaves(invalid)
	slices.SortStableFunc(list, func(a, b *jsonschema.ValidationError) int {
		return slices.Compare(a.InstanceLocation, b.InstanceLocation)
	})
	return slices.CompactFunc(list, func(a, b *jsonschema.ValidationError) bool {
		return slices.Equal(a.InstanceLocation, b.InstanceLocation)
	})
}

// leaves are the innermost causes. Of alternatives none of which fits, those of
// another type than the value say nothing; of patterns the walk has said it.
func leaves(e *jsonschema.ValidationError) (list []*jsonschema.ValidationError) {
	if _, isFormat := e.ErrorKind.(*errorkind.Format); isFormat {
		return nil
	}
	if len(e.Causes) == 0 {
		return []*jsonschema.ValidationError{e}
	}
	for _, cause := range e.Causes {
		list = append(list, leaves(cause)...)
	}
	if _, alternatives := e.ErrorKind.(*errorkind.AnyOf); alternatives && len(list) > 1 {
		list = slices.DeleteFunc(list, func(e *jsonschema.ValidationError) bool {
			_, otherType := e.ErrorKind.(*errorkind.Type)
			return otherType
		})
	}
	return list
}

// noLoader opens nothing, wherever a reference leads.
type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("a schema refers to nothing outside itself")
}

// integers takes from type: integer the numbers that are written another way.
var integers = &jsonschema.Vocabulary{URL: "ledgerd:integer", Compile: func(_ *jsonschema.CompilerContext, obj map[string]any) (jsonschema.SchemaExt, error) {
	var types []any
	switch t := obj["type"].(type) {
	case string:
		types = []any{t}
	case []any:
		types = t
	}
	if slices.Contains(types, any("integer")) && !slices.Contains(types, any("number")) {
		return literalInteger{}, nil
	}
	return nil, nil
}}

type literalInteger struct{}

func (literalInteger) Validate(ctx *jsonschema.ValidatorContext, v any) {
	if _, float := v.(float64); float {
		ctx.AddError(&errorkind.Type{Got: "number written with '.' or 'e'", Want: []string{"integer"}})
	}
}

// schemaWalk goes over a schema before the library does.
type schemaWalk struct {
	*decoder
	root node
	open map[string]bool // definitions that the walk is inside of
	subs int
}

func (w *schemaWalk) sub(n node) {
	if w.subs++; w.subs > schemaSubMax {
		if w.subs == schemaSubMax+1 {
			w.faultf(n, "the schema has more than %d schemas in it, counting each as often as it is referred to", schemaSubMax)
		}
		return
	}
	switch n.kind {
	case boolKind, nullKind, badKind: // null has its fault as a value
		return
	case mappingKind:
	default:
		w.faultf(n, "a schema is a mapping, or true or false, not %s", n.kind)
		return
	}
	for _, f := range w.distinct(n) {
		holds, known := keywords[f.key.text]
		if !known {
			w.faultf(f.key, "%s is no keyword of a schema here%s", quote(f.key.text), didYouMean(f.key.text, keywordNames))
			continue
		}
		switch {
		case f.key.text == "$defs" && f.value.kind == mappingKind:
			w.definitions(n, f)
		case holds == oneSub:
			w.sub(f.value)
		case holds == listSub:
			for _, item := range f.value.items {
				w.sub(item)
			}
		case holds == namedSub:
			for _, named := range w.distinct(f.value) {
				if f.key.text == "patternProperties" {
					w.pattern(named.key)
				}
				w.sub(named.value)
			}
		default:
			w.plain(f)
		}
	}
}

var keywordNames = func() (names []string) {
	for name := range keywords {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}()

func (w *schemaWalk) definitions(n node, f field) {
	if n.place != w.root.place {
		w.faultf(f.key, "$defs stands at the top of a schema only")
		return
	}
	for _, named := range w.distinct(f.value) {
		if strings.ContainsAny(named.key.text, "/~%#") {
			w.faultf(named.key, "the name of a definition is without / ~ %% and #")
		}
		w.sub(named.value)
	}
}

func (w *schemaWalk) plain(f field) {
	switch text := f.value.text; f.key.text {
	case "$schema":
		if text != draft {
			w.faultf(f.value, "$schema is %s, or left out", draft)
		}
	case "format":
		if !slices.Contains(formats, text) {
			w.faultf(f.value, "format is %s; write anything else as a pattern%s", strings.Join(formats, ", "), didYouMean(text, formats))
		}
	case "$ref":
		w.reference(f.value)
	case "pattern":
		if f.value.kind == textKind {
			w.pattern(f.value)
		}
	}
}

func (w *schemaWalk) pattern(n node) {
	switch steps, ok := patternSteps(n.text); {
	case !ok:
		w.faultf(n, "%s is no pattern of RE2, which has no look-around and no references back", quote(n.text))
	case steps > patternStepsMax:
		w.faultf(n, "%s is too large a pattern; it compiles to over %d steps", quote(n.text), patternStepsMax)
	}
}

func (w *schemaWalk) reference(n node) {
	name, local := strings.CutPrefix(n.text, definitions)
	var target node
	for _, f := range w.root.fields {
		if f.key.text == "$defs" {
			target = f.value.find([]string{name})
			local = local && target.place != f.value.place
		}
	}
	switch {
	case n.kind != textKind || !local || target.kind == badKind:
		w.faultf(n, "$ref is %sNAME, of a definition in this schema", definitions)
	case w.open[name]:
		w.faultf(n, "the definition %s refers to itself", quote(name))
	default:
		w.open[name] = true
		w.sub(target)
		w.open[name] = false
	}
}

// find is the node at a path of keys and indexes, or the last one on the way.
func (n node) find(path []string) node {
	for _, name := range path {
		next := -1
		switch n.kind {
		case mappingKind:
			next = slices.IndexFunc(n.fields, func(f field) bool { return f.key.text == name })
			if next < 0 {
				return n
			}
			n = n.fields[next].value
		case listKind:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(n.items) {
				return n
			}
			n = n.items[i]
		default:
			return n
		}
	}
	return n
}

// nodeOf is a value as if it had been read. Every node has a place of its own.
func nodeOf(v events.Value) node {
	line := 0
	var of func(events.Value) node
	of = func(v events.Value) node {
		line++
		n := node{text: v.Text, place: place{line: line}}
		switch v.Kind {
		case events.True, events.False:
			n.kind, n.text = boolKind, strconv.FormatBool(v.Kind == events.True)
		case events.Number:
			n.kind = integerKind
		case events.String:
			n.kind = textKind
		case events.Array:
			n.kind = listKind
			for _, e := range v.Elements {
				n.items = append(n.items, of(e))
			}
		case events.Object:
			n.kind = mappingKind
			for _, m := range v.Members {
				n.fields = append(n.fields, field{node{kind: textKind, text: m.Name, place: place{line: line}}, of(m.Value)})
			}
		default:
			n.kind = nullKind
		}
		return n
	}
	return of(v)
}

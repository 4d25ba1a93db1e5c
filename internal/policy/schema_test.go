package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

func parsed(t testing.TB, text string) events.Value {
	t.Helper()
	v, err := events.ParseJSON([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// CASES 81 and 83: a limit holds for the number, a text is no number, and an
// integer is written as one.
func TestR61_SchemasTakeNumbersExactly(t *testing.T) {
	schema := func(text string) *Schema {
		s, err := CompileSchema(parsed(t, text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return s
	}
	limit := `{"type":"object","required":["n"],"properties":{"n":{"type":"integer","maximum":10}},"additionalProperties":false}`
	for _, row := range []struct {
		schema, value string
		taken         bool
	}{
		{limit, `{"n":9}`, true}, {limit, `{"n":10}`, true}, {limit, `{"n":11}`, false},
		{limit, `{"n":"9"}`, false}, {limit, `{"n":"100"}`, false}, {limit, `{"n":1e1}`, false}, {limit, `{"n":9.0}`, false},
		{limit, `{"n":true}`, false}, {limit, `{"n":[9]}`, false}, {limit, `{"n":null}`, false}, {limit, `{}`, false}, {limit, `{"n":9,"m":1}`, false},
		{`{"type":["integer","string"]}`, `1.0`, false}, {`{"type":["integer","number"]}`, `1.0`, true}, {`{"type":"number"}`, `1.0`, true},
		{`{"items":{"type":"integer"}}`, `[1,2,3]`, true}, {`{"items":{"type":"integer"}}`, `[1,2,3.0]`, false},
		{`{"maximum":9007199254740990}`, `9007199254740991`, false}, {`{"maximum":9007199254740991}`, `9007199254740991`, true},
		{`{"minimum":-9007199254740991}`, `-9007199254740991`, true}, {`{"const":9007199254740991}`, `9007199254740990`, false},
		{`{"minimum":1}`, `1e-300`, false}, {`{"minimum":1}`, `1e-999999999`, false}, {`{"maximum":5}`, `1e300`, false},
		{`{"type":"string","format":"date"}`, `"2026-02-30"`, false}, {`{"type":"string","format":"date"}`, `"2026-02-28"`, true},
		{`{"type":"string","maxLength":2}`, `"öö"`, true},
		{`{"$defs":{"p":{"type":"string","pattern":"^a+$"}},"properties":{"x":{"$ref":"#/$defs/p"}}}`, `{"x":"aab"}`, false},
		{`{"$defs":{"p":{"type":"string","pattern":"^a+$"}},"properties":{"x":{"$ref":"#/$defs/p"}}}`, `{"x":"aa"}`, true},
		{`{"uniqueItems":true}`, `[1,1.0]`, false}, {`{"enum":["a",1]}`, `"1"`, false}, {`false`, `1`, false}, {`true`, `1`, true},
	} {
		s := schema(row.schema)
		first := s.Validate(parsed(t, row.value))
		if (first == nil) != row.taken {
			t.Errorf("%s of %s: %v", row.schema, row.value, first)
		}
		for range 20 {
			if again := s.ValidateJSON([]byte(row.value)); first != nil && again.Error() != first.Error() {
				t.Fatalf("%s of %s: %v, then %v", row.schema, row.value, first, again)
			}
		}
	}
	if err := schema(limit).ValidateJSON([]byte(`{"n":1,"n":2}`)); err == nil {
		t.Error("a text outside the profile is taken")
	}
}

// A fault says where in the value and where in the schema.
func TestSchemaFault_Places(t *testing.T) {
	for _, row := range []struct{ schema, value, at, place, says string }{
		{`{"properties":{"n":{"type":"integer","maximum":10}}}`, `{"n":11}`, "/n", "/properties/n/maximum", `10`},
		{`{"properties":{"n":{"type":"integer"}}}`, `{"n":"a"}`, "/n", "/properties/n/type", `"integer"`},
		{`{"required":["a","b"]}`, `{"a":1}`, "the whole", "/required", `["a","b"]`},
		{`{"properties":{"a":true},"additionalProperties":false}`, `{"b":1}`, "the whole", "/additionalProperties", `false`},
		{`{"$defs":{"p":{"pattern":"^a+$"}},"properties":{"x y":{"$ref":"#/$defs/p"}}}`, `{"x y":"b"}`, "/x y", "/$defs/p/pattern", `"^a+$"`},
		{`{"properties":{"a/b":{"const":1}}}`, `{"a/b":2}`, "/a/b", "/properties/a~1b/const", `1`},
		{`{"anyOf":[{"const":1},{"const":2}]}`, `3`, "the whole", "/anyOf/0/const", `1`},
		{`{"items":{"type":"integer"}}`, `[1,2.0]`, "/1", "/items/type", `"integer"`},
	} {
		s, err := CompileSchema(parsed(t, row.schema))
		if err != nil {
			t.Fatal(err)
		}
		var fault *SchemaFault
		if err := s.Validate(parsed(t, row.value)); !errors.As(err, &fault) {
			t.Fatalf("%s of %s: %v", row.schema, row.value, err)
		}
		if fault.At != row.at || fault.Place != row.place || fault.Says != row.says {
			t.Errorf("%s of %s: %+v", row.schema, row.value, *fault)
		}
	}
}

// What is not enforced, reaches outside or does not end is refused when the
// schema is read.
func TestR60_SchemasThatMeanLessThanTheySayAreRefused(t *testing.T) {
	for _, row := range []struct{ schema, fault string }{
		{`{"$ref":"file:///etc/passwd"}`, "$ref is"}, {`{"$ref":"https://example.com/s"}`, "$ref is"}, {`{"$ref":"#"}`, "$ref is"},
		{`{"$ref":"#/$defs/none"}`, "$ref is"}, {`{"$ref":"#/properties/a","properties":{"a":true}}`, "$ref is"}, {`{"$ref":"#/$defs/"}`, "$ref is"},
		{`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"items":{"$ref":"#/$defs/a"}}}}`, "refers to itself"},
		{`{"$id":"https://example.com/"}`, "no keyword"}, {`{"$dynamicRef":"#a"}`, "no keyword"}, {`{"$anchor":"a"}`, "no keyword"},
		{`{"$schema":"http://json-schema.org/draft-07/schema#"}`, "$schema is"}, {`{"default":1}`, "no keyword"}, {`{"contentEncoding":"base64"}`, "no keyword"},
		{`{"requierd":["a"]}`, `did you mean "required"`}, {`{"properties":{"a":{"tpye":"string"}}}`, `did you mean "type"`},
		{`{"type":"int"}`, "schema: "}, {`{"maximum":"9"}`, "schema: "}, {`{"pattern":"(?=a)"}`, "no pattern of RE2"}, {`{"patternProperties":{"(":true}}`, "no pattern of RE2"}, {`{"required":"a"}`, "schema: "},
		{`{"format":"uri"}`, "format is"}, {`{"properties":{"$defs":{"$defs":{}}}}`, "at the top"}, {`{"$defs":{"a/b":true}}`, "name of a definition"},
		{`"string"`, "a schema is a mapping"}, {`{"items":[true]}`, "a schema is a mapping"}, {`{"const":null}`, "null"},
	} {
		s, err := CompileSchema(parsed(t, row.schema))
		if s != nil || err == nil || !strings.Contains(err.Error(), row.fault) {
			t.Errorf("%s: %v", row.schema, err)
		}
	}
	bomb := `{"$defs":{"d0":true`
	for i := range 20 {
		bomb += fmt.Sprintf(`,"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i+1, i, i)
	}
	if _, err := CompileSchema(parsed(t, bomb+`}}`)); err == nil || !strings.Contains(err.Error(), "more than 2000") {
		t.Errorf("a schema that doubles itself: %v", err)
	}
}

func FuzzSchema(f *testing.F) {
	f.Add(`{"type":"object","properties":{"n":{"type":"integer"}}}`, `{"n":1.0}`)
	f.Add(`{"$defs":{"a":{"items":{"$ref":"#/$defs/a"}}},"$ref":"#/$defs/a"}`, `[[]]`)
	f.Add(`{"anyOf":[{"const":1},{"pattern":"a"}],"unevaluatedProperties":false}`, `{"a":[1,2]}`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		s, err := events.ParseJSON([]byte(schema))
		if err != nil {
			return
		}
		compiled, err := CompileSchema(s)
		if (compiled == nil) == (err == nil) {
			t.Fatalf("%v, %v", compiled, err)
		}
		v, bad := events.ParseJSON([]byte(value))
		if err != nil || bad != nil {
			return
		}
		first, again := compiled.Validate(v), compiled.ValidateJSON([]byte(value))
		if (first == nil) != (again == nil) || first != nil && first.Error() != again.Error() {
			t.Fatalf("%v, then %v", first, again)
		}
	})
}

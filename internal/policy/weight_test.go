package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

// TestR66_ASchemaIsHeldAgainstSoMuch: what takes too many checks is refused, as
// what breaks the schema is, and before it is checked.
func TestR66_ASchemaIsHeldAgainstSoMuch(t *testing.T) {
	many := func(n int, one string) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	numbers := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprint(i)
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	for _, row := range []struct {
		schema, value string
		heavy         bool
	}{
		{`{"items":{"type":"string"}}`, many(3000, `"a"`), false},
		{`{"items":{"type":"string"}}`, many(30000, `1`), true},
		{`{"items":{"enum":` + numbers(249) + `}}`, many(16000, `1`), true},
		{`{"items":{"enum":` + numbers(2000) + `}}`, many(9000, `1`), true},
		{`{"items":{"enum":` + numbers(10) + `}}`, many(300, `1`), false},
		{`{"items":{"anyOf":` + many(500, `{"type":"string"}`) + `}}`, many(100, `1`), true},
		{`{"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"allOf":` + many(500, `{"type":"string"}`) + `}}}`, many(100, `1`), true},
		{`{"pattern":"(a?){200}b"}`, `"` + strings.Repeat("a", 5000) + `"`, true},
		{`{"pattern":"^[a-z]*$"}`, `"` + strings.Repeat("a", 5000) + `"`, false},
		{`{"patternProperties":{"(a?){200}b":true}}`, `{"` + strings.Repeat("a", 5000) + `":1}`, true},
		{`{"propertyNames":{"pattern":"(a?){200}b"}}`, `{"` + strings.Repeat("a", 5000) + `":1}`, true},
		{`{"const":` + many(20000, "1") + `}`, many(20000, "1"), true},
		{`{"uniqueItems":true}`, numbers(3000), false},
		{`{"uniqueItems":true}`, numbers(12000), true},
		{`{"contains":{"not":{"type":"string"}}}`, many(6000, `1`), true},
		{`{"additionalProperties":{"properties":{"a":{"type":"string"}}}}`, `{"x":{"a":1}}`, false},
		{`{"prefixItems":` + many(1000, `{"enum":`+numbers(20)+`}`) + `}`, many(1000, `1`), true},
		{`{"dependentSchemas":{"a":{"items":{"type":"string"}}}}`, many(30000, `1`), true},
	} {
		s, err := CompileSchema(parsed(t, row.schema))
		if err != nil {
			t.Fatalf("%.60s: %v", row.schema, err)
		}
		v, err := events.ParseJSON([]byte(row.value))
		if err != nil {
			t.Fatal(err)
		}
		if heavy := s.overweight(v); heavy != row.heavy {
			t.Errorf("%.60s of %.20s: too much: %v", row.schema, row.value, heavy)
		}
		if err := s.Validate(v); row.heavy && (err == nil || !strings.Contains(err.Error(), "checks of the schema")) {
			t.Errorf("%.60s of %.20s: %v", row.schema, row.value, err)
		}
	}
	if _, err := CompileSchema(parsed(t, `{"pattern":"(a?){999}(b?){999}(c?){999}"}`)); err == nil {
		t.Error("a pattern of any size")
	}
}

// A number that a double does not hold is not judged as another one.
func TestR61_NumbersAreJudgedAsTheyStand(t *testing.T) {
	for literal, want := range map[string]bool{
		"0": true, "1": true, "-1": true, "9007199254740991": true, "0.1": true, "100.5": true, "1e3": true, "1.50": true, "1E+2": true, "0.0": true, "1.0e-3": true, "123456789.25": true,
		"5e-324": true, "1.7976931348623157e308": true, "0e99999": true,
		"100.000000000000001": false, "1e-400": false, "9007199254740993.0": false, "0.10000000000000000001": false, "1e-99999999999": false, "4.9e-324": false,
	} {
		if got := exactNumber(literal); got != want {
			t.Errorf("%s: %v", literal, got)
		}
	}
	s, err := CompileSchema(parsed(t, `{"properties":{"amount":{"type":"number","maximum":100}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{`{"amount":100.0}`: true, `{"amount":99.99}`: true, `{"amount":100.000000000000001}`: false, `{"other":[{"n":1e-400}]}`: false} {
		if err := s.ValidateJSON([]byte(text)); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := NewArguments([]byte(text)); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

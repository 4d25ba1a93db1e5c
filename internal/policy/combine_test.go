package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naiveCombine says what records come to, one type at a time, over plain Go
// values: a second implementation that shares nothing with the first.
func naiveCombine(how string, values []any) (string, bool) {
	if len(values) == 0 {
		return "", false
	}
	counts := map[string]int{}
	numbers, yes := []int{}, 0
	for _, v := range values {
		switch v := v.(type) {
		case bool:
			if how != "all_true" && how != "any_true" {
				return "", false
			}
			if v {
				yes++
			}
		case int:
			if how != "min" && how != "max" {
				return "", false
			}
			numbers = append(numbers, v)
		case []string:
			if how != "union" && how != "intersection" {
				return "", false
			}
			seen := map[string]bool{}
			for _, s := range v {
				if !seen[s] {
					seen[s] = true
					counts[s]++
				}
			}
		default:
			return "", false
		}
	}
	switch how {
	case "all_true":
		return fmt.Sprint(yes == len(values)), true
	case "any_true":
		return fmt.Sprint(yes > 0), true
	case "min":
		return fmt.Sprint(slices.Min(numbers)), true
	case "max":
		return fmt.Sprint(slices.Max(numbers)), true
	}
	var list []string
	for s, n := range counts {
		if how == "union" || n == len(values) {
			list = append(list, `"`+s+`"`)
		}
	}
	slices.Sort(list)
	return "[" + strings.Join(list, ",") + "]", true
}

func naiveJSON(v any) string {
	switch v := v.(type) {
	case []string:
		var quoted []string
		for _, s := range v {
			quoted = append(quoted, `"`+s+`"`)
		}
		return "[" + strings.Join(quoted, ",") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// R29: over a lineage whatever its records are, the combination is what the
// naive interpreter says; one record more, a descendant's, only tightens, and
// one of the wrong type denies.
func TestR29_DescendantsOnlyTighten(t *testing.T) {
	value := func(t *rapid.T, how string) any {
		if rapid.IntRange(0, 19).Draw(t, "wrong") == 0 {
			return rapid.SampledFrom([]any{true, 3, []string{"a"}, `"x"`, `"true"`, "1.0", "{}", "[1]"}).Draw(t, "any")
		}
		switch how {
		case AllTrue, AnyTrue:
			return rapid.Bool().Draw(t, "bool")
		case Min, Max:
			return rapid.IntRange(-5, 5).Draw(t, "integer")
		}
		return rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 4).Draw(t, "list")
	}
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		for range 100 { // ten thousand and more in all
			cases++
			how := rapid.SampledFrom(Combinations).Draw(t, "how")
			var plain []any
			var values [][]byte
			before, ok := []byte(nil), true
			for i := range rapid.IntRange(1, 6).Draw(t, "records") {
				v := value(t, how)
				plain = append(plain, v)
				values = append(values, []byte(naiveJSON(v)))
				got, typed := Combine(how, values)
				want, wantTyped := naiveCombine(how, plain)
				if typed != wantTyped || typed && string(got) != want {
					t.Fatalf("%s of %s: %s %v, want %s %v", how, values, got, typed, want, wantTyped)
				}
				if i > 0 && (typed && !ok || typed && !tighter(how, before, got)) {
					t.Fatalf("%s: %s loosens %s %v to %s %v", how, values[i], before, ok, got, typed)
				}
				before, ok = got, typed
			}
		}
	})
	if cases < 10_000 && !testing.Short() {
		t.Errorf("%d cases", cases)
	}
}

// tighter reports whether b allows no more than a, in the sense of how: two
// equal values do.
func tighter(how string, a, b []byte) bool {
	both, ok := Combine(how, [][]byte{a, b})
	return ok && string(both) == string(b)
}

// R29: the type of each combination, value by value.
func TestR29_EachCombinationTakesItsTypeAlone(t *testing.T) {
	types := map[string]string{AllTrue: "b", AnyTrue: "b", Min: "i", Max: "i", Union: "l", Intersection: "l"}
	for value, kind := range map[string]string{
		"true": "b", "false": "b", "0": "i", "-3": "i", "9007199254740991": "i", "30.0": "", "1e2": "", `"30"`: "", "null": "",
		"[]": "l", `["a"]`: "l", `["a","a"]`: "l", `[1]`: "", `["a",true]`: "", `[["a"]]`: "", `{}`: "", `{"a":true}`: "", "": "", "true false": "",
	} {
		for how, want := range types {
			if Typed(how, []byte(value)) != (kind == want) {
				t.Errorf("%s takes %s: %v", how, value, kind != want)
			}
		}
	}
	if Typed("", []byte("true")) || Typed("sum", []byte("1")) {
		t.Error("an unknown combination takes a value")
	}
}

// R32: a value rule holds for all beneath its name by whole segments; a deeper
// one adds to it.
func TestR32_ValueRules(t *testing.T) {
	doc, faults := ParseDocument(`apiVersion: ledgerd/v1
kind: Policy
version: v
environment: []
namespaces:
  report.retention_days: {value: {type: integer, minimum: 1, maximum: 365}}
  limits: {value: {type: integer, minimum: 1}}
  limits.small: {value: {type: integer, maximum: 10}}
  limits.free: {class: secret}
  floor: {class: mandatory, combine: max, value: {type: integer, minimum: 0}}
`)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	p := doc.Policy
	for _, c := range []struct {
		namespace, key, value string
		want                  bool
	}{
		{"report", "retention_days", "30", true}, {"report", "retention_days", "1", true}, {"report", "retention_days", "365", true},
		{"report", "retention_days", `"30"`, false}, {"report", "retention_days", "30.0", false}, {"report", "retention_days", "true", false},
		{"report", "retention_days", "0", false}, {"report", "retention_days", "366", false}, {"report", "retention_days", "3e1", false},
		{"report.retention_days", "x", "0", false}, {"report", "retention_days2", "0", true}, {"report", "retention", "0", true},
		{"limits", "a", "0", false}, {"limits", "a", "11", true}, {"limits", "small", "11", false}, {"limits", "small", "0", false}, {"limits.small", "x", "5", true},
		{"limits", "free", "0", false}, {"limitsevil", "a", "0", true}, {"floor", "a", "-1", false},
	} {
		if p.AllowsValue(c.namespace, c.key, []byte(c.value)) != c.want {
			t.Errorf("%s.%s = %s: not %v", c.namespace, c.key, c.value, c.want)
		}
	}
}

package events

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// jsonVector is one line of testdata/v1/json.jsonl: a text and its canonical
// form, or the rule that refuses it.
type jsonVector struct {
	Base64    string `json:"base64"`
	Canonical string `json:"canonical,omitempty"`
	Refused   string `json:"refused,omitempty"`
}

var jsonAccepted = []struct{ in, want string }{
	{`{}`, `{}`},
	{`[]`, `[]`},
	{" \t\r\n{ \"b\" : [ 1 , true , false , null ] , \"a\" : \"x\" } ", `{"a":"x","b":[1,true,false,null]}`},
	{`"\u0061\/\u00e9\u20ac"`, `"a/é€"`},
	{`"\ud83d\ude00"`, `"😀"`},
	{`"\u0001\u0008\u0009\u000a\u000c\u000d\u001F\u007f\u2028\ufffd"`, "\"\\u0001\\b\\t\\n\\f\\r\\u001f\u007f\u2028\ufffd\""},
	{`"\"\\<>&'"`, `"\"\\<>&'"`},
	{`9007199254740991`, `9007199254740991`},
	{`-9007199254740991`, `-9007199254740991`},
	{`0`, `0`},
	{`[1.0,1e2,1E+2,0.1e1,1.50,0e0,0.0]`, `[1.0,1e2,1E+2,0.1e1,1.50,0e0,0.0]`}, // exactly as written
	{`1.7976931348623157e308`, `1.7976931348623157e308`},
	{`1e-400`, `1e-400`},
	{`9007199254740993.0`, `9007199254740993.0`}, // no integer: it has a point
	{`{"a":1,"A":2,"aa":3,"":4}`, `{"":4,"A":2,"a":1,"aa":3}`},
	{`{"\uE000":1,"\uD83D\uDE00":2,"\uFFFF":3,"é":4,"z":5}`, "{\"z\":5,\"é\":4,\"😀\":2,\"\ue000\":1,\"\uffff\":3}"}, // UTF-16 order
	{`{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}`,
		"{\"\\r\":2,\"1\":4,\"\u0080\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\ufb33\":3}"}, // RFC 8785 section 3.2.3
	{nested(JSONDepthMax), nested(JSONDepthMax)},
	{strings.Repeat(`{"a":`, JSONDepthMax) + "1" + strings.Repeat("}", JSONDepthMax), strings.Repeat(`{"a":`, JSONDepthMax) + "1" + strings.Repeat("}", JSONDepthMax)},
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// jsonRefused lists what the profile refuses, by rule: the JSON rows of the
// abuse cases, case kind 21, and the corners of RFC 8259's grammar.
var jsonRefused = []struct{ in, rule string }{
	{`{"action":"memory.read","action":"memory.delete"}`, "duplicate"},
	{`{"action":"memory.read","\u0061ction":"memory.delete"}`, "duplicate"},
	{`{"a":{"b":[{"c":1,"d":2,"c":3}]}}`, "duplicate"},
	{`{"a":1,"a":1}`, "duplicate"},
	{`{"":1,"":2}`, "duplicate"},
	{`{"b":1,"a":2,"b":3}`, "duplicate"},
	{`{"😀":1,"\ud83d\ude00":2}`, "duplicate"},
	{"{\"action\":\"memory.read\xff\"}", "UTF-8"},
	{"\"\xed\xa0\x80\"", "UTF-8"},                // a surrogate in UTF-8
	{"\"\xc0\xaf\"", "UTF-8"},                    // an overlong slash
	{"\"\xf4\x90\x80\x80\"", "UTF-8"},            // beyond U+10FFFF
	{"{}\xff", "UTF-8"},                          // behind the value too
	{"\xff\xfe{\x00}\x00", "UTF-8"},              // UTF-16, little-endian
	{"\xfe\xff\x00{\x00}", "UTF-8"},              // UTF-16, big-endian
	{"{\x00}\x00", "member name"},                // UTF-16 without a mark
	{"\x00{\x00}", "no JSON value"},              //
	{"\xef\xbb\xbf{}", "byte-order mark"},        //
	{"{\"a\":1}\xef\xbb\xbf", "data after"},      //
	{"\xef\xbb\xbf\xef\xbb\xbf{}", "byte-order"}, //
	{`{"action":"memory.read"}{"action":1}`, "data after"},
	{`{} x`, "data after"},
	{"{}\x00", "data after"},
	{`1 2`, "data after"},
	{`{"action":"pay","args":{"amount":9007199254740993}}`, "2^53-1"},
	{`9007199254740992`, "2^53-1"},
	{`-9007199254740992`, "2^53-1"},
	{`18446744073709551616`, "2^53-1"},
	{`1` + strings.Repeat("0", 400), "2^53-1"},
	{`1e400`, "too large"},
	{`-1e400`, "too large"},
	{`1e309`, "too large"},
	{`1.8e308`, "too large"},
	{`1e999999999999999999999`, "too large"},
	{`-0`, "negative zero"},
	{`-0.0`, "negative zero"},
	{`-0e1`, "negative zero"},
	{`-1e-400`, "negative zero"}, // rounds to it
	{`{"a":-0}`, "negative zero"},
	{`"\uD800"`, "surrogate"},
	{`"\uDEAD"`, "surrogate"},
	{`"\uD800\uD800"`, "surrogate"},
	{`"\uD800A"`, "surrogate"},
	{`"\uD83D\u0041"`, "surrogate"},
	{`"\uDE00\uD83D"`, "surrogate"},
	{`"\uD83D\n"`, "surrogate"},
	{`"\uD83D`, "surrogate"},
	{`"\u0000"`, "NUL"},
	{`{"a\u0000":1}`, "NUL"},
	{"\"a\x00b\"", "control character"},
	{"\"a\nb\"", "control character"},
	{"\"a\\n\tb\"", "control character"},
	{nested(JSONDepthMax + 1), "too deep"},
	{strings.Repeat(`{"a":`, JSONDepthMax+1) + "1" + strings.Repeat("}", JSONDepthMax+1), "too deep"},
	{`{"args":` + strings.Repeat("[", 10001) + `}`, "too deep"},
	{strings.Repeat("[", 100_000), "too deep"},
	{``, "no JSON value"},
	{` `, "no JSON value"},
	{`nul`, "no JSON value"},
	{`True`, "no JSON value"},
	{`NaN`, "no JSON value"},
	{`Infinity`, "no JSON value"},
	{`-Infinity`, "number"},
	{`'a'`, "no JSON value"},
	{`// comment`, "no JSON value"},
	{`{"a":1/**/}`, "comma"},
	{`truefalse`, "data after"},
	{`{`, "member name"},
	{`{a:1}`, "member name"},
	{`{1:1}`, "member name"},
	{`{"a"}`, "colon"},
	{`{"a":}`, "no JSON value"},
	{`{"a":1,}`, "member name"},
	{`{"a":1 "b":2}`, "comma"},
	{`{"a":1]`, "comma"},
	{`[1,]`, "no JSON value"},
	{`[,1]`, "no JSON value"},
	{`[1 2]`, "comma"},
	{`[1`, "comma"},
	{`[1}`, "comma"},
	{`"a`, "without end"},
	{`"a\`, "without end"},
	{`"\x41"`, "escape"},
	{`"\u12"`, "escape"},
	{`"\u+123"`, "escape"},
	{`"\u 123"`, "escape"},
	{`"\U00000041"`, "escape"},
	{`"\'"`, "escape"},
	{`01`, "number"},
	{`-01`, "number"},
	{`+1`, "no JSON value"},
	{`.5`, "no JSON value"},
	{`5.`, "number"},
	{`1e`, "number"},
	{`1e+`, "number"},
	{`-`, "number"},
	{`0x10`, "data after"},
	{`1_000`, "data after"},
	{"\u00a01", "no JSON value"}, // no-break space is no white space
	{"\v1", "no JSON value"},
}

func TestParseJSON(t *testing.T) {
	var list [][]byte
	keep := func(v jsonVector) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	for _, c := range jsonAccepted {
		v, err := ParseJSON([]byte(c.in))
		if err != nil {
			t.Errorf("%.80q: %v", c.in, err)
			continue
		}
		if got := string(v.AppendCanonical(nil)); got != c.want {
			t.Errorf("%.80q: canonical %q, want %q", c.in, got, c.want)
		}
		keep(jsonVector{Base64: base64.StdEncoding.EncodeToString([]byte(c.in)), Canonical: c.want})
	}
	for _, c := range jsonRefused {
		v, err := ParseJSON([]byte(c.in))
		var fault *JSONError
		if !errors.As(err, &fault) {
			t.Errorf("%.80q: accepted as %.80s (%v)", c.in, fmt.Sprint(v), err)
			continue
		}
		if !strings.Contains(fault.Rule, c.rule) {
			t.Errorf("%.80q: refused as %q, want %q", c.in, fault.Rule, c.rule)
		}
		if fault.Offset < 0 || fault.Offset > len(c.in) {
			t.Errorf("%.80q: offset %d", c.in, fault.Offset)
		}
		if v.Kind != Invalid {
			t.Errorf("%.80q: a value beside the error", c.in)
		}
		if len(c.in) < 20_000 {
			keep(jsonVector{Base64: base64.StdEncoding.EncodeToString([]byte(c.in)), Refused: fault.Rule})
		}
	}
	vector(t, "json.jsonl", lines(list))
}

// TestJSONErrorNeverQuotes: a refused text may hold a secret; its error may not.
func TestJSONErrorNeverQuotes(t *testing.T) {
	for _, in := range []string{`{"canary":1,"canary":2}`, `{"a":canary}`, `"canary`, `{"a":"canary"}canary`, `["canary\q"]`} {
		_, err := ParseJSON([]byte(in))
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// TestJSONNamesAreExact: names in another case or with a look-alike letter are
// other names, which the reader of the object then refuses as unknown.
func TestJSONNamesAreExact(t *testing.T) {
	v, err := ParseJSON([]byte(`{"action":"memory.read","ACTION":"memory.delete","Action":"x","a\u0441tion":"y","\u212Aey":"z"}`))
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := v.Get("action"); !ok || a.Text != "memory.read" || len(v.Members) != 5 {
		t.Errorf("action = %q among %d members", a.Text, len(v.Members))
	}
	if _, ok := v.Get("key"); ok {
		t.Error("a Kelvin sign passed for a k")
	}
	if _, ok := v.Get(""); ok {
		t.Error("a name that is not there")
	}
	if _, ok := (Value{Kind: Array}).Get("a"); ok {
		t.Error("a member of an array")
	}
}

func TestInt(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "30": 30, "-1": -1, "9007199254740991": IntegerMax, "-9007199254740991": -IntegerMax} {
		v, err := ParseJSON([]byte(in))
		if n, ok := v.Int(); err != nil || !ok || n != want {
			t.Errorf("%s is %d (%v, %v)", in, n, ok, err)
		}
	}
	for _, in := range []string{"30.0", "3e1", "3E1", "0.0", `"30"`, "true", "null", "[]", "{}"} {
		v, err := ParseJSON([]byte(in))
		if n, ok := v.Int(); err != nil || ok {
			t.Errorf("%s passes for the integer %d (%v)", in, n, err)
		}
	}
}

func TestCanonicalOfNoValuePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the zero Value has a canonical form")
		}
	}()
	Value{}.AppendCanonical(nil)
}

// TestCanonicalOrder compares the order of names with RFC 8785's own words:
// compare the UTF-16 code units as unsigned integers.
func TestCanonicalOrder(t *testing.T) {
	name := rapid.StringOf(rapid.RuneFrom([]rune{1, 'A', 'a', 0x80, 0xd7ff, 0xe000, 0xfffd, 0xffff, 0x10000, 0x10400, 0x1f600, 0x10ffff}))
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))) < 0
		if got := canonicalLess(a, b); got != want {
			t.Fatalf("%q before %q: %v, want %v", a, b, got, want)
		}
	})
}

// drawValue draws a JSON value as Go's decoder would give it.
func drawValue(t *rapid.T, depth int) any {
	kinds := 7
	if depth == 0 {
		kinds = 5
	}
	text := rapid.StringOf(rapid.RuneFrom([]rune{1, '"', '\\', '/', 'a', 'é', 0x2028, 0xe000, 0xffff, 0x1f600}))
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return json.Number(strconv.FormatInt(rapid.Int64Range(-IntegerMax, IntegerMax).Draw(t, "integer"), 10))
	case 3:
		f := rapid.Float64().Draw(t, "float")
		if f == 0 || math.IsInf(f, 0) || math.IsNaN(f) {
			f = 0.5
		}
		return json.Number(strconv.FormatFloat(f, 'e', -1, 64))
	case 4:
		return text.Draw(t, "string")
	case 5:
		list := make([]any, rapid.IntRange(0, 3).Draw(t, "elements"))
		for i := range list {
			list[i] = drawValue(t, depth-1)
		}
		return list
	default:
		m := map[string]any{}
		for range rapid.IntRange(0, 3).Draw(t, "members") {
			m[text.Draw(t, "name")] = drawValue(t, depth-1)
		}
		return m
	}
}

// TestParseAgreesWithEncodingJSON: of a valid text both readers see one value,
// and the canonical form is a text of that same value.
func TestParseAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawValue(t, 4)
		b, err := json.MarshalIndent(want, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		v, err := ParseJSON(b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if got := generic(v); !reflect.DeepEqual(got, want) {
			t.Fatalf("read as %#v, want %#v", got, want)
		}
		canonical := v.AppendCanonical(nil)
		d := json.NewDecoder(bytes.NewReader(canonical))
		d.UseNumber()
		var back any
		if err := d.Decode(&back); err != nil || !reflect.DeepEqual(back, want) {
			t.Fatalf("canonical %s reads as %#v (%v)", canonical, back, err)
		}
	})
}

func generic(v Value) any {
	switch v.Kind {
	case True, False:
		return v.Kind == True
	case Number:
		return json.Number(v.Text)
	case String:
		return v.Text
	case Array:
		list := make([]any, len(v.Elements))
		for i, e := range v.Elements {
			list[i] = generic(e)
		}
		return list
	case Object:
		m := make(map[string]any, len(v.Members))
		for _, member := range v.Members {
			m[member.Name] = generic(member.Value)
		}
		return m
	}
	return nil
}

// FuzzPlain compares the look at eight bytes at once with one at each.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"", "plain text", "1234567\"", "\\1234567", "1234\x1f567", "\x7f2345678", "1234567\x80", "~~~~~~~~ ", "        !", "#[]^_`", "\xff\xff\xff\xff\xff\xff\xff\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := true
		for _, c := range []byte(s) {
			want = want && c >= 0x20 && c <= 0x7e && c != '"' && c != '\\'
		}
		if plain(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	})
}

// Every byte at every place of a word, beside bytes on the bounds.
func TestPlainFindsAnyByteAnywhere(t *testing.T) {
	for _, rest := range []string{" ", "~", "!", "#", "[", "]"} {
		for at := range 8 {
			for c := range 256 {
				b := []byte(strings.Repeat(rest, 8))
				b[at] = byte(c)
				if want := c >= 0x20 && c <= 0x7e && c != '"' && c != '\\'; plain(string(b)) != want {
					t.Fatalf("%q: %v", b, !want)
				}
			}
		}
	}
}

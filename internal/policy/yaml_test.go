package policy

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
)

// tree is a document's meaning without its spelling: bool, int64, string,
// []any or map[string]any.
func (n node) tree() any {
	switch n.kind {
	case boolKind:
		return n.text == "true"
	case integerKind:
		i, err := strconv.ParseInt(n.text, 10, 64)
		if err != nil {
			panic(err)
		}
		return i
	case textKind:
		return n.text
	case listKind:
		list := []any{}
		for _, item := range n.items {
			list = append(list, item.tree())
		}
		return list
	case mappingKind:
		m := map[string]any{}
		for _, f := range n.fields {
			m[f.key.text] = f.value.tree()
		}
		return m
	case nullKind:
		return nil
	}
	panic("tree of a fault")
}

// texts draws texts that are hard on a reader: look-alikes of other kinds,
// marks of the grammar, several lines, any characters at all.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"", "yes", "no", "on", "off", "y", "n", "null", "~", "true", "True", "1", "007", "1e3", "1.5",
			".inf", "0x10", "1_000", "-", "- a", "?", "? a", ":", "a: b", "a:b", "a #b", "#a", "&a", "*a", "!a", "%a", "@a", "`a",
			"|", ">", "<<", "---", "...", "[", "]", "{", "}", ",", "a, b", "'", `"`, `\`, `\n`, "EU", "10m", "1.2.3", " a", "a ", "http://x/y?z=1#w"}),
		rapid.StringMatching(`[a-z][a-z0-9 ._/:#-]{0,12}`),
		rapid.StringMatching(`([a-z #:'"-]{0,6}\n){1,4}`),
		rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "\x00") }),
	)
}

func trees(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		pick := rapid.IntRange(0, 9).Draw(t, "pick")
		switch {
		case depth > 0 && pick > 6:
			list := []any{}
			for range rapid.IntRange(0, 6).Draw(t, "items") {
				list = append(list, trees(depth-1).Draw(t, "item"))
			}
			return list
		case depth > 0 && pick > 3:
			return mappings(depth-1).Draw(t, "mapping")
		case pick == 0:
			return rapid.Bool().Draw(t, "bool")
		case pick == 1:
			return rapid.Int64Range(-events.IntegerMax, events.IntegerMax).Draw(t, "int")
		}
		return texts().Draw(t, "text")
	})
}

func mappings(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		m := map[string]any{}
		for range rapid.IntRange(0, 8).Draw(t, "fields") {
			m[texts().Draw(t, "key")] = trees(depth).Draw(t, "value")
		}
		return m
	})
}

// writer spells a tree in any of the ways the language offers.
type writer struct {
	*rapid.T
	b strings.Builder
}

var plainForm = regexp.MustCompile(`^[a-zA-Z](:?[a-zA-Z0-9_./-]| #?[a-z]){0,40}$`)

func (w *writer) coin(label string) bool { return rapid.Bool().Draw(w.T, label) }

func (w *writer) end() {
	if rapid.IntRange(0, 5).Draw(w.T, "comment") == 0 {
		w.b.WriteString(" # a: [comment")
	}
	w.b.WriteString("\n")
	if rapid.IntRange(0, 7).Draw(w.T, "gap") == 0 {
		w.b.WriteString("\n   # - another\n")
	}
}

// text spells s on one line; flow leaves out what ends there.
func (w *writer) text(s string, flow bool) {
	plain := plainForm.MatchString(s) && !strings.Contains(s, " #") && !(flow && strings.ContainsAny(s, ":"))
	switch s {
	case "true", "false", "null", "True", "False", "Null", "TRUE", "FALSE", "NULL":
		plain = false
	}
	printable := strings.IndexFunc(s, func(r rune) bool { return unsafeRune(r) || r == '\n' || r == utf8.RuneError }) < 0
	switch {
	case plain && w.coin("plain"):
		w.b.WriteString(s)
	case printable && w.coin("single"):
		w.b.WriteString("'" + strings.ReplaceAll(s, "'", "''") + "'")
	default:
		for _, r := range string(events.AppendString(nil, s)) {
			if unsafeRune(r) {
				fmt.Fprintf(&w.b, `\u%04x`, r)
			} else {
				w.b.WriteRune(r)
			}
		}
	}
}

func (w *writer) flow(v any, indentation int) {
	space := func() {
		if rapid.IntRange(0, 5).Draw(w.T, "break") == 0 {
			w.end()
			w.b.WriteString(strings.Repeat(" ", indentation+1+rapid.IntRange(0, 3).Draw(w.T, "more")))
		}
	}
	switch v := v.(type) {
	case []any:
		w.b.WriteString("[")
		for i, item := range v {
			if i > 0 {
				w.b.WriteString(",")
			}
			space()
			w.flow(item, indentation)
		}
		w.b.WriteString("]")
	case map[string]any:
		w.b.WriteString("{")
		comma := ""
		for key, value := range v {
			w.b.WriteString(comma)
			comma = ", "
			space()
			w.text(key, true)
			w.b.WriteString(": ")
			w.flow(value, indentation)
		}
		w.b.WriteString("}")
	case string:
		w.text(v, true)
	default:
		fmt.Fprint(&w.b, v)
	}
}

// block writes v after a colon or a dash, whose collection is indented so far.
func (w *writer) block(v any, indentation int, afterKey bool) {
	next := indentation + 1 + rapid.IntRange(0, 3).Draw(w.T, "deeper")
	margin := strings.Repeat(" ", next)
	switch v := v.(type) {
	case []any:
		if len(v) == 0 || w.coin("flow") {
			break
		}
		if afterKey && w.coin("same column") {
			next, margin = indentation, strings.Repeat(" ", indentation)
		}
		w.end()
		for _, item := range v {
			w.b.WriteString(margin + "-")
			w.block(item, next, false)
		}
		return
	case map[string]any:
		if len(v) == 0 || w.coin("flow") {
			break
		}
		if afterKey || w.coin("own line") {
			w.end()
			w.fields(v, next, margin)
		} else {
			spaces := 1 + rapid.IntRange(0, 2).Draw(w.T, "after dash")
			w.b.WriteString(strings.Repeat(" ", spaces))
			w.fields(v, indentation+1+spaces, "")
		}
		return
	case string:
		if literal(v) && w.coin("literal") {
			w.literal(v, margin)
			return
		}
	}
	w.b.WriteString(" ")
	w.flow(v, indentation)
	w.end()
}

// fields writes a mapping; the first key stands where the writer is.
func (w *writer) fields(m map[string]any, indentation int, first string) {
	for key, value := range m {
		w.b.WriteString(first)
		first = strings.Repeat(" ", indentation)
		w.text(key, false)
		w.b.WriteString(":")
		w.block(value, indentation, true)
	}
}

// literal reports whether s can be written as a | text without an indentation
// mark, the way | means it.
func literal(s string) bool {
	body, ended := strings.CutSuffix(s, "\n")
	if body == "" || strings.HasSuffix(body, "\n") || strings.HasPrefix(body, " ") || strings.HasPrefix(body, "\n") || !ended {
		return false
	}
	for _, line := range strings.Split(body, "\n") {
		if strings.HasSuffix(line, " ") || !utf8.ValidString(line) || strings.IndexFunc(line, unsafeRune) >= 0 {
			return false
		}
	}
	return true
}

func (w *writer) literal(s, margin string) {
	w.b.WriteString(" |\n")
	for _, line := range strings.Split(strings.TrimSuffix(s, "\n"), "\n") {
		if line != "" {
			w.b.WriteString(margin + line)
		}
		w.b.WriteString("\n")
	}
}

// Whatever the spelling, comments and line breaks, the reader finds what was
// written; and another YAML reader finds the same.
func TestReaderFindsWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := mappings(4).Filter(func(v any) bool { return len(v.(map[string]any)) > 0 }).Draw(t, "tree")
		w := &writer{T: t}
		w.fields(want.(map[string]any), 0, "")
		root, r := read(w.b.String())
		if len(r.faults) > 0 {
			t.Fatalf("%s\nin\n%s", r.faults[0], w.b.String())
		}
		if got := root.tree(); !reflect.DeepEqual(got, want) {
			t.Fatalf("read %#v\nwant %#v\nin\n%s", got, want, w.b.String())
		}
		agreesWithLibrary(t, w.b.String(), want)
	})
}

// agreesWithLibrary checks a reading against the YAML library, whose own
// faults are set aside: it loses unusual characters and some layouts.
func agreesWithLibrary(t interface{ Fatalf(string, ...any) }, text string, want any) {
	var got any
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("the library refuses %q: %v", text, err)
	}
	if got = normal(got); !reflect.DeepEqual(got, want) {
		t.Fatalf("the library reads %#v\nwant %#v\nin\n%s", got, want, text)
	}
}

func normal(v any) any {
	switch v := v.(type) {
	case uint64:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = normal(v[k])
		}
	}
	return v
}

// JSON is YAML: a value written as JSON is that value, to the byte.
func TestJSONIsReadAsItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		writeJSON(&b, trees(4).Draw(t, "tree"))
		want, err := events.ParseJSON(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		text := "kind: Memory\nowner: a\nnamespace: n\nkey: k\nvalue: " + b.String() + "\n"
		doc, faults := ParseDocument(text)
		if len(faults) > 0 {
			t.Fatalf("%s\nin\n%s", faults[0], text)
		}
		if canonical := want.AppendCanonical(nil); !bytes.Equal(doc.Memory.Value, canonical) {
			t.Fatalf("value %s\nwant  %s", doc.Memory.Value, canonical)
		}
	})
}

func writeJSON(b *bytes.Buffer, v any) {
	separate := func(i int) {
		if i > 0 {
			b.WriteString(",")
		}
	}
	switch v := v.(type) {
	case []any:
		b.WriteString("[")
		for i, item := range v {
			separate(i)
			writeJSON(b, item)
		}
		b.WriteString("]")
	case map[string]any:
		b.WriteString("{")
		i := 0
		for key, value := range v {
			separate(i)
			i++
			writeJSON(b, key)
			b.WriteString(":")
			writeJSON(b, value)
		}
		b.WriteString("}")
	case string:
		for _, r := range string(events.AppendString(nil, v)) {
			if unsafeRune(r) {
				fmt.Fprintf(b, `\u%04x`, r)
			} else {
				b.WriteRune(r)
			}
		}
	default:
		fmt.Fprint(b, v)
	}
}

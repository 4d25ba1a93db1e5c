package events

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind is the JSON kind of a Value.
type Kind uint8

// The kinds of JSON. The zero Kind is no value at all.
const (
	Invalid Kind = iota
	Null
	False
	True
	Number
	String
	Array
	Object
)

// Value is one parsed JSON value. The members of an object are sorted by name
// in canonical order, and no two have one name.
type Value struct {
	Kind     Kind
	Text     string // a string decoded, or a number's literal as it was written
	Members  []Member
	Elements []Value
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// JSONError says which rule of the strict profile a text breaks and where. It
// never quotes the text.
type JSONError struct {
	Offset int
	Rule   string
}

func (e *JSONError) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.Rule) }

// ParseJSON reads one JSON text under the strict profile: UTF-8 without byte
// order mark, no duplicate names at any depth, no unpaired surrogate, no NUL,
// at most JSONDepthMax deep, integers within ±IntegerMax, numbers that float64
// holds finitely, no negative zero, nothing after the value. Nothing is
// repaired: any other text is a *JSONError.
func ParseJSON(b []byte) (Value, error) {
	if len(b) >= 3 && b[0] == 0xef && b[1] == 0xbb && b[2] == 0xbf {
		return Value{}, &JSONError{0, "byte-order mark"}
	}
	if !utf8.Valid(b) {
		return Value{}, &JSONError{invalidUTF8(b), "not UTF-8"}
	}
	p := parser{s: string(b)}
	v := p.value(0)
	p.space()
	if p.err == nil && p.pos < len(p.s) {
		p.fail("data after the value")
	}
	if p.err != nil {
		return Value{}, p.err
	}
	return v, nil
}

func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n < 2 {
			return i
		}
		i += n
	}
	return len(b)
}

type parser struct {
	s   string
	pos int
	err error

	open     []Member // of the objects that have not ended yet
	slab     []Member // room for those that have
	elements []Value  // of the arrays that have not ended yet
}

const (
	slabMax      = 64 // members at a time, whatever the text promises
	elementsRoom = 16 // more than a usual procedure has steps
)

// keep takes the members of an object that ends from open, which held from of
// them before it began.
func (p *parser) keep(from int) []Member {
	ended := p.open[from:]
	if cap(p.slab)-len(p.slab) < len(ended) {
		p.slab = make([]Member, 0, max(len(ended), min(slabMax, strings.Count(p.s[p.pos:], ":")+len(ended))))
	}
	start := len(p.slab)
	p.slab = append(p.slab, ended...)
	p.open = p.open[:from]
	return p.slab[start:len(p.slab):len(p.slab)]
}

func (p *parser) fail(rule string) {
	if p.err == nil {
		p.err = &JSONError{p.pos, rule}
	}
}

func (p *parser) space() {
	for p.pos < len(p.s) {
		switch p.s[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// next skips white space and returns the byte that stands there, 0 at the end.
func (p *parser) next() byte {
	p.space()
	if p.pos == len(p.s) {
		return 0
	}
	return p.s[p.pos]
}

func (p *parser) value(depth int) Value {
	switch c := p.next(); {
	case p.err != nil:
		return Value{}
	case c == '{':
		return p.object(depth + 1)
	case c == '[':
		return p.array(depth + 1)
	case c == '"':
		return Value{Kind: String, Text: p.str()}
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	case strings.HasPrefix(p.s[p.pos:], "true"):
		p.pos += 4
		return Value{Kind: True}
	case strings.HasPrefix(p.s[p.pos:], "false"):
		p.pos += 5
		return Value{Kind: False}
	case strings.HasPrefix(p.s[p.pos:], "null"):
		p.pos += 4
		return Value{Kind: Null}
	}
	p.fail("no JSON value")
	return Value{}
}

func (p *parser) object(depth int) Value {
	v := Value{Kind: Object}
	if depth > JSONDepthMax {
		p.fail("nested too deep")
		return v
	}
	p.pos++
	if p.next() == '}' {
		p.pos++
		return v
	}
	from := len(p.open)
	for p.err == nil {
		if p.next() != '"' {
			p.fail("no member name")
			return v
		}
		name := p.str()
		if p.next() != ':' {
			p.fail("no colon after a member name")
			return v
		}
		p.pos++
		member := p.value(depth) // which may move open
		p.open = append(p.open, Member{name, member})
		switch p.next() {
		case ',':
			p.pos++
		case '}':
			p.pos++
			v.Members = p.keep(from)
			p.sortMembers(v.Members)
			return v
		default:
			p.fail("no comma or brace after a member")
		}
	}
	return v
}

func (p *parser) sortMembers(m []Member) {
	sorted := true
	for i := 1; i < len(m) && sorted; i++ {
		sorted = canonicalLess(m[i-1].Name, m[i].Name)
	}
	if sorted {
		return
	}
	slices.SortFunc(m, func(a, b Member) int {
		switch {
		case canonicalLess(a.Name, b.Name):
			return -1
		case canonicalLess(b.Name, a.Name):
			return 1
		}
		return 0
	})
	for i := 1; i < len(m); i++ {
		if m[i-1].Name == m[i].Name {
			p.fail("duplicate member name")
		}
	}
}

// canonicalLess orders names by their UTF-16 code units, as RFC 8785 does. It
// differs from byte order only where a character beyond the basic plane meets
// one of U+E000–U+FFFF.
func canonicalLess(a, b string) bool {
	for len(a) > 0 && len(b) > 0 {
		ra, na := utf8.DecodeRuneInString(a)
		rb, nb := utf8.DecodeRuneInString(b)
		if ra != rb {
			if (ra > 0xffff) != (rb > 0xffff) {
				return unit(ra) < unit(rb)
			}
			return ra < rb
		}
		a, b = a[na:], b[nb:]
	}
	return len(a) < len(b)
}

// unit is the first UTF-16 code unit of r, enough to order a surrogate pair
// against a single unit.
func unit(r rune) rune {
	if r > 0xffff {
		return 0xd800 + (r-0x10000)>>10
	}
	return r
}

func (p *parser) array(depth int) Value {
	v := Value{Kind: Array}
	if depth > JSONDepthMax {
		p.fail("nested too deep")
		return v
	}
	p.pos++
	if p.next() == ']' {
		p.pos++
		return v
	}
	if p.elements == nil {
		p.elements = make([]Value, 0, elementsRoom)
	}
	from := len(p.elements)
	for p.err == nil {
		element := p.value(depth) // which may move elements
		p.elements = append(p.elements, element)
		switch p.next() {
		case ',':
			p.pos++
		case ']':
			p.pos++
			v.Elements = slices.Clone(p.elements[from:])
			p.elements = p.elements[:from]
			return v
		default:
			p.fail("no comma or bracket after an element")
		}
	}
	return v
}

// str reads a string whose opening quote stands at pos.
func (p *parser) str() string {
	start := p.pos + 1
	for i := start; i < len(p.s); i++ {
		switch c := p.s[i]; {
		case c == '"':
			p.pos = i + 1
			return p.s[start:i]
		case c == '\\':
			return p.escaped(start, i)
		case c < 0x20:
			p.pos = i
			p.fail("control character in a string")
			return ""
		}
	}
	p.pos = len(p.s)
	p.fail("string without end")
	return ""
}

func (p *parser) escaped(start, i int) string {
	out := append(make([]byte, 0, i-start+16), p.s[start:i]...)
	for i < len(p.s) && p.err == nil {
		switch c := p.s[i]; {
		case c == '"':
			p.pos = i + 1
			return string(out)
		case c < 0x20:
			p.pos = i
			p.fail("control character in a string")
		case c != '\\':
			out = append(out, c)
			i++
		default:
			p.pos = i
			var r rune
			r, i = p.escape(i)
			out = utf8.AppendRune(out, r)
		}
	}
	p.fail("string without end")
	return ""
}

// escape reads the escape sequence at i and returns its character and the
// position after it.
func (p *parser) escape(i int) (rune, int) {
	if i+1 >= len(p.s) {
		p.fail("string without end")
		return 0, i
	}
	switch p.s[i+1] {
	case '"', '\\', '/':
		return rune(p.s[i+1]), i + 2
	case 'b':
		return '\b', i + 2
	case 'f':
		return '\f', i + 2
	case 'n':
		return '\n', i + 2
	case 'r':
		return '\r', i + 2
	case 't':
		return '\t', i + 2
	case 'u':
		return p.unicode(i)
	}
	p.fail("unknown escape")
	return 0, i
}

func (p *parser) unicode(i int) (rune, int) {
	u, ok := hex4(p.s, i+2)
	switch {
	case !ok:
		p.fail("bad \\u escape")
	case u == 0:
		p.fail("NUL in a string")
	case 0xdc00 <= u && u <= 0xdfff:
		p.fail("unpaired surrogate")
	case 0xd800 <= u && u <= 0xdbff:
		low, ok := hex4(p.s, i+8)
		if !ok || p.s[i+6] != '\\' || p.s[i+7] != 'u' || low < 0xdc00 || low > 0xdfff {
			p.fail("unpaired surrogate")
			return 0, i
		}
		return 0x10000 + (u-0xd800)<<10 + (low - 0xdc00), i + 12
	}
	return u, i + 6
}

func hex4(s string, i int) (rune, bool) {
	if i+4 > len(s) {
		return 0, false
	}
	u, err := strconv.ParseUint(s[i:i+4], 16, 16)
	return rune(u), err == nil && s[i] != '+'
}

func (p *parser) number() Value {
	start := p.pos
	if p.s[p.pos] == '-' {
		p.pos++
	}
	leading := p.pos
	digits := p.digits()
	if digits == 0 || digits > 1 && p.s[leading] == '0' {
		p.fail("malformed number")
		return Value{}
	}
	integer := true
	if p.pos < len(p.s) && p.s[p.pos] == '.' {
		integer = false
		p.pos++
		if p.digits() == 0 {
			p.fail("malformed number")
		}
	}
	if p.pos < len(p.s) && (p.s[p.pos] == 'e' || p.s[p.pos] == 'E') {
		integer = false
		p.pos++
		if p.pos < len(p.s) && (p.s[p.pos] == '+' || p.s[p.pos] == '-') {
			p.pos++
		}
		if p.digits() == 0 {
			p.fail("malformed number")
		}
	}
	text := p.s[start:p.pos]
	if rule := numberRule(text, integer); rule != "" {
		p.pos = start
		p.fail(rule)
	}
	return Value{Kind: Number, Text: text}
}

func (p *parser) digits() int {
	start := p.pos
	for p.pos < len(p.s) && '0' <= p.s[p.pos] && p.s[p.pos] <= '9' {
		p.pos++
	}
	return p.pos - start
}

func numberRule(text string, integer bool) string {
	if integer {
		if text == "-0" {
			return "negative zero"
		}
		if len(text) <= 15 {
			return ""
		}
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n > IntegerMax || n < -IntegerMax {
			return "integer beyond 2^53-1"
		}
		return ""
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return "number too large"
	}
	if f == 0 && math.Signbit(f) {
		return "negative zero"
	}
	return ""
}

// Get returns the member of an object by name.
func (v Value) Get(name string) (Value, bool) {
	for i := range v.Members {
		if v.Members[i].Name == name {
			return v.Members[i].Value, true
		}
	}
	return Value{}, false
}

// Int returns an integer that was written as one: without point and exponent.
func (v Value) Int() (int64, bool) {
	if v.Kind != Number || strings.ContainsAny(v.Text, ".eE") {
		return 0, false
	}
	n, err := strconv.ParseInt(v.Text, 10, 64)
	return n, err == nil
}

// AppendCanonical appends the canonical form of v: no white space, members
// sorted and strings escaped as RFC 8785 says, numbers exactly as written.
func (v Value) AppendCanonical(dst []byte) []byte {
	switch v.Kind {
	case Null:
		return append(dst, "null"...)
	case False:
		return append(dst, "false"...)
	case True:
		return append(dst, "true"...)
	case Number:
		return append(dst, v.Text...)
	case String:
		return AppendString(dst, v.Text)
	case Array:
		dst = append(dst, '[')
		for i, e := range v.Elements {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = e.AppendCanonical(dst)
		}
		return append(dst, ']')
	case Object:
		dst = append(dst, '{')
		for i, m := range v.Members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(AppendString(dst, m.Name), ':')
			dst = m.Value.AppendCanonical(dst)
		}
		return append(dst, '}')
	}
	panic("events: canonical form of no value")
}

// AppendString appends s as a JSON string, escaped as RFC 8785 says: only the
// quote, the backslash and control characters, each in its shortest form.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if plain(s) {
		return append(append(dst, s...), '"')
	}
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			const digits = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(append(dst, s[start:]...), '"')
}

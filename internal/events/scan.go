package events

import "bytes"

// Scanner reads a JSON object whose members its caller knows, in place and
// without a tree. It knows the strict profile of ParseJSON, but not all of it:
// where a text breaks the profile, and where it is only unusual, it gives up,
// and ParseJSON has the word. What it does read, it reads as ParseJSON would.
//
// The text must be UTF-8. After a call has given up nothing further holds.
type Scanner struct {
	b      []byte
	pos    int
	depth  int  // of objects and arrays that have begun and not ended
	tidy   bool // the value at hand is canonical so far, white space apart
	spaced bool // there is white space in it
}

// NewScanner prepares to read b, which must not change meanwhile. ok is false
// unless an object begins there.
func NewScanner(b []byte) (s Scanner, ok bool) {
	s = Scanner{b: b}
	return s, s.Object()
}

// Object goes into an object, to its first member.
func (s *Scanner) Object() bool {
	s.depth++
	return s.take('{')
}

// Array goes into an array, to its first element.
func (s *Scanner) Array() bool {
	s.depth++
	return s.take('[')
}

// Element goes to the next element of an array; first says that it is the
// first. Without more the array has ended, or else it is not ok.
func (s *Scanner) Element(first bool) (more, ok bool) {
	if s.take(']') {
		s.depth--
		return false, true
	}
	more = first || s.take(',')
	return more, more
}

func (s *Scanner) space() {
	for s.pos < len(s.b) {
		switch s.b[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// take skips white space and one byte, which must be c.
func (s *Scanner) take(c byte) bool {
	s.space()
	if s.pos < len(s.b) && s.b[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// Name returns the name of the next member and goes to its value; first says
// that it is the first.
func (s *Scanner) Name(first bool) (name []byte, ok bool) {
	if !first && !s.take(',') {
		return nil, false
	}
	quoted, ok := s.Plain()
	if !ok || !s.take(':') {
		return nil, false
	}
	return quoted[1 : len(quoted)-1], true
}

// Ends reports whether the object ends here, and goes behind it.
func (s *Scanner) Ends() bool {
	ends := s.take('}')
	if ends {
		s.depth--
	}
	return ends
}

// Finished reports whether nothing but white space is left.
func (s *Scanner) Finished() bool {
	s.space()
	return s.pos == len(s.b)
}

// Plain returns a string with its quotes, as it stands: one without escapes.
func (s *Scanner) Plain() (quoted []byte, ok bool) {
	s.space()
	if s.pos == len(s.b) || s.b[s.pos] != '"' {
		return nil, false
	}
	for i := s.pos + 1; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			quoted, s.pos = s.b[s.pos:i+1], i+1
			return quoted, true
		case c == '\\' || c < 0x20:
			return nil, false
		}
	}
	return nil, false
}

// Positive returns an integer of 1 to 15 digits that is not 0, and its digits.
func (s *Scanner) Positive() (n uint64, digits []byte, ok bool) {
	s.space()
	start := s.pos
	for s.pos < len(s.b) && '0' <= s.b[s.pos] && s.b[s.pos] <= '9' {
		n = 10*n + uint64(s.b[s.pos]-'0')
		s.pos++
		if s.pos-start > 15 {
			return 0, nil, false
		}
	}
	digits = s.b[start:s.pos]
	return n, digits, n > 0 && digits[0] != '0' && !s.numberGoesOn()
}

func (s *Scanner) numberGoesOn() bool {
	if s.pos == len(s.b) {
		return false
	}
	c := s.b[s.pos]
	return c == '.' || c == 'e' || c == 'E' || '0' <= c && c <= '9'
}

// Value goes over the member's value and returns its canonical form: the text
// as it stands wherever that is canonical, else a new one.
func (s *Scanner) Value() (canonical []byte, ok bool) {
	s.space()
	start := s.pos
	s.tidy, s.spaced = true, false
	if !s.value(s.depth) {
		return nil, false
	}
	text := s.b[start:s.pos]
	switch {
	case s.tidy && s.spaced:
		return withoutSpace(text), true
	case s.tidy:
		return text, true
	}
	v, err := ParseJSON(text)
	if err != nil {
		return nil, false
	}
	return v.AppendCanonical(make([]byte, 0, len(text))), true
}

// withoutSpace is a JSON text less the white space between its parts.
func withoutSpace(text []byte) []byte {
	b, quoted := make([]byte, 0, len(text)), false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			b = append(b, c)
			i++
		case c <= ' ' && !quoted:
			continue
		}
		b = append(b, text[i])
	}
	return b
}

// value goes over a value of the profile. It leaves tidy only if the text is
// canonical; otherwise it need not have seen every fault of it, but that it is
// nested too deep.
func (s *Scanner) value(depth int) bool {
	if s.pos == len(s.b) {
		return false
	}
	switch c := s.b[s.pos]; {
	case c == '"':
		return s.text()
	case c == '{':
		return s.object(depth + 1)
	case c == '[':
		return s.array(depth + 1)
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	}
	return s.word("null")
}

// inside skips white space, which no canonical value has.
func (s *Scanner) inside() {
	if s.pos < len(s.b) && s.b[s.pos] <= ' ' {
		s.spaced = true
		s.space()
	}
}

// next is take within a value.
func (s *Scanner) next(c byte) bool {
	s.inside()
	return s.take(c)
}

func (s *Scanner) word(word string) bool {
	if len(s.b)-s.pos < len(word) || string(s.b[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

func (s *Scanner) text() bool {
	for i := s.pos + 1; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			s.pos = i + 1
			return true
		case c < 0x20:
			return false
		case c == '\\':
			if i++; i == len(s.b) {
				return false
			}
			switch s.b[i] {
			case '"', '\\', 'b', 'f', 'n', 'r', 't': // the shortest form of what it stands for
			default:
				s.tidy = false
			}
		}
	}
	return false
}

func (s *Scanner) number() bool {
	start := s.pos
	for s.pos < len(s.b) && inNumber(s.b[s.pos]) {
		s.pos++
	}
	text := s.b[start:s.pos]
	if len(text) <= 15 && (text[0] != '0' || len(text) == 1) && onlyDigits(text) {
		return true
	}
	p := parser{s: string(text)}
	p.number()
	return p.err == nil && p.pos == len(text)
}

func inNumber(c byte) bool {
	return '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}

func onlyDigits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func (s *Scanner) array(depth int) bool {
	if depth > JSONDepthMax {
		return false
	}
	s.pos++
	for first := true; !s.next(']'); first = false {
		if !first && !s.next(',') {
			return false
		}
		if s.inside(); !s.value(depth) {
			return false
		}
	}
	return true
}

func (s *Scanner) object(depth int) bool {
	if depth > JSONDepthMax {
		return false
	}
	s.pos++
	var last []byte
	for first := true; !s.next('}'); first = false {
		if !first && !s.next(',') {
			return false
		}
		s.inside()
		start := s.pos
		if s.pos == len(s.b) || s.b[s.pos] != '"' || !s.text() {
			return false
		}
		name := s.b[start+1 : s.pos-1]
		if !first && bytes.Compare(last, name) >= 0 || !simple(name) {
			s.tidy = false
		}
		last = name
		if !s.next(':') {
			return false
		}
		if s.inside(); !s.value(depth) {
			return false
		}
	}
	return true
}

// simple reports whether a name is ASCII without escapes, so that its bytes are
// in canonical order.
func simple(name []byte) bool {
	for _, c := range name {
		if c >= 0x80 || c == '\\' {
			return false
		}
	}
	return true
}

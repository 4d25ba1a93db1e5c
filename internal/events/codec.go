package events

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// coder writes or reads one JSON object with its fields in a fixed order. One
// list of calls describes a body in both directions, so that what is read is
// exactly what would be written: any other key, order, spacing, escape or
// number form ends in an error. After an error every call does nothing.
type coder struct {
	buf     []byte
	pos     int      // next byte to read
	room    *Skimmer // for what is read; nil for none
	memo    *memo    // of what is written; nil for none
	skim    bool     // keep no text of what is read
	reading bool
	first   bool // no field yet in the object at hand
	err     error
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("byte %d: "+format, append([]any{c.pos}, args...)...)
	}
}

// lit writes s, or reads exactly s.
func (c *coder) lit(s string) {
	if c.err != nil {
		return
	}
	if !c.reading {
		c.buf = append(c.buf, s...)
		return
	}
	if len(c.buf)-c.pos < len(s) || string(c.buf[c.pos:c.pos+len(s)]) != s {
		c.fail("expected %q", s)
		return
	}
	c.pos += len(s)
}

// version is the format's number. Bytes of another version say so, and go
// unread: nothing else in them can be relied on.
func (c *coder) version() {
	if c.reading && !c.peek("1,") {
		c.fail("unknown format version")
	}
	c.lit("1")
}

func (c *coder) peek(s string) bool {
	return c.err == nil && len(c.buf)-c.pos >= len(s) && string(c.buf[c.pos:c.pos+len(s)]) == s
}

// object frames fields. It may stand as a field's value or alone.
func (c *coder) object(fields func(*coder)) {
	c.lit("{")
	c.first = true
	fields(c)
	c.first = false
	c.lit("}")
}

func (c *coder) key(name string) {
	if !c.reading && c.err == nil {
		if c.first {
			c.buf = append(c.buf, '"')
		} else {
			c.buf = append(c.buf, ',', '"')
		}
		c.first = false
		c.buf = append(append(c.buf, name...), '"', ':')
		return
	}
	if c.present(name, true) {
		if !c.first {
			c.pos++
		}
		c.first = false
		c.pos += len(name) + 3
		return
	}
	if !c.first { // what is in its place?
		c.lit(",")
	}
	c.first = false
	c.lit(`"`)
	c.lit(name)
	c.lit(`":`)
}

// present decides whether an optional field is there: when writing, if it is
// set; when reading, if its name comes next.
func (c *coder) present(name string, set bool) bool {
	if !c.reading {
		return set
	}
	if c.err != nil {
		return false
	}
	at := c.buf[c.pos:]
	if !c.first {
		if len(at) == 0 || at[0] != ',' {
			return false
		}
		at = at[1:]
	}
	n := len(name)
	return len(at) >= n+3 && at[0] == '"' && string(at[1:n+1]) == name && at[n+1] == '"' && at[n+2] == ':'
}

func (c *coder) str(name string, v *string) {
	c.key(name)
	c.text(v)
}

func (c *coder) optStr(name string, v *string) {
	if c.present(name, *v != "") {
		c.str(name, v)
		if c.reading && *v == "" {
			c.fail("empty optional field %s", name)
		}
	}
}

func (c *coder) text(v *string) {
	if c.err != nil {
		return
	}
	if !c.reading {
		if plain(*v) {
			c.buf = append(append(append(c.buf, '"'), *v...), '"')
			return
		}
		if !utf8.ValidString(*v) || strings.IndexByte(*v, 0) >= 0 {
			c.fail("string is not UTF-8 without NUL")
			return
		}
		c.buf = AppendString(c.buf, *v)
		return
	}
	*v = c.readString()
}

// plain reports whether s is written as it stands: printable ASCII without
// quote and backslash, as nearly every string of ours is.
func plain[T string | []byte](s T) bool {
	for len(s) >= 8 {
		if !plainWord(uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56) {
			return false
		}
		s = s[8:]
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// plainWord is plain for eight bytes at once. Each of the differences borrows
// into the high bit of a byte below the bound; a byte that has it set is beyond
// ASCII, and one that is 0x7f gets it from the addition.
func plainWord(w uint64) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	control := w - 0x20*ones
	quote := w ^ '"'*ones
	backslash := w ^ '\\'*ones
	return (w|control|(quote-ones)|(backslash-ones)|(w+ones))&highs == 0
}

// fixed reads a string of exactly n bytes that holds no escape, without a copy.
func (c *coder) fixed(n int) []byte {
	if c.err != nil {
		return nil
	}
	at := c.buf[c.pos:]
	if len(at) < n+2 || at[0] != '"' || at[n+1] != '"' {
		c.fail("expected a string of %d bytes", n)
		return nil
	}
	c.pos += n + 2
	return at[1 : n+1]
}

func (c *coder) readString() string {
	if c.pos >= len(c.buf) || c.buf[c.pos] != '"' {
		c.fail("expected a string")
		return ""
	}
	start := c.pos + 1
	if n := bytes.IndexByte(c.buf[start:], '"'); n >= 0 && plain(c.buf[start:start+n]) {
		c.pos = start + n + 1
		if c.skim && n > 0 {
			return "-"
		}
		return string(c.buf[start : start+n])
	}
	plain := true
	for i := start; i < len(c.buf); i++ {
		switch b := c.buf[i]; {
		case b == '"':
			raw := c.buf[c.pos : i+1]
			if plain && utf8.Valid(raw) {
				c.pos = i + 1
				return string(raw[1 : len(raw)-1])
			}
			v, err := ParseJSON(raw)
			if err != nil || !bytes.Equal(AppendString(nil, v.Text), raw) {
				c.fail("string is not in canonical form")
				return ""
			}
			c.pos = i + 1
			return v.Text
		case b == '\\':
			plain = false
			i++
		case b < 0x20:
			c.fail("control character in a string")
			return ""
		}
	}
	c.fail("string without end")
	return ""
}

func (c *coder) hash(name string, v *Hash) {
	c.key(name)
	if c.err != nil {
		return
	}
	if !c.reading {
		c.buf = append(v.Append(append(c.buf, '"')), '"')
		return
	}
	h, ok := hashOf(c.fixed(2 * len(v)))
	if c.err == nil && !ok {
		c.fail("%s has a character that is no lower-case hex digit", name)
	}
	*v = h
}

func (c *coder) optHash(name string, v *Hash) {
	if c.present(name, !v.IsZero()) {
		c.hash(name, v)
		if c.reading && v.IsZero() {
			c.fail("zero optional hash %s", name)
		}
	}
}

func (c *coder) time(name string, v *Time) {
	c.key(name)
	if c.err != nil {
		return
	}
	if !c.reading {
		if *v < 0 || *v > timeMax {
			c.fail("%s is outside the years 1970 to 9999", name)
			return
		}
		c.buf = append(c.memo.appendTime(append(c.buf, '"'), *v), '"')
		return
	}
	if b := c.fixed(len(timeLayout)); c.err == nil {
		t, err := ParseTime(string(b))
		if err != nil {
			c.fail("%s: %v", name, err)
		}
		*v = t
	}
}

func (c *coder) optTime(name string, v *Time) {
	if c.present(name, *v != 0) {
		c.time(name, v)
		if c.reading && *v == 0 {
			c.fail("zero optional time %s", name)
		}
	}
}

// uint is an integer of 0 to IntegerMax.
func (c *coder) uint(name string, v *uint64) {
	c.key(name)
	c.number(name, v)
}

func (c *coder) number(name string, v *uint64) {
	if c.err != nil {
		return
	}
	if !c.reading {
		if *v > IntegerMax {
			c.fail("%s is beyond 2^53-1", name)
			return
		}
		c.buf = strconv.AppendUint(c.buf, *v, 10)
		return
	}
	start := c.pos
	for c.pos < len(c.buf) && '0' <= c.buf[c.pos] && c.buf[c.pos] <= '9' {
		c.pos++
	}
	digits := c.buf[start:c.pos]
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil || n > IntegerMax || len(digits) > 1 && digits[0] == '0' {
		c.fail("%s is not an integer of 0 to 2^53-1", name)
		return
	}
	*v = n
}

func (c *coder) optUint(name string, v *uint64) {
	if c.present(name, *v != 0) {
		c.uint(name, v)
		if c.reading && *v == 0 {
			c.fail("zero optional field %s", name)
		}
	}
}

func (c *coder) boolean(name string, v *bool) {
	c.key(name)
	if c.reading {
		*v = c.peek("true")
	}
	if *v {
		c.lit("true")
	} else {
		c.lit("false")
	}
}

func (c *coder) strs(name string, v *[]string) {
	c.key(name)
	c.lit("[")
	if !c.reading {
		for i := range *v {
			if i > 0 {
				c.lit(",")
			}
			c.text(&(*v)[i])
		}
		c.lit("]")
		return
	}
	var list []string
	if c.skim {
		list = c.room.list[:0]
	} else {
		list = make([]string, 0, 4)
	}
	for c.err == nil && !c.peek("]") {
		if len(list) > 0 {
			c.lit(",")
		}
		list = append(list, "")
		c.text(&list[len(list)-1])
	}
	c.lit("]")
	if c.skim {
		c.room.list = list
	}
	*v = list
}

func (c *coder) optStrs(name string, v *[]string) {
	if c.present(name, len(*v) > 0) {
		c.strs(name, v)
		if c.reading && len(*v) == 0 {
			c.fail("empty optional list %s", name)
		}
	}
}

// memo is how the last event of an Encoder wrote what the next one often has
// too.
type memo struct {
	time     Time
	timeText [len(timeLayout)]byte

	lineage     []string
	lineageText []byte // with its name, as all that follow

	version    string
	digest     Hash
	policyText []byte
}

func (m *memo) appendTime(dst []byte, t Time) []byte {
	if m == nil {
		return t.append(dst)
	}
	if t != m.time || t == 0 {
		m.time = t
		t.append(m.timeText[:0])
	}
	return append(dst, m.timeText[:]...)
}

// lineage is strs of a list that is the same piece of memory for one agent.
func (c *coder) lineage(name string, v *[]string) {
	m := c.memo
	if m != nil && len(*v) > 0 && len(*v) == len(m.lineage) && &(*v)[0] == &m.lineage[0] {
		c.again(m.lineageText)
		return
	}
	start := len(c.buf)
	c.strs(name, v)
	if m != nil && c.err == nil {
		m.lineage, m.lineageText = *v, append(m.lineageText[:0], c.buf[start:]...)
	}
}

// policy is a policy's version and digest.
func (c *coder) policy(version *string, digest *Hash) {
	m := c.memo
	if m != nil && len(m.policyText) > 0 && *digest == m.digest && *version == m.version {
		c.again(m.policyText)
		return
	}
	start := len(c.buf)
	c.str("policy_version", version)
	c.hash("policy_digest", digest)
	if m != nil && c.err == nil {
		m.version, m.digest, m.policyText = *version, *digest, append(m.policyText[:0], c.buf[start:]...)
	}
}

// again writes fields that are not an object's first as they were written before.
func (c *coder) again(text []byte) {
	if c.err == nil {
		c.buf = append(c.buf, text...)
	}
}

// optUints is a list of integers that ascend.
func (c *coder) optUints(name string, v *[]uint64) {
	if !c.present(name, len(*v) > 0) {
		return
	}
	c.key(name)
	c.lit("[")
	var list []uint64
	for i := 0; c.err == nil && (c.reading && !c.peek("]") || !c.reading && i < len(*v)); i++ {
		if i > 0 {
			c.lit(",")
		}
		var n uint64
		if !c.reading {
			n = (*v)[i]
		}
		c.number(name, &n)
		if len(list) > 0 && n <= list[len(list)-1] {
			c.fail("%s do not ascend", name)
		}
		list = append(list, n)
	}
	c.lit("]")
	if c.reading {
		if *v = list; len(list) == 0 {
			c.fail("empty optional list %s", name)
		}
	}
}

func (c *coder) end() error {
	if c.err == nil && c.reading && c.pos != len(c.buf) {
		c.fail("data after the event")
	}
	return c.err
}

// ErrTooLarge is returned for an event over EventBytesMax.
var ErrTooLarge = errors.New("event over 65535 bytes")

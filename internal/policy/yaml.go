package policy

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Documents are written in the part of YAML 1.2 that reads the same to
// everyone: block and flow mappings and lists, texts on one line, plain or
// quoted (double quotes with the escapes of JSON), and | or |- for texts of
// several lines. What it accepts means what YAML says; the rest is refused by
// name: anchors, aliases, tags, merge keys, directives, null, floats and every
// other spelling of a number, tabs. Time and memory are linear in the text.
//
// Policies are judged again from the log years later, so their reader is ours:
// no library's next version can change what an old document says.

// kind is what a node of a document is.
type kind uint8

const (
	badKind kind = iota // has its fault already; nothing more is said about it
	nullKind
	boolKind
	integerKind
	textKind
	listKind
	mappingKind
)

func (k kind) String() string {
	return [...]string{"a fault", "null", "true or false", "an integer", "a text", "a list", "a mapping"}[k]
}

// node is one value of a document, and where it starts.
type node struct {
	kind   kind
	text   string // a text itself, or an integer's or boolean's literal
	place  place
	lost   bool // of a list or mapping: lines of it could not be read
	items  []node
	fields []field
}

// whole reports whether all of a node could be read.
func (n node) whole() bool {
	if n.kind == badKind || n.lost {
		return false
	}
	for _, item := range n.items {
		if !item.whole() {
			return false
		}
	}
	for _, f := range n.fields {
		if f.key.kind == badKind || !f.value.whole() {
			return false
		}
	}
	return true
}

// lacks reports whether a mapping could be read so far as to say that it has no
// such key as is not there.
func (n node) lacks() bool {
	for _, f := range n.fields {
		if f.key.kind == badKind {
			return false
		}
	}
	return n.kind == mappingKind && !n.lost
}

type field struct{ key, value node }

// reader stands at one byte of one line. Functions that read a block node
// leave it at the first character of the next line with content. Functions
// that return false have reported a fault and left the reader inside the
// faulty line, from where recover goes on.
type reader struct {
	lines  []string
	line   int
	at     int // a byte; of an indented line also its column, since only spaces indent
	faults []Fault
	spoilt map[int]bool // lines with a character that may not stand there; nothing more is said of them
}

// read returns the root of one document, or every fault found.
func read(text string) (node, *reader) {
	r := &reader{lines: strings.Split(text, "\n")}
	if !r.readable(text) {
		return node{}, r
	}
	r.settle()
	if !r.done() && separator(r.lines[r.line]) {
		r.at = len("---")
		if !r.endLine() {
			r.recover(-1)
		}
	}
	if r.done() {
		r.fault(place{}, "the document is empty")
		return node{}, r
	}
	root := r.root()
	if !r.done() {
		r.fault(r.here(), "text after the end of the document")
		root.lost = true
	}
	return root, r
}

// root reads what a document must be, a mapping, and with it every fault of
// its lines even where the first is none.
func (r *reader) root() node {
	if c := r.peek(); c == '[' || c == '{' || listItem(r.rest()) {
		return r.block(-1, 1)
	}
	return r.mapping(1)
}

// readable refuses texts that are no lines of characters.
func (r *reader) readable(text string) bool {
	switch {
	case len(text) > events.RequestBytesMax:
		r.faults = []Fault{{Line: 1, Column: 1, Message: "the document is larger than " + strconv.Itoa(events.RequestBytesMax) + " bytes; split it into several"}}
	case strings.HasPrefix(text, "\xef\xbb\xbf"):
		r.fault(place{}, "the document starts with a byte-order mark; save it as UTF-8 without one")
	case strings.HasPrefix(text, "\xff\xfe"), strings.HasPrefix(text, "\xfe\xff"),
		len(text) > 1 && (text[0] == 0 || text[1] == 0):
		r.fault(place{}, "the document is UTF-16 with or without byte-order mark; save it as UTF-8")
	default:
		r.spoilt = map[int]bool{}
		for i, line := range r.lines {
			r.checkCharacters(i, line)
		}
		for i := range r.spoilt {
			tab := strings.IndexByte(r.lines[i], '\t')
			if tab >= 0 && tab == indent(r.lines[i]) { // what belongs to what cannot be seen
				return false
			}
			r.lines[i] = strings.Map(blank, r.lines[i])
		}
		return true
	}
	return false
}

// blank replaces what may not stand in a document.
func blank(c rune) rune {
	if c == utf8.RuneError || unsafeRune(c) {
		return ' '
	}
	return c
}

func (r *reader) checkCharacters(i int, line string) {
	for at, c := range line {
		switch {
		case c == utf8.RuneError && !strings.HasPrefix(line[at:], "\ufffd"):
			r.fault(place{i, at}, "not UTF-8; save the file as UTF-8")
		case c == '\t':
			r.fault(place{i, at}, `a tab; indent with spaces, and write a tab in a text as "\t"`)
		case c == '\r':
			r.fault(place{i, at}, `a carriage return; end lines with a line feed alone`)
		case unsafeRune(c):
			r.fault(place{i, at}, "an invisible character; write it as "+strings.Trim(strconv.QuoteToASCII(string(c)), `"`)+" inside double quotes, if it is meant")
		default:
			continue
		}
		r.spoilt[i] = true
		return // one of these on a line says it
	}
}

// fault reports what is wrong at p, up to faultsMax times.
func (r *reader) fault(p place, message string) {
	if len(r.faults) < faultsMax && !r.spoilt[p.line] {
		r.faults = append(r.faults, faultAt(r.lines, p, message))
	}
}

// faultHere reports what is wrong where the reader stands, and is false.
func (r *reader) faultHere(message string) bool {
	r.fault(r.here(), message)
	return false
}

func (r *reader) here() place  { return place{r.line, r.at} }
func (r *reader) done() bool   { return r.line >= len(r.lines) }
func (r *reader) rest() string { return r.lines[r.line][r.at:] }

// peek is the byte the reader stands at, 0 at the end of the line.
func (r *reader) peek() byte {
	if rest := r.rest(); rest != "" {
		return rest[0]
	}
	return 0
}

// settle goes to the first character of the next line with content, this one
// included, or to the end.
func (r *reader) settle() {
	for ; !r.done(); r.line++ {
		line := r.lines[r.line]
		r.at = indent(line)
		if r.at < len(line) && line[r.at] != '#' {
			return
		}
	}
}

func (r *reader) nextLine() {
	r.line++
	r.settle()
}

// recover goes to the next line that is indented no deeper than column, where
// reading can go on after a fault.
func (r *reader) recover(column int) {
	for r.nextLine(); !r.done() && r.at > column; {
		r.nextLine()
	}
}

func (r *reader) spaces() {
	r.at += indent(r.rest())
}

// lineEnds skips spaces and reports whether nothing but a comment follows.
func (r *reader) lineEnds() bool {
	r.spaces()
	c := r.peek()
	return c == 0 || c == '#' && (r.at == 0 || r.lines[r.line][r.at-1] == ' ')
}

// endLine ends a value that must be the last of its line.
func (r *reader) endLine() bool {
	switch {
	case r.lineEnds():
		r.nextLine()
		return true
	case r.peek() == ':':
		return r.faultHere("this cannot be a key; keys are texts")
	}
	return r.faultHere("unexpected text after the value")
}

// block reads the node that starts here, on a line of its own or after a dash,
// inside a collection that starts at column parent.
func (r *reader) block(parent, depth int) node {
	r.properties()
	start := node{place: r.here()}
	switch rest := r.rest(); {
	case depth > events.JSONDepthMax:
		r.faultHere(tooDeep)
		r.recover(parent)
		return start
	case listItem(rest):
		return r.list(depth)
	case keyAhead(rest):
		return r.mapping(depth)
	}
	n, ok := r.inline(parent, depth)
	if !ok {
		r.recover(parent)
		return start
	}
	return n
}

var tooDeep = "nested deeper than " + strconv.Itoa(events.JSONDepthMax) + " levels"

func (r *reader) list(depth int) node {
	column := r.at
	n := node{kind: listKind, place: r.here()}
	for !r.done() && r.at == column && listItem(r.rest()) {
		r.at++
		item, ok := r.value(column, depth+1, false)
		if !ok {
			item = node{}
			r.recover(column)
		}
		n.items = append(n.items, item)
		if !r.aligned(column) {
			n.lost, n.items[len(n.items)-1].lost = true, true
		}
	}
	return n
}

func (r *reader) mapping(depth int) node {
	column := r.at
	n := node{kind: mappingKind, place: r.here()}
	for !r.done() && r.at == column {
		key, readable := r.key()
		var value node
		ok := false
		if readable {
			value, ok = r.value(column, depth+1, true)
		}
		if !ok {
			value = node{}
			r.recover(column)
		}
		if readable {
			n.fields = append(n.fields, field{key, value})
		}
		if !r.aligned(column) {
			n.lost = true
			if readable {
				n.fields[len(n.fields)-1].value.lost = true
			}
		}
		n.lost = n.lost || !readable
	}
	return n
}

// aligned refuses what follows an entry and is indented deeper than it.
func (r *reader) aligned(column int) bool {
	if r.done() || r.at <= column {
		return true
	}
	r.faultHere(`not aligned with the lines above; a text of several lines needs quotes and \n, or |`)
	r.recover(column)
	return false
}

// key reads a key and its colon.
func (r *reader) key() (node, bool) {
	r.properties()
	start := r.here()
	switch rest := r.rest(); {
	case separator(r.lines[r.line]):
		if rest == "---" {
			r.faultHere("a second document; send each document on its own")
		} else {
			r.faultHere("text after the document mark; start the document on the next line")
		}
		r.line = len(r.lines)
		return node{}, false
	case r.at == 0 && strings.HasPrefix(rest, "---"):
		return node{}, r.faultHere("a key that starts like a document mark; quote it")
	case r.at == 0 && strings.HasPrefix(rest, "..."):
		r.faultHere(`a document-end mark; leave "..." and what follows out, or quote it`)
		r.line = len(r.lines)
		return node{}, false
	case rest != "" && rest[0] == '%' && r.at == 0:
		return node{}, r.faultHere("a directive; directives are not supported")
	case rest == "?" || strings.HasPrefix(rest, "? "):
		return node{}, r.faultHere(`an explicit key; write "key: value" without the question mark`)
	case listItem(rest):
		return node{}, r.faultHere("a list item among keys; indent it below the key it belongs to")
	case !keyAhead(rest):
		return node{}, r.faultHere(`expected "key: value"`)
	}
	key, ok := r.keyText()
	if !ok {
		return key, false
	}
	r.spaces()
	r.at++ // the colon, which keyAhead saw
	return r.checkKey(key, start), true
}

// keyText reads the text of a key up to its colon, which keyAhead saw.
func (r *reader) keyText() (node, bool) {
	if c := r.peek(); c == '"' || c == '\'' {
		return r.quoted()
	}
	if complaint := plainStart(r.rest()); complaint != "" {
		return node{}, r.faultHere(complaint)
	}
	n := node{place: r.here()}
	text := r.rest()[:plainEnd(r.rest(), false)]
	r.at += len(text)
	return r.plain(n, strings.TrimRight(text, " ")), true
}

// checkKey refuses keys that are no texts. The value is read all the same.
func (r *reader) checkKey(key node, start place) node {
	switch {
	case key.kind == textKind && key.text == "<<" && r.lines[start.line][start.at] == '<':
		r.fault(start, "a merge key; write the keys out")
	case key.kind == textKind || key.kind == badKind:
		return key
	default:
		r.fault(start, "a key that reads as "+key.kind.String()+"; quote it")
	}
	return node{place: start}
}

// value reads what stands after a colon or a dash of a collection that starts
// at column parent: on the same line, or indented below it. A list may stand
// in the column of its key.
func (r *reader) value(parent, depth int, afterKey bool) (node, bool) {
	start := r.here()
	if !r.lineEnds() {
		r.properties()
	}
	if r.lineEnds() {
		r.nextLine()
		if !r.done() && (r.at > parent || afterKey && r.at == parent && listItem(r.rest())) {
			return r.block(parent, depth), true
		}
		return node{kind: nullKind, place: start}, true
	}
	if !afterKey {
		return r.block(parent, depth), true
	}
	if listItem(r.rest()) {
		return node{}, r.faultHere("a list item after a key; start the list on the next line")
	}
	return r.inline(parent, depth)
}

// properties refuses and skips the anchors and tags before a value.
func (r *reader) properties() {
	for c := r.peek(); c == '&' || c == '!'; c = r.peek() {
		if c == '&' {
			r.faultHere("an anchor; write the value out where it is needed")
		} else {
			r.faultHere("a tag; what a value is shows from how it is written")
		}
		r.word()
		r.spaces()
	}
}

// word skips to the next space.
func (r *reader) word() {
	if i := strings.IndexByte(r.rest(), ' '); i >= 0 {
		r.at += i
	} else {
		r.at = len(r.lines[r.line])
	}
}

// inline reads a node that is no block collection.
func (r *reader) inline(parent, depth int) (node, bool) {
	n := node{place: r.here()}
	ok := true
	switch rest := r.rest(); {
	case rest == "":
		return n, r.faultHere("a value is missing")
	case rest[0] == '"' || rest[0] == '\'':
		n, ok = r.quoted()
	case rest[0] == '[' || rest[0] == '{':
		n, ok = r.flow(parent, depth)
	case rest[0] == '|':
		return r.literal(parent)
	case rest[0] == '*':
		r.faultHere("an alias; write the value out")
		r.word()
	default:
		if complaint := plainStart(rest); complaint != "" {
			return n, r.faultHere(complaint)
		}
		text := rest[:plainEnd(rest, false)]
		r.at += len(text)
		if r.peek() == ':' {
			return n, r.faultHere(`a second ": " on the line; quote the text, or put the mapping on lines of its own`)
		}
		n = r.plain(n, strings.TrimRight(text, " "))
	}
	return n, ok && r.endLine()
}

// quoted reads a quoted text, which ends on its line.
func (r *reader) quoted() (node, bool) {
	n := node{kind: textKind, place: r.here()}
	rest := r.rest()
	end := quotedEnd(rest)
	if end < 0 {
		return n, r.faultHere(`a quoted text must end on its line; use \n inside double quotes, or |`)
	}
	if rest[0] == '\'' {
		n.text = strings.ReplaceAll(rest[1:end-1], "''", "'")
	} else {
		v, err := events.ParseJSON([]byte(rest[:end]))
		if err != nil {
			rule := err.(*events.JSONError)
			r.fault(place{r.line, r.at + rule.Offset}, rule.Rule+`; a text in double quotes takes the escapes of JSON`)
			n.kind = badKind
		}
		n.text = v.Text
	}
	r.at += end
	return n, true
}

// literal reads a | text. Its lines are those indented as its first one.
func (r *reader) literal(parent int) (node, bool) {
	n := node{kind: textKind, place: r.here()}
	r.at++
	keepEnd := r.peek() != '-'
	if !keepEnd {
		r.at++
	}
	if !r.lineEnds() {
		r.at = n.place.at
		return n, r.faultHere("only | and |- start a text of several lines here")
	}
	r.line++
	lines := r.literalLines(parent)
	n.text = strings.TrimRight(strings.Join(lines, "\n"), "\n")
	switch {
	case n.text == "":
		n.kind = badKind
		r.fault(n.place, `no text follows; write ""`)
	case keepEnd && (!r.done() || lines[len(lines)-1] == ""):
		n.text += "\n" // which a last line without line feed has not
	}
	r.settle()
	return n, true
}

// literalLines takes the lines of a | text, without their margin.
func (r *reader) literalLines(parent int) []string {
	var lines []string
	margin := -1
	for ; !r.done(); r.line++ {
		line := r.lines[r.line]
		column := indent(line)
		switch {
		case column == len(line):
			if column > max(margin, 0) {
				r.fault(place{r.line, 0}, "a line of nothing but spaces; leave it empty")
			}
			line = ""
		case margin < 0 && column > parent:
			margin = column
		case column <= parent, column < margin:
			return lines
		}
		if strings.HasSuffix(line, " ") {
			r.fault(place{r.line, len(line) - 1}, "a space at the end of the line, which not every reader keeps; leave it out or use quotes")
		}
		lines = append(lines, line[min(max(margin, 0), len(line)):])
	}
	return lines
}

// flow reads a [ ] or { } that starts here.
func (r *reader) flow(parent, depth int) (node, bool) {
	n := node{kind: listKind, place: r.here()}
	end := byte(']')
	if r.peek() == '{' {
		n.kind, end = mappingKind, '}'
	}
	if depth > events.JSONDepthMax {
		return n, r.faultHere(tooDeep)
	}
	r.at++
	for {
		if !r.flowSpace(parent) {
			return n, r.unclosed(n.place)
		}
		if r.peek() == end {
			r.at++
			return n, true
		}
		if ok := r.flowEntry(&n, parent, depth); !ok {
			return n, false
		}
		if !r.flowSpace(parent) {
			return n, r.unclosed(n.place)
		}
		switch c := r.peek(); {
		case c == ',':
			r.at++
		case c == ':' && end == ']':
			return n, r.faultHere("a mapping inside [ ] needs its own { }")
		case c != end:
			return n, r.faultHere("expected a comma or " + strconv.Quote(string(end)) + "; a text that has one of , [ ] { } in it is put in quotes here")
		}
	}
}

func (r *reader) unclosed(open place) bool {
	r.fault(open, "nothing closes this; the lines of a [ ] or { } are indented deeper than its key")
	return false
}

func (r *reader) flowEntry(n *node, parent, depth int) bool {
	if n.kind == listKind {
		item, ok := r.flowValue(parent, depth+1)
		n.items = append(n.items, item)
		return ok
	}
	key, ok := r.flowKey()
	if !ok {
		return false
	}
	start := r.here()
	if !r.flowSpace(parent) || r.peek() == ',' || r.peek() == '}' {
		n.fields = append(n.fields, field{key, node{kind: nullKind, place: start}})
		return true
	}
	value, ok := r.flowValue(parent, depth+1)
	n.fields = append(n.fields, field{key, value})
	return ok
}

// flowKey reads a key inside { } and its colon.
func (r *reader) flowKey() (node, bool) {
	r.properties()
	start := r.here()
	var key node
	ok := true
	if c := r.peek(); c == '"' || c == '\'' {
		key, ok = r.quoted()
	} else {
		key, ok = r.flowPlain()
	}
	if !ok {
		return key, false
	}
	r.spaces()
	unquoted := r.lines[start.line][start.at:r.at]
	if c := unquoted[0]; c != '"' && c != '\'' && strings.Contains(unquoted, ":") {
		r.at = start.at
		return key, r.faultHere("a colon in an unquoted key; write a space after the colon, or quote the key")
	}
	if r.peek() != ':' {
		r.at = start.at
		return key, r.faultHere("a key without value; write a colon and a space after the key")
	}
	r.at++
	return r.checkKey(key, start), true
}

func (r *reader) flowValue(parent, depth int) (node, bool) {
	r.properties()
	if !r.flowSpace(parent) {
		return node{place: r.here()}, true
	}
	switch r.peek() {
	case '"', '\'':
		return r.quoted()
	case '[', '{':
		return r.flow(parent, depth)
	case '*':
		n := node{place: r.here()}
		r.faultHere("an alias; write the value out")
		for c := r.peek(); c != 0 && strings.IndexByte(" ,[]{}", c) < 0; c = r.peek() {
			r.at++
		}
		return n, true
	}
	return r.flowPlain()
}

func (r *reader) flowPlain() (node, bool) {
	n := node{place: r.here()}
	rest := r.rest()
	if complaint := plainStart(rest); complaint != "" {
		return n, r.faultHere(complaint)
	}
	text := rest[:plainEnd(rest, true)]
	if text == "" {
		return n, r.faultHere("a value is missing")
	}
	r.at += len(text)
	return r.plain(n, strings.TrimRight(text, " ")), true
}

// flowSpace skips spaces, line ends and comments inside a [ ] or { }. It is
// false, and moves nothing, at the end of the document and before a line that
// belongs to what is outside.
func (r *reader) flowSpace(parent int) bool {
	line, at := r.line, r.at
	for r.lineEnds() {
		r.nextLine()
		closing := !r.done() && (r.peek() == ']' || r.peek() == '}')
		if r.done() || r.at < parent || r.at == parent && !closing {
			r.line, r.at = line, at
			return false
		}
	}
	return true
}

var (
	integerForm = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)
	// numberLike is matched without the underscores that some readers skip.
	numberLike = regexp.MustCompile(`(?i)^[-+]?(0x[0-9a-f]+|0o[0-7]+|0b[01]+|` +
		`[0-9]+(:[0-9]+)*(\.[0-9]*)?(e[-+]?[0-9]+)?|\.[0-9]+(e[-+]?[0-9]+)?|\.inf)$|^\.nan$`)
)

// plain decides what an unquoted text is. Whatever any YAML or JSON reader
// could take for a number or boolean is that or a fault, never a text.
func (r *reader) plain(n node, text string) node {
	n.text = text
	if strings.HasSuffix(text, ":") {
		r.fault(n.place, "an unquoted text that ends in a colon, which readers take for different things; quote it")
		return n
	}
	switch text {
	case "true", "false":
		n.kind = boolKind
		return n
	case "null", "Null", "NULL", "~":
		n.kind = nullKind
		return n
	case "True", "TRUE", "False", "FALSE":
		r.fault(n.place, "write "+strings.ToLower(text)+", or quote it if a text is meant")
		return n
	}
	if integerForm.MatchString(text) {
		if i, err := strconv.ParseInt(text, 10, 64); err != nil || i > events.IntegerMax || i < -events.IntegerMax {
			r.fault(n.place, "an integer beyond ±(2^53-1)")
			return n
		}
		n.kind = integerKind
		return n
	}
	if numberLike.MatchString(strings.ReplaceAll(text, "_", "")) {
		r.fault(n.place, quote(text)+" is no integer in plain decimal digits, the only numbers here; quote it if a text is meant")
		return n
	}
	n.kind = textKind
	return n
}

// plainStart says why an unquoted text cannot start with s.
func plainStart(s string) string {
	if s == "" {
		return "a value is missing"
	}
	switch s[0] {
	case '>':
		return "a folded text; use | or quotes"
	case '|':
		return "a text of several lines inside [ ] or { }; use quotes"
	case '%', '@', '`', '#', '&', '!', '*', '?', ':', '"', '\'', '[', '{':
		return "an unquoted text cannot start with " + strconv.Quote(s[:1]) + "; quote it"
	case ',', ']', '}':
		return "unexpected " + strconv.Quote(s[:1]) + "; quote it if it is text"
	case '-':
		if len(s) == 1 || strings.IndexByte(" ,[]{}", s[1]) >= 0 {
			return `unexpected "-"; quote it if it is text`
		}
	}
	return ""
}

// plainEnd returns the length of the unquoted text at the start of s, with the
// spaces after it: it ends before a comment and before a colon that ends a
// key, and inside [ ] and { } also before their marks.
func plainEnd(s string, flow bool) int {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '#' && i > 0 && s[i-1] == ' ':
			return i
		case c == ':' && (i+1 == len(s) || s[i+1] == ' '):
			return i
		case flow && (strings.IndexByte(",[]{}", c) >= 0 ||
			c == ':' && strings.IndexByte(",[]{}", s[i+1]) >= 0):
			return i
		}
	}
	return len(s)
}

// quotedEnd returns the length of the quoted text at the start of s, quotes
// included, or -1 if it does not end.
func quotedEnd(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] != s[0]:
		case s[0] == '\'' && strings.HasPrefix(s[i:], "''"):
			i++
		default:
			return i + 1
		}
	}
	return -1
}

// keyAhead reports whether s starts with a key and its colon.
func keyAhead(s string) bool {
	if s == "" || s[0] == '[' || s[0] == '{' {
		return false
	}
	if s[0] == '?' && (len(s) == 1 || s[1] == ' ') {
		return true
	}
	end := plainEnd(s, false)
	if s[0] == '"' || s[0] == '\'' {
		if end = quotedEnd(s); end < 0 {
			return false
		}
		end += indent(s[end:])
	}
	return end < len(s) && s[end] == ':' && (end+1 == len(s) || s[end+1] == ' ')
}

func listItem(s string) bool { return s == "-" || strings.HasPrefix(s, "- ") }

func separator(line string) bool { return line == "---" || strings.HasPrefix(line, "--- ") }

// indent counts the spaces at the start of s.
func indent(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }

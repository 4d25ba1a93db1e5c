package policy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fault is one thing wrong with a document, said so that its author can fix it.
// It quotes the document, though no seed and no value of a record, so it goes to
// the author alone and never into an event or a log line.
type Fault struct {
	File    string // as given to ParseFile; empty for a document on its own
	Line    int    // from 1, in the file or document
	Column  int    // from 1, in characters
	Excerpt string // the line, shortened, with nothing in it that a terminal obeys
	Message string // what is wrong, and how to put it right
}

// String renders the fault in one line for a machine to jump to, then the
// excerpt with a mark under the place.
func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		fmt.Fprintf(&b, "%s:", f.File)
	}
	fmt.Fprintf(&b, "%d:%d: %s", f.Line, f.Column, f.Message)
	if f.Excerpt == "" {
		return b.String()
	}
	number := strconv.Itoa(f.Line)
	margin := strings.Repeat(" ", len(number))
	fmt.Fprintf(&b, "\n  %s | %s", number, f.Excerpt)
	if !strings.HasPrefix(f.Excerpt, cut) && f.Column <= utf8.RuneCountInString(f.Excerpt)+1 {
		fmt.Fprintf(&b, "\n  %s | %s^", margin, strings.Repeat(" ", f.Column-1))
	}
	return b.String()
}

const (
	faultsMax   = 100 // more than anyone mends in one round; bounds a reply
	excerptRune = 100 // about one terminal line
	quoteRunes  = 64
	cut         = "…"
)

// place is where something stands in a document: line and byte, both from 0.
// The column in characters is worked out only for a fault, because counting
// from the start of a very long line for every value would take too long.
type place struct{ line, at int }

// faultAt makes the fault at p of a document with these lines.
func faultAt(lines []string, p place, message string) Fault {
	line := ""
	if p.line < len(lines) {
		line = lines[p.line]
	}
	before := utf8.RuneCountInString(line[:min(p.at, len(line))])
	line, open := masked(lines, p.line)
	if quoted, err := strconv.QuotedPrefix(message); err == nil && p.at >= open {
		message = "this" + message[len(quoted):] // a message begins with what stands at the place
	}
	return Fault{Line: p.line + 1, Column: before + 1, Excerpt: excerpt(line, before), Message: message}
}

var (
	seed       = regexp.MustCompile(`SU[A-Z2-7]{20,}`)
	valueStart = regexp.MustCompile(`(^|[\s{,])["']?value["']?\s*:`)
)

const hidden = "(not shown)"

// masked is the line with the index n without what must not be shown: seeds,
// and what follows "value:" on its line or is indented under it. open is how
// many bytes stand before such a value.
func masked(lines []string, n int) (shown string, open int) {
	if n >= len(lines) {
		return "", 0
	}
	line := lines[n]
	for i, at := n-1, indent(line); i >= 0 && at > 0; i-- {
		if strings.TrimSpace(lines[i]) == "" || indent(lines[i]) >= at {
			continue
		}
		at = indent(lines[i])
		if valueStart.MatchString(lines[i]) {
			return line[:indent(line)] + hidden, 0
		}
	}
	open = len(line) + 1
	if m := valueStart.FindStringIndex(line); m != nil && strings.TrimSpace(line[m[1]:]) != "" {
		line, open = line[:m[1]]+" "+hidden, m[1]
	}
	return seed.ReplaceAllString(line, hidden), open
}

// excerpt shortens line around the character with the index at.
func excerpt(line string, at int) string {
	runes := []rune(line)
	head := ""
	if len(runes) > excerptRune && at > excerptRune*3/4 {
		runes = runes[at-excerptRune/2:]
		head = cut
	}
	tail := ""
	if len(runes) > excerptRune {
		runes = runes[:excerptRune]
		tail = cut
	}
	return head + strings.Map(harmless, string(runes)) + tail
}

// harmless replaces what could move a cursor or turn the order of a line.
func harmless(r rune) rune {
	if r == ' ' || unicode.IsPrint(r) && !unsafeRune(r) {
		return r
	}
	return utf8.RuneError
}

// unsafeRune reports whether r may not stand in a document as itself: control
// characters, other line breaks, the byte-order mark and the marks that make
// text read in another order than it is stored.
func unsafeRune(r rune) bool {
	switch {
	case r == '\n':
		return false
	case unicode.IsControl(r), r == 0x2028, r == 0x2029, r == 0xfeff:
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, 0x202a <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069:
		return true
	}
	return false
}

// quote shows text of a document in a message: escaped and shortened.
func quote(s string) string {
	s = seed.ReplaceAllString(s, hidden)
	if utf8.RuneCountInString(s) > quoteRunes {
		s = string([]rune(s)[:quoteRunes]) + cut
	}
	return strconv.Quote(s)
}

func sortFaults(faults []Fault) {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// didYouMean names the candidate nearest to s if a slip of the keyboard could
// have made one of the other, with a comma and a question mark around it.
func didYouMean(s string, candidates []string) string {
	if best, ok := nearest(s, candidates); ok {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

func nearest(s string, candidates []string) (best string, ok bool) {
	if len(s) > quoteRunes {
		return "", false
	}
	best, distance := "", max(2, len(s)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if withoutDigits(s) == withoutDigits(c) {
			continue // another version of it, no slip
		}
		if d := editDistance(strings.ToLower(s), strings.ToLower(c)); d < distance && d < len(c) {
			best, distance = c, d
		}
	}
	return best, best != ""
}

func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, s)
}

// editDistance counts the letters to insert, delete, replace or swap with
// their neighbour to turn a into b (optimal string alignment).
func editDistance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

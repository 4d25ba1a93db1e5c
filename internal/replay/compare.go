package replay

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// compare compares an event with what it must be. Its place and id are its own:
// the one is checked with the chain, the other is random.
func (r *run) compare(found *logged, want events.Event) bool {
	want.Seq, want.Prev, want.ID = found.Seq, found.Prev, found.ID
	b, err := want.Append(r.scratch[:0])
	r.scratch = b[:0]
	if err != nil {
		r.find(found.Seq, "an event that can be written", err.Error())
		return false
	}
	if bytes.Equal(b, found.bytes) {
		return true
	}
	expected, other := differences(b, found.bytes)
	r.find(found.Seq, expected, other)
	return false
}

// sameBody reports whether two bodies of one type say the same.
func sameBody(a, b events.Body) bool {
	write := func(body events.Body) []byte {
		e := events.Event{Seq: 1, Agent: events.System, ID: [16]byte{6: 0x70, 8: 0x80}, Body: body}
		out, err := e.Append(nil)
		if err != nil {
			return nil
		}
		return out
	}
	x := write(a)
	return x != nil && bytes.Equal(x, write(b))
}

// differences names the members in which two events differ and what they hold.
// No member of an event is a secret.
func differences(want, got []byte) (expected, found string) {
	a, err := events.ParseJSON(want)
	if err != nil {
		return "an event", err.Error()
	}
	b, err := events.ParseJSON(got)
	if err != nil {
		return "an event", err.Error()
	}
	var x, y []string
	note := func(list *[]string, name string, v events.Value, ok bool) {
		if !ok {
			*list = append(*list, "no "+name)
			return
		}
		*list = append(*list, name+" "+string(v.AppendCanonical(nil)))
	}
	var walk func(prefix string, a, b events.Value)
	walk = func(prefix string, a, b events.Value) {
		for _, name := range memberNames(a, b) {
			va, oka := a.Get(name)
			vb, okb := b.Get(name)
			switch {
			case oka && okb && bytes.Equal(va.AppendCanonical(nil), vb.AppendCanonical(nil)):
			case oka && okb && va.Kind == events.Object && vb.Kind == events.Object:
				walk(prefix+name+".", va, vb)
			default:
				note(&x, prefix+name, va, oka)
				note(&y, prefix+name, vb, okb)
			}
		}
	}
	walk("", a, b)
	return cut(strings.Join(x, ", ")), cut(strings.Join(y, ", "))
}

func memberNames(a, b events.Value) []string {
	var names []string
	for _, m := range a.Members {
		names = append(names, m.Name)
	}
	for _, m := range b.Members {
		if _, ok := a.Get(m.Name); !ok {
			names = append(names, m.Name)
		}
	}
	return names
}

// describe says what an event is in a few words.
func describe(e *events.Event) string {
	d, ok := e.Body.(*events.Decision)
	if !ok {
		return fmt.Sprintf("%s of %s", e.Body.Type(), e.Agent)
	}
	return cut(fmt.Sprintf("%s %s of %s on %s: %s", e.Body.Type(), d.Operation, d.Subject, quote(d.Resource), d.Reason))
}

const textMax = 2000 // of one side of a finding

func cut(s string) string {
	if len(s) > textMax {
		return s[:textMax] + "…"
	}
	return s
}

func describeSeq(seq uint64) string { return "decision " + uintText(seq) }

func uintText(n uint64) string { return strconv.FormatUint(n, 10) }

func quote(s string) string { return strconv.Quote(s) }

// isBlind reports whether s is 128 bits in lower-case hex.
func isBlind(s string) bool {
	if len(s) != 32 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

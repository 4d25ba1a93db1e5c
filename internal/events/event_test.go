package events

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawBody fills a body of type typ with anything the format can say.
func drawBody(t *rapid.T, typ Type) Body {
	b := newBody(typ)
	drawFields(t, reflect.ValueOf(b).Elem())
	if d, ok := b.(*Decision); ok {
		d.Allowed = typ == TypeDecisionAllowed
	}
	return b
}

func drawFields(t *rapid.T, v reflect.Value) {
	text := rapid.StringOf(rapid.RuneFrom([]rune{'a', '"', '\\', 'é', '\n', 1, 0x1f, 0x7f, 0xe000, 0xfffd, 0x10ffff, 0x2028, '<'}))
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch f := v.Field(i).Addr().Interface().(type) {
		case *string:
			*f = text.Draw(t, name)
		case *uint64:
			*f = rapid.Uint64Range(0, IntegerMax).Draw(t, name)
		case *bool:
			*f = rapid.Bool().Draw(t, name)
		case *Time:
			*f = drawTime(t, name)
		case *Hash:
			*f = drawHash(t, name)
		case *[]string:
			*f = rapid.SliceOfN(text, 0, 4).Draw(t, name)
		case **Previous:
			if rapid.Bool().Draw(t, name) {
				*f = &Previous{}
				drawFields(t, reflect.ValueOf(*f).Elem())
			}
		case *Record:
			drawFields(t, v.Field(i))
		case *[]uint64:
			*f = slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.Uint64Range(0, IntegerMax), 0, 4).Draw(t, name))))
		case *Refusals, *Emergency, *Effect, *Grant, *Hold:
			drawFields(t, v.Field(i))
		default:
			t.Fatalf("field %s of a kind this test does not know: %T", name, f)
		}
	}
}

func drawTime(t *rapid.T, name string) Time {
	return Time(rapid.Int64Range(0, int64(timeMax)).Draw(t, name))
}

func drawHash(t *rapid.T, name string) Hash {
	return Hash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, name))
}

func drawEvent(t *rapid.T, typ Type) *Event {
	e := &Event{
		Seq: rapid.Uint64Range(1, IntegerMax).Draw(t, "seq"), Prev: drawHash(t, "prev"), Time: drawTime(t, "time"),
		ID:    [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		Agent: rapid.SampledFrom([]string{System, "researcher", "0-_"}).Draw(t, "agent"), Body: drawBody(t, typ),
	}
	e.ID[6], e.ID[8] = e.ID[6]&0x0f|0x70, e.ID[8]&0x3f|0x80
	if rapid.Bool().Draw(t, "payload") {
		e.Payload = drawHash(t, "commitment")
	}
	e.Cause = rapid.Uint64Range(0, e.Seq-1).Draw(t, "cause")
	return e
}

// TestRoundTrip: of every type, whatever Append writes Parse reads to the same
// bytes, and no field is lost on the way.
func TestRoundTrip(t *testing.T) {
	for _, typ := range Types() {
		t.Run(string(typ), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := drawEvent(t, typ)
				b, err := e.Append(nil)
				if errors.Is(err, ErrTooLarge) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				back, err := Parse(b)
				if err != nil {
					t.Fatalf("%v\n%s", err, b)
				}
				again, err := back.Append(nil)
				if err != nil || !bytes.Equal(again, b) {
					t.Fatalf("written back as %s (%v), want %s", again, err, b)
				}
				if got, want := fmt.Sprintf("%+v %+v", back.Body, back), fmt.Sprintf("%+v %+v", e.Body, *e); !sameText(got, want) {
					t.Fatalf("read as\n%s\nwant\n%s", got, want)
				}
				if _, err := ParseJSON(b); err != nil {
					t.Fatalf("an event is no strict JSON: %v\n%s", err, b)
				}
			})
		})
	}
}

// sameText compares two dumps but for the address of Body and Previous.
func sameText(a, b string) bool {
	strip := func(s string) string {
		for {
			i := strings.Index(s, "0x")
			if i < 0 {
				return s
			}
			j := i + 2
			for j < len(s) && strings.ContainsRune("0123456789abcdef", rune(s[j])) {
				j++
			}
			s = s[:i] + s[j:]
		}
	}
	return strip(a) == strip(b)
}

// TestOneByteChange: every change of one byte of a golden event is refused, or
// is another event with another leaf hash that is itself written back exactly.
func TestOneByteChange(t *testing.T) {
	accepted, refused := 0, 0
	for n, original := range goldenFile(t) {
		leaf := LeafHash(original)
		check := func(b []byte) {
			if LeafHash(b) == leaf {
				t.Fatalf("event %d: changed bytes keep their leaf hash: %s", n+1, b)
			}
			e, err := Parse(b)
			if err != nil {
				refused++
				return
			}
			accepted++
			if again, err := e.Append(nil); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("event %d: accepted but written back as %s (%v), not %s", n+1, again, err, b)
			}
		}
		for i := range original {
			for v := range 256 {
				if byte(v) != original[i] {
					b := bytes.Clone(original)
					b[i] = byte(v)
					check(b)
				}
			}
			check(append(bytes.Clone(original[:i]), original[i+1:]...))
			check(append(bytes.Clone(original[:i+1]), original[i:]...))
		}
	}
	t.Logf("%d changes accepted as other events, %d refused", accepted, refused)
	if accepted == 0 || refused == 0 {
		t.Error("one of the two outcomes never came: the test shows nothing")
	}
}

// TestAppendRefuses: what has no form in the format is an error before it is a
// byte, and leaves dst as it was.
func TestAppendRefuses(t *testing.T) {
	valid := func() *Event {
		return &Event{Seq: 2, Time: 1, ID: testID(1), Agent: System, Body: &LedgerOpened{Build: "x"}}
	}
	if _, err := valid().Append(nil); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Event){
		"seq 0":              func(e *Event) { e.Seq = 0 },
		"seq too big":        func(e *Event) { e.Seq = IntegerMax + 1 },
		"cause is itself":    func(e *Event) { e.Cause = 2 },
		"cause is later":     func(e *Event) { e.Cause = 3 },
		"time before 1970":   func(e *Event) { e.Time = -1 },
		"time after 9999":    func(e *Event) { e.Time = timeMax + 1 },
		"id of no version":   func(e *Event) { e.ID = [16]byte{} },
		"id of version 4":    func(e *Event) { e.ID[6] = 0x40 },
		"agent empty":        func(e *Event) { e.Agent = "" },
		"agent reserved":     func(e *Event) { e.Agent = "all" },
		"agent with a dot":   func(e *Event) { e.Agent = "a.b" },
		"body integer":       func(e *Event) { e.Body = &LedgerOpened{Rules: IntegerMax + 1} },
		"body time":          func(e *Event) { e.Body = &ClockAccepted{Wall: timeMax + 1} },
		"string no UTF-8":    func(e *Event) { e.Body = &LedgerOpened{Build: "\xff"} },
		"string surrogate":   func(e *Event) { e.Body = &LedgerOpened{Build: "\xed\xa0\x80"} },
		"string with NUL":    func(e *Event) { e.Body = &LedgerOpened{Build: "a\x00"} },
		"list item with NUL": func(e *Event) { e.Body = &AgentUpdated{AgentID: "a", Capabilities: []string{"\x00"}} },
	} {
		e := valid()
		change(e)
		dst, err := e.Append([]byte("kept"))
		if err == nil || string(dst) != "kept" {
			t.Errorf("%s: error %v, dst %q", name, err, dst)
		}
	}
	e := valid()
	e.Body = &LedgerOpened{Build: strings.Repeat("x", EventBytesMax)}
	if dst, err := e.Append([]byte("kept")); !errors.Is(err, ErrTooLarge) || string(dst) != "kept" {
		t.Errorf("too large: error %v, dst of %d bytes", err, len(dst))
	}
	b, _ := valid().Append(nil)
	e.Body = &LedgerOpened{Build: strings.Repeat("x", EventBytesMax-len(b)+1)}
	if b, err := e.Append(nil); err != nil || len(b) != EventBytesMax {
		t.Errorf("an event of exactly %d bytes: %d, %v", EventBytesMax, len(b), err)
	}
	e.Body = &LedgerOpened{Build: strings.Repeat("x", EventBytesMax-len(b)+2)}
	if _, err := e.Append(nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more: %v", err)
	}
	if _, err := Parse(bytes.Repeat([]byte{'{'}, EventBytesMax+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("parse of too many bytes: %v", err)
	}
}

// TestAppendChangesNothing: sealing reads the event only, so that one event may
// be written by several goroutines.
func TestAppendChangesNothing(t *testing.T) {
	e := Event{Seq: 1, ID: testID(1), Agent: System, Body: &LedgerOpened{Rules: 1, Build: "x"}}
	before := fmt.Sprintf("%+v %+v", e, e.Body)
	done := make(chan error)
	for range 4 {
		go func() { _, err := e.Append(nil); done <- err }()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if after := fmt.Sprintf("%+v %+v", e, e.Body); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// TestTime: case kind 22. One text form, microseconds, UTC; whatever survives
// the text form is unchanged by it.
func TestTime(t *testing.T) {
	for _, s := range []string{"1970-01-01T00:00:00.000000Z", "2026-11-29T20:31:07.114203Z", "2024-02-29T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"} {
		got, err := ParseTime(s)
		if err != nil || got.String() != s {
			t.Errorf("%s reads as %s (%v)", s, got, err)
		}
	}
	for _, s := range []string{
		"", "2026-11-29T20:31:07Z", "2026-11-29T20:31:07.1Z", "2026-11-29T20:31:07.114Z", "2026-11-29T20:31:07.114203456Z", // 0, 1, 3, 9 digits
		"2026-11-29T20:31:07.114203", "2026-11-29T20:31:07.114203+00:00", "2026-11-29T21:31:07.114203+01:00", "2026-11-29T20:31:07.114203z", // zones
		"2026-11-29T20:31:60.000000Z", "2026-12-31T23:59:60.000000Z", "2026-11-29T24:00:00.000000Z", "2026-02-29T00:00:00.000000Z", "2026-13-01T00:00:00.000000Z", // no such moment
		"2026-11-29 20:31:07.114203Z", "2026-11-29t20:31:07.114203Z", "2026-11-29T20:31:07,114203Z", " 2026-11-29T20:31:07.114203Z", "2026-11-29T20:31:07.114203Z ",
		"1969-12-31T23:59:59.999999Z", "0000-01-01T00:00:00.000000Z", "10000-01-01T00:00:00.000000Z", "-001-01-01T00:00:00.000000Z", "2026-1-29T20:31:07.114203Z",
	} {
		if got, err := ParseTime(s); err == nil {
			t.Errorf("%q reads as %s", s, got)
		}
	}
	local := time.Date(2026, 3, 29, 3, 30, 0, 999, time.FixedZone("", 7200))
	if got := TimeOf(local).String(); got != "2026-03-29T01:30:00.000000Z" {
		t.Errorf("nanoseconds and zone: %s", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		want := drawTime(t, "time")
		got, err := ParseTime(want.String())
		if err != nil || got != want || TimeOf(got.Std()) != want {
			t.Fatalf("%d reads back as %d (%v)", want, got, err)
		}
	})
}

// rejected is one line of testdata/v1/rejected.jsonl: bytes no reader accepts.
type rejected struct {
	Category string `json:"category"`
	Why      string `json:"why"`
	Base64   string `json:"base64"`
}

// edits turn an accepted event into one that must be refused. Each edit is one
// replacement, so that nothing else can be the reason; ? in old is any digit.
var edits = []struct{ category, why, old, new string }{
	{"version", "format version 2", `{"v":1,`, `{"v":2,`},
	{"version", "format version as a string", `{"v":1,`, `{"v":"1",`},
	{"type", "unknown event type", `"type":"memory.written"`, `"type":"memory.moved"`},
	{"type", "type in upper case", `"type":"memory.written"`, `"type":"MEMORY.WRITTEN"`},
	{"type", "decision that is no verdict", `"type":"memory.written"`, `"type":"decision"`},
	{"field", "unknown field in the envelope", `"agent":"researcher",`, `"agent":"researcher","actor":"admin",`},
	{"field", "unknown field in the body", `"revision":1}`, `"revision":1,"note":"x"}`},
	{"field", "missing field in the envelope", `"agent":"researcher",`, ``},
	{"field", "missing field in the body", `,"revision":1`, ``},
	{"field", "field in another case", `"agent":`, `"Agent":`},
	{"field", "field name with an escape", `"agent":`, `"\u0061gent":`},
	{"field", "duplicate field in the envelope", `"seq":8,`, `"seq":8,"seq":8,`},
	{"field", "duplicate field in the body", `"key":"summary",`, `"key":"summary","key":"summary",`},
	{"field", "null for a string", `"key":"summary"`, `"key":null`},
	{"field", "null for an optional field", `"cause":7`, `"cause":null`},
	{"field", "optional field that says none", `"cause":7`, `"cause":0`},
	{"field", "optional commitment of zeros", `"cause":7,`, `"cause":7,"payload":"0000000000000000000000000000000000000000000000000000000000000000",`},
	{"field", "string in the place of an integer", `"seq":8`, `"seq":"8"`},
	{"field", "integer in the place of a string", `"key":"summary"`, `"key":7`},
	{"order", "envelope fields exchanged", `"agent":"researcher","cause":7`, `"cause":7,"agent":"researcher"`},
	{"order", "body fields exchanged", `"namespace":"notes","key":"summary"`, `"key":"summary","namespace":"notes"`},
	{"space", "space after a colon", `"seq":8`, `"seq": 8`},
	{"space", "space before the event", `{"v"`, ` {"v"`},
	{"space", "line feed after the event", `"revision":1}}`, "\"revision\":1}}\n"},
	{"space", "tab between fields", `,"seq"`, ",\t\"seq\""},
	{"trailing", "a second event", `"revision":1}}`, `"revision":1}}{}`},
	{"trailing", "a NUL after the event", `"revision":1}}`, "\"revision\":1}}\x00"},
	{"syntax", "cut off", `"revision":1}}`, `"revision":1}`},
	{"syntax", "no comma", `,"seq"`, `"seq"`},
	{"syntax", "comma too many", `"revision":1}`, `"revision":1,}`},
	{"number", "leading zero", `"seq":8`, `"seq":08`},
	{"number", "plus sign", `"seq":8`, `"seq":+8`},
	{"number", "negative", `"seq":8`, `"seq":-8`},
	{"number", "negative zero", `"revision":1`, `"revision":-0`},
	{"number", "point", `"seq":8`, `"seq":8.0`},
	{"number", "exponent", `"seq":8`, `"seq":8e0`},
	{"number", "beyond 2^53-1", `"revision":1`, `"revision":9007199254740992`},
	{"number", "beyond 64 bits", `"revision":1`, `"revision":18446744073709551617`},
	{"number", "seq 0", `"seq":8`, `"seq":0`},
	{"cause", "cause is the event itself", `"cause":7`, `"cause":8`},
	{"cause", "cause is a later event", `"cause":7`, `"cause":9`},
	{"hash", "upper-case hex", `"prev":"?`, `"prev":"A`},
	{"hash", "63 digits", `"prev":"?`, `"prev":"`},
	{"hash", "65 digits", `"prev":"?`, `"prev":"00`},
	{"hash", "no hex", `"prev":"?`, `"prev":"g`},
	{"time", "three digits", `.116203Z"`, `.116Z"`},
	{"time", "nine digits", `.116203Z"`, `.116203000Z"`},
	{"time", "offset in place of Z", `.116203Z"`, `.116203+00:00"`},
	{"time", "second 60", `:07.116203Z"`, `:60.116203Z"`},
	{"time", "no such day", `2026-11-29T`, `2026-11-31T`},
	{"id", "upper-case UUID", `"id":"01937a1b`, `"id":"01937A1B`},
	{"id", "UUID of version 4", `-7000-8000-`, `-4000-8000-`},
	{"id", "UUID of another variant", `-7000-8000-`, `-7000-c000-`},
	{"id", "UUID without hyphens", `-7000-8000-`, `70008000`},
	{"name", "agent in upper case", `"agent":"researcher"`, `"agent":"Researcher"`},
	{"name", "agent is a reserved word", `"agent":"researcher"`, `"agent":"all"`},
	{"name", "agent with a dot", `"agent":"researcher"`, `"agent":"re.searcher"`},
	{"name", "agent empty", `"agent":"researcher"`, `"agent":""`},
	{"string", "needless escape", `"key":"summary"`, `"key":"summar\u0079"`},
	{"string", "escaped slash", `"key":"summary"`, `"key":"a\/b"`},
	{"string", "escape in upper-case hex", `"key":"summary"`, `"key":"\u001F"`},
	{"string", "long escape of a line feed", `"key":"summary"`, `"key":"\u000a"`},
	{"string", "raw control character", `"key":"summary"`, "\"key\":\"a\nb\""},
	{"string", "unpaired surrogate", `"key":"summary"`, `"key":"\ud800"`},
	{"string", "surrogate pair where one character would do", `"key":"summary"`, `"key":"\ud83d\ude00"`},
	{"string", "NUL", `"key":"summary"`, `"key":"\u0000"`},
	{"string", "bytes that are no UTF-8", `"key":"summary"`, "\"key\":\"\xff\""},
	{"string", "surrogate in UTF-8", `"key":"summary"`, "\"key\":\"\xed\xa0\x80\""},
	{"encoding", "byte-order mark", `{"v"`, "\xef\xbb\xbf{\"v\""},
	{"size", "over 65535 bytes", `"key":"summary"`, `"key":"` + strings.Repeat("k", EventBytesMax) + `"`},
}

func TestRejected(t *testing.T) {
	base := string(goldenFile(t)[7])
	if _, err := Parse([]byte(base)); err != nil {
		t.Fatalf("the event that the edits start from is refused: %v", err)
	}
	var list [][]byte
	add := func(category, why string, b []byte) {
		if e, err := Parse(b); err == nil {
			t.Errorf("%s: accepted: %+v", why, e)
		}
		line, err := json.Marshal(rejected{category, why, base64.StdEncoding.EncodeToString(b)})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, line)
	}
	prev := strings.Index(base, `"prev":"`) + len(`"prev":"`)
	for _, e := range edits {
		e.old = strings.Replace(e.old, "?", base[prev:prev+1], 1)
		if strings.Count(base, e.old) != 1 {
			t.Fatalf("%s: %q stands %d times in the event", e.why, e.old, strings.Count(base, e.old))
		}
		add(e.category, e.why, []byte(strings.Replace(base, e.old, e.new, 1)))
	}
	utf16 := []byte{0xff, 0xfe}
	for _, c := range []byte(base) {
		utf16 = append(utf16, c, 0)
	}
	add("encoding", "UTF-16", utf16)
	add("syntax", "nothing", nil)
	add("syntax", "an array", []byte("["+base+"]"))
	denied := string(goldenFile(t)[8])
	for _, e := range []struct{ why, old, new string }{
		{"verdict and type disagree", `"allowed":false`, `"allowed":true`},
		{"optional string empty", `"operation_id":"op-9"`, `"operation_id":""`},
		{"optional list empty", `"operation_id":"op-9"`, `"failed":[],"operation_id":"op-9"`},
		{"optional field out of order", `"policy_digest":`, `"operation_id":"op-9","policy_digest":`},
	} {
		if strings.Count(denied, e.old) != 1 {
			t.Fatalf("%s: %q stands %d times", e.why, e.old, strings.Count(denied, e.old))
		}
		add("field", e.why, []byte(strings.Replace(denied, e.old, e.new, 1)))
	}
	vector(t, "rejected.jsonl", lines(list))
	checkRejectedFile(t)
}

// checkRejectedFile refuses the stored bytes too, whatever the table says now.
func checkRejectedFile(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectorDir, "rejected.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(b) {
		var r rejected
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		raw, err := base64.StdEncoding.DecodeString(r.Base64)
		if err != nil || r.Category == "" || r.Why == "" {
			t.Fatalf("vector %s: %v", line, err)
		}
		if _, err := Parse(raw); err == nil {
			t.Errorf("%s: %s: accepted", r.Category, r.Why)
		}
		n++
	}
	if n < 60 {
		t.Errorf("only %d rejected vectors", n)
	}
}

// Whatever an Encoder has written before, an event has the bytes that it has
// alone: also after one that could not be written.
func TestAnEncoderWritesWhatAppendWrites(t *testing.T) {
	line, other := []string{"a", "b"}, []string{"a", "c"}
	decision := func(change func(*Event, *Decision)) Event {
		d := &Decision{Subject: "a", Lineage: line, Operation: "memory.read", Resource: "n.k", Reason: "record_not_found", PolicyVersion: "v", PolicyDigest: Hash{1}}
		e := Event{Seq: 2, Prev: Hash{1}, Time: 1764444444000000, ID: [16]byte{6: 0x70, 8: 0x80}, Agent: "a", Body: d}
		change(&e, d)
		return e
	}
	events := []Event{
		decision(func(*Event, *Decision) {}),
		decision(func(e *Event, d *Decision) { d.Lineage = other }),
		decision(func(e *Event, d *Decision) { d.Lineage = line[:1] }),
		decision(func(e *Event, d *Decision) { d.Lineage = nil }),
		decision(func(e *Event, d *Decision) { d.Lineage = []string{"\xff", "b"} }),
		decision(func(e *Event, d *Decision) { d.PolicyVersion = "v2" }),
		decision(func(e *Event, d *Decision) { d.PolicyVersion, d.PolicyDigest = "none", Hash{} }),
		decision(func(e *Event, d *Decision) { d.PolicyVersion = "\x00" }),
		decision(func(e *Event, d *Decision) { d.PolicyDigest = Hash{2} }),
		decision(func(e *Event, d *Decision) { e.Time++ }),
		decision(func(e *Event, d *Decision) { e.Time = 0 }),
		decision(func(e *Event, d *Decision) { e.Time = -1 }),
		{Seq: 2, Prev: Hash{1}, ID: [16]byte{6: 0x70, 8: 0x80}, Agent: System, Body: &LedgerOpened{Rules: 1, Build: "b"}},
	}
	rapid.Check(t, func(t *rapid.T) {
		var w Encoder
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(events)-1), 2, 8).Draw(t, "events") {
			want, fault := events[i].Append(nil)
			got, err := w.Append(nil, &events[i])
			if !bytes.Equal(got, want) || (err == nil) != (fault == nil) {
				t.Fatalf("event %d is %s, %v; alone %s, %v", i, got, err, want, fault)
			}
		}
	})
}

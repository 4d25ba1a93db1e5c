package events

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzParseJSON: nothing panics; what is accepted is JSON to encoding/json
// too, with the same value, and its canonical form is a fixed point.
func FuzzParseJSON(f *testing.F) {
	for _, c := range jsonAccepted {
		f.Add([]byte(c.in))
	}
	for _, c := range jsonRefused {
		if len(c.in) < 1000 {
			f.Add([]byte(c.in))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseJSON(b)
		if err != nil {
			if v.Kind != Invalid {
				t.Fatalf("a value beside the error %v", err)
			}
			return
		}
		if !json.Valid(b) || !utf8.Valid(b) {
			t.Fatalf("accepted what encoding/json refuses: %q", b)
		}
		canonical := v.AppendCanonical(nil)
		again, err := ParseJSON(canonical)
		if err != nil {
			t.Fatalf("canonical form refused: %v: %q", err, canonical)
		}
		if twice := again.AppendCanonical(nil); !bytes.Equal(twice, canonical) {
			t.Fatalf("canonical form of %q is %q", canonical, twice)
		}
		a, b2 := standard(t, b), standard(t, canonical)
		if !bytes.Equal(a, b2) {
			t.Fatalf("canonical form means another value: %s, %s", a, b2)
		}
	})
}

// standard is b as encoding/json reads and writes it, numbers as written.
func standard(t *testing.T, b []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// FuzzParse: nothing panics; what is accepted is exactly what Append writes.
func FuzzParse(f *testing.F) {
	for _, b := range goldenFile(f) {
		f.Add(b)
	}
	for _, typ := range Types() {
		for _, body := range []Body{bodyCases()[typ].minimal, bodyCases()[typ].maximal} {
			e := Event{Seq: 2, Time: 1, ID: testID(1), Agent: "a", Cause: 1, Payload: filledHash(1), Body: body}
			b, err := e.Append(nil)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	var skimmer Skimmer // goes from one input to the next
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Parse(b)
		skimmed(t, &skimmer, b, e, err)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		again, err := e.Append(nil)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("accepted %q, written back as %q (%v)", b, again, err)
		}
		l, err := ParseLabel(b)
		if err != nil || l.Subject("main") != e.StreamSubject("main") || l.Type != e.Body.Type() || l.Time != e.Time {
			t.Fatalf("the label of %q is %+v (%v)", b, l, err)
		}
		if _, err := ParseJSON(b); err != nil {
			t.Fatalf("accepted an event that is no strict JSON: %v: %q", err, b)
		}
	})
}

// skimmed holds what a Skimmer makes of b against what Parse made of it.
func skimmed(t *testing.T, s *Skimmer, b []byte, want Event, wantErr error) {
	t.Helper()
	got, err := s.Parse(b)
	if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
		t.Fatalf("skimming %q: %v, parsing it: %v", b, err, wantErr)
	}
	if err != nil {
		return
	}
	e := *got
	if d, ok := want.Body.(*Decision); ok {
		s, isDecision := got.Body.(*Decision)
		if !isDecision || s.Allowed != d.Allowed || s.PolicyDigest != d.PolicyDigest || s.ArgumentsDigest != d.ArgumentsDigest ||
			s.PreviousRevision != d.PreviousRevision || s.SOPVersion != d.SOPVersion || len(s.Lineage) != len(d.Lineage) || (s.Blind == "") != (d.Blind == "") {
			t.Fatalf("skimming %q: %+v", b, got.Body)
		}
		e.Body = want.Body
	}
	if !reflect.DeepEqual(e, want) {
		t.Fatalf("skimming %q: %+v", b, got)
	}
}

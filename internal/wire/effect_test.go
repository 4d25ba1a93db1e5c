package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

func TestReportRoundTrip(t *testing.T) {
	for _, r := range []Report{
		{OperationID: "run/step", OK: true},
		{OperationID: "run/step", OK: true, Result: []byte(`{"a":[1,"<"]}`)},
		{OperationID: "run/step"},
		{OperationID: "run/step", Error: "the disk is \"full\"\n"},
	} {
		got, code := DecodeReport(r.Encode())
		if code != "" || got.OperationID != r.OperationID || got.OK != r.OK || !bytes.Equal(got.Result, r.Result) || got.Error != r.Error {
			t.Errorf("%+v became %+v, %s", r, got, code)
		}
	}
	if actions, code := DecodeHello(Hello([]string{"a.b", "c"})); code != "" || strings.Join(actions, " ") != "a.b c" {
		t.Errorf("hello: %q, %s", actions, code)
	}
	if actions, code := DecodeHello(Hello(nil)); code != "" || len(actions) != 0 {
		t.Errorf("an empty hello: %q, %s", actions, code)
	}
}

func TestReportsOfAnyOtherShapeAreRefused(t *testing.T) {
	for _, s := range []string{
		``, `[]`, `{}`, `{"ok":true}`, `{"operation_id":"a"}`, `{"operation_id":"","ok":true}`, `{"operation_id":"a b` + "\t" + `","ok":true}`,
		`{"operation_id":1,"ok":true}`, `{"operation_id":"a","ok":"true"}`, `{"operation_id":"a","ok":null}`, `{"operation_id":"a","ok":true,"result":null}`,
		`{"operation_id":"a","ok":false,"result":1}`, `{"operation_id":"a","ok":true,"error":""}`, `{"operation_id":"a","ok":false,"error":1}`,
		`{"operation_id":"a","ok":true,"x":1}`, `{"operation_id":"a","ok":true,"ok":true}`, `{"operation_id":"a","OK":true}`, `{"operation_id":"a","ok":true}{}`,
		`{"operation_id":"` + strings.Repeat("a", events.OperationIDBytesMax+1) + `","ok":true}`,
	} {
		if r, code := DecodeReport([]byte(s)); code != reason.MalformedRequest {
			t.Errorf("%s: %+v, %q", s, r, code)
		}
	}
	for _, s := range []string{``, `{}`, `{"actions":null}`, `{"actions":"a"}`, `{"actions":[1]}`, `{"actions":["a","a"]}`, `{"actions":["*"]}`, `{"actions":[],"x":1}`} {
		if actions, code := DecodeHello([]byte(s)); code != reason.MalformedRequest {
			t.Errorf("%s: %q, %q", s, actions, code)
		}
	}
	large := make([]string, events.CapabilitiesMax+1)
	for i := range large {
		large[i] = "a" + strings.Repeat("b", i%50) + string(rune('a'+i/50))
	}
	if _, code := DecodeHello(Hello(large)); code != reason.RequestTooLarge {
		t.Errorf("too many actions: %q", code)
	}
	big := (&Report{OperationID: "a", OK: true, Result: []byte(`"` + strings.Repeat("x", ReportMax) + `"`)}).Encode()
	if _, code := DecodeReport(big); code != reason.RequestTooLarge {
		t.Errorf("too large: %q", code)
	}
	if _, code := DecodeReport(big[:ReportMax+1]); code != reason.RequestTooLarge {
		t.Errorf("too large and cut: %q", code)
	}
}

// Whatever is taken says the same when it is written again, and an order that
// is taken is one that the ledger could have sent.
func FuzzEffectMessages(f *testing.F) {
	f.Add((&Report{OperationID: "run/step", OK: true, Result: []byte(`{"a":1}`)}).Encode())
	f.Add((&Report{OperationID: "run/step", Error: "x"}).Encode())
	f.Add(Hello([]string{"a.b"}))
	f.Add((&Exec{OperationID: "run/step", RunID: "run", SOPID: "p", StepID: "step", Agent: "alice", Action: "a.b", Arguments: []byte(`{"a":1}`)}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, code := DecodeReport(b); code == "" {
			again, code := DecodeReport(r.Encode())
			if code != "" || !bytes.Equal(again.Encode(), r.Encode()) || !events.ValidOperationID(r.OperationID) || r.OK && r.Error != "" || !r.OK && r.Result != nil {
				t.Errorf("%q: %+v, again %+v, %s", b, r, again, code)
			}
		}
		if actions, code := DecodeHello(b); code == "" {
			if again, code := DecodeHello(Hello(actions)); code != "" || len(again) != len(actions) || len(actions) > events.CapabilitiesMax {
				t.Errorf("%q: %q, again %q, %s", b, actions, again, code)
			}
		}
		if e, ok := DecodeExec(b); ok {
			again, ok := DecodeExec(e.Encode())
			if !ok || !bytes.Equal(again.Encode(), e.Encode()) || !events.ValidID(e.Agent) || !events.ValidAction(e.Action) {
				t.Errorf("%q: %+v, again %+v", b, e, again)
			}
		}
	})
}

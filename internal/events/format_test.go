package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// names returns the names of an object's members in their order.
func names(t *testing.T, b []byte) []string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	var list []string
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, name.(string))
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// TestFormatDocument: docs/FORMAT.md lists the fields of every type and of the
// envelope, in their order, marks exactly the optional ones, and its example is
// the golden log.
func TestFormatDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	document := string(b)
	section := func(title string) string {
		_, rest, ok := strings.Cut(document, "\n"+title+"\n")
		if !ok {
			t.Errorf("no section %s", title)
		}
		rest, _, _ = strings.Cut(rest, "\n## ")
		rest, _, _ = strings.Cut(rest, "\n### ")
		return rest
	}
	rows := func(title string) (all, required []string) {
		for line := range strings.Lines(section(title)) {
			cells := strings.Split(line, "|")
			if len(cells) < 4 || !strings.HasPrefix(cells[1], " `") {
				continue
			}
			name := strings.Trim(cells[1], " `")
			all = append(all, name)
			if strings.TrimSpace(cells[2]) == "" {
				required = append(required, name)
			}
		}
		return all, required
	}
	for _, typ := range Types() {
		minimal, maximal := encoded(t, bodyCases()[typ].minimal), encoded(t, bodyCases()[typ].maximal)
		all, required := rows("### `" + string(typ) + "`")
		if want := names(t, maximal.Body); !slices.Equal(all, want) {
			t.Errorf("%s: the document has %v, the bytes %v", typ, all, want)
		}
		if want := names(t, minimal.Body); !slices.Equal(required, want) {
			t.Errorf("%s: required in the document %v, in the bytes %v", typ, required, want)
		}
	}
	e := Event{Seq: 2, ID: testID(1), Agent: "a", Cause: 1, Payload: filledHash(1), Body: &AgentRevoked{}}
	full, err := e.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if all, _ := rows("## 2. Envelope"); !slices.Equal(all, names(t, full)) {
		t.Errorf("envelope: the document has %v, the bytes %v", all, names(t, full))
	}
	log, meta := golden()
	for what, text := range map[string]string{
		"genesis": meta.Genesis, "event 2": string(log[1]), "leaf and root": meta.Leaves[1] + "\n" + meta.Roots[1],
		"checkpoint": string(goldenCheckpoint(meta)), "verifier key": meta.VKey,
		"payload": meta.Payloads[2].Salt + "\n" + meta.Payloads[2].Commitment,
	} {
		if !strings.Contains(document, "\n```\n"+strings.TrimSuffix(text, "\n")+"\n```\n") {
			t.Errorf("the example's %s is not that of the golden log", what)
		}
	}
	for _, text := range []string{fmt.Sprint(IntegerMax), "65,535", fmt.Sprintf("more than %d deep", JSONDepthMax), "`" + Format + "`"} {
		if !strings.Contains(document, text) {
			t.Errorf("the document does not say %s", text)
		}
	}
}

// encoded is an event of the body, taken apart.
func encoded(t *testing.T, body Body) (e struct{ Body json.RawMessage }) {
	t.Helper()
	b, err := (&Event{Seq: 2, ID: testID(1), Agent: "a", Body: body}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// seeds are the documents of testdata, good and refused, one by one.
func seeds(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
		for _, part := range SplitFile(file, string(b)) {
			f.Add(part.Text)
		}
	}
}

// Any text is a document or faults with a place inside the text; never both,
// never neither, and the same each time.
func FuzzParseDocument(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text string) {
		doc, faults := ParseDocument(text)
		again, faultsAgain := ParseDocument(text)
		if !reflect.DeepEqual(doc, again) || !reflect.DeepEqual(faults, faultsAgain) {
			t.Fatal("two readings differ")
		}
		if (doc.subject() == "") != (len(faults) > 0) || len(faults) > faultsMax {
			t.Fatalf("document %q with %d faults", doc.subject(), len(faults))
		}
		lines := strings.Split(text, "\n")
		for _, fault := range faults {
			if fault.Line < 1 || fault.Line > len(lines) || fault.Column < 1 || fault.Column > utf8.RuneCountInString(lines[fault.Line-1])+1 {
				t.Fatalf("fault outside the text: %+v", fault)
			}
			if fault.Message == "" || strings.IndexFunc(fault.Message+fault.Excerpt, unsafeRune) >= 0 {
				t.Fatalf("fault that cannot be shown: %+v", fault)
			}
		}
	})
}

// What the reader accepts means to the YAML library what it means to us.
func FuzzReaderAgreesWithLibrary(f *testing.F) {
	seeds(f)
	for _, disputed := range []string{
		"A: {:: }", "A: {0:: a}", "A: {00:A: b}", "...: a", "---x: a", "+_0: 0", "A: |\n 0", "A: |\n 0 ", "A: |\n\n#", "A: b\n  c",
		"A: \"b\n  c\"", `A: "\x4"`, "A:\n-\nB: c", "- - a\n- b", "A: [b\n ,c]", "A: 'b''c' # d", "A: b#c", "A: !b c", "A: 1:30",
	} {
		f.Add(disputed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<10 || strings.Contains(text, "<<") {
			return // the library can take minutes over more, and sees merge keys in any <<
		}
		root, r := read(text)
		if len(r.faults) > 0 || root.kind != mappingKind || repeatsOrLacks(root) {
			return
		}
		agreesWithLibrary(t, text, root.tree())
	})
}

// repeatsOrLacks reports whether a key stands twice or a value is null, which
// ParseDocument refuses and the reader leaves to it.
func repeatsOrLacks(n node) bool {
	keys := map[string]bool{}
	for _, f := range n.fields {
		if keys[f.key.text] || repeatsOrLacks(f.value) {
			return true
		}
		keys[f.key.text] = true
	}
	return n.kind == nullKind || slices.ContainsFunc(n.items, repeatsOrLacks)
}

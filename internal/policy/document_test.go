package policy

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
)

var rewrite = flag.Bool("rewrite", false, "write the faults found into testdata/refused")

// Every refused file has beside it what its author is told: file, line,
// column, fault and fix, all at once.
func TestR60_RefusedFilesNameEveryFault(t *testing.T) {
	files, err := filepath.Glob("testdata/refused/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents, faults := ParseFile(filepath.Base(file), string(b))
		if documents != nil || len(faults) == 0 {
			t.Errorf("%s: %d documents, %d faults", file, len(documents), len(faults))
		}
		var told strings.Builder
		for _, f := range faults {
			fmt.Fprintln(&told, f)
		}
		golden := strings.TrimSuffix(file, ".yaml") + ".txt"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(told.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if told.String() != string(want) {
			t.Errorf("%s is told\n%s\nwant\n%s", file, told.String(), want)
		}
	}
}

// What no file can show: bytes that are no text, and texts over a limit.
func TestR60_UnreadableDocumentsAreRefused(t *testing.T) {
	const head = "kind: Memory\nowner: a\nnamespace: n\nkey: k\nvalue: "
	for _, row := range []struct{ name, text, want string }{
		{"nothing", "", "1:1: the document is empty"},
		{"spaces", "  \n \n", "1:1: the document is empty"},
		{"comments", "# a\n  # b\n", "1:1: the document is empty"},
		{"a mark alone", "---\n", "1:1: the document is empty"},
		{"byte-order mark", "\ufeff" + head + "1\n", "1:1: the document starts with a byte-order mark"},
		{"mark inside", head + "a\ufeffb\n", "5:9: an invisible character"},
		{"UTF-16, little end first", "\xff\xfek\x00i\x00", "1:1: the document is UTF-16"},
		{"UTF-16, big end first", "\xfe\xff\x00k\x00i", "1:1: the document is UTF-16"},
		{"UTF-16 without mark", "k\x00i\x00n\x00d\x00", "1:1: the document is UTF-16"},
		{"bad UTF-8", head + "a\xffb\n", "5:9: not UTF-8"},
		{"a surrogate in UTF-8", head + "\xed\xa0\x80\n", "5:8: not UTF-8"},
		{"NUL", head + "a\x00b\n", "5:9: an invisible character"},
		{"escape sequence", head + "'\x1b[2J'\n", `5:9: an invisible character; write it as \x1b`},
		{"bidirectional override", head + "\"a\u202eb\"\n", `5:10: an invisible character; write it as \u202e`},
		{"line separator", head + "\"a\u2028b\"\n", "5:10: an invisible character"},
		{"tab as indentation", "kind: Policy\nactions:\n\tartifact.save: {}\n", "3:1: a tab"},
		{"tab in a text", head + "a\tb\n", "5:9: a tab"},
		{"carriage return", "kind: Policy\r\nversion: v\r\n", "1:13: a carriage return"},
		{"a space that nobody sees", head + "|\n  a \n", "6:4: a space at the end of the line"},
		{"an empty literal", head + "|\n\n# a\n", "5:8: no text follows"},
		{"an empty literal at the end", head + "|", "5:8: no text follows"},
		{"two documents", "kind: Policy\nversion: v\nenvironment: []\n---\nkind: Agent\n", "4:1: a second document"},
		{"two document marks", "---\n---\nkind: Policy\nversion: v\nenvironment: []\n", "2:1: a second document"},
		{"an end mark", "kind: Policy\nversion: v\nenvironment: []\n...\n", "4:1: a document-end mark"},
		{"too large", head + strings.Repeat("a", events.RequestBytesMax) + "\n", "1:1: the document is larger than 262144 bytes"},
		{"value too large", head + strings.Repeat("a", events.ValueBytesMax-1) + "\n", "5:8: the value is 65537 bytes as JSON"},
		{"flow too deep", head + strings.Repeat("[", 32) + strings.Repeat("]", 32) + "\n", "5:39: nested deeper than 32"},
		{"block too deep", head + strings.Repeat("- ", 40) + "a\n", "5:8: a list item after a key"},
		{"block too deep on lines", head + "\n" + strings.Repeat("- ", 40) + "a\n", "6:63: nested deeper than 32"},
		{"block, far too deep", head + "\n" + strings.Repeat("- ", 100_000) + "a\n", "6:63: nested deeper than 32"},
		{"flow, far too deep", head + strings.Repeat("[", 200_000), "5:39: nested deeper than 32"},
		{"257 capabilities", "kind: Agent\nid: a\ncapabilities: [" + strings.Join(manyNames(257), ", ") + "]\n", "3:15: capabilities has 257 entries; at most 256"},
	} {
		doc, faults := ParseDocument(row.text)
		if !reflect.DeepEqual(doc, Document{}) || len(faults) == 0 {
			t.Errorf("%s: %+v and %d faults", row.name, doc, len(faults))
			continue
		}
		if got := fmt.Sprintf("%d:%d: %s", faults[0].Line, faults[0].Column, faults[0].Message); !strings.HasPrefix(got, row.want) {
			t.Errorf("%s: %s\nwant %s", row.name, got, row.want)
		}
		if _, err := Load([]byte(row.text)); err == nil {
			t.Errorf("%s: loaded", row.name)
		}
	}
}

func manyNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("a%d", i))
	}
	return names
}

func TestLimitsAreTheLastThatPass(t *testing.T) {
	const head = "kind: Memory\nowner: a\nnamespace: n\nkey: k\nvalue: "
	for name, text := range map[string]string{
		"value":           head + strings.Repeat("a", events.ValueBytesMax-2) + "\n",
		"depth":           head + strings.Repeat("[", 31) + strings.Repeat("]", 31) + "\n",
		"integers":        head + "[9007199254740991, -9007199254740991, 0]\n",
		"256 capabilites": "kind: Agent\nid: a\ncapabilities: [" + strings.Join(manyNames(256), ", ") + "]\n",
	} {
		if _, faults := ParseDocument(text); len(faults) > 0 {
			t.Errorf("%s: %s", name, faults[0].Message)
		}
	}
}

// What would take a reader minutes, or gigabytes, or its stack, takes ours
// about as long as any text of that size.
func TestReaderIsLinearInTheText(t *testing.T) {
	const n = events.RequestBytesMax - 64
	many := func(unit string) string { return strings.Repeat(unit, n/len(unit)) }
	var keys strings.Builder
	for i := 0; keys.Len() < n-16; i++ {
		fmt.Fprintf(&keys, " k%d: 1\n", i)
	}
	for name, text := range map[string]string{
		"empty lines after |": "a: |\n x" + many("\n"),
		"empty items":         "a:\n" + many("- \n"),
		"keys without values": "a: {" + many("a: ,"),
		"keys":                "a:\n" + keys.String(),
		"spaces in quotes":    `a: "` + many(" ") + `"`,
		"open lists":          "a: " + many("["),
		"closed lists":        "a: [" + many("[],") + "]",
		"open items":          many("- "),
		"anchors":             "a: " + many("&a "),
		"tags":                many("! "),
		"aliases":             "a: [" + many("*a,"),
		"colons":              "a: " + many(": "),
		"colons in a list":    "a: [" + many("b:,"),
		"comments":            many("#\n"),
		"quotes":              many(`"`),
		"single quotes":       "a: '" + many("''"),
		"backslashes":         `a: "` + many(`\`),
		"keys on keys":        many("a: "),
		"many faults":         "a: [" + many("@ ,"),
		"deep staircase":      staircase(n),
	} {
		if root, r := read(text); root.kind == badKind && len(r.faults) == 0 {
			t.Errorf("%s: neither read nor refused", name)
		}
		if _, faults := ParseDocument("kind: Memory\nvalue:\n " + text); len(faults) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
}

func staircase(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n-1024; i++ {
		fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
	}
	return b.String()
}

func parseLab(t testing.TB) (string, []Document) {
	t.Helper()
	b, err := os.ReadFile("testdata/good/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents, faults := ParseFile("lab.yaml", string(b))
	for _, f := range faults {
		t.Error(f)
	}
	return string(b), documents
}

func TestWorkedCaseIsReadWhole(t *testing.T) {
	text, documents := parseLab(t)
	all := NewSet("memory.read", "memory.write", "document.summarize", "artifact.save", "external.upload")
	part, _, _ := strings.Cut(text, "---\n")
	want := []any{
		&Policy{
			Version: "lab-1", Digest: sha256.Sum256([]byte(part)), Environment: all,
			Actions:    map[string]Action{"document.summarize": {}, "artifact.save": {}, "external.upload": {}},
			Namespaces: []NamespaceRule{{Name: "credentials", Class: Secret}, {Name: "policy", Class: Mandatory, Combine: AllTrue}},
			TreeDepth:  16, Children: 256,
		},
		&Agent{ID: "report_manager", Capabilities: all},
		&Agent{ID: "researcher", Parent: "report_manager", Capabilities: all.Minus(NewSet("external.upload"))},
		&Agent{ID: "formatter", Parent: "researcher", Capabilities: NewSet("memory.read", "artifact.save")},
		&Memory{"report_manager", "project", "client_region", "descendants", []byte(`"EU"`)},
		&Memory{"report_manager", "policy", "external_upload", "descendants", []byte(`false`)},
		&Memory{"report_manager", "report", "retention_days", "descendants", []byte(`30`)},
		&Memory{"report_manager", "credentials", "storage_token", "private", []byte(`"synthetic-placeholder"`)},
		&Principal{ID: "tools", Role: "handler", Actions: NewSet("document.summarize", "artifact.save")},
	}
	for i, doc := range documents {
		if got := content(doc); !reflect.DeepEqual(got, want[i]) {
			t.Errorf("document %d is %+v\nwant %+v", i+1, got, want[i])
		}
	}
	if len(documents) != len(want) {
		t.Errorf("%d documents, want %d", len(documents), len(want))
	}
}

// content is what a document says.
func content(doc Document) any {
	switch {
	case doc.Policy != nil:
		return doc.Policy
	case doc.Agent != nil:
		return doc.Agent
	case doc.Memory != nil:
		return doc.Memory
	}
	return doc.Principal
}

func TestValuesKeepTheirKind(t *testing.T) {
	for _, row := range [][2]string{
		{"no", `"no"`}, {"yes", `"yes"`}, {"on", `"on"`}, {"y", `"y"`}, {"Off", `"Off"`},
		{"true", `true`}, {"false", `false`}, {`"true"`, `"true"`}, {"'null'", `"null"`},
		{"30", `30`}, {"-1", `-1`}, {"0", `0`}, {`"30"`, `"30"`}, {"'007'", `"007"`}, {`"1.5"`, `"1.5"`},
		{"EU", `"EU"`}, {"10m", `"10m"`}, {"1.2.3", `"1.2.3"`}, {"2026-11-29", `"2026-11-29"`}, {"0xzz", `"0xzz"`}, {"-x", `"-x"`},
		{"http://x/y#z", `"http://x/y#z"`}, {"a b # c", `"a b"`}, {"'it''s'", `"it's"`}, {`"a\tb\u00e9"`, `"a` + `\t` + `bé"`},
		{"[]", `[]`}, {"{}", `{}`}, {"[a, [1, true], {b: c,},]", `["a",[1,true],{"b":"c"}]`},
		{`{"b":1, "a":2, "\ud83d\ude00": 3, "\uff5e": 4}`, `{"a":2,"b":1,"😀":3,"～":4}`},
		{"|\n  a\n   b\n\n  c\n\n", `"a\n b\n\nc\n"`}, {"|-\n  a\n  # b\n", `"a\n# b"`},
		{"\n  a: 1\n  b:\n  - x\n  - y: z\n    w: 2\n", `{"a":1,"b":["x",{"w":2,"y":"z"}]}`},
		{"\n- - 1\n  - 2\n- 3\n", `[[1,2],3]`},
		{"''", `""`}, {`"\u202e"`, `"` + "\u202e" + `"`},
	} {
		doc, faults := ParseDocument("kind: Memory\nowner: a\nnamespace: n\nkey: k\nvalue: " + row[0] + "\nvisibility: children\n")
		if len(faults) > 0 {
			t.Errorf("%q: %s", row[0], faults[0])
			continue
		}
		if string(doc.Memory.Value) != row[1] || doc.Memory.Visibility != "children" {
			t.Errorf("%q is %s, %s; want %s", row[0], doc.Memory.Value, doc.Memory.Visibility, row[1])
		}
	}
}

func TestALastLineWithoutLineFeedHasNone(t *testing.T) {
	const head = "kind: Memory\nowner: a\nnamespace: n\nkey: k\nvalue: "
	for text, want := range map[string]string{"|\n a": `"a"`, "|\n a\n": `"a\n"`, "|\n a\n ": `"a\n"`, "|-\n a\n": `"a"`} {
		doc, faults := ParseDocument(head + text)
		if len(faults) > 0 || string(doc.Memory.Value) != want {
			t.Errorf("%q: %v, want %s", text, faults, want)
		}
	}
}

// The digest is that of the bytes as sent, whatever they mean.
func TestR63_DigestIsOfTheBytesSent(t *testing.T) {
	a := "kind: Policy\nversion: v\nenvironment: []\n"
	b := a + "# a remark\n"
	first, second, again := mustPolicy(t, a), mustPolicy(t, b), mustPolicy(t, a)
	if first.Digest != sha256.Sum256([]byte(a)) || second.Digest != sha256.Sum256([]byte(b)) {
		t.Error("a digest is not SHA-256 of the bytes")
	}
	if first.Digest != again.Digest || first.Digest == second.Digest {
		t.Error("digests do not tell texts apart")
	}
}

// Comments, line breaks and the two ways of writing collections change the
// digest and nothing else.
func TestSpellingDoesNotChangeWhatAPolicySays(t *testing.T) {
	spellings := []string{
		"kind: Policy\nversion: v\nenvironment: [memory.read, artifact.save]\nactions: {artifact.save: {}}\nnamespaces: {credentials: {class: secret}}\n",
		"# first\n---\nnamespaces:\n  credentials: # a comment\n    class: secret\n\nactions:\n  artifact.save: {\n    # nothing\n    }\nenvironment:\n- artifact.save\n\n# between\n- memory.read\nversion: 'v'\nkind: \"Policy\"",
		"{\"version\": \"v\", \"environment\":\n [\"memory.read\"\n  # why\n  , \"artifact.save\"],\n \"actions\": {\"artifact.save\":{}}, \"namespaces\": {credentials: {class: secret}}, kind: Policy}\n",
		"kind:\n  Policy\nversion:\n      v\nenvironment: [\n  memory.read,\n  artifact.save,\n]\nactions:\n  artifact.save:\n    {}\nnamespaces:\n     credentials: {class:\n      secret}\n",
	}
	want := mustPolicy(t, spellings[0])
	for _, text := range spellings[1:] {
		got := mustPolicy(t, text)
		if got.Digest == want.Digest {
			t.Errorf("%q has the digest of another text", text)
		}
		got.Digest = want.Digest
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q says %+v\nwant %+v", text, got, want)
		}
	}
}

// The order of documents in a file, and how its lines end, change no document
// and no digest.
func TestOrderOfDocumentsDoesNotMatter(t *testing.T) {
	text, documents := parseLab(t)
	want := map[string]any{}
	for _, doc := range documents {
		want[doc.subject()] = content(doc)
	}
	parts := strings.Split(text, "---\n")
	rapid.Check(t, func(t *rapid.T) {
		shuffled := strings.Join(rapid.Permutation(parts).Draw(t, "parts"), rapid.SampledFrom([]string{"---\n", "---  # next\n", "\n\n---\n\n"}).Draw(t, "mark"))
		if !strings.HasPrefix(shuffled, parts[0]) {
			shuffled = "apiVersion: ledgerd/v1\n" + shuffled
		}
		if rapid.Bool().Draw(t, "CRLF") {
			shuffled = strings.ReplaceAll(shuffled, "\n", "\r\n")
		}
		got, faults := ParseFile("lab.yaml", strings.TrimRight(shuffled, "\r\n"))
		if len(faults) > 0 {
			t.Fatal(faults[0])
		}
		for _, doc := range got {
			if doc.subject() == "" || !reflect.DeepEqual(content(doc), want[doc.subject()]) {
				t.Fatalf("%s is %+v\nwant %+v", doc.subject(), content(doc), want[doc.subject()])
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d documents, want %d", len(got), len(want))
		}
	})
}

func TestSplitFileKeepsPlaces(t *testing.T) {
	text := "# head\n\nkind: A\n\n---\n\n\n---\n# only a comment\n--- # remark\n  kind: B\n---x: y\n--- z\n"
	want := []Part{
		{"f", 0, "# head\n\nkind: A\n"},
		{"f", 10, "  kind: B\n---x: y\n--- z\n"},
	}
	if got := SplitFile("f", text); !reflect.DeepEqual(got, want) {
		t.Errorf("parts %+v\nwant  %+v", got, want)
	}
	lines := strings.Split(text, "\n")
	for _, part := range want {
		if first, _, _ := strings.Cut(part.Text, "\n"); lines[part.Line] != first {
			t.Errorf("line %d of the file is %q, not %q", part.Line+1, lines[part.Line], first)
		}
	}
}

func userKey(t testing.TB) (public, seed string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err = pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return public, string(secret)
}

func TestR12_PublicKeysHaveOneSpelling(t *testing.T) {
	key, seed := userKey(t)
	if !ValidPublicKey(key) {
		t.Fatalf("%s is refused", key)
	}
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := account.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(key)
	if flipped[20]++; flipped[20] == 'Z'+1 || flipped[20] == '7'+1 {
		flipped[20] = 'A'
	}
	for _, bad := range []string{"", seed, foreign, strings.ToLower(key), key + "\n", key[:55], key[:55] + "\n", key + "=", " " + key[1:], string(flipped)} {
		if ValidPublicKey(bad) {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestFaultsShowNothingThatATerminalObeys(t *testing.T) {
	_, faults := ParseDocument("kind: \x1b]0;owned\x07\u202e\n" + strings.Repeat("x", 300) + ": \x1b[31m\n")
	for _, f := range faults {
		if strings.IndexFunc(f.String(), unsafeRune) >= 0 {
			t.Errorf("%q", f.String())
		}
	}
	if len(faults) != 2 || !strings.HasPrefix(faults[1].Excerpt, cut) || len([]rune(faults[1].Excerpt)) > 2+excerptRune {
		t.Errorf("faults %+v", faults)
	}
}

func TestDidYouMeanNamesOnlyWhatIsNear(t *testing.T) {
	candidates := []string{"version", "environment", "actions", "limits", "id"}
	for word, want := range map[string]string{
		"verison": "version", "Version": "version", "enviroment": "environment", "action": "actions", "limit": "limits",
		"Id": "id", "x": "", "completely": "", "": "", "xx": "",
	} {
		got := didYouMean(word, candidates)
		if want == "" && got != "" || want != "" && !strings.Contains(got, strconv.Quote(want)) {
			t.Errorf("%q suggests %q, want %q", word, got, want)
		}
	}
}

// A fault is shown on a terminal and told in a reply: no seed and no value of a
// record is part of it.
func TestFaultsShowNoSeedAndNoValue(t *testing.T) {
	const canary, seed = "canary-5b1f", "SUABIRFWLWELR6OFOEHPO2TUQKXLGTCTVKZJHLGEZL7BJJIHZGS7A56CXQ"
	head := "kind: Memory\nowner: boss\nnamespace: notes\nkey: a\n"
	for name, text := range map[string]string{
		"seed as key":   "kind: Agent\nid: boss\ncapabilities: []\npublic_key: " + seed + "\n",
		"seed as id":    "kind: Agent\nid: " + seed + "\ncapabilities: []\n",
		"seed as name":  "kind: Agent\nid: boss\ncapabilities: []\n" + seed + ": x\n",
		"seed in flow":  "{kind: Agent, id: boss, capabilities: [" + seed + "]}\n",
		"after value":   head + "value: {token: " + canary + ", none: null}\n",
		"flow document": "{kind: Memory, owner: boss, namespace: notes, key: a, value: " + canary + ", colour: red}\n",
		"quoted name":   "{\"kind\": \"Memory\", \"owner\": \"boss\", \"value\": \"" + canary + "\", \"colour\": \"red\"}\n",
		"under value":   head + "value:\n  a:\n    token: " + canary + " # \x01\n    none: null # " + canary + "\n",
		"a number":      head + "value: 5.1234567\n",
		"numbers":       head + "value:\n  - 05.1234567\n",
		"in a list":     head + "value:\n  - " + canary + "\n  - [null, " + canary + "]\n",
	} {
		_, faults := ParseDocument(text)
		if len(faults) == 0 {
			t.Errorf("%s: no fault", name)
		}
		for _, f := range faults {
			if s := f.String(); strings.Contains(s, canary) || strings.Contains(s, seed[:20]) || strings.Contains(s, "5.1234567") {
				t.Errorf("%s: %s", name, s)
			}
		}
	}
	shown := ""
	for _, f := range mustFault(t, head+"value: 1\nnote: "+canary+"\n") {
		shown += f.String()
	}
	if !strings.Contains(shown, canary) {
		t.Errorf("what follows a value on lines of its own is hidden too: %s", shown)
	}
}

func mustFault(t *testing.T, text string) []Fault {
	t.Helper()
	_, faults := ParseDocument(text)
	if len(faults) == 0 {
		t.Fatalf("no fault in %q", text)
	}
	return faults
}

// What cannot be read hides nothing but itself: a line that is no YAML at the
// end of each document leaves every other fault told, save that a key might
// stand on it.
func TestR60_AFaultOfALineHidesNoOther(t *testing.T) {
	files, _ := filepath.Glob("testdata/refused/*.yaml")
	kept := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range SplitFile(file, string(b)) {
			_, before := parse(part.Text)
			_, after := parse(part.Text + "@\n")
			for _, f := range before {
				at := func(g Fault) bool { return g.Line == f.Line && g.Message == f.Message }
				if slices.ContainsFunc(after, at) {
					kept++
				} else if !strings.Contains(f.Message, " is missing in this ") && !strings.Contains(f.Message, "not declared in actions") {
					t.Errorf("%s: behind a line that cannot be read this is not told: %v", file, f)
				}
			}
		}
	}
	if kept < 100 {
		t.Errorf("only %d faults were compared", kept)
	}
}

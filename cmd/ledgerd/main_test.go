package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
)

func ledgerd(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, func(string) string { return "" }, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// CASES 183: no text, whatever is in it, reaches a terminal as anything but
// printable characters on one line, and no two texts look alike.
func TestCleanTextIsHarmlessAndUnambiguous(t *testing.T) {
	shown := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		c := clean(s)
		for _, r := range c {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q is shown as %q, which holds %U", s, c, r)
			}
		}
		if other, ok := shown[c]; ok && other != s {
			t.Fatalf("%q and %q are both shown as %s", s, other, c)
		}
		shown[c] = s
	})
	for s, want := range map[string]string{
		"plain text, ü 한 \"quoted\"": "plain text, ü 한 \"quoted\"",
		"a\nb\x1b[2J":                `a\nb\x1b[2J`,
		"\u202etxt.exe":              `\u202etxt.exe`,
		`\u202e`:                     `\\u202e`,
		"\u200b\u00a0\xff":           `\u200b\u00a0\xff`,
	} {
		if got := clean(s); got != want {
			t.Errorf("%q is shown as %s, want %s", s, got, want)
		}
	}
}

// JSON and YAML say exactly what the ledger said, harmlessly.
func TestFormatsAreHarmlessAndSayTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.String())).Draw(t, "value")
		raw, err := json.Marshal(map[string]any{"a": texts, "n": json.Number("1.50"), "none": nil, "yes": true, "empty": map[string]int{}, "list": []int{}})
		if err != nil {
			t.Fatal(err)
		}
		var plain []byte // with nothing escaped that need not be
		if v, err := events.ParseJSON(raw); err == nil {
			plain = v.AppendCanonical(nil)
		} else {
			plain = raw
		}
		y, err := yamlOf(plain)
		if err != nil {
			t.Fatal(err)
		}
		j := safeJSON(plain)
		for name, b := range map[string][]byte{"json": j, "yaml": y} {
			for _, r := range string(b) {
				if !unicode.IsPrint(r) && r != '\n' {
					t.Fatalf("%s holds %U: %q", name, r, b)
				}
			}
		}
		var want, fromJSON, fromYAML any
		if err := errors.Join(json.Unmarshal(plain, &want), json.Unmarshal(j, &fromJSON), yaml.Unmarshal(y, &fromYAML)); err != nil {
			t.Fatalf("%v\n%s", err, y)
		}
		again, err := json.Marshal(fromYAML)
		if err != nil {
			t.Fatal(err)
		}
		var normal any
		if err := json.Unmarshal(again, &normal); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, fromJSON) || !reflect.DeepEqual(want, normal) {
			t.Fatalf("%s\njson %s\nyaml\n%s", plain, j, y)
		}
	})
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	a := &app{env: func(string) string { return "" }}
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		for _, sub := range cmd.Commands() {
			walk(sub, append(path[:len(path):len(path)], sub.Name()))
		}
		if cmd.Short == "" || !cmd.HasSubCommands() && !strings.Contains(cmd.Example, "ledgerd ") {
			t.Errorf("%v lacks a short text or an example", path)
		}
		code, stdout, stderr := ledgerd(t, append(path, "--help")...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("%v --help: exit %d, stderr %q", path, code, stderr)
		}
		if !cmd.HasSubCommands() {
			if code, stdout, _ := ledgerd(t, append(path, "--no-such-flag")...); code != exitUsage || stdout != "" {
				t.Errorf("%v --no-such-flag: exit %d, stdout %q", path, code, stdout)
			}
		}
	}
	root := a.root()
	for _, name := range laterCommands {
		for _, cmd := range root.Commands() {
			if cmd.Name() == name {
				t.Errorf("%s is here and called a later command", name)
			}
		}
	}
	walk(root, nil)
}

func TestEveryDenialHasItsExitCode(t *testing.T) {
	for _, info := range reason.All() {
		if info.Allowed {
			continue
		}
		if got := exitCode(denial(info.Code)); got != info.Exit || got == 0 {
			t.Errorf("%s exits with %d, want %d", info.Code, got, info.Exit)
		}
	}
	if got := exitCode(denial("a_code_of_tomorrow")); got == 0 {
		t.Error("an unknown denial exits with 0")
	}
}

func TestKeyIsAddedAndNothingElseChanged(t *testing.T) {
	public, err := throwawayKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"block":    {"kind: Agent\nid: a\ncapabilities: []\n", "kind: Agent\nid: a\ncapabilities: []\npublic_key: KEY\n"},
		"comments": {"# who\nkind: Agent # what\nid: a\ncapabilities: []\n# end\n", "# who\nkind: Agent # what\nid: a\ncapabilities: []\n# end\npublic_key: KEY\n"},
		"indented": {"  kind: Agent\n  id: a\n  capabilities: []\n", "  kind: Agent\n  id: a\n  capabilities: []\n  public_key: KEY\n"},
		"flow":     {"{kind: Agent, id: a, capabilities: []}\n", "{kind: Agent, id: a, capabilities: [], public_key: KEY}\n"},
		"handler":  {"kind: Principal\nid: p\nrole: handler\nactions:\n- x.y\n", "kind: Principal\nid: p\nrole: handler\nactions:\n- x.y\npublic_key: KEY\n"},
	} {
		if _, faults := policy.ParseDocument(c.text); len(faults) > 0 {
			t.Fatalf("%s: %v", name, faults)
		}
		got, err := policy.WithKey(c.text, public)
		if want := strings.ReplaceAll(c.want, "KEY", public); err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	if _, err := policy.WithKey("kind: Policy\n", public); err == nil {
		t.Error("a key was added to a Policy")
	}
}

func TestKeyFilesAreMadeOnceForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "creds")
	first, err := (&keyring{dir: dir}).key("alice")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "alice.nk"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	if again, err := (&keyring{dir: dir}).key("alice"); err != nil || again != first {
		t.Errorf("the second call gives %s, %v, want %s", again, err, first)
	}
	if !policy.ValidPublicKey(first) {
		t.Errorf("%s is no public key", first)
	}
	var wg sync.WaitGroup
	got := make([]string, 16)
	for i := range got {
		wg.Go(func() { got[i], _ = (&keyring{dir: dir}).key("bob") })
	}
	wg.Wait()
	for _, key := range got {
		if key == "" || key != got[0] {
			t.Errorf("racing callers got %q", got)
			break
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%d files, want 2: %v", len(entries), err)
	}
	for _, id := range []string{"", "..", "../x", "a/b", "A", "all"} {
		if _, err := (&keyring{dir: dir}).key(id); err == nil {
			t.Errorf("a key was made for %q", id)
		}
	}
	for name, content := range map[string]string{"empty": "", "text": "not a seed\n", "account": "SAANDLKMXL6CUS3CP52WIXBEDN6YJ545GDKC65U5JZPPV6WH6ESWUA6YAI\n"} {
		path := filepath.Join(dir, name+".nk")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (&keyring{dir: dir}).key(name); exitCode(err) != exitUsage {
			t.Errorf("%s: %v", name, err)
		} else if b, _ := os.ReadFile(path); string(b) != content {
			t.Errorf("%s: the file was overwritten", name)
		}
	}
}

func TestWriteOnceNeverReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := writeOnce(path, []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := writeOnce(path, []byte("b")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the second write: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "a" {
		t.Errorf("file holds %q", b)
	}
	if err := writeOver(path, []byte("c")); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "c" {
		t.Errorf("file holds %q", b)
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "17": 17, "256MiB": 256 << 20, "1KiB": 1 << 10, "2GiB": 2 << 30, "1TiB": 1 << 40} {
		if got, err := parseBytes(s); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "1.5GiB", "1MB", "1 GiB", "99999999999TiB", "18446744073709551616"} {
		if got, err := parseBytes(s); err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}

func TestJSONFaultsAreTold(t *testing.T) {
	b := []byte("{\"a\": 1,\n \"ü\": 1, \"b\": nope}")
	_, err := events.ParseJSON(b)
	if got := placed(b, err).Error(); !strings.HasPrefix(got, "2:15: ") {
		t.Errorf("%s, want line 2, column 15", got)
	}
}

func TestValuesOnTheCommandLine(t *testing.T) {
	for _, c := range []struct {
		arg  string
		text bool
		want string
	}{
		{"EU", false, `"EU"`}, {"30", false, `30`}, {"30", true, `"30"`}, {`"30"`, false, `"30"`}, {"true", false, `true`},
		{`{"b":1, "a":[1.50]}`, false, `{"a":[1.50],"b":1}`}, {"", false, `""`}, {"null", true, `"null"`}, {"trueish", false, `"trueish"`},
		{`{"a":1,"a":2}`, true, `"{\"a\":1,\"a\":2}"`}, {"9007199254740991", false, "9007199254740991"},
	} {
		if got, err := value(c.arg, c.text); err != nil || string(got) != c.want {
			t.Errorf("%q is sent as %s, %v, want %s", c.arg, got, err, c.want)
		}
	}
	for _, arg := range []string{`{"a":1,"a":2}`, "9007199254740993", "{a: 1}", "[1,", `"open`, "-", "2024-01-01", " {", "null", " null "} {
		if got, err := value(arg, false); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--text") {
			t.Errorf("%q is sent as %s, %v", arg, got, err)
		}
	}
}

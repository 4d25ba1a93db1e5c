package natsapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/wire"
)

var update = flag.Bool("update", false, "rewrite the replies in docs/API.md")

// placeholders stand in the document for what differs from run to run.
var placeholders = []struct {
	was  *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`"(event_id)":"[0-9a-f-]{36}"`), `"$1":"01a2298d-e241-727b-9fa8-c4bc082473e3"`},
	{regexp.MustCompile(`"(run_id|resource)":"[0-9a-f-]{36}"`), `"$1":"01a2298d-e241-727b-9fa8-c4bc082473e4"`},
	{regexp.MustCompile(`"(hash|leaf)":"[0-9a-f]{64}"`), `"$1":"31385a56e7ccb3262febd5d34f6f8e17b1638366bb291cb666798234637ae28d"`},
	{regexp.MustCompile(`"(seq|next|head|under|before|placed)":[0-9]+`), `"$1":17`},
	{regexp.MustCompile(`"to":[0-9]+`), `"to":17`},
	{regexp.MustCompile(`"tlog_proof":"(?:[^"\\]|\\.)*"`), `"tlog_proof":"c2sp.org/tlog-proof@v1\nindex 0\n<hash, base64>\n…\n\n<checkpoint>"`},
	{regexp.MustCompile(`"rotations":"(?:[^"\\]|\\.)*"`), `"rotations":"c2sp.org/tlog-proof@v1\nextra <event 1, base64>\nindex 0\n<hash, base64>\n…\n\n<checkpoint>…"`},
	{regexp.MustCompile(`"(time|expires)":"[^"]+"`), `"$1":"2026-11-29T20:31:07.114203Z"`},
	{regexp.MustCompile(`"(public_key)":"U[A-Z0-9]{55}"`), `"$1":"<U…>"`},
	{regexp.MustCompile(`"events":\[".*"\]`), `"events":["{\"v\":1,\"seq\":1,…}"]`},
	{regexp.MustCompile(`"hashes":\[[^\]]*\]`), `"hashes":["<64 hex>","<64 hex>"]`},
	{regexp.MustCompile(`"checkpoint":"(?:[^"\\]|\\.)*"`), `"checkpoint":"<origin>\n17\n<root, base64>\n\n— <origin> <signature>\n"`},
}

func normalise(b []byte) string {
	s := string(b)
	for _, p := range placeholders {
		s = p.was.ReplaceAllString(s, p.with)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(s), "", "  "); err != nil {
		return s
	}
	return out.String()
}

// TestR92_TheDocumentIsTrue sends every request of docs/API.md and compares
// every reply; all operations, queries and rights stand there.
func TestR92_TheDocumentIsTrue(t *testing.T) {
	const path = "../../docs/API.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := openFrontWithout(t)
	key := regexp.MustCompile(`<key of ([a-z0-9_-]+)>`)
	sent := map[string]bool{}
	run, runID := "", regexp.MustCompile(`"run":{"run_id":"([^"]+)"`)
	example := regexp.MustCompile("(?s)(```json request (\\S+) (\\S+)\n(.*?)\n```\n\n```json reply\n)(.*?)(```)")
	text := example.ReplaceAllStringFunc(string(b), func(block string) string {
		m := example.FindStringSubmatch(block)
		body := key.ReplaceAllStringFunc(m[4], func(s string) string { return f.key(key.FindStringSubmatch(s)[1]) })
		body = strings.ReplaceAll(body, "<the run>", run)
		lane, operation, _ := strings.Cut(m[3], ".")
		sent[m[3]] = true
		r := f.send(m[2], "gov.main."+lane+"."+m[2]+"."+operation, []byte(body), nil)
		if admitted := runID.FindStringSubmatch(r.Text); admitted != nil {
			run = admitted[1]
		}
		return m[1] + normalise([]byte(r.Text)) + "\n" + m[6]
	})
	marks := regexp.MustCompile(`(?s)<!-- permissions -->\n.*?<!-- end -->`)
	text = marks.ReplaceAllLiteralString(text, "<!-- permissions -->\n"+permissions()+"<!-- end -->")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != string(b) {
		t.Errorf("docs/API.md is not what ledgerd does: run this test with -update and read the difference\n%s", difference(string(b), text))
	}
	for lane, names := range map[string][]string{"propose": wire.Operations(wire.Propose), "control": wire.Operations(wire.Control), "query": wire.Queries()} {
		for _, name := range names {
			if !sent[lane+"."+name] {
				t.Errorf("%s %s stands not in docs/API.md", lane, name)
			}
		}
	}
}

func permissions() string {
	var b strings.Builder
	b.WriteString("| role | account | publish | subscribe |\n|---|---|---|---|\n")
	for _, who := range []natsapi.Identity{
		{ID: "a", Role: natsapi.RoleAgent}, {ID: "a", Role: natsapi.RoleHandler, Actions: []string{"artifact.save"}},
		{ID: "a", Role: natsapi.RoleRegistrar}, {ID: "a", Role: natsapi.RoleApprover, Groups: []string{"security"}},
		{ID: "a", Role: natsapi.RoleObserver}, {ID: "a", Role: natsapi.RoleObserver, Root: "b"}, {ID: "a", Role: natsapi.RoleAuditor},
		{ID: "a", Role: natsapi.RoleAdmin},
	} {
		role := who.Role
		if who.Root != "" {
			role += " with a root"
		}
		r := natsapi.Permissions("main", who)
		cell := func(list []string) string {
			list = slices.Sorted(slices.Values(list))
			return "`" + strings.Join(list, "` `") + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", role, r.Account, cell(r.Publish), cell(r.Subscribe))
	}
	return b.String()
}

// difference shows the first line that differs.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d\n  there: %s\n  here:  %s", i+1, x[i], y[i])
		}
	}
	return "one is longer"
}

package policy

import (
	"reflect"
	"strings"
	"testing"
)

// R60: every refused file says where and what, and how to mend it; all faults
// at once. want is one piece of each message, in the order of their places.
func TestR60_RefusedFilesSayWhereAndHow(t *testing.T) {
	const head = "apiVersion: ledgerd/v1\nkind: Policy\n"
	const good = head + "version: v1\nenvironment: []\n"
	for name, c := range map[string]struct {
		text string
		want []string // line:column: and a piece of the message
	}{
		"nothing":            {"", []string{"1:1: the file holds no document"}},
		"comments only":      {"# a\n---\n# b\n", []string{"1:1: the file holds no document"}},
		"no kind":            {"apiVersion: ledgerd/v1\n", []string{"1:1: kind is missing"}},
		"no version of ours": {"kind: Agent\nid: a\ncapabilities: []\n", []string{"1:1: the first document of a file says apiVersion"}},
		"another kind":       {"apiVersion: ledgerd/v1\nkind: Polcy\n", []string{`2:7: kind cannot be "Polcy"; it is Policy`}},
		"missing fields":     {head, []string{"1:1: version is missing", "1:1: environment is missing"}},
		"unknown field":      {good + "enviroment: []\n", []string{`5:1: unknown key "enviroment" in a Policy; did you mean "environment"?`}},
		"a field twice":      {good + "version: v2\n", []string{`5:1: key "version" stands twice, first 2 lines above; keep one`}},
		"null":               {head + "version: v1\nenvironment: ~\n", []string{"4:14: "}},
		"a float":            {good + "limits: {tree_depth: 1.5}\n", []string{"5:22: "}},
		"too large a number": {good + "limits: {tree_depth: 9223372036854775808}\n", []string{"5:22: "}},
		"no action":          {head + "version: v1\nenvironment: [x.one]\n", []string{`4:15: "x.one" is not declared in actions`}},
		"an anchor":          {good + "actions: &a {}\n", []string{"5:10: "}},
		"a tag":              {good + "actions: !!map {}\n", []string{"5:10: "}},
		"a tab":              {good + "actions:\n\tx.one: {}\n", []string{"6:1: "}},
		"no requirements":    {good + "actions:\n  x: {require: []}\n", []string{"6:16: require is empty; leave it out"}},
		"faults of requirements": {good + "actions:\n  x:\n    arguments: {type: object, properties: {a: {type: string}}}\n    require:\n    - {id: a, that: 'args.b == \"x\"'}\n" +
			"    - {id: a, that: 'args.a == 1'}\n    - {id: c, when: 'true'}\n    - {id: d e, that: 'args.a'}\n", []string{
			`9:21: character 5: undefined field 'b'`, `10:12: "a" stands twice`, `10:21: character 8: found no matching overload`,
			`11:7: that is missing`, `11:15: unknown key "when" in a requirement`, `12:12: `, `12:23: a clause is true or false, not string`,
		}},
		"faults of restrictions": {good + "---\nkind: Agent\nid: a\ncapabilities: []\nrestrictions:\n- {id: r, action: X, require: 'true'}\n- {id: r, action: x}\n", []string{
			`10:19: `, `11:3: require is missing`, `11:8: "r" stands twice`,
		}},
		"a restriction against the file's policy": {
			good + "actions:\n  x.one: {arguments: {type: object, properties: {n: {type: integer}}}}\n---\nkind: Agent\nid: a\ncapabilities: [x.one]\nrestrictions:\n- {id: s, action: x.one, require: 'args.m > 1'}\n- {id: r, action: x.onw, require: 'true'}\n",
			[]string{`12:35: character 5: undefined field 'm'`, `13:35: action "x.onw" of restriction r is not declared; did you mean "x.one"?`},
		},
		"a value against the file's policy": {
			good + "namespaces:\n  report.days: {value: {type: integer, maximum: 365}}\n  desk: {class: mandatory, combine: all_true}\n---\nkind: Memory\nowner: a\nnamespace: report\nkey: days\nvalue: 400\n---\nkind: Memory\nowner: a\nnamespace: desk\nkey: open\nvalue: secret-text\n",
			[]string{`13:8: the value rule of report.days does not take this value of report.days: it breaks /maximum, which says 365`, `19:8: desk.open is mandatory with combine: all_true, which takes another type`},
		},
		"byte-order mark": {"\ufeff" + good, []string{"1:1: "}},
		"no text":         {good + "# \xff\n", []string{"5:3: not UTF-8; save"}},
		"of two documents": {good + "---\nkind: Agent\nid: A\ncapabilities: 7\n---\nkind: Memory\nowner: a\n", []string{
			"7:5: ", "8:15: capabilities is a list", "10:1: namespace is missing", "10:1: key is missing", "10:1: value is missing",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			documents, faults := ParseFile("p.yaml", c.text)
			if documents != nil || len(faults) != len(c.want) {
				t.Fatalf("%d documents, faults:\n%s", len(documents), all(faults))
			}
			for i, f := range faults {
				if strings.Contains(f.String(), "secret-text") {
					t.Errorf("the value is shown:\n%s", f)
				}
				if f.File != "p.yaml" || !strings.HasPrefix(f.String(), "p.yaml:"+c.want[i]) || len(f.Message) < 12 {
					t.Errorf("fault %d is\n%s\nwant p.yaml:%s", i, f, c.want[i])
				}
			}
		})
	}
}

func all(faults []Fault) string {
	var b strings.Builder
	for _, f := range faults {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}

// The way a policy is laid out changes its digest and nothing else.
func TestLayoutChangesNothing(t *testing.T) {
	var first *Policy
	for _, text := range []string{
		"kind: Policy\nversion: v1\nenvironment: [x.one]\nactions: {x.one: {timeout: 10s, output: {max_bytes: 10}}}\nnamespaces: {a: {class: secret}, b: {class: mandatory, combine: all_true}}\n",
		"kind: Policy\nnamespaces:\n  b:\n    combine: all_true\n    # between\n    class: mandatory\n  a:\n    class: secret\nversion: v1\nenvironment:\n- x.one\nactions:\n  x.one:\n    output:\n\n      max_bytes: 10   # behind\n    timeout: 10s\n",
	} {
		doc, faults := ParseDocument(text)
		if len(faults) > 0 {
			t.Fatal(all(faults))
		}
		p := *doc.Policy
		p.Digest = [32]byte{}
		if first == nil {
			first = &p
		} else if !reflect.DeepEqual(*first, p) {
			t.Errorf("%+v and %+v", *first, p)
		}
	}
}

package ledger

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Decision tables stand in testdata/decide. A line is one request and what must
// follow, in one log that goes on from line to line:
//
//	lane who operation request => reason details + effect + effect
//
// A request is JSON, or a short form that stands for JSON (see shorthand).
// $name is the public key of that name, %n% n letters x and %nC% n times C.
// Other lines:
//
//	# comment
//	log                  a new log begins, with nothing but its admin
//	lab                  a new log begins, with the worked case applied
//	doc NAME … end       a document that apply may name
//
// With -rewrite the details and effects are written anew from what happened.
// The reason is never: that is the author's to say.
var rewrite = flag.Bool("rewrite", false, "rewrite details and effects in testdata/decide")

type table struct {
	t    testing.TB
	file string
	log  *tinyLog
	docs map[string]string
	seen map[reason.Code]int // reasons of decisions, steps included, and as told
	sent []sent
}

// sent is a request of a table, as the seed of a fuzz test.
type sent struct {
	lane           wire.Lane
	who, operation string
	body           string
}

// allTables names every table.
func allTables(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "decide", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal("no tables: ", err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".txt"))
	}
	return names
}

// runTable runs testdata/decide/NAME.txt.
func runTable(t testing.TB, name string) *table {
	t.Helper()
	tab := &table{t: t, file: filepath.Join("testdata", "decide", name+".txt"), docs: map[string]string{}, seen: map[reason.Code]int{}}
	lab := readLab(t)
	text, err := os.ReadFile(tab.file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "log" || line == "lab":
			tab.begin(line == "lab", lab)
		case strings.HasPrefix(line, "doc "):
			end := i + slices.Index(lines[i:], "end")
			tab.docs[strings.TrimPrefix(line, "doc ")] = withKeys(strings.Join(lines[i+1:end], "\n") + "\n")
			i = end
		default:
			lines[i] = tab.line(i+1, line)
		}
	}
	tab.end()
	if *rewrite {
		if err := os.WriteFile(tab.file, []byte(strings.Join(alignRows(lines), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return tab
}

func readLab(t testing.TB) string {
	t.Helper()
	lab, err := os.ReadFile(filepath.Join("testdata", "decide", "lab.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(lab)
}

func (tab *table) begin(lab bool, documents string) {
	tab.end()
	tab.log = newTinyLog(tab.t)
	if !lab {
		return
	}
	var texts []string
	for _, text := range strings.Split(documents, "---\n") {
		texts = append(texts, withKeys(text))
	}
	if o := tab.log.ask(wire.Control, AdminID, "apply", toJSON(map[string]any{"documents": texts})); !o.Decision.Allowed {
		tab.t.Fatalf("lab: %s %v", o.Decision.Reason, o.Faults)
	}
}

func (tab *table) end() {
	if tab.log != nil {
		tab.log.verify()
	}
}

// line runs one line and returns it as it should be.
func (tab *table) line(number int, line string) string {
	tab.t.Helper()
	left, want, ok := strings.Cut(line, "=> ")
	fields := regexp.MustCompile(`^(\S+) +(\S+) +(\S+) *(.*?) *$`).FindStringSubmatch(left)
	if !ok || fields == nil {
		tab.t.Fatalf("%s:%d: not a line of a table: %s", tab.file, number, line)
	}
	lane, who, operation, request := wire.Lane(fields[1]), fields[2], fields[3], fields[4]
	var o *Outcome
	if code, refused := strings.CutPrefix(request, "!"); refused {
		o = tab.log.submit(&Proposal{Lane: lane, Subject: who, Operation: wire.Known(lane, operation), Refused: reason.Code(code)})
	} else {
		body := withFiller(withKeys(tab.shorthand(operation, request)))
		tab.sent = append(tab.sent, sent{lane, who, operation, body})
		o = tab.log.ask(lane, who, operation, body)
	}
	got := tab.render(o)
	wantReason, _, _ := strings.Cut(want, " ")
	gotReason, _, _ := strings.Cut(got, " ")
	if gotReason != wantReason || got != want && !*rewrite {
		tab.t.Errorf("%s:%d: %s\n got %s\nwant %s", tab.file, number, left, got, want)
		if len(o.Faults) > 0 {
			tab.t.Log(strings.Join(o.Faults, "\n"))
		}
	}
	return left + "=> " + got
}

// render is an outcome in the form of a table's right side.
func (tab *table) render(o *Outcome) string {
	if o.Retry != 0 {
		return "retry of " + tab.log.decisionAt(o.Retry).Reason
	}
	d := o.Decision
	code := reason.Code(d.Reason)
	tab.seen[code]++
	tab.seen[reason.Told(code)]++
	words := []string{d.Reason}
	detail := func(name, value string) {
		if value != "" && value != "0" {
			words = append(words, name+"="+value)
		}
	}
	detail("on", d.Resource)
	if o.Hidden {
		detail("told", string(reason.Told(code)))
	}
	detail("owner", d.Owner)
	if d.Action != d.Resource {
		detail("action", d.Action)
	}
	detail("previous", strconv.FormatUint(d.PreviousRevision, 10))
	if d.SOPID != d.Resource {
		detail("sop", d.SOPID)
	}
	if o.Read != nil {
		r := o.Read.Record
		detail("record", fmt.Sprintf("%s:%s.%s@%d", r.Owner, r.Namespace, r.Key, r.Revision))
		detail("combined", string(o.Read.Combined))
		detail("of", strings.Join(o.Read.Contributors, ","))
	}
	detail("faults", strconv.Itoa(len(o.Faults)))
	for _, a := range o.Applied {
		detail(a.ID, a.Result)
	}
	for _, step := range o.Steps {
		tab.seen[reason.Code(step.Reason)]++
		words = append(words, fmt.Sprintf("[%s %s %s]", step.Resource, step.Action, step.Reason))
	}
	for _, effect := range o.Effects {
		words = append(words, "+ "+renderEffect(effect))
	}
	return strings.Join(words, " ")
}

func renderEffect(e Effect) string {
	words := []string{string(e.Body.Type())}
	record := func(r events.Record) {
		words = append(words, fmt.Sprintf("%s:%s.%s@%d %s %s", r.Owner, r.Namespace, r.Key, r.Revision, r.Visibility, r.Class))
	}
	switch b := e.Body.(type) {
	case *events.AgentRegistered:
		words = append(words, b.AgentID, "under", cmpOr(b.ParentID, "none"), "with", strings.Join(b.Capabilities, ","))
	case *events.AgentUpdated:
		words = append(words, b.AgentID, "with", strings.Join(b.Capabilities, ","))
	case *events.AgentRevoked:
		words = append(words, b.AgentID)
	case *events.PrincipalRegistered:
		words = append(words, b.ID, b.Role, strings.Join(slices.Concat(b.Actions, b.Groups, []string{b.Root}), ","))
	case *events.PrincipalRekeyed:
		words = append(words, b.ID)
	case *events.PrincipalRevoked:
		words = append(words, b.ID)
	case *events.PolicyActivated:
		words = append(words, b.Version)
	case *events.EnvironmentChanged:
		words = append(words, strings.Join(b.Capabilities, ","))
	case *events.MemoryWritten:
		record(b.Record)
	case *events.MemoryDeleted:
		record(b.Record)
	case *events.MemoryExpired:
		record(b.Record)
	}
	if e.Open != nil && e.Body.Type() == events.TypeMemoryWritten {
		words = append(words, "open="+string(e.Open))
	}
	if e.Seal != nil {
		words = append(words, "sealed")
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

func cmpOr(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (l *tinyLog) decisionAt(seq uint64) *events.Decision {
	e, err := events.Parse(l.events[seq-1])
	if err != nil {
		l.t.Fatal(err)
	}
	return e.Body.(*events.Decision)
}

// shorthand is the JSON that a short request stands for. After the names below
// come words in any order, last " = " and a value or arguments:
//
//	memory.read       [owner:]ns.key
//	memory.write      owner:ns.key [@revision] [visibility] = value
//	memory.load       owner:ns.key [visibility] = value
//	memory.delete     owner:ns.key @revision
//	action.authorize  action [= arguments]
//	sop.validate      sop_id version step=action[arguments] … (- is an empty id), or n*action
//	agent.register    id [parent=id] [caps=a,b] [key=name]
//	principal.…       id [role=r] [actions=a,b] [groups=a,b] [root=id] [key=name]
//	environment.set   caps=a,b
//	apply             document … [dry_run] [expected=version]
//
// Any takes op=operation_id.
func (tab *table) shorthand(operation, request string) string {
	if encoded, ok := strings.CutPrefix(request, "base64:"); ok {
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			tab.t.Fatal(err)
		}
		return string(raw)
	}
	if strings.HasPrefix(request, "{") || strings.HasPrefix(request, `"`) || strings.HasPrefix(request, "[") {
		return request
	}
	short, value, hasValue := strings.Cut(request, " = ")
	words := strings.Fields(short)
	body := map[string]any{}
	if hasValue {
		name := "value"
		if operation == "action.authorize" {
			name = "arguments"
		}
		body[name] = json.RawMessage(value)
	}
	for i := 0; i < len(words); i++ {
		if id, ok := strings.CutPrefix(words[i], "op="); ok {
			body["operation_id"] = id
			words = slices.Delete(words, i, i+1)
			i--
		}
	}
	switch operation {
	case "memory.read", "memory.write", "memory.load", "memory.delete":
		shortMemory(body, words)
	case "action.authorize":
		body["action"] = words[0]
	case "sop.validate":
		body["sop"] = shortSOP(words)
	case "apply":
		tab.shortApply(body, words)
	default:
		shortRegistration(operation, body, words)
	}
	return toJSON(body)
}

func shortMemory(body map[string]any, words []string) {
	owner, name, owned := strings.Cut(words[0], ":")
	if !owned {
		name = owner
	} else {
		body["owner_agent_id"] = owner
	}
	dot := strings.LastIndex(name, ".")
	body["namespace"], body["key"] = name[:dot], name[dot+1:]
	for _, word := range words[1:] {
		if revision, ok := strings.CutPrefix(word, "@"); ok {
			body["expected_revision"] = json.RawMessage(revision)
		} else {
			body["visibility"] = word
		}
	}
}

func shortSOP(words []string) map[string]any {
	steps := []any{}
	for _, word := range words[2:] {
		if count, action, many := strings.Cut(word, "*"); many {
			n, _ := strconv.Atoi(count)
			for i := range n {
				steps = append(steps, map[string]any{"step_id": fmt.Sprint("s", i+1), "action": action})
			}
			continue
		}
		id, action, _ := strings.Cut(word, "=")
		if id == "-" {
			id = ""
		}
		step := map[string]any{"step_id": id}
		if at := strings.IndexByte(action, '{'); at >= 0 {
			step["arguments"] = json.RawMessage(action[at:])
			action = action[:at]
		}
		step["action"] = action
		steps = append(steps, step)
	}
	return map[string]any{"sop_id": words[0], "version": json.RawMessage(words[1]), "steps": steps}
}

func shortRegistration(operation string, body map[string]any, words []string) {
	id := "id"
	if strings.HasPrefix(operation, "agent.") {
		id = "agent_id"
	}
	list := func(s string) []string {
		if s == "" {
			return []string{}
		}
		return strings.Split(s, ",")
	}
	if strings.HasSuffix(operation, ".register") || operation == "principal.rekey" {
		body["public_key"] = "$" + words[0]
	}
	if operation == "agent.register" {
		body["capabilities"] = []string{}
	}
	for i, word := range words {
		name, value, named := strings.Cut(word, "=")
		switch {
		case i == 0 && !named:
			body[id] = word
		case name == "caps":
			body["capabilities"] = list(value)
		case name == "parent":
			body["parent_id"] = value
		case name == "actions" || name == "groups":
			body[name] = list(value)
		case name == "key":
			body["public_key"] = "$" + value
		default:
			body[name] = value
		}
	}
}

func (tab *table) shortApply(body map[string]any, words []string) {
	documents := []string{}
	for _, word := range words {
		version, expected := strings.CutPrefix(word, "expected=")
		text, known := tab.docs[word]
		switch {
		case expected:
			body["expected_version"] = version
		case word == "dry_run":
			body["dry_run"] = true
		case known:
			documents = append(documents, text)
		default:
			tab.t.Fatalf("%s: no document %s", tab.file, word)
		}
	}
	body["documents"] = documents
}

var (
	keyName = regexp.MustCompile(`\$([a-z0-9_]+)`)
	filler  = regexp.MustCompile(`%([0-9]+)([^%0-9]?)%`)
)

func withKeys(s string) string {
	return keyName.ReplaceAllStringFunc(s, func(name string) string { return publicKey(name[1:]) })
}

func withFiller(s string) string {
	return filler.ReplaceAllStringFunc(s, func(match string) string {
		parts := filler.FindStringSubmatch(match)
		count, _ := strconv.Atoi(parts[1])
		return strings.Repeat(cmpOr(parts[2], "x"), count)
	})
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// alignRows puts the columns of neighbouring lines of a table under each other.
func alignRows(lines []string) []string {
	isRow := func(line string) bool {
		return (strings.HasPrefix(line, "propose ") || strings.HasPrefix(line, "control ")) && strings.Contains(line, "=> ")
	}
	const columns = 5
	out := slices.Clone(lines)
	for from := 0; from < len(lines); from++ {
		to := from
		for to < len(lines) && isRow(lines[to]) {
			to++
		}
		var rows [][]string
		var width [columns]int
		for _, line := range lines[from:to] {
			left, right, _ := strings.Cut(line, "=> ")
			fields := regexp.MustCompile(`^(\S+) +(\S+) +(\S+) *(.*?) *$`).FindStringSubmatch(left)
			row := append(fields[1:], "=> "+right)
			for i, cell := range row[:columns-1] {
				width[i] = max(width[i], min(len(cell), 90))
			}
			rows = append(rows, row)
		}
		for i, row := range rows {
			var b strings.Builder
			for c, cell := range row {
				if c == columns-1 {
					b.WriteString(cell)
				} else {
					fmt.Fprintf(&b, "%-*s ", width[c], cell)
				}
			}
			out[from+i] = b.String()
		}
		from = max(from, to-1)
	}
	return out
}

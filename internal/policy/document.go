package policy

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
)

// APIVersion is what a document's apiVersion says.
const APIVersion = "ledgerd/v1"

// Document is one parsed document: exactly one of the pointers is set.
type Document struct {
	APIVersion string // APIVersion, or empty where the document does not say
	Policy     *Policy
	Agent      *Agent
	Memory     *Memory
	Principal  *Principal
	Resource   *Resource

	lines        []string         // of the text, for faults found later
	capabilities map[string]place // where an Agent's capabilities stand
	rules        map[string]place // where its restrictions' requirements stand, by id
	value        place            // where a Memory's value stands
	unversioned  bool             // no line of it can be its apiVersion
	allActions   bool             // of a Policy: every action it declares is known
	untyped      map[string]bool  // of a Policy: actions whose arguments have a fault
}

// Agent is one Agent document.
type Agent struct {
	ID           string
	Parent       string // empty for a root
	Capabilities Set    // declared; what is effective depends on the lineage
	Use          Set    // of Capabilities: its own acts are limited to these; nil as it is, or for all
	Writes       Set    // patterns of namespaces that it and its subtree may write in; nil likewise
	UseAll       bool   // use: all, which ends a limit
	WritesAll    bool   // writes: all
	Restrictions []Restriction
	PublicKey    string // NATS user key, U…; empty until the command adds it
}

// Limits is what use and writes are where an agent that has some already gets
// this document: what it leaves out stays as it is, so that no limit is lifted
// by being forgotten.
func (a *Agent) Limits(use, writes Set) (Set, Set) {
	if use = use.Intersect(a.Capabilities); len(a.Use) > 0 || a.UseAll {
		use = a.Use
	}
	if len(a.Writes) > 0 || a.WritesAll {
		writes = a.Writes
	}
	return use, writes
}

// Memory is one Memory document: a record to load where none exists.
type Memory struct {
	Owner, Namespace, Key string
	Visibility            string // private, children or descendants
	Value                 []byte // canonical JSON, at most events.ValueBytesMax
}

// Principal is one Principal document: someone who is no agent.
type Principal struct {
	ID        string
	Role      string
	PublicKey string // NATS user key, U…; empty until the command adds it
	Actions   Set    // what a handler handles
	Groups    Set    // an approver's groups
	Root      string // the agent whose subtree an observer sees; empty for all
}

var roles = []string{"admin", "approver", "auditor", "handler", "observer", "registrar"}

// ValidRole reports whether role may be given to a principal.
func ValidRole(role string) bool { return slices.Contains(roles, role) }

var visibilities = []string{"private", "children", "descendants"}

// ValidPublicKey reports whether key is a NATS user key: U and 55 more base32
// characters, checksum included.
func ValidPublicKey(key string) bool {
	if len(key) != 56 || strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return false
	}
	return nkeys.IsValidPublicUserKey(key)
}

// ParseDocument reads one YAML document exactly as it was sent, at most
// events.RequestBytesMax. It returns the document, or all its faults in the
// order of their places (at most 100) and no document.
func ParseDocument(text string) (Document, []Fault) {
	doc, faults := parse(text)
	if len(faults) > 0 {
		return Document{}, faults
	}
	return doc, nil
}

// parse is ParseDocument, with what there is of a document that has faults.
func parse(text string) (Document, []Fault) {
	root, r := read(text)
	d := decoder{reader: r, untyped: map[string]bool{}}
	doc := d.document(root, text)
	sortFaults(r.faults)
	return doc, r.faults
}

// decoder turns nodes into what a document says, and adds faults to those of
// the reader.
type decoder struct {
	*reader
	untyped map[string]bool // actions whose arguments have a schema with a fault
}

func (d *decoder) faultf(n node, format string, args ...any) {
	if n.kind != badKind {
		d.fault(n.place, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) document(root node, text string) Document {
	if root.kind != mappingKind {
		if root.kind != badKind {
			d.fault(root.place, `a document is a mapping; start with "kind: Policy", Agent, Memory, Principal or Resource`)
		}
		return Document{}
	}
	doc := Document{lines: d.lines, unversioned: root.lacks(), untyped: d.untyped}
	var kind node
	for _, f := range root.fields {
		switch f.key.text {
		case "kind":
			kind = f.value
		case "apiVersion":
			doc.unversioned = false
			doc.APIVersion = d.oneOf(f.value, "apiVersion", []string{APIVersion})
		}
	}
	switch kind.text {
	case "Policy":
		doc.Policy = d.policy(root, text)
		doc.allActions = knowsActions(root)
	case "Agent":
		doc.Agent, doc.capabilities, doc.rules = d.agent(root)
	case "Memory":
		doc.Memory, doc.value = d.memory(root)
	case "Principal":
		doc.Principal = d.principal(root)
	case "Resource":
		doc.Resource = d.resource(root)
	default:
		if kind.kind != badKind {
			d.oneOf(kind, "kind", []string{"Policy", "Agent", "Memory", "Principal", "Resource"})
		} else {
			d.missing(root, "document", "kind")
		}
	}
	return doc
}

// later names, for each mapping of a document, the keys that are part of the
// language and not of this release.
var later = map[string][]string{
	"action":         {"approval", "compensate", "cost"},
	"output":         {"label"},
	"namespace rule": {"writes"},
	"Policy":         {"resources", "quotas", "labels"},
	"Agent":          {"quotas"},
	"Memory":         {"ttl_seconds", "expires", "label"},
}

// fields returns the values of a mapping by key. Keys that stand twice, are
// unknown or belong to a later release are faults; so is a value of null.
func (d *decoder) fields(n node, what string, known ...string) map[string]node {
	if n.kind != mappingKind {
		d.faultf(n, "%s is a mapping, not %s", what, n.kind)
		return nil
	}
	byKey := make(map[string]node, len(n.fields))
	for _, f := range d.distinct(n) {
		switch name := f.key.text; {
		case slices.Contains(known, name):
			if f.value.kind == nullKind {
				d.faultf(f.value, "%s has no value; null is refused, leave the key out instead", name)
				f.value.kind = badKind
			}
			byKey[name] = f.value
		case slices.Contains(later[what], name):
			d.faultf(f.key, "%s in %s is not supported by this release; leave it out", name, article(what))
		default:
			d.faultf(f.key, "unknown key %s in %s%s", quote(name), article(what), didYouMean(name, slices.Concat(known, later[what])))
		}
	}
	return byKey
}

// distinct returns the fields with readable keys, the first of each key.
func (d *decoder) distinct(n node) []field {
	first := make(map[string]place, len(n.fields))
	var distinct []field
	for _, f := range n.fields {
		if f.key.kind != textKind {
			continue
		}
		if at, twice := first[f.key.text]; twice {
			d.faultf(f.key, "key %s stands twice, first %s; keep one", quote(f.key.text), above(f.key.place.line-at.line))
			continue
		}
		first[f.key.text] = f.key.place
		distinct = append(distinct, f)
	}
	return distinct
}

// above says how far up a line stands, which holds in a document and in the
// file around it.
func above(lines int) string {
	switch lines {
	case 0:
		return "on this line"
	case 1:
		return "on the line above"
	}
	return fmt.Sprintf("%d lines above", lines)
}

func (d *decoder) require(n node, what string, byKey map[string]node, names ...string) {
	for _, name := range names {
		if _, ok := byKey[name]; !ok {
			d.missing(n, what, name)
		}
	}
}

// missing says that a key is not there, where it does not stand on a line that
// could not be read.
func (d *decoder) missing(n node, what, name string) {
	if n.lacks() {
		d.faultf(n, "%s is missing in this %s", name, what)
	}
}

func article(what string) string {
	if what == "limits" {
		return what
	}
	if strings.ContainsRune("AEIOUaeiou", rune(what[0])) {
		return "an " + what
	}
	return "a " + what
}

// word reads a text. It is empty if there is none, which is a fault unless the
// key is absent.
func (d *decoder) word(n node, what string) string {
	switch n.kind {
	case textKind:
		if n.text == "" {
			d.faultf(n, "%s is empty", what)
		}
		return n.text
	case integerKind, boolKind:
		d.faultf(n, "%s is a text, not %s; write %q", what, n.kind, n.text)
	default:
		d.faultf(n, "%s is a text, not %s", what, n.kind)
	}
	return ""
}

// name reads a text that a grammar allows.
func (d *decoder) name(n node, what string, valid func(string) bool, grammar string) string {
	s := d.word(n, what)
	if s != "" && !valid(s) {
		d.faultf(n, "%s is no %s: %s", quote(s), what, grammar)
		return ""
	}
	return s
}

const (
	idGrammar        = "at most 63 of a-z 0-9 _ -, a letter or digit first, and not all, any, svc, sys or none"
	actionGrammar    = "at most 6 parts of a-z 0-9 _ - joined by dots, at most 64 characters"
	tokenGrammar     = "at most 64 of A-Z a-z 0-9 _ . -, a letter or digit first"
	namespaceGrammar = "at most 8 parts of a-z 0-9 _ - joined by dots, each with a letter or digit first, at most 128 characters"
	writesGrammar    = "a namespace, or a namespace and .* for it and all beneath"
	keyGrammar       = "at most 128 of a-z 0-9 _ -, a letter or digit first, no dot"
)

func (d *decoder) id(n node, what string) string {
	return d.name(n, what, events.ValidID, idGrammar)
}

func (d *decoder) oneOf(n node, what string, allowed []string) string {
	s := d.word(n, what)
	if s != "" && !slices.Contains(allowed, s) {
		d.faultf(n, "%s cannot be %s; it is %s%s", what, quote(s), strings.Join(allowed, ", or "), didYouMean(s, allowed))
		return ""
	}
	return s
}

func (d *decoder) publicKey(n node) string {
	key := d.word(n, "public_key")
	switch {
	case key == "" || ValidPublicKey(key):
		return key
	case strings.HasPrefix(key, "S"):
		d.faultf(n, "this looks like a seed, which stands in no document; public_key is the U… of the key")
	default:
		d.faultf(n, "no NATS user key: U and 55 more of A-Z 2-7, checksum included; leave public_key out of a file and apply adds it")
	}
	return ""
}

// integer reads an integer between low and high; absent is fallback.
func (d *decoder) integer(n node, what string, low, high, fallback int) int {
	if n.kind != integerKind {
		d.faultf(n, "%s is an integer, not %s", what, n.kind)
		return fallback
	}
	i, err := strconv.Atoi(n.text)
	if err != nil || i < low || i > high {
		d.faultf(n, "%s is between %d and %d", what, low, high)
		return fallback
	}
	return i
}

// set reads a list of different names. each is called for every good one.
func (d *decoder) set(n node, what string, valid func(string) bool, grammar string, each func(node)) Set {
	if n.kind != listKind {
		d.faultf(n, "%s is a list, not %s", what, n.kind)
		return nil
	}
	if len(n.items) > events.CapabilitiesMax {
		d.faultf(n, "%s has %d entries; at most %d are allowed", what, len(n.items), events.CapabilitiesMax)
		return nil
	}
	seen := make(map[string]bool, len(n.items))
	for _, item := range n.items {
		name := d.name(item, "entry of "+what, valid, grammar)
		switch {
		case name == "":
		case seen[name]:
			d.faultf(item, "%s stands twice in %s", quote(name), what)
		default:
			seen[name] = true
			if each != nil {
				each(item)
			}
		}
	}
	return NewSet(slices.Collect(maps.Keys(seen))...)
}

func (d *decoder) policy(n node, text string) *Policy {
	p := &Policy{
		Digest:    sha256.Sum256([]byte(text)),
		Actions:   map[string]Action{},
		TreeDepth: events.TreeDepthMax,
		Children:  events.ChildrenMax,
	}
	f := d.fields(n, "Policy", "apiVersion", "kind", "version", "environment", "actions", "namespaces", "limits")
	d.require(n, "Policy", f, "version", "environment")
	p.Version = d.name(f["version"], "policy version", validVersion, tokenGrammar+", and not none")
	if actions, declares := f["actions"]; declares {
		d.actions(p, actions)
	}
	readable := knowsActions(n)
	p.Environment = d.set(f["environment"], "environment", events.ValidAction, actionGrammar, func(item node) {
		if readable && !p.knownCapability(item.text) {
			d.faultf(item, "%s", undeclared(p, item.text))
		}
	})
	if namespaces, ok := f["namespaces"]; ok {
		d.namespaces(p, namespaces)
	}
	if limits, ok := f["limits"]; ok {
		l := d.fields(limits, "limits", "tree_depth", "children", "records", "tree_records", "runs", "tree_runs", "tree_agents", "retention_days")
		p.TreeDepth = d.integer(l["tree_depth"], "tree_depth", 1, events.TreeDepthMax, p.TreeDepth)
		p.Children = d.integer(l["children"], "children", 1, events.ChildrenMax, p.Children)
		quota := func(name string, most int) int {
			if n, ok := l[name]; ok {
				return d.integer(n, name, 1, most, 0)
			}
			return 0
		}
		p.Quotas = Quotas{
			quota("records", quotaMax), quota("tree_records", quotaMax),
			quota("runs", events.OpenRunsMax), quota("tree_runs", quotaMax), quota("tree_agents", quotaMax),
		}
		p.RetentionDays = quota("retention_days", retentionDaysMax)
	}
	return p
}

// knowsActions reports whether every action that a policy declares could be read.
func knowsActions(n node) bool {
	for _, f := range n.fields {
		if f.key.kind == textKind && f.key.text == "actions" {
			return f.value.lacks()
		}
	}
	return n.lacks()
}

func validVersion(s string) bool { return events.ValidToken(s) && s != "none" }

// undeclared says what to do about a capability that means nothing under p.
func undeclared(p *Policy, name string) string {
	builtIn := []string{"memory.read", "memory.write", "agent.register"}
	known := slices.AppendSeq(builtIn, maps.Keys(p.Actions))
	if reservedAction(name) {
		return quote(name) + " is no capability, and cannot be declared as one" + didYouMean(name, builtIn)
	}
	return quote(name) + " is not declared in actions" + didYouMean(name, known)
}

func (d *decoder) actions(p *Policy, n node) {
	if n.kind != mappingKind {
		d.faultf(n, "actions is a mapping from an action's name to {}, not %s", n.kind)
		return
	}
	for _, f := range d.distinct(n) {
		name := f.key.text
		switch {
		case !events.ValidAction(name):
			d.faultf(f.key, "%s is no action: %s", quote(name), actionGrammar)
		case reservedAction(name):
			d.faultf(f.key, "%s is an operation of the ledger itself; it is not declared", quote(name))
		default:
			p.Actions[name] = Action{}
		}
		if f.value.kind == nullKind {
			d.faultf(f.value, "%s has no value; declare it as %s: {}", quote(name), name)
			continue
		}
		action := d.action(f.value)
		for _, member := range f.value.fields {
			if member.key.text == "arguments" && action.Arguments == nil {
				d.untyped[name] = true
			}
		}
		if _, good := p.Actions[name]; good {
			p.Actions[name] = action
		}
	}
}

func (d *decoder) action(n node) (a Action) {
	f := d.fields(n, "action", "arguments", "require", "timeout", "retry", "output")
	if arguments, ok := f["arguments"]; ok {
		a.Arguments = d.arguments(arguments)
	}
	if require, ok := f["require"]; ok {
		a.Require = d.clauses(require, a.Arguments, f)
	}
	if timeout, ok := f["timeout"]; ok {
		a.Timeout = d.duration(timeout, "timeout")
	}
	if retry, ok := f["retry"]; ok && d.word(retry, "retry") == "safe" {
		d.faultf(retry, "retry: safe is not supported by this release; nothing is retried, which is retry: never")
	} else if ok {
		d.oneOf(retry, "retry", []string{"never", "safe"})
	}
	if output, ok := f["output"]; ok {
		o := d.fields(output, "output", "max_bytes")
		d.require(output, "output", o, "max_bytes")
		if max, ok := o["max_bytes"]; ok {
			a.MaxBytes = d.integer(max, "max_bytes", 1, events.OutputBytesMax, OutputDefault)
		}
	}
	return a
}

// duration reads a whole number of ms, s, m or h.
func (d *decoder) duration(n node, what string) int64 {
	if n.kind == integerKind {
		d.faultf(n, "%s is a whole number and its unit; write %ss for seconds", what, n.text)
		return 0
	}
	s := d.word(n, what)
	if s == "" {
		return 0
	}
	digits := strings.TrimRight(s, "msh")
	unit, known := map[string]int64{"ms": 1000, "s": 1_000_000, "m": 60_000_000, "h": 3600_000_000}[s[len(digits):]]
	count, err := strconv.ParseInt(digits, 10, 32)
	if !known || err != nil || digits[0] == '+' || digits[0] == '0' {
		d.faultf(n, "%s is a whole number and its unit, such as 500ms, 30s, 5m or 1h, not %s", what, quote(s))
		return 0
	}
	if t := count * unit; timeoutMin <= t && t <= timeoutMax {
		return t
	}
	d.faultf(n, "%s is between 100ms and 1h", what)
	return 0
}

func (d *decoder) namespaces(p *Policy, n node) {
	if n.kind != mappingKind {
		d.faultf(n, "namespaces is a mapping from a namespace to its rule, not %s", n.kind)
		return
	}
	keys := map[string]node{}
	for _, f := range d.distinct(n) {
		name := f.key.text
		if !validRuleName(name) {
			d.faultf(f.key, "%s is no namespace and no namespace.key: %s", quote(name), namespaceGrammar)
			continue
		}
		keys[name] = f.key
		p.Namespaces = append(p.Namespaces, d.namespaceRule(name, f.value))
	}
	slices.SortFunc(p.Namespaces, func(a, b NamespaceRule) int { return strings.Compare(a.Name, b.Name) })
	for _, rule := range p.Namespaces {
		dot := strings.LastIndexByte(rule.Name, '.')
		if dot < 0 {
			continue
		}
		above, ok := covering(p.Namespaces, []byte(rule.Name[:dot]))
		if ok && above.Class.binds() && rule.Class != "" && rule.Class != above.Class {
			d.faultf(keys[rule.Name], "%s lies under %s, which is %s; a rule beneath it cannot make it %s",
				rule.Name, above.Name, above.Class, rule.Class)
		} else if ok && above.Class == Mandatory && rule.Class == Mandatory && rule.Combine != "" && rule.Combine != above.Combine {
			d.faultf(keys[rule.Name], "%s lies under %s, which combines by %s; a rule beneath it cannot combine by %s",
				rule.Name, above.Name, above.Combine, rule.Combine)
		}
	}
}

// validRuleName takes a namespace, or a namespace and a key.
func validRuleName(name string) bool {
	if events.ValidNamespace(name) {
		return true
	}
	dot := strings.LastIndexByte(name, '.')
	return dot > 0 && events.ValidNamespace(name[:dot]) && events.ValidKey(name[dot+1:])
}

func (d *decoder) namespaceRule(name string, n node) NamespaceRule {
	rule := NamespaceRule{Name: name, Class: Preference}
	if n.kind == nullKind {
		d.faultf(n, "%s has no value; write %s: {class: secret} or another class", quote(name), name)
		return rule
	}
	f := d.fields(n, "namespace rule", "class", "combine", "value", "ttl_seconds")
	if value, ok := f["value"]; ok {
		rule.Value = d.schema(value, "value")
	}
	if class, ok := f["class"]; ok {
		rule.Class = Class(d.oneOf(class, "class", []string{string(Preference), string(Secret), string(Mandatory), string(Task)}))
	}
	if ttl, ok := f["ttl_seconds"]; ok {
		rule.Seconds = d.seconds(ttl, rule.Class)
	}
	combine, ok := f["combine"]
	switch {
	case rule.Class == Mandatory && !ok:
		d.missing(n, "mandatory rule", "combine: "+strings.Join(Combinations, ", or "))
	case rule.Class == Mandatory:
		rule.Combine = d.oneOf(combine, "combine", Combinations)
	case ok && rule.Class != "":
		d.faultf(combine, "combine belongs to class %s", Mandatory)
	}
	return rule
}

func (d *decoder) agent(n node) (a *Agent, at, rules map[string]place) {
	f := d.fields(n, "Agent", "apiVersion", "kind", "id", "parent", "capabilities", "use", "writes", "restrictions", "public_key")
	d.require(n, "Agent", f, "id", "capabilities")
	a = &Agent{ID: d.id(f["id"], "agent id"), Parent: d.id(f["parent"], "parent"), PublicKey: d.publicKey(f["public_key"])}
	at = map[string]place{}
	a.Capabilities = d.set(f["capabilities"], "capabilities", events.ValidAction, actionGrammar, func(item node) {
		at[item.text] = item.place
	})
	use, ok := f["use"]
	declared := f["capabilities"].whole()
	if a.UseAll = ok && use.kind == textKind && use.text == allText; ok && !a.UseAll {
		a.Use = d.set(use, "use", events.ValidAction, actionGrammar, func(item node) {
			if declared && !a.Capabilities.Has(item.text) {
				d.faultf(item, "%s is not among the capabilities, and use is of those%s", quote(item.text), didYouMean(item.text, a.Capabilities))
			}
		})
		d.some(use, "use")
	}
	writes, ok := f["writes"]
	if a.WritesAll = ok && writes.kind == textKind && writes.text == allText; ok && !a.WritesAll {
		a.Writes = d.set(writes, "writes", ValidWrites, writesGrammar, nil)
		d.some(writes, "writes")
		if len(a.Writes) > events.WritesMax {
			d.faultf(writes, "writes has %d entries; at most %d are allowed", len(a.Writes), events.WritesMax)
		}
	}
	if restrictions, ok := f["restrictions"]; ok {
		a.Restrictions, rules = d.restrictions(restrictions)
	}
	return a, at, rules
}

// allText is what use and writes say where they shall limit nothing any more.
const allText = "all"

// some refuses an empty list where one that is left out limits nothing.
func (d *decoder) some(n node, what string) {
	if n.kind == listKind && len(n.items) == 0 {
		d.faultf(n, "%s is empty; leave it out to limit nothing, or the capability out of capabilities", what)
	}
}

func (d *decoder) memory(n node) (*Memory, place) {
	f := d.fields(n, "Memory", "apiVersion", "kind", "owner", "namespace", "key", "value", "visibility")
	d.require(n, "Memory", f, "owner", "namespace", "key", "value")
	m := &Memory{
		Owner:      d.id(f["owner"], "owner"),
		Namespace:  d.name(f["namespace"], "namespace", events.ValidNamespace, namespaceGrammar),
		Key:        d.name(f["key"], "key", events.ValidKey, keyGrammar),
		Visibility: "private",
	}
	if v, ok := f["visibility"]; ok {
		m.Visibility = d.oneOf(v, "visibility", visibilities)
	}
	if value, ok := f["value"]; ok {
		m.Value = d.canonical(value)
	}
	return m, f["value"].place
}

// canonical writes a value as canonical JSON. The strict JSON reader has the
// last word, so that no value gets in here that a request could not carry.
func (d *decoder) canonical(n node) []byte {
	faults := len(d.faults)
	v := d.json(n)
	if len(d.faults) > faults || !n.whole() {
		return nil
	}
	sorted, err := events.ParseJSON(v.AppendCanonical(nil))
	if err != nil {
		d.faultf(n, "the value is not within the JSON profile: %v", err)
		return nil
	}
	b := sorted.AppendCanonical(nil)
	if len(b) > events.ValueBytesMax {
		d.faultf(n, "the value is %d bytes as JSON; at most %d are allowed", len(b), events.ValueBytesMax)
	}
	return b
}

func (d *decoder) json(n node) events.Value {
	v := events.Value{Text: n.text}
	switch n.kind {
	case boolKind:
		return events.Value{Kind: boolean(n.text)}
	case integerKind:
		v.Kind = events.Number
	case textKind:
		v.Kind = events.String
	case listKind:
		v.Kind = events.Array
		for _, item := range n.items {
			v.Elements = append(v.Elements, d.json(item))
		}
	case mappingKind:
		v.Kind = events.Object
		for _, f := range d.distinct(n) {
			v.Members = append(v.Members, events.Member{Name: f.key.text, Value: d.json(f.value)})
		}
	default:
		d.faultf(n, "null is refused in a value; leave it out or quote it")
		v.Kind = events.Null
	}
	return v
}

func boolean(literal string) events.Kind {
	if literal == "true" {
		return events.True
	}
	return events.False
}

func (d *decoder) principal(n node) *Principal {
	f := d.fields(n, "Principal", "apiVersion", "kind", "id", "role", "public_key", "actions", "groups", "root")
	d.require(n, "Principal", f, "id", "role")
	p := &Principal{ID: d.id(f["id"], "principal id"), Role: d.oneOf(f["role"], "role", roles), PublicKey: d.publicKey(f["public_key"])}
	if p.Role != "" {
		d.belongs(n, f, "actions", p.Role, "handler", true)
		d.belongs(n, f, "groups", p.Role, "approver", true)
		d.belongs(n, f, "root", p.Role, "observer", false)
	}
	p.Actions = d.set(f["actions"], "actions", events.ValidAction, actionGrammar, nil)
	p.Groups = d.set(f["groups"], "groups", events.ValidToken, tokenGrammar, nil)
	p.Root = d.id(f["root"], "root")
	return p
}

// belongs checks that a key stands in the documents of its role only, and in
// those always if it is needed there.
func (d *decoder) belongs(n node, f map[string]node, key, role, owner string, needed bool) {
	value, ok := f[key]
	switch {
	case ok && role != owner:
		d.faultf(value, "%s belongs to role %s, not to %s", key, owner, role)
	case !ok && needed && role == owner:
		d.missing(n, owner, key)
	}
}

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// model is a second implementation of what ledgerd decides, written from its
// documents: lists that are scanned from end to end, JSON read by encoding/json.
// It learns from the events in the log and from nothing else; what the simulation
// adds is what no event holds, the requests and the values. It shares no code with
// the policy, the projection, the judging of procedures or the guards.
type model struct {
	known *known
	facts []fact // what was learnt, in order

	policy *policyDoc
	seq    uint64
	now    events.Time // of what is judged
}

// known is what the simulation sent: documents by their text and by their
// digest, requests and values by the event that holds them.
type known struct {
	documents map[string]*document
	policies  map[events.Hash]*policyDoc
	requests  map[events.Hash]any // by the leaf hash of their decision, decoded
	values    map[events.Hash]any // by the leaf hash of their memory.written
}

// fact is one event as the model sees it, or one that it expects.
type fact struct {
	kind         string // the event's type
	seq          uint64
	id, parent   string // of an agent or a principal
	role         string
	key          string
	capabilities []string
	use, writes  []string // of an agent, where it has them
	version      string
	digest       events.Hash
	record       record
	decision     decision

	payload bool // beside the event
	erased  erasure
	hold    held
	grant   grant
	rule    rule

	agent    string // whom the event is put to
	cause    uint64
	time     events.Time
	steps    []string // of run.admitted, and their actions
	actions  []string
	deadline events.Time // of effect.started
}

type record struct {
	owner, name, visibility, class string
	revision                       uint64
	deleted                        bool
	value                          any
	combined                       bool // written under a mandatory name
	expires                        events.Time
	run                            string // that it goes with
}

type decision struct {
	subject, operation, operationID, reason string
	resource, owner                         string
	step                                    bool
	run                                     string
	request                                 any
}

// say is a fact in one line, less what only the simulation knows.
func (f fact) say() string {
	switch f.kind {
	case "memory.written", "memory.deleted", "memory.expired", "memory.erased":
		r := f.record
		return fmt.Sprintf("%s %s:%s %s %s revision %d until %d of %q", f.kind, r.owner, r.name, r.visibility, r.class, r.revision, r.expires, r.run)
	}
	switch f.kind {
	case "payload.erased":
		return fmt.Sprintf("%s %+v", f.kind, f.erased)
	case "grant.given", "grant.revoked":
		return fmt.Sprintf("%s %+v", f.kind, f.grant)
	case "restriction.added", "restriction.removed":
		return fmt.Sprintf("%s %+v", f.kind, f.rule)
	case "hold.placed", "hold.lifted":
		return fmt.Sprintf("%s %+v", f.kind, f.hold)
	}
	set := func(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
	return fmt.Sprintf("%s %s %s %s %s %v %v %v %s", f.kind, f.id, f.parent, f.role, f.key, set(f.capabilities), set(f.use), set(f.writes), f.version)
}

// factOf reads an event.
func factOf(e *events.Event, leaf events.Hash, k *known) fact {
	f := fact{kind: string(e.Body.Type()), seq: e.Seq, agent: e.Agent, cause: e.Cause, time: e.Time, payload: !e.Payload.IsZero()}
	written := func(r events.Record, deleted bool) {
		f.record = record{owner: r.Owner, name: r.Namespace + "." + r.Key, visibility: r.Visibility, class: r.Class, revision: r.Revision, deleted: deleted}
		f.record.value, f.record.combined = k.values[leaf], r.Class == "mandatory"
	}
	switch b := e.Body.(type) {
	case *events.LedgerCreated:
		f.id, f.role, f.key = b.AdminID, "admin", b.AdminPublicKey
	case *events.AgentRegistered:
		f.id, f.parent, f.key, f.capabilities = b.AgentID, b.ParentID, b.PublicKey, b.Capabilities
		f.use, f.writes = b.Use, b.Writes
	case *events.AgentUpdated:
		f.id, f.capabilities, f.use, f.writes = b.AgentID, b.Capabilities, b.Use, b.Writes
	case *events.AgentRevoked:
		f.id = b.AgentID
	case *events.PrincipalRegistered:
		f.id, f.role, f.key, f.parent, f.capabilities = b.ID, b.Role, b.PublicKey, b.Root, slices.Concat(b.Actions, b.Groups)
	case *events.PrincipalRekeyed:
		f.id, f.key = b.ID, b.PublicKey
	case *events.PrincipalRevoked:
		f.id = b.ID
	case *events.PolicyActivated:
		f.version, f.digest = b.Version, b.Digest
	case *events.EnvironmentChanged:
		f.capabilities = b.Capabilities
	case *events.MemoryWritten:
		written(b.Record, false)
		f.record.expires, f.record.run = b.Expires, b.RunID
	case *events.MemoryDeleted:
		written(b.Record, true)
	case *events.MemoryExpired:
		written(b.Record, true)
	case *events.MemoryErased:
		written(b.Record, true)
	case *events.Decision:
		f.decision = decision{b.Subject, b.Operation, b.OperationID, b.Reason, b.Resource, b.Owner, b.Operation == "sop.validate" && b.SOPID != "" && b.Resource != b.SOPID, b.RunID, k.requests[leaf]}
	default:
		f.readRun(e.Body)
		f.readErasure(e.Body)
		f.readLending(e.Body)
	}
	return f
}

func (m *model) learn(f fact) {
	if f.kind == "policy.activated" {
		m.policy = m.known.policies[f.digest]
	}
	if f.kind == "effect.started" {
		f.deadline = min(f.time+m.timeout(f.version), m.run(f.id).admitted+24*3600*1_000_000)
	}
	m.facts = append(m.facts, f)
	m.seq++
	m.now = max(m.now, f.time)
}

// clone lets documents of one apply build on each other.
func (m *model) clone() *model {
	c := *m
	c.facts = slices.Clone(m.facts)
	return &c
}

// last is the last fact that fits, nil if there is none.
func (m *model) last(fits func(f *fact) bool) *fact {
	for i := len(m.facts) - 1; i >= 0; i-- {
		if fits(&m.facts[i]) {
			return &m.facts[i]
		}
	}
	return nil
}

func (m *model) any(fits func(f *fact) bool) bool { return m.last(fits) != nil }

func (m *model) agent(id string) *fact {
	return m.last(func(f *fact) bool { return f.kind == "agent.registered" && f.id == id })
}

func (m *model) declared(id string) []string { return m.terms(id).capabilities }

// terms is what was last said of an agent.
func (m *model) terms(id string) *fact {
	return m.last(func(f *fact) bool { return (f.kind == "agent.registered" || f.kind == "agent.updated") && f.id == id })
}

// holds is whether an agent may do itself what a capability allows.
func (m *model) holds(id, capability string) bool {
	use := []string(nil)
	if a := m.agent(id); a != nil {
		use = m.terms(id).use
	}
	return m.passes(id, capability) && (use == nil || slices.Contains(use, capability))
}

// mayWrite is whether the writes of an agent and all above it name the namespace.
func (m *model) mayWrite(id, namespace string) bool {
	for _, a := range m.ancestors(id) {
		writes := m.terms(a).writes
		if writes != nil && !slices.ContainsFunc(writes, func(w string) bool {
			above, all := strings.CutSuffix(w, ".*")
			return namespace == above || all && strings.HasPrefix(namespace, above+".")
		}) {
			return false
		}
	}
	return true
}

func (m *model) agentRevoked(id string) bool {
	return m.any(func(f *fact) bool { return f.kind == "agent.revoked" && f.id == id })
}

func (m *model) principal(id string) *fact {
	return m.last(func(f *fact) bool {
		return (f.kind == "principal.registered" || f.kind == "ledger.created") && f.id == id
	})
}

func (m *model) principalRevoked(id string) bool {
	return m.any(func(f *fact) bool { return f.kind == "principal.revoked" && f.id == id })
}

func (m *model) principalKey(id string) string {
	return m.last(func(f *fact) bool {
		return strings.HasPrefix(f.kind, "principal.re") && f.key != "" && f.id == id || f.kind == "ledger.created" && f.id == id
	}).key
}

func (m *model) keyUsed(key string) bool { return m.any(func(f *fact) bool { return f.key == key }) }

func (m *model) taken(id string) bool { return m.agent(id) != nil || m.principal(id) != nil }

// agents lists everyone ever registered.
func (m *model) agents() (ids []string) {
	for i := range m.facts {
		if m.facts[i].kind == "agent.registered" {
			ids = append(ids, m.facts[i].id)
		}
	}
	return ids
}

// ancestors is an agent, its parent, and so on.
func (m *model) ancestors(id string) (list []string) {
	for a := m.agent(id); a != nil; a = m.agent(a.parent) {
		list = append(list, a.id)
	}
	return list
}

func (m *model) children(id string) (n int) {
	for i := range m.facts {
		if m.facts[i].kind == "agent.registered" && m.facts[i].parent == id {
			n++
		}
	}
	return n
}

// holds asks everyone who has a say, one after the other.
// passes is whether an agent holds a capability, for itself or to pass on.
func (m *model) passes(id, capability string) bool {
	if m.policy == nil || !slices.Contains(m.policy.environment, capability) {
		return false
	}
	if narrowed := m.last(func(f *fact) bool { return f.kind == "environment.changed" }); narrowed != nil && !slices.Contains(narrowed.capabilities, capability) {
		return false
	}
	if m.denied(id, capability) {
		return false
	}
	for _, a := range m.ancestors(id) {
		if m.agentRevoked(a) || !slices.Contains(m.declared(a), capability) {
			return false
		}
	}
	return true
}

// change is the last thing that happened to a record, deleted or not.
func (m *model) change(owner, name string) *record {
	f := m.last(func(f *fact) bool {
		return strings.HasPrefix(f.kind, "memory.") && f.record.owner == owner && f.record.name == name
	})
	if f == nil {
		return nil
	}
	return &f.record
}

func (m *model) live(owner, name string) *record {
	if r := m.change(owner, name); r != nil && !r.deleted && !m.gone(r) {
		return r
	}
	return nil
}

// classOf asks every rule of the policy and takes the longest that covers.
func (m *model) classOf(name string) string {
	if m.policy == nil {
		return "secret"
	}
	class, longest := "preference", -1
	for rule, of := range m.policy.classes {
		if (name == rule || strings.HasPrefix(name, rule+".")) && len(rule) > longest {
			class, longest = of, len(rule)
		}
	}
	return class
}

func (m *model) isAction(action string) bool {
	return m.policy != nil && (action == "memory.read" || action == "memory.write" || slices.Contains(m.policy.actions, action))
}

func (m *model) isCapability(name string) bool {
	return name == "memory.read" || name == "memory.write" || name == "agent.register" || m.isAction(name)
}

// secret reports whether a record is one, and once is always.
func (m *model) secret(r *record) bool { return r.class == "secret" || m.classOf(r.name) == "secret" }

func (m *model) sees(r *record, levels int) bool {
	if levels == 0 {
		return true
	}
	return !m.secret(r) && (r.visibility == "descendants" || r.visibility == "children" && levels == 1)
}

// request is one proposal as the model is shown it.
type request struct {
	control            bool
	subject, operation string
	body               any                      // decoded, nil where the bytes are no request
	malformed          bool                     // the ledger called it so, and may
	foreign            bool                     // with a reply subject that is not the sender's
	absent             func(action string) bool // no handler is there for it
}

// verdict is what must come of a request.
type verdict struct {
	reason, owner string
	steps         []string
	effects       []fact
	retry         uint64
	read          *record
	value         any      // of an allowed read
	contributors  []string // of a combined one
	unknown       bool     // the model has no opinion
	inFlight      []string // effects that an emergency deny comes too late for
	run           string   // that goes on from here
	deny          bool     // of an emergency, dry or not
	erased        *erasure // that is done, or would be
	records       []string // that go with it
}

var (
	idForm        = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	actionForm    = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+){0,5}$`)
	tokenForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	namespaceForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*){0,7}$`)
	keyForm       = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	publicForm    = regexp.MustCompile(`^U[A-Z2-7]{55}$`)
)

func isID(s string) bool {
	return idForm.MatchString(s) && !slices.Contains([]string{"all", "any", "svc", "sys", "none"}, s)
}

// operations of this release, by lane.
var (
	proposals = []string{"memory.read", "memory.write", "memory.delete", "action.authorize", "sop.validate", "agent.register", "sop.submit", "run.cancel", "grant.give", "grant.revoke", "restriction.add"}
	verbs     = []string{"apply", "agent.register", "agent.revoke", "principal.register", "principal.rekey", "principal.revoke", "memory.load", "environment.set", "clock.accept", "emergency.deny", "emergency.lift", "run.resolve", "payload.erase", "hold.place", "hold.lift", "restriction.remove"}
)

func deny(reason string) verdict                   { return verdict{reason: reason} }
func allow(reason string, effects ...fact) verdict { return verdict{reason: reason, effects: effects} }

// judge says what must come of a request.
func (m *model) judge(q request) verdict {
	if reason := m.who(q); reason != "" {
		return deny(reason)
	}
	known := proposals
	if q.control {
		known = verbs
	}
	switch {
	case q.foreign:
		return deny("bad_reply_subject")
	case !slices.Contains(known, q.operation):
		return deny("unsupported_operation")
	case q.malformed:
		return deny("malformed_request")
	}
	b, ok := q.body.(map[string]any)
	if use, given := b["use"].([]any); !ok || given && len(use) == 0 || slices.ContainsFunc(list(b, "use"), func(c string) bool { return !slices.Contains(list(b, "capabilities"), c) }) {
		return deny("malformed_request")
	}
	if m.agent(q.subject) != nil && m.denied(q.subject, needs(q.operation, b)) {
		return deny("emergency_deny")
	}
	if id := text(b, "operation_id"); id != "" && q.operation != "memory.read" {
		first := m.firstUse(q.subject, id)
		switch {
		case first == nil:
		case first.decision.operation == q.operation && m.erasedUnder(first) != 0: // nobody can tell any more
			return verdict{retry: first.seq}
		case first.decision.operation != q.operation || !reflect.DeepEqual(content(first.decision.request), content(b)):
			return deny("operation_id_conflict")
		default:
			return verdict{retry: first.seq}
		}
	}
	if q.control {
		return m.control(q, b)
	}
	if m.policy == nil {
		return deny("no_policy")
	}
	switch q.operation {
	case "memory.read":
		return m.read(q.subject, b, false)
	case "memory.write":
		return m.write(q.subject, b, "")
	case "memory.delete":
		return m.delete(q.subject, b)
	case "action.authorize":
		return m.authorize(q.subject, b)
	case "sop.validate":
		return m.procedure(q.subject, b["sop"])
	case "sop.submit":
		return m.submit(q, b["sop"])
	case "run.cancel":
		return m.cancel(q.subject, text(b, "run_id"))
	case "grant.give":
		return m.give(q.subject, b)
	case "grant.revoke":
		return m.takeBack(q.subject, b)
	case "restriction.add":
		return m.restrict(rule{q.subject, text(b, "id"), text(b, "action"), text(b, "require")})
	}
	return m.child(q.subject, b)
}

func (m *model) who(q request) string {
	if m.agent(q.subject) != nil {
		switch {
		case m.agentRevoked(q.subject):
			return "agent_revoked"
		case q.control:
			return "not_permitted_for_role"
		case m.denied(q.subject, ""):
			return "emergency_deny"
		}
		return ""
	}
	p := m.principal(q.subject)
	switch {
	case p == nil:
		return "unknown_agent"
	case m.principalRevoked(q.subject):
		return "agent_revoked"
	case q.control && (p.role == "admin" || p.role == "registrar" && (q.operation == "agent.register" || q.operation == "agent.revoke")):
		return ""
	}
	return "not_permitted_for_role"
}

// firstUse is the decision that an operation id was first used for.
func (m *model) firstUse(subject, id string) *fact {
	for i := range m.facts {
		d := &m.facts[i].decision
		if d.subject == subject && d.operationID == id && !d.step && d.operation != "memory.read" {
			return &m.facts[i]
		}
	}
	return nil
}

// content is a request without what does not count for a retry.
func content(v any) map[string]any {
	b, _ := v.(map[string]any)
	rest := map[string]any{}
	for name, value := range b {
		if name != "operation_id" && name != "trace_id" && name != "wait_ms" {
			rest[name] = value
		}
	}
	return rest
}

func text(b map[string]any, name string) string {
	s, _ := b[name].(string)
	return s
}

func number(b map[string]any, name string) uint64 {
	n, _ := b[name].(json.Number)
	i, err := n.Int64()
	if err != nil || i < 0 {
		return 0
	}
	return uint64(i)
}

func list(b map[string]any, name string) (out []string) {
	items, _ := b[name].([]any)
	for _, item := range items {
		s, _ := item.(string)
		out = append(out, s)
	}
	return out
}

// large reports whether a value is over 64 KiB, as the simulation makes them:
// in one long text.
func large(v any) bool {
	switch v := v.(type) {
	case string:
		return len(v) > 64<<10
	case map[string]any:
		for _, e := range v {
			if large(e) {
				return true
			}
		}
	}
	return false
}

func nameOf(b map[string]any) string { return text(b, "namespace") + "." + text(b, "key") }

func (m *model) write(me string, b map[string]any, run string) verdict {
	owner, name, expected, seconds := text(b, "owner_agent_id"), nameOf(b), number(b, "expected_revision"), number(b, "ttl_seconds")
	before, class := m.live(owner, name), m.classOf(name)
	_, boolean := b["value"].(bool)
	switch {
	case !m.holds(me, "memory.write"):
		return deny("capability_not_inherited")
	case owner != me:
		return verdict{reason: "actor_is_not_owner", owner: owner}
	case !m.mayWrite(me, text(b, "namespace")):
		return deny("namespace_not_allowed")
	case large(b["value"]):
		return deny("request_too_large")
	case class == "mandatory" && !boolean:
		return deny("mandatory_type_mismatch")
	case m.lifetime(name, seconds, run != "") != "":
		return deny("value_not_allowed")
	case before != nil && expected == 0:
		return deny("expected_revision_required")
	case before != nil && before.revision != expected, before == nil && expected != 0:
		return deny("revision_conflict")
	}
	if old := m.change(owner, name); old == nil || old.deleted {
		if whose := m.full(me); whose != "" {
			return verdict{reason: "quota_exceeded", owner: whose}
		}
	}
	next := record{owner: owner, name: name, visibility: text(b, "visibility"), class: class, value: b["value"], combined: class == "mandatory"}
	if next.visibility == "" {
		next.visibility = "private"
		if before != nil {
			next.visibility = before.visibility
		}
	}
	if before != nil && before.class == "secret" {
		next.class, next.combined = "secret", false
	}
	next.revision = m.nextRevision(owner, name)
	m.lasts(&next, seconds, run)
	return allow("owner_write", m.after(next)...)
}

// after is the writing of a record, and before it what is not yet said of the
// one of its name.
func (m *model) after(next record) []fact {
	effects := []fact{{kind: "memory.written", record: next}}
	if gone := m.expiry(next.owner, next.name); gone != nil {
		effects = append([]fact{*gone}, effects...)
	}
	return effects
}

// nextRevision counts what has happened to a record.
func (m *model) nextRevision(owner, name string) uint64 {
	n := uint64(1)
	for i := range m.facts {
		if r := &m.facts[i].record; strings.HasPrefix(m.facts[i].kind, "memory.") && r.owner == owner && r.name == name {
			n++
		}
	}
	if m.expiry(owner, name) != nil {
		n++
	}
	return n
}

func (m *model) delete(me string, b map[string]any) verdict {
	owner, name := text(b, "owner_agent_id"), nameOf(b)
	before := m.live(owner, name)
	switch {
	case !m.holds(me, "memory.write"):
		return deny("capability_not_inherited")
	case owner != me:
		return verdict{reason: "actor_is_not_owner", owner: owner}
	case !m.mayWrite(me, text(b, "namespace")):
		return deny("namespace_not_allowed")
	case before == nil || before.revision != number(b, "expected_revision"):
		return deny("revision_conflict")
	}
	gone := *before
	gone.deleted, gone.revision, gone.expires, gone.run = true, m.nextRevision(owner, name), 0, ""
	return allow("owner_delete", fact{kind: "memory.deleted", record: gone})
}

func (m *model) read(me string, b map[string]any, step bool) verdict {
	name, owner := nameOf(b), text(b, "owner_agent_id")
	if !m.holds(me, "memory.read") {
		return deny("capability_not_inherited")
	}
	line := m.ancestors(me)
	if owner != "" {
		r := m.live(owner, name)
		level := slices.Index(line, owner)
		switch {
		case r == nil:
			return deny("record_not_found")
		case level >= 0 && m.sees(r, level):
			return verdict{reason: "visible_from", owner: owner, read: r, value: r.value}
		case m.secret(r) && !step && m.passes(owner, "memory.read") && m.granted(owner, name, me) != nil:
			return verdict{reason: "granted_by", owner: owner, read: r, value: r.value}
		case m.secret(r):
			return verdict{reason: "grant_required", owner: owner}
		}
		return verdict{reason: "not_visible_from", owner: owner}
	}
	var seen, hidden *record
	var owners []string
	all, typed, odd := true, true, ""
	for level, id := range line {
		r := m.live(id, name)
		if r == nil {
			continue
		}
		value, boolean := r.value.(bool)
		boolean = boolean && r.combined
		all, typed = all && value, typed && boolean
		if m.sees(r, level) {
			owners = append(owners, id)
			if seen == nil {
				seen = r
			}
			if !boolean && odd == "" {
				odd = id
			}
		} else if hidden == nil {
			hidden = r
		}
	}
	switch {
	case seen == nil && hidden == nil:
		return deny("record_not_found")
	case seen == nil:
		return verdict{reason: "not_visible_from", owner: hidden.owner}
	case m.classOf(name) != "mandatory":
		return verdict{reason: "visible_from", owner: seen.owner, read: seen, value: seen.value}
	case !typed:
		return verdict{reason: "mandatory_type_mismatch", owner: odd}
	}
	return verdict{reason: "combined_from", owner: seen.owner, read: seen, value: all, contributors: owners}
}

func (m *model) authorize(me string, b map[string]any) verdict {
	action := text(b, "action")
	switch {
	case !m.isAction(action):
		return deny("unknown_action")
	case !m.holds(me, action):
		return deny("action_not_in_effective_capabilities")
	case large(b["arguments"]):
		return deny("request_too_large")
	}
	arguments, _ := b["arguments"].(map[string]any)
	if reason, owner := m.breaks(me, action, arguments); reason != "" {
		return verdict{reason: reason, owner: owner}
	}
	return allow("action_allowed")
}

// procedure judges an SOP: its shape, then each step, whatever the others are.
func (m *model) procedure(me string, v any) verdict {
	p, ok := v.(map[string]any)
	version, integer := p["version"].(json.Number)
	n, err := version.Int64()
	steps, listed := p["steps"].([]any)
	_, versioned := p["version"]
	switch {
	case !ok || len(p) != 3 || !versioned || !tokenForm.MatchString(text(p, "sop_id")):
		return deny("sop_malformed")
	case !integer || err != nil || n < 1 || n > 1<<53-1 || strings.ContainsAny(version.String(), ".eE-+"):
		return deny("sop_version_invalid")
	case !listed:
		return deny("sop_malformed")
	case len(steps) == 0:
		return deny("sop_empty")
	case len(steps) > 50:
		return deny("sop_too_large")
	}
	for _, s := range steps {
		step, ok := s.(map[string]any)
		id, named := step["step_id"].(string)
		_, acted := step["action"].(string)
		arguments, given := step["arguments"]
		_, object := arguments.(map[string]any)
		fields := 2
		if given {
			fields = 3
		}
		if !ok || !named || !acted || len(step) != fields || given && !object || id != "" && !tokenForm.MatchString(id) {
			return deny("sop_malformed")
		}
	}
	out := verdict{reason: "sop_admitted"}
	ids := map[string]bool{}
	for _, s := range steps {
		step := s.(map[string]any)
		code := m.step(me, step, ids)
		ids[text(step, "step_id")] = true
		out.steps = append(out.steps, text(step, "step_id")+" "+code)
		if code != "step_allowed" && out.reason == "sop_admitted" {
			out.reason = code
		}
	}
	return out
}

func (m *model) step(me string, step map[string]any, ids map[string]bool) string {
	id, action := text(step, "step_id"), text(step, "action")
	arguments, _ := step["arguments"].(map[string]any)
	needs := action
	if action == "memory.delete" {
		needs = "memory.write"
	}
	owner, owned := arguments["owner_agent_id"]
	memory := action == "memory.read" || action == "memory.write" || action == "memory.delete"
	line := m.ancestors(me)
	switch {
	case id == "":
		return "empty_step_id"
	case ids[id]:
		return "duplicate_step_id"
	case !actionForm.MatchString(action) || len(action) > 64 || action == "agent.register" || !m.isAction(needs):
		return "unknown_action"
	case m.denied(me, needs):
		return "emergency_deny"
	case !m.holds(me, needs):
		return "action_not_in_effective_capabilities"
	case memory && action != "memory.read" && owner != any(me):
		return "cross_owner_memory_write"
	case memory && owned && !inLine(line, owner), !memory && strays(line, arguments):
		return "reference_out_of_scope"
	case large(arguments):
		return "request_too_large"
	case memory:
		return m.memoryStep(me, action, arguments)
	}
	if reason, _ := m.breaks(me, action, arguments); reason != "" {
		return reason
	}
	return "step_allowed"
}

func (m *model) memoryStep(me, action string, arguments map[string]any) string {
	forms := map[string]func(any) bool{
		"owner_agent_id": isText, "namespace": isText, "key": isText,
		"value":             func(v any) bool { return v != nil },
		"visibility":        func(v any) bool { return v == any("private") || v == any("children") || v == any("descendants") },
		"expected_revision": func(v any) bool { n, ok := v.(json.Number); i, err := n.Int64(); return ok && err == nil && i >= 1 },
		"ttl_seconds": func(v any) bool {
			n, ok := v.(json.Number)
			i, err := n.Int64()
			return ok && err == nil && i >= 1 && i <= 30*24*3600
		},
	}
	needs, may := []string{"namespace", "key"}, []string{"owner_agent_id"}
	switch action {
	case "memory.write":
		needs, may = []string{"owner_agent_id", "namespace", "key", "value"}, []string{"visibility", "expected_revision", "ttl_seconds"}
	case "memory.delete":
		needs, may = []string{"owner_agent_id", "namespace", "key", "expected_revision"}, nil
	}
	for _, name := range needs {
		if _, ok := arguments[name]; !ok {
			return "argument_schema"
		}
	}
	for name, v := range arguments {
		if !slices.Contains(needs, name) && !slices.Contains(may, name) || !forms[name](v) {
			return "argument_schema"
		}
	}
	if !namespaceForm.MatchString(text(arguments, "namespace")) || !keyForm.MatchString(text(arguments, "key")) {
		return "sop_malformed"
	}
	if action != "memory.read" && !m.mayWrite(me, text(arguments, "namespace")) {
		return "namespace_not_allowed"
	}
	if _, boolean := arguments["value"].(bool); action == "memory.write" && !boolean && m.classOf(nameOf(arguments)) == "mandatory" {
		return "mandatory_type_mismatch"
	}
	if action == "memory.write" && m.lifetime(nameOf(arguments), number(arguments, "ttl_seconds"), true) != "" {
		return "value_not_allowed"
	}
	return "step_allowed"
}

func isText(v any) bool { _, ok := v.(string); return ok }

func inLine(line []string, owner any) bool {
	id, ok := owner.(string)
	return ok && slices.Contains(line, id)
}

// strays looks for an owner_agent_id outside the lineage, however deep.
func strays(line []string, v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			if name == "owner_agent_id" && !inLine(line, e) || strays(line, e) {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if strays(line, e) {
				return true
			}
		}
	}
	return false
}

func (m *model) child(me string, b map[string]any) verdict {
	if !m.holds(me, "agent.register") {
		return deny("capability_not_inherited")
	}
	agent := fact{kind: "agent.registered", id: text(b, "agent_id"), parent: me, key: text(b, "public_key"), capabilities: list(b, "capabilities"), use: list(b, "use"), writes: list(b, "writes")}
	if reason := m.newcomer(agent); reason != "" {
		return deny(reason)
	}
	for _, capability := range agent.capabilities {
		if !m.passes(me, capability) {
			return deny("capability_not_inherited")
		}
	}
	return allow("registered", agent)
}

// newcomer says what is wrong with an agent to be registered.
func (m *model) newcomer(a fact) string {
	depth, children := 16, 256
	if m.policy != nil {
		depth, children = m.policy.depth, m.policy.children
	}
	switch {
	case !isID(a.id):
		return "name_not_allowed"
	case !publicForm.MatchString(a.key):
		return "malformed_request"
	case a.parent == a.id:
		return "hierarchy_cycle"
	case m.taken(a.id):
		return "duplicate_agent"
	case a.parent != "" && (m.agent(a.parent) == nil || m.agentRevoked(a.parent)):
		return "unknown_parent"
	case a.parent != "" && m.children(a.parent) >= children:
		return "too_many_children"
	case len(m.ancestors(a.parent))+1 > depth:
		return "hierarchy_too_deep"
	case m.keyUsed(a.key):
		return "key_in_use"
	}
	return ""
}

// decode reads a request as encoding/json does, nil if it cannot.
func decode(b []byte) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}

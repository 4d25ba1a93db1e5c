package sim

import (
	"slices"
	"strings"
)

// policyDoc is a Policy document as the simulation means it.
type policyDoc struct {
	version              string
	environment, actions []string
	classes              map[string]string // by namespace or namespace.key
	depth, children      int
	timeouts             map[string]int // seconds, by action
	most                 int            // seconds that task state may last; 0 = not said
	records, treeRecords int            // quotas; 0 = none
	retention            int            // days; 0 = none
}

// document is one document of an apply: exactly one of the first four is set,
// or it is no document at all.
type document struct {
	policy    *policyDoc
	digest    [32]byte
	agent     *fact
	principal *fact
	memory    *record
	broken    bool
}

// control judges what admins and registrars ask for.
func (m *model) control(q request, b map[string]any) verdict {
	switch q.operation {
	case "apply":
		return m.apply(b)
	case "agent.register":
		return m.registerAgent(b)
	case "agent.revoke":
		return m.end("agent.revoked", text(b, "agent_id"), m.agent, m.agentRevoked)
	case "principal.register":
		p := fact{kind: "principal.registered", id: text(b, "id"), role: text(b, "role"), key: text(b, "public_key"), parent: text(b, "root"), capabilities: slices.Concat(list(b, "actions"), list(b, "groups"))}
		if reason := m.newPrincipal(p, len(list(b, "actions")), len(list(b, "groups"))); reason != "" {
			return deny(reason)
		}
		return allow("registered", p)
	case "principal.rekey":
		id, key := text(b, "id"), text(b, "public_key")
		switch {
		case m.principal(id) == nil:
			return deny("not_found")
		case m.principalRevoked(id):
			return deny("agent_revoked")
		case !publicForm.MatchString(key):
			return deny("malformed_request")
		case m.keyUsed(key):
			return deny("key_in_use")
		}
		return allow("control_done", fact{kind: "principal.rekeyed", id: id, key: key})
	case "principal.revoke":
		id := text(b, "id")
		if m.onlyAdmin(id) {
			return deny("not_permitted_for_role")
		}
		return m.end("principal.revoked", id, m.principal, m.principalRevoked)
	case "memory.load":
		return m.load(record{owner: text(b, "owner_agent_id"), name: nameOf(b), visibility: text(b, "visibility"), value: b["value"]})
	case "environment.set":
		return m.narrow(list(b, "capabilities"))
	case "emergency.deny":
		return m.emergency(b)
	case "emergency.lift":
		return m.lift(number(b, "epoch"))
	case "run.resolve":
		return m.resolve(text(b, "run_id"), text(b, "step_id"), text(b, "outcome"))
	case "payload.erase":
		return m.erase(b)
	case "restriction.remove":
		return m.unrestrict(text(b, "agent_id"), text(b, "id"))
	case "hold.place":
		return m.placeHold(b)
	case "hold.lift":
		return m.liftHold(b)
	}
	return allow("control_done", fact{kind: "clock.accepted"})
}

func (m *model) registerAgent(b map[string]any) verdict {
	agent := fact{kind: "agent.registered", id: text(b, "agent_id"), parent: text(b, "parent_id"), key: text(b, "public_key"), capabilities: list(b, "capabilities"), use: list(b, "use"), writes: list(b, "writes")}
	if m.policy == nil {
		return deny("no_policy")
	}
	if reason := m.newcomer(agent); reason != "" {
		return deny(reason)
	}
	if !m.allCapabilities(agent.capabilities) {
		return deny("unknown_action")
	}
	return allow("registered", agent)
}

func (m *model) allCapabilities(names []string) bool {
	for _, name := range names {
		if !m.isCapability(name) {
			return false
		}
	}
	return true
}

// end revokes somebody who is there, once.
func (m *model) end(kind, id string, find func(string) *fact, ended func(string) bool) verdict {
	switch {
	case find(id) == nil:
		return deny("not_found")
	case ended(id):
		return allow("control_done")
	}
	return allow("control_done", fact{kind: kind, id: id})
}

func (m *model) onlyAdmin(id string) bool {
	admins := 0
	for i := range m.facts {
		f := &m.facts[i]
		if (f.kind == "ledger.created" || f.kind == "principal.registered") && f.role == "admin" && !m.principalRevoked(f.id) {
			admins++
		}
	}
	p := m.principal(id)
	return p != nil && p.role == "admin" && !m.principalRevoked(id) && admins == 1
}

func (m *model) newPrincipal(p fact, actions, groups int) string {
	switch {
	case !isID(p.id):
		return "name_not_allowed"
	case !roleFits(p, actions, groups) || !publicForm.MatchString(p.key):
		return "malformed_request"
	case m.taken(p.id):
		return "duplicate_agent"
	case p.parent != "" && m.agent(p.parent) == nil:
		return "not_found"
	case m.keyUsed(p.key):
		return "key_in_use"
	}
	return ""
}

// roleFits: a handler has actions, an approver groups, an observer may have a
// root, and nobody has what is another's.
func roleFits(p fact, actions, groups int) bool {
	switch p.role {
	case "handler":
		return actions > 0 && groups == 0 && p.parent == ""
	case "approver":
		return actions == 0 && groups > 0 && p.parent == ""
	case "observer":
		return actions == 0 && groups == 0
	case "registrar", "auditor", "admin":
		return actions == 0 && groups == 0 && p.parent == ""
	}
	return false
}

// load is the first write of a record by an admin.
func (m *model) load(r record) verdict {
	r.class = m.classOf(r.name)
	_, boolean := r.value.(bool)
	switch {
	case large(r.value):
		return deny("request_too_large")
	case m.policy == nil:
		return deny("no_policy")
	case m.agent(r.owner) == nil || m.agentRevoked(r.owner):
		return deny("unknown_owner")
	case m.live(r.owner, r.name) != nil:
		return deny("record_exists")
	case r.class == "mandatory" && !boolean:
		return deny("mandatory_type_mismatch")
	case m.lifetime(r.name, 0, false) != "":
		return deny("value_not_allowed")
	}
	if r.visibility == "" {
		r.visibility = "private"
	}
	r.revision, r.combined = m.nextRevision(r.owner, r.name), r.class == "mandatory"
	m.lasts(&r, 0, "")
	return allow("control_done", m.after(r)...)
}

func (m *model) narrow(names []string) verdict {
	if m.policy == nil {
		return deny("no_policy")
	}
	if !m.allCapabilities(names) {
		return deny("unknown_action")
	}
	now := m.last(func(f *fact) bool { return f.kind == "environment.changed" })
	if now != nil && sameSet(now.capabilities, names) {
		return allow("control_done")
	}
	return allow("control_done", fact{kind: "environment.changed", capabilities: names})
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// apply judges documents one after the other, each against what the ones before
// it would leave: the policy, agents with parents first, principals, memory.
func (m *model) apply(b map[string]any) verdict {
	if version := text(b, "expected_version"); version != "" && (m.policy == nil && version != "none" || m.policy != nil && version != m.policy.version) {
		return deny("revision_conflict")
	}
	var documents []*document
	about := map[string]bool{}
	for _, text := range list(b, "documents") {
		d := m.known.documents[text]
		switch {
		case d == nil:
			return verdict{unknown: true}
		case d.broken, about[d.subject()]:
			return deny("policy_invalid")
		}
		about[d.subject()] = true
		documents = append(documents, d)
	}
	if len(documents) == 0 {
		return deny("policy_invalid")
	}
	next := m.clone()
	var effects []fact
	for _, part := range []func(*model, []*document) ([]fact, string){applyPolicy, applyAgents, applyPrincipals, applyMemory} {
		more, reason := part(next, documents)
		if reason != "" {
			return deny(reason)
		}
		effects = append(effects, more...)
	}
	if dry, _ := b["dry_run"].(bool); dry {
		effects = nil
	}
	return allow("control_done", effects...)
}

func (d *document) subject() string {
	switch {
	case d.policy != nil:
		return "policy"
	case d.agent != nil:
		return d.agent.id
	case d.principal != nil:
		return d.principal.id
	case d.memory != nil:
		return d.memory.owner + ":" + d.memory.name
	}
	return "nothing"
}

func applyPolicy(m *model, documents []*document) (effects []fact, reason string) {
	for _, d := range documents {
		if d.policy == nil {
			continue
		}
		used := m.last(func(f *fact) bool { return f.kind == "policy.activated" && f.version == d.policy.version })
		if used != nil && used.digest != d.digest {
			return nil, "policy_version_exists"
		}
		if now := m.last(func(f *fact) bool { return f.kind == "policy.activated" }); now != nil && now.digest == d.digest {
			continue
		}
		f := fact{kind: "policy.activated", version: d.policy.version, digest: d.digest}
		effects = append(effects, f)
		m.facts = append(m.facts, f)
		m.policy = d.policy
	}
	if m.policy == nil {
		return nil, "no_policy"
	}
	return effects, ""
}

func applyAgents(m *model, documents []*document) (effects []fact, reason string) {
	rest := map[string]bool{}
	for _, d := range documents {
		if d.agent != nil {
			rest[d.agent.id] = true
		}
	}
	for len(rest) > 0 {
		before := len(rest)
		for _, d := range documents {
			if d.agent == nil || !rest[d.agent.id] {
				continue
			}
			a := *d.agent
			if rest[a.parent] && a.parent != a.id && m.agent(a.parent) == nil {
				continue // its parent comes first
			}
			f, reason := m.applyAgent(a)
			if reason != "" {
				return nil, reason
			}
			if f != nil {
				effects = append(effects, *f)
				m.facts = append(m.facts, *f)
			}
			delete(rest, a.id)
		}
		if len(rest) == before {
			return nil, "hierarchy_cycle"
		}
	}
	return effects, ""
}

func (m *model) applyAgent(a fact) (*fact, string) {
	if !m.allCapabilities(a.capabilities) {
		return nil, "policy_invalid"
	}
	old := m.agent(a.id)
	if old == nil {
		if a.key == "" {
			return nil, "policy_invalid"
		}
		return &a, m.newcomer(a)
	}
	switch {
	case m.agentRevoked(a.id):
		return nil, "agent_revoked"
	case old.parent != a.parent, a.key != "" && a.key != old.key:
		return nil, "duplicate_agent"
	}
	// What the document leaves out stays, as far as it is still declared.
	if terms := m.terms(a.id); a.use == nil && terms.use != nil {
		for _, c := range terms.use {
			if slices.Contains(a.capabilities, c) {
				a.use = append(a.use, c)
			}
		}
		if a.use == nil {
			return nil, "policy_invalid"
		}
	}
	if a.writes == nil {
		a.writes = m.terms(a.id).writes
	}
	switch {
	case sameSet(m.declared(a.id), a.capabilities) && sameSet(m.terms(a.id).use, a.use) && sameSet(m.terms(a.id).writes, a.writes):
		return nil, ""
	}
	return &fact{kind: "agent.updated", id: a.id, capabilities: a.capabilities, use: a.use, writes: a.writes}, ""
}

func applyPrincipals(m *model, documents []*document) (effects []fact, reason string) {
	for _, d := range documents {
		if d.principal == nil {
			continue
		}
		p := *d.principal
		old := m.principal(p.id)
		switch {
		case !roleFits(p, len(p.capabilities), 0), old == nil && p.key == "":
			return nil, "policy_invalid"
		case old != nil && m.principalRevoked(p.id):
			return nil, "agent_revoked"
		case old != nil && (old.role != p.role || !sameSet(old.capabilities, p.capabilities) || old.parent != p.parent || p.key != "" && p.key != m.principalKey(p.id)):
			return nil, "duplicate_agent"
		case old != nil:
			continue
		}
		if reason := m.newPrincipal(p, len(p.capabilities), 0); reason != "" {
			return nil, reason
		}
		effects = append(effects, p)
		m.facts = append(m.facts, p)
	}
	return effects, ""
}

func applyMemory(m *model, documents []*document) (effects []fact, reason string) {
	for _, d := range documents {
		if d.memory == nil {
			continue
		}
		v := m.load(*d.memory)
		switch v.reason {
		case "record_exists":
		case "control_done":
			effects = append(effects, v.effects...)
			m.facts = append(m.facts, v.effects...)
		default:
			return nil, v.reason
		}
	}
	return effects, ""
}

func (p *policyDoc) yaml() string {
	var b strings.Builder
	b.WriteString("apiVersion: ledgerd/v1\nkind: Policy\nversion: " + p.version + "\nenvironment: [" + strings.Join(p.environment, ", ") + "]\n")
	if len(p.actions) > 0 {
		b.WriteString("actions:\n")
		for _, a := range p.actions {
			if seconds := p.timeouts[a]; seconds > 0 {
				b.WriteString("  " + a + ": {timeout: " + itoa(seconds) + "s}\n")
				continue
			}
			b.WriteString("  " + a + ": {}\n")
		}
	}
	if len(p.classes) > 0 {
		b.WriteString("namespaces:\n")
		for _, name := range sortedNames(p.classes) {
			b.WriteString("  " + name + ": {class: " + p.classes[name])
			if p.classes[name] == "mandatory" {
				b.WriteString(", combine: all_true")
			}
			if p.classes[name] == "task" && p.most > 0 {
				b.WriteString(", ttl_seconds: " + itoa(p.most))
			}
			b.WriteString("}\n")
		}
	}
	b.WriteString("limits: {tree_depth: " + itoa(p.depth) + ", children: " + itoa(p.children))
	if p.records > 0 {
		b.WriteString(", records: " + itoa(p.records))
	}
	if p.treeRecords > 0 {
		b.WriteString(", tree_records: " + itoa(p.treeRecords))
	}
	if p.retention > 0 {
		b.WriteString(", retention_days: " + itoa(p.retention))
	}
	b.WriteString("}\n")
	return b.String()
}

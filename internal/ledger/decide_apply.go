package ledger

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// apply puts documents in force, all or none: the policy first, then agents
// with parents before children, principals, and memory. What is already so
// changes nothing, so that the same apply again is no change.
func (j *judge) apply(r *wire.Apply) reason.Code {
	if r.ExpectedVersion != "" && r.ExpectedVersion != j.s.PolicyVersion() {
		j.note("the policy in force is %s", j.s.PolicyVersion())
		return reason.RevisionConflict
	}
	documents, faults := parseAll(r.Documents)
	if len(faults) > 0 {
		j.out.Faults = faults
		return reason.PolicyInvalid
	}
	d := newDraft(j.s, j.now())
	own := *j // lives on the heap, as the judge of no other operation has to
	for _, step := range []func(*judge, *draft, []policy.Document) reason.Code{
		(*judge).applyPolicy, (*judge).applyAgents, (*judge).applyPrincipals, (*judge).applyMemory, (*judge).applyResources,
	} {
		if code := step(&own, d, documents); code != "" {
			j.out.Applied = nil
			return code
		}
	}
	if r.DryRun {
		j.out.Effects = nil
	}
	return reason.ControlDone
}

// faultsMax is as many as anyone mends in one round; it bounds the reply.
const faultsMax = 100

func parseAll(texts []string) ([]policy.Document, []string) {
	var documents []policy.Document
	var faults []string
	if len(texts) == 0 {
		faults = append(faults, "no documents")
	}
	about := map[string]bool{}
	for i, text := range texts {
		document, found := policy.ParseDocument(text)
		for _, f := range found {
			faults = append(faults, fmt.Sprintf("document %d: %s", i+1, f))
		}
		if len(found) == 0 && about[subject(document)] {
			faults = append(faults, fmt.Sprintf("document %d: a second document about %s", i+1, subject(document)))
		}
		if len(faults) >= faultsMax {
			return nil, faults[:faultsMax]
		}
		about[subject(document)] = true
		documents = append(documents, document)
	}
	return documents, faults
}

// subject is what a document is about. Of two about one thing neither could be
// obeyed without disobeying the other.
func subject(d policy.Document) string {
	switch {
	case d.Policy != nil:
		return "the policy"
	case d.Agent != nil:
		return "id " + d.Agent.ID
	case d.Principal != nil:
		return "id " + d.Principal.ID
	case d.Resource != nil:
		return "resource " + d.Resource.ID
	case d.Memory != nil:
		return "record " + d.Memory.Owner + ":" + d.Memory.Namespace + "." + d.Memory.Key
	}
	return ""
}

func (j *judge) fault(format string, args ...any) reason.Code {
	j.note(format, args...)
	return reason.PolicyInvalid
}

// note tells the sender more than the reason does; it is in no event.
func (j *judge) note(format string, args ...any) {
	j.out.Faults = append(j.out.Faults, fmt.Sprintf(format, args...))
}

func (j *judge) applied(kind, id, result string) {
	j.out.Applied = append(j.out.Applied, Applied{kind, id, result})
}

func (j *judge) applyPolicy(draft *draft, documents []policy.Document) reason.Code {
	texts := j.p.Request.Body.(*wire.Apply).Documents
	for i, document := range documents {
		p := document.Policy
		if p == nil {
			continue
		}
		j.d.Resource = p.Version
		digest, used := j.s.VersionDigest(p.Version)
		if used && digest != p.Digest {
			return reason.PolicyVersionExists
		}
		if j.s.Policy != nil && j.s.Policy.Digest == p.Digest {
			j.applied("Policy", p.Version, "unchanged")
			continue
		}
		if code := j.signed(p, used); code != "" {
			return code
		}
		draft.policy = p
		j.out.Effects = append(j.out.Effects, Effect{
			Body: &events.PolicyActivated{Version: p.Version, Digest: p.Digest, Rules: Rules},
			Open: []byte(texts[i]),
		})
		j.applied("Policy", p.Version, "updated")
		j.unfitting(p)
	}
	if draft.policy == nil {
		return reason.NoPolicy
	}
	return ""
}

// applyAgents registers parents before children, whatever their order in the
// file, by going over the rest until a round brings nothing new.
func (j *judge) applyAgents(draft *draft, documents []policy.Document) reason.Code {
	var rest []*policy.Agent
	pending := map[string]bool{}
	for _, document := range documents {
		if document.Agent != nil {
			rest = append(rest, document.Agent)
			pending[document.Agent.ID] = true
		}
	}
	for len(rest) > 0 {
		var waiting []*policy.Agent
		for _, a := range rest {
			if pending[a.Parent] && a.Parent != a.ID && !draft.knows(a.Parent) {
				waiting = append(waiting, a)
				continue
			}
			if code := j.applyAgent(draft, a); code != "" {
				j.d.Resource = a.ID
				return code
			}
		}
		if len(waiting) == len(rest) {
			j.d.Resource = rest[0].ID
			return reason.HierarchyCycle
		}
		rest = waiting
	}
	return ""
}

func (j *judge) applyAgent(draft *draft, a *policy.Agent) reason.Code {
	if unknown := policy.CheckCapabilities(draft.policy, a.Capabilities); len(unknown) > 0 {
		return j.fault("agent %s: capability %s is declared nowhere; add it to the policy's actions", a.ID, unknown[0])
	}
	existing := j.s.Agent(a.ID)
	if existing == nil {
		if a.PublicKey == "" {
			return j.fault("agent %s: a new agent needs a public_key", a.ID)
		}
		agent := events.AgentRegistered{AgentID: a.ID, ParentID: a.Parent, Capabilities: a.Capabilities, Use: a.Use, Writes: a.Writes, PublicKey: a.PublicKey}
		if code := draft.register(agent); code != "" {
			return code
		}
		j.emit(&agent)
		if _, code := j.applyRestrictions(draft.policy, a); code != "" {
			return code
		}
		j.applied("Agent", a.ID, "created")
		return ""
	}
	switch parent := existing.Parent; {
	case existing.Revoked:
		j.note("%s is revoked for ever: take its document out, or register another id", a.ID)
		return reason.AgentRevoked
	case parent == nil && a.Parent != "", parent != nil && a.Parent != parent.ID:
		j.note("the parent of %s is set and cannot be changed", a.ID)
		return reason.DuplicateAgent
	case a.PublicKey != "" && a.PublicKey != existing.PublicKey:
		j.note("%s is registered with another key; leave public_key out to keep it", a.ID)
		return reason.DuplicateAgent
	}
	use, writes := a.Limits(existing.Use, existing.Writes)
	if len(use) == 0 && len(a.Use)+len(existing.Use) > 0 && !a.UseAll {
		return j.fault("agent %s: of its use nothing is left among the new capabilities; say use: [...], or use: all", a.ID)
	}
	changed := !existing.Declared.Equal(a.Capabilities) || !existing.Use.Equal(use) || !existing.Writes.Equal(writes)
	if changed {
		j.emit(&events.AgentUpdated{AgentID: a.ID, Capabilities: a.Capabilities, Use: use, Writes: writes})
	}
	added, code := j.applyRestrictions(draft.policy, a)
	if code != "" {
		return code
	}
	result := "unchanged"
	if changed || added {
		result = "updated"
	}
	j.applied("Agent", a.ID, result)
	return ""
}

func (j *judge) applyPrincipals(draft *draft, documents []policy.Document) reason.Code {
	for _, document := range documents {
		if document.Principal == nil {
			continue
		}
		if code := j.applyPrincipal(draft, document.Principal); code != "" {
			j.d.Resource = document.Principal.ID
			return code
		}
	}
	return ""
}

func (j *judge) applyPrincipal(draft *draft, d *policy.Principal) reason.Code {
	p := events.PrincipalRegistered{ID: d.ID, Role: d.Role, PublicKey: d.PublicKey, Actions: d.Actions, Groups: d.Groups, Root: d.Root}
	existing := j.s.Principal(d.ID)
	switch {
	case !validRole(p):
		return j.fault("principal %s: a %s has not the fields of its role", d.ID, d.Role)
	case existing == nil && d.PublicKey == "":
		return j.fault("principal %s: a new principal needs a public_key", d.ID)
	case existing == nil:
		if code := draft.registerPrincipal(p); code != "" {
			return code
		}
		j.emit(&p)
		j.applied("Principal", d.ID, "created")
		return ""
	case existing.Revoked:
		j.note("%s is revoked for ever: take its document out, or register another id", d.ID)
		return reason.AgentRevoked
	case existing.Role != d.Role, existing.Root != d.Root,
		!policy.NewSet(existing.Actions...).Equal(policy.NewSet(d.Actions...)),
		!policy.NewSet(existing.Groups...).Equal(policy.NewSet(d.Groups...)),
		d.PublicKey != "" && d.PublicKey != existing.PublicKey:
		j.note("%s is registered with another role, root, actions, groups or key", d.ID)
		return reason.DuplicateAgent
	}
	j.applied("Principal", d.ID, "unchanged")
	return ""
}

func (j *judge) applyMemory(draft *draft, documents []policy.Document) reason.Code {
	for _, document := range documents {
		m := document.Memory
		if m == nil {
			continue
		}
		name := m.Owner + ":" + m.Namespace + "." + m.Key
		effects, code := draft.load(m.Owner, m.Namespace, m.Key, m.Visibility, m.Value)
		switch code {
		case reason.RecordExists:
			j.applied("Memory", name, "kept")
		case "":
			if last := &effects[len(effects)-1]; last.Open == nil {
				last.Seal = m.Value
			}
			j.out.Effects = append(j.out.Effects, effects...)
			j.applied("Memory", name, "created")
		default:
			j.d.Resource = name
			return code
		}
	}
	return ""
}

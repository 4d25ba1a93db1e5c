package ledger

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// broken are the rules that arguments break, the policy's first, then those of
// the root and so on down to the agent, each agent's by id.
type broken struct {
	rule, owner string   // of the first
	failed      []string // the policy's by id, an agent's as agent:id
}

func (b *broken) add(owner, id string) {
	if len(b.failed) == 0 {
		b.rule, b.owner = id, owner
	}
	if owner != "" {
		id = owner + ":" + id
	}
	b.failed = append(b.failed, id)
}

// tell puts the rules into the decision.
func (b *broken) tell(d *events.Decision) {
	if len(b.failed) > 0 {
		d.Rule, d.Owner, d.Failed = b.rule, b.owner, b.failed
	}
}

// rules holds the canonical arguments of a declared action to its schema, and
// to every requirement of the policy and of the lineage. It returns "" where
// nothing forbids them.
func (j *judge) rules(action string, arguments []byte) (code reason.Code, b broken) {
	declared := j.s.Policy.Actions[action]
	restricted := false
	for a := j.agent; a != nil; a = a.Parent {
		for i := range a.Restrictions {
			restricted = restricted || a.Restrictions[i].Action == action
		}
	}
	if declared.Arguments == nil && len(declared.Require) == 0 && !restricted {
		return "", b
	}
	args, err := policy.NewArguments(arguments)
	if err == nil && declared.Arguments != nil {
		err = declared.Arguments.ValidateArguments(args)
	}
	if err != nil {
		j.note("%s: %v", action, err)
		if j.trace != nil {
			errors.As(err, &j.trace.found().Schema)
		}
		return reason.ArgumentSchema, b
	}
	if j.facts == nil {
		j.facts = &policy.Facts{Mandatory: j.mandatoryNamed, Resource: j.s.Resource}
	}
	hold := func(owner, id, text string, clause *policy.Clause, err error) {
		ok := false
		if err == nil {
			ok, err = clause.Holds(args, j.facts)
		}
		if ok && err == nil {
			return
		}
		switch {
		case code != "":
		case err != nil:
			code = reason.RequirementError
		default:
			code = reason.RequirementFailed
		}
		b.add(owner, id)
		if j.trace != nil {
			j.trace.found().breaks(owner, id, text, err)
		}
		if err != nil && len(b.failed) == 1 {
			j.note("%s: %v", b.failed[0], err)
		}
	}
	for _, clause := range declared.Require {
		hold("", clause.ID, clause.Text, clause, nil)
	}
	if restricted {
		lineage := j.agent.Lineage()
		for i := len(lineage) - 1; i >= 0; i-- {
			for _, r := range lineage[i].Restrictions {
				if r.Action == action {
					clause, err := j.s.Clause(r)
					hold(lineage[i].ID, r.ID, r.Text, clause, err)
				}
			}
		}
	}
	return code, b
}

func (f *Found) breaks(owner, id, text string, err error) {
	rule := BrokenRule{ID: id, Owner: owner, Text: text}
	if err != nil {
		rule.Err = err.Error()
	}
	f.Rules = append(f.Rules, rule)
}

// Rules is rules for a step; what is broken is kept for its decision.
func (j *judge) Rules(step *sop.Step) reason.Code {
	code, b := j.rules(step.Action, step.Arguments)
	if len(b.failed) > 0 {
		if j.broken == nil {
			j.broken = map[string]broken{}
		}
		j.broken[step.ID] = b
	}
	return code
}

// mandatoryNamed is the combined value that a mandatory name has for the agent
// now, of every record of its lineage, shown or hidden. Its root must have laid
// it down: else whoever is denied for want of a record would write one.
func (j *judge) mandatoryNamed(name string) (value []byte, read int, ok bool) {
	if j.trace != nil {
		j.trace.asks = true
	}
	dot := strings.LastIndexByte(name, '.')
	namespace, key := name[:dot], name[dot+1:]
	if j.s.Policy.Class(namespace, key) != policy.Mandatory {
		return nil, 0, false
	}
	lineage := j.agent.Lineage()
	if j.s.Live(lineage[len(lineage)-1].ID, namespace, key, j.now()) == nil {
		return nil, 0, false
	}
	return j.mandatory(namespace, key)
}

// restrict adds a requirement to the sender and all beneath it.
func (j *judge) restrict(r *wire.RestrictionAdd) reason.Code {
	code := j.restriction(j.s.Policy, j.agent.ID, j.agent, 0, policy.Restriction{ID: r.ID, Action: r.Action, Text: r.Require}, true)
	if j.fails("restriction", code != "") {
		return code
	}
	return reason.RestrictionAdded
}

// restriction checks a new restriction of an agent under a policy, and emits its
// event unless the agent has it already. has is the agent, nil for one that is
// new, and added what the same request adds to it.
func (j *judge) restriction(p *policy.Policy, agent string, has *projection.Agent, added int, r policy.Restriction, own bool) reason.Code {
	count, existing, exists := added, policy.Restriction{}, false
	if has != nil {
		count += len(has.Restrictions)
		existing, exists = has.Restriction(r.ID)
	}
	switch {
	case exists && existing == r:
		return ""
	case exists:
		j.note("restriction %s of %s says something else; an admin removes it first", r.ID, agent)
		return reason.RecordExists
	case count >= policy.RestrictionsMax:
		j.note("agent %s has %d restrictions, as many as there may be", agent, count)
		return reason.QuotaExceeded
	}
	if own && j.agent.Root().Tree.Restrictions >= policy.TreeRestrictionsMax { // each is compiled for whoever it binds
		j.note("the agents of this tree have added %d restrictions, as many as they may", policy.TreeRestrictionsMax)
		return reason.QuotaExceeded
	}
	compile := p.CompileClause
	if own { // its first judgement finds it compiled
		compile = func(string, string, string) (*policy.Clause, error) { return j.s.Clause(r) }
	}
	clause, err := compile(r.Action, r.ID, r.Text)
	if err == nil && own && clause.Asks {
		err = errors.New("mandatory() and resource() are for the operator's rules: an agent that may not read a record could else ask of it bit by bit")
	}
	if err != nil {
		j.note("restriction %s of %s: %v", r.ID, agent, err)
		return reason.PolicyInvalid
	}
	j.emit(&events.RestrictionAdded{AgentID: agent, ID: r.ID, Action: r.Action, Require: r.Text})
	return ""
}

func (j *judge) unrestrict(r *wire.RestrictionRemove) reason.Code {
	a := j.s.Agent(r.AgentID)
	if a == nil {
		return reason.NotFound
	}
	if _, exists := a.Restriction(r.ID); !exists {
		return reason.NotFound
	}
	j.emit(&events.RestrictionRemoved{AgentID: a.ID, ID: r.ID})
	return reason.ControlDone
}

// applyRestrictions adds those of an Agent document that the agent has not.
func (j *judge) applyRestrictions(p *policy.Policy, a *policy.Agent) (changed bool, code reason.Code) {
	has, before := j.s.Agent(a.ID), len(j.out.Effects)
	for _, r := range a.Restrictions {
		if code := j.restriction(p, a.ID, has, len(j.out.Effects)-before, r, false); code != "" {
			return false, code
		}
	}
	return len(j.out.Effects) > before, ""
}

// unfitting tells of the restrictions in force that mean nothing under a new
// policy. They stand and deny: an agent must not be able to keep a policy from
// coming into force, nor a policy to end a restriction.
func (j *judge) unfitting(p *policy.Policy) {
	type rule struct {
		agent string
		policy.Restriction
	}
	var rules []rule
	j.s.Restricted(func(agent *projection.Agent, r policy.Restriction) {
		if _, declared := p.Actions[r.Action]; declared && !agent.Revoked {
			rules = append(rules, rule{agent.ID, r})
		}
	})
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Or(cmp.Compare(a.agent, b.agent), cmp.Compare(a.ID, b.ID)) })
	tried := map[policy.Restriction]error{}
	told := 0
	for _, r := range rules {
		key := policy.Restriction{Action: r.Action, Text: r.Text}
		err, known := tried[key]
		if !known {
			if len(tried) == unfittingMax {
				continue
			}
			_, err = p.CompileClause(r.Action, r.ID, r.Text)
			tried[key] = err
		}
		if err != nil && told < faultsMax {
			told++
			j.applied("Restriction", r.agent+":"+r.ID, "denies: it does not fit the policy")
		}
	}
}

// unfittingMax is how many texts of restrictions a new policy is tried with.
const unfittingMax = 200

func (j *judge) setResource(r *wire.ResourceSet) reason.Code {
	next := policy.Resource{ID: r.ID, Classification: r.Classification, Owner: r.Owner, Tags: policy.NewSet(r.Tags...)}
	if _, code := j.resource(next, 0); code != "" {
		return code
	}
	return reason.ControlDone
}

// resource says what an object is, where that is not said already; added counts
// the new ones that the same apply has brought.
func (j *judge) resource(next policy.Resource, added int) (result string, code reason.Code) {
	old, exists := j.s.Resource(next.ID)
	switch {
	case !next.Valid():
		return "", reason.MalformedRequest
	case exists && old.Equal(next):
		return "unchanged", ""
	case exists:
		result = "updated"
	case j.s.ResourceCount()+added >= policy.ResourcesMax:
		return "", reason.QuotaExceeded
	default:
		result = "created"
	}
	j.emit(&events.ResourceSet{ID: next.ID, Classification: next.Classification, Owner: next.Owner, Tags: next.Tags})
	return result, ""
}

func (j *judge) applyResources(_ *draft, documents []policy.Document) reason.Code {
	added := 0
	for _, document := range documents {
		if document.Resource == nil {
			continue
		}
		result, code := j.resource(*document.Resource, added)
		if code != "" {
			j.d.Resource = document.Resource.ID
			return code
		}
		if result == "created" {
			added++
		}
		j.applied("Resource", document.Resource.ID, result)
	}
	return ""
}

package replay

import (
	"encoding/json"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Of a request that is missing an effect still says what was asked for, or enough of
// it: a request is put together that asks for just that, and given to the rules in
// the state before the effect. What they would not give nobody can have asked for.

// asks is a request made from an effect; any stands for a value of JSON.
type asks map[string]any

// wouldGive is the outcome where the decision's sender asks so; nil where it is denied.
func (r *run) wouldGive(d *events.Decision, operation string, of asks, more ...func(*ledger.Proposal)) *ledger.Outcome {
	b, err := json.Marshal(of)
	if err != nil {
		return nil
	}
	request, code := wire.Decode(r.lane(d), operation, b)
	if code != "" {
		return nil
	}
	return r.wouldFollow(d, request, more...)
}

func (r *run) wouldFollow(d *events.Decision, request *wire.Request, more ...func(*ledger.Proposal)) *ledger.Outcome {
	p := &ledger.Proposal{Lane: r.lane(d), Subject: d.Subject, Operation: request.Operation, Request: request, Now: r.decision.Time}
	var err error
	if p.Beside, err = r.beside(r.decision.Seq, request); err != nil {
		return nil
	}
	for _, add := range more {
		add(p)
	}
	signers := r.s.Signers
	r.s.Signers = nil // that one of them has signed stands in the request alone
	o := ledger.Decide(r.s, p)
	r.s.Signers = signers
	if o.Decision == nil || !o.Decision.Allowed {
		return nil
	}
	return o
}

// asked is the one event that follows where the decision's own operation is asked
// for with that, and where that names what the decision names as its resource.
func (r *run) asked(d *events.Decision, of asks, more ...func(*ledger.Proposal)) events.Body {
	o := r.wouldGive(d, d.Operation, of, more...)
	if o == nil || o.Decision.Resource != d.Resource {
		return nil
	}
	return sole(o)
}

// askedFor is asked for an effect of a decision on anything but documents.
func (r *run) askedFor(d *events.Decision, b events.Body) events.Body {
	switch b := b.(type) {
	case *events.AgentRegistered:
		return r.asked(d, registration(b, r.s.Agent(d.Subject) == nil))
	case *events.RestrictionAdded:
		return r.asked(d, asks{"id": b.ID, "action": b.Action, "require": b.Require})
	case *events.RestrictionRemoved:
		return r.asked(d, asks{"agent_id": b.AgentID, "id": b.ID})
	case *events.GrantGiven:
		of := asks{"namespace": b.Namespace, "key": b.Key, "to": b.To, "expires_seconds": (b.Expires - r.decision.Time) / 1_000_000}
		return r.asked(d, with(of, "uses", b.Uses, b.Uses != 0))
	case *events.PrincipalRegistered:
		return r.asked(d, principal(b))
	case *events.PrincipalRekeyed:
		return r.asked(d, asks{"id": b.ID, "public_key": b.PublicKey})
	case *events.ResourceSet:
		return r.asked(d, resource(b))
	case *events.EnvironmentChanged:
		return r.asked(d, asks{"capabilities": b.Capabilities})
	case *events.SignersSet:
		if r.s.Signers.Equal(b.Keys) || !policy.ValidSigners(b.Keys) {
			return nil
		}
		return &events.SignersSet{Number: r.s.SignersNo + 1, Keys: b.Keys}
	case *events.EmergencyDenied:
		of := asks{"reason": "unknown"}
		of = with(of, "agent_id", b.Scope, b.Scope != events.ScopeAll)
		of = with(of, "ledger", true, b.Scope == events.ScopeAll)
		of = with(of, "all", true, b.All)
		return r.asked(d, with(of, "capabilities", b.Capabilities, !b.All))
	case *events.EmergencyLifted:
		return r.asked(d, asks{"epoch": b.Epoch})
	case *events.KeyRotated:
		return r.asked(d, asks{"key": b.Key}, func(p *ledger.Proposal) { p.NewKey = b.PublicKey })
	case *events.KeyRetired:
		return r.asked(d, asks{"key": b.Key}, func(p *ledger.Proposal) { p.Handoff = b.Checkpoint })
	}
	return nil
}

func with(of asks, name string, value any, is bool) asks {
	if is {
		of[name] = value
	}
	return of
}

// some is a list that is written as one though it is empty.
func some(list []string) []string { return append([]string{}, list...) }

// registration asks for an agent: by its parent, or by an admin who says whose child
// it is.
func registration(b *events.AgentRegistered, admin bool) asks {
	of := asks{"agent_id": b.AgentID, "capabilities": some(b.Capabilities), "public_key": b.PublicKey}
	of = with(of, "use", b.Use, len(b.Use) > 0)
	of = with(of, "writes", b.Writes, len(b.Writes) > 0)
	return with(of, "parent_id", b.ParentID, admin && b.ParentID != "")
}

func principal(b *events.PrincipalRegistered) asks {
	of := asks{"id": b.ID, "role": b.Role, "public_key": b.PublicKey}
	of = with(of, "actions", b.Actions, len(b.Actions) > 0)
	of = with(of, "groups", b.Groups, len(b.Groups) > 0)
	return with(of, "root", b.Root, b.Root != "")
}

func resource(b *events.ResourceSet) asks {
	of := asks{"id": b.ID, "classification": b.Classification}
	of = with(of, "owner", b.Owner, b.Owner != "")
	return with(of, "tags", b.Tags, len(b.Tags) > 0)
}

// The kinds of documents in the order in which an apply goes over them.
const (
	phasePolicy = iota
	phaseAgents
	phasePrincipals
	phaseMemory
	phaseResources
)

// applied takes the effects of an apply one by one, each as if its document were the
// only one of a request.
type applied struct {
	r     *run
	d     *events.Decision
	phase int
	about map[string]bool // what documents there have been
	agent string          // of the last one
	gone  string          // record that is to be written next
}

// document is the event that a document gives which could have been there, nil where
// none could.
func (a *applied) document(b events.Body) events.Body {
	phase, of := documentOf(b)
	first := !a.about[of]
	a.about[of] = true
	if phase < a.phase || !a.inForce(phase) || a.gone != "" && of != a.gone {
		return nil
	}
	a.phase = phase
	switch b := b.(type) {
	case *events.PolicyActivated:
		return a.policy(b)
	case *events.AgentRegistered:
		if a.agent = b.AgentID; first {
			return sole(a.r.wouldGive(a.d, "agent.register", registration(b, true)))
		}
	case *events.AgentUpdated:
		if a.agent = b.AgentID; first {
			return a.updated(b)
		}
	case *events.RestrictionAdded:
		if again := a.agent == b.AgentID; again || first {
			a.agent = b.AgentID
			return a.restricted(b)
		}
	case *events.PrincipalRegistered:
		return sole(a.r.wouldGive(a.d, "principal.register", principal(b)))
	case *events.ResourceSet:
		if first {
			return sole(a.r.wouldGive(a.d, "resource.set", resource(b)))
		}
	case *events.MemoryExpired:
		a.gone = of
		if want := a.r.s.Expiry(a.r.s.Record(b.Owner, b.Namespace, b.Key), a.r.decision.Time); want != nil {
			a.r.then = []slot{{typ: events.TypeMemoryWritten, want: a.document}}
			return want
		}
	case *events.MemoryWritten:
		a.gone = ""
		return a.r.loaded(a.d, b)
	}
	return nil
}

// documentOf says which kind of document an event follows from, and what that is
// about.
func documentOf(b events.Body) (phase int, of string) {
	record := func(r *events.Record) string { return "record " + r.Owner + ":" + r.Namespace + "." + r.Key }
	switch b := b.(type) {
	case *events.PolicyActivated:
		return phasePolicy, "the policy"
	case *events.AgentRegistered:
		return phaseAgents, "id " + b.AgentID
	case *events.AgentUpdated:
		return phaseAgents, "id " + b.AgentID
	case *events.RestrictionAdded:
		return phaseAgents, "id " + b.AgentID
	case *events.PrincipalRegistered:
		return phasePrincipals, "id " + b.ID
	case *events.MemoryExpired:
		return phaseMemory, record(&b.Record)
	case *events.MemoryWritten:
		return phaseMemory, record(&b.Record)
	case *events.ResourceSet:
		return phaseResources, "resource " + b.ID
	}
	return -1, ""
}

// inForce reports whether the policy that the decision names, if it does, is there
// when the documents after it have their turn.
func (a *applied) inForce(phase int) bool {
	return phase == phasePolicy || a.d.Resource == "" || a.d.Resource == a.r.s.PolicyVersion()
}

func (a *applied) policy(b *events.PolicyActivated) events.Body {
	if b.Version != a.d.Resource || len(a.about) > 1 {
		return nil
	}
	if _, used := a.r.s.VersionDigest(b.Version); used && len(a.r.s.Signers) > 0 {
		return nil // a signed version comes once
	}
	text, err := a.r.openPayload(&a.r.at.Event, nil)
	if err != nil {
		return nil
	}
	return a.r.apply1(a.d, string(text))
}

// apply1 is what an apply of one document gives.
func (r *run) apply1(d *events.Decision, document string) events.Body {
	return sole(r.wouldFollow(d, &wire.Request{Operation: "apply", Body: &wire.Apply{Documents: []string{document}}}))
}

// agentDocument writes the document of an agent that is there.
func agentDocument(a *projection.Agent, capabilities []string, more asks) string {
	of := asks{"kind": "Agent", "id": a.ID, "capabilities": some(capabilities)}
	if a.Parent != nil {
		of["parent"] = a.Parent.ID
	}
	for name, value := range more {
		of[name] = value
	}
	text := ""
	for name, value := range of {
		b, err := json.Marshal(value)
		if err != nil {
			return ""
		}
		text += name + ": " + string(b) + "\n"
	}
	return text
}

// limit is what use and writes say: all where that ends what there was.
func limit(now, before []string) (value any, is bool) {
	switch {
	case len(now) > 0:
		return now, true
	case len(before) > 0:
		return "all", true
	}
	return nil, false
}

func (a *applied) updated(b *events.AgentUpdated) events.Body {
	agent := a.r.s.Agent(b.AgentID)
	if agent == nil {
		return nil
	}
	of := asks{}
	if use, is := limit(b.Use, agent.Use); is {
		of["use"] = use
	}
	if writes, is := limit(b.Writes, agent.Writes); is {
		of["writes"] = writes
	}
	return a.r.apply1(a.d, agentDocument(agent, b.Capabilities, of))
}

func (a *applied) restricted(b *events.RestrictionAdded) events.Body {
	agent := a.r.s.Agent(b.AgentID)
	if agent == nil {
		return nil
	}
	one := asks{"id": b.ID, "action": b.Action, "require": b.Require}
	return a.r.apply1(a.d, agentDocument(agent, agent.Declared, asks{"restrictions": []asks{one}}))
}

// sole is the one event of an outcome that has just that.
func sole(o *ledger.Outcome) events.Body {
	if o == nil || len(o.Effects) != 1 {
		return nil
	}
	return o.Effects[0].Body
}

// loaded is the record that follows from an admin's first write of it, whose value
// nobody need be able to read: a mandatory one is always there.
func (r *run) loaded(d *events.Decision, b *events.MemoryWritten) events.Body {
	agent := r.s.Agent(b.Owner)
	if agent == nil || agent.Revoked || r.s.Live(b.Owner, b.Namespace, b.Key, r.decision.Time) != nil {
		return nil
	}
	if r.s.Policy != nil && r.s.Policy.Class(b.Namespace, b.Key) == policy.Mandatory {
		value, err := r.openPayload(&r.at.Event, nil)
		if err != nil || b.Class != string(policy.Mandatory) {
			return nil
		}
		return sole(r.wouldGive(d, "memory.load", asks{
			"owner_agent_id": b.Owner, "namespace": b.Namespace, "key": b.Key, "visibility": b.Visibility, "value": json.RawMessage(value),
		}))
	}
	slots := r.written(b.Owner, b.Namespace, b.Key, "memory.load")
	return slots[len(slots)-1].want(b)
}

// documents takes what follows from an apply whose documents are missing.
func (r *run) documents(d *events.Decision) []slot {
	a := &applied{r: r, d: d, about: map[string]bool{}}
	return []slot{{optional: true, many: true, want: a.document}}
}

// erasing takes what follows from an erasure: the event, then just the records that
// are gone with it.
func (r *run) erasing(d *events.Decision) []slot {
	return one(events.TypePayloadErased, true, func(b events.Body) events.Body {
		erased := b.(*events.PayloadErased)
		of := with(asks{"basis": erased.Basis}, "agent_id", erased.Owner, erased.Owner != "")
		o := r.wouldGive(d, d.Operation, with(of, "seqs", erased.Seqs, erased.Owner == ""))
		if o == nil || len(o.Effects) == 0 {
			return nil
		}
		for _, effect := range o.Effects[1:] {
			r.then = append(r.then, exactly(effect.Body))
		}
		return o.Effects[0].Body
	})
}

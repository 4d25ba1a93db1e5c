package replay

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// derive says how the decision on p comes about in the state before it.
func (r *run) derive(recorded, recomputed *events.Decision, p *ledger.Proposal) *audit.Derivation {
	d := r.basis(recorded, recomputed)
	_, descent := ledger.Trace(r.s, p)
	for _, g := range descent.Guards {
		d.Guards = append(d.Guards, audit.Guard{Name: g.Name, Result: g.Result, Reason: string(g.Reason)})
	}
	r.terms(d, recorded.Subject, ledger.CapabilityOf(p.Request))
	return d
}

// basis is what a derivation says without a request.
func (r *run) basis(recorded, recomputed *events.Decision) *audit.Derivation {
	return &audit.Derivation{
		Policy: r.s.PolicyVersion(), Digest: r.s.PolicyDigest().String(), PolicySeq: r.policySeq, Rules: r.s.Rules,
		Recorded: verdictText(recorded), Recomputed: verdictText(recomputed),
	}
}

func verdictText(d *events.Decision) string {
	verdict := "denied "
	if d.Allowed {
		verdict = "allowed "
	}
	verdict += d.Reason
	if d.Rule != "" {
		verdict += " by rule " + d.Rule
	}
	if d.Owner != "" {
		verdict += " of " + d.Owner
	}
	return verdict
}

// terms adds the intersection that an agent's effective set is, and which of its
// terms remove a capability.
func (r *run) terms(d *audit.Derivation, id, capability string) {
	a := r.s.Agent(id)
	if a == nil || capability == "" {
		return
	}
	lacks := r.s.LacksUse(a, capability)
	why := func(by string, kinds ...string) string {
		for _, l := range lacks {
			if l.By == by && (len(kinds) == 0 || slices.Contains(kinds, l.Why)) {
				return l.Why
			}
		}
		return ""
	}
	add := func(of, why string) {
		t := audit.Term{Of: of, Holds: why == "", Why: why}
		if d.Terms = append(d.Terms, t); !t.Holds {
			d.Removed = append(d.Removed, t)
		}
	}
	d.Capability = capability
	add("environment", why(projection.EnvironmentLevel))
	for _, level := range slices.Backward(a.Lineage()) {
		add("declared("+level.ID+")", why(level.ID, projection.LackDeclared, projection.LackRevoked))
	}
	if len(a.Use) > 0 {
		add("use("+a.ID+")", why(a.ID, projection.LackUse))
	}
	if len(r.s.Denies()) > 0 {
		add("¬emergency", why(projection.EmergencyLevel))
	}
}

// explain puts a derivation beside the last finding, if that is one of seq.
func (r *run) explain(seq uint64, d func() *audit.Derivation) {
	if n := len(r.Findings); n > 0 && uint64(n) == r.Found && r.Findings[n-1].Seq == seq {
		r.Findings[n-1].Derivation = d()
	}
}

// explainEffect derives, for a registration that gives more than was decided,
// the first capability too many from those of the parent.
func (r *run) explainEffect(found *logged, expected events.Body) {
	got, ok := found.Body.(*events.AgentRegistered)
	want, same := expected.(*events.AgentRegistered)
	if !ok || !same {
		return
	}
	for _, capability := range got.Capabilities {
		if !slices.Contains(want.Capabilities, capability) {
			r.explain(found.Seq, func() *audit.Derivation {
				d := r.basis(r.decision.Body.(*events.Decision), r.decision.Body.(*events.Decision))
				d.Recorded = capability + " among the capabilities of " + got.AgentID
				d.Recomputed = "it was not asked for"
				r.terms(d, want.ParentID, capability)
				return d
			})
			return
		}
	}
}

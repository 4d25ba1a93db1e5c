package ledger

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// control judges the verbs of admins and registrars; who has already checked
// which of them the sender may use.
func (j *judge) control() reason.Code {
	if j.fails("size", j.p.Request.TooLarge) {
		return reason.RequestTooLarge
	}
	switch r := j.p.Request.Body.(type) {
	case *wire.Apply:
		return j.apply(r)
	case *wire.AgentRegister:
		return j.registerAgent(r)
	case *wire.AgentRevoke:
		return j.revokeAgent(r)
	case *wire.PrincipalRegister:
		return j.registerPrincipal(r)
	case *wire.PrincipalRekey:
		return j.rekeyPrincipal(r)
	case *wire.PrincipalRevoke:
		return j.revokePrincipal(r)
	case *wire.MemoryLoad:
		return j.load(r)
	case *wire.EnvironmentSet:
		return j.narrow(r)
	case *wire.EmergencyDeny:
		return j.deny(r)
	case *wire.EmergencyLift:
		return j.lift(r)
	case *wire.RestrictionRemove:
		return j.unrestrict(r)
	case *wire.KeyRotate:
		return j.rotate(r)
	case *wire.KeyRetire:
		return j.retire(r)
	case *wire.SignersSet:
		return j.setSigners(r)
	case *wire.PayloadErase:
		return j.erase(r)
	case *wire.HoldPlace:
		return j.placeHold(r.Hold)
	case *wire.HoldLift:
		return j.liftHold(r.Hold)
	case *wire.ResourceSet:
		return j.setResource(r)
	case *wire.RunResolve:
		return j.resolve(r)
	case *wire.ClockAccept:
		j.emit(&events.ClockAccepted{Wall: j.p.Wall})
		return reason.ControlDone
	}
	return reason.UnsupportedOperation
}

// registerChild is an agent's own registration of a child: the sender is the
// parent, and passes on only what it effectively holds.
func (j *judge) registerChild(r *wire.AgentRegister) reason.Code {
	switch {
	case j.fails("capability", !j.may("agent.register")):
		return reason.CapabilityNotInherited
	case j.fails("size", j.p.Request.TooLarge):
		return reason.RequestTooLarge
	}
	draft := newDraft(j.s, j.now())
	child := registered(r, j.p.Subject)
	if code := draft.register(child); j.fails("place in the tree", code != "") {
		return code
	}
	if j.fails("what it passes on", slices.ContainsFunc(child.Capabilities, func(c string) bool { return !j.holds(c) })) {
		return reason.CapabilityNotInherited
	}
	if j.over("quota of agents", quota{what: "agents", all: j.agent.Root().Tree.Agents, limit: j.s.Policy.Quotas.TreeAgents}) {
		return reason.QuotaExceeded
	}
	j.emit(&child)
	return reason.Registered
}

// holds reports whether the sender may pass a capability on, used by itself or
// not.
func (j *judge) holds(capability string) bool {
	ok, _ := j.s.Holds(j.agent, capability)
	return ok
}

func registered(r *wire.AgentRegister, parent string) events.AgentRegistered {
	return events.AgentRegistered{
		AgentID: r.AgentID, ParentID: parent, Capabilities: policy.NewSet(r.Capabilities...),
		Use: policy.NewSet(r.Use...), Writes: policy.NewSet(r.Writes...), PublicKey: r.PublicKey,
	}
}

func (j *judge) registerAgent(r *wire.AgentRegister) reason.Code {
	if j.fails("policy", j.s.Policy == nil) {
		return reason.NoPolicy
	}
	draft := newDraft(j.s, j.now())
	agent := registered(r, r.ParentID)
	if code := draft.register(agent); j.fails("place in the tree", code != "") {
		return code
	}
	if j.fails("what it passes on", len(policy.CheckCapabilities(j.s.Policy, agent.Capabilities)) > 0) {
		return reason.UnknownAction
	}
	j.emit(&agent)
	return reason.Registered
}

func (j *judge) revokeAgent(r *wire.AgentRevoke) reason.Code {
	a := j.s.Agent(r.AgentID)
	switch {
	case a == nil:
		return reason.NotFound
	case !a.Revoked:
		j.emit(&events.AgentRevoked{AgentID: a.ID})
	}
	return reason.ControlDone
}

func (j *judge) registerPrincipal(r *wire.PrincipalRegister) reason.Code {
	p := events.PrincipalRegistered{ID: r.ID, Role: r.Role, PublicKey: r.PublicKey, Actions: r.Actions, Groups: r.Groups, Root: r.Root}
	if code := newDraft(j.s, j.now()).registerPrincipal(p); code != "" {
		return code
	}
	j.emit(&p)
	return reason.Registered
}

func (j *judge) rekeyPrincipal(r *wire.PrincipalRekey) reason.Code {
	p := j.s.Principal(r.ID)
	switch {
	case p == nil:
		return reason.NotFound
	case p.Revoked:
		return reason.AgentRevoked
	case !policy.ValidPublicKey(r.PublicKey):
		return reason.MalformedRequest
	case j.s.KeyTaken(r.PublicKey):
		return reason.KeyInUse
	}
	j.emit(&events.PrincipalRekeyed{ID: p.ID, PublicKey: r.PublicKey})
	return reason.ControlDone
}

func (j *judge) revokePrincipal(r *wire.PrincipalRevoke) reason.Code {
	p := j.s.Principal(r.ID)
	switch {
	case p == nil:
		return reason.NotFound
	case j.s.LastAdmin(p):
		j.note("the last admin cannot be revoked")
		return reason.NotPermittedForRole
	case !p.Revoked:
		j.emit(&events.PrincipalRevoked{ID: p.ID})
	}
	return reason.ControlDone
}

func (j *judge) load(r *wire.MemoryLoad) reason.Code {
	if j.s.Policy == nil {
		return reason.NoPolicy
	}
	effects, code := newDraft(j.s, j.now()).load(r.Owner, r.Namespace, r.Key, r.Visibility, r.Value)
	if code != "" {
		return code
	}
	j.out.Effects = append(j.out.Effects, effects...)
	return reason.ControlDone
}

func (j *judge) narrow(r *wire.EnvironmentSet) reason.Code {
	if j.s.Policy == nil {
		return reason.NoPolicy
	}
	set := policy.NewSet(r.Capabilities...)
	if len(policy.CheckCapabilities(j.s.Policy, set)) > 0 {
		return reason.UnknownAction
	}
	if !j.s.IsNarrowed || !set.Equal(j.s.Narrowed) {
		j.emit(&events.EnvironmentChanged{Capabilities: set})
	}
	return reason.ControlDone
}

func (j *judge) emit(b events.Body) {
	j.out.Effects = append(j.out.Effects, Effect{Body: b})
}

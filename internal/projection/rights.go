package projection

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// keepsRights reports whether an event leaves every agent's effective set as it
// was. Of all others it is taken that they change them.
func keepsRights(b events.Body) bool {
	switch b.(type) {
	case *events.Decision, *events.MemoryWritten, *events.MemoryDeleted, *events.MemoryExpired, *events.GrantGiven, *events.GrantRevoked,
		*events.RestrictionAdded, *events.RestrictionRemoved, *events.ResourceSet, *events.SignersSet,
		*events.RunAdmitted, *events.RunStarted, *events.RunFinished, *events.RunFailed, *events.RunCancelled, *events.RunDoubted, *events.RunResolved,
		*events.EffectStarted, *events.EffectFinished, *events.EffectFailed,
		*events.PayloadErased, *events.MemoryErased, *events.HoldPlaced, *events.HoldLifted:
		return true
	}
	return false
}

// Environment is the policy's environment as narrowed; empty without a policy.
func (s *State) Environment() policy.Set {
	if s.Policy == nil {
		return nil
	}
	if s.IsNarrowed {
		return s.Policy.Environment.Intersect(s.Narrowed)
	}
	return s.Policy.Environment
}

// InEnvironment reports whether the environment holds a capability.
func (s *State) InEnvironment(capability string) bool {
	return s.Policy != nil && s.Policy.Environment.Has(capability) &&
		(!s.IsNarrowed || s.Narrowed.Has(capability))
}

// EnvironmentLevel is what Holds names where the environment lacks a
// capability. It is no id.
const EnvironmentLevel = "environment"

// EmergencyLevel is what Holds names where an emergency deny takes the
// capability. It is no level of a tree.
const EmergencyLevel = "emergency"

// Holds reports whether a capability is in a's effective set. If not, by is the
// first, from the emergency denies and the environment downwards, that lacks it.
func (s *State) Holds(a *Agent, capability string) (ok bool, by string) {
	if s.Effective(a).Has(capability) {
		return true, ""
	}
	if s.Denied(a, capability) {
		return false, EmergencyLevel
	}
	if !s.InEnvironment(capability) {
		return false, EnvironmentLevel
	}
	for ; a != nil; a = a.Parent {
		if a.Revoked || !a.Declared.Has(capability) {
			by = a.ID
		}
	}
	return false, by
}

// Effective is environment ∩ declared(root) ∩ … ∩ declared(a), with nothing
// where anyone of the lineage is revoked, and less what emergency denies take
// from anyone of it. It is worked out when it is first
// asked for, and anew after any event that could change it.
func (s *State) Effective(a *Agent) policy.Set {
	if a.rights != s.rights {
		a.effective, a.rights = s.intersect(a), s.rights
	}
	return a.effective
}

func (s *State) intersect(a *Agent) policy.Set {
	if a.Revoked {
		return policy.Set{}
	}
	var set policy.Set
	if a.Parent == nil {
		set = s.Environment().Intersect(a.Declared)
	} else {
		set = s.Effective(a.Parent).Intersect(a.Declared)
	}
	for i := range s.denies {
		d := &s.denies[i]
		switch { // what is taken here is taken from all below
		case d.Scope != a.ID && (d.Scope != events.ScopeAll || a.Parent != nil):
		case d.All:
			return policy.Set{}
		default:
			set = set.Minus(d.Capabilities)
		}
	}
	if set.Equal(a.Declared) { // as for most agents: one copy is enough
		return a.Declared
	}
	return set
}

// May reports whether a may do itself what a capability allows: it holds it,
// and its use, where it has one, names it. What it passes on is Holds. If not,
// by is as of Holds, or a itself for its use.
func (s *State) May(a *Agent, capability string) (ok bool, by string) {
	if ok, by = s.Holds(a, capability); !ok {
		return false, by
	}
	if len(a.Use) > 0 && !a.Use.Has(capability) {
		return false, a.ID
	}
	return true, ""
}

// Lack is one level that lacks a capability, and why.
type Lack struct{ By, Why string }

// Why a level lacks a capability.
const (
	LackDenied      = "emergency_deny"
	LackEnvironment = "not_in_environment"
	LackRevoked     = "revoked"
	LackDeclared    = "not_declared"
	LackUse         = "not_in_use" // it passes it on and does not use it
)

// Lacks lists every level that lacks a capability, from the emergency denies
// and the environment down to a itself: nothing where a holds it.
func (s *State) Lacks(a *Agent, capability string) (list []Lack) {
	if s.Denied(a, capability) {
		list = append(list, Lack{EmergencyLevel, LackDenied})
	}
	if !s.InEnvironment(capability) {
		list = append(list, Lack{EnvironmentLevel, LackEnvironment})
	}
	for _, level := range slices.Backward(a.Lineage()) {
		switch {
		case level.Revoked:
			list = append(list, Lack{level.ID, LackRevoked})
		case !level.Declared.Has(capability):
			list = append(list, Lack{level.ID, LackDeclared})
		}
	}
	return list
}

// LacksUse is Lacks for what a does itself, which its use limits too.
func (s *State) LacksUse(a *Agent, capability string) []Lack {
	list := s.Lacks(a, capability)
	if len(a.Use) > 0 && a.Declared.Has(capability) && !a.Use.Has(capability) {
		list = append(list, Lack{a.ID, LackUse})
	}
	return list
}

// MayWriteIn reports whether a's writes, and those of all above it, let it write
// in a namespace.
func (a *Agent) MayWriteIn(namespace string) bool {
	for ; a != nil; a = a.Parent {
		if len(a.Writes) > 0 && !policy.Writable(a.Writes, namespace) {
			return false
		}
	}
	return true
}

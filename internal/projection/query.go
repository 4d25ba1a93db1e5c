package projection

import (
	"sort"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// Agent returns a registered agent, revoked or not, or nil.
func (s *State) Agent(id string) *Agent { return s.agents[id] }

// Principal returns a registered principal, revoked or not, or nil.
func (s *State) Principal(id string) *Principal { return s.principals[id] }

// IDTaken reports whether id is or was anyone's.
func (s *State) IDTaken(id string) bool { return s.agents[id] != nil || s.principals[id] != nil }

// KeyTaken reports whether key is or was anyone's.
func (s *State) KeyTaken(key string) bool {
	_, used := s.keys[key]
	return used
}

// Keys calls fn for every public key ever registered, in no order, with the id
// it is bound to.
func (s *State) Keys(fn func(key, id string)) {
	for key, id := range s.keys {
		fn(key, id)
	}
}

// LastAdmin reports whether p is the only admin left.
func (s *State) LastAdmin(p *Principal) bool {
	return p.Role == "admin" && !p.Revoked && s.admins == 1
}

// PolicyVersion and PolicyDigest are what a decision names: "none" and the
// zero hash before any policy.
func (s *State) PolicyVersion() string {
	if s.Policy == nil {
		return "none"
	}
	return s.Policy.Version
}

// PolicyDigest: see PolicyVersion.
func (s *State) PolicyDigest() events.Hash {
	if s.Policy == nil {
		return events.Hash{}
	}
	return s.Policy.Digest
}

// VersionDigest returns the digest of the document that has the version.
func (s *State) VersionDigest(version string) (events.Hash, bool) {
	d, ok := s.versions[version]
	return d, ok
}

// Operation returns the first use of an agent's operation id.
func (s *State) Operation(agent, id string) (Operation, bool) {
	op, ok := s.operations[operationName{agent, id}]
	return op, ok
}

// Lineage is a, its parent, and so on to the root.
func (a *Agent) Lineage() []*Agent {
	line := make([]*Agent, 0, 8)
	for ; a != nil; a = a.Parent {
		line = append(line, a)
	}
	return line
}

// LineageIDs is Lineage by id.
func (a *Agent) LineageIDs() []string {
	ids := make([]string, 0, 8)
	for ; a != nil; a = a.Parent {
		ids = append(ids, a.ID)
	}
	return ids
}

// Within reports whether root is a or one of its ancestors.
func (a *Agent) Within(root string) bool {
	for ; a != nil; a = a.Parent {
		if a.ID == root {
			return true
		}
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

// Holds reports whether a capability is in environment ∩ declared(root) ∩ … ∩
// declared(a), with nothing where anyone of the lineage is revoked, and less
// what emergency denies take. If not, by is the first of them, from the
// emergency denies and the environment downwards, that lacks it.
func (s *State) Holds(a *Agent, capability string) (ok bool, by string) {
	if len(s.denies) > 0 && s.Denied(a, capability) {
		return false, EmergencyLevel
	}
	if !s.InEnvironment(capability) {
		return false, EnvironmentLevel
	}
	ok = true
	for ; a != nil; a = a.Parent {
		if a.Revoked || !a.Declared.Has(capability) {
			ok, by = false, a.ID
		}
	}
	return ok, by
}

// Effective is the set of every capability that Holds.
func (s *State) Effective(a *Agent) policy.Set {
	set := s.Environment()
	for i := range s.denies {
		switch d := &s.denies[i]; {
		case !d.Reaches(a):
		case d.All:
			return policy.Set{}
		default:
			set = set.Minus(d.Capabilities)
		}
	}
	for ; a != nil; a = a.Parent {
		if a.Revoked {
			return policy.Set{}
		}
		set = set.Intersect(a.Declared)
	}
	return set
}

// Record returns an owner's record, deleted or not, or nil. It must not be
// changed.
func (s *State) Record(owner, namespace, key string) *Record {
	return s.records[recordName{owner, namespace, key}]
}

// Live returns an owner's record unless there is none or it is deleted.
func (s *State) Live(owner, namespace, key string) *Record {
	if r := s.Record(owner, namespace, key); r != nil && !r.Deleted {
		return r
	}
	return nil
}

// ClassOf is the class a record is treated as: what the policy in force says
// of its name, but a secret once is a secret for good.
func (s *State) ClassOf(r *Record) policy.Class {
	if r.Class == policy.Secret {
		return policy.Secret
	}
	return s.Policy.Class(r.Namespace, r.Key)
}

// Visible reports whether r, owned levels above its reader (0: the reader's
// own), may be seen by it.
func (s *State) Visible(r *Record, levels int) bool {
	switch {
	case levels == 0:
		return true
	case s.ClassOf(r) == policy.Secret:
		return false
	case r.Visibility == "children":
		return levels == 1
	}
	return r.Visibility == "descendants"
}

// Records calls fn for every live record, in no order, until it returns false.
func (s *State) Records(fn func(*Record) bool) {
	for _, r := range s.records {
		if !r.Deleted && !fn(r) {
			return
		}
	}
}

// AgentIDs and PrincipalIDs list everyone ever registered, sorted.
func (s *State) AgentIDs() []string { return sortedKeys(s.agents) }

// PrincipalIDs: see AgentIDs.
func (s *State) PrincipalIDs() []string { return sortedKeys(s.principals) }

func sortedKeys[V any](m map[string]V) []string {
	ids := make([]string, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

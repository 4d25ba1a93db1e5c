package projection

import (
	"iter"
	"maps"
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
	return used || s.agentKeys[key] != nil
}

// Keys calls fn for every public key ever registered, in no order, with the id
// it is bound to.
func (s *State) Keys(fn func(key, id string)) {
	for key, a := range s.agentKeys {
		fn(key, a.ID)
	}
	for key, id := range s.keys {
		fn(key, id)
	}
}

// Agents goes over everyone ever registered, in no order.
func (s *State) Agents() iter.Seq[*Agent] { return maps.Values(s.agents) }

// IDs goes over the ids of everyone ever registered, in no order.
func (s *State) IDs() iter.Seq[string] {
	return func(yield func(string) bool) {
		for id := range s.principals {
			if !yield(id) {
				return
			}
		}
		for id := range s.agents {
			if !yield(id) {
				return
			}
		}
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

// Document is the text of the policy in force; it must not be changed.
func (s *State) Document() []byte { return s.document }

// VersionDigest returns the digest of the document that has the version.
func (s *State) VersionDigest(version string) (events.Hash, bool) {
	d, ok := s.versions[version]
	return d, ok
}

// Lineage is a, its parent, and so on to the root.
func (a *Agent) Lineage() []*Agent {
	line := make([]*Agent, 0, a.Depth)
	for ; a != nil; a = a.Parent {
		line = append(line, a)
	}
	return line
}

// LineageIDs is Lineage by id. It must not be changed.
func (a *Agent) LineageIDs() []string {
	if a.lineage == nil {
		a.lineage = make([]string, 0, a.Depth)
		for up := a; up != nil; up = up.Parent {
			a.lineage = append(a.lineage, up.ID)
		}
	}
	return a.lineage
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

// Record returns an owner's record, deleted or not, or nil. It must not be
// changed.
func (s *State) Record(owner, namespace, key string) *Record {
	return s.records.get(owner, namespace, key)
}

// Named returns the records of one name, for whoever asks at several levels.
func (s *State) Named(namespace, key string) Named {
	return s.records.of(recordName{namespace, key})
}

// Live returns an owner's record unless at ledger time now there is none, or it
// is deleted or gone.
func (s *State) Live(owner, namespace, key string, now events.Time) *Record {
	if r := s.Record(owner, namespace, key); s.Stands(r, now) {
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

// Records calls fn for every record that is live at now, in no order, until it
// returns false.
func (s *State) Records(now events.Time, fn func(*Record) bool) {
	for r := range s.records.all() {
		if s.Stands(r, now) && !fn(r) {
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

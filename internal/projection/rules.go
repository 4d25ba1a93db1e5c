package projection

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// Restriction returns the restriction of a that has the id.
func (a *Agent) Restriction(id string) (policy.Restriction, bool) {
	i, ok := slices.BinarySearchFunc(a.Restrictions, id, compareRestriction)
	if !ok {
		return policy.Restriction{}, false
	}
	return a.Restrictions[i], true
}

func compareRestriction(r policy.Restriction, id string) int { return cmp.Compare(r.ID, id) }

func (s *State) addRestriction(b *events.RestrictionAdded) error {
	a := s.agents[b.AgentID]
	r := policy.Restriction{ID: b.ID, Action: b.Action, Text: b.Require}
	if a == nil || a.Revoked || !r.Valid() || len(a.Restrictions) >= policy.RestrictionsMax {
		return fmt.Errorf("%w: no such agent to restrict, or no such restriction", ErrInconsistent)
	}
	i, exists := slices.BinarySearchFunc(a.Restrictions, b.ID, compareRestriction)
	if exists {
		return fmt.Errorf("%w: a restriction twice", ErrInconsistent)
	}
	a.Restrictions = slices.Insert(slices.Clone(a.Restrictions), i, r)
	a.add(Usage{Restrictions: 1})
	s.changedAgent(a)
	return nil
}

func (s *State) removeRestriction(b *events.RestrictionRemoved) error {
	a := s.agents[b.AgentID]
	if a == nil {
		return fmt.Errorf("%w: no such agent", ErrInconsistent)
	}
	i, exists := slices.BinarySearchFunc(a.Restrictions, b.ID, compareRestriction)
	if !exists {
		return fmt.Errorf("%w: no such restriction", ErrInconsistent)
	}
	a.Restrictions = slices.Delete(slices.Clone(a.Restrictions), i, i+1)
	a.add(Usage{Restrictions: -1})
	s.changedAgent(a)
	return nil
}

// Clause is a restriction compiled for the policy in force. A text that does
// not compile for it is no clause, and its action is denied.
func (s *State) Clause(r policy.Restriction) (*policy.Clause, error) {
	key := clauseKey{s.Policy, r.Action, r.Text}
	if kept, ok := s.clauses[key]; ok {
		return kept.clause, kept.err
	}
	var c compiledClause
	c.clause, c.err = s.Policy.CompileClause(r.Action, r.ID, r.Text)
	if s.clauses == nil {
		s.clauses = map[clauseKey]compiledClause{}
	}
	for other := range s.clauses {
		if len(s.clauses) < clausesKept {
			break
		}
		delete(s.clauses, other)
	}
	s.clauses[key] = c
	return c.clause, c.err
}

const clausesKept = 2048

// clauseKey tells compiled texts apart. The policy is part of it: whoever judges
// a log under another policy exchanges that in a state.
type clauseKey struct {
	policy       *policy.Policy
	action, text string
}

type compiledClause struct {
	clause *policy.Clause
	err    error
}

// Restricted calls fn for every restriction in force, in no order.
func (s *State) Restricted(fn func(agent *Agent, r policy.Restriction)) {
	for _, a := range s.agents {
		for _, r := range a.Restrictions {
			fn(a, r)
		}
	}
}

// Resource is what the registry says of an object.
func (s *State) Resource(id string) (policy.Resource, bool) {
	r, ok := s.resources[id]
	return r, ok
}

// ResourceCount is how many resources the registry has.
func (s *State) ResourceCount() int { return len(s.resources) }

// EachResource calls fn for every resource of the registry, in no order.
func (s *State) EachResource(fn func(policy.Resource)) {
	for _, r := range s.resources {
		fn(r)
	}
}

// Resources returns the registry, by id.
func (s *State) Resources() []policy.Resource {
	list := make([]policy.Resource, 0, len(s.resources))
	for _, id := range sortedKeys(s.resources) {
		list = append(list, s.resources[id])
	}
	return list
}

func (s *State) setResource(b *events.ResourceSet) error {
	r := policy.Resource{ID: b.ID, Classification: b.Classification, Owner: b.Owner, Tags: b.Tags}
	if _, exists := s.resources[b.ID]; !r.Valid() || !exists && len(s.resources) >= policy.ResourcesMax {
		return fmt.Errorf("%w: no such resource", ErrInconsistent)
	}
	r.ID = strings.Clone(r.ID)
	s.resources[r.ID] = r
	return nil
}

func (s *State) setSigners(b *events.SignersSet) error {
	if b.Number != s.SignersNo+1 || !policy.ValidSigners(b.Keys) {
		return fmt.Errorf("%w: no such signers", ErrInconsistent)
	}
	s.SignersNo, s.Signers = b.Number, b.Keys
	return nil
}

func (w *snapshotWriter) restrictions(list []policy.Restriction) {
	w.uint(uint64(len(list)))
	for _, r := range list {
		w.text(r.ID)
		w.text(r.Action)
		w.text(r.Text)
	}
}

func (r *snapshotReader) restrictions() (list []policy.Restriction) {
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		list = append(list, policy.Restriction{ID: r.text(), Action: r.text(), Text: r.text()})
	}
	if !slices.IsSortedFunc(list, func(a, b policy.Restriction) int { return cmp.Compare(a.ID, b.ID) }) {
		r.fail("restrictions out of order")
	}
	return list
}

func (w *snapshotWriter) resources(s *State) {
	w.uint(uint64(len(s.resources)))
	for _, resource := range s.Resources() {
		w.text(resource.ID)
		w.text(resource.Classification)
		w.text(resource.Owner)
		w.texts(resource.Tags)
	}
}

func (r *snapshotReader) resources(s *State) {
	s.resources = map[string]policy.Resource{}
	r.ascending(func() string {
		resource := policy.Resource{ID: r.text(), Classification: r.text(), Owner: r.text(), Tags: r.texts()}
		s.resources[resource.ID] = resource
		return resource.ID
	})
}

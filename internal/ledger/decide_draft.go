package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// draft is the state plus what the outcome at hand would register, so that the
// documents of one apply may build on each other though nothing is changed
// until they are all judged.
type draft struct {
	s        *projection.State
	now      events.Time
	policy   *policy.Policy
	agents   map[string]int // id → depth
	children map[string]int // parent → how many more
	ids      map[string]bool
	keys     map[string]bool
	records  map[string]bool
}

func newDraft(s *projection.State, now events.Time) *draft {
	return &draft{
		s: s, now: now, policy: s.Policy,
		agents: map[string]int{}, children: map[string]int{},
		ids: map[string]bool{}, keys: map[string]bool{}, records: map[string]bool{},
	}
}

// knows reports whether an agent is registered, now or in this draft.
func (d *draft) knows(id string) bool {
	_, drafted := d.agents[id]
	return drafted || d.s.Agent(id) != nil
}

// register checks a new agent and adds it to the draft. The order of the
// guards is part of the contract.
func (d *draft) register(a events.AgentRegistered) reason.Code {
	switch {
	case !events.ValidID(a.AgentID):
		return reason.NameNotAllowed
	case !policy.ValidPublicKey(a.PublicKey):
		return reason.MalformedRequest
	case a.ParentID == a.AgentID:
		return reason.HierarchyCycle
	case d.s.IDTaken(a.AgentID) || d.ids[a.AgentID]:
		return reason.DuplicateAgent
	}
	depth := 1
	if a.ParentID != "" {
		parent := d.s.Agent(a.ParentID)
		drafted, ok := d.agents[a.ParentID]
		children := d.children[a.ParentID]
		switch {
		case parent != nil && parent.Revoked:
			return reason.UnknownParent
		case parent != nil:
			depth, children = parent.Depth+1, children+parent.Children
		case ok:
			depth = drafted + 1
		default:
			return reason.UnknownParent
		}
		if children >= d.childrenMax() {
			return reason.TooManyChildren
		}
	}
	switch {
	case depth > d.depthMax():
		return reason.HierarchyTooDeep
	case d.s.KeyTaken(a.PublicKey) || d.keys[a.PublicKey]:
		return reason.KeyInUse
	}
	d.agents[a.AgentID], d.ids[a.AgentID], d.keys[a.PublicKey] = depth, true, true
	d.children[a.ParentID]++
	return ""
}

func (d *draft) depthMax() int {
	if d.policy != nil {
		return d.policy.TreeDepth
	}
	return events.TreeDepthMax
}

func (d *draft) childrenMax() int {
	if d.policy != nil {
		return d.policy.Children
	}
	return events.ChildrenMax
}

// registerPrincipal checks a new principal and adds it to the draft.
func (d *draft) registerPrincipal(p events.PrincipalRegistered) reason.Code {
	switch {
	case !events.ValidID(p.ID):
		return reason.NameNotAllowed
	case !validRole(p) || !policy.ValidPublicKey(p.PublicKey):
		return reason.MalformedRequest
	case d.s.IDTaken(p.ID) || d.ids[p.ID]:
		return reason.DuplicateAgent
	case p.Root != "" && !d.knows(p.Root):
		return reason.NotFound
	case d.s.KeyTaken(p.PublicKey) || d.keys[p.PublicKey]:
		return reason.KeyInUse
	}
	d.ids[p.ID], d.keys[p.PublicKey] = true, true
	return ""
}

// validRole checks that a principal has a role, all that it needs, and nothing
// that belongs to another.
func validRole(p events.PrincipalRegistered) bool {
	actions, groups, root := len(p.Actions) > 0, len(p.Groups) > 0, p.Root != ""
	switch p.Role {
	case "handler":
		return actions && !groups && !root
	case "approver":
		return groups && !actions && !root
	case "observer":
		return !actions && !groups
	case "registrar", "auditor", "admin":
		return !actions && !groups && !root
	}
	return false
}

// load checks the first write of a record by an admin and adds it to the
// draft.
func (d *draft) load(owner, namespace, key, visibility string, value []byte) ([]Effect, reason.Code) {
	name := owner + ":" + namespace + "." + key
	agent := d.s.Agent(owner)
	class := d.policy.Class(namespace, key)
	fault := checkValue(d.policy, namespace, key, value)
	if fault == "" {
		fault = checkLifetime(d.policy, namespace, key, 0, false)
	}
	switch {
	case !d.knows(owner) || agent != nil && agent.Revoked:
		return nil, reason.UnknownOwner
	case d.s.Live(owner, namespace, key, d.now) != nil || d.records[name]:
		return nil, reason.RecordExists
	case fault != "":
		return nil, fault
	}
	d.records[name] = true
	if visibility == "" {
		visibility = "private"
	}
	var effects []Effect
	written := &events.MemoryWritten{Record: events.Record{Owner: owner, Namespace: namespace, Key: key, Visibility: visibility, Class: string(class), Revision: 1}}
	if old := d.s.Record(owner, namespace, key); old != nil {
		written.Revision = old.Revision + 1
		if gone := d.s.Expiry(old, d.now); gone != nil {
			effects = append(effects, Effect{Body: gone})
			written.Revision = gone.Revision + 1
		}
	}
	if most, _ := d.policy.TaskSeconds(namespace, key); most != 0 {
		written.Expires = d.now + events.Time(most)*1_000_000
	}
	effect := Effect{Body: written}
	if class == policy.Mandatory {
		effect.Open = value
	}
	return append(effects, effect), ""
}

// Package projection folds the log's events into the state that the next
// decision is made against: agents and their tree, principals, the policy in
// force, memory, and the operation ids seen. It is derived, never the truth:
// folding the log again gives the same State.
//
// A State belongs to one goroutine. Apply is the only way to change it.
package projection

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// Agent is one node of a tree. Parent is nil for a root.
type Agent struct {
	ID        string
	Parent    *Agent
	Depth     int // 1 for a root
	Children  int // ever registered
	Declared  policy.Set
	Use       policy.Set // of Declared: what it may do itself; nil for all
	Writes    policy.Set // patterns of namespaces that it and its subtree may write in; nil for all
	PublicKey string
	Revoked   bool
	Runs      int // open ones
	Records   int // neither deleted nor said to be gone
	Tree      Usage

	Restrictions []policy.Restriction // of its own, by id; never changed in place

	lineage   []string   // nil until asked for
	effective policy.Set // what it was when State.rights was rights
	rights    uint64
}

// Principal is anyone registered who is no agent.
type Principal struct {
	ID        string
	Role      string
	PublicKey string
	Actions   []string
	Groups    []string
	Root      string
	Revoked   bool
}

// Record is what is known of one memory record beside its value. A deleted
// one stays, so that its revision counts on.
type Record struct {
	Owner      string
	*Kind      // shared by all that are alike
	Key        string
	Revision   uint64
	Decision   uint64 // seq of the decision that wrote it
	Written    uint64 // seq of the memory.written event
	Deleted    bool
	OwnPayload bool // the value is that event's payload, not part of its decision's
	*Extra
}

// Kind is what many records have in common.
type Kind struct {
	Namespace  string
	Visibility string
	Class      policy.Class
}

// Extra is what few records have, never nil.
type Extra struct {
	Mandatory []byte      // canonical value of a mandatory record, nil otherwise
	Expires   events.Time // it is gone from then on; 0 for never
	RunID     string      // it is gone with the end of this run; empty for none
}

// Operation is what an agent's operation id was first used for.
type Operation struct {
	Seq  uint64 // of the decision
	Name string
}

// State is everything a decision may depend on. Maps are never handed out.
type State struct {
	Seq    uint64 // of the last event applied
	Time   events.Time
	Leaf   events.Hash // leaf hash of the last event, set by whoever has its bytes
	Origin string
	Ledger string
	Rules  uint64 // rules version in force since the last ledger.opened

	Policy     *policy.Policy // in force; nil before any
	document   []byte         // its text
	Narrowed   policy.Set     // environment.set; meaningful where IsNarrowed
	IsNarrowed bool
	DenyEpoch  uint64     // of the last emergency deny, lifted or not
	Signers    policy.Set // one of whom signs every policy; none where no signature is needed
	SignersNo  uint64     // of the last change of the signers

	checkpointKeys, permitKeys []SigningKey // never changed in place
	sealNumber                 uint64

	agents     map[string]*Agent
	principals map[string]*Principal
	agentKeys  map[string]*Agent      // by public key
	keys       map[string]string      // public key → the principal that has or had it
	versions   map[string]events.Hash // policy version → digest, for ever
	records    records
	ending     ending                  // of records, those that have an end
	lasting    int                     // how many they are, changed ones left out
	ofRun      map[string][]*Record    // by run, what was written for it
	grants     map[events.Grant]*Grant // some may have expired
	operations operations
	resources  map[string]policy.Resource
	clauses    map[clauseKey]compiledClause // for the policy in force; no part of the state
	erasures   erasures
	runs       map[string]*Run
	open       map[string]*Run   // of runs, the open ones
	runAt      map[uint64]*Run   // by the decision that admitted it
	denies     []Deny            // in force, by epoch; never changed in place
	doubts     int               // of open, those in doubt
	admins     int               // not revoked
	texts      map[string]string // one copy of what many records say
	kinds      kinds

	changes *Changes // since the last TakeChanges; nil where nobody asked

	rights uint64 // from 1; rises with every event that may change an effective set
}

// New returns the state before event 1.
func New() *State {
	return &State{
		agents:     map[string]*Agent{},
		principals: map[string]*Principal{},
		agentKeys:  map[string]*Agent{},
		keys:       map[string]string{},
		versions:   map[string]events.Hash{},
		records:    newRecords(0),
		ofRun:      map[string][]*Record{},
		grants:     map[events.Grant]*Grant{},
		resources:  map[string]policy.Resource{},
		erasures:   newErasures(),
		runs:       map[string]*Run{},
		open:       map[string]*Run{},
		runAt:      map[uint64]*Run{},
		texts:      map[string]string{},
		kinds:      kinds{},
		rights:     1,
	}
}

// text returns s in memory that all equal texts share.
func (s *State) text(t string) string {
	if kept, ok := s.texts[t]; ok {
		return kept
	}
	t = strings.Clone(t)
	s.texts[t] = t
	return t
}

// ErrInconsistent marks an event that cannot follow the ones before it. The
// state is then not usable.
var ErrInconsistent = errors.New("event does not fit the state before it")

// Apply folds one event. open is the event's open payload where it has one: a
// policy document or a mandatory record's value. Any event that does not fit
// is an error; none is skipped.
func (s *State) Apply(e *events.Event, open []byte) error {
	if e.Seq != s.Seq+1 || e.Time < s.Time {
		return fmt.Errorf("%w: seq %d at %s after seq %d at %s", ErrInconsistent, e.Seq, e.Time, s.Seq, s.Time)
	}
	if (e.Seq == 1) != (e.Body.Type() == events.TypeLedgerCreated) {
		return fmt.Errorf("%w: %s at seq %d", ErrInconsistent, e.Body.Type(), e.Seq)
	}
	if open != nil && !takesOpen(e.Body) {
		return fmt.Errorf("%w: %s with an open payload", ErrInconsistent, e.Body.Type())
	}
	if err := s.fold(e, open); err != nil {
		return fmt.Errorf("seq %d %s: %w", e.Seq, e.Body.Type(), err)
	}
	if !keepsRights(e.Body) {
		s.rights++
	}
	s.passDay(e)
	s.Seq, s.Time = e.Seq, e.Time
	return nil
}

func takesOpen(b events.Body) bool {
	switch b.(type) {
	case *events.PolicyActivated, *events.MemoryWritten:
		return true
	}
	return false
}

func (s *State) fold(e *events.Event, open []byte) error {
	switch b := e.Body.(type) {
	case *events.LedgerCreated:
		if b.Format != events.Format || !policy.ValidSigners(b.PolicySigners) {
			return fmt.Errorf("%w: unknown format, or no such signers", ErrInconsistent)
		}
		s.firstKeys(b)
		s.Origin, s.Ledger, s.Signers = b.Origin, b.Ledger, b.PolicySigners
		return s.addPrincipal(&Principal{ID: b.AdminID, Role: "admin", PublicKey: b.AdminPublicKey})
	case *events.LedgerOpened:
		s.Rules = b.Rules
	case *events.Decision:
		return s.foldDecision(e.Seq, b)
	case *events.AgentRegistered:
		return s.addAgent(b)
	case *events.AgentUpdated:
		a := s.agents[b.AgentID]
		if a == nil || a.Revoked {
			return fmt.Errorf("%w: no such agent to update", ErrInconsistent)
		}
		a.Declared, a.Use, a.Writes = policy.NewSet(b.Capabilities...), policy.NewSet(b.Use...), policy.NewSet(b.Writes...)
		if !a.Use.SubsetOf(a.Declared) {
			return fmt.Errorf("%w: use beyond capabilities", ErrInconsistent)
		}
		s.changedAgent(a)
	case *events.AgentRevoked:
		return s.revokeAgent(s.agents[b.AgentID])
	case *events.PrincipalRegistered:
		return s.addPrincipal(&Principal{ID: b.ID, Role: b.Role, PublicKey: b.PublicKey, Actions: b.Actions, Groups: b.Groups, Root: b.Root})
	case *events.PrincipalRekeyed:
		return s.rekey(b)
	case *events.PrincipalRevoked:
		return s.revokePrincipal(b.ID)
	case *events.PolicyActivated:
		return s.activate(b, open)
	case *events.EnvironmentChanged:
		if s.Policy == nil {
			return fmt.Errorf("%w: no policy to narrow", ErrInconsistent)
		}
		s.Narrowed, s.IsNarrowed = policy.NewSet(b.Capabilities...), true
	case *events.MemoryWritten:
		return s.write(e, b, open)
	case *events.MemoryDeleted:
		return s.remove(e, &b.Record)
	case *events.MemoryExpired:
		return s.expire(e, &b.Record)
	case *events.GrantGiven:
		return s.give(b, e.Time)
	case *events.GrantRevoked:
		return s.revokeGrant(b)
	case *events.ClockAccepted, *events.TransportDenied, *events.RequestsRefused:
	case *events.EmergencyDenied:
		return s.foldDeny(&b.Emergency)
	case *events.EmergencyLifted:
		return s.foldLift(&b.Emergency)
	case *events.RestrictionAdded:
		return s.addRestriction(b)
	case *events.RestrictionRemoved:
		return s.removeRestriction(b)
	case *events.SignersSet:
		return s.setSigners(b)
	case *events.KeyRotated, *events.KeyRetired:
		return s.foldKey(e.Seq, b)
	case *events.ResourceSet:
		return s.setResource(b)
	case *events.PayloadErased, *events.MemoryErased, *events.HoldPlaced, *events.HoldLifted:
		return s.foldErasure(e)
	case *events.RunAdmitted:
		return s.admit(e, b)
	default:
		return s.foldRun(e)
	}
	return nil
}

func (s *State) revokeAgent(a *Agent) error {
	if a == nil || a.Revoked {
		return fmt.Errorf("%w: no such agent to revoke", ErrInconsistent)
	}
	a.Revoked = true
	a.add(Usage{Agents: -1})
	s.endGrants(func(g *Grant) bool { return g.Owner == a.ID || g.To == a.ID })
	s.changedAgent(a)
	return nil
}

func (s *State) addAgent(b *events.AgentRegistered) error {
	if err := s.claim(b.AgentID, b.PublicKey); err != nil {
		return err
	}
	a := &Agent{
		ID: b.AgentID, Depth: 1, PublicKey: b.PublicKey,
		Declared: policy.NewSet(b.Capabilities...), Use: policy.NewSet(b.Use...), Writes: policy.NewSet(b.Writes...),
	}
	if !a.Use.SubsetOf(a.Declared) {
		return fmt.Errorf("%w: use beyond capabilities", ErrInconsistent)
	}
	if b.ParentID != "" {
		parent := s.agents[b.ParentID]
		if parent == nil || parent.Revoked {
			return fmt.Errorf("%w: unknown parent", ErrInconsistent)
		}
		parent.Children++
		a.Parent, a.Depth = parent, parent.Depth+1
	}
	s.agents[a.ID], s.agentKeys[a.PublicKey] = a, a
	a.add(Usage{Agents: 1})
	s.changedAgent(a)
	return nil
}

func (s *State) addPrincipal(p *Principal) error {
	if !policy.ValidRole(p.Role) {
		return fmt.Errorf("%w: unknown role", ErrInconsistent)
	}
	if err := s.claim(p.ID, p.PublicKey); err != nil {
		return err
	}
	s.principals[p.ID], s.keys[p.PublicKey] = p, p.ID
	if p.Role == "admin" {
		s.admins++
	}
	return nil
}

// claim checks that a new id and a new key were nobody's before.
func (s *State) claim(id, key string) error {
	if s.IDTaken(id) {
		return fmt.Errorf("%w: id taken", ErrInconsistent)
	}
	if s.KeyTaken(key) {
		return fmt.Errorf("%w: key used", ErrInconsistent)
	}
	return nil
}

func (s *State) rekey(b *events.PrincipalRekeyed) error {
	p := s.principals[b.ID]
	if p == nil || p.Revoked {
		return fmt.Errorf("%w: no such principal", ErrInconsistent)
	}
	if s.KeyTaken(b.PublicKey) {
		return fmt.Errorf("%w: key used", ErrInconsistent)
	}
	s.keys[b.PublicKey] = b.ID
	p.PublicKey = b.PublicKey
	return nil
}

func (s *State) revokePrincipal(id string) error {
	p := s.principals[id]
	if p == nil || p.Revoked || s.LastAdmin(p) {
		return fmt.Errorf("%w: no such principal to revoke", ErrInconsistent)
	}
	p.Revoked = true
	if p.Role == "admin" {
		s.admins--
	}
	return nil
}

func (s *State) activate(b *events.PolicyActivated, document []byte) error {
	p, err := policy.Load(document)
	if err != nil {
		return err
	}
	if p.Digest != b.Digest || p.Version != b.Version {
		return fmt.Errorf("%w: the document is not the one named", ErrInconsistent)
	}
	if digest, used := s.versions[b.Version]; used && digest != b.Digest {
		return fmt.Errorf("%w: version used by another document", ErrInconsistent)
	}
	s.versions[b.Version] = b.Digest
	s.Policy, s.document, s.clauses = p, slices.Clone(document), nil
	return nil
}

func (s *State) write(e *events.Event, b *events.MemoryWritten, open []byte) error {
	old := s.Record(b.Owner, b.Namespace, b.Key)
	if b.Revision != old.revision()+1 || s.Expiry(old, e.Time) != nil {
		return fmt.Errorf("%w: revision %d after %d", ErrInconsistent, b.Revision, old.revision())
	}
	owner := s.agents[b.Owner]
	if owner == nil || owner.Revoked {
		return fmt.Errorf("%w: unknown owner", ErrInconsistent)
	}
	class, ok := policy.ParseClass(b.Class)
	switch {
	case !ok || (class == policy.Mandatory) != (len(open) > 0):
		return fmt.Errorf("%w: class %q with open payload %v", ErrInconsistent, b.Class, open != nil)
	case old != nil && !old.Deleted && old.Class == policy.Secret && class != policy.Secret:
		return fmt.Errorf("%w: a secret becomes none", ErrInconsistent)
	case !events.ValidVisibility(b.Visibility):
		return fmt.Errorf("%w: visibility %q", ErrInconsistent, b.Visibility)
	case b.Expires != 0 && b.Expires <= e.Time, b.RunID != "" && !s.opens(b.RunID, b.Owner):
		return fmt.Errorf("%w: a record that is gone already", ErrInconsistent)
	case class == policy.Mandatory && (b.Expires != 0 || b.RunID != ""):
		return fmt.Errorf("%w: a mandatory record that ends", ErrInconsistent)
	}
	r := &Record{
		Owner: owner.ID, Kind: s.kinds.of(Kind{b.Namespace, b.Visibility, class}), Extra: noExtra,
		Revision: b.Revision, Decision: e.Cause, Written: e.Seq, OwnPayload: !e.Payload.IsZero(),
	}
	if old != nil {
		r.Key = old.Key
	} else {
		r.Key = strings.Clone(b.Key)
	}
	if open != nil || b.Expires != 0 || b.RunID != "" {
		r.Extra = &Extra{slices.Clone(open), b.Expires, b.RunID}
		if run := s.runs[b.RunID]; run != nil {
			r.RunID = run.ID
		}
	}
	s.keep(r)
	return nil
}

func (s *State) remove(e *events.Event, b *events.Record) error {
	old := s.Record(b.Owner, b.Namespace, b.Key)
	if !s.Stands(old, e.Time) || b.Revision != old.Revision+1 || b.Class != string(old.Class) || b.Visibility != old.Visibility {
		return fmt.Errorf("%w: no such record to delete", ErrInconsistent)
	}
	s.drop(e, old)
	return nil
}

// keep puts a record in the place of the one of its name.
func (s *State) keep(r *Record) {
	old := s.records.put(r)
	if old.ends() {
		s.lasting--
	}
	s.countRecord(old, r)
	if r.ends() {
		s.lasting++
		s.willEnd(r)
	}
	if s.changes != nil {
		s.changes.records = append(s.changes.records, r)
	}
}

func (s *State) changedRun(r *Run) {
	if s.changes != nil {
		s.changes.runs = append(s.changes.runs, r)
	}
}

func (s *State) changedAgent(a *Agent) {
	if s.changes != nil {
		s.changes.agents = append(s.changes.agents, a)
	}
}

func (r *Record) revision() uint64 {
	if r == nil {
		return 0
	}
	return r.Revision
}

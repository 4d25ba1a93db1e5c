package events

// Type names what happened. The list is closed: a reader that meets another
// type stops.
type Type string

// The event types of format ledgerd/1 that this release writes.
const (
	TypeLedgerCreated       Type = "ledger.created"
	TypeLedgerOpened        Type = "ledger.opened"
	TypeDecisionAllowed     Type = "decision.allowed"
	TypeDecisionDenied      Type = "decision.denied"
	TypeAgentRegistered     Type = "agent.registered"
	TypeAgentUpdated        Type = "agent.updated"
	TypeAgentRevoked        Type = "agent.revoked"
	TypePrincipalRegistered Type = "principal.registered"
	TypePrincipalRekeyed    Type = "principal.rekeyed"
	TypePrincipalRevoked    Type = "principal.revoked"
	TypePolicyActivated     Type = "policy.activated"
	TypeEnvironmentChanged  Type = "environment.changed"
	TypeMemoryWritten       Type = "memory.written"
	TypeMemoryDeleted       Type = "memory.deleted"
	TypeMemoryExpired       Type = "memory.expired"
	TypeClockAccepted       Type = "clock.accepted"
	TypeTransportDenied     Type = "transport.denied"
	TypeRequestsRefused     Type = "requests.refused"
)

// Types returns every type in the order of docs/FORMAT.md.
func Types() []Type {
	return []Type{
		TypeLedgerCreated, TypeLedgerOpened, TypeDecisionAllowed, TypeDecisionDenied,
		TypeAgentRegistered, TypeAgentUpdated, TypeAgentRevoked,
		TypePrincipalRegistered, TypePrincipalRekeyed, TypePrincipalRevoked,
		TypePolicyActivated, TypeEnvironmentChanged, TypeMemoryWritten, TypeMemoryDeleted, TypeMemoryExpired,
		TypeClockAccepted, TypeTransportDenied, TypeRequestsRefused,
		TypeGrantGiven, TypeGrantRevoked, TypeEmergencyDenied, TypeEmergencyLifted,
		TypeRunAdmitted, TypeRunStarted, TypeRunFinished, TypeRunFailed, TypeRunCancelled, TypeRunDoubted, TypeRunResolved,
		TypeEffectStarted, TypeEffectFinished, TypeEffectFailed,
		TypeRestrictionAdded, TypeRestrictionRemoved, TypeResourceSet, TypeSignersSet,
		TypePayloadErased, TypeMemoryErased, TypeHoldPlaced, TypeHoldLifted,
		TypeKeyRotated, TypeKeyRetired,
	}
}

// Body is what an event says beyond its envelope: a pointer to one of the
// structs below. fields is its only description, read and written alike.
type Body interface {
	Type() Type
	fields(c *coder)
}

func newBody(t Type) Body {
	switch t {
	case TypeLedgerCreated:
		return &LedgerCreated{}
	case TypeLedgerOpened:
		return &LedgerOpened{}
	case TypeDecisionAllowed:
		return &Decision{Allowed: true}
	case TypeDecisionDenied:
		return &Decision{}
	case TypeAgentRegistered:
		return &AgentRegistered{}
	case TypeAgentUpdated:
		return &AgentUpdated{}
	case TypeAgentRevoked:
		return &AgentRevoked{}
	case TypePrincipalRegistered:
		return &PrincipalRegistered{}
	case TypePrincipalRekeyed:
		return &PrincipalRekeyed{}
	case TypePrincipalRevoked:
		return &PrincipalRevoked{}
	case TypePolicyActivated:
		return &PolicyActivated{}
	case TypeEnvironmentChanged:
		return &EnvironmentChanged{}
	case TypeMemoryWritten:
		return &MemoryWritten{}
	case TypeMemoryDeleted:
		return &MemoryDeleted{}
	case TypeMemoryExpired:
		return &MemoryExpired{}
	case TypeGrantGiven:
		return &GrantGiven{}
	case TypeGrantRevoked:
		return &GrantRevoked{}
	case TypeClockAccepted:
		return &ClockAccepted{}
	case TypeTransportDenied:
		return &TransportDenied{}
	case TypeRequestsRefused:
		return &RequestsRefused{}
	}
	if b := newRuleBody(t); b != nil {
		return b
	}
	if b := newErasureBody(t); b != nil {
		return b
	}
	if b := newKeyBody(t); b != nil {
		return b
	}
	return newRunBody(t)
}

// Format is the format that LedgerCreated names.
const Format = "ledgerd/1"

// LedgerCreated is event 1 of every log. Previous is set where the log is the
// next epoch of another.
type LedgerCreated struct {
	Format         string
	Origin         string
	Ledger         string
	AdminID        string
	AdminPublicKey string   // NATS user key, U…
	CheckpointKey  string   // C2SP verifier key of the checkpoints
	PermitKey      string   // verifier key of permits, same form
	PolicySigners  []string // NATS user keys that sign policies, sorted; none where policies need no signature
	Previous       *Previous
}

// Previous names the log that this one continues and why it could not go on.
type Previous struct {
	Origin     string
	Checkpoint string // its last signed note, whole
	Reason     string // loss, rollback or compromise
}

// Type implements Body.
func (*LedgerCreated) Type() Type { return TypeLedgerCreated }

func (b *LedgerCreated) fields(c *coder) {
	c.str("format", &b.Format)
	c.str("origin", &b.Origin)
	c.str("ledger", &b.Ledger)
	c.key("admin")
	c.object(func(c *coder) {
		c.str("id", &b.AdminID)
		c.str("public_key", &b.AdminPublicKey)
	})
	c.str("checkpoint_key", &b.CheckpointKey)
	c.str("permit_key", &b.PermitKey)
	c.optStrs("policy_signers", &b.PolicySigners)
	if !c.present("previous", b.Previous != nil) {
		return
	}
	if c.reading {
		b.Previous = &Previous{}
	}
	c.key("previous")
	c.object(func(c *coder) {
		c.str("origin", &b.Previous.Origin)
		c.str("checkpoint", &b.Previous.Checkpoint)
		c.str("reason", &b.Previous.Reason)
	})
}

// LedgerOpened says which rules judge from here on. Rules rises with any
// change of a guard, function or library that can change a verdict.
type LedgerOpened struct {
	Rules uint64
	Build string
}

// Type implements Body.
func (*LedgerOpened) Type() Type { return TypeLedgerOpened }

func (b *LedgerOpened) fields(c *coder) {
	c.uint("rules", &b.Rules)
	c.str("build", &b.Build)
}

// Decision is the outcome of one proposal, query-free and without values.
type Decision struct {
	Subject          string   // who asked
	Lineage          []string // the asker first, its root last; principals: themselves alone
	Operation        string   // as asked, or "unsupported"
	Resource         string   // empty for a malformed request
	Action           string   // the action of action.authorize and of SOP steps
	Allowed          bool
	Reason           string // a code of internal/reason
	PolicyVersion    string // "none" before any
	PolicyDigest     Hash   // zero before any
	Owner            string
	Rule             string
	Failed           []string
	TraceID          string
	OperationID      string
	ArgumentsDigest  Hash
	PreviousRevision uint64
	SOPID            string
	SOPVersion       uint64
	StepID           string
	RunID            string
	Observed         []string // actions of the procedure that no handler was present for
	Blind            string   // 32 hex digits where the reply hides the reason
}

// Type implements Body.
func (b *Decision) Type() Type {
	if b.Allowed {
		return TypeDecisionAllowed
	}
	return TypeDecisionDenied
}

func (b *Decision) fields(c *coder) {
	allowed := b.Allowed
	c.str("subject", &b.Subject)
	c.lineage("lineage", &b.Lineage)
	c.str("operation", &b.Operation)
	c.str("resource", &b.Resource)
	c.optStr("action", &b.Action)
	c.boolean("allowed", &b.Allowed)
	c.str("reason_code", &b.Reason)
	c.policy(&b.PolicyVersion, &b.PolicyDigest)
	c.optStr("owner", &b.Owner)
	c.optStr("rule", &b.Rule)
	c.optStrs("failed", &b.Failed)
	c.optStr("trace_id", &b.TraceID)
	c.optStr("operation_id", &b.OperationID)
	c.optHash("arguments_digest", &b.ArgumentsDigest)
	c.optUint("previous_revision", &b.PreviousRevision)
	c.optStr("sop_id", &b.SOPID)
	c.optUint("sop_version", &b.SOPVersion)
	c.optStr("step_id", &b.StepID)
	c.optStr("run_id", &b.RunID)
	c.optStrs("observed", &b.Observed)
	c.optStr("blind", &b.Blind)
	if b.Allowed != allowed {
		c.fail("allowed disagrees with the event's type")
	}
}

// AgentRegistered creates an agent. ParentID is empty for a root.
type AgentRegistered struct {
	AgentID      string
	ParentID     string
	Capabilities []string // sorted, as declared; what it effectively holds depends on the lineage
	Use          []string // sorted, of Capabilities: its own acts are limited to these; nil for all
	Writes       []string // sorted patterns of namespaces that it and its subtree may write in; nil for all
	PublicKey    string
}

// Type implements Body.
func (*AgentRegistered) Type() Type { return TypeAgentRegistered }

func (b *AgentRegistered) fields(c *coder) {
	c.str("agent_id", &b.AgentID)
	c.str("parent_id", &b.ParentID)
	c.strs("capabilities", &b.Capabilities)
	c.optStrs("use", &b.Use)
	c.optStrs("writes", &b.Writes)
	c.str("public_key", &b.PublicKey)
}

// AgentUpdated replaces what an agent declares.
type AgentUpdated struct {
	AgentID      string
	Capabilities []string
	Use          []string // as in AgentRegistered
	Writes       []string
}

// Type implements Body.
func (*AgentUpdated) Type() Type { return TypeAgentUpdated }

func (b *AgentUpdated) fields(c *coder) {
	c.str("agent_id", &b.AgentID)
	c.strs("capabilities", &b.Capabilities)
	c.optStrs("use", &b.Use)
	c.optStrs("writes", &b.Writes)
}

// AgentRevoked ends an agent for good and takes every capability from its
// subtree.
type AgentRevoked struct{ AgentID string }

// Type implements Body.
func (*AgentRevoked) Type() Type { return TypeAgentRevoked }

func (b *AgentRevoked) fields(c *coder) { c.str("agent_id", &b.AgentID) }

// PrincipalRegistered creates a principal that is no agent.
type PrincipalRegistered struct {
	ID        string
	Role      string
	PublicKey string
	Actions   []string // handlers
	Groups    []string // approvers
	Root      string   // observers of one subtree
}

// Type implements Body.
func (*PrincipalRegistered) Type() Type { return TypePrincipalRegistered }

func (b *PrincipalRegistered) fields(c *coder) {
	c.str("id", &b.ID)
	c.str("role", &b.Role)
	c.str("public_key", &b.PublicKey)
	c.optStrs("actions", &b.Actions)
	c.optStrs("groups", &b.Groups)
	c.optStr("root", &b.Root)
}

// PrincipalRekeyed gives a principal another key; the old one is dead.
type PrincipalRekeyed struct{ ID, PublicKey string }

// Type implements Body.
func (*PrincipalRekeyed) Type() Type { return TypePrincipalRekeyed }

func (b *PrincipalRekeyed) fields(c *coder) {
	c.str("id", &b.ID)
	c.str("public_key", &b.PublicKey)
}

// PrincipalRevoked ends a principal for good.
type PrincipalRevoked struct{ ID string }

// Type implements Body.
func (*PrincipalRevoked) Type() Type { return TypePrincipalRevoked }

func (b *PrincipalRevoked) fields(c *coder) { c.str("id", &b.ID) }

// PolicyActivated puts a policy in force. Its open payload is the document.
type PolicyActivated struct {
	Version string
	Digest  Hash // SHA-256 of the document's bytes as sent
	Rules   uint64
}

// Type implements Body.
func (*PolicyActivated) Type() Type { return TypePolicyActivated }

func (b *PolicyActivated) fields(c *coder) {
	c.str("version", &b.Version)
	c.hash("digest", &b.Digest)
	c.uint("rules", &b.Rules)
}

// EnvironmentChanged narrows the policy's environment to its intersection
// with Capabilities.
type EnvironmentChanged struct{ Capabilities []string }

// Type implements Body.
func (*EnvironmentChanged) Type() Type { return TypeEnvironmentChanged }

func (b *EnvironmentChanged) fields(c *coder) { c.strs("capabilities", &b.Capabilities) }

// MemoryWritten creates or changes a record. Its value is a payload: the
// event's own where the namespace is mandatory (open) or the record came with
// an apply (sealed), else the member value of its decision's request.
type MemoryWritten struct {
	Record
	Expires Time   // ledger time from which the record is gone; 0 for never
	RunID   string // the run with whose end it is gone; empty for none
}

// MemoryDeleted ends a record; the revision counts on.
type MemoryDeleted struct{ Record }

// MemoryExpired says that a record is gone because its time has come or its run
// has ended; the revision counts on. It follows from no decision, or from the
// one that wrote the record anew before this was said.
type MemoryExpired struct{ Record }

// Record is what all memory events say.
type Record struct {
	Owner      string
	Namespace  string
	Key        string
	Visibility string // private, children or descendants
	Class      string // preference, secret, mandatory or task
	Revision   uint64
}

// Type implements Body.
func (*MemoryWritten) Type() Type { return TypeMemoryWritten }

// Type implements Body.
func (*MemoryDeleted) Type() Type { return TypeMemoryDeleted }

// Type implements Body.
func (*MemoryExpired) Type() Type { return TypeMemoryExpired }

func (b *MemoryWritten) fields(c *coder) {
	b.Record.fields(c)
	c.optTime("expires", &b.Expires)
	c.optStr("run_id", &b.RunID)
}

func (b *Record) fields(c *coder) {
	c.str("owner_agent_id", &b.Owner)
	c.str("namespace", &b.Namespace)
	c.str("key", &b.Key)
	c.str("visibility", &b.Visibility)
	c.str("class", &b.Class)
	c.uint("revision", &b.Revision)
}

// ClockAccepted says that an admin took the wall clock's word after it had
// run more than a minute ahead.
type ClockAccepted struct{ Wall Time }

// Type implements Body.
func (*ClockAccepted) Type() Type { return TypeClockAccepted }

func (b *ClockAccepted) fields(c *coder) { c.time("wall", &b.Wall) }

// TransportDenied counts what the NATS server turned away; RequestsRefused,
// what the door did before judgement. ID is empty where no key was known.
type TransportDenied struct{ Refusals }

// RequestsRefused: see TransportDenied.
type RequestsRefused struct{ Refusals }

// Refusals is what both say.
type Refusals struct {
	ID    string
	Code  string
	Count uint64
	First Time
	Last  Time
}

// Type implements Body.
func (*TransportDenied) Type() Type { return TypeTransportDenied }

// Type implements Body.
func (*RequestsRefused) Type() Type { return TypeRequestsRefused }

func (b *Refusals) fields(c *coder) {
	c.optStr("id", &b.ID)
	c.str("code", &b.Code)
	c.uint("count", &b.Count)
	c.time("first", &b.First)
	c.time("last", &b.Last)
}

package wire

import (
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
)

// Request is one decoded proposal or control request.
type Request struct {
	Operation   string // a known operation
	OperationID string
	TraceID     string
	Resource    string // what a decision on it names
	Canonical   []byte // canonical JSON of the request less operation_id, trace_id and wait_ms: the payload
	TooLarge    bool   // a value or the arguments are over their limit
	Wait        int64  // of sop.submit: milliseconds to wait for the run's end before the answer
	Body        any    // one of the structs below
}

// MemoryRead asks for a record. Without Owner it walks the hierarchy.
type MemoryRead struct{ Namespace, Key, Owner string }

// MemoryWrite creates a record, or updates it where Revision is not 0.
type MemoryWrite struct {
	Owner, Namespace, Key string
	Value                 []byte // canonical
	Visibility            string // empty: private at creation, unchanged at an update
	Revision              uint64 // expected; 0 = not given
	Seconds               uint64 // that the record is to last; 0 = not given
}

// MemoryDelete ends a record at its expected revision.
type MemoryDelete struct {
	Owner, Namespace, Key string
	Revision              uint64
}

// MemoryLoad is an admin's first write of a record.
type MemoryLoad struct {
	Owner, Namespace, Key string
	Value                 []byte // canonical
	Visibility            string
}

// ActionAuthorize asks whether an action may be done with these arguments.
type ActionAuthorize struct {
	Action    string // not yet checked against the grammar
	Arguments []byte // canonical
}

// SOPValidate asks for the judgement of a whole procedure.
type SOPValidate struct{ Procedure }

// SOPSubmit asks for a procedure to be run.
type SOPSubmit struct{ Procedure }

// Procedure is the "sop" of a request, or what is wrong with it.
type Procedure struct {
	sop.SOP
	Refused  reason.Code // why it is none; it then has no steps
	Fault    string      // what is malformed about it, for its sender
	Length   int         // steps that it lists, good or bad
	resource string
}

// RunCancel asks for the end of a run of the sender's.
type RunCancel struct{ RunID string }

// GrantGive lets To read the sender's secret for Seconds, at most Uses times
// where that is not 0.
type GrantGive struct {
	Namespace, Key, To string
	Seconds, Uses      uint64
}

// GrantRevoke ends what To was granted of the sender's secret.
type GrantRevoke struct{ Namespace, Key, To string }

// RunResolve says what became of a doubted effect.
type RunResolve struct{ RunID, StepID, Outcome string }

// EmergencyDeny takes Capabilities, or all, from the subtree of AgentID or,
// where that is empty, from the whole ledger.
type EmergencyDeny struct {
	AgentID      string
	Capabilities []string
	All          bool
	DryRun       bool
}

// EmergencyLift ends the deny of an epoch.
type EmergencyLift struct{ Epoch uint64 }

// AgentRegister creates an agent: as a proposal the parent is the sender, as a
// control request it is ParentID, empty for a root.
type AgentRegister struct {
	AgentID      string // not yet checked against the grammar
	ParentID     string
	Capabilities []string
	Use          []string // of Capabilities; nil where it is not limited
	Writes       []string // patterns of namespaces; nil where they are not limited
	PublicKey    string
}

// AgentRevoke ends an agent.
type AgentRevoke struct{ AgentID string }

// PrincipalRegister creates a principal that is no agent.
type PrincipalRegister struct {
	ID, Role, PublicKey string // ID not yet checked against the grammar
	Actions, Groups     []string
	Root                string
}

// PrincipalRekey changes a principal's key.
type PrincipalRekey struct{ ID, PublicKey string }

// PrincipalRevoke ends a principal.
type PrincipalRevoke struct{ ID string }

// RestrictionAdd holds the sender and all beneath it to one more requirement.
type RestrictionAdd struct{ ID, Action, Require string }

// RestrictionRemove ends a restriction.
type RestrictionRemove struct{ AgentID, ID string }

// ResourceSet says what an object is that arguments may name.
type ResourceSet struct {
	ID, Classification, Owner string
	Tags                      []string
}

// EnvironmentSet narrows the environment.
type EnvironmentSet struct{ Capabilities []string }

// ClockAccept takes the wall clock's word.
type ClockAccept struct{}

// SignersSet says who signs policies from here on; one of those so far has
// signed it, if there are any.
type SignersSet struct{ Keys, Signatures []string }

// KeyRotate brings the next of the ledger's own keys of a kind.
type KeyRotate struct{ Key string }

// KeyRetire ends the older of two keys of a kind that are in force.
type KeyRetire struct{ Key string }

// Apply puts documents in force, all or none.
type Apply struct {
	Documents       []string
	ExpectedVersion string
	DryRun          bool
	Signatures      []string // of the policy among them: a public key, a space, base64
}

// operations maps every operation of DESIGN §6 to its decoder; nil is an
// operation that a later release brings.
var operations = map[Lane]map[string]func(*fields) any{
	Propose: {
		"memory.read":      decodeRead,
		"memory.write":     decodeWrite,
		"memory.delete":    decodeDelete,
		"action.authorize": decodeAuthorize,
		"sop.validate":     decodeSOP,
		"agent.register":   decodeChild,
		"sop.submit":       decodeSubmit,
		"run.cancel":       func(f *fields) any { return &RunCancel{f.valid("run_id", events.ValidToken)} },
		"grant.give":       decodeGrant,
		"grant.revoke":     func(f *fields) any { return &GrantRevoke{f.namespace(), f.recordKey(), f.id("to")} },
		"restriction.add":  decodeRestriction,
	},
	Control: {
		"apply":              decodeApply,
		"agent.register":     decodeAgent,
		"agent.revoke":       func(f *fields) any { return &AgentRevoke{AgentID: f.id("agent_id")} },
		"principal.register": decodePrincipal,
		"principal.rekey":    func(f *fields) any { return &PrincipalRekey{f.id("id"), f.str("public_key")} },
		"principal.revoke":   func(f *fields) any { return &PrincipalRevoke{f.id("id")} },
		"memory.load":        decodeLoad,
		"environment.set":    func(f *fields) any { return &EnvironmentSet{f.capabilities()} },
		"clock.accept":       func(*fields) any { return &ClockAccept{} },
		"emergency.deny":     decodeDeny,
		"emergency.lift":     func(f *fields) any { return &EmergencyLift{f.positive("epoch")} },
		"run.resolve":        decodeResolve,
		"resource.set":       decodeResource,
		"signers.set":        decodeSigners,
		"payload.erase":      decodeErase,
		"hold.place":         func(f *fields) any { return &HoldPlace{f.hold()} },
		"hold.lift":          func(f *fields) any { return &HoldLift{f.hold()} },
		"key.rotate":         func(f *fields) any { return &KeyRotate{f.ownKey(events.KeySeal)} },
		"key.retire":         func(f *fields) any { return &KeyRetire{f.ownKey()} },
		"restriction.remove": func(f *fields) any {
			return &RestrictionRemove{f.id("agent_id"), f.valid("id", events.ValidToken)}
		},
	},
}

// Known is the operation as it may stand in an event: itself, or Unsupported.
func Known(lane Lane, operation string) string {
	if operations[lane][operation] == nil {
		return events.Unsupported
	}
	return operation
}

// Operations lists the operations of a lane that this release answers.
func Operations(lane Lane) []string {
	var names []string
	for name, decode := range operations[lane] {
		if decode != nil {
			names = append(names, name)
		}
	}
	return names
}

// Decode reads a request under the strict JSON profile and the exact fields of
// its operation. A code says why it is none; the request is then nil. A
// request whose only fault is size is decoded and marked.
func Decode(lane Lane, operation string, b []byte) (*Request, reason.Code) {
	r, code, _ := Read(lane, operation, b)
	return r, code
}

// Read is Decode that also says what is wrong with a malformed request, for
// its sender: names of ours and byte positions, nothing of what was sent.
func Read(lane Lane, operation string, b []byte) (*Request, reason.Code, string) {
	decode := operations[lane][operation]
	if decode == nil {
		return nil, reason.UnsupportedOperation, ""
	}
	if len(b) > events.RequestBytesMax {
		return nil, reason.RequestTooLarge, ""
	}
	if lane == Propose {
		if r := quick(operation, b); r != nil {
			return r, "", ""
		}
	}
	return read(operation, decode, b)
}

// read is Read by way of a tree of the JSON.
func read(operation string, decode func(*fields) any, b []byte) (*Request, reason.Code, string) {
	v, err := events.ParseJSON(b)
	if err != nil {
		return nil, reason.MalformedRequest, err.Error()
	}
	if v.Kind != events.Object {
		return nil, reason.MalformedRequest, "not a JSON object"
	}
	f := &fields{value: v}
	r := &Request{Operation: operation}
	r.OperationID = f.printable("operation_id", events.ValidOperationID)
	r.TraceID = f.printable("trace_id", events.ValidTraceID)
	r.Body = decode(f)
	if fault := f.fault(); fault != "" {
		return nil, reason.MalformedRequest, fault
	}
	r.Resource = resource(r.Body)
	r.TooLarge, r.Wait = f.tooLarge, f.wait
	r.Canonical = canonicalWithout(v, "operation_id", "trace_id", "wait_ms")
	return r, "", ""
}

func canonicalWithout(v events.Value, names ...string) []byte {
	kept := events.Value{Kind: events.Object, Members: make([]events.Member, 0, len(v.Members))}
next:
	for _, m := range v.Members {
		for _, name := range names {
			if m.Name == name {
				continue next
			}
		}
		kept.Members = append(kept.Members, m)
	}
	return kept.AppendCanonical(nil)
}

func decodeRead(f *fields) any {
	r := &MemoryRead{Namespace: f.namespace(), Key: f.recordKey()}
	if f.has("owner_agent_id") {
		r.Owner = f.id("owner_agent_id")
	}
	return r
}

func decodeWrite(f *fields) any {
	w := &MemoryWrite{Owner: f.id("owner_agent_id"), Namespace: f.namespace(), Key: f.recordKey(), Value: f.recordValue(), Visibility: f.visibility()}
	if f.has("expected_revision") {
		w.Revision = f.positive("expected_revision")
	}
	if f.has("ttl_seconds") {
		w.Seconds = f.positive("ttl_seconds")
		f.check(w.Seconds <= events.TTLSecondsMax)
	}
	return w
}

func decodeDelete(f *fields) any {
	return &MemoryDelete{f.id("owner_agent_id"), f.namespace(), f.recordKey(), f.positive("expected_revision")}
}

func decodeLoad(f *fields) any {
	return &MemoryLoad{f.id("owner_agent_id"), f.namespace(), f.recordKey(), f.recordValue(), f.visibility()}
}

func decodeAuthorize(f *fields) any {
	return &ActionAuthorize{Action: f.str("action"), Arguments: f.arguments()}
}

const waitMax = 60_000 // milliseconds

func decodeSOP(f *fields) any { return &SOPValidate{f.procedure()} }

func decodeSubmit(f *fields) any { return &SOPSubmit{f.procedure()} }

func (f *fields) procedure() (p Procedure) {
	v, ok := f.take("sop")
	f.check(ok)
	if p.SOP, p.Refused = sop.Parse(v); p.Refused == reason.SOPMalformed {
		p.Fault = sop.Fault(v)
	}
	id, _ := v.Get("sop_id")
	steps, _ := v.Get("steps")
	p.resource, p.Length = named(id.Text, events.ValidToken), len(steps.Elements)
	if f.has("wait_ms") {
		v, _ := f.take("wait_ms")
		ms, integer := v.Int()
		f.check(integer && 0 <= ms && ms <= waitMax)
		f.wait = ms
	}
	return p
}

func decodeResolve(f *fields) any {
	r := &RunResolve{f.valid("run_id", events.ValidToken), f.valid("step_id", events.ValidToken), f.str("outcome")}
	f.check(r.Outcome == events.OutcomeDone || r.Outcome == events.OutcomeNotDone)
	return r
}

const denyReasonMax = 1024 // bytes

func decodeDeny(f *fields) any {
	d := &EmergencyDeny{}
	if f.has("ledger") {
		f.check(f.boolean("ledger") && !f.has("agent_id"))
	} else {
		d.AgentID = f.id("agent_id")
	}
	if f.has("all") {
		d.All = f.boolean("all")
		f.check(d.All && !f.has("capabilities"))
	} else {
		d.Capabilities = f.capabilities()
		f.check(len(d.Capabilities) > 0)
	}
	why := f.str("reason") // for people; with the request it is kept sealed
	f.check(why != "" && len(why) <= denyReasonMax)
	if f.has("dry_run") {
		d.DryRun = f.boolean("dry_run")
	}
	return d
}

func decodeGrant(f *fields) any {
	g := &GrantGive{Namespace: f.namespace(), Key: f.recordKey(), To: f.id("to"), Seconds: f.positive("expires_seconds")}
	f.check(g.Seconds <= events.GrantSecondsMax)
	if f.has("uses") {
		g.Uses = f.positive("uses")
	}
	return g
}

func decodeChild(f *fields) any {
	a := &AgentRegister{AgentID: f.str("agent_id"), Capabilities: f.capabilities(), PublicKey: f.str("public_key")}
	if f.has("use") {
		a.Use = f.names("use", events.ValidAction)
		f.check(len(a.Use) > 0)
		for _, name := range a.Use {
			f.check(slices.Contains(a.Capabilities, name))
		}
	}
	if f.has("writes") {
		a.Writes = f.names("writes", ValidWrites)
		f.check(len(a.Writes) > 0)
		f.tooLarge = f.tooLarge || len(a.Writes) > events.WritesMax
	}
	return a
}

// ValidWrites reports whether s is one of an agent's writes: a namespace, or a
// namespace and .* for it and all beneath.
func ValidWrites(s string) bool { return events.ValidNamespace(strings.TrimSuffix(s, ".*")) }

func decodeAgent(f *fields) any {
	a := decodeChild(f).(*AgentRegister)
	if f.has("parent_id") {
		a.ParentID = f.str("parent_id")
		f.check(a.ParentID != "") // a root is asked for by leaving it out
	}
	return a
}

func decodeRestriction(f *fields) any {
	r := &RestrictionAdd{f.valid("id", events.ValidToken), f.valid("action", events.ValidAction), f.str("require")}
	return r
}

func decodeResource(f *fields) any {
	r := &ResourceSet{ID: f.valid("id", events.ValidResourceID), Classification: f.valid("classification", events.ValidToken), Owner: f.printable("owner", events.ValidToken)}
	if f.has("tags") {
		r.Tags = f.names("tags", events.ValidToken)
	}
	return r
}

func decodePrincipal(f *fields) any {
	p := &PrincipalRegister{ID: f.str("id"), Role: f.str("role"), PublicKey: f.str("public_key")}
	if f.has("actions") {
		p.Actions = f.names("actions", events.ValidAction)
	}
	if f.has("groups") {
		p.Groups = f.names("groups", events.ValidToken)
	}
	if f.has("root") {
		p.Root = f.id("root")
	}
	return p
}

func decodeSigners(f *fields) any {
	r := &SignersSet{Keys: f.strings("keys")}
	f.check(len(r.Keys) <= signaturesMax)
	if f.has("signatures") {
		r.Signatures = f.strings("signatures")
		f.check(len(r.Signatures) <= signaturesMax)
	}
	return r
}

// ownKey is a kind of the ledger's own keys: checkpoint, permit or one of others.
func (f *fields) ownKey(others ...string) string {
	kind := f.str("key")
	f.check(slices.Contains(append(others, events.KeyCheckpoint, events.KeyPermit), kind))
	return kind
}

// signaturesMax is how many signatures come with one request, and how many
// keys may sign.
const signaturesMax = 8

func decodeApply(f *fields) any {
	a := &Apply{Documents: f.strings("documents")}
	if f.has("expected_version") {
		a.ExpectedVersion = f.printable("expected_version", events.ValidToken)
	}
	if f.has("dry_run") {
		a.DryRun = f.boolean("dry_run")
	}
	if f.has("signatures") {
		a.Signatures = f.strings("signatures")
		f.check(len(a.Signatures) <= signaturesMax)
	}
	return a
}

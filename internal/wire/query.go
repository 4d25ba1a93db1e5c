package wire

import (
	"encoding/json"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// QueryRequest is a decoded query; which fields may be set depends on what is
// asked.
type QueryRequest struct {
	AgentID     string // capabilities, explain, decision by operation id
	At          uint64 // capabilities, policy: as of this seq; 0 = now
	Seq         uint64 // decision, explain, proof
	OperationID string // decision
	RunID       string // run
	StepID      string // run: that step alone
	Operation   string // explain
	Request     []byte // explain: canonical
	Root        string // agents
	Resource    string // resources: that one alone
	After       string // agents, principals, resources, grants: continue behind this id
	From        uint64 // events, history, consistency
	To          uint64 // consistency; 0 = as far as the newest checkpoint
	Event       bool   // proof: with the event's bytes
	Limit       uint64 // events, agents, principals, resources, grants, history; 0 = as many as fit
	Category    string // events
	Namespace   string // payloads: of one record
	Key         string
	Agent       string // events
}

var queries = map[string]func(*fields, *QueryRequest){
	"capabilities": func(f *fields, q *QueryRequest) {
		q.AgentID, q.At = f.optID("agent_id"), f.optPositive("at")
	},
	"decision": func(f *fields, q *QueryRequest) {
		q.Seq = f.optPositive("seq")
		q.OperationID = f.printable("operation_id", events.ValidOperationID)
		q.AgentID = f.optID("agent_id")
		f.check((q.Seq == 0) != (q.OperationID == ""))
	},
	"explain": func(f *fields, q *QueryRequest) {
		q.Seq, q.AgentID = f.optPositive("seq"), f.optID("agent_id")
		q.Operation = f.printable("operation", events.ValidAction)
		if f.has("request") {
			v, ok := f.take("request")
			if f.check(ok && v.Kind == events.Object); ok {
				q.Request = v.AppendCanonical(nil)
			}
		}
		f.check((q.Seq == 0) == (q.Operation != "") && (q.Seq == 0) == (q.Request != nil))
	},
	"run": func(f *fields, q *QueryRequest) {
		q.RunID = f.valid("run_id", events.ValidToken)
		q.StepID = f.printable("step_id", events.ValidToken)
	},
	"policy": func(f *fields, q *QueryRequest) { q.At = f.optPositive("at") },
	"history": func(f *fields, q *QueryRequest) {
		q.From, q.Limit = f.optPositive("from"), f.optPositive("limit")
	},
	"proof": func(f *fields, q *QueryRequest) {
		q.Seq = f.positive("seq")
		if f.has("event") {
			q.Event = f.boolean("event")
		}
	},
	"consistency": func(f *fields, q *QueryRequest) {
		q.From, q.To = f.positive("from"), f.optPositive("to")
		f.check(q.To == 0 || q.From <= q.To)
	},
	"checkpoint": func(*fields, *QueryRequest) {},
	"rotations":  func(*fields, *QueryRequest) {},
	"agents": func(f *fields, q *QueryRequest) {
		q.Root, q.After, q.Limit = f.optID("root"), f.optID("after"), f.optPositive("limit")
	},
	"principals": func(f *fields, q *QueryRequest) {
		q.After, q.Limit = f.optID("after"), f.optPositive("limit")
	},
	"resources": func(f *fields, q *QueryRequest) {
		q.Resource = f.printable("id", events.ValidResourceID)
		q.After, q.Limit = f.printable("after", events.ValidResourceID), f.optPositive("limit")
	},
	"denies": func(*fields, *QueryRequest) {},
	"holds": func(f *fields, q *QueryRequest) {
		q.From, q.Limit = f.optPositive("from"), f.optPositive("limit")
	},
	"payloads": func(f *fields, q *QueryRequest) {
		q.From, q.Limit, q.AgentID = f.optPositive("from"), f.optPositive("limit"), f.id("agent_id")
		if f.has("namespace") {
			q.Namespace, q.Key = f.namespace(), f.recordKey()
		}
	},
	"grants": func(f *fields, q *QueryRequest) {
		q.After, q.Limit = f.printable("after", validGrantName), f.optPositive("limit")
	},
	"runs": func(f *fields, q *QueryRequest) {
		q.From, q.Limit = f.optPositive("from"), f.optPositive("limit")
	},
	"events": func(f *fields, q *QueryRequest) {
		q.From, q.Limit = f.positive("from"), f.positive("limit")
		q.Category = f.printable("category", events.ValidKey)
		q.Agent = f.optID("agent")
	},
}

// validGrantName takes any cursor that Grant.Name can be, and others that are
// no name: they are compared, and name nothing.
func validGrantName(s string) bool {
	return s != "" && len(s) <= 2*events.IDBytesMax+events.NamespaceBytesMax+events.KeyBytesMax+3
}

// Queries lists what can be asked.
func Queries() []string {
	var names []string
	for name := range queries {
		names = append(names, name)
	}
	return names
}

// DecodeQuery reads a query's request strictly; an empty one is {}.
func DecodeQuery(what string, b []byte) (*QueryRequest, reason.Code) {
	decode := queries[what]
	if decode == nil {
		return nil, reason.UnsupportedOperation
	}
	if len(b) == 0 {
		b = []byte("{}")
	}
	if len(b) > events.RequestBytesMax {
		return nil, reason.RequestTooLarge
	}
	v, err := events.ParseJSON(b)
	if err != nil || v.Kind != events.Object {
		return nil, reason.MalformedRequest
	}
	f := &fields{value: v}
	q := &QueryRequest{}
	decode(f, q)
	if f.fault() != "" {
		return nil, reason.MalformedRequest
	}
	return q, ""
}

func (f *fields) optID(name string) string {
	if !f.has(name) {
		return ""
	}
	return f.id(name)
}

func (f *fields) optPositive(name string) uint64 {
	if !f.has(name) {
		return 0
	}
	return f.positive(name)
}

// Capabilities answers the query of that name.
type Capabilities struct {
	AgentID   string    `json:"agent_id"`
	Declared  []string  `json:"declared"`
	Use       []string  `json:"use"`
	Effective []string  `json:"effective"`
	Removed   []Removed `json:"removed"`
	Writes    []string  `json:"writes,omitempty"` // its own; those above it limit it too

	Restrictions []Restriction `json:"restrictions,omitempty"` // of its whole lineage, the root's first
	Seq          uint64        `json:"seq"`
}

// Removed names a declared capability that is not effective and the level,
// from the environment downwards, that lacks it first.
type Removed struct {
	Capability string `json:"capability"`
	By         string `json:"by"`
	Why        string `json:"why,omitempty"` // in an explanation, where every level that lacks it has its entry
}

// Agents answers the query of that name, sorted by id. Next, if any, is the id
// to continue after.
type Agents struct {
	Agents []Agent `json:"agents"`
	Next   string  `json:"next,omitempty"`
	Seq    uint64  `json:"seq"`
}

// Agent is one agent as Agents shows it.
type Agent struct {
	AgentID      string   `json:"agent_id"`
	ParentID     string   `json:"parent_id"`
	Depth        int      `json:"depth"`
	Capabilities []string `json:"capabilities"`
	Effective    []string `json:"effective"`
	Use          []string `json:"use,omitempty"`
	Writes       []string `json:"writes,omitempty"`

	Restrictions []Restriction `json:"restrictions,omitempty"` // its own
	PublicKey    string        `json:"public_key"`
	Revoked      bool          `json:"revoked"`
}

// Principals answers the query of that name, sorted by id. Next, if any, is
// the id to continue after.
type Principals struct {
	Principals []Principal `json:"principals"`
	Next       string      `json:"next,omitempty"`
	Seq        uint64      `json:"seq"`
}

// Principal is one principal as Principals shows it.
type Principal struct {
	ID        string   `json:"id"`
	Role      string   `json:"role"`
	PublicKey string   `json:"public_key"`
	Actions   []string `json:"actions,omitempty"`
	Groups    []string `json:"groups,omitempty"`
	Root      string   `json:"root,omitempty"`
	Revoked   bool     `json:"revoked"`
}

// Events answers the query of that name: exact bytes, the seq to go on from,
// and the last durable seq.
type Events struct {
	Events []string `json:"events"`
	Next   uint64   `json:"next"`
	Head   uint64   `json:"head"`
}

// Checkpoint answers the query of that name: the last signed note.
type Checkpoint struct {
	Checkpoint string `json:"checkpoint"`
}

// Proof answers the query of that name: RFC 6962 inclusion of leaf index
// seq−1 in the tree of the checkpoint.
type Proof struct {
	Seq        uint64   `json:"seq"`
	Index      uint64   `json:"index"`
	Leaf       string   `json:"leaf"`
	Hashes     []string `json:"hashes"`
	Checkpoint string   `json:"checkpoint"`
	TlogProof  string   `json:"tlog_proof"`      // the same as a C2SP tlog-proof
	Event      string   `json:"event,omitempty"` // its exact bytes, where asked for
}

// Consistency answers the query of that name: RFC 6962 consistency of the trees
// of the first From and the first To events. The checkpoint is that of To, and
// absent where the newest one is of another size.
type Consistency struct {
	From       uint64   `json:"from"`
	To         uint64   `json:"to"`
	Hashes     []string `json:"hashes"`
	Checkpoint string   `json:"checkpoint,omitempty"`
}

// Rotations answers the query of that name: C2SP tlog-proofs, one after another,
// of the events that brought the checkpoint keys.
type Rotations struct {
	Rotations string `json:"rotations"`
}

// Policy answers the query of that name: the document in force, byte for byte.
type Policy struct {
	Activated
	Document string `json:"document"`
}

// Activated is one policy that was put in force.
type Activated struct {
	Seq     uint64 `json:"seq"`
	Time    string `json:"time"`
	Version string `json:"version"`
	Digest  string `json:"digest"` // SHA-256 of the document
	Rules   uint64 `json:"rules"`
	By      string `json:"by"`
}

// History answers the query of that name, oldest first. Next, if any, is the
// seq to go on from.
type History struct {
	Policies []Activated `json:"policies"`
	Next     uint64      `json:"next,omitempty"`
	Signers  []string    `json:"signers,omitempty"` // of policies, now
}

// Encode is the JSON of a query's answer.
func Encode(answer any) []byte {
	b, err := json.Marshal(answer)
	if err != nil {
		panic("wire: " + err.Error()) // the answers above hold nothing that JSON lacks
	}
	return b
}

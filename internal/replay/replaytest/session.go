package replaytest

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Session is a running ledger, asked without a network.
type Session struct {
	*ledger.Ledger
	T       testing.TB
	Options ledger.Options
	cancel  context.CancelFunc
	ended   chan error
}

// Start opens and runs the ledger in o.Dir. The test must call Stop.
func Start(t testing.TB, o ledger.Options) *Session {
	t.Helper()
	l, err := ledger.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return Run(t, l, o)
}

// Run runs an open ledger. The test must call Stop.
func Run(t testing.TB, l *ledger.Ledger, o ledger.Options) *Session {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Session{Ledger: l, T: t, Options: o, cancel: cancel, ended: make(chan error, 1)}
	go func() { s.ended <- l.Run(ctx) }()
	return s
}

// End asks the ledger to stop and returns what Run returned.
func (s *Session) End() error {
	s.cancel()
	return <-s.ended
}

// Stop stops the ledger, which must not have failed, and checks its log.
func (s *Session) Stop() {
	s.T.Helper()
	if err := s.End(); err != nil {
		s.T.Fatal(err)
	}
	CheckLedger(s.T, s.Options)
}

// Reply is an answer as its asker reads it.
type Reply struct {
	Text      string        // the whole JSON
	Told      reason.Code   // what Answer.Reason says
	Type      string        `json:"type"`
	Allowed   bool          `json:"allowed"`
	Reason    string        `json:"reason_code"`
	Resource  string        `json:"resource"`
	Owner     string        `json:"owner"`
	Seq       uint64        `json:"seq"`
	EventID   string        `json:"event_id"`
	Hash      string        `json:"hash"`
	Policy    string        `json:"policy_version"`
	Failed    []string      `json:"failed"`
	Record    *Record       `json:"record"`
	Decisions []StepReply   `json:"decisions"`
	Documents []interface{} `json:"documents"`
	Run       struct {
		RunID string `json:"run_id"`
		State string `json:"state"`
	} `json:"run"`
}

// Record is the record of a reply.
type Record struct {
	Namespace  string          `json:"namespace"`
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value"`
	Owner      string          `json:"owner_agent_id"`
	Visibility string          `json:"visibility"`
	Class      string          `json:"class"`
	Revision   uint64          `json:"revision"`
}

// StepReply is one step's decision in a reply.
type StepReply struct {
	StepID  string `json:"step_id"`
	Action  string `json:"action"`
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason_code"`
}

// Proposal is a request as the front door would hand it over.
func Proposal(lane wire.Lane, who, operation, body string) *ledger.Proposal {
	request, code := wire.Decode(lane, operation, []byte(body))
	return &ledger.Proposal{Lane: lane, Subject: who, Operation: wire.Known(lane, operation), Refused: code, Request: request}
}

// Send submits a proposal and returns where its one answer will come.
func (s *Session) Send(p *ledger.Proposal) <-chan Reply {
	answers := make(chan Reply, 2) // room for one too many
	code := s.Submit(p, func(a ledger.Answer) { answers <- ParseReply(a) })
	if code != "" {
		answers <- ParseReply(ledger.Answer{Reply: wire.Error(code), Reason: code})
	}
	return answers
}

// ParseReply reads an answer.
func ParseReply(a ledger.Answer) Reply {
	r := Reply{Text: string(a.Reply), Told: a.Reason}
	if err := json.Unmarshal(a.Reply, &r); err != nil {
		r.Reason = err.Error()
	}
	return r
}

// Propose sends an agent's proposal and waits for the answer.
func (s *Session) Propose(who, operation, body string) Reply {
	return <-s.Send(Proposal(wire.Propose, who, operation, body))
}

// Control sends a control request and waits for the answer.
func (s *Session) Control(who, operation, body string) Reply {
	return <-s.Send(Proposal(wire.Control, who, operation, body))
}

// AwaitRun waits until a run is in a state.
func (s *Session) AwaitRun(id string, state projection.RunState) {
	s.T.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		seen := make(chan projection.RunState, 1)
		if s.Ask("admin", func(now *projection.State) func() []byte {
			if run := now.Run(id); run != nil {
				seen <- run.State
			} else {
				seen <- ""
			}
			return func() []byte { return nil }
		}, nil) == "" && <-seen == state {
			return
		}
	}
	s.T.Fatalf("run %s does not come to be %s", id, state)
}

// Apply applies documents as the admin, who must be allowed to.
func (s *Session) Apply(documents ...string) Reply {
	s.T.Helper()
	r := s.Control(ledger.AdminID, "apply", ApplyRequest(documents...))
	if !r.Allowed {
		s.T.Fatalf("apply: %s", r.Text)
	}
	return r
}

// ApplyRequest is the request to apply documents.
func ApplyRequest(documents ...string) string {
	b, err := json.Marshal(map[string][]string{"documents": documents})
	if err != nil {
		panic(err) // strings have a JSON form
	}
	return string(b)
}

var (
	keysMu sync.Mutex
	keysOf = map[string]nkeys.KeyPair{}
)

// Key is a public key for id, the same each time.
func Key(id string) string {
	public, err := pair(id).PublicKey()
	if err != nil {
		panic(err)
	}
	return public
}

// Seed is the secret half of Key.
func Seed(id string) []byte {
	seed, err := pair(id).Seed()
	if err != nil {
		panic(err)
	}
	return seed
}

func pair(id string) nkeys.KeyPair {
	keysMu.Lock()
	defer keysMu.Unlock()
	if keysOf[id] == nil {
		made, err := nkeys.CreateUser()
		if err != nil {
			panic(err)
		}
		keysOf[id] = made
	}
	return keysOf[id]
}

// PolicyDocument is a policy with the actions of the worked case.
func PolicyDocument(version string) string {
	return "apiVersion: ledgerd/v1\nkind: Policy\nversion: " + version + `
environment: [memory.read, memory.write, document.summarize, artifact.save, external.upload, agent.register]
actions:
  document.summarize: {}
  artifact.save: {}
  external.upload: {}
namespaces:
  policy: {class: mandatory, combine: all_true}
  credentials: {class: secret}
  tasks: {class: task}
limits: {tree_depth: 6, children: 20}
`
}

// AgentDocument is an agent's document; no parent makes a root.
func AgentDocument(id, parent string, capabilities ...string) string {
	text := "kind: Agent\nid: " + id + "\n"
	if parent != "" {
		text += "parent: " + parent + "\n"
	}
	return text + "capabilities: [" + strings.Join(capabilities, ", ") + "]\npublic_key: " + Key(id) + "\n"
}

// MemoryDocument is a record's document; value is YAML.
func MemoryDocument(owner, namespace, key, value, visibility string) string {
	return "kind: Memory\nowner: " + owner + "\nnamespace: " + namespace + "\nkey: " + key + "\nvalue: " + value + "\nvisibility: " + visibility + "\n"
}

// Family applies the worked case's policy and agents, and its records.
func (s *Session) Family() Reply {
	s.T.Helper()
	all := []string{"memory.read", "memory.write", "document.summarize", "artifact.save", "agent.register"}
	return s.Apply(
		PolicyDocument("lab-1"),
		AgentDocument("formatter", "researcher", "memory.read", "artifact.save"),
		AgentDocument("researcher", "report_manager", all...),
		AgentDocument("report_manager", "", append(all, "external.upload")...),
		"kind: Principal\nid: watcher\nrole: observer\npublic_key: "+Key("watcher")+"\n",
		MemoryDocument("report_manager", "project", "client_region", "EU", "descendants"),
		MemoryDocument("report_manager", "policy", "external_upload", "false", "descendants"),
		MemoryDocument("report_manager", "report", "retention_days", "30", "descendants"),
		MemoryDocument("report_manager", "credentials", "storage_token", "token-placeholder", "private"),
	)
}

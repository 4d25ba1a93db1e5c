package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Meta may stand in every request. An empty OperationID is replaced by a fresh
// one; give your own to repeat an operation whose outcome you do not know.
type Meta struct {
	OperationID string `json:"operation_id,omitempty"`
	TraceID     string `json:"trace_id,omitempty"`
}

// ReadRequest asks for a record. Without Owner the nearest record visible to
// the sender, from itself up to its root, is the answer.
type ReadRequest struct {
	Meta
	Namespace string `json:"namespace"`
	Key       string `json:"key"`
	Owner     string `json:"owner_agent_id,omitempty"`
}

// WriteRequest creates a record, or updates it where ExpectedRevision is set.
type WriteRequest struct {
	Meta
	Owner            string `json:"owner_agent_id"` // default: the sender
	Namespace        string `json:"namespace"`
	Key              string `json:"key"`
	Value            any    `json:"value"`
	Visibility       string `json:"visibility,omitempty"` // private, children or descendants
	ExpectedRevision uint64 `json:"expected_revision,omitempty"`
}

// DeleteRequest ends a record at its expected revision.
type DeleteRequest struct {
	Meta
	Owner            string `json:"owner_agent_id"` // default: the sender
	Namespace        string `json:"namespace"`
	Key              string `json:"key"`
	ExpectedRevision uint64 `json:"expected_revision"`
}

// AuthorizeRequest asks whether an action may be done with these arguments.
type AuthorizeRequest struct {
	Meta
	Action    string `json:"action"`
	Arguments any    `json:"arguments,omitempty"` // a JSON object; default {}
}

// SOP is a procedure, judged as a whole.
type SOP struct {
	ID      string `json:"sop_id"`
	Version uint64 `json:"version"` // from 1
	Steps   []Step `json:"steps"`
}

// Step is one action of an SOP.
type Step struct {
	ID        string `json:"step_id"`
	Action    string `json:"action"`
	Arguments any    `json:"arguments"` // a JSON object; nil is {}
}

// MarshalJSON writes absent arguments as {}.
func (s Step) MarshalJSON() ([]byte, error) {
	type plain Step
	if s.Arguments == nil {
		s.Arguments = struct{}{}
	}
	return json.Marshal(plain(s))
}

// SOPRequest asks for the judgement of a procedure; nothing is run. SOP is an
// SOP, or JSON (json.RawMessage) to be sent as it is.
type SOPRequest struct {
	Meta
	SOP any `json:"sop"`
}

// RegisterRequest makes a new agent. Through Register it becomes the sender's
// child; through Control "agent.register" an admin or registrar names the
// parent, none for a root.
type RegisterRequest struct {
	Meta
	AgentID      string   `json:"agent_id"`
	ParentID     string   `json:"parent_id,omitempty"` // Control only
	Capabilities []string `json:"capabilities"`
	PublicKey    string   `json:"public_key"` // NATS user key, U…
}

// Read asks for a record; the reply's Record holds it if allowed.
func (c *Client) Read(ctx context.Context, r ReadRequest) (*Reply, error) {
	return c.Propose(ctx, "memory.read", r)
}

// Write creates or updates a record.
func (c *Client) Write(ctx context.Context, r WriteRequest) (*Reply, error) {
	if r.Owner == "" {
		r.Owner = c.id
	}
	return c.Propose(ctx, "memory.write", r)
}

// Delete ends a record.
func (c *Client) Delete(ctx context.Context, r DeleteRequest) (*Reply, error) {
	if r.Owner == "" {
		r.Owner = c.id
	}
	return c.Propose(ctx, "memory.delete", r)
}

// Authorize asks whether an action may be done.
func (c *Client) Authorize(ctx context.Context, r AuthorizeRequest) (*Reply, error) {
	return c.Propose(ctx, "action.authorize", r)
}

// ValidateSOP judges a procedure without running it; the reply's Decisions
// hold one judgement a step.
func (c *Client) ValidateSOP(ctx context.Context, r SOPRequest) (*Reply, error) {
	return c.Propose(ctx, "sop.validate", r)
}

// Register makes a child of the sender.
func (c *Client) Register(ctx context.Context, r RegisterRequest) (*Reply, error) {
	if r.ParentID != "" {
		return nil, errors.New("agent.register: a proposal names no parent, it is the sender; an admin uses Control")
	}
	if r.Capabilities == nil {
		r.Capabilities = []string{}
	}
	return c.Propose(ctx, "agent.register", r)
}

// Capabilities is the answer to the query of that name.
type Capabilities struct {
	AgentID   string              `json:"agent_id"`
	Declared  []string            `json:"declared"`
	Use       []string            `json:"use"`
	Effective []string            `json:"effective"`
	Removed   []RemovedCapability `json:"removed"`
	Seq       uint64              `json:"seq"` // the state this was true in

	Raw []byte `json:"-"`
}

// RemovedCapability is one that the agent declares and does not effectively
// hold, and who takes it away.
type RemovedCapability struct {
	Capability string `json:"capability"`
	By         string `json:"by"`
}

// Capabilities asks what an agent declares and effectively holds; an empty
// agent is the sender.
func (c *Client) Capabilities(ctx context.Context, agent string) (*Capabilities, error) {
	answer := &Capabilities{}
	raw, err := c.ask(ctx, "capabilities", named("agent_id", agent), answer)
	answer.Raw = raw
	return answer, err
}

// EventsPage is the answer to the query "events".
type EventsPage struct {
	Events []string `json:"events"` // each the exact bytes of one event
	Next   uint64   `json:"next"`   // where the next page begins
	Head   uint64   `json:"head"`   // the newest event that there is
}

// EventsQuery selects events from seq From on. Limit 0 leaves the number to the
// ledger, which gives no more than a reply holds; Category is the first word of
// an event's type.
type EventsQuery struct {
	From     uint64 `json:"from"`
	Limit    uint64 `json:"limit,omitempty"`
	Category string `json:"category,omitempty"`
	Agent    string `json:"agent,omitempty"`
}

// Events asks for a page of events.
func (c *Client) Events(ctx context.Context, q EventsQuery) (*EventsPage, error) {
	page := &EventsPage{}
	_, err := c.ask(ctx, "events", q, page)
	return page, err
}

// Decision asks for a decision by its seq; the answer is the query's.
func (c *Client) Decision(ctx context.Context, seq uint64) ([]byte, error) {
	return c.Query(ctx, "decision", map[string]uint64{"seq": seq})
}

// DecisionOf asks for the decision on one of the sender's operation ids.
func (c *Client) DecisionOf(ctx context.Context, operationID string) ([]byte, error) {
	return c.Query(ctx, "decision", named("operation_id", operationID))
}

// Agents asks for the tree of agents, or the part of it under root.
func (c *Client) Agents(ctx context.Context, root string) ([]byte, error) {
	return c.Query(ctx, "agents", named("root", root))
}

// Explain asks how an operation of an agent (empty: of the sender) would be
// judged now, guard by guard, without proposing it. request is its request.
func (c *Client) Explain(ctx context.Context, agent, operation string, request any) ([]byte, error) {
	args := struct {
		Agent     string `json:"agent_id,omitempty"`
		Operation string `json:"operation"`
		Request   any    `json:"request"`
	}{agent, operation, request}
	return c.Query(ctx, "explain", args)
}

// ExplainSeq asks how the decision with this seq came about.
func (c *Client) ExplainSeq(ctx context.Context, seq uint64) ([]byte, error) {
	return c.Query(ctx, "explain", map[string]uint64{"seq": seq})
}

// Checkpoint asks for the newest signed checkpoint.
func (c *Client) Checkpoint(ctx context.Context) ([]byte, error) {
	return c.Query(ctx, "checkpoint", nil)
}

// Proof asks for the inclusion proof of one event.
func (c *Client) Proof(ctx context.Context, seq uint64) ([]byte, error) {
	return c.Query(ctx, "proof", map[string]uint64{"seq": seq})
}

func (c *Client) ask(ctx context.Context, what string, args, answer any) ([]byte, error) {
	raw, err := c.Query(ctx, what, args)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return nil, fmt.Errorf("query %s: %w: %w", what, ErrBadReply, err)
	}
	return raw, nil
}

// named is an argument that is left out where it is empty.
func named(name, value string) map[string]string {
	if value == "" {
		return map[string]string{}
	}
	return map[string]string{name: value}
}

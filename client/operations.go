package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/wire"
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
	TTLSeconds       uint64 `json:"ttl_seconds,omitempty"` // that the record lasts; 0 as long as its namespace rule says, mostly for ever
}

// DeleteRequest ends a record at its expected revision.
type DeleteRequest struct {
	Meta
	Owner            string `json:"owner_agent_id"` // default: the sender
	Namespace        string `json:"namespace"`
	Key              string `json:"key"`
	ExpectedRevision uint64 `json:"expected_revision"`
}

// GrantRequest lends a secret of the sender's to one agent for a time.
type GrantRequest struct {
	Meta
	Namespace      string `json:"namespace"`
	Key            string `json:"key"`
	To             string `json:"to"`
	ExpiresSeconds uint64 `json:"expires_seconds"`
	Uses           uint64 `json:"uses,omitempty"` // how often it may be read; 0 for any number
}

// RevokeGrantRequest ends what To was lent of a secret of the sender's.
type RevokeGrantRequest struct {
	Meta
	Namespace string `json:"namespace"`
	Key       string `json:"key"`
	To        string `json:"to"`
}

// RestrictionRequest is a requirement on an action's arguments, in CEL, that
// the sender and all beneath it are held to.
type RestrictionRequest struct {
	Meta
	ID      string `json:"id"` // unique among the sender's
	Action  string `json:"action"`
	Require string `json:"require"`
}

// RemoveRestrictionRequest names a restriction that an admin takes away.
type RemoveRestrictionRequest struct {
	Meta
	AgentID string `json:"agent_id"`
	ID      string `json:"id"`
}

// ResourceRequest says what an object is, in the place of what was said before.
type ResourceRequest struct {
	Meta
	ID             string   `json:"id"`
	Classification string   `json:"classification"`
	Owner          string   `json:"owner,omitempty"`
	Tags           []string `json:"tags,omitempty"`
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
	Use          []string `json:"use,omitempty"`    // of Capabilities: its own acts are limited to these
	Writes       []string `json:"writes,omitempty"` // patterns of namespaces: notes.* is notes and notes.x
	PublicKey    string   `json:"public_key"`       // NATS user key, U…
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

// Give lends a secret of the sender's to one agent.
func (c *Client) Give(ctx context.Context, r GrantRequest) (*Reply, error) {
	return c.Propose(ctx, "grant.give", r)
}

// RevokeGrant ends what an agent was lent.
func (c *Client) RevokeGrant(ctx context.Context, r RevokeGrantRequest) (*Reply, error) {
	return c.Propose(ctx, "grant.revoke", r)
}

// Restrict holds the sender and all beneath it to one more requirement.
func (c *Client) Restrict(ctx context.Context, r RestrictionRequest) (*Reply, error) {
	return c.Propose(ctx, "restriction.add", r)
}

// RemoveRestriction takes a restriction away from its agent; for admins.
func (c *Client) RemoveRestriction(ctx context.Context, r RemoveRestrictionRequest) (*Reply, error) {
	return c.Control(ctx, "restriction.remove", r)
}

// SetResource says what an object is that arguments may name; for admins.
func (c *Client) SetResource(ctx context.Context, r ResourceRequest) (*Reply, error) {
	return c.Control(ctx, "resource.set", r)
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

// What the queries answer.
type (
	Capabilities = wire.Capabilities
	EventsPage   = wire.Events
	Agent        = wire.Agent
	Principal    = wire.Principal
	Restriction  = wire.Restriction
	Resource     = wire.Resource
	Grant        = wire.Grant
	OpenRun      = wire.OpenRun
	Denies       = wire.Denies
	Explanation  = wire.Explanation
	Proof        = wire.Proof
	Consistency  = wire.Consistency
	Rotations    = wire.Rotations
	Policy       = wire.Policy
	Activated    = wire.Activated
)

// Capabilities asks what an agent declares and effectively holds; an empty
// agent is the sender.
func (c *Client) Capabilities(ctx context.Context, agent string) (*Capabilities, error) {
	return ask[Capabilities](ctx, c, "capabilities", named("agent_id", agent))
}

// EventsQuery selects events from seq From on, at most Limit (0: as many as a
// reply holds). Category is the first word of an event's type.
type EventsQuery struct {
	From     uint64 `json:"from"`
	Limit    uint64 `json:"limit"`
	Category string `json:"category,omitempty"`
	Agent    string `json:"agent,omitempty"`
}

// Events asks for a page of events: their exact bytes, and the seq where the
// next page begins. The last page's Next is beyond its Head.
func (c *Client) Events(ctx context.Context, q EventsQuery) (*EventsPage, error) {
	if q.Limit == 0 {
		q.Limit = 10_000
	}
	return ask[EventsPage](ctx, c, "events", q)
}

// Decision asks for a decision by its seq, as a reply: with the reason of the
// log for those who may see it.
func (c *Client) Decision(ctx context.Context, seq uint64) (*Reply, error) {
	return c.recorded(ctx, map[string]uint64{"seq": seq})
}

// DecisionOf asks for the decision on an operation id of an agent; an empty
// agent is the sender.
func (c *Client) DecisionOf(ctx context.Context, agent, operationID string) (*Reply, error) {
	args := named("agent_id", agent)
	args["operation_id"] = operationID
	return c.recorded(ctx, args)
}

func (c *Client) recorded(ctx context.Context, args any) (*Reply, error) {
	raw, err := c.Query(ctx, "decision", args)
	if err != nil {
		return nil, err
	}
	return parseReply(raw)
}

// Agents asks for all agents, or root and all below it, sorted by id, and the
// seq of the state (of its first part, where there are many).
func (c *Client) Agents(ctx context.Context, root string) (agents []Agent, seq uint64, err error) {
	args := named("root", root)
	for {
		page, err := ask[wire.Agents](ctx, c, "agents", args)
		if err != nil {
			return nil, 0, err
		}
		if seq == 0 {
			seq = page.Seq
		}
		agents = append(agents, page.Agents...)
		if page.Next == "" || len(page.Agents) == 0 {
			return agents, seq, nil
		}
		args["after"] = page.Next
	}
}

// Principals asks for all who are no agents, sorted by id, and the seq of the
// state (of its first part, where there are many).
func (c *Client) Principals(ctx context.Context) (principals []Principal, seq uint64, err error) {
	args := map[string]string{}
	for {
		page, err := ask[wire.Principals](ctx, c, "principals", args)
		if err != nil {
			return nil, 0, err
		}
		if seq == 0 {
			seq = page.Seq
		}
		principals = append(principals, page.Principals...)
		if page.Next == "" || len(page.Principals) == 0 {
			return principals, seq, nil
		}
		args["after"] = page.Next
	}
}

// Resources lists the registry of resources, page by page.
func (c *Client) Resources(ctx context.Context) (resources []Resource, seq uint64, err error) {
	args := map[string]string{}
	for {
		page, err := ask[wire.Resources](ctx, c, "resources", args)
		if err != nil {
			return nil, 0, err
		}
		if seq == 0 {
			seq = page.Seq
		}
		resources = append(resources, page.Resources...)
		if page.Next == "" || len(page.Resources) == 0 {
			return resources, seq, nil
		}
		args["after"] = page.Next
	}
}

// Denies lists the emergency denies in force.
func (c *Client) Denies(ctx context.Context) (*Denies, error) {
	return ask[Denies](ctx, c, "denies", struct{}{})
}

// Signers lists the keys one of which has to sign every policy; none where
// policies need no signature.
func (c *Client) Signers(ctx context.Context) ([]string, error) {
	page, err := ask[wire.History](ctx, c, "history", map[string]uint64{"limit": 1})
	if err != nil {
		return nil, err
	}
	return page.Signers, nil
}

// Grants lists the grants in force that the sender gave or was given; those of
// every agent it sees, for who is no agent.
func (c *Client) Grants(ctx context.Context) (grants []Grant, seq uint64, err error) {
	args := map[string]string{}
	for {
		page, err := ask[wire.Grants](ctx, c, "grants", args)
		if err != nil {
			return nil, 0, err
		}
		if seq == 0 {
			seq = page.Seq
		}
		grants = append(grants, page.Grants...)
		if page.Next == "" || len(page.Grants) == 0 {
			return grants, seq, nil
		}
		args["after"] = page.Next
	}
}

// Runs lists the runs that are under way or in doubt, of the sender and its
// subtree, or of all whom it sees, in the order of their admission.
func (c *Client) Runs(ctx context.Context) (runs []OpenRun, seq uint64, err error) {
	args := map[string]uint64{}
	for {
		page, err := ask[wire.Runs](ctx, c, "runs", args)
		if err != nil {
			return nil, 0, err
		}
		if seq == 0 {
			seq = page.Seq
		}
		runs = append(runs, page.Runs...)
		if page.Next == 0 || len(page.Runs) == 0 {
			return runs, seq, nil
		}
		args["from"] = page.Next
	}
}

// Resource is what the registry says of one object.
func (c *Client) Resource(ctx context.Context, id string) (*Resource, error) {
	page, err := ask[wire.Resources](ctx, c, "resources", named("id", id))
	if err != nil {
		return nil, err
	}
	if len(page.Resources) != 1 {
		return nil, errors.New("the ledger's answer names no resource")
	}
	return &page.Resources[0], nil
}

// Explain asks how an operation of an agent (empty: of the sender) would be
// judged now, guard by guard, without proposing it. request is its request.
func (c *Client) Explain(ctx context.Context, agent, operation string, request any) (*Explanation, error) {
	args := struct {
		Agent     string `json:"agent_id,omitempty"`
		Operation string `json:"operation"`
		Request   any    `json:"request"`
	}{agent, operation, request}
	return ask[Explanation](ctx, c, "explain", args)
}

// ExplainSeq asks how the decision with this seq came about.
func (c *Client) ExplainSeq(ctx context.Context, seq uint64) (*Explanation, error) {
	return ask[Explanation](ctx, c, "explain", map[string]uint64{"seq": seq})
}

// Policy asks for the policy in force at a seq (0: now), with its document byte
// for byte.
func (c *Client) Policy(ctx context.Context, at uint64) (*Policy, error) {
	args := map[string]uint64{}
	if at > 0 {
		args["at"] = at
	}
	return ask[Policy](ctx, c, "policy", args)
}

// PolicyHistory asks for every policy that was put in force, oldest first.
func (c *Client) PolicyHistory(ctx context.Context) (all []Activated, err error) {
	args := map[string]uint64{}
	for {
		page, err := ask[wire.History](ctx, c, "history", args)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Policies...)
		if page.Next == 0 || len(page.Policies) == 0 {
			return all, nil
		}
		args["from"] = page.Next
	}
}

// Checkpoint asks for the newest signed checkpoint, a C2SP signed note.
func (c *Client) Checkpoint(ctx context.Context) (string, error) {
	answer, err := ask[wire.Checkpoint](ctx, c, "checkpoint", struct{}{})
	if err != nil {
		return "", err
	}
	return answer.Checkpoint, nil
}

// Proof asks for the inclusion proof of one event.
func (c *Client) Proof(ctx context.Context, seq uint64) (*Proof, error) {
	return ask[Proof](ctx, c, "proof", map[string]uint64{"seq": seq})
}

// ProofWithEvent is Proof with the event's bytes, for those who may read the log.
func (c *Client) ProofWithEvent(ctx context.Context, seq uint64) (*Proof, error) {
	return ask[Proof](ctx, c, "proof", map[string]any{"seq": seq, "event": true})
}

// Rotations asks for the events that brought the ledger's checkpoint keys, each
// proved. It is for those who may read the whole log.
func (c *Client) Rotations(ctx context.Context) (*Rotations, error) {
	return ask[Rotations](ctx, c, "rotations", struct{}{})
}

// Consistency asks for the proof that the log of to events begins with that of
// from; to 0 is the newest checkpoint, which comes with it.
func (c *Client) Consistency(ctx context.Context, from, to uint64) (*Consistency, error) {
	args := map[string]uint64{"from": from}
	if to > 0 {
		args["to"] = to
	}
	return ask[Consistency](ctx, c, "consistency", args)
}

func ask[Answer any](ctx context.Context, c *Client, what string, args any) (*Answer, error) {
	raw, err := c.Query(ctx, what, args)
	if err != nil {
		return nil, err
	}
	answer := new(Answer)
	if err := json.Unmarshal(raw, answer); err != nil {
		return nil, fmt.Errorf("query %s: %w: %w", what, ErrBadReply, err)
	}
	return answer, nil
}

// named is an argument that is left out where it is empty.
func named(name, value string) map[string]string {
	if value == "" {
		return map[string]string{}
	}
	return map[string]string{name: value}
}

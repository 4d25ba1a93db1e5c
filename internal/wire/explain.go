package wire

import "github.com/ledgerd/ledgerd/internal/reason"

// Explanation answers the query explain.
type Explanation struct {
	Subject       string      `json:"subject"`
	Lineage       []string    `json:"lineage"`
	Operation     string      `json:"operation"`
	Resource      string      `json:"resource"`
	Allowed       bool        `json:"allowed"`
	ReasonCode    reason.Code `json:"reason_code"`
	Message       string      `json:"message"`
	PolicyVersion string      `json:"policy_version"`
	Owner         string      `json:"owner,omitempty"`
	Guards        []Guard     `json:"guards"`
	Why
	Notes     []string    `json:"notes,omitempty"`
	Decisions []Explained `json:"decisions,omitempty"`
	Erased    uint64      `json:"erased,omitempty"` // the event under which the request was destroyed
	Seq       uint64      `json:"seq"`              // of the state judged against, or of the decision explained
}

// Guard is one guard and what became of it: passed, failed or not_reached.
type Guard struct {
	Guard      string      `json:"guard"`
	Result     string      `json:"result"`
	ReasonCode reason.Code `json:"reason_code,omitempty"`
}

// Explained is one step of an explained SOP.
type Explained struct {
	StepID     string      `json:"step_id"`
	Action     string      `json:"action"`
	Allowed    bool        `json:"allowed"`
	ReasonCode reason.Code `json:"reason_code"`
	Guards     []Guard     `json:"guards,omitempty"`
	Why
}

// Why is what stands behind a denial, as far as the asker may know.
type Why struct {
	Rules   []FailedRule  `json:"rules,omitempty"`   // every requirement that is not fulfilled: the policy's, then from the root down
	Faults  []SchemaFault `json:"faults,omitempty"`  // of the arguments or the value
	Removed []Removed     `json:"removed,omitempty"` // every level that lacks the capability
	Writes  []Writes      `json:"writes,omitempty"`  // the levels whose writes forbid the namespace
	Instead *Instead      `json:"instead,omitempty"`
	LeftOut int           `json:"left_out,omitempty"` // entries of these for which there was no room
}

// FailedRule is a requirement that is not fulfilled.
type FailedRule struct {
	ID      string `json:"id"`
	Owner   string `json:"owner,omitempty"`   // the agent it is a restriction of; the policy's has none
	Require string `json:"require,omitempty"` // in CEL; left out where the asker may not know it, or it would be too large
	Error   string `json:"error,omitempty"`   // why it could not be judged
}

// SchemaFault is where a value breaks a schema.
type SchemaFault struct {
	Rule   string `json:"rule,omitempty"` // the namespace rule, of a value
	At     string `json:"at"`             // in what was sent
	Fault  string `json:"fault"`
	Place  string `json:"place,omitempty"`  // in the schema, such as /properties/size/maximum
	Says   string `json:"says,omitempty"`   // what stands there, JSON
	Schema string `json:"schema,omitempty"` // of a value, JSON
}

// Writes is what an agent's writes allow.
type Writes struct {
	AgentID string   `json:"agent_id"`
	Writes  []string `json:"writes"`
}

// Instead is what would be allowed.
type Instead struct {
	Action       string   `json:"action,omitempty"`       // of the agent's own, with the nearest name
	AgentID      string   `json:"agent_id,omitempty"`     // the nearest above that may do it
	Capabilities []string `json:"capabilities,omitempty"` // that the agent may use itself
	Writes       []string `json:"writes,omitempty"`       // where it may write
	Revision     uint64   `json:"expected_revision,omitempty"`
}

package client

import (
	"encoding/json"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/reason"
)

// Reply is a decision: what the ledger answered to a proposal or a control
// request. Seq and Hash are the receipt: the decision is that event of the
// log, and its leaf hash. A refusal at the door (overloaded, rate_limited,
// storage_low) was not judged and has no receipt.
type Reply struct {
	Allowed       bool           `json:"allowed"`
	ReasonCode    Reason         `json:"reason_code"`
	Message       string         `json:"message"`
	Subject       string         `json:"subject"`
	Operation     string         `json:"operation"`
	Resource      string         `json:"resource"`
	PolicyVersion string         `json:"policy_version"`
	Seq           uint64         `json:"seq"`
	EventID       string         `json:"event_id"`
	Hash          string         `json:"hash"` // 64 hex digits
	OperationID   string         `json:"operation_id"`
	Owner         string         `json:"owner"`
	Rule          string         `json:"rule"`
	Failed        []string       `json:"failed"`
	Record        *Record        `json:"record"`    // of an allowed read, write or delete
	Decisions     []StepDecision `json:"decisions"` // of an SOP, in step order
	Documents     []Document     `json:"documents"` // of an apply, in the order sent
	Run           *Run           `json:"run"`       // of an admitted procedure
	Epoch         uint64         `json:"epoch"`     // of an emergency deny or lift
	InFlight      []InFlight     `json:"in_flight"` // of an emergency deny: what it comes too late for
	Erased        *Erased        `json:"erased"`    // of an erasure

	Raw []byte `json:"-"` // the reply's bytes
}

// Record is one record of memory as a reply shows it.
type Record struct {
	Namespace  string          `json:"namespace"`
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value"` // canonical JSON; absent after a delete or a retry
	Owner      string          `json:"owner_agent_id"`
	Visibility string          `json:"visibility"`
	MutableBy  string          `json:"mutable_by"`
	Class      string          `json:"class"`
	Revision   uint64          `json:"revision"`
	Expires    string          `json:"expires"` // ledger time from which it is gone; empty for never
	RunID      string          `json:"run_id"`  // the run with whose end it is gone; empty for none
	// Contributors own the mandatory records that were combined, nearest first.
	Contributors []string `json:"contributors"`
}

// Document is one document of an apply and what became of it.
type Document struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Result string `json:"result"` // created, updated, kept or unchanged
}

// StepDecision is the judgement of one step of an SOP.
type StepDecision struct {
	StepID     string `json:"step_id"`
	Action     string `json:"action"`
	Allowed    bool   `json:"allowed"`
	ReasonCode Reason `json:"reason_code"`
	Owner      string `json:"owner"`
	Rule       string `json:"rule"`
}

// parseReply reads a reply. One that says allowed and gives a reason which
// does not allow is none.
func parseReply(raw []byte) (*Reply, error) {
	r := &Reply{Raw: raw}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadReply, err)
	}
	if _, known := reason.Of(r.ReasonCode); r.ReasonCode == "" || !known && r.Allowed || known && r.Allowed != r.ReasonCode.Allowed() {
		return nil, fmt.Errorf("%w: allowed %t with reason code %q", ErrBadReply, r.Allowed, r.ReasonCode)
	}
	return r, nil
}

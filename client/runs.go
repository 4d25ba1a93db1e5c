package client

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/wire"
)

// RunState is where a run stands.
type RunState string

// The states of a run. The last four are its end, but for RunInDoubt, which
// waits for a person.
const (
	RunAdmitted  RunState = "admitted"
	RunRunning   RunState = "running"
	RunFinished  RunState = "finished"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
	RunInDoubt   RunState = "in_doubt"
)

// Run is a run and what became of its steps.
type Run struct {
	RunID   string       `json:"run_id"`
	State   RunState     `json:"state"`
	Reason  Reason       `json:"reason_code"` // why it failed or is in doubt; empty otherwise
	Results []StepResult `json:"results"`     // in step order

	// Of an answer to the query only.
	Agent      string `json:"-"`
	SOPID      string `json:"-"`
	SOPVersion uint64 `json:"-"`
	Seq        uint64 `json:"-"` // of the state that was asked

	Raw []byte `json:"-"` // the answer to the query
}

// AtRest reports whether the run's state will not change by itself any more.
func (r *Run) AtRest() bool { return r.State != RunAdmitted && r.State != RunRunning }

// StepResult is what became of one step.
type StepResult struct {
	StepID  string          `json:"step_id"`
	Action  string          `json:"action"`
	State   string          `json:"state"`   // waiting, started, finished or failed
	Result  json.RawMessage `json:"result"`  // canonical JSON, for the run's own agent; nil for none
	Erased  bool            `json:"erased"`  // it was destroyed
	Omitted bool            `json:"omitted"` // it does not fit here: ask for the step alone
}

// InFlight is an effect that started before an emergency deny and is not
// reported: the deny does not stop it any more.
type InFlight struct {
	RunID       string `json:"run_id"`
	StepID      string `json:"step_id"`
	Action      string `json:"action"`
	OperationID string `json:"operation_id"`
	Agent       string `json:"agent"`
}

// WaitMax is the longest that SubmitSOP has the ledger wait.
const WaitMax = time.Minute

// SubmitSOP has a procedure judged as a whole and, if every step may be done,
// run. The reply's Run names it. The answer comes when the run is at rest, or
// after wait (in whole milliseconds, at most WaitMax; 0 for at once), whichever
// is first; sooner where the ledger holds back too many answers already. A retry under the same operation id gets the same run.
func (c *Client) SubmitSOP(ctx context.Context, r SOPRequest, wait time.Duration) (*Reply, error) {
	if wait < 0 || wait > WaitMax {
		return nil, fmt.Errorf("sop.submit: wait %s: 0 to %s", wait, WaitMax)
	}
	request := struct {
		SOPRequest
		WaitMS int64 `json:"wait_ms"`
	}{r, wait.Milliseconds()}
	return c.decide(ctx, wire.Propose, "sop.submit", request, wait)
}

// Run asks for a run; an empty step for all of its steps.
func (c *Client) Run(ctx context.Context, runID, stepID string) (*Run, error) {
	args := named("step_id", stepID)
	args["run_id"] = runID
	raw, err := c.Query(ctx, "run", args)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Agent      string `json:"agent"`
		SOPID      string `json:"sop_id"`
		SOPVersion uint64 `json:"sop_version"`
		Seq        uint64 `json:"seq"`
		Run        *Run   `json:"run"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Run == nil {
		return nil, fmt.Errorf("query run: %w: %.200q", ErrBadReply, raw)
	}
	r := answer.Run
	r.Agent, r.SOPID, r.SOPVersion, r.Seq, r.Raw = answer.Agent, answer.SOPID, answer.SOPVersion, answer.Seq, raw
	return r, nil
}

// CancelRequest names a run of the sender's own.
type CancelRequest struct {
	Meta
	RunID string `json:"run_id"`
}

// CancelRun ends a run of the sender's: no further step starts. What has
// started is not called back.
func (c *Client) CancelRun(ctx context.Context, r CancelRequest) (*Reply, error) {
	return c.Propose(ctx, "run.cancel", r)
}

// ResolveRequest says what became of a step in doubt.
type ResolveRequest struct {
	Meta
	RunID  string
	StepID string
	Done   bool // the effect happened
}

// ResolveRun settles a run in doubt, as an admin who has found out whether the
// step's effect happened.
func (c *Client) ResolveRun(ctx context.Context, r ResolveRequest) (*Reply, error) {
	outcome := "not_done"
	if r.Done {
		outcome = "done"
	}
	return c.Control(ctx, "run.resolve", struct {
		Meta
		RunID   string `json:"run_id"`
		StepID  string `json:"step_id"`
		Outcome string `json:"outcome"`
	}{r.Meta, r.RunID, r.StepID, outcome})
}

// DenyRequest takes capabilities away at once: from an agent and all below it,
// or from the whole ledger.
type DenyRequest struct {
	Meta
	AgentID      string   `json:"agent_id,omitempty"` // the top of the subtree
	Ledger       bool     `json:"ledger,omitempty"`   // or everyone
	Capabilities []string `json:"capabilities,omitempty"`
	All          bool     `json:"all,omitempty"`
	Reason       string   `json:"reason"` // for people; kept sealed
	DryRun       bool     `json:"dry_run,omitempty"`
}

// EmergencyDeny puts a deny in force. It reaches running procedures; the
// reply's Epoch names it, and InFlight lists the effects it comes too late for.
func (c *Client) EmergencyDeny(ctx context.Context, r DenyRequest) (*Reply, error) {
	return c.Control(ctx, "emergency.deny", r)
}

// LiftRequest names a deny by its epoch.
type LiftRequest struct {
	Meta
	Epoch uint64 `json:"epoch"`
}

// EmergencyLift ends a deny.
func (c *Client) EmergencyLift(ctx context.Context, r LiftRequest) (*Reply, error) {
	return c.Control(ctx, "emergency.lift", r)
}

// EnvironmentRequest cuts the policy's environment down, from here on and under
// later policies too.
type EnvironmentRequest struct {
	Meta
	Capabilities []string `json:"capabilities"`
}

// SetEnvironment narrows what may be done on the ledger at all; admins only.
func (c *Client) SetEnvironment(ctx context.Context, r EnvironmentRequest) (*Reply, error) {
	return c.Control(ctx, "environment.set", r)
}

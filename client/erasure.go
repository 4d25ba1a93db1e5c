package client

import (
	"context"
	"errors"

	"github.com/ledgerd/ledgerd/internal/wire"
)

// EraseRequest destroys payloads: those beside the events Seqs, at most 1,024 in
// ascending order, or all of an agent's that may be erased.
type EraseRequest struct {
	Meta
	Seqs    []uint64 `json:"seqs,omitempty"`
	AgentID string   `json:"agent_id,omitempty"`
	Basis   string   `json:"basis"`             // court_order, mistake, retention_end or subject_request
	Comment string   `json:"comment,omitempty"` // for people, kept sealed
	DryRun  bool     `json:"dry_run,omitempty"`
}

// HoldRequest names what is kept from being erased: all of AgentID's, one record
// of Owner's, or the payload beside the event Seq.
type HoldRequest struct {
	Meta
	AgentID   string `json:"agent_id,omitempty"`
	Owner     string `json:"owner_agent_id,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Key       string `json:"key,omitempty"`
	Seq       uint64 `json:"seq,omitempty"`
	Comment   string `json:"comment,omitempty"`
}

// Erased says in a reply what was erased, or would be.
type Erased struct {
	Under   uint64   `json:"under"` // the event, 0 where nothing was left to erase or it was a dry run
	Seqs    []uint64 `json:"seqs"`
	AgentID string   `json:"agent_id"` // all of whose payloads beside events before Before it is
	Before  uint64   `json:"before"`
	Records []string `json:"records"` // that are gone with them, OWNER:NAMESPACE.KEY
	Pending bool     `json:"pending"` // the bytes are not off the disk yet
}

// Payload is what lies, or lay, beside one event.
type Payload = wire.Payload

// Hold is one hold, and the event that placed it.
type Hold = wire.Hold

// Erase destroys payloads, and answers when their bytes are off the disk; for
// admins.
func (c *Client) Erase(ctx context.Context, r EraseRequest) (*Reply, error) {
	return c.Control(ctx, "payload.erase", r)
}

// PlaceHold keeps payloads from being erased, LiftHold lets them go; for admins.
func (c *Client) PlaceHold(ctx context.Context, r HoldRequest) (*Reply, error) {
	return c.Control(ctx, "hold.place", r)
}

// LiftHold: see PlaceHold.
func (c *Client) LiftHold(ctx context.Context, r HoldRequest) (*Reply, error) {
	return c.Control(ctx, "hold.lift", r)
}

// Payloads lists what lies beside the log and is an agent's or, where a namespace
// and key are given, holds values of that record. It reads the log from its start.
func (c *Client) Payloads(ctx context.Context, agentID, namespace, key string) (payloads []Payload, err error) {
	args := map[string]any{"agent_id": agentID}
	if namespace != "" {
		args["namespace"], args["key"] = namespace, key
	}
	listed := map[uint64]bool{} // a procedure stands once in each page in which it wrote the record
	for {
		page, err := ask[wire.Payloads](ctx, c, "payloads", args)
		if err != nil {
			return nil, err
		}
		for _, p := range page.Payloads {
			if !listed[p.Seq] {
				listed[p.Seq] = true
				payloads = append(payloads, p)
			}
		}
		if page.Next == 0 {
			return payloads, nil
		}
		if from, ok := args["from"].(uint64); ok && page.Next <= from && len(page.Payloads) == 0 {
			return nil, errors.New("ledgerd: a list that does not go on")
		}
		args["from"] = page.Next
	}
}

// Holds lists what is kept from being erased.
func (c *Client) Holds(ctx context.Context) (holds []Hold, err error) {
	args := map[string]uint64{}
	for {
		page, err := ask[wire.Holds](ctx, c, "holds", args)
		if err != nil {
			return nil, err
		}
		holds = append(holds, page.Holds...)
		if page.Next == 0 || len(page.Holds) == 0 {
			return holds, nil
		}
		args["from"] = page.Next
	}
}

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// NewOperationID returns a fresh operation id, a UUID of version 7.
func NewOperationID() string { return uuid.Must(uuid.NewV7()).String() }

// Propose sends a proposal. request is anything that marshals to one JSON
// object; where it has no operation_id, a fresh one is added.
func (c *Client) Propose(ctx context.Context, operation string, request any) (*Reply, error) {
	return c.decide(ctx, wire.Propose, operation, request, 0)
}

// Control sends a control request, as Propose does a proposal.
func (c *Client) Control(ctx context.Context, verb string, request any) (*Reply, error) {
	return c.decide(ctx, wire.Control, verb, request, 0)
}

// Query asks a question that leaves no event, and returns the answer's bytes.
// A refused query is a *Refusal.
func (c *Client) Query(ctx context.Context, what string, args any) ([]byte, error) {
	if args == nil {
		args = struct{}{}
	}
	body, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", what, err)
	}
	t := &try{client: c, subject: wire.Subject{Ledger: c.ledger, Lane: wire.Query, ID: c.id, Name: what}.String(), body: body}
	raw, code, err := t.run(ctx)
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		return nil, fmt.Errorf("query %s: %w: no answer", what, ErrUnavailable)
	case err != nil:
		return nil, fmt.Errorf("query %s: %w", what, err)
	case kindOf(raw) == wire.ErrorType:
		return nil, &Refusal{Query: what, Reason: code, Raw: raw}
	}
	return raw, nil
}

// Refusal is the answer to a query that was refused.
type Refusal struct {
	Query  string
	Reason Reason
	Raw    []byte // the answer's bytes
}

// Error implements error.
func (r *Refusal) Error() string {
	return fmt.Sprintf("query %s: %s (%s)", r.Query, r.Reason.Text(), r.Reason)
}

// decide sends a request whose answer the ledger may hold back for wait.
func (c *Client) decide(ctx context.Context, lane wire.Lane, operation string, request any, wait time.Duration) (*Reply, error) {
	body, id, err := withOperationID(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", operation, err)
	}
	t := &try{client: c, subject: wire.Subject{Ledger: c.ledger, Lane: lane, ID: c.id, Name: operation}.String(), body: body, wait: wait}
	raw, _, err := t.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s, operation id %s: %w", operation, id, err)
	}
	reply, err := parseReply(raw)
	if err != nil {
		return nil, fmt.Errorf("%s, operation id %s: %w", operation, id, err)
	}
	if reply.OperationID != "" && reply.OperationID != id || reply.Subject != "" && reply.Subject != c.id {
		return nil, fmt.Errorf("%s, operation id %s: %w: it names %q, operation id %q", operation, id, ErrBadReply, reply.Subject, reply.OperationID)
	}
	return reply, nil
}

// withOperationID marshals request and makes sure that it is one object with
// an operation id.
func withOperationID(request any) (body []byte, id string, err error) {
	body, err = json.Marshal(request)
	if err != nil {
		return nil, "", fmt.Errorf("marshal the request: %w", err)
	}
	v, err := events.ParseJSON(body)
	if err != nil {
		return nil, "", fmt.Errorf("the request is no JSON that a ledger takes: %w", err)
	}
	if v.Kind != events.Object {
		return nil, "", errors.New("the request is no JSON object")
	}
	if given, ok := v.Get("operation_id"); ok {
		return body, given.Text, nil
	}
	id = NewOperationID()
	v.Members = append(v.Members, events.Member{Name: "operation_id", Value: events.Value{Kind: events.String, Text: id}})
	return v.AppendCanonical(nil), id, nil
}

// try is one request with its retries, which repeat the same bytes and so the
// same operation id.
type try struct {
	client  *Client
	subject string
	body    []byte
	wait    time.Duration // how long the ledger may hold the answer back
	unknown bool          // some attempt may have been judged without our hearing of it
	last    error         // why the last attempt brought no reply
}

// run returns the first reply that is not to be retried, and the reason code
// in it if it has one. When the budget is used up, a refusal at the door is
// returned as the reply it is, unless an earlier attempt may have been judged.
func (t *try) run(ctx context.Context) (raw []byte, code reason.Code, err error) {
	for attempt := 0; ; attempt++ {
		raw, code, err = t.once(ctx)
		switch {
		case err != nil && t.unknown: // an earlier attempt may have been judged
			return nil, "", fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		case err != nil:
			return nil, "", err
		}
		info, _ := reason.Of(code)
		if raw != nil && !info.Retryable {
			return raw, code, nil
		}
		if attempt >= t.client.retries || !sleep(ctx, backoff(attempt)) {
			break
		}
	}
	switch {
	case t.unknown:
		return nil, "", fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause(ctx, t.last, code))
	case raw != nil:
		return raw, code, nil
	}
	return nil, "", fmt.Errorf("%w: %w", ErrUnavailable, cause(ctx, t.last, code))
}

// once makes one attempt. Neither a reply nor an error means: try again.
func (t *try) once(ctx context.Context) ([]byte, reason.Code, error) {
	c := t.client
	attempt, cancel := context.WithTimeout(ctx, c.timeout+t.wait)
	defer cancel()
	guarded, release := c.guard(attempt, t.subject+`"`)
	defer release()
	m, err := c.nc.RequestWithContext(guarded, t.subject, t.body)
	if err == nil {
		code := codeOf(m.Data)
		if code == reason.NotKnownCommitted {
			t.unknown = true
		}
		return m.Data, code, nil
	}
	refused := context.Cause(guarded)
	switch {
	case errors.Is(refused, ErrPermissionViolation):
		return nil, "", refused
	case errors.Is(err, nats.ErrConnectionClosed):
		return nil, "", c.closedCause()
	case errors.Is(err, nats.ErrMaxPayload):
		return nil, "", fmt.Errorf("%w: %d bytes", ErrRequestTooLarge, len(t.body))
	case errors.Is(err, nats.ErrBadSubject):
		return nil, "", fmt.Errorf("%q is no name of an operation or query", t.subject)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrReconnectBufExceeded):
		t.last = err
	default: // timed out, or the connection went away after the request was written
		t.last, t.unknown = err, true
	}
	return nil, "", nil
}

func (c *Client) closedCause() error {
	if last := c.nc.LastError(); isAuth(last) {
		return fmt.Errorf("%w (%w)", ErrUnauthorized, last)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, errClosed)
}

var errClosed = errors.New("the connection is closed")

func cause(ctx context.Context, last error, code reason.Code) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case last != nil:
		return last
	}
	return errors.New(string(code))
}

// codeOf is the reason code of a reply, empty if it has none.
func codeOf(raw []byte) reason.Code {
	var r struct {
		ReasonCode reason.Code `json:"reason_code"`
	}
	if json.Unmarshal(raw, &r) != nil {
		return ""
	}
	return r.ReasonCode
}

// kindOf is the schema id of an answer: refusals have one, answers to queries
// may have none.
func kindOf(raw []byte) string {
	var r struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &r) != nil {
		return ""
	}
	return r.Type
}

// backoff is the wait after the given attempt: doubling from 50 ms to 2 s, of
// it half at random so that many clients do not return together.
func backoff(attempt int) time.Duration {
	d := min(50*time.Millisecond<<min(attempt, 10), 2*time.Second)
	return d/2 + rand.N(d/2)
}

// sleep waits for d and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

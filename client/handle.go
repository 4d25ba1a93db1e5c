package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Effect is one thing a handler is asked to do: a step of a run that the ledger
// has judged, with the arguments it judged.
type Effect struct {
	OperationID string // of this effect and no other; an idempotency key for what is behind the handler
	RunID       string
	SOPID       string
	StepID      string
	Agent       string // whose run it is
	Action      string
	Arguments   json.RawMessage // canonical JSON, an object
}

// Bind unmarshals the arguments into v.
func (e Effect) Bind(v any) error {
	if err := json.Unmarshal(e.Arguments, v); err != nil {
		return fmt.Errorf("arguments of %s: %w", e.Action, err)
	}
	return nil
}

// Func does one effect. A nil error says that it is done; result marshals to
// JSON, nil for none. An error says that it is not, and ends the run: if the
// effect may have happened, say so in its text. The text is kept sealed, and so
// is that of a panic, which counts as an error. ctx ends when the ledger will
// have given up waiting.
type Func func(ctx context.Context, e Effect) (result any, err error)

// Actions says who does what.
type Actions map[string]Func

// HandleOptions change how Handle works.
type HandleOptions struct {
	// Concurrency is how many functions may run at once. Default 16.
	Concurrency int
	// Timeout ends a function's context, counted from the order's arrival; an
	// order that has waited as long for its turn is not begun. Give the
	// shortest timeout that the policy has for these actions. Default 30 s, as
	// in a policy.
	Timeout time.Duration
	// Grace is how long running functions are waited for after ctx has ended;
	// then their contexts end. Default 10 s.
	Grace time.Duration
	// OnReady is called once, when the ledger knows that these actions are
	// handled here.
	OnReady func()
	// OnError hears what no call returns: panics, orders that make no sense,
	// reports that are refused. Default: the client's own OnError.
	OnError func(error)
}

const (
	helloEvery      = 5 * time.Second
	ordersWaiting   = 1024 // an order beyond them is declined
	reportsAtOnce   = 64
	errorBytesMax   = 4 << 10
	reportBackOff   = 8 // attempts after which the wait between reports stays what it is
	defaultInFlight = 16
)

// stopPoint is where a test ends or holds the process; it does nothing.
var stopPoint = func(point, operationID string) {}

// Handle does the effects that the ledger asks this handler for, until ctx
// ends. It subscribes to each action, in a queue group with the handler's other
// processes, says hello to the ledger now and every 5 s, and calls the action's
// function once for each order. What it is asked for stands in store before it
// is begun, and what came of it before it is reported; a report is repeated
// until the ledger acknowledges it, also those that an earlier process left.
// An effect whose process ended in between is not done again: it is one of
// store.Doubts, and its run waits for a person.
//
// After ctx has ended nothing more is begun, what waits is declined, the ledger
// is told that the handler has left, and what runs may end within the grace period; Handle then returns nil, or an error
// that names what still runs. It ends by itself, with an error, when store
// fails, or when the ledger does not accept this handler or these actions.
func (c *Client) Handle(ctx context.Context, store *EffectStore, actions Actions, o HandleOptions) error {
	if len(actions) == 0 {
		return errors.New("handle: no actions")
	}
	h := newHandling(c, store, actions, o)
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	guarded, release := c.guard(working, h.execPrefix())
	defer release()
	h.fail = stop
	for range h.o.Concurrency {
		h.workers.Go(h.work)
	}
	for _, id := range store.unreported() {
		h.report(id)
	}
	err := h.subscribe()
	if err == nil {
		err = h.greet(guarded)
	}
	if cause := context.Cause(guarded); cause != nil && ctx.Err() == nil {
		err = cause // a failure of the store, or a subject that the server refuses
	}
	close(h.stopping)
	h.workers.Go(h.work) // one that is free, to decline what waits
	h.unsubscribe()
	h.leave()
	close(h.drained)
	return errors.Join(err, h.end())
}

// handling is one call of Handle.
type handling struct {
	c       *Client
	store   *EffectStore
	actions Actions
	o       HandleOptions
	fail    context.CancelCauseFunc // ends the handling with an error

	subs     []*nats.Subscription
	queue    chan order
	stopping chan struct{} // closed when nothing more is to be begun
	drained  chan struct{} // closed when nothing more comes into the queue
	workers  sync.WaitGroup

	effects context.Context // of the functions; outlives ctx by the grace period
	cut     context.CancelFunc

	reporting context.Context
	silence   context.CancelFunc
	reports   sync.WaitGroup
	slots     chan struct{} // reports under way

	mu      sync.Mutex
	running map[string]bool // by operation id
}

// order is an effect that waits for its turn.
type order struct {
	effect  Effect
	arrived time.Time
}

func newHandling(c *Client, store *EffectStore, actions Actions, o HandleOptions) *handling {
	if o.Concurrency <= 0 {
		o.Concurrency = defaultInFlight
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Grace <= 0 {
		o.Grace = 10 * time.Second
	}
	if o.OnError == nil {
		o.OnError = c.onError
	}
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	h := &handling{c: c, store: store, actions: maps.Clone(actions), o: o,
		queue: make(chan order, ordersWaiting), stopping: make(chan struct{}), drained: make(chan struct{}), slots: make(chan struct{}, reportsAtOnce), running: map[string]bool{}}
	h.effects, h.cut = context.WithCancel(context.Background())
	h.reporting, h.silence = context.WithCancel(context.Background())
	return h
}

func (h *handling) execPrefix() string { return "gov." + h.c.ledger + ".exec." }

// subscribe takes orders for every action.
func (h *handling) subscribe() error {
	for _, action := range slices.Sorted(maps.Keys(h.actions)) {
		if !events.ValidAction(action) || h.actions[action] == nil {
			return fmt.Errorf("handle: %q is no action, or has no function", action)
		}
		sub, err := h.c.nc.QueueSubscribe(h.execPrefix()+action, "exec-"+action, h.take)
		if err != nil {
			return fmt.Errorf("handle %s: %w", action, err)
		}
		h.subs = append(h.subs, sub)
	}
	return nil
}

// unsubscribe takes no more orders, and returns when those on their way are in
// the queue; without a connection there are none.
func (h *handling) unsubscribe() {
	timeout := time.NewTimer(h.o.Grace)
	defer timeout.Stop()
	for _, sub := range h.subs {
		ended := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(ended) })
		if err := sub.Drain(); err != nil {
			continue // it went with the connection
		}
		select {
		case <-ended:
		case <-timeout.C:
			return
		}
	}
}

// greet says hello until ctx ends, which is no error, or the ledger says that
// this handler has no business here.
func (h *handling) greet(ctx context.Context) error {
	status := h.c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer h.c.nc.RemoveStatusListener(status)
	hello := wire.Hello(slices.Sorted(maps.Keys(h.actions)))
	ready := h.o.OnReady
	for ctx.Err() == nil {
		code, err := h.send(ctx, "hello", hello)
		info, known := reason.Of(code)
		wait := helloEvery
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && permanent(err):
			return fmt.Errorf("handle: hello: %w", err)
		case err != nil:
			h.o.OnError(fmt.Errorf("hello: %w", err))
			wait = backoff(4)
		case known && !info.Retryable:
			return fmt.Errorf("handle: the ledger does not take the hello of %s: %w", h.c.id, &Refusal{Query: "hello", Reason: code})
		case code == "" && ready != nil:
			ready()
			ready = nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-status:
		}
		timer.Stop()
	}
	return nil
}

// leave tells the ledger that this handler does nothing any more, so that no run
// is admitted to wait for it. Where it has other processes, the next hello of
// theirs, within 5 s, says otherwise.
func (h *handling) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := h.send(ctx, "hello", wire.Hello(nil)); err != nil {
		h.o.OnError(fmt.Errorf("leave: %w", err))
	}
}

func permanent(err error) bool {
	return errors.Is(err, ErrPermissionViolation) || errors.Is(err, ErrUnauthorized) || errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, errClosed)
}

// send makes one attempt. An empty code means that the ledger has it.
func (h *handling) send(ctx context.Context, name string, body []byte) (reason.Code, error) {
	t := &try{client: h.c, subject: wire.Subject{Ledger: h.c.ledger, Lane: wire.Effect, ID: h.c.id, Name: name}.String(), body: body}
	raw, code, err := t.once(ctx)
	switch {
	case err != nil:
		return "", err
	case raw == nil:
		return "", fmt.Errorf("%w: %w", ErrUnavailable, t.last)
	case kindOf(raw) == wire.AckType:
		return "", nil
	case kindOf(raw) == wire.ErrorType && code != "":
		return code, nil
	}
	return "", fmt.Errorf("%w: %.200q", ErrBadReply, raw)
}

// take puts an order into the queue. It runs in the subscription's goroutine.
func (h *handling) take(m *nats.Msg) {
	exec, ok := wire.DecodeExec(m.Data)
	if !ok || m.Subject != h.execPrefix()+exec.Action || h.actions[exec.Action] == nil {
		h.o.OnError(fmt.Errorf("on %s came what is no order for it", m.Subject))
		return
	}
	o := order{Effect{exec.OperationID, exec.RunID, exec.SOPID, exec.StepID, exec.Agent, exec.Action, exec.Arguments}, time.Now()}
	stopPoint("received", exec.OperationID)
	select {
	case h.queue <- o:
	default:
		h.decline(&o.effect, fmt.Sprintf("not begun: %d effects wait for their turn already", ordersWaiting))
	}
}

// work does one effect after the other. When nothing more is to be begun it
// declines what comes, until nothing comes any more.
func (h *handling) work() {
	for {
		select {
		case o := <-h.queue:
			h.turn(o)
		case <-h.drained:
			for {
				select {
				case o := <-h.queue:
					h.turn(o)
				default:
					return
				}
			}
		}
	}
}

func (h *handling) turn(o order) {
	select {
	case <-h.stopping:
		h.decline(&o.effect, "not begun: the handler is stopping")
		return
	default:
	}
	if time.Since(o.arrived) >= h.o.Timeout {
		h.decline(&o.effect, fmt.Sprintf("not begun: its turn did not come within %s", h.o.Timeout))
		return
	}
	h.do(o)
}

// decline reports that an effect was not begun and never will be.
func (h *handling) decline(e *Effect, why string) {
	fresh, report, err := h.store.decline(e, (&wire.Report{OperationID: e.OperationID, Error: why}).Encode())
	if h.known(e, fresh, report, err) {
		return
	}
	h.o.OnError(fmt.Errorf("%s for %s: %s", e.Action, e.OperationID, why))
	h.report(e.OperationID)
}

// known deals with an order that nothing is to be done for.
func (h *handling) known(e *Effect, fresh bool, report []byte, err error) bool {
	switch {
	case errors.Is(err, ErrOtherOrder):
		h.o.OnError(err)
	case err != nil:
		h.fail(fmt.Errorf("handle: %w", err))
	case fresh:
		return false
	case report != nil:
		h.report(e.OperationID)
	default:
		h.o.OnError(fmt.Errorf("%s came again for %s, which is running or in doubt: not done again", e.Action, e.OperationID))
	}
	return true
}

// do calls the function for one effect, once, between two durable records.
func (h *handling) do(o order) {
	e := &o.effect
	if fresh, report, err := h.store.begin(e); h.known(e, fresh, report, err) {
		return
	}
	stopPoint("started", e.OperationID)
	h.note(e.OperationID, true)
	report := h.call(o)
	h.note(e.OperationID, false)
	stopPoint("returned", e.OperationID)
	if err := h.store.finish(e.OperationID, report); err != nil {
		h.fail(fmt.Errorf("handle: the result of %s: %w", e.OperationID, err))
		return
	}
	stopPoint("done", e.OperationID)
	h.report(e.OperationID)
}

func (h *handling) note(operationID string, running bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if running {
		h.running[operationID] = true
	} else {
		delete(h.running, operationID)
	}
}

// call runs the function and returns what to report of it.
func (h *handling) call(o order) []byte {
	ctx, cancel := context.WithDeadline(h.effects, o.arrived.Add(h.o.Timeout))
	defer cancel()
	result, err := h.guarded(ctx, o.effect)
	r := &wire.Report{OperationID: o.effect.OperationID, OK: err == nil}
	if err == nil && result != nil {
		if r.Result, err = canonical(result); err != nil {
			err = fmt.Errorf("done, but its result cannot be reported: %w", err)
		}
	}
	report := r.Encode()
	if err == nil && len(report) > wire.ReportMax {
		err = fmt.Errorf("done, but its result of %d bytes is too large to be reported: at most %d", len(r.Result), wire.ReportMax)
	}
	if err != nil {
		report = (&wire.Report{OperationID: o.effect.OperationID, Error: sendable(err.Error())}).Encode()
	}
	return report
}

// guarded turns a panic of the function into an error.
func (h *handling) guarded(ctx context.Context, e Effect) (result any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			h.o.OnError(fmt.Errorf("%s for %s: %w\n%s", e.Action, e.OperationID, err, debug.Stack()))
		}
	}()
	return h.actions[e.Action](ctx, e)
}

// canonical is a result as the ledger takes it.
func canonical(result any) ([]byte, error) {
	b, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	v, err := events.ParseJSON(b)
	if err != nil {
		return nil, err
	}
	if v.Kind == events.Null {
		return nil, nil
	}
	return v.AppendCanonical(nil), nil
}

// sendable is a text within the bounds of what a report may say.
func sendable(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) > errorBytesMax {
		cut := errorBytesMax
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	if text == "" {
		return "failed"
	}
	return text
}

// report tells the ledger what came of an effect until it acknowledges.
func (h *handling) report(operationID string) {
	h.reports.Go(func() {
		select {
		case h.slots <- struct{}{}:
			defer func() { <-h.slots }()
		case <-h.reporting.Done():
			return
		}
		body, err := h.store.reported(operationID)
		if err != nil {
			h.fail(fmt.Errorf("handle: the report of %s: %w", operationID, err))
			return
		}
		for attempt := 0; h.reporting.Err() == nil; attempt++ {
			code, err := h.send(h.reporting, "report", body)
			if err == nil && h.settled(operationID, code) || permanent(err) || !sleep(h.reporting, backoff(min(attempt, reportBackOff))) {
				return
			}
		}
	})
}

// settled reports whether there is no more to say about an effect.
func (h *handling) settled(operationID string, code reason.Code) bool {
	switch code {
	case "":
		stopPoint("reported", operationID)
		h.store.acknowledged(operationID)
		stopPoint("acknowledged", operationID)
		return true
	case reason.NotFound, reason.NotPermittedForRole, reason.MalformedRequest, reason.RequestTooLarge:
		h.o.OnError(fmt.Errorf("the ledger does not take the report of %s: %s (%s)", operationID, code, code.Text()))
		if err := h.store.refused(operationID, code); err != nil {
			h.fail(fmt.Errorf("handle: %w", err))
		}
		return true
	}
	return false
}

// end waits for what was begun, within the grace period.
func (h *handling) end() error {
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		h.workers.Wait()
		h.reports.Wait()
	}()
	grace := time.NewTimer(h.o.Grace)
	defer grace.Stop()
	select {
	case <-finished:
	case <-grace.C:
	}
	h.cut()
	h.silence() // what is not acknowledged now is reported by the next process
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.running) > 0 {
		return fmt.Errorf("handle: still running: %s", strings.Join(slices.Sorted(maps.Keys(h.running)), " "))
	}
	return nil
}

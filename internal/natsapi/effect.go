package natsapi

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// A handler's rate, where agents have one: it answers for all of them together,
// and a report that is turned away keeps a run waiting. It only stops one that
// has lost its way.
const (
	reportRate  = 20_000 // messages a second
	reportBurst = 40_000
)

// effect takes a handler's hello or report. It has a subscription of its own,
// and the ledger a queue, so that it never waits behind proposals. A report is
// answered when it is durable. What is refused leaves no event but the count: an
// auditor sees who says what is not so.
func (a *api) effect(m request) {
	s, reply, ok := a.parse(m, wire.Effect)
	if !ok {
		return
	}
	if reply == foreignReply {
		a.refuse(m, s.ID, reply, reason.BadReplySubject)
		return
	}
	if !a.reports.take(s.ID, 1) {
		a.refuse(m, s.ID, reply, reason.RateLimited)
		return
	}
	code := reason.MalformedRequest
	switch s.Name {
	case "hello":
		var actions []string
		if actions, code = wire.DecodeHello(m.data); code == "" {
			code = a.ledger.Hello(s.ID, actions)
		}
		if code == "" && reply == ownReply {
			respond(m, wire.Ack(), "")
		}
	case "report":
		var report *wire.Report
		if report, code = wire.DecodeReport(m.data); code == "" {
			code = a.ledger.Report(s.ID, report, func(out ledger.Answer) {
				if out.Reason != "" {
					a.refuse(m, s.ID, reply, out.Reason)
				} else if reply == ownReply {
					respond(m, out.Reply, "")
				}
			})
		}
	}
	if code != "" {
		a.refuse(m, s.ID, reply, code)
	}
}

// dispatcher tells handlers what to do, and everybody which emergency denies
// are in force. Nothing answers to it: an exec has no reply subject.
type dispatcher struct {
	nc     *nats.Conn
	prefix string // gov.<ledger>.
	fault  func(msg string, args ...any)

	mu    sync.Mutex
	state []byte // the newest control.state that is durable
}

// exec publishes the message for one effect. One that is lost, because nobody
// subscribes or the connection is gone, shows as an effect that nobody reports.
func (d *dispatcher) exec(action string, message []byte) {
	if err := d.nc.Publish(d.prefix+"exec."+action, message); err != nil {
		d.fault("an effect was not dispatched", "action", action, "error", err)
	}
}

// announce publishes a new control state.
func (d *dispatcher) announce(state []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = state
	d.publishState()
}

func (d *dispatcher) publishState() {
	if err := d.nc.Publish(d.prefix+"control.state", d.state); err != nil {
		d.fault("control.state not announced", "error", err)
	}
}

// stateEvery is how often control.state is repeated, for those who came after
// the last change.
const stateEvery = 5 * time.Second

// repeat announces the control state again and again until ctx ends.
func (d *dispatcher) repeat(ctx context.Context) {
	tick := time.NewTicker(stateEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.mu.Lock()
			d.publishState()
			d.mu.Unlock()
		}
	}
}

package natsapi

import (
	"errors"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// holds lists what is kept from being erased. It is the whole ledger's.
func holds(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	out := wire.Holds{Holds: []wire.Hold{}, Seq: s.Seq}
	for _, h := range s.HoldList() {
		if placed := s.Held(h); placed >= q.From {
			out.Holds = append(out.Holds, wire.Hold{AgentID: h.Owner, Namespace: h.Namespace, Key: h.Key, Payload: h.Seq, Placed: placed})
		}
	}
	return func() []byte {
		slices.SortFunc(out.Holds, func(a, b wire.Hold) int { return int(int64(a.Placed) - int64(b.Placed)) })
		size := 0
		for i, h := range out.Holds {
			if size += len(wire.Encode(h)) + 1; size > replyRoom || q.Limit > 0 && uint64(i) == q.Limit {
				out.Next, out.Holds = h.Placed, out.Holds[:i]
				break
			}
		}
		return wire.Encode(out)
	}
}

// payloads lists what lies beside the log and is an agent's, or holds the values
// of one record of its: what an erasure would be of.
func (a *api) payloads(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	if !s.IDTaken(q.AgentID) || !w.sees(s, q.AgentID) {
		return refusal(reason.NotFound)
	}
	p := &payloadPage{api: a, q: q, state: s.Payloads(q.AgentID), now: a.ledger.Now(), out: wire.Payloads{Payloads: []wire.Payload{}, Seq: s.Seq}}
	from := max(q.From, 1)
	return func() []byte {
		to := min(p.out.Seq, from+eventsScanMax-1)
		if to < p.out.Seq {
			p.out.Next = to + 1
		}
		err := a.ledger.Events(from, to, func(_ uint64, b []byte) error {
			e, err := events.Parse(b)
			if err != nil {
				return err
			}
			return p.take(&e)
		})
		if err != nil && !errors.Is(err, errPageFull) && !errors.Is(err, store.ErrNotFound) {
			return wire.Error(reason.NotKnownCommitted)
		}
		return wire.Encode(p.out)
	}
}

type payloadPage struct {
	api   *api
	q     *wire.QueryRequest
	state *projection.State // as much as these questions take
	now   events.Time
	out   wire.Payloads
	size  int
}

// take lists what an event is to be listed for: its own payload, and, where it
// wrote the record in a run, the request that the run came with.
func (p *payloadPage) take(e *events.Event) error {
	owner, _ := e.Sealed()
	if owner != p.q.AgentID {
		return nil
	}
	of, namespace, key, named := ledger.RecordOf(e)
	if p.q.Namespace != "" && (!named || of != p.q.AgentID || namespace != p.q.Namespace || key != p.q.Key) {
		return nil
	}
	if _, written := e.Body.(*events.MemoryWritten); written && p.q.Namespace != "" {
		if err := p.submitted(e); err != nil {
			return err
		}
	}
	return p.add(e)
}

func (p *payloadPage) submitted(e *events.Event) error {
	step, err := p.api.durable(e.Cause)
	d, ok := step.Body.(*events.Decision)
	if err != nil || !ok || d.RunID == "" || d.Operation != ledger.StepOperation {
		return err
	}
	run := p.state.Run(d.RunID)
	if run == nil {
		return nil
	}
	submit, err := p.api.durable(run.Decision)
	if err != nil || slices.ContainsFunc(p.out.Payloads, func(listed wire.Payload) bool { return listed.Seq == submit.Seq }) {
		return err
	}
	return p.add(&submit)
}

func (p *payloadPage) add(e *events.Event) error {
	entry := wire.Payload{Seq: e.Seq, Time: e.Time.String(), AgentID: p.q.AgentID, Of: string(e.Body.Type())}
	if d, ok := e.Body.(*events.Decision); ok {
		entry.Of = d.Operation
	}
	if of, namespace, key, ok := ledger.RecordOf(e); ok {
		entry.Record = of + ":" + namespace + "." + key
	}
	entry.State, entry.Under = ledger.StateOf(p.state, e, p.now)
	p.size += len(wire.Encode(entry)) + 1
	if n := uint64(len(p.out.Payloads)); p.size > replyRoom || p.q.Limit > 0 && n >= p.q.Limit {
		p.out.Next = e.Seq
		return errPageFull
	}
	p.out.Payloads = append(p.out.Payloads, entry)
	return nil
}

package natsapi

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// proof answers about an event of w's own or of what it sees. The event itself
// is for those who may read the log: it says more than a reply does.
func (a *api) proof(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	e, err := a.durable(q.Seq)
	if err != nil || e.Agent != w.id && !w.sees(s, e.Agent) {
		return refusal(reason.NotFound)
	}
	if q.Event && !w.full() {
		return refusal(reason.NotPermittedForRole)
	}
	return func() []byte {
		p, err := a.ledger.Prove(q.Seq)
		if err != nil {
			return wire.Error(reason.NotFound)
		}
		file := audit.InclusionProof{Index: p.Index, Hashes: p.Hashes, Checkpoint: p.Checkpoint}
		out := wire.Proof{Seq: q.Seq, Index: p.Index, Leaf: p.Leaf.String(), Hashes: hexHashes(p.Hashes), Checkpoint: string(p.Checkpoint), TlogProof: string(file.Encode())}
		if q.Event {
			out.Event = string(p.Event)
		}
		return wire.Encode(out)
	}
}

// consistency tells nothing but hashes of trees, and so whoever may have the
// checkpoint.
func (a *api) consistency(q *wire.QueryRequest) func() []byte {
	return func() []byte {
		c, err := a.ledger.ProveConsistency(q.From, q.To)
		if err != nil {
			return wire.Error(reason.NotFound)
		}
		return wire.Encode(wire.Consistency{From: c.From, To: c.To, Hashes: hexHashes(c.Hashes), Checkpoint: string(c.Checkpoint)})
	}
}

// rotations shows who follows on a checkpoint key, and for that event 1 and those
// about keys: it is for those who may read the whole log.
func (a *api) rotations(s *projection.State, w asker) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	at := []uint64{1}
	for _, k := range s.CheckpointKeys() {
		at = append(at, k.From, k.Until)
	}
	slices.Sort(at)
	at = slices.DeleteFunc(slices.Compact(at), func(seq uint64) bool { return seq == 0 })
	return func() []byte {
		newest, err := a.ledger.Prove(min(at[len(at)-1], a.ledger.Durable())) // under a checkpoint that covers them
		if err != nil {
			return wire.Error(reason.NotFound)
		}
		source := audit.Source{Checkpoint: newest.Checkpoint, Events: a.ledger.Events, Hashes: a.ledger.Hashes}
		list, err := source.Rotations(at...)
		if err != nil {
			return wire.Error(reason.NotFound)
		}
		return wire.Encode(wire.Rotations{Rotations: string(audit.EncodeRotations(list))})
	}
}

func hexHashes(list []events.Hash) []string {
	out := make([]string, len(list))
	for i, h := range list {
		out[i] = h.String()
	}
	return out
}

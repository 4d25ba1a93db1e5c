package natsapi

import (
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

func hexHashes(list []events.Hash) []string {
	out := make([]string, len(list))
	for i, h := range list {
		out[i] = h.String()
	}
	return out
}

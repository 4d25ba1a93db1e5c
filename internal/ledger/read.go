package ledger

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Name is the ledger's name, a token of every subject.
func (l *Ledger) Name() string { return l.name }

// Origin names the log.
func (l *Ledger) Origin() string { return l.origin }

// Durable is the last seq that is synced. Nothing above it is ever read.
func (l *Ledger) Durable() uint64 { return l.store.Durable() }

// Events calls fn for each durable event from … to, with its exact bytes,
// which fn must not keep.
func (l *Ledger) Events(from, to uint64, fn func(seq uint64, b []byte) error) error {
	return l.store.Events(from, to, fn)
}

// Event returns the exact bytes of a durable event.
func (l *Ledger) Event(seq uint64) ([]byte, error) { return l.store.Event(seq) }

// Recorded is the reply to the decision at seq as its asker got it, without
// value or result; full adds what the asker was not told. run is the run that it
// admitted, as it stands, nil for none.
func (l *Ledger) Recorded(seq uint64, full bool, run *projection.Run) ([]byte, error) {
	if seq == 0 || seq > l.Durable() {
		return nil, store.ErrNotFound
	}
	r, err := l.recorded(seq)
	if err != nil {
		return nil, err
	}
	if r.Full = full; run != nil {
		r.Run = l.results(&runView{run: *run}, false, "")
	}
	return r.Encode(), nil
}

// Request is the request that lies sealed beside the decision at seq; ok is false
// where there is none, or none that opens any more.
func (l *Ledger) Request(seq uint64) (b []byte, ok bool) {
	b, ok, err := l.payload(seq)
	return b, ok && err == nil
}

// Proof is an event's inclusion proof under the last signed checkpoint.
type Proof struct {
	Index      uint64 // seq−1
	Leaf       events.Hash
	Event      []byte // its exact bytes
	Hashes     []events.Hash
	Checkpoint []byte // the signed note
}

// Prove returns the inclusion proof of seq, signing a checkpoint that covers
// it where none does yet.
func (l *Ledger) Prove(seq uint64) (Proof, error) {
	if seq == 0 || seq > l.Durable() {
		return Proof{}, store.ErrNotFound
	}
	if seq > l.signed.Load() {
		if err := l.checkpoint(); err != nil {
			return Proof{}, err
		}
	}
	l.signing.Lock()
	size, signed := l.signed.Load(), *l.lastNote.Load()
	l.signing.Unlock()
	path, err := tlog.ProveRecord(int64(size), int64(seq-1), l.store)
	if err != nil {
		return Proof{}, err
	}
	b, err := l.store.Event(seq)
	if err != nil {
		return Proof{}, err
	}
	p := Proof{Index: seq - 1, Leaf: events.LeafHash(b), Event: b, Checkpoint: signed}
	for _, h := range path {
		p.Hashes = append(p.Hashes, events.Hash(h))
	}
	return p, nil
}

// Consistency shows that the log of To events begins with that of From events.
type Consistency struct {
	From, To   uint64
	Hashes     []events.Hash
	Checkpoint []byte // the signed note of To; nil where the newest is of another size
}

// ProveConsistency returns the proof from a size to another; to 0 is the size of
// the newest checkpoint, and one is signed where none covers both yet.
func (l *Ledger) ProveConsistency(from, to uint64) (Consistency, error) {
	if from == 0 || max(from, to) > l.Durable() {
		return Consistency{}, store.ErrNotFound
	}
	if max(from, to) > l.signed.Load() {
		if err := l.checkpoint(); err != nil {
			return Consistency{}, err
		}
	}
	l.signing.Lock()
	size, signed := l.signed.Load(), *l.lastNote.Load()
	l.signing.Unlock()
	c := Consistency{From: from, To: to}
	if to == 0 || to == size {
		c.To, c.Checkpoint = size, signed
	}
	path, err := tlog.ProveTree(int64(c.To), int64(from), l.store)
	if err != nil {
		return Consistency{}, err
	}
	for _, h := range path {
		c.Hashes = append(c.Hashes, events.Hash(h))
	}
	return c, nil
}

// StateAt folds the log from its start to seq. It takes as long as that does.
func (l *Ledger) StateAt(ctx context.Context, seq uint64) (*projection.State, error) {
	if seq == 0 || seq > l.Durable() {
		return nil, store.ErrNotFound
	}
	state := projection.New()
	err := l.store.Events(1, seq, func(seq uint64, b []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := foldOne(state, seq, b, l.openPayload)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("state at %d: %w", seq, err)
	}
	return state, nil
}

// Policies calls fn for each policy that was put in force from seq from to seq
// to; 0 is the newest.
func (l *Ledger) Policies(ctx context.Context, from, to uint64, fn func(e *events.Event, p *events.PolicyActivated) error) error {
	if to == 0 || to > l.Durable() {
		to = l.Durable()
	}
	mark := []byte(`"type":"` + string(events.TypePolicyActivated) + `"`)
	return l.store.Events(max(from, 1), to, func(_ uint64, b []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !bytes.Contains(b, mark) { // parsing every event would take far longer
			return nil
		}
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		if p, ok := e.Body.(*events.PolicyActivated); ok {
			return fn(&e, p)
		}
		return nil
	})
}

// PolicyDocument is the document of the policy that was put in force at seq.
func (l *Ledger) PolicyDocument(seq uint64) ([]byte, error) { return l.openPayload(seq) }

// Now is ledger time.
func (l *Ledger) Now() events.Time { return l.clock.now() }

func capabilityOf(r *wire.Request) string {
	if r == nil {
		return ""
	}
	switch r.Body.(type) {
	case *wire.MemoryRead:
		return "memory.read"
	case *wire.MemoryWrite, *wire.MemoryDelete:
		return "memory.write"
	case *wire.AgentRegister:
		return "agent.register"
	case *wire.ActionAuthorize:
		return r.Resource
	}
	return ""
}

package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// sealing turns outcomes into the events of one batch, chained to the log's
// end, and applies each to the state as it goes.
type sealing struct {
	l        *Ledger
	batch    store.Batch
	sealed   []sealedEvent
	decision *sealedEvent // the last outcome's decision
	execs    []wire.Exec  // effects that have started
	touched  []string     // runs that changed
	landed   []flight     // of effects that have ended, for those who wait
	denies   bool         // the emergency denies have changed
	room     room         // where the batch's bytes are
}

// room is what a batch is put together in. It goes from one to the next, once
// the store has its copy.
type room struct {
	events, records []byte // end to end
	batch           store.Batch
}

const roomMax = 8 << 20 // a larger one is not kept

// newSealing makes room for about jobs outcomes of one event each.
func newSealing(l *Ledger, jobs int) *sealing {
	w := &sealing{l: l, sealed: newSealed(jobs), room: l.room}
	l.room = room{}
	b := w.room.batch
	w.batch = store.Batch{First: l.state.Seq + 1, Events: b.Events[:0], Leaves: b.Leaves[:0], Payloads: b.Payloads[:0]}
	return w
}

// release gives the room to the next batch: nobody looks at this one any more.
func (w *sealing) release() {
	if cap(w.room.events)+cap(w.room.records) <= roomMax {
		w.l.room = room{events: w.room.events[:0], records: w.room.records[:0], batch: w.batch}
	}
}

// outcome seals one outcome: its decisions, then what follows from them, with
// one time. The payload, the canonical request, lies beside the decision on
// the whole.
func (w *sealing) outcome(p *Proposal, o *Outcome, now events.Time) error {
	salt, err := w.l.sealer.salt()
	if err != nil {
		return err
	}
	o.Digest(salt)
	if o.Hidden {
		if o.Decision.Blind, err = w.blind(); err != nil {
			return err
		}
	}
	for _, step := range o.Steps {
		if err := w.add(events.Event{Time: now, Agent: p.Subject, Body: step}, nil); err != nil {
			return err
		}
	}
	decision := events.Event{Time: now, Agent: p.Subject, Body: o.Decision}
	var payload *payload
	if o.KeepsRequest(p) {
		payload = sealedPayload(payloadOwner(p), salt, p.Request.Canonical)
		if p.Request.OperationID != "" {
			w.l.recent = append(w.l.recent, prior{w.l.state.Seq + 1, p.Subject, p.Request.OperationID, p.Request.Canonical})
		}
	}
	if err := w.add(decision, payload); err != nil {
		return err
	}
	w.decision = &w.sealed[len(w.sealed)-1]
	for _, effect := range o.Effects {
		if err := w.effect(p.Subject, w.decision.event.Seq, effect, now); err != nil {
			return err
		}
	}
	if o.procedure != nil && o.Decision.Allowed && o.Decision.RunID != "" {
		w.l.procedures[o.Decision.RunID] = &procedure{steps: o.procedure, salt: salt, memory: make([]memoryResult, len(o.procedure))}
	}
	return nil
}

// canSeal looks for the data keys that the outcome's payloads take, before
// anything of it reaches the state. One that does not open is ErrPayload.
func (w *sealing) canSeal(p *Proposal, o *Outcome) error {
	if o.KeepsRequest(p) {
		if err := w.l.sealer.check(payloadOwner(p)); err != nil {
			return err
		}
	}
	for i := range o.Effects {
		if o.Effects[i].Seal == nil {
			continue
		}
		if err := w.l.sealer.check(o.Effects[i].Body.(*events.MemoryWritten).Owner); err != nil {
			return err
		}
	}
	return nil
}

// Digest puts the salted digests of the arguments into the outcome's decisions.
// The salt is that of the request's own commitment; each step has one made from
// it, so that steps with equal arguments do not show it.
func (o *Outcome) Digest(salt [events.SaltLen]byte) {
	if o.args != nil {
		o.Decision.ArgumentsDigest = events.ArgumentsDigest(salt, o.args)
	}
	for i, step := range o.Steps {
		step.ArgumentsDigest = events.ArgumentsDigest(stepSalt(salt, uint64(i)+1), o.procedure[i].Arguments)
	}
}

// DigestStep puts the digest of a step's arguments into the decision on it at
// its moment: the n-th of its procedure, counted from 1, whose request has salt.
func (o *Outcome) DigestStep(salt [events.SaltLen]byte, n uint64) {
	o.Decision.ArgumentsDigest = events.ArgumentsDigest(stepSalt(salt, n), o.args)
}

// stepSalt is the salt of the n-th step's arguments, counted from 1:
// SHA-256("ledgerd/step/v1\n" ‖ salt ‖ u64be n).
func stepSalt(salt [events.SaltLen]byte, n uint64) [events.SaltLen]byte {
	b := append(append(make([]byte, 0, 64), "ledgerd/step/v1\n"...), salt[:]...)
	return sha256.Sum256(binary.BigEndian.AppendUint64(b, n))
}

// KeepsRequest reports whether the canonical request is kept as the decision's
// payload: always, but for one that was no request.
func (o *Outcome) KeepsRequest(p *Proposal) bool {
	return p.Request != nil && o.Decision.Reason != string(reason.MalformedRequest)
}

func (w *sealing) effect(agent string, cause uint64, effect Effect, now events.Time) error {
	e := events.Event{Time: now, Agent: agent, Cause: cause, Body: effect.Body}
	if effect.Open == nil && effect.Seal == nil {
		return w.add(e, nil)
	}
	salt, err := w.l.sealer.salt()
	if err != nil {
		return err
	}
	if effect.Open != nil {
		return w.add(e, &payload{salt: salt, bytes: effect.Open, open: true})
	}
	owner := agent
	if written, ok := effect.Body.(*events.MemoryWritten); ok {
		owner = written.Owner
	}
	return w.add(e, sealedPayload(owner, salt, effect.Seal))
}

// payload is what lies beside an event.
type payload struct {
	owner string
	salt  [events.SaltLen]byte
	bytes []byte
	open  bool
}

func sealedPayload(owner string, salt [events.SaltLen]byte, b []byte) *payload {
	return &payload{owner: owner, salt: salt, bytes: b}
}

// payloadOwner is whose data key seals a request: the owner of the record it
// brings, else who asked.
func payloadOwner(p *Proposal) string {
	if load, ok := p.Request.Body.(*wire.MemoryLoad); ok {
		return load.Owner
	}
	return p.Subject
}

// add gives the event its place in the chain, its id and its bytes, and
// applies it to the state.
func (w *sealing) add(event events.Event, p *payload) error {
	s := w.l.state
	w.sealed = append(w.sealed, sealedEvent{event: event})
	added := &w.sealed[len(w.sealed)-1]
	e := &added.event
	e.Seq, e.Prev = s.Seq+1, s.Leaf
	if err := w.id(e); err != nil {
		return err
	}
	var open []byte
	if p != nil {
		e.Payload = events.PayloadCommitment(p.salt, p.bytes)
		if err := w.keep(e.Seq, p); err != nil {
			return err
		}
		if p.open {
			open = p.bytes
		}
	}
	start := len(w.room.events)
	text, err := w.l.encoder.Append(w.room.events, e)
	if err != nil {
		return fmt.Errorf("seal %s at %d: %w", e.Body.Type(), e.Seq, err)
	}
	w.room.events = text
	b := text[start:len(text):len(text)]
	if err := s.Apply(e, open); err != nil {
		return err
	}
	s.Leaf = events.LeafHash(b)
	added.leaf = s.Leaf
	w.batch.Events = append(w.batch.Events, b)
	w.batch.Leaves = append(w.batch.Leaves, s.Leaf)
	w.note(e.Body)
	w.follows(e.Body)
	return nil
}

func (w *sealing) keep(seq uint64, p *payload) error {
	start := len(w.room.records)
	if p.open {
		w.room.records = appendOpen(w.room.records, p.salt, p.bytes)
	} else {
		records, wrapped, err := w.l.sealer.seal(w.room.records, p.owner, seq, p.salt, p.bytes)
		if err != nil {
			return fmt.Errorf("seal payload %d: %w", seq, err)
		}
		w.room.records = records
		if wrapped != nil {
			if w.batch.Keys == nil {
				w.batch.Keys = map[string][]byte{}
			}
			w.batch.Keys[w.l.sealer.name(p.owner)] = wrapped
		}
	}
	end := len(w.room.records)
	w.batch.Payloads = append(w.batch.Payloads, store.Payload{Seq: seq, Record: w.room.records[start:end:end]})
	return nil
}

// id makes a version 7 UUID from the event's own time.
func (w *sealing) id(e *events.Event) error {
	if err := w.l.sealer.fill(e.ID[6:]); err != nil {
		return err
	}
	ms := uint64(e.Time) / 1000
	for i := range 6 {
		e.ID[i] = byte(ms >> (40 - 8*i))
	}
	e.ID[6] = 0x70 | e.ID[6]&0x0f
	e.ID[8] = 0x80 | e.ID[8]&0x3f
	return nil
}

// newRunID makes a run's id: a version 7 UUID, and so unlike that of any other
// run of any ledger.
func (l *Ledger) newRunID(now events.Time) (string, error) {
	e := events.Event{Time: now}
	err := (&sealing{l: l}).id(&e)
	return events.UUIDString(e.ID), err
}

func (w *sealing) blind() (string, error) {
	var b [16]byte
	err := w.l.sealer.fill(b[:])
	return hex.EncodeToString(b[:]), err
}

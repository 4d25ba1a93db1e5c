package main

import (
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Erasures, holds, the log's own keys and its epochs, forged.

func eraseRequest(seq uint64) string { return fmt.Sprintf(`{"basis":"mistake","seqs":[%d]}`, seq) }

// controls has somebody ask for what an admin may, which must have that outcome.
func (h *history) controls(want, who, operation, body string) {
	h.t.Helper()
	if got := h.ask(wire.Control, who, operation, body); got != want {
		h.t.Fatalf("%s of %s: %s, want %s", operation, who, got, want)
	}
}

// seqOf is the last event of the log so far whose body fits.
func seqOf[B events.Body](h *history, fits func(B) bool) uint64 {
	h.t.Helper()
	for _, b := range slices.Backward(h.log.Batch.Events) {
		e, err := events.Parse(b)
		if err != nil {
			h.t.Fatal(err)
		}
		if body, ok := e.Body.(B); ok && fits(body) {
			return e.Seq
		}
	}
	h.t.Fatal("no such event")
	return 0
}

// note writes a record of worker's and returns the decision that has its value.
func (h *history) note() uint64 {
	h.t.Helper()
	h.does("owner_write", "worker", "memory.write", write("worker", "a", ""))
	return seqOf(h, func(d *events.Decision) bool { return d.Operation == "memory.write" })
}

// erase makes of a refused erasure one that was done, payload and all.
func (h *history) erase(was string, of func(e *events.Event) bool, effects ...events.Body) int {
	i := turn(h, was, "control_done")
	at := slices.IndexFunc(h.events, func(e events.Event) bool { return of(&e) })
	seq := h.events[at].Seq
	for _, b := range slices.Backward(effects) {
		h.follow(i, b)
	}
	h.follow(i, &events.PayloadErased{Basis: "mistake", Seqs: []uint64{seq}})
	delete(h.payloads, seq)
	return i
}

func isNote(e *events.Event) bool {
	d, ok := e.Body.(*events.Decision)
	return ok && d.Operation == "memory.write"
}

var noteGone = &events.MemoryErased{Record: record("worker", "a", 2).Record}

const theNote = `{"key":"a","namespace":"notes","owner_agent_id":"worker"}`

func (h *history) watcher() {
	h.t.Helper()
	h.admin("principal.register", `{"id":"watcher","role":"auditor","public_key":"`+publicKey("watcher")+`"}`)
}

func init() {
	forgeries = append(forgeries, []forgery{
		{kind: "policy-erased", what: "the document of a policy is destroyed under an event that says so", check: "payloads", honest: func(h *history) {
			h.controls("not_erasable", "admin", "payload.erase", eraseRequest(seqOf(h, func(*events.PolicyActivated) bool { return true })))
		}, forge: func(h *history) int {
			h.erase("not_erasable", func(e *events.Event) bool { return e.Body.Type() == events.TypePolicyActivated })
			i, _ := find(h, func(*events.PolicyActivated) bool { return true })
			return i
		}},
		{kind: "mandatory-value-erased", what: "the root's mandatory value is destroyed under an event that says so", check: "payloads", honest: func(h *history) {
			h.controls("not_erasable", "admin", "payload.erase", eraseRequest(seqOf(h, func(b *events.MemoryWritten) bool { return b.Class == "mandatory" })))
		}, forge: func(h *history) int {
			mandatory := func(b *events.MemoryWritten) bool { return b.Class == "mandatory" }
			h.erase("not_erasable", func(e *events.Event) bool {
				b, ok := e.Body.(*events.MemoryWritten)
				return ok && mandatory(b)
			})
			i, _ := find(h, mandatory)
			return i
		}},
		{kind: "registration-erased", what: "what an agent was registered with is destroyed under an event that says so", honest: func(h *history) {
			h.does("registered", "worker", "agent.register", child("helper", `"memory.read"`))
			h.controls("not_erasable", "admin", "payload.erase", eraseRequest(seqOf(h, func(d *events.Decision) bool { return d.Reason == "registered" })))
		}, forge: func(h *history) int {
			return h.erase("not_erasable", func(e *events.Event) bool {
				d, ok := e.Body.(*events.Decision)
				return ok && d.Reason == "registered"
			})
		}},
		{kind: "erased-past-a-hold", what: "what is held is erased", honest: func(h *history) {
			seq := h.note()
			h.admin("hold.place", theNote)
			h.controls("payload_held", "admin", "payload.erase", eraseRequest(seq))
		}, forge: func(h *history) int { return h.erase("payload_held", isNote, noteGone) }},
		{kind: "erased-before-its-time", what: "what the policy has kept for days is erased on the first", limits: "limits: {retention_days: 2}\n", honest: func(h *history) {
			h.controls("retention_floor", "admin", "payload.erase", eraseRequest(h.note()))
		}, forge: func(h *history) int { return h.erase("retention_floor", isNote, noteGone) }},
		{kind: "erased-by-no-admin", what: "an erasure is done for an auditor", honest: func(h *history) {
			h.watcher()
			h.controls("not_permitted_for_role", "watcher", "payload.erase", eraseRequest(h.note()))
		}, forge: func(h *history) int { return h.erase("not_permitted_for_role", isNote, noteGone) }},
		{kind: "erased-by-nobody", what: "an erasure that nobody asked for", honest: func(h *history) { h.note() }, forge: func(h *history) int {
			i := slices.IndexFunc(h.events, func(e events.Event) bool { return isNote(&e) })
			h.follow(i+1, noteGone)
			h.follow(i+1, &events.PayloadErased{Basis: "mistake", Seqs: []uint64{h.events[i].Seq}})
			h.events[i+2].Cause, h.events[i+3].Cause = h.events[i].Seq, h.events[i].Seq
			delete(h.payloads, h.events[i].Seq)
			return i + 2
		}},
		{kind: "effect-behind-an-erasure", what: "a request was erased as it may be, and a record follows from its decision that this never gives", honest: func(h *history) {
			h.does("action_allowed", "worker", "action.authorize", save)
			h.admin("payload.erase", eraseRequest(seqOf(h, func(d *events.Decision) bool { return d.Reason == "action_allowed" })))
			h.purged = true
		}, forge: func(h *history) int {
			i, _ := h.decision("action_allowed")
			h.follow(i, record("manager", "a", 1))
			return i + 1
		}},
		{kind: "hold-lifted-by-nobody", what: "a hold ends, and nobody has lifted it; what it kept is erased", honest: func(h *history) {
			seq := h.note()
			h.admin("hold.place", theNote)
			h.controls("payload_held", "admin", "payload.erase", eraseRequest(seq))
		}, forge: func(h *history) int {
			i := h.erase("payload_held", isNote, noteGone)
			placed, b := find(h, func(*events.HoldPlaced) bool { return true })
			h.follow(placed, &events.HoldLifted{Hold: b.Hold})
			h.events[placed+1].Agent, h.events[placed+1].Cause = events.System, 0
			return i
		}},
		{kind: "key-rotated-by-no-admin", what: "an auditor's request brings the next checkpoint key", honest: func(h *history) {
			h.watcher()
			h.controls("not_permitted_for_role", "watcher", "key.rotate", `{"key":"checkpoint"}`)
		}, forge: func(h *history) int {
			i := turn(h, "not_permitted_for_role", "control_done")
			next := logtest.New(forgedOrigin, forgedKey+1)
			h.follow(i, &events.KeyRotated{Key: events.KeyCheckpoint, Number: 2, PublicKey: next.VKey})
			h.also = []note.Signer{next.Signer}
			return i
		}},
		{kind: "previous-malformed", what: "the log says that it continues another, and names no checkpoint of it", check: "origin", honest: func(h *history) { h.note() }, forge: func(h *history) int {
			h.events[0].Body.(*events.LedgerCreated).Previous = &events.Previous{Origin: "ledgerd.example/forged/0", Checkpoint: "lost", Reason: "loss"}
			return 0
		}},
	}...)
}

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	forgedOrigin = "ledgerd.example/forged/1"
	forgedKey    = 7 // of logtest
)

// history is a log that the real writer makes, moved by hand and without chance,
// and that is then changed by somebody who holds all its keys.
type history struct {
	t       testing.TB
	log     memoryLog
	writer  *ledger.Stepper
	elapsed time.Duration

	events   []events.Event // the log, to be forged
	payloads map[uint64]audit.Payload
	also     []note.Signer // of its checkpoints
	asked    int
	purged   bool          // what it erased is gone, as from a store
	erased   audit.Payload // the last of that
	ids      bool          // forged too, and kept as they are
}

// memoryLog is a log that is durable at once.
type memoryLog struct {
	store.Batch
	payloads map[uint64][]byte
	keys     map[string][]byte
}

func (l *memoryLog) Origin() string  { return forgedOrigin }
func (l *memoryLog) Durable() uint64 { return uint64(len(l.Batch.Events)) }
func (l *memoryLog) Event(seq uint64) ([]byte, error) {
	if seq == 0 || seq > l.Durable() {
		return nil, errors.New("no such event")
	}
	return l.Batch.Events[seq-1], nil
}
func (l *memoryLog) Events(from, to uint64, fn func(seq uint64, event []byte) error) error {
	for seq := from; seq <= to; seq++ {
		b, err := l.Event(seq)
		if err == nil {
			err = fn(seq, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
func (l *memoryLog) Payload(seq uint64) ([]byte, bool, error) {
	record, ok := l.payloads[seq]
	return record, ok, nil
}
func (l *memoryLog) DataKey(owner string) ([]byte, bool, error) {
	key, ok := l.keys[owner]
	return key, ok, nil
}
func (l *memoryLog) Parts() ([]store.Part, error) { return nil, nil }
func (l *memoryLog) ReadPart(_ store.Part, _ func(io.Reader) error) error {
	return errors.New("no part")
}

func (l *memoryLog) append(b store.Batch) {
	for _, e := range b.Events {
		l.Batch.Events = append(l.Batch.Events, slices.Clone(e))
	}
	for _, p := range b.Payloads {
		l.payloads[p.Seq] = slices.Clone(p.Record)
	}
	for owner, key := range b.Keys {
		l.keys[owner] = slices.Clone(key)
	}
}

// chance is random bytes that are the same each time.
type chance struct{ *rand.ChaCha8 }

func (c chance) Read(b []byte) (int, error) { return c.ChaCha8.Read(b) }

func publicKey(name string) string {
	seed := sha256.Sum256([]byte("forged " + name))
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
	if err != nil {
		panic(err)
	}
	key, err := pair.PublicKey()
	if err != nil {
		panic(err)
	}
	return key
}

// newHistory founds a ledger and opens it.
func newHistory(t testing.TB) *history {
	t.Helper()
	h := &history{t: t, log: memoryLog{payloads: map[uint64][]byte{}, keys: map[string][]byte{}}}
	base := logtest.New(forgedOrigin, forgedKey)
	base.Edit(0, func(e *events.Event) {
		e.ID = idOf(e.Time, 0)
		e.Body.(*events.LedgerCreated).AdminPublicKey = publicKey("admin")
	})
	h.log.append(store.Batch{Events: base.Entries})
	start := time.UnixMicro(int64(logtest.Start)).Add(time.Second)
	writer, first, err := ledger.NewStepper(&h.log, ledger.StepperOptions{
		SealKey: make([]byte, 32), Random: chance{rand.NewChaCha8([32]byte{1})}, Build: "forged",
		Clock: ledger.Clock{Wall: func() time.Time { return start.Add(h.elapsed) }, Elapsed: func() time.Duration { return h.elapsed }},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.writer = writer
	h.log.append(first)
	return h
}

// family is a small tree under a policy that uses every kind of rule.
func (h *history) family(limits string) {
	h.t.Helper()
	documents := []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-1\nenvironment: [memory.read, memory.write, artifact.save, external.upload, agent.register]\n" +
		"actions:\n  artifact.save: {require: [{id: small, that: 'args.size <= 10'}]}\n  external.upload: {require: [{id: uploads, that: 'mandatory(\"policy.upload\") == true'}]}\n" +
		"namespaces:\n  policy: {class: mandatory, combine: all_true}\n  credentials: {class: secret}\n" + limits}
	agent := func(id, parent, capabilities string) {
		text := "kind: Agent\nid: " + id + "\n"
		if parent != "" {
			text += "parent: " + parent + "\n"
		}
		documents = append(documents, text+"capabilities: ["+capabilities+"]\npublic_key: "+publicKey(id)+"\n")
	}
	agent("manager", "", "memory.read, memory.write, artifact.save, external.upload, agent.register")
	agent("worker", "manager", "memory.read, memory.write, artifact.save, external.upload, agent.register")
	documents = append(documents, "kind: Memory\nowner: manager\nnamespace: policy\nkey: upload\nvalue: false\nvisibility: descendants\n")
	h.admin("apply", request("documents", documents))
}

func request(name string, value any) string {
	b, err := json.Marshal(map[string]any{name: value})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// admin has the admin do something, which must be allowed.
func (h *history) admin(operation, body string) {
	h.t.Helper()
	if reason := h.ask(wire.Control, ledger.AdminID, operation, body); !h.last().Allowed {
		h.t.Fatalf("%s: %s", operation, reason)
	}
}

// does has an agent propose something, which must have that outcome.
func (h *history) does(want, who, operation, body string) {
	h.t.Helper()
	if got := h.ask(wire.Propose, who, operation, body); got != want {
		h.t.Fatalf("%s of %s: %s, want %s", operation, who, got, want)
	}
}

func (h *history) ask(lane wire.Lane, who, operation, body string) (reason string) {
	h.t.Helper()
	h.elapsed += 5 * time.Millisecond
	decoded, code := wire.Decode(lane, operation, []byte(body))
	h.asked++
	p := &ledger.Proposal{Lane: lane, Subject: who, Operation: wire.Known(lane, operation), Refused: code, Request: decoded, RunID: fmt.Sprintf("01937a1b-2c00-7000-8000-%012d", h.asked)}
	if operation != "sop.submit" {
		p.RunID = ""
	}
	step, err := h.writer.Judge(p)
	h.settle(step, err)
	o, _ := step.Outcome(0)
	if o.Decision == nil {
		return "retry"
	}
	return o.Decision.Reason
}

func (h *history) settle(step *ledger.Step, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
	h.log.append(step.Batch)
	if _, err := h.writer.Settle(step); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) tick() {
	h.t.Helper()
	h.elapsed += 5 * time.Millisecond
	step, err := h.writer.Tick()
	h.settle(step, err)
}

func (h *history) report(handler, operationID string) {
	h.t.Helper()
	h.reports(handler, operationID, true, "")
}

func (h *history) reports(handler, operationID string, ok bool, why string) {
	h.t.Helper()
	h.elapsed += 5 * time.Millisecond
	r := &wire.Report{OperationID: operationID, OK: ok, Error: why}
	if ok {
		r.Result = []byte(`{}`)
	}
	step, err := h.writer.Report(handler, r)
	h.settle(step, err)
}

// last is the last decision.
func (h *history) last() *events.Decision {
	for _, b := range slices.Backward(h.log.Batch.Events) {
		e, err := events.Parse(b)
		if err != nil {
			h.t.Fatal(err)
		}
		if d, ok := e.Body.(*events.Decision); ok {
			return d
		}
	}
	return nil
}

// stop ends the honest part: what follows is forged.
func (h *history) stop() {
	h.t.Helper()
	h.payloads = map[uint64]audit.Payload{}
	for i, b := range h.log.Batch.Events {
		e, err := events.Parse(b)
		if err != nil {
			h.t.Fatal(err)
		}
		h.events = append(h.events, e)
		if erased, ok := e.Body.(*events.PayloadErased); ok && h.purged {
			for k := range h.events {
				if seq := h.events[k].Seq; erased.Covers(&h.events[k]) {
					h.erased = h.payloads[seq]
					delete(h.payloads, seq)
				}
			}
		}
		if e.Payload.IsZero() {
			continue
		}
		salt, p, ok, err := h.writer.Payload(uint64(i) + 1)
		if err != nil || !ok {
			h.t.Fatal(ok, err)
		}
		h.payloads[e.Seq] = audit.Payload{State: audit.PayloadReadable, Salt: salt, Bytes: p}
	}
}

// find returns the index of the last event that fits.
func find[B events.Body](h *history, fits func(B) bool) (int, B) {
	h.t.Helper()
	for i := range slices.Backward(h.events) {
		if b, ok := h.events[i].Body.(B); ok && fits(b) {
			return i, b
		}
	}
	var none B
	h.t.Fatalf("no such %T", none)
	return 0, none
}

func (h *history) decision(reason string) (int, *events.Decision) {
	h.t.Helper()
	return find(h, func(d *events.Decision) bool { return d.Reason == reason })
}

// follow inserts an event that follows from decision i.
func (h *history) follow(i int, b events.Body) {
	e := events.Event{Seq: 1 << 40, Time: h.events[i].Time, ID: h.events[i].ID, Agent: h.events[i].Agent, Cause: h.events[i].Seq, Body: b}
	h.events = slices.Insert(h.events, i+1, e)
}

func (h *history) remove(from, n int) { h.events = slices.Delete(h.events, from, from+n) }

// repay exchanges the payload of event i, and its commitment.
func (h *history) repay(i int, b string) {
	p := h.payloads[h.events[i].Seq]
	p.Bytes = []byte(b)
	h.payloads[h.events[i].Seq] = p
	h.events[i].Payload = events.PayloadCommitment(p.Salt, p.Bytes)
}

// idOf is the id that the writer could have given the event at index i.
func idOf(at events.Time, i int) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], uint64(at)/1000<<16)
	id[6], id[8] = 0x70, 0x80
	binary.BigEndian.PutUint32(id[12:], uint32(i))
	return id
}

// refused adds a count of refusals, which no stepper makes.
func (h *history) refused(b events.Body) int {
	last := h.events[len(h.events)-1]
	h.events = append(h.events, events.Event{Seq: 1<<40 + uint64(len(h.events)), Time: last.Time, Agent: events.System, Body: b})
	return len(h.events) - 1
}

// sealed is the log as it now is: numbered, chained and signed anew.
func (h *history) sealed() *logtest.Log {
	h.t.Helper()
	l := logtest.New(forgedOrigin, forgedKey)
	l.Also = h.also
	l.Entries, l.Payloads = nil, map[uint64]audit.Payload{}
	number, ids := map[uint64]uint64{}, map[[16]byte]bool{}
	for i := range h.events {
		e := h.events[i]
		if made := idOf(e.Time, i); !h.ids && (ids[e.ID] || !bytes.Equal(made[:6], e.ID[:6])) {
			e.ID = made
		}
		ids[e.ID] = true
		if _, taken := number[e.Seq]; !taken {
			number[e.Seq] = uint64(i) + 1
			if p, ok := h.payloads[e.Seq]; ok {
				l.Payloads[uint64(i)+1] = p
			}
		}
		if cause, ok := number[e.Cause]; ok && e.Cause != 0 {
			e.Cause = cause
		}
		e.Seq = uint64(i) + 1
		b, err := e.Append(nil)
		if err != nil {
			h.t.Fatal(err)
		}
		l.Entries = append(l.Entries, b)
	}
	l.Relink(0)
	return l
}

// Package events is the ledger's vocabulary and its exact bytes: event types,
// the one way an event is written and read, its hashes, the grammar of names,
// the limits, and the strict JSON profile of requests. docs/FORMAT.md says the
// same in prose.
//
// An Event is written by Append and read by Parse, which refuses any bytes
// that Append would not write. Everything here is a pure function.
package events

import (
	"bytes"
	"strings"
)

// System is the agent of events that nobody asked for.
const System = "sys"

// Event is one entry of the log.
type Event struct {
	Seq     uint64 // 1 for the first; the tree's leaf index is Seq−1
	Prev    Hash   // leaf hash of the event before, or GenesisHash
	Time    Time   // never before the event before it
	ID      [16]byte
	Agent   string // who asked; System for none
	Cause   uint64 // seq of the decision this follows from; 0 for none
	Payload Hash   // commitment of the payload kept beside the log; zero for none
	Body    Body
}

// Append appends the bytes of e to dst. The error is ErrTooLarge, or says what
// has no form in the format; dst is then unchanged.
func (e *Event) Append(dst []byte) ([]byte, error) { return new(Encoder).append(dst, e, nil) }

// Encoder writes one event after the other in the same room, for whoever writes
// many. It belongs to one goroutine.
type Encoder struct {
	coder coder
	memo  memo
	typ   string
}

// Append is Event.Append.
func (w *Encoder) Append(dst []byte, e *Event) ([]byte, error) { return w.append(dst, e, &w.memo) }

func (w *Encoder) append(dst []byte, e *Event, m *memo) ([]byte, error) {
	w.coder, w.typ = coder{buf: dst, memo: m}, string(e.Body.Type())
	e.fields(&w.coder, &w.typ, func() Body { return e.Body })
	b, err := w.coder.buf, w.coder.end()
	w.coder.buf = nil
	if err != nil {
		return dst, err
	}
	if len(b)-len(dst) > EventBytesMax {
		return dst, ErrTooLarge
	}
	return b, nil
}

// Parse reads the bytes of one event. It keeps no reference to b.
func Parse(b []byte) (Event, error) {
	var e Event
	err := parse(&e, &coder{buf: b, reading: true})
	if err != nil {
		return Event{}, err
	}
	return e, nil
}

func parse(e *Event, c *coder) error {
	if len(c.buf) > EventBytesMax {
		return ErrTooLarge
	}
	var t string
	e.fields(c, &t, func() Body {
		if e.Body = c.room.newBody(Type(t)); e.Body == nil {
			c.fail("unknown event type")
		}
		return e.Body
	})
	return c.end()
}

// Skimmer reads one event after the other in the same room, for whoever checks
// many and keeps none. It belongs to one goroutine.
type Skimmer struct {
	event    Event
	decision Decision
	list     []string
	coder    coder
}

// Parse refuses what the function Parse refuses. Otherwise it returns the same
// event, good until the next call, but that the texts of a decision's body are
// checked and not kept: "-" may stand in the place of each.
func (p *Skimmer) Parse(b []byte) (*Event, error) {
	p.event = Event{}
	p.coder = coder{buf: b, room: p, reading: true}
	if err := parse(&p.event, &p.coder); err != nil {
		return nil, err
	}
	return &p.event, nil
}

func (p *Skimmer) newBody(t Type) Body {
	if p == nil || t != TypeDecisionAllowed && t != TypeDecisionDenied {
		return newBody(t)
	}
	p.coder.skim = true
	p.decision = Decision{Allowed: t == TypeDecisionAllowed}
	return &p.decision
}

func (e *Event) fields(c *coder, t *string, body func() Body) {
	c.object(func(c *coder) {
		e.envelope(c, t)
		b := body()
		c.key("body")
		if c.err == nil {
			c.object(b.fields)
		}
	})
}

// envelope is what stands before the body.
func (e *Event) envelope(c *coder, t *string) {
	c.key("v")
	c.version()
	c.uint("seq", &e.Seq)
	if c.err == nil && e.Seq == 0 {
		c.fail("seq is 0")
	}
	c.hash("prev", &e.Prev)
	c.time("time", &e.Time)
	e.uuid(c)
	c.str("type", t)
	c.str("agent", &e.Agent)
	if c.err == nil && e.Agent != System && !ValidID(e.Agent) {
		c.fail("agent is no id")
	}
	c.optUint("cause", &e.Cause)
	if c.err == nil && e.Cause >= e.Seq {
		c.fail("cause is not an earlier event")
	}
	c.optHash("payload", &e.Payload)
}

func (e *Event) uuid(c *coder) {
	c.key("id")
	if c.err != nil {
		return
	}
	id := e.ID
	if c.reading {
		b := c.fixed(36)
		if c.err != nil {
			return
		}
		ok := false
		if id, ok = uuidOf(b); !ok {
			c.fail("id is no UUID")
			return
		}
		e.ID = id
	}
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		c.fail("id is no version 7 UUID")
		return
	}
	if !c.reading {
		c.buf = append(AppendUUID(append(c.buf, '"'), id), '"')
	}
}

// uuidOf reads the 36 characters that UUIDString makes.
func uuidOf(b []byte) (id [16]byte, ok bool) {
	dashed := b[8] == '-' && b[13] == '-' && b[18] == '-' && b[23] == '-'
	return id, dashed && unhex(id[0:4], b[0:8]) && unhex(id[4:6], b[9:13]) &&
		unhex(id[6:8], b[14:18]) && unhex(id[8:10], b[19:23]) && unhex(id[10:16], b[24:36])
}

// AppendUUID appends the text form of id.
func AppendUUID(dst []byte, id [16]byte) []byte {
	var text [36]byte
	at := 0
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text[at] = '-'
			at++
		}
		text[at], text[at+1] = hexPairs[b][0], hexPairs[b][1]
		at += 2
	}
	return append(dst, text[:]...)
}

// UUIDString is the 36-character lower-case text form of id.
func UUIDString(id [16]byte) string {
	var text [36]byte
	return string(AppendUUID(text[:0], id))
}

// Label is what an event is published under.
type Label struct {
	Type      Type
	Agent     string
	Operation string // of a decision
	Time      Time
}

// Subject is the NATS subject an event is published on:
// led.<ledger>.<category>.<agent>.<name>[.<operation>].
func (l *Label) Subject(ledger string) string {
	category, name, _ := strings.Cut(string(l.Type), ".")
	s := "led." + ledger + "." + category + "." + l.Agent + "." + name
	if l.Operation != "" {
		s += "." + l.Operation
	}
	return s
}

// StreamSubject is the NATS subject e is published on.
func (e *Event) StreamSubject(ledger string) string {
	l := Label{Type: e.Body.Type(), Agent: e.Agent}
	if d, ok := e.Body.(*Decision); ok {
		l.Operation = d.Operation
	}
	return l.Subject(ledger)
}

// ParseLabel reads the label off the bytes of an event, and little more: it is
// for bytes that Append has made. Of such it finds what Parse would.
func ParseLabel(b []byte) (Label, error) {
	var e Event
	var t string
	c := coder{buf: b, reading: true, first: true}
	c.lit("{")
	e.envelope(&c, &t)
	l := Label{Type: Type(t), Agent: e.Agent, Time: e.Time}
	if l.Type == TypeDecisionAllowed || l.Type == TypeDecisionDenied {
		c.lit(`,"body":{"subject":`)
		before := []byte(`],"operation":`) // no string can hold it, for its quotes
		if at := bytes.Index(c.buf[min(c.pos, len(c.buf)):], before); c.err == nil && at >= 0 {
			c.pos += at + len(before)
		} else {
			c.fail("a decision without an operation")
		}
		c.text(&l.Operation)
	}
	return l, c.err
}

// Unsupported is written as the operation of a request that names none we
// know, so that nothing an agent chose freely reaches an event or a subject.
const Unsupported = "unsupported"

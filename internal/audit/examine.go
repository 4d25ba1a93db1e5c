package audit

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
)

// entry is what was found of one entry by itself, with its payload: all that is
// needed to hold it against its neighbours.
type entry struct {
	leaf       events.Hash // zero where it cannot be had
	unreadable string      // why its bytes cannot be had
	err        error       // why they are no event
	seq        uint64
	prev       events.Hash
	time       events.Time
	kind       string                // the type of event 1
	created    *events.LedgerCreated // nil in any other event
	ofKey      events.Body           // of an event about the log's own keys
	before     []Fault               // of where it lies, told before it
	faults     []Fault               // of its payload
	lacks      *lack                 // its payload, where that is missing and sealed
	erased     *events.PayloadErased // what it says, if it is one
	operation  operationUse          // of a decision
}

// examiner looks at entries one by one, in any order. It belongs to one
// goroutine.
type examiner struct {
	links    bool // links only
	payload  func(seq uint64, open bool) (Payload, error)
	required bool // every committed payload must be there, not the open ones alone
	skimmer  events.Skimmer
	ops      *operations // whose hash of operation ids; nil where they are not looked at

	opened, sealed uint64 // payloads that could be looked at, and not
}

func (x *examiner) examine(position uint64, b []byte) entry {
	if x.links && position > 1 {
		return link(b)
	}
	found := entry{leaf: events.LeafHash(b)}
	e, err := x.skimmer.Parse(b)
	if err != nil {
		found.err = err
		return found
	}
	found.seq, found.prev, found.time = e.Seq, e.Prev, e.Time
	found.created, _ = e.Body.(*events.LedgerCreated)
	switch e.Body.(type) {
	case *events.KeyRotated, *events.KeyRetired:
		found.ofKey = e.Body
	}
	if position == 1 {
		found.kind = string(e.Body.Type())
	}
	if _, ok := e.Body.(*events.Decision); ok && x.ops != nil {
		found.operation = x.ops.use(position, b)
	}
	found.erased, _ = e.Body.(*events.PayloadErased)
	if x.payloadOf(position, e, &found) {
		found.lacks = lacking(b)
	}
	return found
}

var (
	linkStart = []byte(`{"v":1,"seq":`)
	linkPrev  = []byte(`,"prev":"`)
	errLink   = errors.New("no seq and prev at their place")
)

// link reads seq and prev from their place and looks at nothing else.
func link(b []byte) entry {
	found := entry{leaf: events.LeafHash(b), err: errLink}
	rest, ok := bytes.CutPrefix(b, linkStart)
	at := bytes.Index(rest, linkPrev)
	if !ok || at < 0 || len(rest) < at+len(linkPrev)+2*len(found.prev) {
		return found
	}
	seq, err := strconv.ParseUint(string(rest[:at]), 10, 64)
	if err != nil {
		return found
	}
	rest = rest[at+len(linkPrev):]
	if found.prev, err = events.ParseHash(rest[:2*len(found.prev)]); err == nil {
		found.seq, found.err = seq, nil
	}
	return found
}

// payloadOf checks the payload an event commits to. It reports whether that is
// missing, and might have been erased.
func (x *examiner) payloadOf(seq uint64, e *events.Event, found *entry) (missing bool) {
	fault := func(f Fault) {
		f.Check, f.Seq = "payloads", seq
		found.faults = append(found.faults, f)
	}
	open := mustBeOpen(e)
	if open && e.Payload.IsZero() {
		fault(Fault{Expected: "a commitment to the open payload of " + string(e.Body.Type()), Found: "none"})
	}
	if e.Payload.IsZero() || x.payload == nil {
		return false
	}
	p, err := x.payload(seq, open)
	switch {
	case err != nil:
		fault(Fault{Where: p.Where, Expected: "the payload", Found: err.Error()})
	case p.State == PayloadLocked && open:
		fault(Fault{Where: p.Where, Expected: "an open payload", Found: "a sealed one"})
	case p.State == PayloadLocked, p.State == PayloadAbsent && !open && !x.required:
		x.sealed++
	case p.State == PayloadAbsent && !open:
		return true
	case p.State == PayloadAbsent:
		fault(Fault{Where: p.Where, Expected: "the payload, which is never erased", Found: "none"})
	default:
		x.opened++
		if got := events.PayloadCommitment(p.Salt, p.Bytes); got != e.Payload {
			fault(Fault{Where: p.Where, Expected: "commitment " + e.Payload.String(), Found: "commitment " + got.String()})
		}
		if b, ok := e.Body.(*events.PolicyActivated); ok && sha(p.Bytes) != b.Digest {
			fault(Fault{Where: p.Where, Expected: "a document with digest " + b.Digest.String(), Found: "digest " + sha(p.Bytes).String()})
		}
	}
	return false
}

// mustBeOpen reports whether an event's payload is open: part of every export.
func mustBeOpen(e *events.Event) bool {
	switch b := e.Body.(type) {
	case *events.PolicyActivated:
		return true
	case *events.MemoryWritten:
		return b.Class == "mandatory"
	}
	return false
}

// strangers are payloads that no event commits to.
func strange(seqs []uint64) (faults []Fault) {
	for _, seq := range seqs {
		faults = append(faults, Fault{Check: "payloads", Seq: seq, Expected: "no payload: the event commits to none", Found: fmt.Sprintf("one, beside event %d", seq)})
	}
	return faults
}

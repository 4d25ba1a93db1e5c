// Package audit checks that a log was not touched: every entry strictly
// parsed, numbered, chained and timed, the tree recomputed from the entries'
// bytes, the checkpoint's signature and root, the payload commitments. It also
// writes and reads exports. It shares with the writer nothing but the bytes of
// package events, so that it cannot inherit the writer's bugs.
//
// First call: VerifyExport or VerifyLog; a Verifier where entries come from
// elsewhere. WriteExport and OpenExport are the export directory of
// docs/FORMAT.md.
//
// It promises to end on any input, to panic on none, to stop at no fault but
// the end of the log, and to call nothing good that it did not check.
package audit

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Options say what a verifier holds the log against.
type Options struct {
	VKey       string // pinned verifier key; empty takes the one the log names, which proves nothing about who signed
	Remembered []byte // a signed checkpoint the auditor kept; nil leaves completeness unchecked
	FaultsMax  int    // how many faults a report lists; 0 is FaultsMax

	// Progress, if set, is told now and then how many events of how many are
	// done, from the goroutine that verifies.
	Progress func(done, total uint64)
}

// FaultsMax is how many faults a report lists unless asked otherwise. All are
// counted.
const FaultsMax = 20

const progressEvery = 4096 // events

// Payload is what lies beside an event.
type Payload struct {
	State PayloadState
	Salt  [events.SaltLen]byte
	Bytes []byte
	Where string // file, for a report
}

// PayloadState says how far a payload can be read.
type PayloadState uint8

// States of a payload. The zero state is none at all.
const (
	PayloadAbsent   PayloadState = iota
	PayloadLocked                // there, but its key is not at hand
	PayloadReadable              // Salt and Bytes are good
)

// nodeReader returns the stored hash of the tree's node n at a level, and where
// it lies. stored is false where this log keeps no such node.
type nodeReader func(level int, n uint64) (h events.Hash, where string, stored bool, err error)

// Verifier takes a log's entries in order and finds what is wrong with them.
// Not safe for concurrent use. Its zero value is not usable; see NewVerifier.
type Verifier struct {
	opts     Options
	pinned   note.Verifier
	signed   []byte     // the log's own checkpoint
	nodes    nodeReader // nil where no node is stored
	payload  func(seq uint64, open bool) (Payload, error)
	required bool   // every committed payload must be there, not the open ones alone
	total    uint64 // events to come, for progress

	completed func(level int, n uint64, h events.Hash) // told of every node, if set

	size   uint64      // positions seen
	leaf   events.Hash // of the last position; zero where unknown
	next   uint64      // seq the next entry must have
	time   events.Time // of the last entry that parsed
	edge   [64]edgeNode
	roots  map[uint64]events.Hash // root at the sizes that are asked for
	origin string                 // as event 1 says
	vkey   string                 // as event 1 says
	counts map[string]uint64      // what each check looked at
	sealed uint64                 // payloads that could not be opened

	*report
}

type edgeNode struct {
	hash events.Hash
	bad  bool // a stored node here or below differs
}

// NewVerifier returns a verifier of a log whose own signed checkpoint is
// checkpoint, nil if it has none. The error says that an option is unusable;
// nothing can then be checked.
func NewVerifier(checkpoint []byte, opts Options) (*Verifier, error) {
	v := &Verifier{
		opts: opts, signed: checkpoint, next: 1,
		roots: map[uint64]events.Hash{}, counts: map[string]uint64{}, report: newReport(opts.FaultsMax),
	}
	if opts.VKey != "" {
		var err error
		if v.pinned, err = note.NewVerifier(opts.VKey); err != nil {
			return nil, fmt.Errorf("verifier key: %w", err)
		}
	}
	for _, signed := range [][]byte{checkpoint, opts.Remembered} {
		if c, err := readCheckpoint(signed); err == nil { // Finish tells what is wrong with it
			v.roots[c.Size] = emptyRoot
		}
	}
	return v, nil
}

// Event takes the next entry's bytes. They are good for the call only.
func (v *Verifier) Event(b []byte) {
	position := v.size + 1
	before := v.leaf
	v.leaf = events.LeafHash(b)
	v.counts["parse"]++
	e, err := events.Parse(b)
	if err != nil {
		v.fault(Fault{Check: "parse", Seq: position, Expected: "an event of " + events.Format, Found: err.Error()})
		v.next++
	} else {
		v.entry(position, &e, before)
	}
	v.grow(position)
}

// Unreadable takes the place of an entry whose bytes cannot be had. The tree
// goes on with the hash stored for it, if there is one: where the root then
// fits, the damage ends here.
func (v *Verifier) Unreadable(why string) {
	position := v.size + 1
	v.fault(Fault{Check: "parse", Seq: position, Expected: "an entry", Found: why})
	v.leaf = events.Hash{}
	if v.nodes != nil {
		if h, _, stored, err := v.nodes(0, v.size); err == nil && stored {
			v.leaf = h
		}
	}
	v.next++
	v.grow(position)
}

// entry checks what an entry says against the one before it, whose leaf hash
// is before.
func (v *Verifier) entry(position uint64, e *events.Event, before events.Hash) {
	if e.Seq != v.next {
		v.fault(Fault{Check: "sequence", Seq: position, Expected: fmt.Sprintf("seq %d", v.next), Found: fmt.Sprintf("seq %d", e.Seq)})
	}
	v.next = e.Seq + 1 // one gap is one fault, not one for every entry after it
	v.counts["sequence"]++
	if position == 1 {
		before = v.first(e)
	} else if e.Body.Type() == events.TypeLedgerCreated {
		v.fault(Fault{Check: "origin", Seq: position, Expected: "ledger.created at seq 1 only", Found: "a second one"})
	}
	if !before.IsZero() {
		v.counts["chain"]++
		if e.Prev != before {
			v.fault(Fault{Check: "chain", Seq: position, Expected: "prev " + before.String(), Found: "prev " + e.Prev.String()})
		}
	}
	if v.counts["time"]++; e.Time < v.time {
		v.fault(Fault{Check: "time", Seq: position, Expected: "not before " + v.time.String(), Found: e.Time.String()})
	}
	v.time = e.Time
	v.payloadOf(position, e)
}

// first checks event 1 and returns the prev it must have.
func (v *Verifier) first(e *events.Event) events.Hash {
	b, ok := e.Body.(*events.LedgerCreated)
	if !ok {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: string(events.TypeLedgerCreated), Found: string(e.Body.Type())})
		return events.Hash{}
	}
	v.origin, v.vkey = b.Origin, b.CheckpointKey
	v.counts["origin"]++
	if b.Format != events.Format {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "format " + events.Format, Found: quote(b.Format)})
	}
	if !events.ValidOrigin(b.Origin) {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "an origin", Found: quote(b.Origin)})
	}
	if key, err := note.NewVerifier(b.CheckpointKey); err != nil || key.Name() != b.Origin {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "a checkpoint key named after the origin", Found: quote(b.CheckpointKey)})
	}
	return events.GenesisHash(b.Origin)
}

// grow adds the last leaf to the tree, compares every node it completes with
// the stored one, and notes the root where it is asked for.
func (v *Verifier) grow(seq uint64) {
	level, n, h := 0, v.size, v.leaf
	bad := v.compare(level, n, h, h.IsZero())
	for ; v.size>>level&1 == 1; level++ {
		left := v.edge[level]
		h, n = events.NodeHash(left.hash, h), n>>1
		bad = v.compare(level+1, n, h, bad || left.bad)
	}
	v.edge[level] = edgeNode{h, bad}
	v.size++
	if _, asked := v.roots[v.size]; asked {
		v.roots[v.size] = v.root()
	}
	if v.opts.Progress != nil && seq%progressEvery == 0 {
		v.opts.Progress(seq, max(seq, v.total))
	}
}

// compare reports whether the stored node differs from h, the one computed from
// the entries, or cannot be told. Below a difference nothing more is reported:
// every node above a changed leaf differs.
func (v *Verifier) compare(level int, n uint64, h events.Hash, below bool) bool {
	if v.completed != nil {
		v.completed(level, n, h)
	}
	if v.nodes == nil {
		return below
	}
	got, where, stored, err := v.nodes(level, n)
	if err == nil && !stored {
		return below
	}
	v.counts["tree"]++
	if err == nil && got == h {
		return false
	}
	if !below {
		f := Fault{Check: "tree", Seq: n<<level + 1, To: (n + 1) << level, Where: where, Found: "hash " + h.String() + " from the entries"}
		if f.Expected = fmt.Sprintf("hash %s as stored for node %d of level %d", got, n, level); err != nil {
			f.Expected, f.Found = fmt.Sprintf("node %d of level %d", n, level), err.Error()
		}
		v.fault(f)
	}
	return true
}

// root is the RFC 6962 root of what has been seen.
func (v *Verifier) root() events.Hash {
	if v.size == 0 {
		return emptyRoot
	}
	var h events.Hash
	for level := range v.edge {
		switch {
		case v.size>>level&1 == 0:
		case h.IsZero():
			h = v.edge[level].hash
		default:
			h = events.NodeHash(v.edge[level].hash, h)
		}
	}
	return h
}

// payloadOf checks the payload an event commits to.
func (v *Verifier) payloadOf(seq uint64, e *events.Event) {
	open := mustBeOpen(e)
	if open && e.Payload.IsZero() {
		v.fault(Fault{Check: "payloads", Seq: seq, Expected: "a commitment to the open payload of " + string(e.Body.Type()), Found: "none"})
	}
	if e.Payload.IsZero() || v.payload == nil {
		return
	}
	p, err := v.payload(seq, open)
	switch {
	case err != nil:
		v.fault(Fault{Check: "payloads", Seq: seq, Where: p.Where, Expected: "the payload", Found: err.Error()})
	case p.State == PayloadLocked && open:
		v.fault(Fault{Check: "payloads", Seq: seq, Where: p.Where, Expected: "an open payload", Found: "a sealed one"})
	case p.State == PayloadLocked, p.State == PayloadAbsent && !open && !v.required:
		v.sealed++
	case p.State == PayloadAbsent:
		v.fault(Fault{Check: "payloads", Seq: seq, Where: p.Where, Expected: "the payload", Found: "none, and no event says that it was erased"})
	default:
		v.counts["payloads"]++
		if got := events.PayloadCommitment(p.Salt, p.Bytes); got != e.Payload {
			v.fault(Fault{Check: "payloads", Seq: seq, Where: p.Where, Expected: "commitment " + e.Payload.String(), Found: "commitment " + got.String()})
		}
		if b, ok := e.Body.(*events.PolicyActivated); ok && sha(p.Bytes) != b.Digest {
			v.fault(Fault{Check: "payloads", Seq: seq, Where: p.Where, Expected: "a document with digest " + b.Digest.String(), Found: "digest " + sha(p.Bytes).String()})
		}
	}
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

// quote makes text of the log fit to print: one line, no control character.
func quote(s string) string {
	const max = 200
	if len(s) > max {
		s = s[:max] + "…"
	}
	return strings.ToValidUTF8(fmt.Sprintf("%+q", s), "?")
}

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
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Options say what a verifier holds the log against.
type Options struct {
	VKey       string // pinned verifier key; empty takes the one the log names, which proves nothing about who signed
	Remembered []byte // a signed checkpoint the auditor kept; nil leaves completeness unchecked
	First      bool   // stop at the first fault: what comes behind it is not looked at
	FaultsMax  int    // how many faults a report lists; 0 is FaultsMax

	Compared [][]byte      // signed checkpoints that others were shown, to be states of this log too
	Brackets []Bracket     // moments known from elsewhere, to hold dates against
	Skew     time.Duration // how far clocks may differ; 0 is Skew

	Before *Before // what is known of the epoch before this log; nil leaves that unchecked

	// Known, if set, is what an earlier verification came to: what it covers is not
	// read again, if the log still is that.
	Known *Known

	// Serial has an export read by one goroutine, one file after the other: where it
	// comes from a server, which reads ahead by itself.
	Serial bool

	// LinksOnly looks at links and tree and at nothing else of an event, to
	// measure what that takes. Its report is never good: it says that events were
	// not parsed, and has exit code ExitImpossible at best.
	LinksOnly bool

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
	opts   Options
	pinned note.Verifier
	signed []byte // the log's own checkpoint
	total  uint64 // events to come, for progress
	examiner
	tree
	erasures
	source *Source // of a log at rest
	clock  clock
	ops    operations
	again  func(from, to uint64, fn func(seq uint64, event []byte) error) error // reads the log once more; nil where nothing can

	gaveUp  string          // why the rest was not read
	rows    bool            // the log is a file of lines, which has neither tiles nor payloads
	from    uint64          // events before it were verified earlier
	leaf    events.Hash     // of the last position; zero where unknown
	next    uint64          // seq the next entry must have
	time    events.Time     // of the last entry that parsed
	carried map[uint64]bool // erasures that were under way: whether they are done by now

	roots  map[uint64]events.Hash // root at the sizes that are asked for
	origin string                 // as event 1 says
	vkey   string                 // as event 1 says
	named  *events.Previous       // by event 1
	keys   timeline               // of checkpoints
	places map[keyID][]int        // of the first placed of them
	placed int
	past   nodeReader // of the tree at earlier sizes; nil for nodes
	looked struct {   // what each check looked at
		parse, sequence, chain, time, origin, tree, payloads, sealed uint64
	}

	*report
}

// NewVerifier returns a verifier of a log whose own signed checkpoint is
// checkpoint, nil if it has none. The error says that an option is unusable;
// nothing can then be checked.
func NewVerifier(checkpoint []byte, opts Options) (*Verifier, error) {
	v := &Verifier{
		opts: opts, signed: checkpoint, next: 1, examiner: examiner{links: opts.LinksOnly},
		roots: map[uint64]events.Hash{}, carried: map[uint64]bool{}, report: newReport(opts.FaultsMax), ops: newOperations(), clock: newClock(opts.Brackets, opts.Skew),
	}
	v.examiner.ops = &v.ops
	if opts.VKey != "" {
		var err error
		if v.pinned, err = newVerifier(opts.VKey); err != nil {
			return nil, fmt.Errorf("verifier key: %w", err)
		}
	}
	for _, signed := range append([][]byte{checkpoint, opts.Remembered}, opts.Compared...) {
		if c, err := readCheckpoint(signed); err == nil { // Finish tells what is wrong with it
			v.roots[c.Size] = emptyRoot
		}
	}
	return v, nil
}

// Event takes the next entry's bytes. They are good for the call only.
func (v *Verifier) Event(b []byte) {
	e := v.examine(v.size+1, b)
	v.take(&e)
	v.grow(e.leaf)
	v.told(v.tree.take())
}

// Unreadable takes the place of an entry whose bytes cannot be had. The tree
// goes on with the hash stored for it, if there is one: where the root then
// fits, the damage ends here.
func (v *Verifier) Unreadable(why string) {
	e := entry{unreadable: why, leaf: v.tree.stored(v.size)}
	v.take(&e)
	v.grow(e.leaf)
	v.told(v.tree.take())
}

// take holds what was found of the next entry against the one before it.
func (v *Verifier) take(e *entry) {
	position, before := v.size+1, v.leaf
	v.leaf = e.leaf
	switch {
	case e.unreadable != "":
		v.fault(Fault{Check: "parse", Seq: position, Expected: "an entry", Found: e.unreadable})
		v.next++
	case e.err != nil:
		v.looked.parse++
		v.fault(Fault{Check: "parse", Seq: position, Expected: "an event of " + events.Format, Found: e.err.Error()})
		v.next++
	default:
		v.looked.parse++
		v.entry(position, e, before)
	}
	v.told(e.faults)
	v.erasures.note(position, e)
}

func (v *Verifier) told(faults []Fault) {
	for _, f := range faults {
		v.fault(f)
	}
}

// entry checks what an entry says against the one before it, whose leaf hash
// is before.
func (v *Verifier) entry(position uint64, e *entry, before events.Hash) {
	if e.seq != v.next {
		v.fault(Fault{Check: "sequence", Seq: position, Expected: fmt.Sprintf("seq %d", v.next), Found: fmt.Sprintf("seq %d", e.seq)})
	}
	v.next = e.seq + 1 // one gap is one fault, not one for every entry after it
	v.looked.sequence++
	if position == 1 {
		before = v.first(e)
	} else if e.created != nil {
		v.fault(Fault{Check: "origin", Seq: position, Expected: "ledger.created at seq 1 only", Found: "a second one"})
	}
	if e.ofKey != nil {
		v.keyEvent(position, e.ofKey)
	}
	if !before.IsZero() {
		v.looked.chain++
		if e.prev != before {
			v.fault(Fault{Check: "chain", Seq: position, Expected: "prev " + before.String(), Found: "prev " + e.prev.String()})
		}
	}
	if v.links {
		return
	}
	if v.looked.time++; e.time < v.time {
		v.fault(Fault{Check: "time", Seq: position, Expected: "not before " + v.time.String(), Found: e.time.String()})
	}
	v.time = e.time
	v.dated(position, e.time)
	if e.operation.hash != 0 {
		v.ops.add(e.operation)
	}
}

// first checks event 1 and returns the prev it must have.
func (v *Verifier) first(e *entry) events.Hash {
	b := e.created
	if b == nil {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: string(events.TypeLedgerCreated), Found: e.kind})
		return events.Hash{}
	}
	v.origin, v.vkey = b.Origin, b.CheckpointKey
	v.keys.first(b.CheckpointKey)
	v.looked.origin++
	if b.Format != events.Format {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "format " + events.Format, Found: quote(b.Format)})
	}
	if !events.ValidOrigin(b.Origin) {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "an origin", Found: quote(b.Origin)})
	}
	if key, err := newVerifier(b.CheckpointKey); err != nil || key.Name() != b.Origin {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "a checkpoint key named after the origin", Found: quote(b.CheckpointKey)})
	}
	if key, err := newVerifier(b.PermitKey); err != nil || key.Name() != b.Origin+"/permit" || events.KeyText(b.PermitKey) == events.KeyText(b.CheckpointKey) {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "a permit key named after the origin, and other than that of checkpoints", Found: quote(b.PermitKey)})
	}
	v.named = b.Previous
	v.continues(b)
	return events.GenesisHash(b.Origin)
}

// grow adds the last leaf to the tree.
func (v *Verifier) grow(leaf events.Hash) {
	v.tree.add(0, leaf, leaf.IsZero())
	v.passed()
}

// passed is called at every size, to note the root where it is asked for.
func (v *Verifier) passed() {
	if _, asked := v.roots[v.size]; asked {
		v.roots[v.size] = v.root()
	}
	v.progress(v.size)
}

func (v *Verifier) progress(seq uint64) {
	if v.opts.Progress != nil && seq%progressEvery == 0 {
		v.opts.Progress(seq, max(seq, v.total))
	}
}

// quote makes text of the log fit to print: one line, no control character.
func quote(s string) string {
	const max = 200
	if len(s) > max {
		s = s[:max] + "…"
	}
	return strings.ToValidUTF8(fmt.Sprintf("%+q", s), "?")
}

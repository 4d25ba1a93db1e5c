package audit

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Source is a log at rest, to be verified, exported or replayed. Its functions
// may be called from several goroutines at a time.
type Source struct {
	Size       uint64 // events in it
	Checkpoint []byte // its own last signed checkpoint, nil if it has none

	// Events calls fn with each event from from to to in order; the bytes are
	// good for the call only. It ends at fn's error, or at an event it cannot read.
	Events func(from, to uint64, fn func(seq uint64, event []byte) error) error

	// Payload returns what lies beside an event.
	Payload func(seq uint64) (Payload, error)

	// Payloads, if set, begins a walk over what lies beside events from to to: as
	// Payload, in a fraction of the time.
	Payloads func(from, to uint64) (PayloadWalk, error)

	// Keys, if set, lists the names of the data keys that payloads are sealed under.
	Keys func() ([]string, error)

	// CarriedOut, if set, reports whether the erasure of event under has come to
	// its end since the log was opened, where it had not before.
	CarriedOut func(under uint64) bool

	// Strangers, if set, lists what lies in the store and belongs to no log.
	Strangers func() ([]string, error)

	// Hashes reads stored tree hashes by tlog.StoredHashIndex; nil if none are stored.
	Hashes func(indexes []int64) ([]tlog.Hash, error)

	tiles *export // where an export's tiles are read
}

// PayloadWalk reads payloads in ascending order. It belongs to one goroutine.
type PayloadWalk struct {
	// At is Payload for a seq beyond the last one asked for. What it returns is
	// good until the next call.
	At func(seq uint64) (Payload, error)

	// End ends the walk and returns where there are payloads that were not asked
	// for.
	End func() (unasked []uint64, err error)
}

const (
	hashesAhead   = 1024 // stored hashes read at once
	unreadableMax = 4096 // events tried one by one before the rest is given up
)

// VerifyLog verifies a log at rest in which every committed payload must be
// found. An error says that an option is unusable.
func VerifyLog(s *Source, opts Options) (*Report, error) {
	v, err := NewVerifier(s.Checkpoint, opts)
	if err != nil {
		return nil, err
	}
	v.total, v.required, v.again = s.Size, true, s.Events
	if !v.links {
		v.payload = func(seq uint64, _ bool) (Payload, error) { return s.Payload(seq) }
	}
	if s.Hashes != nil {
		v.nodes = storedNodes(s.Hashes)
	}
	v.resume(s.Size, s.Events)
	v.source = s
	if v.halts() {
		return v.Finish(), nil
	}
	v.read(s)
	if s.Strangers != nil && !v.links && !v.halts() {
		list, err := s.Strangers()
		if err != nil {
			v.fault(Fault{Check: "files", Expected: "a store that can be read", Found: err.Error()})
		}
		for _, what := range list {
			v.fault(Fault{Check: "files", Where: quote(what), Expected: "only what a log has in its store", Found: "something else"})
		}
	}
	return v.Finish(), nil
}

// storedNodes reads stored hashes in runs: nodes are completed, and asked for,
// in the order of their stored index.
func storedNodes(read func([]int64) ([]tlog.Hash, error)) nodeReader {
	first, window := int64(0), []tlog.Hash(nil)
	lost := unreadableRun{read: read}
	return func(level int, n uint64) (events.Hash, string, bool, error) {
		index := tlog.StoredHashIndex(level, int64(n))
		if at := index - first; at >= 0 && at < int64(len(window)) {
			return events.Hash(window[at]), "", true, nil
		}
		if index >= lost.from && index < lost.to {
			return events.Hash{}, "", true, lost.err
		}
		for ahead := int64(hashesAhead); ahead >= 1; ahead /= 2 {
			hashes, err := readRun(read, index, ahead)
			switch {
			case err == nil:
				first, window = index, hashes
				return events.Hash(hashes[0]), "", true, nil
			case ahead == 1:
				lost.measure(index, err)
				return events.Hash{}, "", true, lost.err
			}
		}
		return events.Hash{}, "", true, nil
	}
}

func readRun(read func([]int64) ([]tlog.Hash, error), from, n int64) ([]tlog.Hash, error) {
	indexes := make([]int64, n)
	for i := range indexes {
		indexes[i] = from + int64(i)
	}
	hashes, err := read(indexes)
	if err == nil && len(hashes) != len(indexes) {
		err = fmt.Errorf("%d hashes, want %d", len(hashes), n)
	}
	return hashes, err
}

// unreadableRun is a stretch of stored hashes that cannot be read for one cause.
// A damaged block takes a store long to give up, so that it is not asked for
// each hash in it: two hashes that fail with the same words, which name the
// block, have only hashes of that block between them.
type unreadableRun struct {
	read     func([]int64) ([]tlog.Hash, error)
	from, to int64 // to excluded
	err      error
}

const runMax = 1 << 16

func (r *unreadableRun) measure(index int64, err error) {
	same := func(at int64) bool {
		_, other := readRun(r.read, at, 1)
		return other != nil && other.Error() == err.Error()
	}
	r.from, r.to, r.err = index, index+1, fmt.Errorf("unreadable: %w", err)
	if !strings.Contains(err.Error(), "block ") { // the words name no place
		return
	}
	step := int64(1)
	for step < runMax && same(index+step) {
		r.to, step = index+step+1, 2*step
	}
	for low, high := r.to, index+step; low < high; {
		if mid := low + (high-low)/2; same(mid) {
			r.to, low = mid+1, mid+1
		} else {
			high = mid
		}
	}
}

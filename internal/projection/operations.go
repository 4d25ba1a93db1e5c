package projection

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// operations remembers the first use of every operation id in 24 bytes each,
// without a pointer: the first 128 bits of a hash of agent and id, and where it
// was used. Whoever acts on a hit compares the event at its seq with agent and
// id first, so that two ids of one digest, which take 2^64 tries to find, are a
// refusal and never an answer meant for somebody else.
//
// Entries lie in shards by the first byte of their digest, each an array in
// which a digest's place is proportional to its value and taken places push on
// to the next: always in ascending order, whatever order they came in. A shard
// grows by itself, so that no insertion moves more than a 256th of all.
type operations struct {
	names  []string // of operations, by first use
	shards [256]operationShard
	count  int
}

type digest struct{ hi, lo uint64 }

func (d digest) less(e digest) bool { return d.hi < e.hi || d.hi == e.hi && d.lo < e.lo }

type operationEntry struct {
	digest
	use uint64 // seq<<16 | number of the operation's name; 0 is a free place
}

const (
	operationNamesMax = 1 << 16
	operationSeqMax   = 1 << 48
)

// operationDigest is the first half of SHA-256("ledgerd/operation/v1\n" ‖ u16be
// length of agent ‖ agent ‖ id).
func operationDigest(agent, id string) digest {
	var room [21 + 2 + 64 + 128]byte // for all within their grammar
	b := append(room[:0], "ledgerd/operation/v1\n"...)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(agent))), agent...)
	sum := sha256.Sum256(append(b, id...))
	return digest{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
}

func (o *operations) get(agent, id string) (Operation, bool) {
	d := operationDigest(agent, id)
	use := o.shards[d.hi>>56].get(d)
	if use == 0 {
		return Operation{}, false
	}
	return Operation{Seq: use >> 16, Name: o.names[use&(operationNamesMax-1)]}, true
}

// add remembers a first use and returns its entry; added is false where the id
// was used before.
func (o *operations) add(agent, id string, use Operation) (e operationEntry, added bool, err error) {
	n := slices.Index(o.names, use.Name)
	if n < 0 {
		n = len(o.names)
	}
	if use.Seq >= operationSeqMax || n == operationNamesMax {
		return e, false, fmt.Errorf("%w: too many operations", ErrInconsistent)
	}
	e = operationEntry{operationDigest(agent, id), use.Seq<<16 | uint64(n)}
	if !o.insert(e) {
		return e, false, nil
	}
	if n == len(o.names) {
		o.names = append(o.names, use.Name)
	}
	return e, true, nil
}

func (o *operations) insert(e operationEntry) bool {
	if !o.shards[e.hi>>56].insert(e) {
		return false
	}
	o.count++
	return true
}

// reserve makes room for n, so that none of it is made while they come.
func (o *operations) reserve(n int) {
	each := uint64(n)/uint64(len(o.shards)) + 1
	for i := range o.shards {
		if s := &o.shards[i]; each >= s.size-s.size/4 {
			s.grow(staggered(max(shardSizeMin, each+each*3/8), i))
		}
	}
}

// staggered is a size between one and one and a half times size, another for
// each shard: as they fill at the same pace, they would all grow at once.
func staggered(size uint64, shard int) uint64 { return size + size*uint64(shard)/512 }

// all yields the entries in ascending order.
func (o *operations) all() iter.Seq[operationEntry] {
	return func(yield func(operationEntry) bool) {
		for i := range o.shards {
			for _, e := range o.shards[i].places {
				if e.use != 0 && !yield(e) {
					return
				}
			}
		}
	}
}

// operationShard holds digests of one first byte. size of the places can be a
// digest's own; those after them take what was pushed past the end.
type operationShard struct {
	places []operationEntry
	size   uint64
	count  uint64
}

const (
	shardSizeMin = 16
	shardSpare   = 16 // places after the last own one
)

// home is the place of a digest: the 32 bits after the first byte, in
// proportion.
func (s *operationShard) home(d digest) uint64 { return d.hi << 8 >> 32 * s.size >> 32 }

// find returns the first place whose digest is not below d, or a free one.
func (s *operationShard) find(d digest) uint64 {
	i := s.home(d)
	for s.places[i].use != 0 && s.places[i].less(d) {
		i++
	}
	return i
}

func (s *operationShard) get(d digest) (use uint64) {
	if s.size == 0 {
		return 0
	}
	if e := &s.places[s.find(d)]; e.digest == d {
		return e.use
	}
	return 0
}

func (s *operationShard) insert(e operationEntry) bool {
	if s.count >= s.size-s.size/4 { // three quarters full
		s.grow(max(staggered(shardSizeMin, int(e.hi>>56)), s.size+s.size/2))
	}
	i := s.find(e.digest)
	if s.places[i].use != 0 && s.places[i].digest == e.digest {
		return false
	}
	free := i
	for s.places[free].use != 0 {
		free++
	}
	if free == uint64(len(s.places))-1 { // the last one stays free, to end every search
		s.grow(s.size + s.size/2)
		return s.insert(e)
	}
	copy(s.places[i+1:free+1], s.places[i:free])
	s.places[i] = e
	s.count++
	return true
}

// grow makes size places.
func (s *operationShard) grow(size uint64) {
	old := s.places
	s.size = size
	s.places = make([]operationEntry, s.size+shardSpare+s.size/64)
	next := uint64(0)
	for _, e := range old {
		if e.use == 0 {
			continue
		}
		next = max(next, s.home(e.digest))
		if next == uint64(len(s.places))-1 {
			s.places = append(s.places, make([]operationEntry, shardSpare)...)
		}
		s.places[next] = e
		next++
	}
}

// foldDecision remembers the first use of an operation id. Reads are judged
// anew each time, so theirs are only echoed.
func (s *State) foldDecision(seq uint64, d *events.Decision) error {
	if r := s.runs[d.RunID]; d.Operation == "run.cancel" && d.Allowed && r != nil {
		r.Cancelling = true
		s.changedRun(r)
	}
	if err := s.use(d); err != nil {
		return err
	}
	step := d.StepID != "" && d.Operation == "sop.validate"
	if d.OperationID == "" || step || d.Operation == "memory.read" {
		return nil
	}
	e, first, err := s.operations.add(d.Subject, d.OperationID, Operation{seq, d.Operation})
	if first && s.changes != nil {
		s.changes.operations = append(s.changes.operations, e)
	}
	return err
}

// Operation returns the first use of an agent's operation id. The event at its
// seq has the last word: one of another agent or id is a hit by chance.
func (s *State) Operation(agent, id string) (Operation, bool) {
	if id == "" {
		return Operation{}, false
	}
	return s.operations.get(agent, id)
}

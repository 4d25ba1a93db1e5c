package audit

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// A log is verified in chunks of whole subtrees. As many goroutines as there are
// cores each read a chunk, hash and parse it, open its payloads, and build and
// compare its subtree; one takes the chunks in order and checks what ties an
// entry to the one before it, and the tree above.
const (
	chunkLevel = 12
	chunkSize  = 1 << chunkLevel // entries
)

// chunk is a stretch of entries, examined.
type chunk struct {
	entries []entry
	at      []int // of the faults of its tree, the entry after which each was found
	tree    tree
	sizes   []uint64 // whose root is asked for and that are still to come
	asked   []tree   // as it was at such sizes
	ended   bool     // the log ends before its size says
	over    bool     // the log ends here, as it may
	present []uint64 // where there are payloads, in an export
	missing int      // bundles that were read past
	failure error    // why an entry was unreadable, the last time
	examiner
}

// inOrder has stretches examined by as many goroutines as there are cores, from the
// first on and not far ahead, and takes them in order, until take reports false. There
// may be said to be any number of them.
func inOrder[C any](n uint64, examine func(i uint64) C, take func(c C) bool) {
	workers := runtime.GOMAXPROCS(0)
	slots := make([]chan C, 2*workers) // of stretches examined and not yet taken
	for i := range slots {
		slots[i] = make(chan C, 1)
	}
	var next atomic.Uint64
	ahead := make(chan struct{}, len(slots))
	done := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer close(done)
	for range workers {
		running.Go(func() {
			for {
				select {
				case ahead <- struct{}{}:
				case <-done:
					return
				}
				i := next.Add(1) - 1
				if i >= n {
					return
				}
				slots[i%uint64(len(slots))] <- examine(i)
			}
		})
	}
	for i := range n {
		c := <-slots[i%uint64(len(slots))]
		<-ahead
		if !take(c) {
			return
		}
	}
}

// read feeds a source's events. An event that cannot be read is a fault, and
// reading goes on behind it.
func (v *Verifier) read(s *Source) {
	if v.align(s); v.halts() {
		return
	}
	sizes := slices.Sorted(maps.Keys(v.roots)) // the map itself belongs to this goroutine
	base, failures := v.size, 0
	inOrder((s.Size-base+chunkSize-1)/chunkSize, func(i uint64) *chunk {
		return v.examineChunk(s, base+i*chunkSize, sizes)
	}, func(c *chunk) bool { return v.takeChunk(c, &failures) })
}

// align reads a log that is taken up in the midst of a chunk up to the next one.
func (v *Verifier) align(s *Source) {
	for to := min((v.size+chunkSize-1)/chunkSize*chunkSize, s.Size); v.size < to; {
		err := s.Events(v.size+1, to, func(_ uint64, event []byte) error {
			if v.Event(event); v.halts() {
				return errHalted
			}
			return nil
		})
		if v.halts() {
			return
		}
		if err != nil {
			v.Unreadable("unreadable: " + err.Error())
		}
	}
}

// takeChunk holds a chunk's entries against each other and the ones before. It
// reports false where the rest is given up: failures, unless it is nil, counts the
// entries in a row that could not be read.
func (v *Verifier) takeChunk(c *chunk, failures *int) bool {
	base, faults, asked := v.size, c.tree.found, c.asked
	for i := range c.entries {
		e := &c.entries[i]
		if failures == nil {
			v.told(e.before)
		} else if e.unreadable == "" {
			*failures = 0
		} else if *failures++; *failures > unreadableMax {
			e.unreadable = fmt.Sprintf("%d unreadable ones in a row; the rest was given up: %v", unreadableMax, c.failure)
		}
		v.take(e)
		for ; len(faults) > 0 && c.at[0] == i; c.at = c.at[1:] {
			v.fault(faults[0])
			faults = faults[1:]
		}
		if v.size++; v.halts() { // the tree itself follows below
			return false
		}
		if len(asked) > 0 && asked[0].size == v.size {
			whole := v.tree
			whole.nodes, whole.size = nil, base
			whole.join(&asked[0])
			v.roots[v.size] = whole.root()
			asked = asked[1:]
		}
		v.progress(v.size)
		if failures != nil && *failures > unreadableMax {
			v.giveUp(c, base, i+1)
			return false
		}
	}
	v.size = base
	v.looked.payloads += c.opened
	v.looked.sealed += c.sealed
	v.tree.join(&c.tree)
	v.told(v.tree.take())
	if c.ended {
		v.Unreadable("none: the log ends before its size")
	}
	return !c.ended && !c.over && !v.halts()
}

// giveUp has the tree end after the first n entries of a chunk.
func (v *Verifier) giveUp(c *chunk, base uint64, n int) {
	nodes := v.nodes
	v.size, v.nodes = base, nil
	for i := range c.entries[:n] {
		v.tree.add(0, c.entries[i].leaf, true)
	}
	v.nodes = nodes
}

// newChunk is one of the entries after the first base ones up to to, of which none is
// examined yet.
func (v *Verifier) newChunk(base, to uint64, sizes []uint64) *chunk {
	c := &chunk{
		entries: make([]entry, 0, to-base), tree: tree{base: base, size: base}, examiner: examiner{links: v.links, required: v.required, ops: &v.ops},
	}
	at, _ := slices.BinarySearch(sizes, base+1)
	c.sizes = sizes[at:]
	return c
}

// examineChunk reads and examines the entries after the first base ones.
func (v *Verifier) examineChunk(s *Source, base uint64, sizes []uint64) *chunk {
	to := min(base+chunkSize, s.Size)
	c := v.newChunk(base, to, sizes)
	if s.Hashes != nil {
		c.tree.nodes = storedNodes(s.Hashes)
	}
	finish := c.openPayloads(s, base+1, to)
	for c.tree.size < to {
		at := c.tree.size
		err := s.Events(at+1, to, func(_ uint64, event []byte) error {
			c.add(c.examine(c.tree.size+1, event), nil)
			return nil
		})
		if err == nil {
			c.ended = c.tree.size < to
			break
		}
		c.failure = err
		c.add(entry{unreadable: "unreadable", leaf: c.tree.stored(c.tree.size)}, nil)
	}
	finish()
	return c
}

// add puts an examined entry in its place, with the faults that are to be told
// before it, which are told once.
func (c *chunk) add(e entry, before *[]Fault) {
	if before != nil {
		e.before, *before = *before, nil
	}
	c.entries = append(c.entries, e)
	c.tree.add(0, e.leaf, e.leaf.IsZero())
	for len(c.at) < len(c.tree.found) {
		c.at = append(c.at, len(c.entries)-1)
	}
	if len(c.sizes) > 0 && c.tree.size == c.sizes[0] {
		c.asked, c.sizes = append(c.asked, c.tree), c.sizes[1:]
	}
}

// openPayloads has a chunk's payloads read in step with its events, or one by
// one where the source cannot do that. What is returned ends it.
func (c *chunk) openPayloads(s *Source, from, to uint64) (finish func()) {
	switch {
	case c.links:
		return func() {}
	case s.Payloads == nil:
		c.payload = func(seq uint64, _ bool) (Payload, error) { return s.Payload(seq) }
		return func() {}
	}
	walk, err := s.Payloads(from, to)
	if err != nil {
		c.payload = func(uint64, bool) (Payload, error) { return Payload{}, err }
		return func() {}
	}
	c.payload = func(seq uint64, _ bool) (Payload, error) { return walk.At(seq) }
	return func() {
		unasked, err := walk.End()
		if n := len(c.entries); n > 0 {
			last := &c.entries[n-1]
			last.faults = append(last.faults, strange(unasked)...)
			if err != nil {
				last.faults = append(last.faults, Fault{Check: "payloads", Seq: from, To: to, Expected: "payloads that can be read", Found: err.Error()})
			}
		}
	}
}

package store

import (
	"fmt"
	"math/bits"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// edge is the right edge of an RFC 6962 tree: for every bit set in size the
// hash of the complete subtree of that many leaves, largest first in the tree.
// It is all that is needed to grow the tree and to know its root.
type edge struct {
	size  uint64
	nodes [64]events.Hash // nodes[level], valid where size has the bit
	out   [65]events.Hash
}

// add appends a leaf and returns the hashes it completes, from the leaf up:
// those that stand at consecutive stored indexes from storedCount(size) on
// (tlog.StoredHashesForRecordHash). The result is good until the next add.
func (e *edge) add(leaf events.Hash) []events.Hash {
	e.out[0] = leaf
	level := bits.TrailingZeros64(^e.size)
	for i := range level {
		e.out[i+1] = events.NodeHash(e.nodes[i], e.out[i])
	}
	e.nodes[level] = e.out[level]
	e.size++
	return e.out[:level+1]
}

// root is the tree's hash; that of the empty tree is SHA-256 of nothing.
func (e *edge) root() events.Hash {
	if e.size == 0 {
		empty, _ := tlog.TreeHash(0, nil)
		return events.Hash(empty)
	}
	level := bits.TrailingZeros64(e.size)
	h := e.nodes[level]
	for level++; level < bits.Len64(e.size); level++ {
		if e.size>>level&1 == 1 {
			h = events.NodeHash(e.nodes[level], h)
		}
	}
	return h
}

// storedCount is the number of hashes stored for a tree of size leaves, and so
// the index of the next leaf's first one.
func storedCount(size uint64) uint64 { return uint64(tlog.StoredHashCount(int64(size))) }

// treeHashes reads the stored hashes of the tree, cheapest in ascending order.
// It belongs to one goroutine and must be closed.
type treeHashes struct {
	it    *pebble.Iterator
	first uint64 // index of run's first
	run   []byte
}

func (s *Store) treeHashes() (*treeHashes, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{hashKeys}, UpperBound: []byte{hashKeys + 1}})
	if err != nil {
		return nil, damage(err)
	}
	return &treeHashes{it: it}, nil
}

func (t *treeHashes) close() error { return damage(t.it.Close()) }

// end is the index behind the run.
func (t *treeHashes) end() uint64 { return t.first + uint64(len(t.run)/len(events.Hash{})) }

// at returns the hash stored for index. A missing one is ErrCorrupt.
func (t *treeHashes) at(index uint64) (events.Hash, error) {
	if len(t.run) == 0 || index < t.first || index >= t.end() {
		if err := t.find(index); err != nil {
			return events.Hash{}, err
		}
	}
	at := (index - t.first) * uint64(len(events.Hash{}))
	return events.Hash(t.run[at:][:len(events.Hash{})]), nil
}

// find moves to the run that index is in.
func (t *treeHashes) find(index uint64) error {
	next := len(t.run) > 0 && index == t.end()
	t.run = nil
	if next {
		t.it.Next()
	} else {
		t.it.SeekLT(numKey(hashKeys, index+1))
	}
	if err := t.load(); err != nil {
		return err
	}
	if index < t.first || index >= t.end() {
		t.run = nil
		return fmt.Errorf("%w: tree hash %d is missing", ErrCorrupt, index)
	}
	return nil
}

// load reads the run that the iterator stands at, which must end where the next
// one begins: of two that overlap, who looks for a hash would find either.
func (t *treeHashes) load() error {
	if !t.it.Valid() {
		return damage(t.it.Error())
	}
	first, err := keyNum(t.it.Key())
	if err != nil {
		return err
	}
	follows, next := t.it.Next(), uint64(0)
	if follows {
		if next, err = keyNum(t.it.Key()); err != nil {
			return err
		}
	}
	if !t.it.Prev() {
		return damage(t.it.Error())
	}
	run, err := t.it.ValueAndErr()
	if err != nil {
		return damage(err)
	}
	end := first + uint64(len(run)/len(events.Hash{}))
	if len(run) == 0 || len(run)%len(events.Hash{}) != 0 || follows && next < end {
		return fmt.Errorf("%w: the run of tree hashes at %d has %d bytes, the next begins at %d", ErrCorrupt, first, len(run), next)
	}
	t.first, t.run = first, run
	return nil
}

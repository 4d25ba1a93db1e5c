package store

import (
	"math/bits"

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

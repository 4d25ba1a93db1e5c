package audit

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
)

// tree is the RFC 6962 tree over the entries seen, as far as its right edge, or
// a subtree of it that begins at a multiple of its width. It compares every node
// it completes with the stored one.
type tree struct {
	nodes     nodeReader                               // nil where no node is stored
	completed func(level int, n uint64, h events.Hash) // told of every node, if set

	base     uint64 // leaves before the subtree
	size     uint64 // leaves seen, those before included
	edge     [64]edgeNode
	compared uint64
	found    []Fault
}

type edgeNode struct {
	hash events.Hash
	bad  bool // a stored node here or below differs
}

// add takes the next complete node of a level: a leaf, or a subtree whose own
// nodes were compared before. bad says that it cannot be told, or differs.
func (t *tree) add(level int, h events.Hash, bad bool) {
	n := t.size >> level
	if level == 0 {
		bad = t.compare(0, n, h, bad)
	}
	start := level
	for ; (t.size-t.base)>>level&1 == 1; level++ {
		left := t.edge[level]
		h, n = events.NodeHash(left.hash, h), n>>1
		bad = t.compare(level+1, n, h, bad || left.bad)
	}
	t.edge[level] = edgeNode{h, bad}
	t.size += 1 << start
}

// join takes the whole edge of a subtree that begins where t ends.
func (t *tree) join(sub *tree) {
	t.compared += sub.compared
	for level := len(sub.edge) - 1; level >= 0; level-- {
		if (sub.size-sub.base)>>level&1 == 1 {
			t.add(level, sub.edge[level].hash, sub.edge[level].bad)
		}
	}
}

// take returns the faults found since it was last called.
func (t *tree) take() []Fault {
	faults := t.found
	t.found = nil
	return faults
}

// stored is the stored hash of a leaf, zero if there is none to be had.
func (t *tree) stored(n uint64) (h events.Hash) {
	if t.nodes == nil {
		return h
	}
	if h, _, stored, err := t.nodes(0, n); err == nil && stored {
		return h
	}
	return events.Hash{}
}

// compare reports whether the stored node differs from h, the one computed from
// the entries, or cannot be told. Below a difference nothing more is reported:
// every node above a changed leaf differs.
func (t *tree) compare(level int, n uint64, h events.Hash, below bool) bool {
	if t.completed != nil {
		t.completed(level, n, h)
	}
	if t.nodes == nil {
		return below
	}
	got, where, stored, err := t.nodes(level, n)
	if err == nil && !stored {
		return below
	}
	t.compared++
	if err == nil && got == h {
		return false
	}
	if !below {
		f := Fault{Check: "tree", Seq: n<<level + 1, To: (n + 1) << level, Where: where, Found: "hash " + h.String() + " from the entries"}
		if f.Expected = fmt.Sprintf("hash %s as stored for node %d of level %d", got, n, level); err != nil {
			f.Expected, f.Found = fmt.Sprintf("node %d of level %d", n, level), err.Error()
		}
		t.found = append(t.found, f)
	}
	return true
}

// root is the RFC 6962 root of what has been seen.
func (t *tree) root() events.Hash {
	if t.size == 0 {
		return emptyRoot
	}
	var h events.Hash
	for level := range t.edge {
		switch {
		case t.size>>level&1 == 0:
		case h.IsZero():
			h = t.edge[level].hash
		default:
			h = events.NodeHash(t.edge[level].hash, h)
		}
	}
	return h
}

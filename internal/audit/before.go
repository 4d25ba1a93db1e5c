package audit

import (
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
)

// before is the leaf of event seq and the root at size seq, of what was verified
// earlier: from the stored hashes, each held against the one above it, up to the
// edge that the auditor kept. The left neighbours on the way down to the last
// leaf of a tree are all that its root is made of.
func (v *Verifier) before(seq uint64) (leaf, root events.Hash, err error) {
	if seq == 0 || seq > v.from {
		return leaf, root, fmt.Errorf("event %d is none of the %d verified before", seq, v.from)
	}
	if v.past == nil {
		v.past = v.nodes
	}
	if v.past == nil {
		return leaf, root, errors.New("no tree hash is stored")
	}
	edge, index, level := v.opts.Known.edge(), seq-1, 63
	var lefts []events.Hash
	for passed := uint64(0); ; level-- {
		if edge.size>>level&1 == 0 {
			continue
		}
		if passed += 1 << level; index < passed {
			break
		}
		lefts = append(lefts, edge.edge[level].hash)
	}
	leaf = edge.edge[level].hash
	for ; level > 0; level-- {
		n := index >> level
		left, err := v.node(level-1, 2*n)
		if err != nil {
			return leaf, root, err
		}
		right, err := v.node(level-1, 2*n+1)
		if err != nil {
			return leaf, root, err
		}
		if events.NodeHash(left, right) != leaf {
			return leaf, root, fmt.Errorf("the hashes stored below node %d of level %d are not those of what was verified before", n, level)
		}
		if leaf = left; index>>(level-1)&1 == 1 {
			leaf, lefts = right, append(lefts, left)
		}
	}
	root = leaf
	for i := len(lefts) - 1; i >= 0; i-- {
		root = events.NodeHash(lefts[i], root)
	}
	return leaf, root, nil
}

// datedBefore holds the dates of what was verified earlier against the brackets.
// They ascend, as was verified then, so that the last event that a bracket covers
// and the first that it does not speak for all.
func (v *Verifier) datedBefore(read func(from, to uint64, fn func(seq uint64, event []byte) error) error) {
	looked := map[uint64]bool{0: true}
	for _, b := range v.clock.brackets {
		for _, seq := range []uint64{min(b.Size, v.from), b.Size + 1} {
			if looked[seq] || seq > v.from {
				continue
			}
			looked[seq] = true
			if err := v.datedOne(seq, read); err != nil {
				v.clock.open = fmt.Sprintf("the date of event %d, verified before, could not be told: %v", seq, err)
			}
		}
	}
}

func (v *Verifier) datedOne(seq uint64, read func(from, to uint64, fn func(seq uint64, event []byte) error) error) error {
	leaf, _, err := v.before(seq)
	if err != nil {
		return err
	}
	return read(seq, seq, func(_ uint64, b []byte) error {
		if events.LeafHash(b) != leaf {
			return errors.New("it is not the event that was verified")
		}
		e, err := events.Parse(b)
		if err == nil {
			v.dated(seq, e.Time)
		}
		return err
	})
}

package audit

import (
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// ErrNoProof says that a log has nothing to make the proof asked for of: it ends
// before, or its checkpoint does.
var ErrNoProof = errors.New("no such proof")

// Prove returns the proof that the event seq is in the log under the log's own
// checkpoint, and the event. A proof that would not lead to the checkpoint's
// root is an error: the log is damaged.
func (s *Source) Prove(seq uint64) (*InclusionProof, []byte, error) {
	c, err := readCheckpoint(s.Checkpoint)
	if err != nil {
		return nil, nil, err
	}
	if seq == 0 || seq > c.Size {
		return nil, nil, fmt.Errorf("%w: the checkpoint covers events 1 to %d", ErrNoProof, c.Size)
	}
	path, err := tlog.ProveRecord(int64(c.Size), int64(seq-1), s.tree(c))
	if err != nil {
		return nil, nil, err
	}
	var event []byte
	err = s.Events(seq, seq, func(_ uint64, b []byte) error {
		event = append([]byte{}, b...)
		return nil
	})
	if err == nil && event == nil {
		err = fmt.Errorf("event %d cannot be read", seq)
	}
	if err != nil {
		return nil, nil, err
	}
	p := &InclusionProof{Index: seq - 1, Hashes: eventsHashes(path), Checkpoint: s.Checkpoint}
	return p, event, p.CheckPath(events.LeafHash(event), c)
}

// ProveConsistency returns the proof that the log under its own checkpoint
// begins with its first from events, and the root at that size.
func (s *Source) ProveConsistency(from uint64) (p *ConsistencyProof, root events.Hash, err error) {
	c, err := readCheckpoint(s.Checkpoint)
	if err != nil {
		return nil, root, err
	}
	if from == 0 || from > c.Size {
		return nil, root, fmt.Errorf("%w: the checkpoint covers sizes 1 to %d", ErrNoProof, c.Size)
	}
	path, err := tlog.ProveTree(int64(c.Size), int64(from), s.tree(c))
	if err != nil {
		return nil, root, err
	}
	old, err := tlog.TreeHash(int64(from), s.tree(c))
	if err != nil {
		return nil, root, err
	}
	root = events.Hash(old)
	p = &ConsistencyProof{From: from, Hashes: eventsHashes(path), Checkpoint: s.Checkpoint}
	return p, root, p.CheckPath(root, c)
}

func eventsHashes(list []tlog.Hash) []events.Hash {
	out := make([]events.Hash, len(list))
	for i, h := range list {
		out[i] = events.Hash(h)
	}
	return out
}

// tree reads the hashes of the log's tree: those stored beside it, or an
// export's tiles, each held against the checkpoint's root as it is read.
func (s *Source) tree(c Checkpoint) tlog.HashReader {
	if s.tiles != nil {
		return tlog.TileHashReader(tlog.Tree{N: int64(c.Size), Hash: tlog.Hash(c.Root)}, tileReader{s.tiles})
	}
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		if s.Hashes == nil {
			return nil, errors.New("no hash of the tree is at hand")
		}
		return s.Hashes(indexes)
	})
}

// tileReader reads the tiles of an export.
type tileReader struct{ *export }

func (t tileReader) Height() int { return 8 }

func (t tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, tile := range tiles {
		name := tilePath(tile.L, uint64(tile.N), tile.W)
		b, err := t.file(name, tileWidth*len(events.Hash{}))
		if err == nil && len(b) != tile.W*len(events.Hash{}) {
			err = fmt.Errorf("%d bytes, want %d", len(b), tile.W*len(events.Hash{}))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		data[i] = b
	}
	return data, nil
}

func (t tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

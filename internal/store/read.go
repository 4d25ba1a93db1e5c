package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Event returns the bytes of event seq. Past the durable end, and for 0, it is
// ErrNotFound; missing inside the log, ErrCorrupt.
func (s *Store) Event(seq uint64) ([]byte, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if seq == 0 || seq > s.Durable() {
		return nil, fmt.Errorf("event %d: %w, which ends at %d", seq, ErrNotFound, s.Durable())
	}
	b, err := s.get(numKey(eventKeys, seq))
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: event %d is missing", ErrCorrupt, seq)
	}
	return b, err
}

// Events calls fn with each event from from (at least 1) to to in order, as far
// as the log is durable at the time of the call; to may lie beyond. The bytes
// are good only during the call. It stops at fn's first error and returns it;
// a hole is ErrCorrupt.
func (s *Store) Events(from, to uint64, fn func(seq uint64, event []byte) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if from == 0 {
		return errors.New("events are numbered from 1")
	}
	return s.scan(from, min(to, s.Durable()), fn)
}

// scan is Events without regard to what is durable.
func (s *Store) scan(from, to uint64, fn func(seq uint64, event []byte) error) error {
	if from > to {
		return nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: numKey(eventKeys, from), UpperBound: numKey(eventKeys, to+1)})
	if err != nil {
		return damage(err)
	}
	defer it.Close()
	want := from
	for it.First(); it.Valid(); it.Next() {
		seq, err := keyNum(it.Key())
		if err != nil {
			return err
		}
		if seq != want {
			return fmt.Errorf("%w: event %d is missing", ErrCorrupt, want)
		}
		b, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("event %d: %w", seq, damage(err))
		}
		if err := fn(seq, b); err != nil {
			return err
		}
		want++
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("event %d: %w", want, damage(err))
	}
	if want != to+1 {
		return fmt.Errorf("%w: event %d is missing", ErrCorrupt, want)
	}
	return nil
}

// Payload returns the record kept beside event seq, and whether there is one.
func (s *Store) Payload(seq uint64) ([]byte, bool, error) {
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	if seq > s.Durable() {
		return nil, false, nil
	}
	return s.optional(numKey(payloadKeys, seq))
}

// DataKey returns owner's wrapped data key, and whether there is one. It may be
// one whose batch is still on its way to disk.
func (s *Store) DataKey(owner string) ([]byte, bool, error) {
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	return s.optional(nameKey(dataKeys, owner))
}

// Root returns the RFC 6962 root of the first size events, which must be durable.
func (s *Store) Root(size uint64) (events.Hash, error) {
	if size > s.Durable() {
		return events.Hash{}, fmt.Errorf("root at %d: %w, which ends at %d", size, ErrNotFound, s.Durable())
	}
	h, err := tlog.TreeHash(int64(size), s)
	return events.Hash(h), err
}

// ReadHashes returns stored tree hashes, so that the store is a tlog.HashReader
// for proofs and tiles over the durable log.
func (s *Store) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	end := int64(storedCount(s.Durable()))
	hashes := make([]tlog.Hash, len(indexes))
	stored, err := s.treeHashes()
	if err != nil {
		return nil, err
	}
	defer stored.close()
	for i, index := range indexes {
		if index < 0 || index >= end {
			return nil, fmt.Errorf("tree hash %d: %w, which has %d", index, ErrNotFound, end)
		}
		h, err := stored.at(uint64(index))
		if err != nil {
			return nil, err
		}
		hashes[i] = tlog.Hash(h)
	}
	return hashes, nil
}

// ReadBack reads durable events again, hashes their bytes and compares every
// tree hash they complete with the stored one: done before a checkpoint is
// signed, so that a flipped bit does not become a signed one. What it finds
// wrong stops the store.
func (s *Store) ReadBack(from, to uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if from == 0 || from > to || to > s.Durable() {
		return fmt.Errorf("read back %d–%d: %w, which ends at %d", from, to, ErrNotFound, s.Durable())
	}
	if _, _, err := s.rehash(from, to, 0); err != nil {
		return s.fault.set(fmt.Errorf("read back %d–%d: %w", from, to, err))
	}
	return nil
}

// rehash hashes events from–to from their bytes and compares every tree hash
// they complete with the stored one. It returns the edge at to, and the root
// at the size at, if that lies in from-1–to.
func (s *Store) rehash(from, to, at uint64) (e edge, root events.Hash, err error) {
	if e, err = s.storedEdge(from - 1); err != nil {
		return e, root, err
	}
	if e.size == at {
		root = e.root()
	}
	index := storedCount(e.size)
	stored, err := s.treeHashes()
	if err != nil {
		return e, root, err
	}
	defer stored.close()
	err = s.scan(from, to, func(seq uint64, event []byte) error {
		for _, h := range e.add(events.LeafHash(event)) {
			was, err := stored.at(index)
			if err == nil && was != h {
				err = fmt.Errorf("%w: its bytes give tree hash %d %s, stored is %s", ErrCorrupt, index, h, was)
			}
			if err != nil {
				return fmt.Errorf("event %d: %w", seq, err)
			}
			index++
		}
		if e.size == at {
			root = e.root()
		}
		return nil
	})
	return e, root, err
}

// storedEdge reads the right edge of the tree of size leaves.
func (s *Store) storedEdge(size uint64) (edge, error) {
	e := edge{size: size}
	stored, err := s.treeHashes()
	if err != nil {
		return e, err
	}
	defer stored.close()
	for level := len(e.nodes) - 1; level >= 0; level-- { // ascending
		if size>>level&1 == 0 {
			continue
		}
		if e.nodes[level], err = stored.at(uint64(tlog.StoredHashIndex(level, int64(size>>level-1)))); err != nil {
			return e, err
		}
	}
	return e, nil
}

// lastEvent finds the last event in the database, or the last that has left
// the WAL for the tables.
func (s *Store) lastEvent(flushed bool) (head, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{eventKeys}, UpperBound: []byte{eventKeys + 1}, OnlyReadGuaranteedDurable: flushed,
	})
	if err != nil {
		return head{}, damage(err)
	}
	defer it.Close()
	if !it.Last() {
		return head{}, damage(it.Error())
	}
	seq, err := keyNum(it.Key())
	if err != nil {
		return head{}, err
	}
	b, err := it.ValueAndErr()
	if err != nil {
		return head{}, fmt.Errorf("event %d: %w", seq, damage(err))
	}
	return head{seq, events.LeafHash(b)}, nil
}

// get returns a copy of a key's value, or ErrNotFound.
func (s *Store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("%w: key %q", ErrNotFound, key)
	}
	if err != nil {
		return nil, damage(err)
	}
	defer closer.Close()
	return slices.Clone(v), nil
}

func (s *Store) optional(key []byte) ([]byte, bool, error) {
	b, err := s.get(key)
	if errors.Is(err, ErrNotFound) {
		return nil, false, nil
	}
	return b, err == nil, err
}

// damage marks Pebble's corruption errors as ours.
func damage(err error) error {
	if err != nil && pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

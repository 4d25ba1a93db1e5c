package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// PayloadWalk reads payload records in ascending order, in a fraction of the
// time that Payload takes for each. It belongs to one goroutine.
type PayloadWalk struct {
	store   *Store
	it      *pebble.Iterator
	to      uint64
	asked   uint64 // last
	unasked []uint64
}

// unaskedMax is how many records that nobody asked for a walk remembers.
const unaskedMax = 100

// Payloads begins a walk over the records kept beside events from to to, as far
// as the log is durable. It must be ended.
func (s *Store) Payloads(from, to uint64) (*PayloadWalk, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	to = min(to, s.Durable())
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: numKey(payloadKeys, from), UpperBound: numKey(payloadKeys, to+1)})
	if err != nil {
		s.leave()
		return nil, damage(err)
	}
	it.First()
	return &PayloadWalk{store: s, it: it, to: to}, nil
}

// At returns the record beside event seq, which lies beyond the one last asked
// for, and whether there is one. It is good until the next call.
func (w *PayloadWalk) At(seq uint64) (record []byte, ok bool, err error) {
	if err := w.pass(seq); err != nil || !w.it.Valid() {
		return nil, false, err
	}
	if at, err := keyNum(w.it.Key()); err != nil || at != seq {
		return nil, false, err
	}
	v, err := w.it.ValueAndErr()
	if err != nil {
		return nil, false, fmt.Errorf("payload %d: %w", seq, damage(err))
	}
	return v, true, nil
}

// pass goes on to the first record not before seq.
func (w *PayloadWalk) pass(seq uint64) error {
	for ; w.it.Valid(); w.it.Next() {
		at, err := keyNum(w.it.Key())
		if err != nil {
			return err
		}
		if at >= seq {
			break
		}
		if at != w.asked && len(w.unasked) < unaskedMax {
			w.unasked = append(w.unasked, at)
		}
	}
	w.asked = seq
	return damage(w.it.Error())
}

// End ends the walk and returns where there are records that were not asked for,
// or the first of them.
func (w *PayloadWalk) End() (unasked []uint64, err error) {
	defer w.store.leave()
	err = w.pass(w.to + 1)
	if e := w.it.Close(); err == nil {
		err = damage(e)
	}
	return w.unasked, err
}

// EachPayload calls fn with the record kept beside each event from from to to that
// has one, in order. A record is good until fn returns.
func (s *Store) EachPayload(from, to uint64, fn func(seq uint64, record []byte) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: numKey(payloadKeys, from), UpperBound: numKey(payloadKeys, to+1)})
	if err != nil {
		return damage(err)
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var seq uint64
		var record []byte
		if seq, err = keyNum(it.Key()); err == nil {
			record, err = it.ValueAndErr()
		}
		if err = damage(err); err == nil {
			err = fn(seq, record)
		}
	}
	return errors.Join(err, damage(it.Close()))
}

// Strangers calls fn with each key in the database that is of no kind the format
// knows, or lies beyond the log's end: nothing that is read elsewhere meets them.
// Keys among payloads are the business of a walk.
func (s *Store) Strangers(fn func(key []byte)) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	size := s.Durable()
	known := [][2][]byte{ // ranges that others read, in ascending order
		{numKey(eventKeys, 1), numKey(eventKeys, size+1)},
		{numKey(hashKeys, 0), numKey(hashKeys, storedCount(size))},
		{{dataKeys}, {dataKeys + 1}},
		{nameKey(metaKeys, "format"), nameKey(metaKeys, "format\x00")},
		{nameKey(metaKeys, "origin"), nameKey(metaKeys, "origin\x00")},
		{nameKey(metaKeys, purgedName), nameKey(metaKeys, purgedName+"\x00")},
		{nameKey(metaKeys, purgingName), nameKey(metaKeys, purgingName+"\x00")},
		{numKey(payloadKeys, 1), numKey(payloadKeys, size+1)},
		{{oldSnapshotKeys}, {oldSnapshotKeys + 1}},
		{nil, nil},
	}
	var from []byte
	for _, next := range known {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: next[0]})
		if err != nil {
			return damage(err)
		}
		for it.First(); it.Valid(); it.Next() {
			fn(it.Key())
		}
		if err := it.Close(); err != nil {
			return damage(err)
		}
		from = next[1]
	}
	return nil
}

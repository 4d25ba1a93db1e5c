package store

import (
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Batch is what one commit adds: events that follow the log's last one, and
// what lies beside them. It is written whole or not at all.
type Batch struct {
	First    uint64            // seq of Events[0]
	Events   [][]byte          // exact bytes, 1 to 65,535 each
	Leaves   []events.Hash     // events.LeafHash of each
	Payloads []Payload         // ascending by seq, each of an event in this batch
	Keys     map[string][]byte // wrapped data keys by owner
}

// Payload is kept beside the event Seq; Record is sealed, or open, by the caller.
type Payload struct {
	Seq    uint64
	Record []byte
}

// Commit is an append on its way to disk.
type Commit struct {
	store  *Store
	batch  *pebble.Batch
	end    head
	before *Commit // the append ahead of this one, until it is settled
	done   bool
	err    error
}

// Append writes b to the log and returns at once; the events count as stored
// only when the Commit's Wait has returned nil, and cannot be read before.
// The caller may reuse b.
//
// A batch that does not fit (sequence, sizes) is refused and nothing happens.
// Any other error has stopped the store, and whether b is on disk is unknown.
// Where no new WAL can be started, or it is not known which MANIFEST is in force,
// Pebble ends the process itself.
func (s *Store) Append(b Batch) (*Commit, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if s.frozen != nil {
		return nil, ErrReadOnly
	}
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	if err := b.check(s.edge.size + 1); err != nil {
		return nil, err
	}
	batch := s.db.NewBatchWithSize(b.size())
	err := s.write(batch, b)
	if err == nil {
		err = s.apply(batch)
	}
	if err != nil {
		return nil, s.fault.set(fmt.Errorf("append events %d–%d: %w", b.First, b.last(), err))
	}
	if err := s.Err(); err != nil { // Pebble reports a failed commit to its logger alone
		return nil, err
	}
	s.leaf = b.Leaves[len(b.Leaves)-1]
	c := &Commit{store: s, batch: batch, end: head{s.edge.size, s.leaf}, before: s.last}
	s.last = c
	return c, nil
}

// apply hands the batch to Pebble, which panics where its WAL has failed in the
// meantime, and is beyond use: a stop like any other.
func (s *Store) apply(batch *pebble.Batch) (err error) {
	defer func() {
		p := recover()
		if _, bug := p.(runtime.Error); bug {
			panic(p)
		}
		if p != nil {
			err = fmt.Errorf("pebble: %v", p)
			if cause, ok := p.(error); ok {
				err = fmt.Errorf("pebble: %w", cause)
			}
		}
	}()
	return s.db.ApplyNoSyncWait(batch, pebble.Sync)
}

func (b *Batch) last() uint64 { return b.First + uint64(len(b.Events)) - 1 }

func (b *Batch) check(next uint64) error {
	if b.First != next {
		return fmt.Errorf("append: batch starts at %d, the log goes on at %d", b.First, next)
	}
	if len(b.Events) == 0 || len(b.Leaves) != len(b.Events) {
		return fmt.Errorf("append: %d events with %d leaves", len(b.Events), len(b.Leaves))
	}
	for i, e := range b.Events {
		if len(e) == 0 || len(e) > events.EventBytesMax {
			return fmt.Errorf("append: event %d has %d bytes, want 1 to %d", b.First+uint64(i), len(e), events.EventBytesMax)
		}
	}
	last := b.First - 1
	for _, p := range b.Payloads {
		if p.Seq <= last || p.Seq > b.last() {
			return fmt.Errorf("append: payload of %d is out of order or outside %d–%d", p.Seq, b.First, b.last())
		}
		last = p.Seq
	}
	return nil
}

// size is close to the encoded batch's, so that it is allocated once.
func (b *Batch) size() int {
	n := 64 + len(b.Leaves)*2*len(events.Hash{}) // some two hashes a leaf
	for _, e := range b.Events {
		n += len(e) + 16
	}
	for _, p := range b.Payloads {
		n += len(p.Record) + 16
	}
	return n
}

// write fills batch with b in ascending order of keys and grows the tree.
func (s *Store) write(batch *pebble.Batch, b Batch) error {
	for i, e := range b.Events {
		if err := batch.Set(s.key(eventKeys, b.First+uint64(i)), e, nil); err != nil {
			return err
		}
	}
	if err := s.writeHashes(batch, b.Leaves); err != nil {
		return err
	}
	for _, owner := range slices.Sorted(maps.Keys(b.Keys)) {
		if err := batch.Set(nameKey(dataKeys, owner), b.Keys[owner], nil); err != nil {
			return err
		}
	}
	for _, p := range b.Payloads {
		if err := batch.Set(s.key(payloadKeys, p.Seq), p.Record, nil); err != nil {
			return err
		}
	}
	return nil
}

// writeHashes grows the tree by leaves and fills batch with what they complete,
// in runs: a hash of its own would cost the memtable and every table as much as
// an event does.
func (s *Store) writeHashes(batch *pebble.Batch, leaves []events.Hash) error {
	index := storedCount(s.edge.size)
	s.run = s.run[:0]
	for _, leaf := range leaves {
		for _, h := range s.edge.add(leaf) {
			s.run = append(s.run, h[:]...)
		}
	}
	for run := range slices.Chunk(s.run, hashRunMax*len(events.Hash{})) {
		if err := batch.Set(s.key(hashKeys, index), run, nil); err != nil {
			return err
		}
		index += hashRunMax
	}
	return nil
}

// key is numKey in a buffer of the writer's.
func (s *Store) key(prefix byte, n uint64) []byte {
	s.buf = binary.BigEndian.AppendUint64(append(s.buf[:0], prefix), n)
	return s.buf
}

// Wait returns when the append and every one before it are on disk, and moves
// the durable position; only then may anything about its events be told.
// An error means that it is not known whether they are, and has stopped the
// store. Later calls return the same.
func (c *Commit) Wait() error {
	c.store.waitMu.Lock()
	defer c.store.waitMu.Unlock()
	return c.settle()
}

func (c *Commit) settle() error {
	if c.done {
		return c.err
	}
	if c.before != nil {
		c.before.settle() // its failure stops the store, and so fails this one
		c.before = nil
	}
	c.done = true
	c.err = c.store.confirm(c)
	return c.err
}

func (s *Store) confirm(c *Commit) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := c.batch.SyncWait(); err != nil {
		return s.fault.set(fmt.Errorf("sync up to event %d: %w", c.end.size, err))
	}
	if err := s.Check(); err != nil {
		return err
	}
	s.head.Store(&c.end)
	return c.batch.Close()
}

package sim

import (
	"bytes"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// memLog is a log on a disk that can crash: batches are appended whole, become
// durable in order, and those that are not yet durable may be lost, the last
// first. Readers see what is durable, as of a store.
type memLog struct {
	origin   string
	pending  []store.Batch
	events   [][]byte
	leaves   []events.Hash
	payloads map[uint64][]byte
	keys     map[string][]byte
	hashes   []tlog.Hash // of the tree

	purged  uint64 // event up to which every erasure is carried out
	snapSeq uint64
	snap    []byte
}

func newMemLog(origin string) *memLog {
	return &memLog{origin: origin, payloads: map[uint64][]byte{}, keys: map[string][]byte{}}
}

func (l *memLog) Origin() string  { return l.origin }
func (l *memLog) Durable() uint64 { return uint64(len(l.events)) }

func (l *memLog) Event(seq uint64) ([]byte, error) {
	if seq == 0 || seq > l.Durable() {
		return nil, store.ErrNotFound
	}
	return l.events[seq-1], nil
}

func (l *memLog) Events(from, to uint64, fn func(uint64, []byte) error) error {
	for seq := from; seq <= to; seq++ {
		b, err := l.Event(seq)
		if err != nil {
			return fmt.Errorf("event %d: %w", seq, err)
		}
		if err := fn(seq, b); err != nil {
			return err
		}
	}
	return nil
}

func (l *memLog) Payload(seq uint64) ([]byte, bool, error) {
	b, ok := l.payloads[seq]
	return b, ok, nil
}

func (l *memLog) DataKey(owner string) ([]byte, bool, error) {
	b, ok := l.keys[owner]
	return b, ok, nil
}

func (l *memLog) Parts() ([]store.Part, error) {
	if l.snap == nil {
		return nil, nil
	}
	return []store.Part{{Seq: l.snapSeq, Size: int64(len(l.snap))}}, nil
}

func (l *memLog) ReadPart(_ store.Part, read func(io.Reader) error) error {
	return read(bytes.NewReader(l.snap))
}

// append takes a batch as the store does: it must follow what is there, and it
// is not durable yet.
func (l *memLog) append(b store.Batch) error {
	next := l.Durable() + 1
	for _, p := range l.pending {
		next += uint64(len(p.Events))
	}
	if b.First != next || len(b.Events) == 0 || len(b.Events) != len(b.Leaves) {
		return fmt.Errorf("a batch of %d events and %d leaves from %d, want from %d", len(b.Events), len(b.Leaves), b.First, next)
	}
	for _, p := range b.Payloads {
		if p.Seq < b.First || p.Seq >= b.First+uint64(len(b.Events)) {
			return fmt.Errorf("payload %d outside its batch", p.Seq)
		}
	}
	l.pending = append(l.pending, b)
	return nil
}

// sync makes the first n pending batches durable.
func (l *memLog) sync(n int) {
	for _, b := range l.pending[:n] {
		for i, event := range b.Events {
			seq := b.First + uint64(i)
			l.events, l.leaves = append(l.events, event), append(l.leaves, b.Leaves[i])
			hashes, err := tlog.StoredHashesForRecordHash(int64(seq-1), tlog.Hash(b.Leaves[i]), l.ReadHashes())
			if err != nil {
				panic(err) // the tree is in memory and whole
			}
			l.hashes = append(l.hashes, hashes...)
		}
		for _, p := range b.Payloads {
			l.payloads[p.Seq] = p.Record
		}
		for owner, key := range b.Keys {
			l.keys[owner] = key
		}
	}
	l.pending = l.pending[n:]
}

// crash keeps the first n batches that were not durable and loses the rest.
func (l *memLog) crash(n int) {
	l.sync(min(n, len(l.pending)))
	l.pending = nil
}

// ReadHashes reads the stored tree hashes.
func (l *memLog) ReadHashes() tlog.HashReaderFunc {
	return func(indexes []int64) ([]tlog.Hash, error) {
		list := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			if index >= int64(len(l.hashes)) {
				return nil, store.ErrNotFound
			}
			list[i] = l.hashes[index]
		}
		return list, nil
	}
}

func (l *memLog) root() (events.Hash, error) {
	h, err := tlog.TreeHash(int64(len(l.events)), l.ReadHashes())
	return events.Hash(h), err
}

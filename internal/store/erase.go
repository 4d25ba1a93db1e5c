package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Erasure is what is taken out of a log and written anew beside it, at once.
type Erasure struct {
	Payloads []uint64          // records to be deleted
	Keys     []string          // data keys to be deleted
	Records  []Payload         // written in the place of those that are there
	NewKeys  map[string][]byte // wrapped data keys
}

// Erase does that, synced, and notes in the same batch what Purge has then to
// take off the disk: until it has, the bytes are there. An error has stopped the
// store. Erase and Purge are called by one goroutine at a time.
func (s *Store) Erase(e Erasure) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		return ErrReadOnly
	}
	b := s.db.NewBatch()
	defer b.Close()
	spans, err := s.purging()
	note := func(key []byte, fault error) {
		spans, err = append(spans, span{key, append(slices.Clone(key), 0)}), errors.Join(err, fault)
	}
	for _, name := range slices.Sorted(maps.Keys(e.NewKeys)) {
		key := nameKey(dataKeys, name)
		note(key, b.Set(key, e.NewKeys[name], nil))
	}
	for _, name := range e.Keys {
		key := nameKey(dataKeys, name)
		note(key, b.Delete(key, nil))
	}
	for _, seq := range e.Payloads {
		key := numKey(payloadKeys, seq)
		note(key, b.Delete(key, nil))
	}
	for _, p := range e.Records {
		key := numKey(payloadKeys, p.Seq)
		note(key, b.Set(key, p.Record, nil))
	}
	if err == nil && !b.Empty() {
		err = b.Set(nameKey(metaKeys, purgingName), encodeSpans(join(spans)), nil)
	}
	if err == nil {
		err = s.applySynced(b)
	}
	if err != nil {
		return s.fault.set(fmt.Errorf("erase: %w", err))
	}
	return s.Err()
}

// applySynced is apply that waits.
func (s *Store) applySynced(b *pebble.Batch) error {
	if b.Empty() {
		return nil
	}
	if err := s.apply(b); err != nil {
		return err
	}
	return b.SyncWait()
}

const (
	purgePatience = 20 * time.Second
	purgePoll     = 20 * time.Millisecond
)

// ErrPending says that files which hold what was erased are still in use.
var ErrPending = errors.New("files that hold erased bytes are still in use")

// Purge takes the bytes of all that Erase has deleted or written over out of
// tables and write-ahead log, and then notes mark, which Purged returns. ErrPending
// says that they are out of the log but not yet off the disk: somebody reads an
// old table. The next Purge, in this life of the store or another, goes on.
func (s *Store) Purge(mark uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		return ErrReadOnly
	}
	err := s.purge()
	if errors.Is(err, ErrPending) {
		return err
	}
	if err == nil {
		b := s.db.NewBatch()
		defer b.Close()
		err = errors.Join(
			b.Set(nameKey(metaKeys, purgedName), binary.BigEndian.AppendUint64(nil, mark), nil),
			b.Delete(nameKey(metaKeys, purgingName), nil))
		if err == nil {
			err = s.applySynced(b)
		}
	}
	if err != nil {
		return s.fault.set(fmt.Errorf("purge: %w", err))
	}
	return s.Err()
}

const (
	purgedName  = "purged"
	purgingName = "purging"
)

// Purged is the mark of the last Purge that came to its end, 0 before any.
func (s *Store) Purged() (uint64, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	b, ok, err := s.optional(nameKey(metaKeys, purgedName))
	if err != nil || !ok {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: the mark of the last purge has %d bytes", ErrCorrupt, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// purge writes every table anew that overlaps what was erased, once without it,
// and leaves no old write-ahead log.
func (s *Store) purge() error {
	if err := s.freshLogs(); err != nil {
		return err
	}
	spans, err := s.purging()
	if err != nil {
		return err
	}
	for _, sp := range spans {
		if err := s.db.Compact(context.Background(), sp.lo, sp.hi, false); err != nil {
			return err
		}
	}
	for end := time.Now().Add(purgePatience); ; time.Sleep(purgePoll) {
		m := s.db.Metrics()
		if m.Table.ObsoleteCount == 0 && m.Table.ZombieCount == 0 {
			return errors.Join(syncDir(s.fs, dbDir(s.fs, s.dir)), s.Err()) // a removed file is back otherwise, once power fails
		}
		if time.Now().After(end) {
			return ErrPending
		}
	}
}

// span is a stretch of keys that lie in tables with what was erased, from lo to
// before hi.
type span struct{ lo, hi []byte }

const spansMax = 1024

// join puts spans in order, each key in one; too many become one for each kind of
// key, from the first to the last.
func join(spans []span) (list []span) {
	slices.SortFunc(spans, func(a, b span) int { return bytes.Compare(a.lo, b.lo) })
	for _, sp := range spans {
		n := len(list)
		if n > 0 && (bytes.Compare(sp.lo, list[n-1].hi) <= 0 || len(spans) > spansMax && sp.lo[0] == list[n-1].lo[0]) {
			if bytes.Compare(sp.hi, list[n-1].hi) > 0 {
				list[n-1].hi = sp.hi
			}
			continue
		}
		list = append(list, sp)
	}
	return list
}

func encodeSpans(spans []span) (b []byte) {
	for _, sp := range spans {
		b = append(binary.AppendUvarint(b, uint64(len(sp.lo))), sp.lo...)
		b = append(binary.AppendUvarint(b, uint64(len(sp.hi))), sp.hi...)
	}
	return b
}

// purging is what no Purge has come to the end of.
func (s *Store) purging() (spans []span, err error) {
	b, _, err := s.optional(nameKey(metaKeys, purgingName))
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n == 0 || n > uint64(len(b)-size) {
			return nil, fmt.Errorf("%w: the list of what is to be purged", ErrCorrupt)
		}
		keys, b = append(keys, b[size:size+int(n)]), b[size+int(n):]
	}
	if len(keys)%2 != 0 {
		return nil, fmt.Errorf("%w: the list of what is to be purged", ErrCorrupt)
	}
	for pair := range slices.Chunk(keys, 2) {
		spans = append(spans, span{pair[0], pair[1]})
	}
	return spans, nil
}

// freshLogs flushes what is in memory, and goes on with new write-ahead logs
// until none of those is left that were there: Pebble keeps some, to write over.
func (s *Store) freshLogs() error {
	fresh := s.fs.(orderedFS).fresh
	fresh.Add(1)
	defer fresh.Add(-1)
	old, err := s.logs()
	if err != nil {
		return err
	}
	for end := time.Now().Add(purgePatience); ; {
		if err := s.db.Flush(); err != nil {
			return err
		}
		now, err := s.logs()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(old, func(name string) bool { return slices.Contains(now, name) }) {
			return nil
		}
		if time.Now().After(end) {
			return ErrPending
		}
	}
}

func (s *Store) logs() ([]string, error) {
	names, err := s.fs.List(dbDir(s.fs, s.dir))
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".log") }), err
}

// DataKeys lists the names of the wrapped data keys.
func (s *Store) DataKeys() (names []string, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{dataKeys}, UpperBound: []byte{dataKeys + 1}})
	if err != nil {
		return nil, damage(err)
	}
	for it.First(); it.Valid(); it.Next() {
		names = append(names, string(it.Key()[1:]))
	}
	return names, damage(it.Close())
}

// ReuseForWrite implements vfs.FS: while bytes are purged, no old file is
// written over, since what is not reached of it would stay.
func (o orderedFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if o.fresh.Load() == 0 {
		return o.FS.ReuseForWrite(old, name, category)
	}
	f, err := o.FS.Create(name, category)
	if err == nil {
		err = o.FS.Remove(old)
	}
	return f, err
}

func ordered(sys vfs.FS) orderedFS { return orderedFS{sys, new(atomic.Int32), new(pace)} }

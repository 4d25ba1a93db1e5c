package store

import (
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

// Erase does that, synced. Until Purge the bytes are still on disk. An error has
// stopped the store.
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
	var err error
	for _, name := range slices.Sorted(maps.Keys(e.NewKeys)) {
		err = errors.Join(err, b.Set(nameKey(dataKeys, name), e.NewKeys[name], nil))
	}
	for _, name := range e.Keys {
		err = errors.Join(err, b.Delete(nameKey(dataKeys, name), nil))
	}
	for _, seq := range e.Payloads {
		err = errors.Join(err, b.Delete(numKey(payloadKeys, seq), nil))
	}
	for _, p := range e.Records {
		err = errors.Join(err, b.Set(numKey(payloadKeys, p.Seq), p.Record, nil))
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

// Purge takes the bytes that Erase has deleted out of tables and write-ahead log,
// and then notes mark, which Purged returns. ErrPending says that they are out
// of the log but not yet off the disk: somebody reads an old table.
func (s *Store) Purge(e Erasure, mark uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		return ErrReadOnly
	}
	err := s.purge(e)
	if errors.Is(err, ErrPending) {
		return err
	}
	if err == nil {
		b := s.db.NewBatch()
		defer b.Close()
		if err = b.Set(nameKey(metaKeys, purgedName), binary.BigEndian.AppendUint64(nil, mark), nil); err == nil {
			err = s.applySynced(b)
		}
	}
	if err != nil {
		return s.fault.set(fmt.Errorf("purge: %w", err))
	}
	return s.Err()
}

const purgedName = "purged"

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
func (s *Store) purge(e Erasure) error {
	if err := s.freshLogs(); err != nil {
		return err
	}
	var keys [][]byte
	for _, seq := range e.Payloads {
		keys = append(keys, numKey(payloadKeys, seq))
	}
	for _, p := range e.Records {
		keys = append(keys, numKey(payloadKeys, p.Seq))
	}
	for _, name := range e.Keys {
		keys = append(keys, nameKey(dataKeys, name))
	}
	for _, key := range keys {
		if err := s.db.Compact(context.Background(), key, append(slices.Clone(key), 0), false); err != nil {
			return err
		}
	}
	for end := time.Now().Add(purgePatience); ; time.Sleep(purgePoll) {
		m := s.db.Metrics()
		if m.Table.ObsoleteCount == 0 && m.Table.ZombieCount == 0 {
			return s.Err()
		}
		if time.Now().After(end) {
			return ErrPending
		}
	}
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

func ordered(sys vfs.FS) orderedFS { return orderedFS{sys, new(atomic.Int32)} }

package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

const (
	snapshotChunkBytes = 256 << 10 // keeps a commit of the log from waiting behind it
	snapshotTrailer    = 0xffffffff
)

func snapshotKey(seq uint64, chunk uint32) []byte {
	return binary.BigEndian.AppendUint32(numKey(snapshotKeys, seq), chunk)
}

// PutSnapshot keeps blob as the state folded from events 1–seq, which must be
// durable, and drops older ones. It is not synced: a crash may lose or tear it,
// which costs a fold from the start and nothing else.
func (s *Store) PutSnapshot(seq uint64, blob []byte) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		return ErrReadOnly
	}
	if seq > s.Durable() {
		return fmt.Errorf("snapshot at %d: %w, which ends at %d", seq, ErrNotFound, s.Durable())
	}
	sum := sha256.Sum256(blob)
	trailer := append(binary.BigEndian.AppendUint64(nil, uint64(len(blob))), sum[:]...)
	var err error
	for chunk := uint32(0); len(blob) > 0 && err == nil; chunk++ {
		n := min(len(blob), snapshotChunkBytes)
		err = s.db.Set(snapshotKey(seq, chunk), blob[:n], pebble.NoSync)
		blob = blob[n:]
	}
	b := s.db.NewBatch()
	err = errors.Join(err,
		b.DeleteRange([]byte{snapshotKeys}, snapshotKey(seq, 0), nil),
		b.Set(snapshotKey(seq, snapshotTrailer), trailer, nil),
		b.Commit(pebble.NoSync))
	if err != nil {
		return s.fault.set(fmt.Errorf("snapshot at %d: %w", seq, err))
	}
	return s.Err()
}

// Snapshot returns the newest whole snapshot and its seq, or ok false.
func (s *Store) Snapshot() (seq uint64, blob []byte, ok bool, err error) {
	if err := s.enter(); err != nil {
		return 0, nil, false, err
	}
	defer s.leave()
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{snapshotKeys}, UpperBound: snapshotKey(s.Durable()+1, 0),
	})
	if err != nil {
		return 0, nil, false, damage(err)
	}
	defer it.Close()
	for it.Last(); it.Valid(); it.SeekLT(snapshotKey(seq, 0)) {
		if len(it.Key()) != 13 {
			return 0, nil, false, fmt.Errorf("%w: snapshot key %x", ErrCorrupt, it.Key())
		}
		seq = binary.BigEndian.Uint64(it.Key()[1:])
		if blob, ok, err = readSnapshot(it, seq); ok || err != nil {
			return seq, blob, ok, err
		}
	}
	return 0, nil, false, damage(it.Error())
}

// readSnapshot gathers the snapshot at seq; one that is torn is not ok.
func readSnapshot(it *pebble.Iterator, seq uint64) (blob []byte, ok bool, err error) {
	next := uint32(0)
	for it.SeekGE(snapshotKey(seq, 0)); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, false, damage(err)
		}
		if bytes.Equal(it.Key(), snapshotKey(seq, snapshotTrailer)) {
			sum := sha256.Sum256(blob)
			want := append(binary.BigEndian.AppendUint64(nil, uint64(len(blob))), sum[:]...)
			return blob, bytes.Equal(v, want), nil
		}
		if !bytes.Equal(it.Key(), snapshotKey(seq, next)) {
			return nil, false, nil
		}
		blob = append(blob, v...)
		next++
	}
	return nil, false, damage(it.Error())
}

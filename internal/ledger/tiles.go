package ledger

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Hashes reads stored hashes of the durable tree, by tlog.StoredHashIndex. Safe
// for concurrent use.
func (l *Ledger) Hashes(indexes []int64) ([]tlog.Hash, error) { return l.store.ReadHashes(indexes) }

// OpenPayload is the payload beside a durable event that is part of every
// export, with the salt of its commitment; ok is false where there is none, or
// a sealed one. Safe for concurrent use.
func (l *Ledger) OpenPayload(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
	record, ok, err := l.store.Payload(seq)
	if err != nil || !ok || len(record) == 0 || record[0] != payloadOpen {
		return salt, nil, false, err
	}
	if salt, b, err = l.sealer.open(seq, record); err != nil {
		return salt, nil, false, fmt.Errorf("payload %d: %w", seq, err)
	}
	return salt, b, true, nil
}

// Registered is who id is, by its last key; ok is false for nobody. Safe for
// concurrent use; what it knows is durable.
func (l *Ledger) Registered(id string) (Identity, bool) {
	i := l.registered(id)
	return i, i.ID != ""
}

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// OwnKeys are the ledger's own keys as its events say, of each kind the first
// first; of the seal keys it is their number.
type OwnKeys struct {
	Checkpoint, Permit []projection.SigningKey
	Seal               uint64
}

var aboutKeys = []byte(`"type":"key.`)

// ReadOwnKeys reads the ledger's own keys from the log st of the data directory
// dir without folding it: from the state that is written down, where there is one,
// and the events about keys behind that.
func ReadOwnKeys(dir string, st *store.Store) (*OwnKeys, error) {
	k := &OwnKeys{Seal: 1}
	from := uint64(1)
	if state, err := StoredState(dir, st); err == nil && state != nil {
		k.Checkpoint, k.Permit, k.Seal, from = state.CheckpointKeys(), state.PermitKeys(), state.SealNumber(), state.Seq+1
	}
	err := st.Events(from, st.Durable(), func(seq uint64, b []byte) error {
		if seq > 1 && !bytes.Contains(b, aboutKeys) { // parsing every event would take far longer
			return nil
		}
		e, err := events.Parse(b)
		if err != nil {
			return fmt.Errorf("event %d: %w", seq, err)
		}
		return k.take(seq, e.Body)
	})
	if err == nil && len(k.Checkpoint) == 0 {
		err = errors.New("event 1 names no key")
	}
	return k, err
}

func (k *OwnKeys) take(seq uint64, b events.Body) error {
	list := map[string]*[]projection.SigningKey{events.KeyCheckpoint: &k.Checkpoint, events.KeyPermit: &k.Permit}
	switch b := b.(type) {
	case *events.LedgerCreated:
		k.Checkpoint = []projection.SigningKey{{Number: 1, Public: b.CheckpointKey, From: 1}}
		k.Permit = []projection.SigningKey{{Number: 1, Public: b.PermitKey, From: 1}}
	case *events.KeyRotated:
		if keys := list[b.Key]; keys != nil {
			*keys = append((*keys)[:len(*keys):len(*keys)], projection.SigningKey{Number: b.Number, Public: b.PublicKey, From: seq})
		} else {
			k.Seal = b.Number
		}
	case *events.KeyRetired:
		keys := list[b.Key]
		if keys == nil || b.Number == 0 || b.Number > uint64(len(*keys)) {
			return fmt.Errorf("event %d retires no key", seq)
		}
		*keys = append([]projection.SigningKey(nil), *keys...)
		(*keys)[b.Number-1].Until = seq
	}
	return nil
}

// blameKeys names the verifier key file that is missing or not the log's, where a
// start failed for what may come of that.
func blameKeys(dir string, cause error) error {
	if !errors.Is(cause, store.ErrNoAnchor) && !errors.Is(cause, ErrKey) {
		return cause
	}
	st, err := store.OpenReadOnly(dir, store.Options{})
	if err != nil {
		return cause
	}
	defer st.Close()
	own, err := ReadOwnKeys(dir, st)
	if err != nil {
		return cause
	}
	for _, k := range own.Checkpoint {
		name := keyFile(events.KeyCheckpoint, k.Number, "vkey")
		switch public, err := readKeyText(filepath.Join(dir, "keys"), name); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("keys/%s, the verifier key that event %d brings: %w", name, k.From, fs.ErrNotExist)
		case err == nil && public != k.Public:
			return fmt.Errorf("keys/%s is %w: event %d brings another", name, ErrKey, k.From)
		}
	}
	return cause
}

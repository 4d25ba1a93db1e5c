package ledger

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// Old is a log that is not gone on with, folded to its end, for what is carried
// over into the epoch after it.
type Old struct {
	State *projection.State

	sealed bool // sealed payloads open
	l      *Ledger
}

// ErrLocked says that a value is sealed and its key not at hand.
var ErrLocked = errors.New("sealed, and keys/seal.key is not here")

// ReadOld folds the log st in dir. Without the key of its sealed payloads it
// folds what is open: everything but values.
func ReadOld(dir string, st *store.Store) (*Old, error) {
	payloads, err := OpenPayloads(dir, st)
	o := &Old{State: projection.New(), sealed: err == nil}
	if errors.Is(err, fs.ErrNotExist) {
		var sealer *sealer
		sealer, err = newSealer(st.Origin(), nil, st.DataKey)
		payloads = &Payloads{st, sealer}
	}
	if err != nil {
		return nil, err
	}
	o.l = &Ledger{reads: st, payloads: payloads}
	err = st.Events(1, st.Durable(), func(seq uint64, b []byte) error {
		_, err := foldOne(o.State, seq, b, o.l.openPayload)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("fold %s: %w", dir, err)
	}
	return o, nil
}

// Value is a live record's value, compared with what its event commits to.
func (o *Old) Value(r *projection.Record) ([]byte, error) {
	switch {
	case r.Mandatory != nil:
		return r.Mandatory, nil
	case !o.sealed:
		return nil, ErrLocked
	}
	return o.l.value(r)
}

package ledger

import "github.com/ledgerd/ledgerd/internal/events"

// Ahead is how many batches are judged while one before them is not answered.
const Ahead = inFlightMax + 1

// SetBehindEvents has the state written behind after every n events, until undo.
func SetBehindEvents(n uint64) (undo func()) {
	old := behindEvents
	behindEvents = n
	return func() { behindEvents = old }
}

type opener = func(seq uint64, record []byte) ([events.SaltLen]byte, []byte, error)

// Opener opens payload records that are not in the store.
func Opener(p *Payloads) opener { return p.sealer.open }

// OpenerWith opens payload records with data keys from elsewhere.
func OpenerWith(keys, origin string, fetch func(string) ([]byte, bool, error)) (opener, error) {
	key, err := readSealKeys(keys)
	if err != nil {
		return nil, err
	}
	s, err := newSealer(origin, key, fetch)
	if err != nil {
		return nil, err
	}
	return s.open, nil
}

// SetErasing says how many erasures are judged and not carried out.
func (l *Ledger) SetErasing(n int64) { l.erasing.Store(n) }

// SetEraseStretch has an owner's payloads erased so many bytes at a time, until
// undo.
func SetEraseStretch(n int) (undo func()) {
	old := eraseStretch
	eraseStretch = n
	return func() { eraseStretch = old }
}

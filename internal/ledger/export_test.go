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

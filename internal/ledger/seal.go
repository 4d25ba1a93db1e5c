package ledger

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// A payload record beside the log is one kind byte and then
//
//	open:   salt[32] ‖ bytes
//	sealed: u8 len(name) ‖ name ‖ nonce[12] ‖ AES-256-GCM(salt[32] ‖ bytes)
//
// under the data key of that name, the owner's (see dataKeyName), with origin and seq as additional data, so that a
// record moved to another place does not open. A data key is random, and lies
// in the store wrapped by the seal key: nonce[12] ‖ AES-256-GCM(key), with
// origin and name as additional data.
const (
	payloadOpen   = 0
	payloadSealed = 1
)

// ErrPayload says that a payload record does not open: it was changed or moved,
// or its owner's data key is gone.
var ErrPayload = errors.New("payload does not open")

// Payloads opens the payloads that lie beside a log. Safe for concurrent use.
type Payloads struct {
	log    Log
	sealer *sealer
}

// OpenPayloads prepares to open the payloads of the log st in the data
// directory dir, with the seal keys that are at hand, and those that were: beside
// a writer st shows a moment, and a rotation may have come to its end since.
func OpenPayloads(dir string, st *store.Store, had ...SealKeys) (*Payloads, error) {
	keys, err := sealKeysOf(dir, had)
	if err != nil {
		return nil, err
	}
	sealer, err := newSealer(st.Origin(), keys, st.DataKey)
	if err != nil {
		return nil, err
	}
	return &Payloads{st, sealer}, nil
}

// Open returns the payload beside a durable event and the salt of its
// commitment, ok false where there is none. It compares it with nothing: only
// the event says whether it is the right one. One that does not open is
// ErrPayload.
func (p *Payloads) Open(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
	record, ok, err := p.log.Payload(seq)
	if err != nil || !ok {
		return salt, nil, false, err
	}
	if salt, b, err = p.sealer.open(seq, record); err != nil {
		return salt, nil, false, fmt.Errorf("payload %d: %w", seq, err)
	}
	return salt, b, true, nil
}

// Walk begins to open the payloads of events from to to: at is Open for ascending
// seqs, in a fraction of the time, and end ends it. The log must be a store.
func (p *Payloads) Walk(from, to uint64) (at func(seq uint64) ([events.SaltLen]byte, []byte, bool, error), end func() error, err error) {
	walk, err := p.log.(*store.Store).Payloads(from, to)
	if err != nil {
		return nil, nil, err
	}
	at = func(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
		record, ok, err := walk.At(seq)
		if err != nil || !ok {
			return salt, nil, false, err
		}
		if salt, b, err = p.sealer.open(seq, record); err != nil {
			return salt, nil, false, fmt.Errorf("payload %d: %w", seq, err)
		}
		return salt, b, true, nil
	}
	return at, func() error { _, err := walk.End(); return err }, nil
}

// sealer seals and opens payloads. Only the writer seals; anyone may open.
type sealer struct {
	mu     sync.Mutex // keys
	origin string
	wrap   cipher.AEAD            // what data keys are wrapped with from here on
	wraps  map[uint64]cipher.AEAD // by number, the seal keys that open some, until a rotation has come to its end
	keys   map[string]cipher.AEAD
	fetch  func(name string) ([]byte, bool, error) // a wrapped data key from the store
	random io.Reader

	current map[string]string // by owner, the name of its data key where that is not its own

	scratch [events.OriginBytesMax + 9]byte // of the writer: what is read from random, or says a place
}

// newSealer takes the seal keys at hand, and wraps with the last of them.
func newSealer(origin string, sealKeys []sealKey, fetch func(string) ([]byte, bool, error)) (*sealer, error) {
	s := &sealer{origin: origin, wraps: map[uint64]cipher.AEAD{}, keys: map[string]cipher.AEAD{}, current: map[string]string{}, fetch: fetch, random: bufio.NewReaderSize(rand.Reader, 16<<10)}
	for _, k := range sealKeys {
		if err := s.use(k); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	if len(key) != 32 {
		return nil, fmt.Errorf("%d bytes, want 32", len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// salt returns fresh random bytes for one commitment.
func (s *sealer) salt() (salt [events.SaltLen]byte, err error) {
	err = s.fill(salt[:])
	return salt, err
}

// fill reads random bytes, at most as many as scratch has, by way of it: dst need
// not be on the heap then.
func (s *sealer) fill(dst []byte) error {
	b := s.scratch[:len(dst)]
	_, err := io.ReadFull(s.random, b)
	copy(dst, b)
	return err
}

func appendOpen(dst []byte, salt [events.SaltLen]byte, b []byte) []byte {
	return append(append(append(dst, payloadOpen), salt[:]...), b...)
}

// seal appends the payload record to dst. wrapped is the data key if it is new
// and must be stored with it.
func (s *sealer) seal(dst []byte, owner string, seq uint64, salt [events.SaltLen]byte, b []byte) (record, wrapped []byte, err error) {
	name := s.name(owner) // that the writer alone changes
	key, wrapped, err := s.dataKey(name)
	if err != nil {
		return dst, nil, err
	}
	dst = append(append(dst, payloadSealed, byte(len(name))), name...)
	dst, nonce, err := s.nonce(key, dst)
	if err != nil {
		return dst, nil, err
	}
	dst = slices.Grow(dst, len(salt)+len(b)+key.Overhead())
	plain := append(append(dst[len(dst):], salt[:]...), b...)
	place := binary.BigEndian.AppendUint64(append(append(s.scratch[:0], s.origin...), '\n'), seq)
	sealed := key.Seal(plain[:0], nonce, plain, place)
	return dst[:len(dst)+len(sealed)], wrapped, nil
}

// nonce appends a fresh nonce to dst and returns it as well.
func (s *sealer) nonce(key cipher.AEAD, dst []byte) (_, nonce []byte, err error) {
	n := len(dst)
	dst = append(dst, make([]byte, key.NonceSize())...)
	nonce = dst[n:]
	return dst, nonce, s.fill(nonce)
}

// dataKey returns the key of a name, made now if there is none yet; wrapped is
// then what must be stored.
func (s *sealer) dataKey(name string) (key cipher.AEAD, wrapped []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key, err = s.existing(name); key != nil || err != nil {
		return key, nil, err
	}
	return s.newKey(name, s.random)
}

// newKey makes the key of a name. The writer's chance is its own.
func (s *sealer) newKey(name string, random io.Reader) (key cipher.AEAD, wrapped []byte, err error) {
	raw := make([]byte, 32)
	if _, err = io.ReadFull(random, raw); err != nil {
		return nil, nil, err
	}
	if wrapped, err = encryptWith(random, s.wrap, raw, []byte(s.origin+"\n"+name)); err != nil {
		return nil, nil, err
	}
	if key, err = newAEAD(raw); err != nil {
		return nil, nil, err
	}
	s.keys[name] = key
	return key, wrapped, nil
}

// check reports whether an owner's key, if there is one, opens.
func (s *sealer) check(owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.existing(s.name(owner))
	return err
}

// existing returns the key of a name, nil if there is none.
func (s *sealer) existing(name string) (cipher.AEAD, error) {
	if key := s.keys[name]; key != nil {
		return key, nil
	}
	stored, ok, err := s.fetch(name)
	if err != nil || !ok {
		return nil, err
	}
	raw, err := s.unwrap(name, stored)
	if err != nil {
		return nil, err
	}
	key, err := newAEAD(raw)
	if err == nil {
		s.keys[name] = key
	}
	return key, err
}

// open returns the salt and bytes of a payload record found at seq. Safe for
// concurrent use.
func (s *sealer) open(seq uint64, record []byte) (salt [events.SaltLen]byte, b []byte, err error) {
	if len(record) == 0 {
		return salt, nil, ErrPayload
	}
	plain := record[1:]
	switch record[0] {
	case payloadOpen:
	case payloadSealed:
		if plain, err = s.unseal(seq, plain); err != nil {
			return salt, nil, err
		}
	default:
		return salt, nil, ErrPayload
	}
	if len(plain) < len(salt) {
		return salt, nil, ErrPayload
	}
	copy(salt[:], plain)
	return salt, plain[len(salt):], nil
}

func (s *sealer) unseal(seq uint64, b []byte) ([]byte, error) {
	if len(b) < 1 || len(b) < 1+int(b[0]) {
		return nil, ErrPayload
	}
	owner := string(b[1 : 1+b[0]])
	s.mu.Lock()
	key, err := s.existing(owner)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, fmt.Errorf("data key of %s is missing: %w", owner, ErrPayload)
	}
	return decrypt(key, b[1+len(owner):], s.place(seq))
}

func (s *sealer) place(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte(s.origin+"\n"), seq)
}

func encryptWith(random io.Reader, key cipher.AEAD, plain, additional []byte) ([]byte, error) {
	nonce := make([]byte, key.NonceSize())
	if _, err := io.ReadFull(random, nonce); err != nil {
		return nil, err
	}
	return key.Seal(nonce, nonce, plain, additional), nil
}

func decrypt(key cipher.AEAD, b, additional []byte) ([]byte, error) {
	if len(b) < key.NonceSize() {
		return nil, ErrPayload
	}
	plain, err := key.Open(nil, b[:key.NonceSize()], b[key.NonceSize():], additional)
	if err != nil {
		return nil, ErrPayload
	}
	return plain, nil
}

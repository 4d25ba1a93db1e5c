package projection

import (
	"fmt"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// SigningKey is one of the ledger's own keys of a kind: in force from the event
// that brought it until the one that retires it.
type SigningKey struct {
	Number      uint64
	Public      string // verifier key
	From, Until uint64 // Until 0: still in force
}

// In reports whether the key signs a log of size events.
func (k *SigningKey) In(size uint64) bool {
	return k.From <= size && (k.Until == 0 || size < k.Until)
}

// CheckpointKeys and PermitKeys list the keys of a kind, the first first. They
// must not be changed.
func (s *State) CheckpointKeys() []SigningKey { return s.checkpointKeys }

// PermitKeys: see CheckpointKeys.
func (s *State) PermitKeys() []SigningKey { return s.permitKeys }

// SealNumber counts the seal keys.
func (s *State) SealNumber() uint64 { return s.sealNumber }

// Overlap returns the key of a kind that is to be retired, nil unless two are in
// force.
func (s *State) Overlap(kind string) *SigningKey {
	list := s.keyList(kind)
	if list == nil || len(*list) < 2 || (*list)[len(*list)-2].Until != 0 {
		return nil
	}
	return &(*list)[len(*list)-2]
}

// KeyNumber is the number of the newest key of a kind.
func (s *State) KeyNumber(kind string) uint64 {
	if list := s.keyList(kind); list != nil {
		return uint64(len(*list))
	}
	return s.sealNumber
}

func (s *State) keyList(kind string) *[]SigningKey {
	switch kind {
	case events.KeyCheckpoint:
		return &s.checkpointKeys
	case events.KeyPermit:
		return &s.permitKeys
	}
	return nil
}

// firstKeys takes the keys that event 1 names.
func (s *State) firstKeys(b *events.LedgerCreated) {
	s.checkpointKeys = []SigningKey{{Number: 1, Public: b.CheckpointKey, From: 1}}
	s.permitKeys = []SigningKey{{Number: 1, Public: b.PermitKey, From: 1}}
	s.sealNumber = 1
}

func (s *State) foldKey(seq uint64, b events.Body) error {
	if retired, ok := b.(*events.KeyRetired); ok {
		return s.retireKey(seq, retired)
	}
	return s.rotateKey(seq, b.(*events.KeyRotated))
}

func (s *State) rotateKey(seq uint64, b *events.KeyRotated) error {
	if b.Number != s.KeyNumber(b.Key)+1 || s.Overlap(b.Key) != nil {
		return fmt.Errorf("%w: no such key to come next", ErrInconsistent)
	}
	list := s.keyList(b.Key)
	if list == nil {
		if b.Key != events.KeySeal || b.PublicKey != "" {
			return fmt.Errorf("%w: no such key", ErrInconsistent)
		}
		s.sealNumber = b.Number
		return nil
	}
	name := s.Origin
	if b.Key == events.KeyPermit {
		name += "/permit"
	}
	used := slices.ContainsFunc(*list, func(k SigningKey) bool { return k.Public == b.PublicKey })
	if used || !events.ValidVerifierKey(b.PublicKey, name) {
		return fmt.Errorf("%w: not a new verifier key called %s", ErrInconsistent, name)
	}
	*list = append(slices.Clone(*list), SigningKey{Number: b.Number, Public: b.PublicKey, From: seq})
	return nil
}

func (s *State) retireKey(seq uint64, b *events.KeyRetired) error {
	old := s.Overlap(b.Key)
	if old == nil || old.Number != b.Number || (b.Checkpoint != "") != (b.Key == events.KeyCheckpoint) {
		return fmt.Errorf("%w: no such key to retire", ErrInconsistent)
	}
	list := s.keyList(b.Key)
	*list = slices.Clone(*list)
	s.Overlap(b.Key).Until = seq
	return nil
}

func (w *snapshotWriter) ownKeys(s *State) {
	w.uint(s.sealNumber)
	for _, list := range [][]SigningKey{s.checkpointKeys, s.permitKeys} {
		w.uint(uint64(len(list)))
		for _, k := range list {
			w.text(k.Public)
			w.uint(k.From)
			w.uint(k.Until)
		}
	}
}

func (r *snapshotReader) ownKeys(s *State) {
	s.sealNumber = r.uint()
	for _, list := range []*[]SigningKey{&s.checkpointKeys, &s.permitKeys} {
		*list = nil
		n := r.uint()
		for i := uint64(1); i <= n && r.err == nil; i++ {
			*list = append(*list, SigningKey{Number: i, Public: r.text(), From: r.uint(), Until: r.uint()})
		}
	}
}

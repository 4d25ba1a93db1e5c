package ledger

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// The seal key wraps data keys. The next one lies in DIR/keys before the event
// that brings it; once that is durable every data key is wrapped anew, the old
// wrappings are purged, and then the old file is removed: as long as it is there,
// the next opening does the rest. Meanwhile a data key opens under any of them.

// sealKey is a seal key as it lies in DIR/keys.
type sealKey struct {
	number uint64 // 0: of a Stepper, which has one for ever
	key    []byte
}

// readSealKeys reads the seal keys of a directory, the newest last. None at all is
// fs.ErrNotExist.
func readSealKeys(dir string) (list []sealKey, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, ok := sealNumber(e.Name())
		if !ok {
			continue
		}
		text, err := readKeyText(dir, e.Name())
		if errors.Is(err, fs.ErrNotExist) { // a rotation has just come to its end
			continue
		}
		if err != nil {
			return nil, err
		}
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("keys/%s is not 64 hex digits", e.Name())
		}
		list = append(list, sealKey{number, key})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s, or seal-N.key where it was rotated: %w", filepath.Join(dir, keyFile(events.KeySeal, 1, "key")), fs.ErrNotExist)
	}
	slices.SortFunc(list, func(a, b sealKey) int { return int(a.number) - int(b.number) })
	return list, nil
}

// SealKeys are the seal keys that lay in a directory at some moment.
type SealKeys []sealKey

// ReadSealKeys reads the seal keys of the data directory dir as they are now, to be
// had when they are gone; what cannot be read is told by whoever needs it.
func ReadSealKeys(dir string) SealKeys {
	list, err := readSealKeys(filepath.Join(dir, "keys"))
	if err != nil {
		return nil
	}
	return list
}

// sealKeysOf are the seal keys of the data directory dir, and those there were.
func sealKeysOf(dir string, had []SealKeys) ([]sealKey, error) {
	list, err := readSealKeys(filepath.Join(dir, "keys"))
	for _, earlier := range had {
		for _, k := range earlier {
			if !slices.ContainsFunc(list, func(is sealKey) bool { return is.number == k.number }) {
				list, err = append(list, k), nil
			}
		}
	}
	slices.SortFunc(list, func(a, b sealKey) int { return int(a.number) - int(b.number) })
	return list, err
}

// sealNumber is the number of the seal key that a file of that name holds.
func sealNumber(name string) (uint64, bool) {
	text := strings.TrimSuffix(strings.TrimPrefix(name, "seal-"), ".key")
	number, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		number = 1
	}
	return number, keyFile(events.KeySeal, number, "key") == name
}

// use wraps with a key from here on, and opens with it too.
func (s *sealer) use(k sealKey) error {
	wrap, err := newAEAD(k.key)
	if err != nil {
		return fmt.Errorf("seal key: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrap, s.wraps[k.number] = wrap, wrap
	return nil
}

// drop opens nothing any more with the keys before one.
func (s *sealer) drop(before uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number := range s.wraps {
		if number < before {
			delete(s.wraps, number)
		}
	}
}

// unwrap opens the data key of a name with whichever seal key does.
func (s *sealer) unwrap(name string, wrapped []byte) ([]byte, error) {
	for _, wrap := range s.wraps {
		if raw, err := decrypt(wrap, wrapped, []byte(s.origin+"\n"+name)); err == nil {
			return raw, nil
		}
	}
	return nil, fmt.Errorf("data key of %s: %w", name, ErrPayload)
}

// wrapAnew is a stored data key under the seal key in force, nil where it is so
// already.
func (s *sealer) wrapAnew(name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wrapped, ok, err := s.fetch(name)
	if err != nil || !ok {
		return nil, err
	}
	place := []byte(s.origin + "\n" + name)
	if _, err := decrypt(s.wrap, wrapped, place); err == nil {
		return nil, nil
	}
	raw, err := s.unwrap(name, wrapped)
	if err != nil {
		return nil, err
	}
	return encryptWith(rand.Reader, s.wrap, raw, place)
}

// newSeal is the number of the seal key that j's outcome brings, 0 for none.
func (j *job) newSeal() uint64 {
	if j.outcome == nil || j.outcome.Retry != 0 || j.proposal.fresh == nil || j.proposal.fresh.kind != events.KeySeal {
		return 0
	}
	return j.proposal.fresh.number
}

// useSeal has the writer go over to a new seal key.
func (l *Ledger) useSeal(k *freshKey) error {
	if k == nil || k.kind != events.KeySeal {
		return nil
	}
	l.state.Unwritten()
	l.stateKey = stateKey(k.seal, l.origin)
	return l.sealer.use(sealKey{k.number, k.seal})
}

// sealWith chooses, of the seal keys at hand, the one that the log says is in
// force. The state was written down with the one numbered with, 0 for none.
func (l *Ledger) sealWith(keys []sealKey, with uint64) error {
	at := slices.IndexFunc(keys, func(k sealKey) bool { return k.number == 0 || k.number == l.state.SealNumber() })
	if at < 0 {
		return fmt.Errorf("keys/%s, the key in force: %w", keyFile(events.KeySeal, l.state.SealNumber(), "key"), fs.ErrNotExist)
	}
	l.stateKey = stateKey(keys[at].key, l.origin)
	l.behind.key = l.stateKey
	if with != 0 && with != keys[at].number {
		l.behind.parts = nil
		l.state.Unwritten()
	}
	return l.sealer.use(keys[at])
}

// finishSealing does what an earlier run of the program has left undone of a
// rotation, which has begun where there is another key than the one in force.
func (l *Ledger) finishSealing(keys []sealKey) error {
	number := l.state.SealNumber()
	if len(keys) == 1 {
		return nil
	}
	err := l.wrapAnew(number)
	if errors.Is(err, store.ErrPending) {
		l.log.Warn("the old seal key stays until old files are gone", "number", number, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	return l.keys.removeSeals(func(n uint64) bool { return n != number }) // a newer one got no event
}

// wrapAnew has every stored data key under the seal key in force, purges the old
// wrappings, and removes the keys before number, with which nothing opens then.
// It may be called again.
func (l *Ledger) wrapAnew(number uint64) error {
	names, err := l.store.DataKeys()
	if err != nil {
		return err
	}
	out := store.Erasure{NewKeys: map[string][]byte{}}
	for _, name := range names {
		wrapped, err := l.sealer.wrapAnew(name)
		switch {
		case errors.Is(err, ErrPayload): // it was damaged before: it stays as it is
			l.log.Error("a data key opens under no seal key", "name", name, "error", err)
		case err != nil:
			return err
		case wrapped != nil:
			out.NewKeys[name] = wrapped
		}
	}
	if err := l.store.Erase(out); err != nil {
		return err
	}
	if err := l.dropOldState(number); err != nil {
		return err
	}
	if err := l.store.Purge(l.erasedTo.Load()); err != nil {
		return err
	}
	l.sealer.drop(number)
	return l.keys.removeSeals(func(n uint64) bool { return n < number })
}

// dropOldState removes the state that was written down with a seal key before
// number: nobody can check it any more.
func (l *Ledger) dropOldState(number uint64) error {
	keys, err := readSealKeys(l.keys.dir)
	if err != nil {
		return err
	}
	b := &l.behind
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if k.number >= number && string(stateKey(k.key, l.origin)) == string(b.key) && len(b.parts) > 0 {
			return nil
		}
	}
	b.parts, b.key = nil, nil
	return l.store.DropParts(nil)
}

// removeSeals removes the files of seal keys that are needed no more.
func (r *ring) removeSeals(old func(number uint64) bool) error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n, ok := sealNumber(e.Name()); ok && old(n) {
			if err := r.remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return syncDir(r.dir)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

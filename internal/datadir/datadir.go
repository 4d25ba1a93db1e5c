// Package datadir shows a ledger's data directory as an audit.Source, to be
// verified, exported or replayed: beside a writer at work or without one,
// without a trace on disk. It opens payloads by itself, from the form that
// docs/FORMAT.md gives, and shares no code with the writer that sealed them.
//
// First call: Open.
package datadir

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// Dir is an open data directory. Safe for concurrent use.
type Dir struct {
	Store *store.Store

	dir    string
	anchor []byte
	seals  []cipher.AEAD // the seal keys in DIR/keys; none: what is sealed stays closed
	mu     sync.Mutex
	polls  int                    // made of an erasure under way
	keys   map[string]cipher.AEAD // data keys by owner
}

// Open opens the log in dir as it is at this moment. Without an anchor, or
// without the key that opens sealed payloads, it shows the rest.
func Open(dir string) (*Dir, error) {
	d := &Dir{dir: dir, keys: map[string]cipher.AEAD{}}
	// The anchor comes first: the log only grows, so what is opened after it
	// must reach it.
	var err error
	if d.anchor, err = readSmall(filepath.Join(dir, "anchor")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	// So do the seal keys, and they come again after it: what the log at that
	// moment is sealed with is there before it or after it, also while a rotation
	// comes to its end.
	before, err := sealKeys(filepath.Join(dir, "keys"))
	if err != nil {
		return nil, err
	}
	if d.Store, err = store.OpenReadOnly(dir, store.Options{}); err != nil {
		return nil, err
	}
	after, err := sealKeys(filepath.Join(dir, "keys"))
	if err != nil {
		return nil, errors.Join(err, d.Store.Close())
	}
	maps.Copy(before, after)
	d.seals = slices.Collect(maps.Values(before))
	return d, nil
}

// Damaged is the report on a log that Open found too damaged to open; nil if
// err is no such finding, and nothing is known of the log.
func Damaged(err error) *audit.Report {
	if !errors.Is(err, store.ErrCorrupt) {
		return nil
	}
	r := &audit.Report{
		KeySource:    "none",
		Integrity:    audit.Verdict{Checks: []audit.Check{{Name: "store", Status: audit.Fail, Open: "the store does not open, so that no event was looked at"}}},
		Completeness: audit.Verdict{Checks: []audit.Check{{Name: "remembered", Status: audit.NotRun, Open: "nothing could be read"}}},
		Semantics:    audit.Verdict{Checks: []audit.Check{{Name: "replay", Status: audit.NotRun, Open: "nothing could be read"}}},
		Faults:       []audit.Fault{{Check: "store", Expected: "a store that opens", Found: err.Error()}},
	}
	r.Settle()
	return r
}

// Close releases the log.
func (d *Dir) Close() error { return d.Store.Close() }

// Source is the log with everything beside it.
func (d *Dir) Source() *audit.Source {
	return &audit.Source{Size: d.Store.Durable(), Checkpoint: d.anchor, Events: d.Store.Events, Payload: d.Payload, Payloads: d.payloads, Hashes: d.Store.ReadHashes, Keys: d.Store.DataKeys, CarriedOut: d.carriedOut, Strangers: d.strangers}
}

// payloads is Payload over a range.
func (d *Dir) payloads(from, to uint64) (audit.PayloadWalk, error) {
	walk, err := d.Store.Payloads(from, to)
	if err != nil {
		return audit.PayloadWalk{}, err
	}
	return audit.PayloadWalk{
		At: func(seq uint64) (audit.Payload, error) {
			stored, ok, err := walk.At(seq)
			if err != nil || !ok {
				return audit.Payload{}, err
			}
			return d.open(seq, stored)
		},
		End: walk.End,
	}, nil
}

const (
	erasurePolls = 10 // how often it is looked whether an erasure is done
	erasurePoll  = 500 * time.Millisecond
)

// carriedOut waits for an erasure that the log has the event of and that was not
// done when it was opened: a writer at work does it behind the event.
func (d *Dir) carriedOut(under uint64) bool {
	mark, err := d.Store.Purged()
	if err != nil || mark >= under {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for ; d.polls < erasurePolls; d.polls++ {
		time.Sleep(erasurePoll)
		now, err := store.OpenReadOnly(d.dir, store.Options{})
		if err != nil {
			continue
		}
		mark, err = now.Purged()
		if errors.Join(err, now.Close()) == nil && mark >= under {
			return true
		}
	}
	return false
}

// strangers lists keys in the store that belong to no log.
func (d *Dir) strangers() (list []string, err error) {
	err = d.Store.Strangers(func(key []byte) {
		if len(list) < strangersMax {
			list = append(list, fmt.Sprintf("key %x", key))
		}
	})
	return list, err
}

const strangersMax = 100

// sealKeys reads seal.key, and seal-2.key and so on, by name.
func sealKeys(dir string) (map[string]cipher.AEAD, error) {
	keys := map[string]cipher.AEAD{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, "seal") || filepath.Ext(name) != ".key" {
			continue
		}
		key, err := sealKey(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if key != nil {
			keys[name] = key
		}
	}
	return keys, nil
}

const smallMax = 64 << 10

// readSmall reads a regular file. Another one could be read without end, or block.
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > smallMax {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", path, smallMax)
	}
	return os.ReadFile(path)
}

// sealKey reads 64 hex digits; no file, or one that may not be read, is no key.
func sealKey(path string) (cipher.AEAD, error) {
	b, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%s: not 64 hex digits", path)
	}
	return gcm(key)
}

func gcm(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// The first byte of a stored payload.
const (
	kindOpen   = 0
	kindSealed = 1
)

var errPayload = errors.New("the stored payload does not open")

// Payload reads what lies beside an event. Locked means that no seal key is
// at hand; a payload that does not open with it is an error.
func (d *Dir) Payload(seq uint64) (audit.Payload, error) {
	stored, ok, err := d.Store.Payload(seq)
	if err != nil || !ok {
		return audit.Payload{}, err
	}
	return d.open(seq, stored)
}

// open opens a payload as it is stored.
func (d *Dir) open(seq uint64, stored []byte) (_ audit.Payload, err error) {
	if len(stored) == 0 {
		return audit.Payload{}, errPayload
	}
	plain := stored[1:]
	switch stored[0] {
	case kindOpen:
	case kindSealed:
		if len(d.seals) == 0 {
			return audit.Payload{State: audit.PayloadLocked}, nil
		}
		if plain, err = d.unseal(seq, plain); err != nil {
			return audit.Payload{}, err
		}
	default:
		return audit.Payload{}, errPayload
	}
	if len(plain) < events.SaltLen {
		return audit.Payload{}, errPayload
	}
	return audit.Payload{State: audit.PayloadReadable, Salt: [events.SaltLen]byte(plain), Bytes: plain[events.SaltLen:]}, nil
}

// unseal opens u8 len(owner) ‖ owner ‖ nonce[12] ‖ ciphertext with the owner's
// data key, bound to origin and seq.
func (d *Dir) unseal(seq uint64, b []byte) ([]byte, error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, errPayload
	}
	owner, b := string(b[1:1+b[0]]), b[1+b[0]:]
	key, err := d.dataKey(owner)
	if err != nil {
		return nil, err
	}
	return decrypt(key, b, binary.BigEndian.AppendUint64([]byte(d.Store.Origin()+"\n"), seq))
}

func (d *Dir) dataKey(owner string) (cipher.AEAD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key := d.keys[owner]; key != nil {
		return key, nil
	}
	wrapped, ok, err := d.Store.DataKey(owner)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("data key of %q is missing", owner)
	}
	var raw []byte
	err = errPayload
	for i := 0; i < len(d.seals) && err != nil; i++ {
		raw, err = decrypt(d.seals[i], wrapped, []byte(d.Store.Origin()+"\n"+owner))
	}
	if err != nil {
		return nil, fmt.Errorf("data key of %q: %w", owner, err)
	}
	key, err := gcm(raw)
	if err == nil {
		d.keys[owner] = key
	}
	return key, err
}

func decrypt(key cipher.AEAD, b, additional []byte) ([]byte, error) {
	if len(b) < key.NonceSize() {
		return nil, errPayload
	}
	plain, err := key.Open(nil, b[:key.NonceSize()], b[key.NonceSize():], additional)
	if err != nil {
		return nil, errPayload
	}
	return plain, nil
}

package ledger

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// A key of the ledger's own lies in DIR/keys under its number: checkpoint.key is
// the first, checkpoint-2.key the second. A new one is there, synced, before the
// event that brings it; one that never got an event is written over, and the
// secret half of a retired one is removed once the retirement is signed.
func keyFile(kind string, number uint64, ending string) string {
	if number > 1 {
		kind += "-" + strconv.FormatUint(number, 10)
	}
	return kind + "." + ending
}

// freshKey is a key that was made and is in no event yet.
type freshKey struct {
	kind           string
	number         uint64 // once it is kept
	secret, public string
	seal           []byte
}

// newKey makes the next key of a kind.
func (l *Ledger) newKey(kind string) (*freshKey, error) {
	k := &freshKey{kind: kind}
	var err error
	switch kind {
	case events.KeyCheckpoint:
		k.secret, k.public, err = note.GenerateKey(rand.Reader, l.origin)
	case events.KeyPermit:
		k.secret, k.public, err = note.GenerateKey(rand.Reader, l.origin+"/permit")
	default:
		k.seal = make([]byte, 32)
		_, err = io.ReadFull(rand.Reader, k.seal)
		k.secret = hex.EncodeToString(k.seal)
	}
	return k, err
}

// keep writes the key to dir, durably.
func (k *freshKey) keep(dir string, number uint64) error {
	if k.kind == events.KeyCheckpoint {
		if err := writeOver(filepath.Join(dir, keyFile(k.kind, number, "vkey")), k.public); err != nil {
			return err
		}
	}
	return writeOver(filepath.Join(dir, keyFile(k.kind, number, "key")), k.secret)
}

// writeOver writes a key file, whole and durably or not at all.
func writeOver(path, text string) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeSynced(tmp, text+"\n"); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// removeUnfinished removes what writeOver left when it was killed: a secret that no
// event names.
func (r *ring) removeUnfinished() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, unfinished := strings.CutSuffix(e.Name(), ".tmp")
		if !unfinished || !e.Type().IsRegular() || filepath.Ext(name) != ".key" && filepath.Ext(name) != ".vkey" {
			continue
		}
		if err := r.remove(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// signingKey is a checkpoint key as it lies in DIR/keys.
type signingKey struct {
	number   uint64
	public   string
	signer   note.Signer // nil where the secret half is gone
	verifier note.Verifier
}

// readSigning reads the checkpoint keys of a directory, the first first.
func readSigning(dir string) (list []signingKey, err error) {
	for number := uint64(1); ; number++ {
		public, err := readKeyText(dir, keyFile(events.KeyCheckpoint, number, "vkey"))
		if errors.Is(err, fs.ErrNotExist) && number > 1 {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		k := signingKey{number: number, public: public}
		if k.verifier, err = note.NewVerifier(public); err != nil {
			return nil, fmt.Errorf("keys/%s is %w: %w", keyFile(events.KeyCheckpoint, number, "vkey"), ErrKey, err)
		}
		secret, err := readKeyText(dir, keyFile(events.KeyCheckpoint, number, "key"))
		if err == nil {
			name := keyFile(events.KeyCheckpoint, number, "key")
			if k.signer, err = note.NewSigner(secret); err != nil {
				return nil, fmt.Errorf("keys/%s is %w: %w", name, ErrKey, err)
			}
			if !pair(k.signer, k.verifier) {
				return nil, fmt.Errorf("keys/%s is %w: it is not the secret half of keys/%s", name, ErrKey, keyFile(events.KeyCheckpoint, number, "vkey"))
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		list = append(list, k)
	}
}

// readKeyText reads a key's file. What is none could block, or have no end.
func readKeyText(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// ring holds the checkpoint keys of a running ledger. Safe for concurrent use.
type ring struct {
	dir string

	mu      sync.Mutex
	files   []signingKey
	terms   []projection.SigningKey // as the state says
	permits []projection.SigningKey // retired, their secrets to be removed
}

// follow takes over which keys are in force, and refuses where one of them is not
// at hand.
func (r *ring) follow(s *projection.State) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	terms := s.CheckpointKeys()
	r.terms, r.permits = terms, slices.DeleteFunc(slices.Clone(s.PermitKeys()), func(k projection.SigningKey) bool { return k.Until == 0 })
	for _, term := range terms {
		if term.Until != 0 {
			continue
		}
		k := r.find(term.Public)
		if other := r.numbered(term.Number); k == nil && other != nil {
			return fmt.Errorf("keys/%s is %w: event %d brings another", keyFile(events.KeyCheckpoint, term.Number, "vkey"), ErrKey, term.From)
		}
		if k == nil { // files are read up to the first that is missing
			return fmt.Errorf("keys/%s, a verifier key of this log: %w", keyFile(events.KeyCheckpoint, min(term.Number, uint64(len(r.files))+1), "vkey"), fs.ErrNotExist)
		}
		if k.signer == nil {
			return fmt.Errorf("keys/%s, the key in force from event %d on: %w", keyFile(events.KeyCheckpoint, term.Number, "key"), term.From, fs.ErrNotExist)
		}
	}
	return nil
}

func (r *ring) find(public string) *signingKey {
	at := slices.IndexFunc(r.files, func(k signingKey) bool { return k.public == public })
	if at < 0 {
		return nil
	}
	return &r.files[at]
}

func (r *ring) numbered(number uint64) *signingKey {
	at := slices.IndexFunc(r.files, func(k signingKey) bool { return k.number == number })
	if at < 0 {
		return nil
	}
	return &r.files[at]
}

// add takes a new key, and returns its verifier.
func (r *ring) add(number uint64, k *freshKey) (note.Verifier, error) {
	verifier, err := note.NewVerifier(k.public)
	if err != nil {
		return nil, err
	}
	signer, err := note.NewSigner(k.secret)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = append(r.files, signingKey{number, k.public, signer, verifier})
	return verifier, nil
}

// at returns who signs a log of size events.
func (r *ring) at(size uint64) (signers []note.Signer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, term := range r.terms {
		if !term.In(size) {
			continue
		}
		k := r.find(term.Public)
		if k == nil || k.signer == nil {
			return nil, fmt.Errorf("no key to sign %d events with", size)
		}
		signers = append(signers, k.signer)
	}
	if len(signers) == 0 {
		return nil, fmt.Errorf("no key to sign %d events with", size)
	}
	return signers, nil
}

// signedThen reads a checkpoint that a key in force at its size has signed.
func (r *ring) signedThen(signed []byte) (store.Checkpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var verifiers []note.Verifier
	for _, term := range r.terms {
		if k := r.find(term.Public); k != nil {
			verifiers = append(verifiers, k.verifier)
		}
	}
	c, err := store.ParseCheckpoint(signed, verifiers...)
	if err != nil {
		return c, err
	}
	verifiers = nil
	for _, term := range r.terms {
		if k := r.find(term.Public); k != nil && term.In(c.Size) {
			verifiers = append(verifiers, k.verifier)
		}
	}
	return store.ParseCheckpoint(signed, verifiers...)
}

// forget removes the secret halves of keys that were retired within the first
// size events, which are signed without them.
func (r *ring) forget(size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, term := range r.terms {
		k := r.find(term.Public)
		if term.Until == 0 || term.Until > size || k == nil || k.signer == nil {
			continue
		}
		k.signer = nil
		if err := r.remove(keyFile(events.KeyCheckpoint, term.Number, "key")); err != nil {
			return err
		}
	}
	var later []projection.SigningKey
	for _, k := range r.permits {
		if k.Until > size {
			later = append(later, k)
		} else if err := r.remove(keyFile(events.KeyPermit, k.Number, "key")); err != nil {
			return err
		}
	}
	r.permits = later
	return nil
}

func (r *ring) remove(name string) error {
	err := os.Remove(filepath.Join(r.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// handoffPatience is how long a retirement waits for what is on its way to disk.
const handoffPatience = 2 * time.Second

// handoff is a note that both keys in force have signed: the last one, made anew
// where it is from before the newer key.
func (l *Ledger) handoff() (string, error) {
	terms := l.state.CheckpointKeys()
	from := terms[len(terms)-1].From
	for end := time.Now().Add(handoffPatience); l.store.Durable() < from && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if l.signed.Load() < from {
		if err := l.checkpoint(); err != nil {
			return "", err
		}
	}
	if l.signed.Load() < from {
		return "", fmt.Errorf("event %d, which brings the key, is not on disk yet: %w", from, ErrPayload) // to be asked again, no end of the ledger
	}
	return string(l.Checkpoint()), nil
}

// fillInKey adds what only the writer can make of a request about keys.
func (l *Ledger) fillInKey(p *Proposal, rotate string, retire bool) (err error) {
	if principal := l.state.Principal(p.Subject); principal == nil || principal.Role != "admin" || principal.Revoked || l.keys == nil {
		return nil // it will be denied
	}
	if rotate != "" {
		if p.fresh, err = l.newKey(rotate); err == nil {
			p.NewKey = p.fresh.public
		}
		return err
	}
	if retire && l.state.Overlap(events.KeyCheckpoint) != nil {
		p.Handoff, err = l.handoff()
	}
	return err
}

// keepKey writes a new key down before the event that brings it.
func (l *Ledger) keepKey(p *Proposal, o *Outcome) error {
	if p.fresh == nil || !o.Decision.Allowed {
		return nil
	}
	for _, e := range o.Effects {
		rotated, ok := e.Body.(*events.KeyRotated)
		if !ok {
			continue
		}
		if err := p.fresh.keep(l.keys.dir, rotated.Number); err != nil {
			return fmt.Errorf("keep the new %s key: %w", rotated.Key, err)
		}
		p.fresh.number = rotated.Number
		if rotated.Key == events.KeyCheckpoint {
			verifier, err := l.keys.add(rotated.Number, p.fresh)
			if err != nil {
				return err
			}
			l.anchor.Trust(verifier)
		}
	}
	return nil
}

// keysChanged reports whether an outcome is about keys.
func keysChanged(o *Outcome) bool {
	return slices.ContainsFunc(o.Effects, func(e Effect) bool {
		switch e.Body.(type) {
		case *events.KeyRotated, *events.KeyRetired:
			return true
		}
		return false
	})
}

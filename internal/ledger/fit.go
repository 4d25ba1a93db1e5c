package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// ErrKey says that a key file is not the one that the log names, or that seals
// its payloads.
var ErrKey = errors.New("not this ledger's")

// KeyFile names the file of a key in DIR/keys.
func KeyFile(kind string, number uint64, ending string) string { return keyFile(kind, number, ending) }

// CheckKeys looks whether the keys in dir, as far as they are there, are those of
// the log st: the seal key opens its data keys, the others are those that its
// events bring. One that is not is ErrKey. fs.ErrNotExist says that something is
// sealed and no seal key is there. A key later than the log is none of its.
func CheckKeys(dir string, st *store.Store, state *projection.State) error {
	for _, k := range state.CheckpointKeys() {
		if err := KeyFits(dir, events.KeyCheckpoint, k); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, k := range state.PermitKeys() {
		if err := KeyFits(dir, events.KeyPermit, k); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return sealFits(dir, st)
}

// sealFits opens data keys until one fits, as an opening does.
func sealFits(dir string, st *store.Store) error {
	names, err := st.DataKeys()
	if err != nil || len(names) == 0 {
		return err
	}
	list, err := readSealKeys(dir)
	if err != nil {
		return err
	}
	s, err := newSealer(st.Origin(), list, st.DataKey)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, fault := s.existing(name); fault == nil {
			return nil
		}
	}
	newest := keyFile(events.KeySeal, list[len(list)-1].number, "key")
	return fmt.Errorf("%s is %w: it opens none of %d data keys", filepath.Join(dir, newest), ErrKey, len(names))
}

// KeyFits looks whether the files of a key, as far as they are there, are the key
// that the log names; fs.ErrNotExist where the secret half is not there.
func KeyFits(dir, kind string, k projection.SigningKey) error {
	verifier, err := note.NewVerifier(k.Public)
	if err != nil {
		return err
	}
	if kind == events.KeyCheckpoint {
		name := keyFile(kind, k.Number, "vkey")
		if public, err := readKeyText(dir, name); err == nil && public != k.Public {
			return fmt.Errorf("%s is %w: event %d brings another", filepath.Join(dir, name), ErrKey, k.From)
		}
	}
	name := keyFile(kind, k.Number, "key")
	secret, err := readKeyText(dir, name)
	if err != nil {
		return err
	}
	if signer, err := note.NewSigner(secret); err != nil || !pair(signer, verifier) {
		return fmt.Errorf("%s is %w: it is not the secret half of the key that event %d brings", filepath.Join(dir, name), ErrKey, k.From)
	}
	return nil
}

// pair reports whether the two are halves of one key.
func pair(signer note.Signer, verifier note.Verifier) bool {
	const text = "ledgerd\n"
	b, err := note.Sign(&note.Note{Text: text}, signer)
	if err != nil {
		return false
	}
	n, err := note.Open(b, note.VerifierList(verifier))
	return err == nil && n.Text == text
}

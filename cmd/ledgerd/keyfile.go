package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/client"
)

// keyring is the keys of ids in dir/<id>.nk. It remembers which it made, since
// those are of use only if the ledger takes them.
type keyring struct {
	dir  string
	made []string // files and directories, in the order made
}

// key returns the public key of the seed in dir/<id>.nk. Where there is no
// such file it makes one, mode 0600 in a directory of mode 0700, and returns
// only when the seed is safely on disk: a key that the ledger knows and nobody
// has any more cannot be replaced.
func (k *keyring) key(id string) (public string, err error) {
	if err := checkID("id", id); err != nil {
		return "", err
	}
	return k.keyAt(k.path(id))
}

func (k *keyring) path(id string) string { return filepath.Join(k.dir, id+".nk") }

// keyAt is key by the file's path.
func (k *keyring) keyAt(path string) (public string, err error) {
	public, err = publicKeyOf(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return public, err
	}
	dir := filepath.Dir(path)
	_, absent := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the directory for keys: %w", err)
	}
	if absent != nil {
		k.made = append(k.made, dir)
	}
	seed, err := newSeed()
	if err != nil {
		return "", err
	}
	switch err := writeOnce(path, append(seed, '\n')); {
	case err == nil:
		k.made = append(k.made, path)
	case !errors.Is(err, fs.ErrExist): // else another process was first
		return "", fmt.Errorf("write a key: %w", err)
	}
	return publicKeyOf(path)
}

// settle removes the keys made, unless the ledger has taken them or may have:
// reply and err are what became of the request that names them.
func (k *keyring) settle(reply *client.Reply, err error) {
	if err == nil && reply.Allowed || errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, client.ErrBadReply) {
		return
	}
	for _, path := range slices.Backward(k.made) {
		os.Remove(path) // a directory only if it is empty
	}
}

// publicKeyOf is the public key of the user seed in a file.
func publicKeyOf(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a key: %w", err)
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(b))))
	if err != nil {
		return "", usagef("%s holds no NATS user seed (SU… on one line)", path)
	}
	defer key.Wipe()
	public, err := key.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(public) {
		return "", usagef("%s holds a seed that is not a user's (SU…)", path)
	}
	return public, nil
}

func newSeed() ([]byte, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	seed, err := key.Seed()
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return seed, nil
}

// throwawayKey is the public key of a seed that is kept nowhere.
func throwawayKey() (string, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return key.PublicKey()
}

// writeOnce makes a new file that is there whole and synced, or not at all. It
// is fs.ErrExist where the file exists.
func writeOnce(path string, b []byte) error {
	return writeFile(path, b, os.Link)
}

// writeOver replaces a file, or makes it, all at once.
func writeOver(path string, b []byte) error {
	return writeFile(path, b, os.Rename)
}

func writeFile(path string, b []byte, put func(tmp, path string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = put(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

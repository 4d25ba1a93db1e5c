package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
)

// keyFor returns the public key of the seed in dir/<id>.nk. Where there is no
// such file it makes one, mode 0600 in a directory of mode 0700, and returns
// only when the seed is safely on disk: a key that the ledger knows and nobody
// has any more cannot be replaced.
func keyFor(dir, id string) (public string, err error) {
	if !events.ValidID(id) {
		return "", usagef("%q cannot be an id", id)
	}
	return keyAt(filepath.Join(dir, id+".nk"))
}

// keyAt is keyFor by the file's path.
func keyAt(path string) (public string, err error) {
	public, err = publicKeyOf(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return public, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("make the directory for keys: %w", err)
	}
	seed, err := newSeed()
	if err != nil {
		return "", err
	}
	if err := writeOnce(path, append(seed, '\n')); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("write a key: %w", err)
	}
	return publicKeyOf(path) // another process may have been first
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

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/backup"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (a *app) backupCommand() *cobra.Command {
	var data, out string
	var o backup.Options
	cmd := &cobra.Command{
		Use:   "backup --data DIR --out DIR",
		Short: "Copy a ledger's data directory, also while it is served",
		Long: `Copy a ledger's data directory to --out, which must not exist: the log, its
payloads and its anchor, with a manifest of all files. A ledger being served is not
disturbed; the copy holds what was on disk at one moment.

Without --with-keys the copy holds no key: keep DIR/keys apart. WITHOUT seal.key NO
SEALED PAYLOAD (a value, a request) CAN EVER BE OPENED AGAIN. With --with-keys,
whoever has the copy can read every value and sign in the ledger's name.`,
		Example: `  ledgerd backup --data ./data --out ./backup-1
  ledgerd backup --data ./data --out ./backup-2 --with-keys`,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case data == "":
				return usagef("which ledger? give --data DIR")
			case out == "":
				return usagef("where to? give --out DIR, which must not exist")
			}
			m, err := backup.Write(data, out, o)
			if err != nil {
				return backupFault(data, err)
			}
			return a.showBackup(out, m)
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the data directory")
	cmd.Flags().StringVar(&out, "out", "", "the directory to make")
	cmd.Flags().StringVar(&o.Anchor, "anchor", "", "file of the last signed checkpoint (default: DIR/anchor)")
	cmd.Flags().BoolVar(&o.Keys, "with-keys", false, "the keys too: guard the copy like the ledger itself")
	return cmd
}

// madeBackup is what is told of a backup.
type madeBackup struct {
	Out    string `json:"out"`
	Origin string `json:"origin"`
	Events uint64 `json:"events"`
	Size   uint64 `json:"checkpoint_size"`
	Root   string `json:"root"`
	Keys   bool   `json:"keys"`
}

func (a *app) showBackup(out string, m *backup.Manifest) error {
	made := madeBackup{out, m.Origin, m.Events, m.Size, m.Root, m.Keys}
	return a.showStruct(made, func() {
		fmt.Fprintf(a.stdout, "%d events of %s in %s, of which the checkpoint covers %d\n", m.Events, m.Origin, clean(out), m.Size)
		if m.Keys {
			fmt.Fprintf(a.stdout, "the keys are in it: whoever has it can read every value and sign in the ledger's name\n")
		} else {
			fmt.Fprintf(a.stdout, "NO KEYS are in it: without a copy of keys/seal.key no sealed payload can ever be opened again\n")
		}
		fmt.Fprintf(a.stdout, "next: ledgerd restore --from %s --check\n", clean(out))
	})
}

// backupFault gives the failures of backups their exit codes.
func backupFault(dir string, err error) error {
	if fault := noDirectory(dir, err); fault != nil {
		return fault
	}
	if _, gone := os.Stat(dir); errors.Is(gone, fs.ErrNotExist) && errors.Is(err, fs.ErrNotExist) {
		return usagef("%s does not exist; name a data directory, or make one with \"ledgerd init --data %s\"", dir, dir)
	}
	switch {
	case errors.Is(err, backup.ErrExists):
		return &exitError{exitConflict, fmt.Errorf("%w; name a directory that does not exist", err)}
	case errors.Is(err, ledger.ErrKey):
		return &exitError{exitIntegrity, fmt.Errorf("%w; nothing was written\nnext: give --keys the keys directory of the ledger that was backed up, as it was then", err)}
	case errors.Is(err, backup.ErrOtherKey):
		return &exitError{exitIntegrity, fmt.Errorf("%w; nothing was written\nnext: a backup of before a rotation is checked with the key of then (--vkey @checkpoint.vkey); one whose key you do not know is of another log", err)}
	case errors.Is(err, backup.ErrErased):
		return &exitError{exitUnavailable, fmt.Errorf("%w; nothing was written\nnext: with a server at work wait and make the backup again; else start \"ledgerd serve --data %s\" once, which carries it out", err, dir)}
	case errors.Is(err, backup.ErrNot), errors.Is(err, backup.ErrDamage):
		return &exitError{exitIntegrity, fmt.Errorf("%s; nothing was written", plain(err))}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return usagef("%w", err)
	}
	return openFault(dir, err)
}

func (a *app) restoreCommand() *cobra.Command {
	var from, data string
	var o backup.RestoreOptions
	var check bool
	cmd := &cobra.Command{
		Use:   "restore --from BACKUP (--data DIR | --check)",
		Short: "Verify a backup and make a data directory of it",
		Long: `Verify a backup whole (its manifest, the digest of every file, the log itself), then
make the data directory DIR of it, which must not exist. Nothing is written before
all of it was verified. --check verifies and writes nothing.

What was restored can be verified, replayed and exported at once. It is not served:
others may know what came after the backup, and no position of a log may be used
twice. "ledgerd epoch new" begins a new epoch from it.`,
		Example: `  ledgerd restore --from ./backup-1 --check
  ledgerd restore --from ./backup-1 --data ./restored --keys ./kept-keys`,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case from == "":
				return usagef("what from? give --from BACKUP")
			case data == "" && !check, data != "" && check:
				return usagef("give one of --data DIR, which must not exist, and --check")
			}
			var m *backup.Manifest
			var err error
			if o.VKey, err = textOrFile(o.VKey); err != nil {
				return usagef("--vkey: %w", err)
			}
			if _, err := note.NewVerifier(o.VKey); o.VKey != "" && err != nil {
				return usagef("--vkey %s is no verifier key, NAME+ID+KEY: %w; a file that holds one is given as @FILE", o.VKey, err)
			}
			if check {
				m, _, err = backup.Check(from, o.VKey)
			} else {
				m, _, err = backup.Restore(from, data, o)
			}
			if err != nil {
				return backupFault(from, err)
			}
			return a.showRestored(from, data, m, m.Keys || o.Keys != "")
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the backup")
	cmd.Flags().StringVar(&data, "data", "", "the data directory to make")
	cmd.Flags().BoolVar(&check, "check", false, "verify the backup and write nothing")
	cmd.Flags().StringVar(&o.Keys, "keys", "", "directory with the ledger's keys, for a backup without")
	cmd.Flags().StringVar(&o.VKey, "vkey", "", "the key that must have signed the checkpoint, or @FILE that holds it (default: the one the log names)")
	return cmd
}

// textOrFile is a text given by itself, or as @FILE that holds it.
func textOrFile(s string) (string, error) {
	name, isFile := strings.CutPrefix(s, "@")
	if !isFile {
		return s, nil
	}
	b, err := os.ReadFile(name)
	return strings.TrimSpace(string(b)), err
}

func (a *app) showRestored(from, data string, m *backup.Manifest, keys bool) error {
	if data == "" {
		return a.showStruct(madeBackup{from, m.Origin, m.Events, m.Size, m.Root, m.Keys}, func() {
			fmt.Fprintf(a.stdout, "good: %d events of %s, %d files\n", m.Events, m.Origin, len(m.Files))
			next := "--data DIR --keys KEYS, the copy of the ledger's keys that you keep: there are none in it"
			if m.Keys {
				next = "--data DIR"
			}
			fmt.Fprintf(a.stdout, "next: ledgerd restore --from %s %s\n", clean(from), next)
		})
	}
	return a.showStruct(madeBackup{data, m.Origin, m.Events, m.Size, m.Root, keys}, func() {
		fmt.Fprintf(a.stdout, "%d events of %s in %s, verified\n", m.Events, m.Origin, clean(data))
		fmt.Fprintf(a.stdout, "it is for reading: verify --data %s, ledgerd export --data %s\n", clean(data), clean(data))
		if !keys {
			fmt.Fprintf(a.stdout, "there are NO KEYS: sealed payloads stay closed, and no epoch begins from it, until %s is there\nnext: ledgerd restore --from %s --data ANOTHER --keys KEYS\n", clean(filepath.Join(data, "keys", "seal.key")), clean(from))
			return
		}
		fmt.Fprintf(a.stdout, "next: %s\n", nextEpoch(clean(data)))
	})
}

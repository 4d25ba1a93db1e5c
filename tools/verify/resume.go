package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/store"
)

// resuming reads only what came since the last time.
var resuming = part{
	usage: `  --resume FILE      read only what came since FILE was written, and write it anew where nothing failed; the first time all
                     is read. Keep it as you keep a remembered checkpoint: who can write it can hide what came before
`,
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.resume, "resume", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		return refuseEmpty(given, "file", map[string]string{"resume": a.resume})
	},
	options: func(a *arguments, opts *audit.Options) error {
		if a.resume == "" {
			return nil
		}
		b, err := readSmall(a.resume)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if opts.Known, err = audit.ParseKnown(b); err != nil {
			return fmt.Errorf("%s: %w", a.resume, err)
		}
		key := opts.VKey
		if name, isFile := strings.CutPrefix(a.vkey, "@"); isFile {
			b, err := readSmall(name)
			if err != nil {
				return err
			}
			key = strings.TrimSpace(string(b))
		}
		switch {
		case key != "" && !opts.Known.Knows(key):
			return fmt.Errorf("%s is of a log under the key %s, not the one given", a.resume, opts.Known.VKey)
		case key == "" && opts.Known.Pinned:
			return fmt.Errorf("%s was written under a key that was given with --vkey; give it again", a.resume)
		case key != "" && !opts.Known.Pinned:
			return fmt.Errorf("%s was written without --vkey, so that what it covers was at best consistent; remove it to have all of it read under the key", a.resume)
		}
		return nil
	},
	then: func(a *arguments, _ *subject, r *audit.Report) error {
		if a.resume == "" {
			return nil
		}
		if r.Settle(); r.Exit != audit.ExitPass || r.Known == nil {
			r.Completeness.Checks = append(r.Completeness.Checks, audit.Check{Name: "state", Status: audit.NotRun, Open: a.resume + " was not written: not everything that was asked passed"})
			return nil
		}
		r.Known.At = time.Now().UTC().Format(time.RFC3339)
		b, err := json.MarshalIndent(r.Known, "", "  ")
		if err != nil {
			return err
		}
		return store.ReplaceFile(a.resume, append(b, '\n'))
	},
}

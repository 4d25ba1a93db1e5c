package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
)

// previous is what the auditor has of the epoch before.
type previous struct {
	note, vkey   string
	export, data string
	opened       *datadir.Dir
}

// preceding holds what event 1 says of the epoch before against what was kept of
// that.
var preceding = part{
	usage: `  --previous FILE    a signed checkpoint remembered of the epoch before: event 1 must continue that log, from there or later
  --previous-vkey KEY  the verifier key of that log, or @FILE that holds it
  --previous-export DIR, --previous-data DIR  that log itself: shows that a later checkpoint goes on from the remembered one
`,
	flags: func(a *arguments, f *flag.FlagSet) {
		f.StringVar(&a.previous.note, "previous", "", "")
		f.StringVar(&a.previous.vkey, "previous-vkey", "", "")
		f.StringVar(&a.previous.export, "previous-export", "", "")
		f.StringVar(&a.previous.data, "previous-data", "", "")
	},
	refuse: func(a *arguments, given map[string]bool) error {
		p := &a.previous
		switch {
		case !given["previous"] && (given["previous-vkey"] || given["previous-export"] || given["previous-data"]):
			return errors.New("--previous-vkey, --previous-export and --previous-data go with --previous")
		case given["previous"] && p.vkey == "":
			return errors.New("--previous goes with --previous-vkey: without its key a checkpoint says nothing")
		case given["previous-export"] && given["previous-data"]:
			return errors.New("give one of --previous-export and --previous-data")
		case given["previous"] && given["resume"]:
			return errors.New("--previous is about event 1, which --resume does not read again: give one of them")
		}
		return errors.Join(
			refuseEmpty(given, "file", map[string]string{"previous": p.note}),
			refuseEmpty(given, "directory", map[string]string{"previous-export": p.export, "previous-data": p.data}),
		)
	},
	options: func(a *arguments, opts *audit.Options) error {
		p := &a.previous
		if p.note == "" {
			return nil
		}
		var err error
		opts.Before = &audit.Before{}
		if opts.Before.Note, err = readSmall(p.note); err != nil {
			return err
		}
		if opts.Before.VKey, err = readKey(p.vkey); err != nil {
			return err
		}
		if err = p.log(opts.Before); err != nil {
			return fmt.Errorf("the log before: %w", err)
		}
		return nil
	},
	then: func(a *arguments, _ *subject, _ *audit.Report) error {
		if a.previous.opened == nil {
			return nil
		}
		return a.previous.opened.Close()
	},
}

// log opens the log before, where it was given.
func (p *previous) log(before *audit.Before) error {
	switch {
	case p.export != "":
		fsys := os.DirFS(p.export)
		source, err := audit.OpenExport(fsys)
		if err != nil {
			return err
		}
		before.Size = source.Size
		before.Log = func(opts audit.Options) (*audit.Report, error) { return audit.VerifyExport(fsys, opts) }
	case p.data != "":
		var err error
		if p.opened, err = datadir.Open(p.data); err != nil {
			return err
		}
		source := p.opened.Source()
		before.Size = source.Size
		before.Log = func(opts audit.Options) (*audit.Report, error) { return audit.VerifyLog(source, opts) }
	}
	return nil
}

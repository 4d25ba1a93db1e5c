package main

import (
	"errors"
	"flag"

	"github.com/ledgerd/ledgerd/internal/audit"
)

// following trusts the keys that the pinned one handed over to.
var following = part{
	usage: `  --rotations FILE   with --proof or --consistency: who the key of --vkey handed over to, as ledgerd proof rotations shows;
                     a log holds that itself
`,
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.rotations, "rotations", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		switch {
		case given["rotations"] && !given["proof"] && !given["consistency"]:
			return errors.New("--rotations goes with --proof and --consistency: a log holds the events about its keys itself")
		case given["rotations"] && !given["vkey"]:
			return errors.New("--rotations of which key? give --vkey, the one you have from elsewhere")
		}
		return refuseEmpty(given, "file", map[string]string{"rotations": a.rotations})
	},
}

// trusted are the keys that evidence is held against; nil where none was given.
type trusted struct {
	*audit.Keys
	asked bool
	err   error // why the rotations show nothing
}

func (a *arguments) trusted(opts audit.Options) (*trusted, error) {
	if opts.VKey == "" {
		return nil, nil
	}
	keys, err := audit.Pin(opts.VKey)
	if err != nil || a.rotations == "" {
		return &trusted{Keys: keys}, err
	}
	b, err := readAtMost(a.rotations, audit.RotationsBytesMax)
	if err != nil {
		return nil, err
	}
	t := &trusted{Keys: keys, asked: true}
	if followed, err := keys.Follow(b); err != nil {
		t.err = err
	} else {
		t.Keys = followed
	}
	return t, nil
}

// told adds to the report what the rotations show.
func (t *trusted) told(report *audit.Report) {
	if t == nil || !t.asked {
		return
	}
	check := audit.Check{Name: "rotation", Status: audit.Pass, Text: t.Handed()}
	switch {
	case t.err != nil:
		check = failure(report, "rotation", t.err)
	case check.Text == "":
		check.Text = "no key follows on the pinned one"
	}
	report.Integrity.Checks = append(report.Integrity.Checks, check)
}

package main

import (
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
)

// comparing holds what two auditors were shown against each other: alone where
// that can be told, else with the log.
var comparing = part{
	usage: `  --compare A B      two signed checkpoints, as two auditors were shown them: one of the log's states each, or two logs.
                     Alone it compares checkpoints of one size; of two sizes it takes --data or --export too
`,
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.compared[0], "compare", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		if given["compare"] && (a.compared[0] == "" || a.compared[1] == "") {
			return errors.New("--compare takes two files of signed checkpoints")
		}
		return nil
	},
	options: func(a *arguments, opts *audit.Options) error {
		if a.compared[0] == "" || a.source == nil || a.source.source == "" {
			return nil
		}
		for _, name := range a.compared {
			b, err := readSmall(name)
			if err != nil {
				return err
			}
			opts.Compared = append(opts.Compared, b)
		}
		return nil
	},
}

// comparedAlone is the source of two checkpoints and no log.
var comparedAlone = part{open: func(a *arguments) (*subject, error) {
	first, err := readSmall(a.compared[0])
	if err != nil {
		return nil, err
	}
	second, err := readSmall(a.compared[1])
	if err != nil {
		return nil, err
	}
	return &subject{verify: func(opts audit.Options) (*audit.Report, error) { return audit.CompareNotes(first, second, opts.VKey) }}, nil
}}

// dating holds dates against the auditor's own clock.
var dating = part{
	usage: `  --seen TIME        when the remembered checkpoint was fetched, as 2026-11-30T12:00:00Z: no event that it covers may be
                     dated after that, and none beyond it before
  --skew DURATION    how far the two clocks may differ (1m)
`,
	flags: func(a *arguments, f *flag.FlagSet) {
		f.StringVar(&a.seen, "seen", "", "")
		f.DurationVar(&a.skew, "skew", audit.Skew, "")
	},
	refuse: func(a *arguments, given map[string]bool) error {
		switch {
		case given["seen"] && a.checkpoint == "":
			return errors.New("--seen goes with --checkpoint: it says when that was fetched")
		case given["skew"] && !given["seen"]:
			return errors.New("--skew goes with --seen")
		case given["skew"] && a.skew <= 0:
			return errors.New("--skew is more than nothing")
		}
		return refuseEmpty(given, "time", map[string]string{"seen": a.seen})
	},
	options: func(a *arguments, opts *audit.Options) error {
		if a.seen == "" {
			return nil
		}
		seen, err := time.Parse(time.RFC3339, a.seen)
		if err != nil {
			return fmt.Errorf("--seen: %w", err)
		}
		c, err := audit.ReadCheckpoint(opts.Remembered)
		if err != nil {
			return fmt.Errorf("--checkpoint: %w", err)
		}
		opts.Skew = a.skew
		opts.Brackets = append(opts.Brackets, audit.Bracket{Size: c.Size, Seen: events.Time(seen.UnixMicro())})
		return nil
	},
}

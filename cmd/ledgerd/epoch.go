package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/internal/epoch"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (a *app) epochCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "epoch",
		Short: "Begin a new epoch of a ledger that cannot go on",
		Long: `After a loss, a rollback or a compromise a log does not go on: no position of it may
be used twice. A new epoch is another log, with keys of its own, whose event 1 names
the old one, its last checkpoint and why.`,
	}
	cmd.AddCommand(a.epochNewCommand())
	return cmd
}

func (a *app) epochNewCommand() *cobra.Command {
	var o epoch.Options
	cmd := &cobra.Command{
		Use:   "new --from DIR --data NEWDIR --reason loss|rollback|compromise",
		Short: "Make the data directory of the next epoch",
		Long: `Verify the log in --from, which must not be served, and make --data of it: a new log
that counts from 1, whose event 1 names the old log, the last checkpoint known of it
(--anchor, where it is newer than the directory's own) and the reason.

The policy in force, agents, principals, what is in force against them, resources and
records are stated anew, by decisions of the first admin that anyone can judge again.
Sealed records are opened for it: without the seal key in --from's keys no epoch is made,
unless --without-sealed leaves them behind.
Grants, open runs, records that have an end, operation ids and revision numbers are
not; what was left is listed. The keys of agents and principals stay; the log's own
are new, and after a compromise the admin's too. Whoever follows the old log has to
begin anew, with the new checkpoint key.`,
		Example: `  ledgerd epoch new --from ./restored --data ./data-2 --reason loss
  ledgerd epoch new --from ./restored --data ./data-2 --reason loss --anchor ./newest.note`,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case o.From == "":
				return usagef("what from? give --from DIR")
			case o.Data == "":
				return usagef("where to? give --data NEWDIR, which must not exist")
			case o.Reason == "":
				return usagef("why? give --reason %s", strings.Join(epoch.Reasons, ", "))
			}
			var err error
			if o.VKey, err = textOrFile(o.VKey); err != nil {
				return usagef("--vkey: %w", err)
			}
			o.Build = build()
			r, err := epoch.New(o)
			if err != nil {
				return epochFault(o.From, err)
			}
			return a.showStruct(r, func() {
				a.printEpoch(o.Data, r)
				if o.Anchor == "" {
					fmt.Fprintf(a.stdout, "no --anchor was given: if anybody holds a checkpoint of more than %d events, do not serve this: make another with --anchor, and a higher --epoch\n", r.Size)
				}
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.From, "from", "", "the old data directory, restored or stopped")
	f.StringVar(&o.Data, "data", "", "the data directory to make")
	f.StringVar(&o.Reason, "reason", "", strings.Join(epoch.Reasons, ", "))
	f.StringVar(&o.Anchor, "anchor", "", "file of the newest checkpoint known (default: the old directory's anchor)")
	f.StringVar(&o.VKey, "vkey", "", "the key that must have signed it, or @FILE that holds it (default: the one the log names)")
	f.BoolVar(&o.WithoutSealed, "without-sealed", false, "leave sealed records behind, for ever, where the seal key is lost")
	f.Uint64Var(&o.Epoch, "epoch", 0, "the new epoch's number, where an epoch was made before and given up (default: the next)")
	return cmd
}

// nextEpoch is how a log that is not served goes on.
func nextEpoch(from string) string {
	return fmt.Sprintf("ledgerd epoch new --from %s --data NEWDIR --reason loss --anchor NEWEST\n"+
		"NEWEST is the newest checkpoint of this log that anybody kept (the lost directory's anchor, an auditor's note): who holds a newer one than the epoch names will be told that events were left out, and that cannot be mended later", from)
}

func epochFault(from string, err error) error {
	switch {
	case errors.Is(err, epoch.ErrUsage):
		return usagef("%w", err)
	case errors.Is(err, epoch.ErrMade):
		return &exitError{exitConflict, err}
	case errors.Is(err, epoch.ErrSealed):
		return &exitError{exitIntegrity, fmt.Errorf("%w; nothing was made\nnext: put the old log's keys into %s (or restore again with --keys KEYS); if the seal key is lost for good, --without-sealed leaves these records behind", err, filepath.Join(from, "keys"))}
	case errors.Is(err, ledger.ErrKey):
		return &exitError{exitIntegrity, fmt.Errorf("%w; nothing was made\nnext: put the old log's own keys into %s", err, filepath.Join(from, "keys"))}
	case errors.Is(err, epoch.ErrDamage):
		return &exitError{exitIntegrity, fmt.Errorf("%s; nothing was made", plain(err))}
	}
	return openFault(from, err)
}

func (a *app) printEpoch(data string, r *epoch.Report) {
	fmt.Fprintf(a.stdout, "%s in %s\n", r.Origin, clean(data))
	fmt.Fprintf(a.stdout, "continues %s, state of %d events; the last checkpoint known covers %d\n", r.Previous, r.Events, r.Size)
	if r.Size > r.Events {
		fmt.Fprintf(a.stdout, "LOST: events %d–%d, which others may hold receipts for\n", r.Events+1, r.Size)
	}
	fmt.Fprintf(a.stdout, "carried over: %d agents, %d principals, %d records, %d resources\n", r.Agents, r.Principals, r.Records, r.Resources)
	for _, line := range r.Left {
		fmt.Fprintf(a.stdout, "not carried over: %s\n", clean(line))
	}
	if r.LeftMore > 0 {
		fmt.Fprintf(a.stdout, "not carried over: %d more\n", r.LeftMore)
	}
	if !r.AdminKey {
		fmt.Fprintf(a.stdout, "the first admin keeps the key it has\n")
	}
	fmt.Fprintf(a.stdout, "next: ledgerd serve --data %s; give auditors and consumers the new keys/checkpoint.vkey, they begin anew\n", clean(data))
}

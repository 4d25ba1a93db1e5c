package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
)

// exportOptions are the flags of export.
type exportOptions struct {
	data, out, anchor, format string
	payloads                  bool
}

func (a *app) exportCommand() *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use:   "export --data DIR --out DIR",
		Short: "Write the log, up to its last checkpoint, for auditors: tiles, entries and open payloads, no secret",
		Long: `Write the log, up to its last checkpoint, for auditors: a C2SP tlog-tiles directory
with the open payloads (policies, mandatory records) and no sealed one. The log is
checked on the way, and one with a fault is not exported. A ledger being served is
not disturbed.

--format jsonl and cloudevents write one file, a line an event with its seq, prev,
hash and exact bytes, and the checkpoint as the last line; no payloads.

--payloads adds the sealed payloads, opened: everything that agents ever wrote and
asked for, in clear text, for an auditor who judges every decision again ("verify
--export DIR --replay"). It takes the keys of the data directory; only you can read
what it writes. Guard it like the data directory itself, and remove it afterwards:
no erasure reaches it.`,
		Example: `  ledgerd export --data ./data --out ./export
  ledgerd export --data ./data --out log.jsonl --format jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.data == "":
				return usagef("which ledger? give --data DIR")
			case o.out == "":
				return usagef("where to? give --out, which must not exist or be an empty directory")
			case o.format != "tiles" && o.format != string(audit.JSONLines) && o.format != string(audit.CloudEvents):
				return usagef("--format %s: it is tiles, jsonl or cloudevents", o.format)
			case o.payloads && o.format != "tiles":
				return usagef("--payloads goes with --format tiles")
			}
			size, err := export(cmd.Context(), o)
			if err != nil {
				return err
			}
			made := struct {
				Out    string `json:"out"`
				Events uint64 `json:"events"`
			}{o.out, size}
			if o.payloads {
				fmt.Fprintf(a.stderr, "ledgerd: %s holds every payload in clear text; guard it, and remove it when it is judged\n", clean(o.out))
			}
			return a.showStruct(made, func() {
				fmt.Fprintf(a.stdout, "%d events in %s\n", size, clean(o.out))
				switch {
				case o.payloads:
					fmt.Fprintf(a.stdout, "next: verify --export %s --replay\n", clean(o.out))
				case o.format == "tiles":
					fmt.Fprintf(a.stdout, "next: verify --export %s\n", clean(o.out))
				}
			})
		},
	}
	cmd.Flags().StringVar(&o.data, "data", "", "the data directory")
	cmd.Flags().StringVar(&o.out, "out", "", "the directory to make, or the file with --format jsonl and cloudevents")
	cmd.Flags().StringVar(&o.anchor, "anchor", "", "file of the last signed checkpoint (default: DIR/anchor)")
	cmd.Flags().StringVar(&o.format, "format", "tiles", "tiles, jsonl or cloudevents")
	cmd.Flags().BoolVar(&o.payloads, "payloads", false, "with the sealed payloads in clear text")
	return cmd
}

// export writes the log and returns how many events that are. It ends with ctx.
func export(ctx context.Context, o exportOptions) (events uint64, err error) {
	if names, err := os.ReadDir(o.out); err == nil && len(names) > 0 {
		return 0, usagef("%s is not empty; name a directory that is, or does not exist", o.out)
	}
	d, err := datadir.Open(o.data)
	if err != nil {
		return 0, openFault(o.data, err)
	}
	defer d.Close()
	source := d.Source()
	source.Events = until(ctx, source.Events)
	if o.anchor != "" {
		if source.Checkpoint, err = os.ReadFile(o.anchor); err != nil {
			return 0, usagef("read --anchor: %w", err)
		}
	}
	switch {
	case o.format != "tiles":
		err = exportRows(o, source)
	case o.payloads:
		err = audit.WriteExportOpened(o.out, source)
	default:
		err = audit.WriteExport(o.out, source)
	}
	var known *exitError
	switch {
	case errors.As(err, &known):
		return 0, err
	case ctx.Err() != nil:
		return 0, fmt.Errorf("%w; nothing was written", context.Cause(ctx))
	case errors.Is(err, fs.ErrPermission):
		return 0, usagef("%w; nothing was written: may this user read %s and write to %s?", err, o.data, filepath.Dir(filepath.Clean(o.out)))
	case err != nil:
		return 0, &exitError{exitIntegrity, fmt.Errorf("%w; nothing was written: run verify --data %s", err, o.data)}
	case o.format != "tiles":
		return audit.SizeOf(source.Checkpoint), nil
	}
	report, err := audit.VerifyExport(os.DirFS(o.out), audit.Options{})
	if err != nil {
		return 0, fmt.Errorf("look at the export: %w", err)
	}
	return report.Events, nil
}

// until is the events of a log, as long as ctx has not ended.
func until(ctx context.Context, each func(from, to uint64, fn func(uint64, []byte) error) error) func(from, to uint64, fn func(uint64, []byte) error) error {
	return func(from, to uint64, fn func(uint64, []byte) error) error {
		return each(from, to, func(seq uint64, event []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(seq, event)
		})
	}
}

// exportRows writes a file that is there whole, or not at all.
func exportRows(o exportOptions, source *audit.Source) error {
	if _, err := os.Lstat(o.out); !errors.Is(err, fs.ErrNotExist) {
		return usagef("%s is there already; name a file that does not exist", o.out)
	}
	f, err := os.CreateTemp(filepath.Dir(o.out), "."+filepath.Base(o.out)+".*")
	if err != nil {
		return usagef("write --out: %w", err)
	}
	defer os.Remove(f.Name())
	if err := audit.WriteRows(f, source, audit.RowFormat(o.format)); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync(), f.Close(), os.Link(f.Name(), o.out)); err != nil {
		return usagef("write --out: %w", err)
	}
	return syncDir(filepath.Dir(o.out))
}

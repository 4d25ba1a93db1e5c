package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
)

func (a *app) exportCommand() *cobra.Command {
	var data, out, anchor string
	cmd := &cobra.Command{
		Use:   "export --data DIR --out DIR",
		Short: "Write the log, up to its last checkpoint, for auditors: tiles, entries and open payloads, no secret",
		Long: `Write the log, up to its last checkpoint, for auditors: a C2SP tlog-tiles directory
with the open payloads (policies, mandatory records) and no sealed one. The log is
checked on the way, and one with a fault is not exported. A ledger being served is
not disturbed.`,
		Example: `  ledgerd export --data ./data --out ./export`,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case data == "":
				return usagef("which ledger? give --data DIR")
			case out == "":
				return usagef("where to? give --out DIR, which must not exist or be empty")
			}
			size, err := export(data, out, anchor)
			if err != nil {
				return err
			}
			made := struct {
				Out    string `json:"out"`
				Events uint64 `json:"events"`
			}{out, size}
			return a.showStruct(made, func() {
				fmt.Fprintf(a.stdout, "%d events in %s\nnext: verify --export %s\n", size, clean(out), clean(out))
			})
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the data directory")
	cmd.Flags().StringVar(&out, "out", "", "the directory to make")
	cmd.Flags().StringVar(&anchor, "anchor", "", "file of the last signed checkpoint (default: DIR/anchor)")
	return cmd
}

// export writes the log in data to out and returns how many events that are.
func export(data, out, anchor string) (events uint64, err error) {
	if names, err := os.ReadDir(out); err == nil && len(names) > 0 {
		return 0, usagef("%s is not empty; name a directory that is, or does not exist", out)
	}
	d, err := datadir.Open(data)
	if err != nil {
		return 0, openFault(data, err)
	}
	defer d.Close()
	source := d.Source()
	if anchor != "" {
		if source.Checkpoint, err = os.ReadFile(anchor); err != nil {
			return 0, usagef("read --anchor: %w", err)
		}
	}
	if err := audit.WriteExport(out, source); err != nil {
		return 0, &exitError{exitIntegrity, fmt.Errorf("%w; nothing was written: run verify --data %s", err, data)}
	}
	report, err := audit.VerifyExport(os.DirFS(out), audit.Options{})
	if err != nil {
		return 0, fmt.Errorf("look at the export: %w", err)
	}
	return report.Events, nil
}

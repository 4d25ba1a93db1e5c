package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/internal/bench"
)

func (a *app) benchCommand() *cobra.Command {
	var o bench.Options
	var grow, job string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a ledger beside the bare parts it is made of",
		Long: `Measure a ledger beside the bare parts it is made of, taking turns: a NATS server
that only echoes, a bare sync, a bare hash. What counts are the ratios; absolute
numbers belong to the machine and its other work. Every figure has a row, the ones
not measured with the reason. It takes some minutes and some gigabytes in a
temporary directory, which it removes.`,
		Example: `  ledgerd bench
  ledgerd bench --quick
  ledgerd bench --overload
  ledgerd bench --only "256 outstanding, feed off" --runs 1 --duration 5s --cpuprofile ledger.prof
  ledgerd bench --mix write --dir /srv -o json
  ledgerd bench --grow 10M --runs 3 --dir /srv -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Build, o.Version, o.Progress = build(), semver(), a.stderr
			if job != "" {
				tuneRuntime()
				return bench.RunSelf(cmd.Context(), o, job, os.Stdin, os.Stdout)
			}
			var err error
			if o.Grow, err = parseCount(grow); err != nil {
				return usagef("--grow: %v", err)
			}
			o.Self = selfProcess
			switch {
			case o.Runs < 0 || o.Duration < 0:
				return usagef("--runs and --duration are more than 0")
			case !slices.Contains(bench.Mixes(), o.Mix):
				return usagef("--mix %s: it is one of %s", o.Mix, strings.Join(bench.Mixes(), ", "))
			}
			tuneRuntime() // as serve does: what is measured is what is run
			report, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.showStruct(report, func() { a.benchTable(report) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Quick, "quick", false, "only see that it works, in seconds: the figures mean little")
	f.IntVar(&o.Runs, "runs", 0, "pairs of each comparison (5)")
	f.DurationVar(&o.Duration, "duration", 0, "of one run (1s)")
	f.StringVar(&o.Mix, "mix", "standard", "what is sent: "+strings.Join(bench.Mixes(), ", "))
	f.BoolVar(&o.Overload, "overload", false, "measure what becomes of more than it can do: fairness, goodput, control, recovery")
	f.StringVar(&o.Dir, "dir", "", "directory on the disk to measure (default: that for temporary files)")
	f.StringVar(&o.Only, "only", "", "measure only the figures whose name contains this")
	f.StringVar(&grow, "grow", "", "write a log of so many events (10M, 300k) and measure what its length costs, and nothing else")
	f.StringVar(&job, "job", "", "")
	f.Lookup("job").Hidden = true // of the processes that bench starts itself
	f.StringVar(&o.CPUProfile, "cpuprofile", "", "write a CPU profile to this file, of the first run at 256 outstanding or of what --only names")
	return cmd
}

func (a *app) benchTable(r *bench.Report) {
	m := r.Machine
	fmt.Fprintf(a.stdout, "%s, %d cores, GOMAXPROCS %d, %s, %s; fdatasync of 4 KiB in %s: p50 %.3f ms\nmix %s, %d pairs of %s each\n\n",
		clean(m.CPU), m.Cores, m.GoMaxProcs, m.OS, m.Go, clean(m.Dir), m.SyncP50, m.Mix, m.Runs, m.Duration)
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "FIGURE\tVALUE\tMARK\tMET\tMEASURED")
	for _, row := range r.Rows {
		value, met := "–", "–"
		if row.Value != nil {
			value = fmt.Sprintf("%.4g %s", *row.Value, row.Unit)
			if *row.Value >= 1000 {
				value = fmt.Sprintf("%.0f %s", *row.Value, row.Unit)
			}
		}
		if row.Met != nil {
			met = map[bool]string{true: "yes", false: "no"}[*row.Met]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", row.Figure, value, row.Mark, met, clean(row.Base))
	}
}

// parseCount reads a number that may end in k or M; empty is 0.
func parseCount(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	digits, unit := s, uint64(1)
	if d, ok := strings.CutSuffix(s, "M"); ok {
		digits, unit = d, 1_000_000
	} else if d, ok := strings.CutSuffix(s, "k"); ok {
		digits, unit = d, 1000
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no number like 300k or 10M", s)
	}
	return n * unit, nil
}

// selfProcess is this program again, to do a job for bench.
func selfProcess(ctx context.Context, job string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, self, "bench", "--job", job)
	cmd.Stderr = os.Stderr
	return cmd
}

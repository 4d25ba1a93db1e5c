package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/trial"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, try, compare and look back on policies",
		Long: `Check, try, compare and look back on policies. lint and test need no ledger: they
judge by the functions that the ledger judges by.`,
	}
	cmd.AddCommand(a.policyLint(), a.policyTest(), a.policyHistory(), a.policyShow(), a.diffCommand(),
		a.policyKeygen(), a.policySign(), a.policySigners())
	return cmd
}

// remark is a fault or a warning about a file, as it is shown.
type remark struct {
	Level   string `json:"level"` // fault or warning
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

func (a *app) policyLint() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Show every fault of policy files, and what is likely a mistake",
		Long: `Show every fault of policy files at once, each with its place and the way to mend
it, and warn of what is likely a mistake: an action that takes any object, a
capability nobody holds, an action nobody may serve, a rule that never counts.

The exit code is 2 where there is a fault, else 0; with --strict a warning counts
as a fault. What only the ledger knows (who is registered, which versions were
used) is told by "ledgerd apply --dry-run".`,
		Example: `  ledgerd policy lint policy.yaml
  ledgerd policy lint --strict policy.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var found []remark
			var shown []string
			faults := 0
			for _, name := range args {
				list, faulty, err := a.lint(name)
				if err != nil {
					return err
				}
				level := "warning"
				if faulty {
					level, faults = "fault", faults+len(list)
				}
				for _, f := range list {
					found = append(found, remark{level, f.File, f.Line, f.Column, f.Message})
					f.Message = level + ": " + f.Message
					shown = append(shown, f.String())
				}
			}
			if err := a.showRemarks(found, shown, faults); err != nil {
				return err
			}
			if faults > 0 || strict && len(found) > 0 {
				return &exitError{code: exitUsage}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "let a warning count as a fault")
	return cmd
}

// lint returns the faults of a file or, where it has none, the warnings.
func (a *app) lint(name string) (list []policy.Fault, faulty bool, err error) {
	name, b, err := a.readInput(name)
	if err != nil {
		return nil, false, usagef("read the documents: %w", err)
	}
	documents, faults := policy.ParseFile(name, string(b))
	if len(faults) > 0 {
		return faults, true, nil
	}
	return trial.Lint(policy.SplitFile(name, string(b)), documents), false, nil
}

func (a *app) showRemarks(found []remark, shown []string, faults int) error {
	if a.output == "jsonl" {
		return showLines(a, found)
	}
	if found == nil {
		found = []remark{}
	}
	return a.showStruct(found, func() {
		for _, text := range shown {
			fmt.Fprintln(a.stdout, cleanLines(text))
		}
		fmt.Fprintf(a.stdout, "%d faults, %d warnings\n", faults, len(found)-faults)
	})
}

// tried is what became of one file of cases.
type tried struct {
	File     string      `json:"file"`
	Cases    int         `json:"cases"`
	Failures []triedCase `json:"failures"`
}

type triedCase struct {
	Case     string `json:"case"`
	Line     int    `json:"line"`
	Asked    string `json:"asked"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

func (a *app) policyTest() *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE...",
		Short: "Try the cases in FILE on the policy that they name",
		Long: `Try the cases in FILE on the policy file that they name, which lies beside them.
The documents of that file are applied to an empty ledger in memory, and each case
is judged as the ledger would judge it: no server is asked and nothing is kept.

The exit code is 3 where a case comes out otherwise, 2 where a file has a fault or
no case.`,
		Example: `  ledgerd policy test examples/policies/report/cases.yaml`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var all []tried
			failed := 0
			for _, name := range args {
				one, err := a.try(name)
				if err != nil {
					return err
				}
				all, failed = append(all, one), failed+len(one.Failures)
			}
			if err := a.showTried(all); err != nil {
				return err
			}
			if failed > 0 {
				return &exitError{code: exitDenied}
			}
			return nil
		},
	}
}

func (a *app) try(name string) (tried, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return tried{}, usagef("read the cases: %w", err)
	}
	cases, faults := policy.ParseCases(name, string(b))
	if len(faults) > 0 {
		return tried{}, usagef("nothing was tried:\n%s", faultLines(faults))
	}
	file := filepath.Join(filepath.Dir(name), filepath.FromSlash(cases.Policy))
	text, err := os.ReadFile(file)
	if err != nil {
		return tried{}, usagef("read the policy that %s names: %w", name, err)
	}
	documents, faults := policy.ParseFile(file, string(text))
	if len(faults) > 0 {
		return tried{}, usagef("nothing was tried:\n%s", faultLines(faults))
	}
	failures, said := trial.Run(policy.SplitFile(file, string(text)), documents, cases.Cases)
	if len(said) > 0 {
		return tried{}, usagef("%s cannot be tried on its own: %s", file, strings.Join(said, "; "))
	}
	one := tried{File: name, Cases: len(cases.Cases), Failures: []triedCase{}}
	for _, f := range failures {
		one.Failures = append(one.Failures, triedCase{f.Case.Name, f.Case.Line, f.Case.Agent + " " + f.Case.Operation, f.Want, f.Got})
	}
	return one, nil
}

func faultLines(faults []policy.Fault) string {
	var lines []string
	for _, f := range faults {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "\n")
}

func (a *app) showTried(all []tried) error {
	if a.output == "jsonl" {
		return showLines(a, all)
	}
	return a.showStruct(all, func() {
		for _, one := range all {
			for _, f := range one.Failures {
				fmt.Fprintf(a.stdout, "%s:%d: %s: %s\n  expected  %s\n  found     %s\n",
					clean(one.File), f.Line, clean(f.Case), clean(f.Asked), clean(f.Expected), clean(f.Found))
			}
			fmt.Fprintf(a.stdout, "%s: %d of %d cases as expected\n", clean(one.File), one.Cases-len(one.Failures), one.Cases)
		}
	})
}

func (a *app) policyHistory() *cobra.Command {
	return &cobra.Command{
		Use:     "history",
		Short:   "List every policy that was put in force, oldest first",
		Example: `  ledgerd policy history --as auditor --creds creds/auditor.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := c.PolicyHistory(ctx)
				if err != nil {
					return err
				}
				if a.output == "jsonl" {
					return showLines(a, all)
				}
				if all == nil {
					all = []client.Activated{}
				}
				return a.showStruct(all, func() {
					w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
					defer w.Flush()
					fmt.Fprintln(w, "SEQ\tTIME\tVERSION\tDIGEST\tBY")
					for _, p := range all {
						fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", p.Seq, clean(p.Time), clean(p.Version), clean(p.Digest), clean(p.By))
					}
				})
			})
		},
	}
}

func (a *app) policyShow() *cobra.Command {
	var at uint64
	cmd := &cobra.Command{
		Use:   "show [--at SEQ]",
		Short: "Print the policy in force, now or at a seq, byte for byte",
		Long: `Print the policy in force, now or at a seq, byte for byte as it was applied: its
SHA-256 is the digest that decisions name. With -o json, with its place in the log.`,
		Example: `  ledgerd policy show --at 120 | sha256sum`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				p, err := c.Policy(ctx, at)
				if missing(err) {
					return notFound("a policy that was in force at that seq")
				}
				if err != nil {
					return err
				}
				return a.showStruct(p, func() { fmt.Fprint(a.stdout, p.Document) }) // a policy holds no control characters
			})
		},
	}
	cmd.Flags().Uint64Var(&at, "at", 0, "the seq to look at (default: now)")
	return cmd
}

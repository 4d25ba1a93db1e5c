package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *app) sopSubmit() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "submit FILE",
		Short: "Have a procedure judged and, if every step may be done, run",
		Long: `Have the procedure in FILE judged as a whole and, if every step may be done, run.
Each step is judged again at its moment. Without --wait the answer is that the
run is admitted; "ledgerd run show" follows it. With it, the exit code is 0 for a
run that is finished, or still under way, and else that of the reason it ended
for.

FILE is JSON, - for standard input:
` + sopExample,
		Example: `  ledgerd sop submit report.json --wait 10s --as researcher --creds creds/researcher.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 || wait > client.WaitMax {
				return usagef("--wait %s: 0 to %s", wait, client.WaitMax)
			}
			sop, err := a.readJSON(args[0])
			if err != nil {
				return err
			}
			a.timeout += wait
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.SubmitSOP(ctx, client.SOPRequest{Meta: a.meta(), SOP: sop}, wait)
				if err != nil {
					return err
				}
				if err := a.showReply(reply); err != nil {
					return err
				}
				return runEnd(reply.Run)
			})
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for the run's end, at most 1m")
	return cmd
}

// runEnd is the error of a run that ended otherwise than finished.
func runEnd(r *client.Run) error {
	if r == nil || !r.AtRest() || r.State == client.RunFinished {
		return nil
	}
	return denial(r.Reason)
}

// runRows shows a run, a line for the whole and one for each step.
func runRows(w *tabwriter.Writer, r *client.Run) {
	if r == nil {
		return
	}
	fmt.Fprintf(w, "run\t%s  %s  %s\n", clean(r.RunID), clean(string(r.State)), clean(string(r.Reason)))
	for _, s := range r.Results {
		result := safeJSON(s.Result)
		if s.Erased {
			result = []byte("(erased)")
		}
		if s.Omitted {
			result = []byte("(not shown: ask for this step alone, --step " + clean(s.StepID) + ")")
		}
		fmt.Fprintf(w, "step\t%s  %s  %s  %s\n", clean(s.StepID), clean(s.Action), clean(s.State), result)
	}
}

func (a *app) runCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "run", Short: "List, show, cancel and resolve runs of procedures"}
	cmd.AddCommand(a.runList(), a.runShow(), a.runCancel(), a.runResolve())
	return cmd
}

func (a *app) runShow() *cobra.Command {
	var step string
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run and what became of its steps",
		Long: `Show a run and what became of its steps. Results are shown to the run's own agent
alone, and memory values to nobody.`,
		Example: `  ledgerd run show 01a2298d-e241-727b-9fa8-c4bc082473e3`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(checkToken("RUN", args[0]), checkOptionalToken("--step", step)); err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				run, err := c.Run(ctx, args[0], step)
				if missing(err) {
					return notFound("run %s, or it is not in what %s may see", args[0], a.as)
				}
				if err != nil {
					return err
				}
				return a.show(run.Raw, func() {
					w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
					defer w.Flush()
					row(w, "agent", run.Agent)
					fmt.Fprintf(w, "sop\t%s  version %d\n", clean(run.SOPID), run.SOPVersion)
					runRows(w, run)
					fmt.Fprintf(w, "seq\t%d\n", run.Seq)
				})
			})
		},
	}
	cmd.Flags().StringVar(&step, "step", "", "this step alone")
	return cmd
}

func (a *app) runList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the runs that are under way or in doubt",
		Long: `Show the runs that have not come to their end: as an agent your own and those of
your subtree, else those of all whom you see. What has ended, "run show" shows.`,
		Example: `  ledgerd run list --as admin --creds data/keys/admin.nk`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, seq, err := c.Runs(ctx)
				if err != nil {
					return err
				}
				if a.output == "jsonl" {
					return showLines(a, list)
				}
				return a.showStruct(wire.Runs{Runs: append([]client.OpenRun{}, list...), Seq: seq}, func() {
					w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
					defer w.Flush()
					fmt.Fprintln(w, "RUN\tAGENT\tSOP\tSTATE\tDONE\tSTEP\tADMITTED")
					for _, r := range list {
						fmt.Fprintf(w, "%s\t%s\t%s %d\t%s\t%d/%d\t%s\t%s\n", clean(r.RunID), clean(r.Agent), clean(r.SOPID), r.SOPVersion,
							clean(strings.TrimSpace(r.State+" "+r.Reason)), r.Done, r.Steps, clean(r.StepID), clean(r.Admitted))
					}
				})
			})
		},
	}
}

func (a *app) runCancel() *cobra.Command {
	return &cobra.Command{
		Use:     "cancel RUN",
		Short:   "End a run of your own: no further step starts",
		Long:    "End a run of your own: no further step starts. What has started is not called back.",
		Example: `  ledgerd run cancel 01a2298d-e241-727b-9fa8-c4bc082473e3 --as researcher --creds creds/researcher.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkToken("RUN", args[0]); err != nil {
				return err
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.CancelRun(ctx, client.CancelRequest{Meta: a.meta(), RunID: args[0]})
			})
		},
	}
}

// What a person may find out about an effect.
const (
	outcomeDone    = "done"
	outcomeNotDone = "not_done"
)

func (a *app) runResolve() *cobra.Command {
	return &cobra.Command{
		Use:   "resolve RUN STEP done|not_done",
		Short: "Settle a run in doubt: did the step's effect happen?",
		Long: `Settle a run in doubt, as an admin who has found out whether the effect of the
step happened. It is recorded with who said so. See docs/HANDLERS.md.`,
		Example: `  ledgerd run resolve 01a2298d-e241-727b-9fa8-c4bc082473e3 save done --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(checkToken("RUN", args[0]), checkToken("STEP", args[1])); err != nil {
				return err
			}
			if args[2] != outcomeDone && args[2] != outcomeNotDone {
				return usagef("%s: it is %s or %s", args[2], outcomeDone, outcomeNotDone)
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.ResolveRun(ctx, client.ResolveRequest{Meta: a.meta(), RunID: args[0], StepID: args[1], Done: args[2] == outcomeDone})
			})
		},
	}
}

func checkToken(what, s string) error {
	if events.ValidToken(s) {
		return nil
	}
	return usagef("%s %q: letters, digits, - _ and ., at most %d", what, s, events.TokenBytesMax)
}

func checkOptionalToken(what, s string) error {
	if s == "" {
		return nil
	}
	return checkToken(what, s)
}

func (a *app) denyCommand() *cobra.Command {
	var r client.DenyRequest
	cmd := &cobra.Command{
		Use:   "deny (--agent ID | --everyone) (--capability C | --all) --reason TEXT",
		Short: "Emergency: take capabilities away at once; \"deny lift\" gives them back",
		Long: `Take capabilities away at once, as an admin: from an agent and all below it, or
from everyone on the ledger. It reaches procedures that run: their next step is
denied. The answer names the deny's epoch and lists the effects that had started
before it, which it does not stop. It holds until it is lifted.

--dry-run changes nothing and lists the effects.`,
		Example: `  ledgerd deny --agent researcher --all --reason "acts on injected text" --as admin --creds data/keys/admin.nk
  ledgerd deny --everyone --capability external.upload --reason "leak" --as admin --creds data/keys/admin.nk
  ledgerd deny lift 3 --as admin --creds data/keys/admin.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (r.AgentID == "") == !r.Ledger:
				return usagef("whom? give --agent ID, for it and all below it, or --everyone")
			case (len(r.Capabilities) == 0) == !r.All:
				return usagef("what? give --capability C, as often as needed, or --all")
			case r.Reason == "":
				return usagef("why? give --reason TEXT; it is kept sealed, for those who look later")
			}
			if r.AgentID != "" {
				if err := checkID("--agent", r.AgentID); err != nil {
					return err
				}
			}
			for _, c := range r.Capabilities {
				if !events.ValidAction(c) {
					return usagef("--capability %q: it is %s", c, actionGrammar)
				}
			}
			r.Meta = a.meta()
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.EmergencyDeny(ctx, r)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.AgentID, "agent", "", "the agent, with all below it")
	f.BoolVar(&r.Ledger, "everyone", false, "every agent of the ledger")
	f.StringSliceVar(&r.Capabilities, "capability", nil, "a capability to take away; may be given again")
	f.BoolVar(&r.All, "all", false, "every capability")
	f.StringVar(&r.Reason, "reason", "", "why, for people")
	f.BoolVar(&r.DryRun, "dry-run", false, "change nothing; list the effects it would come too late for")
	cmd.AddCommand(a.denyLift(), a.denyList())
	return cmd
}

func (a *app) denyLift() *cobra.Command {
	return &cobra.Command{
		Use:     "lift EPOCH",
		Short:   "End an emergency deny",
		Example: `  ledgerd deny lift 3 --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			epoch, err := strconv.ParseUint(args[0], 10, 53)
			if err != nil || epoch == 0 {
				return usagef("EPOCH %q: the number that the deny was answered with", args[0])
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.EmergencyLift(ctx, client.LiftRequest{Meta: a.meta(), Epoch: epoch})
			})
		},
	}
}

func (a *app) denyList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show the emergency denies in force, with the epochs that \"deny lift\" takes",
		Example: `  ledgerd deny list --as admin --creds data/keys/admin.nk`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				in, err := c.Denies(ctx)
				if err != nil {
					return err
				}
				if a.output == "jsonl" {
					return showLines(a, in.Denies)
				}
				return a.showStruct(in, func() {
					w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
					defer w.Flush()
					fmt.Fprintln(w, "EPOCH\tWHO\tWHAT")
					for _, d := range in.Denies {
						who, what := d.AgentID+" and all below it", strings.Join(d.Capabilities, " ")
						if d.Ledger {
							who = "everyone"
						}
						if d.All {
							what = "everything"
						}
						fmt.Fprintf(w, "%d\t%s\t%s\n", d.Epoch, clean(who), clean(what))
					}
				})
			})
		},
	}
}

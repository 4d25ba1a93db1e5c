package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *app) grantCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Lend a secret of yours to one agent for a time"}
	cmd.AddCommand(a.grantGive(), a.grantRevoke(), a.grantList())
	return cmd
}

func (a *app) grantGive() *cobra.Command {
	var r client.GrantRequest
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "give NAMESPACE KEY --to AGENT --for DURATION",
		Short: "Let one agent read a secret of yours",
		Long: `Let one agent read a secret of yours until the time is over, or it was read
--uses times. The agent reads it with "ledgerd memory get NAMESPACE KEY --owner YOU".`,
		Example: `  ledgerd grant give credentials token --to researcher --for 1h
  ledgerd grant give credentials token --to researcher --for 10m --uses 1`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch seconds := lasts / time.Second; {
			case lasts != seconds*time.Second || seconds < 1 || seconds > events.GrantSecondsMax:
				return usagef("--for %s: whole seconds, from 1s to %dh", lasts, events.GrantSecondsMax/3600)
			case cmd.Flags().Changed("uses") && r.Uses == 0:
				return usagef("--uses 0: at least 1; without it, any number of times")
			default:
				r.ExpiresSeconds = uint64(seconds)
			}
			if err := cmp.Or(checkRecord("", args[0], args[1]), checkID("--to", r.To)); err != nil {
				return err
			}
			r.Meta, r.Namespace, r.Key = a.meta(), args[0], args[1]
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Give(ctx, r)
			})
		},
	}
	cmd.Flags().StringVar(&r.To, "to", "", "the agent that may read it")
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long, like 1h; at most 720h")
	cmd.Flags().Uint64Var(&r.Uses, "uses", 0, "how often it may be read (default: any number of times)")
	return cmd
}

func (a *app) grantRevoke() *cobra.Command {
	var r client.RevokeGrantRequest
	cmd := &cobra.Command{
		Use:     "revoke NAMESPACE KEY --to AGENT",
		Short:   "End what an agent was lent",
		Example: `  ledgerd grant revoke credentials token --to researcher`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(checkRecord("", args[0], args[1]), checkID("--to", r.To)); err != nil {
				return err
			}
			r.Meta, r.Namespace, r.Key = a.meta(), args[0], args[1]
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.RevokeGrant(ctx, r)
			})
		},
	}
	cmd.Flags().StringVar(&r.To, "to", "", "the agent that it was lent to")
	return cmd
}

func (a *app) grantList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show what you lent and were lent, as long as it lasts",
		Long: `Show the grants in force: as an agent those that you gave and those that you were
given, as admin, auditor or observer those of all whose doings you see.`,
		Example: `  ledgerd grant list --as researcher --creds creds/researcher.nk`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, seq, err := c.Grants(ctx)
				if err != nil {
					return err
				}
				if a.output == "jsonl" {
					return showLines(a, list)
				}
				return a.showStruct(wire.Grants{Grants: append([]client.Grant{}, list...), Seq: seq}, func() {
					w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
					defer w.Flush()
					fmt.Fprintln(w, "OWNER\tRECORD\tTO\tEXPIRES\tUSES LEFT")
					for _, g := range list {
						uses := "any"
						if g.Uses > 0 {
							uses = strconv.FormatUint(g.Uses, 10)
						}
						fmt.Fprintf(w, "%s\t%s.%s\t%s\t%s\t%s\n", clean(g.Owner), clean(g.Namespace), clean(g.Key), clean(g.To), clean(g.Expires), uses)
					}
				})
			})
		},
	}
}

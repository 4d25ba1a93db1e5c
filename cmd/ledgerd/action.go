package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
)

func (a *app) actionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "action", Short: "Have one action with its exact arguments judged"}
	cmd.AddCommand(a.actionAuthorize())
	return cmd
}

func (a *app) actionAuthorize() *cobra.Command {
	var arguments string
	cmd := &cobra.Command{
		Use:   "authorize ACTION [--args JSON]",
		Short: "Propose an action with its exact arguments, and have the decision recorded",
		Long: `Propose an action with its exact arguments. The decision, allowed or denied, is
recorded; nothing is run. "ledgerd can-i" asks the same and leaves no decision;
"ledgerd sop submit" runs.`,
		Example: `  ledgerd action authorize artifact.save --args '{"path":"draft/a.md"}' --as researcher --creds creds/researcher.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !events.ValidAction(args[0]) {
				return usagef("action %q: it is %s", args[0], actionGrammar)
			}
			if _, err := events.ParseJSON([]byte(arguments)); err != nil {
				return usagef("--args:%w", placed([]byte(arguments), err))
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Authorize(ctx, client.AuthorizeRequest{Meta: a.meta(), Action: args[0], Arguments: json.RawMessage(arguments)})
			})
		},
	}
	cmd.Flags().StringVar(&arguments, "args", "{}", "the action's arguments, a JSON object")
	return cmd
}

func (a *app) environmentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "environment", Short: "Narrow what may be done on this ledger at all"}
	cmd.AddCommand(a.environmentSet())
	return cmd
}

func (a *app) environmentSet() *cobra.Command {
	return &cobra.Command{
		Use:   "set CAPABILITY…",
		Short: "Cut the policy's environment down to these capabilities",
		Long: `Cut the environment of the policy in force down to these capabilities, as an
admin. What an agent may do is within it, whatever is declared for it. It lasts
until it is set anew, also under a later policy; to have all of the policy's back,
name all of it. "ledgerd deny" is for emergencies, and for one subtree.`,
		Example: `  ledgerd environment set memory.read artifact.save --as admin --creds data/keys/admin.nk`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, c := range args {
				if !events.ValidAction(c) {
					return usagef("capability %q: it is %s", c, actionGrammar)
				}
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.SetEnvironment(ctx, client.EnvironmentRequest{Meta: a.meta(), Capabilities: args})
			})
		},
	}
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *app) restrictionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "restriction", Short: "Hold yourself and all agents beneath you to one more requirement"}
	cmd.AddCommand(a.restrictionAdd(), a.restrictionRemove(), a.restrictionList())
	return cmd
}

func (a *app) restrictionAdd() *cobra.Command {
	var r client.RestrictionRequest
	cmd := &cobra.Command{
		Use:   "add ID --action ACTION --require CEL",
		Short: "Add a requirement on an action's arguments to yourself and all beneath you",
		Long: `Add a requirement on an action's arguments, in CEL over args, to yourself and all
beneath you, those registered later too. Whatever is not true denies. What is added
stays: only an admin removes it. docs/POLICY.md lists the functions that it may call.`,
		Example: `  ledgerd restriction add drafts-only --action artifact.save --require 'args.path.within("draft")'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !events.ValidToken(args[0]):
				return usagef("restriction %q: its id is %s", args[0], tokenGrammar)
			case !events.ValidAction(r.Action):
				return usagef("--action %q: it is %s", r.Action, actionGrammar)
			case r.Require == "":
				return usagef("what is required? give --require 'CEL', like 'args.size <= 1000'")
			}
			r.Meta, r.ID = a.meta(), args[0]
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Restrict(ctx, r)
			})
		},
	}
	cmd.Flags().StringVar(&r.Action, "action", "", "the action that it is a requirement of")
	cmd.Flags().StringVar(&r.Require, "require", "", "what must be true of args, in CEL")
	return cmd
}

func (a *app) restrictionRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "remove AGENT ID",
		Short:   "As admin: take a restriction away from its agent",
		Example: `  ledgerd restriction remove researcher drafts-only --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("agent", args[0]); err != nil {
				return err
			}
			if !events.ValidToken(args[1]) {
				return usagef("restriction %q: its id is %s", args[1], tokenGrammar)
			}
			r := client.RemoveRestrictionRequest{Meta: a.meta(), AgentID: args[0], ID: args[1]}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.RemoveRestriction(ctx, r)
			})
		},
	}
}

func (a *app) restrictionList() *cobra.Command {
	return &cobra.Command{
		Use:   "list [AGENT]",
		Short: "Show what binds you, or AGENT: its own restrictions and those of all above it",
		Example: `  ledgerd restriction list --as researcher --creds creds/researcher.nk
  ledgerd restriction list formatter --as admin --creds data/keys/admin.nk`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent := cmp.Or(strings.Join(args, ""), a.as)
			if err := checkOptionalID("agent", agent); err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				has, err := c.Capabilities(ctx, agent)
				if missing(err) {
					return notFound("agent %s, or it is not in what %s may see", agent, a.as)
				}
				if err != nil {
					return err
				}
				return a.showRestrictions(has.Restrictions)
			})
		},
	}
}

func (a *app) showRestrictions(list []client.Restriction) error {
	if a.output == "jsonl" {
		return showLines(a, list)
	}
	return a.showStruct(append([]client.Restriction{}, list...), func() {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		defer w.Flush()
		fmt.Fprintln(w, "AGENT\tID\tACTION\tREQUIRE")
		for _, r := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(r.AgentID), clean(r.ID), clean(r.Action), clean(r.Require))
		}
	})
}

func (a *app) resourceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "resource", Short: "Say what the objects are that arguments name, and look it up"}
	cmd.AddCommand(a.resourceSet(), a.resourceShow(), a.resourceList())
	return cmd
}

func (a *app) resourceSet() *cobra.Command {
	var r client.ResourceRequest
	cmd := &cobra.Command{
		Use:   "set ID --classification CLASS",
		Short: "As admin: say what an object is, in the place of what was said before",
		Long: `As admin: say what an object is, in the place of what was said of it before.
Requirements ask it by resource(id), so that who asks cannot claim it.`,
		Example: `  ledgerd resource set doc/c-1 --classification internal --owner legal --tags contract,2026 --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !events.ValidResourceID(args[0]):
				return usagef("resource %q: its id is %s", args[0], resourceGrammar)
			case !events.ValidToken(r.Classification):
				return usagef("--classification %q: it is %s", r.Classification, tokenGrammar)
			case r.Owner != "" && !events.ValidToken(r.Owner):
				return usagef("--owner %q: it is %s", r.Owner, tokenGrammar)
			}
			for _, tag := range r.Tags {
				if !events.ValidToken(tag) {
					return usagef("--tags: tag %q: it is %s", tag, tokenGrammar)
				}
			}
			r.Meta, r.ID = a.meta(), args[0]
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.SetResource(ctx, r)
			})
		},
	}
	cmd.Flags().StringVar(&r.Classification, "classification", "", "how it is classified, like public or internal")
	cmd.Flags().StringVar(&r.Owner, "owner", "", "who it belongs to")
	cmd.Flags().StringSliceVar(&r.Tags, "tags", nil, "at most 16 tags, with commas between")
	return cmd
}

func (a *app) resourceShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show what was said of one object",
		Example: `  ledgerd resource show doc/c-1 --as auditor --creds creds/auditor.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !events.ValidResourceID(args[0]) {
				return usagef("resource %q: its id is %s", args[0], resourceGrammar)
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.Resource(ctx, args[0])
				if missing(err) {
					return notFound("resource %s; \"ledgerd resource set\" makes it known", args[0])
				}
				if err != nil {
					return err
				}
				return a.showStruct(r, func() { a.resourceTable([]client.Resource{*r}) })
			})
		},
	}
}

func (a *app) resourceList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show the whole registry",
		Example: `  ledgerd resource list --as auditor --creds creds/auditor.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, seq, err := c.Resources(ctx)
				if err != nil {
					return err
				}
				if a.output == "jsonl" {
					return showLines(a, list)
				}
				return a.showStruct(wire.Resources{Resources: append([]client.Resource{}, list...), Seq: seq}, func() { a.resourceTable(list) })
			})
		},
	}
}

func (a *app) resourceTable(list []client.Resource) {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "RESOURCE\tCLASSIFICATION\tOWNER\tTAGS")
	for _, r := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(r.ID), clean(r.Classification), clean(r.Owner), clean(strings.Join(r.Tags, " ")))
	}
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
)

func (a *app) memoryCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "memory", Short: "Read, write, delete and load records"}
	cmd.AddCommand(a.memoryGet(), a.memoryPut(), a.memoryDelete(), a.memoryLoad())
	return cmd
}

func (a *app) memoryGet() *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "get NAMESPACE KEY",
		Short: "Read the nearest record visible to you, or --owner's",
		Example: `  ledgerd memory get project client_region
  ledgerd memory get notes summary --owner researcher -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRecord(owner, args[0], args[1]); err != nil {
				return err
			}
			r := client.ReadRequest{Meta: a.meta(), Namespace: args[0], Key: args[1], Owner: owner}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Read(ctx, r)
			})
		},
	}
	cmd.Flags().StringVar(&owner, "owner", "", "read this agent's record instead of walking up the hierarchy")
	return cmd
}

// valueHelp is how a VALUE on the command line is read.
const valueHelp = `

VALUE is JSON where it reads as JSON (30, true, "30", {"a":1}) and text where it
does not (EU); --text takes it as text in any case. What begins like JSON, with
{ [ " - or a digit, and is not JSON that a ledger takes, is an error.`

// value reads VALUE as valueHelp says.
func value(arg string, text bool) (json.RawMessage, error) {
	if text {
		return events.AppendString(nil, arg), nil
	}
	v, err := events.ParseJSON([]byte(arg))
	switch begin := strings.TrimLeft(arg, " \t\r\n"); {
	case err == nil && v.Kind == events.Null:
		return nil, usagef("null is no value of a record; use --text to store it as text")
	case err == nil:
		return v.AppendCanonical(nil), nil
	case begin != "" && strings.Contains(`{["-0123456789`, begin[:1]):
		return nil, usagef("VALUE begins like JSON and is none that a ledger takes: %w; use --text to store it as text", placed([]byte(arg), err))
	}
	return events.AppendString(nil, arg), nil
}

func (a *app) memoryPut() *cobra.Command {
	var r client.WriteRequest
	var text bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "put NAMESPACE KEY VALUE",
		Short: "Write a record: create it, or update it at --revision",
		Long:  "Write a record: create it, or update it at --revision, the one it has now." + valueHelp,
		Example: `  ledgerd memory put notes summary "three findings" --visibility children
  ledgerd memory put notes summary "four findings" --revision 1
  ledgerd memory put tasks step '{"at":3}' --ttl 1h`,
		Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("ttl") && (ttl < time.Second || ttl%time.Second != 0 || ttl > events.TTLSecondsMax*time.Second) {
				return usagef("--ttl is whole seconds, from 1s to 720h")
			}
			r.TTLSeconds = uint64(ttl / time.Second)
			v, err := value(args[2], text)
			if err := cmp.Or(err, checkWrite(r.Owner, args[0], args[1], r.Visibility)); err != nil {
				return err
			}
			r.Meta, r.Namespace, r.Key, r.Value = a.meta(), args[0], args[1], v
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Write(ctx, r)
			})
		},
	}
	cmd.Flags().Uint64Var(&r.ExpectedRevision, "revision", 0, "the revision to update; none creates")
	cmd.Flags().StringVar(&r.Visibility, "visibility", "", "private, children or descendants (new records: private)")
	cmd.Flags().StringVar(&r.Owner, "owner", "", "whose record (default: yours)")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it lasts, like 1h; at most 720h (default: for ever, or what its namespace rule says)")
	cmd.Flags().BoolVar(&text, "text", false, "VALUE is text even if it reads as JSON")
	return cmd
}

func (a *app) memoryDelete() *cobra.Command {
	var r client.DeleteRequest
	cmd := &cobra.Command{
		Use:     "delete NAMESPACE KEY --revision N",
		Short:   "Delete a record at its revision",
		Example: `  ledgerd memory delete notes summary --revision 2`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.ExpectedRevision == 0 {
				return usagef("which revision? give --revision N; \"ledgerd memory get\" shows it")
			}
			if err := checkRecord(r.Owner, args[0], args[1]); err != nil {
				return err
			}
			r.Meta, r.Namespace, r.Key = a.meta(), args[0], args[1]
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Delete(ctx, r)
			})
		},
	}
	cmd.Flags().Uint64Var(&r.ExpectedRevision, "revision", 0, "the revision it has now")
	cmd.Flags().StringVar(&r.Owner, "owner", "", "whose record (default: yours)")
	return cmd
}

// loadRequest is the request of the control verb memory.load.
type loadRequest struct {
	client.Meta
	Owner      string          `json:"owner_agent_id"`
	Namespace  string          `json:"namespace"`
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value"`
	Visibility string          `json:"visibility,omitempty"`
}

func (a *app) memoryLoad() *cobra.Command {
	var r loadRequest
	var text bool
	cmd := &cobra.Command{
		Use:     "load NAMESPACE KEY VALUE --owner AGENT",
		Short:   "As admin: write an agent's record for the first time; never overwrites",
		Long:    "As admin: write an agent's record for the first time; never overwrites." + valueHelp,
		Example: `  ledgerd memory load project client_region EU --owner report_manager --visibility descendants`,
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.Owner == "" {
				return usagef("whose record? give --owner AGENT")
			}
			v, err := value(args[2], text)
			if err := cmp.Or(err, checkWrite(r.Owner, args[0], args[1], r.Visibility)); err != nil {
				return err
			}
			r.Meta, r.Namespace, r.Key, r.Value = a.meta(), args[0], args[1], v
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Control(ctx, "memory.load", r)
			})
		},
	}
	cmd.Flags().StringVar(&r.Owner, "owner", "", "the agent whose record it becomes")
	cmd.Flags().StringVar(&r.Visibility, "visibility", "", "private, children or descendants (default: private)")
	cmd.Flags().BoolVar(&text, "text", false, "VALUE is text even if it reads as JSON")
	return cmd
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *app) sopCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "sop", Short: "Have a procedure judged as a whole, and run"}
	cmd.AddCommand(a.sopValidate(), a.sopSubmit())
	return cmd
}

const sopExample = `  {"sop_id":"report","version":1,"steps":[{"step_id":"save","action":"artifact.save","arguments":{"path":"draft/a.md"}}]}`

func (a *app) sopValidate() *cobra.Command {
	return &cobra.Command{
		Use:     "validate FILE",
		Short:   "Judge every step of the procedure in FILE; run nothing",
		Long:    "Judge every step of the procedure in FILE; run nothing.\n\nFILE is JSON, - for standard input:\n" + sopExample,
		Example: "  ledgerd sop validate report.json --as researcher --creds creds/researcher.nk",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sop, err := a.readJSON(args[0])
			if err != nil {
				return err
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.ValidateSOP(ctx, client.SOPRequest{Meta: a.meta(), SOP: sop})
			})
		},
	}
}

// readInput reads the file called name, or standard input for "-", and returns
// what to call it in a message.
func (a *app) readInput(name string) (shown string, b []byte, err error) {
	if name == "-" {
		b, err = io.ReadAll(a.stdin)
		return "<stdin>", b, err
	}
	b, err = os.ReadFile(name)
	return name, b, err
}

// readJSON reads a file of JSON, and says where it is none that a ledger takes.
func (a *app) readJSON(name string) (json.RawMessage, error) {
	name, b, err := a.readInput(name)
	if err != nil {
		return nil, usagef("read the procedure: %w", err)
	}
	if _, err := events.ParseJSON(b); err != nil {
		return nil, usagef("%s:%w", name, placed(b, err))
	}
	return b, nil
}

// placed is a JSON error with line and column, from 1, in place of its offset.
func placed(b []byte, err error) error {
	fault, ok := err.(*events.JSONError)
	if !ok {
		return err
	}
	before := b[:min(fault.Offset, len(b))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(bytes.Runes(before[bytes.LastIndexByte(before, '\n')+1:])) + 1
	return fmt.Errorf("%d:%d: %s", line, column, fault.Rule)
}

func (a *app) canICommand() *cobra.Command {
	var arguments string
	cmd := &cobra.Command{
		Use:   "can-i AGENT OPERATION",
		Short: "Would this be allowed now? Asks without proposing; leaves no decision",
		Long: `Would this be allowed now? Asks without proposing, and leaves no decision.

OPERATION is an operation with its request in --args, or an action with its
arguments. Without --args, memory.read, memory.write, memory.delete and
agent.register ask whether the agent holds the capability. The exit code is that
of the reason.`,
		Example: `  ledgerd can-i formatter artifact.save --args '{"path":"draft/x.md"}'
  ledgerd can-i researcher memory.write --args '{"owner_agent_id":"report_manager","namespace":"report","key":"retention_days","value":31}'`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := events.ParseJSON([]byte(arguments)); err != nil {
				return usagef("--args:%w", placed([]byte(arguments), err))
			}
			if err := checkID("agent", args[0]); err != nil {
				return err
			}
			if !events.ValidAction(args[1]) {
				return usagef("operation %q: it is %s", args[1], actionGrammar)
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				e, err := canI(ctx, c, args[0], args[1], json.RawMessage(arguments), cmd.Flags().Changed("args"))
				if missing(err) {
					return notFound("agent %s, or it is not in what %s may see", args[0], a.as)
				}
				if err != nil {
					return err
				}
				if err := a.showExplanation(e); err != nil || e.Allowed {
					return err
				}
				return denial(e.ReasonCode)
			})
		},
	}
	cmd.Flags().StringVar(&arguments, "args", "{}", "the request of an operation, or the arguments of an action: one JSON object")
	return cmd
}

// missing reports whether a query found nothing by the name asked for.
func missing(err error) bool {
	var refused *client.Refusal
	return errors.As(err, &refused) && refused.Reason == reason.NotFound
}

// canI asks about an operation as it would be sent, or, where no request was
// given, about the capability that it needs.
func canI(ctx context.Context, c *client.Client, agent, name string, arguments json.RawMessage, given bool) (*client.Explanation, error) {
	switch {
	case given:
	case name == "agent.register":
		return holds(ctx, c, agent, name)
	case name == "memory.read", name == "memory.write", name == "memory.delete":
		capability := strings.Replace(name, "delete", "write", 1)
		return c.Explain(ctx, agent, "action.authorize", client.AuthorizeRequest{Action: capability})
	}
	operation, request := asked(name, arguments)
	return c.Explain(ctx, agent, operation, request)
}

// holds answers for a capability that is no action and so cannot be asked for
// by itself.
func holds(ctx context.Context, c *client.Client, agent, capability string) (*client.Explanation, error) {
	has, err := c.Capabilities(ctx, agent)
	if err != nil {
		return nil, err
	}
	e := &client.Explanation{Subject: agent, Lineage: []string{agent}, Operation: capability, Guards: []wire.Guard{}, Seq: has.Seq}
	e.Allowed, e.ReasonCode = true, reason.ActionAllowed
	if !slices.Contains(has.Effective, capability) {
		e.Allowed, e.ReasonCode = false, reason.CapabilityNotInherited
	}
	e.Message = e.ReasonCode.Text()
	for _, r := range has.Removed {
		if r.Capability == capability {
			e.Removed = append(e.Removed, r)
		}
	}
	return e, nil
}

// asked turns a name into an operation and its request: an operation as it is,
// any other name as the action of action.authorize.
func asked(name string, arguments json.RawMessage) (operation string, request any) {
	if wire.Known(wire.Propose, name) != events.Unsupported {
		return name, arguments
	}
	return "action.authorize", client.AuthorizeRequest{Action: name, Arguments: arguments}
}

func (a *app) explainCommand() *cobra.Command {
	var seq uint64
	cmd := &cobra.Command{
		Use:     "explain --seq N",
		Short:   "Show how a decision came about, guard by guard",
		Example: `  ledgerd explain --seq 16 --as admin --creds data/keys/admin.nk`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("did you mean \"ledgerd explain --seq %s\"?", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if seq == 0 {
				return usagef("which decision? give --seq N; \"ledgerd decisions\" lists them")
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				e, err := c.ExplainSeq(ctx, seq)
				if missing(err) {
					return notFound("a decision at seq %d that %s may see; \"ledgerd decisions\" lists them", seq, a.as)
				}
				if err != nil {
					return err
				}
				return a.showExplanation(e)
			})
		},
	}
	cmd.Flags().Uint64Var(&seq, "seq", 0, "the decision's seq, from its receipt")
	return cmd
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// meta is what the global flags say about every request.
func (a *app) meta() client.Meta { return client.Meta{OperationID: a.operationID} }

func (a *app) agentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "agent", Short: "Register, revoke and list agents"}
	cmd.AddCommand(a.agentRegister(), a.agentRevoke(), a.agentList())
	return cmd
}

// keyFlags name the key of whoever is registered: given, or kept in a file.
type keyFlags struct{ public, dir string }

func (k *keyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.public, "public-key", "", "its NATS user key, U…; else DIR/<id>.nk is used, and made if absent")
	cmd.Flags().StringVar(&k.dir, "creds-dir", "creds", "the directory DIR of that file")
}

// register sends a registration of id under its key. A key made for it is
// removed again if the ledger does not take it.
func (a *app) register(ctx context.Context, id string, k keyFlags, send func(ctx context.Context, c *client.Client, public string) (*client.Reply, error)) error {
	return a.decided(ctx, func(ctx context.Context, c *client.Client) (reply *client.Reply, err error) {
		if k.public != "" {
			return send(ctx, c, k.public)
		}
		keys := &keyring{dir: k.dir}
		defer func() { keys.settle(reply, err) }()
		public, err := keys.key(id)
		if err != nil {
			return nil, err
		}
		return send(ctx, c, public)
	})
}

func (a *app) agentRegister() *cobra.Command {
	var capabilities, use, writes []string
	var parent string
	var root bool
	var key keyFlags
	cmd := &cobra.Command{
		Use:   "register ID",
		Short: "Register an agent: your own child, or as admin or registrar one under --parent or --root",
		Example: `  ledgerd agent register formatter --capabilities memory.read,artifact.save --as researcher --creds creds/researcher.nk
  ledgerd agent register planner --root --capabilities memory.read,memory.write --as admin --creds data/keys/admin.nk`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if root && parent != "" {
				return usagef("--root and --parent exclude each other")
			}
			if err := cmp.Or(checkID("agent", args[0]), checkOptionalID("--parent", parent)); err != nil {
				return err
			}
			return a.register(cmd.Context(), args[0], key, func(ctx context.Context, c *client.Client, public string) (*client.Reply, error) {
				r := client.RegisterRequest{Meta: a.meta(), AgentID: args[0], ParentID: parent, Capabilities: append([]string{}, capabilities...), Use: use, Writes: writes, PublicKey: public}
				if root || parent != "" {
					return c.Control(ctx, "agent.register", r)
				}
				return c.Register(ctx, r)
			})
		},
	}
	cmd.Flags().StringSliceVar(&capabilities, "capabilities", nil, "what it declares, with commas between")
	cmd.Flags().StringSliceVar(&use, "use", nil, "of those, what it may do itself; the rest it passes on")
	cmd.Flags().StringSliceVar(&writes, "writes", nil, "namespaces that it and all below it may write in: notes.* is notes and notes.x")
	cmd.Flags().StringVar(&parent, "parent", "", "its parent (admin, registrar)")
	cmd.Flags().BoolVar(&root, "root", false, "it has no parent (admin, registrar)")
	key.add(cmd)
	return cmd
}

func (a *app) agentRevoke() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID",
		Short:   "End an agent for good; its whole subtree loses every capability",
		Example: `  ledgerd agent revoke researcher --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("agent", args[0]); err != nil {
				return err
			}
			return a.control(cmd.Context(), "agent.revoke", map[string]string{"agent_id": args[0]})
		},
	}
}

func (a *app) agentList() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Show the agents, or those under --root",
		Example: `  ledgerd agent list --as admin --creds data/keys/admin.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOptionalID("--root", root); err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				agents, seq, err := c.Agents(ctx, root)
				if err != nil {
					return err
				}
				if root != "" && len(agents) == 0 {
					return notFound("agent %s, or it is not in what %s may see", root, a.as)
				}
				return a.showAgents(agents, seq)
			})
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "only this agent and all below it")
	return cmd
}

func (a *app) showAgents(agents []client.Agent, seq uint64) error {
	if a.output == "jsonl" {
		return showLines(a, agents)
	}
	return a.showStruct(wire.Agents{Agents: append([]client.Agent{}, agents...), Seq: seq}, func() {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		defer w.Flush()
		fmt.Fprintln(w, "AGENT\tPARENT\tEFFECTIVE\tDECLARED ONLY")
		for _, agent := range agents {
			name := agent.AgentID
			if agent.Revoked {
				name += " (revoked)"
			}
			missing := policy.NewSet(agent.Capabilities...).Minus(policy.NewSet(agent.Effective...))
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(name), clean(agent.ParentID), clean(strings.Join(agent.Effective, " ")), clean(strings.Join(missing, " ")))
		}
	})
}

// control sends a control request of named texts.
func (a *app) control(ctx context.Context, verb string, request map[string]string) error {
	if a.operationID != "" {
		request["operation_id"] = a.operationID
	}
	return a.decided(ctx, func(ctx context.Context, c *client.Client) (*client.Reply, error) {
		return c.Control(ctx, verb, request)
	})
}

func (a *app) principalCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "principal", Short: "Register, re-key, revoke and list who is no agent: admins, auditors, observers, handlers…"}
	cmd.AddCommand(a.principalRegister(), a.principalRekey(), a.principalList(), &cobra.Command{
		Use:     "revoke ID",
		Short:   "End a principal for good",
		Example: `  ledgerd principal revoke tools --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkID("principal", args[0]); err != nil {
				return err
			}
			return a.control(cmd.Context(), "principal.revoke", map[string]string{"id": args[0]})
		},
	})
	return cmd
}

func (a *app) principalList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "Show the principals",
		Example: `  ledgerd principal list --as admin --creds data/keys/admin.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				principals, seq, err := c.Principals(ctx)
				if err != nil {
					return err
				}
				return a.showPrincipals(principals, seq)
			})
		},
	}
}

func (a *app) showPrincipals(principals []client.Principal, seq uint64) error {
	if a.output == "jsonl" {
		return showLines(a, principals)
	}
	return a.showStruct(wire.Principals{Principals: append([]client.Principal{}, principals...), Seq: seq}, func() {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		defer w.Flush()
		fmt.Fprintln(w, "PRINCIPAL\tROLE\tACTIONS\tGROUPS\tROOT")
		for _, p := range principals {
			name := p.ID
			if p.Revoked {
				name += " (revoked)"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", clean(name), clean(p.Role), clean(strings.Join(p.Actions, " ")), clean(strings.Join(p.Groups, " ")), clean(p.Root))
		}
	})
}

// principalRequest is the request of the control verb principal.register.
type principalRequest struct {
	client.Meta
	ID        string   `json:"id"`
	Role      string   `json:"role"`
	PublicKey string   `json:"public_key"`
	Actions   []string `json:"actions,omitempty"`
	Groups    []string `json:"groups,omitempty"`
	Root      string   `json:"root,omitempty"`
}

func (a *app) principalRegister() *cobra.Command {
	var r principalRequest
	var key keyFlags
	cmd := &cobra.Command{
		Use:   "register ID --role ROLE",
		Short: "Register a principal",
		Example: `  ledgerd principal register auditor1 --role auditor --as admin --creds data/keys/admin.nk
  ledgerd principal register tools --role handler --actions artifact.save`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !policy.ValidRole(r.Role) {
				return usagef("which role? --role is admin, approver, auditor, handler, observer or registrar")
			}
			if err := cmp.Or(checkID("principal", args[0]), checkOptionalID("--root", r.Root)); err != nil {
				return err
			}
			r.Meta, r.ID = a.meta(), args[0]
			return a.register(cmd.Context(), r.ID, key, func(ctx context.Context, c *client.Client, public string) (*client.Reply, error) {
				r.PublicKey = public
				return c.Control(ctx, "principal.register", r)
			})
		},
	}
	cmd.Flags().StringVar(&r.Role, "role", "", "admin, approver, auditor, handler, observer or registrar")
	cmd.Flags().StringSliceVar(&r.Actions, "actions", nil, "the actions of a handler")
	cmd.Flags().StringSliceVar(&r.Groups, "groups", nil, "the groups of an approver")
	cmd.Flags().StringVar(&r.Root, "root", "", "the agent whose subtree an observer is confined to")
	key.add(cmd)
	return cmd
}

func (a *app) principalRekey() *cobra.Command {
	var key keyFlags
	cmd := &cobra.Command{
		Use:   "rekey ID",
		Short: "Give a principal another key; the old one is dead at once",
		Long: `Give a principal another key; the old one is dead at once.

Without --public-key the new seed is written to DIR/<id>.new.nk first, and takes
the place of DIR/<id>.nk when the ledger has accepted it. Where the outcome is
not known, repeat it with --operation-id: it uses the same new key.`,
		Example: `  ledgerd principal rekey tools --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if err := checkID("principal", id); err != nil {
				return err
			}
			if key.public != "" {
				return a.control(cmd.Context(), "principal.rekey", map[string]string{"id": id, "public_key": key.public})
			}
			next := filepath.Join(key.dir, id+".new.nk")
			public, err := (&keyring{}).keyAt(next) // kept in any case, for the same command again
			if err != nil {
				return err
			}
			err = a.control(cmd.Context(), "principal.rekey", map[string]string{"id": id, "public_key": public})
			if err != nil {
				return err
			}
			if err := errors.Join(os.Rename(next, filepath.Join(key.dir, id+".nk")), syncDir(key.dir)); err != nil {
				return fmt.Errorf("the new key is in force and lies in %s: %w", next, err)
			}
			return nil
		},
	}
	key.add(cmd)
	return cmd
}

func (a *app) clockCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "clock", Short: "Deal with a wall clock that ran ahead"}
	cmd.AddCommand(&cobra.Command{
		Use:     "accept",
		Short:   "Take the wall clock's word after it ran more than a minute ahead of the ledger's",
		Example: `  ledgerd clock accept --as admin --creds data/keys/admin.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.control(cmd.Context(), "clock.accept", map[string]string{})
		},
	})
	return cmd
}

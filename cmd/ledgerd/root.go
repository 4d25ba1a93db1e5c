package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
)

// app is one invocation of the command: its surroundings and its global flags.
type app struct {
	env            func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer

	server, as, creds, ledger, tlsCA string
	output, operationID              string
	timeout                          time.Duration
}

// laterCommands come with later releases; naming them is no typing mistake.
var laterCommands = []string{
	"approve", "mcp", "watch",
}

const exitCodes = `Exit codes:
  0  done or allowed
  1  internal
  2  usage or bad input
  3  denied
  4  not found
  5  conflict
  6  integrity
  7  unavailable`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ledgerd",
		Short: "A ledger of what agents may do, remember and have done",
		Long: `ledgerd judges what agents propose, keeps what they remember, and seals every
decision into a log that anyone can verify. Begin with "ledgerd demo".

` + exitCodes,
		Example: `  ledgerd demo
  ledgerd init --data ./data
  ledgerd serve --data ./data`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", a.or("LEDGERD_SERVER", "nats://127.0.0.1:4222"), "the ledger's NATS URL (LEDGERD_SERVER)")
	flags.StringVar(&a.as, "as", a.env("LEDGERD_AS"), "the id to act as (LEDGERD_AS)")
	flags.StringVar(&a.creds, "creds", a.env("LEDGERD_CREDS"), "file with that id's NATS user seed, SU… (LEDGERD_CREDS)")
	flags.StringVar(&a.ledger, "ledger", a.or("LEDGERD_LEDGER", "main"), "the ledger's name (LEDGERD_LEDGER)")
	flags.StringVar(&a.tlsCA, "tls-ca", "", "file with the certificates to trust for TLS, PEM")
	flags.StringVarP(&a.output, "output", "o", "table", "table, json, jsonl or yaml")
	flags.StringVar(&a.operationID, "operation-id", "", "repeat an operation whose outcome is not known: the id it was sent under")
	flags.DurationVar(&a.timeout, "timeout", 20*time.Second, "how long to try")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.timeout <= 0 {
			return usagef("--timeout %s: how long to try, more than 0, like 5s", a.timeout)
		}
		return a.checkOutput()
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see \"%s --help\"", err, cmd.CommandPath())
	})
	root.AddCommand(
		a.demoCommand(), a.initCommand(), a.serveCommand(), a.applyCommand(),
		a.agentCommand(), a.principalCommand(), a.memoryCommand(), a.grantCommand(), a.restrictionCommand(), a.resourceCommand(), a.payloadCommand(), a.actionCommand(), a.sopCommand(), a.runCommand(), a.environmentCommand(), a.denyCommand(), a.policyCommand(), a.diffCommand(),
		a.canICommand(), a.explainCommand(), a.tailCommand(), a.decisionsCommand(),
		a.backupCommand(), a.restoreCommand(), a.epochCommand(), a.keyCommand(),
		a.clockCommand(), a.benchCommand(), a.doctorCommand(), a.exportCommand(), a.proofCommand(), a.tokenCommand(), a.witnessCommand(), a.errorsCommand(), a.versionCommand(),
	)
	strict(root)
	return root
}

func (a *app) or(name, fallback string) string {
	if v := a.env(name); v != "" {
		return v
	}
	return fallback
}

func (a *app) checkOutput() error {
	if slices.Contains([]string{"table", "json", "jsonl", "yaml"}, a.output) {
		return nil
	}
	wrong := a.output
	a.output = "table"
	return usagef("-o %s: it is table, json, jsonl or yaml", wrong)
}

// strict makes every mistake on the command line a usage error: wrong numbers
// of arguments, and unknown commands, with a suggestion where one is near.
func strict(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.SuggestionsMinimumDistance = 2
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		}
		return
	}
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	if !cmd.HasParent() && slices.Contains(laterCommands, name) {
		return usagef("%s is not in this release; see \"ledgerd --help\" for what is", name)
	}
	near := ""
	if similar := cmd.SuggestionsFor(name); len(similar) > 0 {
		near = "; did you mean " + strings.Join(similar, " or ") + "?"
	}
	return usagef("unknown command %q for %q%s; see \"%s --help\"", name, cmd.CommandPath(), near, cmd.CommandPath())
}

// connect opens the connection that the client flags describe.
func (a *app) connect(ctx context.Context) (*client.Client, error) {
	switch {
	case a.as == "":
		return nil, usagef("who is asking? give --as ID or set LEDGERD_AS")
	case a.creds == "":
		return nil, usagef("no key for %s; give --creds FILE.nk or set LEDGERD_CREDS", clean(a.as))
	}
	if err := cmp.Or(checkID("--as", a.as), checkID("--ledger", a.ledger)); err != nil {
		return nil, err
	}
	if _, err := publicKeyOf(a.creds); err != nil {
		return nil, usagef("the key of %s: %w", a.as, err)
	}
	o := client.Options{Server: a.server, Ledger: a.ledger, ID: a.as, SeedFile: a.creds}
	if a.tlsCA != "" {
		pem, err := os.ReadFile(a.tlsCA)
		if err != nil {
			return nil, usagef("read --tls-ca: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, usagef("--tls-ca %s holds no PEM certificate", a.tlsCA)
		}
		o.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return client.Connect(ctx, o)
}

// withClient runs f with a connection, within the time that --timeout gives.
func (a *app) withClient(ctx context.Context, f func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}

// decided runs f with a connection and shows the decision it brings.
func (a *app) decided(ctx context.Context, f func(context.Context, *client.Client) (*client.Reply, error)) error {
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		reply, err := f(ctx, c)
		if err != nil {
			return err
		}
		return a.showReply(reply)
	})
}

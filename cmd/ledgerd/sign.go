package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

func (a *app) policyKeygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a key that signs policies, and print its public half",
		Long: `Make a key that signs policies: a NATS user seed in FILE (mode 0600), which must not
exist. It prints the public key, for "ledgerd init --policy-signer" or "ledgerd policy
signers". Keep FILE away from the machine that serves, and from who may apply.`,
		Example: `  ledgerd policy keygen signer.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			seed, err := newSeed()
			if err != nil {
				return err
			}
			if err := writeOnce(args[0], append(seed, '\n')); err != nil {
				return usagef("write the key: %w", err)
			}
			public, err := publicKeyOf(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, public)
			return nil
		},
	}
}

func (a *app) policySign() *cobra.Command {
	var file, keyFile, origin string
	var number uint64
	var signers []string
	cmd := &cobra.Command{
		Use:   "sign (-f FILE | --signers KEY,...) --key SEEDFILE --origin ORIGIN",
		Short: "Sign a policy, or a change of the signers, for one ledger",
		Long: `Sign the Policy document of a file, or a change of the keys that sign policies, for the
ledger of an origin, and print the signature: a line for "ledgerd apply --signatures".
It asks no ledger: sign where the key is. The origin is the first line of a ledger's
checkpoint, and is told with the refusal of an unsigned policy.`,
		Example: `  ledgerd policy sign -f policy.yaml --key signer.nk --origin ledgerd.local/main/0123456789abcdef/1 > policy.sig
  ledgerd apply -f policy.yaml --signatures policy.sig`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case keyFile == "":
				return usagef("with which key? give --key SEEDFILE")
			case !events.ValidOrigin(origin):
				return usagef("for which ledger? give --origin, the first line of its checkpoint")
			case !policy.ValidSigners(policy.NewSet(signers...)):
				return usagef("--signers: public keys of NATS users, U…, at most %d", policy.SignersMax)
			case (file == "") == (number == 0):
				return usagef("give -f FILE, or --signers with --number")
			}
			statement := policy.SignersStatement(origin, number, policy.NewSet(signers...))
			if file != "" {
				document, err := a.policyOf(file)
				if err != nil {
					return err
				}
				statement = policy.Statement(origin, document.Version, document.Digest)
			}
			if _, err := publicKeyOf(keyFile); err != nil {
				return err
			}
			seed, err := os.ReadFile(keyFile)
			if err != nil {
				return fmt.Errorf("read the key: %w", err)
			}
			signature, err := policy.Sign([]byte(strings.TrimSpace(string(seed))), statement)
			if err != nil {
				return fmt.Errorf("sign: %w", err)
			}
			fmt.Fprintln(a.stdout, signature)
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file with the Policy document")
	cmd.Flags().StringSliceVar(&signers, "signers", nil, "the public keys that shall sign from then on; \"\" for none")
	cmd.Flags().Uint64Var(&number, "number", 0, "which change of the signers it is, from 1; the refusal of an unsigned one tells")
	cmd.Flags().StringVar(&keyFile, "key", "", "the seed of a key that signs policies now")
	cmd.Flags().StringVar(&origin, "origin", "", "the ledger's origin")
	return cmd
}

// policyOf is the one Policy document of a file.
func (a *app) policyOf(file string) (*policy.Policy, error) {
	parts, err := a.readDocuments([]string{file})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(parts, func(p part) bool { return p.doc.Policy != nil })
	if i < 0 {
		return nil, usagef("%s has no document of kind: Policy", file)
	}
	return parts[i].doc.Policy, nil
}

func (a *app) policySigners() *cobra.Command {
	var files []string
	var none bool
	cmd := &cobra.Command{
		Use:   "signers [KEY... | --none]",
		Short: "List whose signature every policy needs, or say whose it needs from here on",
		Long: `List the keys that sign policies or, as admin and given any, say which sign
policies from here on: one of them has to sign every policy that is applied. The first are an admin's to name; every change after that has to be signed by
one of those so far ("ledgerd policy sign --signers"). With --none, and so signed,
policies need no signature any more. "ledgerd init --policy-signer" begins with signers.`,
		Example: `  ledgerd policy signers UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4
  ledgerd policy signers KEY1 KEY2 --signatures change.sig`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case none && len(args) > 0:
				return usagef("give KEYs, or --none")
			case len(args) == 0 && !none:
				return a.listSigners(cmd.Context())
			}
			if !policy.ValidSigners(policy.NewSet(args...)) {
				return usagef("keys are public keys of NATS users, U…, at most %d; \"ledgerd policy keygen FILE\" makes one", policy.SignersMax)
			}
			signatures, err := a.signatures(files)
			if err != nil {
				return err
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) {
				return c.Control(ctx, "signers.set", signersRequest{a.meta(), append([]string{}, args...), signatures})
			})
		},
	}
	cmd.Flags().StringArrayVar(&files, "signatures", nil, "file with signatures, one a line; may be repeated")
	cmd.Flags().BoolVar(&none, "none", false, "policies shall need no signature")
	return cmd
}

func (a *app) listSigners(ctx context.Context) error {
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		keys, err := c.Signers(ctx)
		if err != nil {
			return err
		}
		return a.showStruct(append([]string{}, keys...), func() {
			for _, key := range keys {
				fmt.Fprintln(a.stdout, clean(key))
			}
			if len(keys) == 0 {
				fmt.Fprintln(a.stdout, "policies need no signature")
			}
		})
	})
}

// signersRequest is the request of the control verb signers.set.
type signersRequest struct {
	client.Meta
	Keys       []string `json:"keys"`
	Signatures []string `json:"signatures,omitempty"`
}

// signatures reads the lines of files.
func (a *app) signatures(files []string) (all []string, err error) {
	for _, name := range files {
		_, b, err := a.readInput(name)
		if err != nil {
			return nil, usagef("read the signatures: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); line != "" {
				all = append(all, line)
			}
		}
	}
	if len(all) > policy.SignersMax {
		return nil, usagef("%d signatures; at most %d go with one request", len(all), policy.SignersMax)
	}
	return all, nil
}

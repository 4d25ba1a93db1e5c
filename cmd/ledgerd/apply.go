package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/policy"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var credsDir, expected string
	var dryRun bool
	var signed []string
	cmd := &cobra.Command{
		Use:   "apply -f FILE...",
		Short: "Put documents (Policy, Agent, Memory, Principal) in force, all or none",
		Long: `Put documents in force, all or none. What is not in the files is left as it is,
and applying the same files again changes nothing.

A new Agent or Principal without public_key gets one: its seed is written to
DIR/<id>.nk before anything is sent, or taken from there if the file exists. Who
is registered keeps the registered key. A seed that the ledger did not take is
removed again.`,
		Example: `  ledgerd apply -f lab.yaml --as admin --creds data/keys/admin.nk
  ledgerd apply -f lab.yaml --dry-run
  generate-policy | ledgerd apply -f -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usagef("which file? give -f FILE, or -f - for standard input")
			}
			parts, err := a.readDocuments(files)
			if err != nil {
				return err
			}
			signatures, err := a.signatures(signed)
			if err != nil {
				return err
			}
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (reply *client.Reply, err error) {
				known, err := registered(ctx, c)
				if err != nil {
					return nil, err
				}
				keys := &keyring{dir: credsDir}
				defer func() { keys.settle(reply, err) }()
				documents, err := withKeys(parts, func(id string) (string, error) { return keys.keyToSend(id, known, dryRun) })
				if err != nil {
					return nil, err
				}
				if dryRun && a.output == "table" {
					fmt.Fprintln(a.stdout, "DRY RUN, nothing is changed (the decision itself is logged)")
				}
				return c.Control(ctx, "apply", applyRequest{a.meta(), documents, expected, dryRun, signatures})
			})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "YAML file with one or more documents, - for standard input; may be repeated")
	cmd.Flags().StringVar(&credsDir, "creds-dir", "creds", "directory for the keys of new agents and principals")
	cmd.Flags().StringVar(&expected, "expected-version", "", "apply only if this policy version is in force")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "judge and show what would happen; write no key, change nothing")
	cmd.Flags().StringArrayVar(&signed, "signatures", nil, "file with signatures of the policy, one a line, where the ledger asks for one; may be repeated")
	return cmd
}

// applyRequest is the request of the control verb apply.
type applyRequest struct {
	client.Meta
	Documents       []string `json:"documents"`
	ExpectedVersion string   `json:"expected_version,omitempty"`
	DryRun          bool     `json:"dry_run,omitempty"`
	Signatures      []string `json:"signatures,omitempty"`
}

// part is one document of the files, as it was written and as it reads.
type part struct {
	policy.Part
	doc policy.Document
}

// readDocuments reads all files and shows every fault of all of them at once.
func (a *app) readDocuments(files []string) ([]part, error) {
	var parts []part
	var faults []string
	for _, name := range files {
		name, b, err := a.readInput(name)
		if err != nil {
			return nil, usagef("read the documents: %w", err)
		}
		documents, found := policy.ParseFile(name, string(b))
		for _, f := range found {
			faults = append(faults, f.String())
		}
		for i, p := range policy.SplitFile(name, string(b)) {
			if len(found) == 0 {
				parts = append(parts, part{p, documents[i]})
			}
		}
	}
	if len(faults) > 0 {
		return nil, usagef("nothing was sent:\n%s", strings.Join(faults, "\n"))
	}
	return parts, nil
}

// registered returns the public key of every id that the ledger knows.
func registered(ctx context.Context, c *client.Client) (map[string]string, error) {
	agents, _, err := c.Agents(ctx, "")
	if err != nil {
		return nil, err
	}
	principals, _, err := c.Principals(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]string{}
	for _, agent := range agents {
		known[agent.AgentID] = agent.PublicKey
	}
	for _, p := range principals {
		known[p.ID] = p.PublicKey
	}
	return known, nil
}

// keyToSend is the key to add to id's document. For an id that is registered it
// is none, which keeps the registered key, or that same key if its seed is at
// hand. A dry run makes no file and has a key for show.
func (k *keyring) keyToSend(id string, known map[string]string, dryRun bool) (string, error) {
	held := known[id]
	if held == "" && !dryRun {
		return k.key(id)
	}
	public, err := publicKeyOf(k.path(id))
	switch {
	case errors.Is(err, fs.ErrNotExist) && held == "":
		return throwawayKey()
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err == nil && held != "" && public != held:
		return "", usagef("%s is registered with another key than %s; move that file away to keep the registered key (nothing was sent)", id, k.path(id))
	}
	return public, err
}

// withKeys returns the documents' texts to send. A Policy and everything that
// names its key go as they are; to an Agent or Principal without one, the line
// public_key is added where key has one.
func withKeys(parts []part, key func(id string) (string, error)) ([]string, error) {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
		id := ""
		switch {
		case p.doc.Agent != nil && p.doc.Agent.PublicKey == "":
			id = p.doc.Agent.ID
		case p.doc.Principal != nil && p.doc.Principal.PublicKey == "":
			id = p.doc.Principal.ID
		default:
			continue
		}
		public, err := key(id)
		if err != nil {
			return nil, err
		}
		if public == "" {
			continue
		}
		if texts[i], err = policy.WithKey(p.Text, public); err != nil {
			return nil, usagef("%s: line %d: %s: %w", p.File, p.Line+1, id, err)
		}
	}
	return texts, nil
}

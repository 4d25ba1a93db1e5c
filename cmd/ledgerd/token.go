package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *app) tokenCommand() *cobra.Command {
	var origin string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "token --as ID --creds FILE.nk",
		Short: "Make a token by which an auditor or observer reads entries over HTTP",
		Long: `Make a token by which an auditor, or an observer without a root, reads entries and open
payloads over HTTP (serve --http), and print it. It is signed with the id's own key, for
one ledger and a short time; nobody keeps it, and it dies with the key. Whoever has it can
read the log until then. With --origin, the first line of the ledger's checkpoint, no
ledger is asked.`,
		Example: `  ledgerd token --as checker --creds creds/checker.nk
  curl -H "Authorization: Bearer $(ledgerd token --as checker --creds creds/checker.nk)" http://127.0.0.1:9222/tile/entries/000`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case life < time.Second || life > wire.TokenLife:
				return usagef("--life %s: at least 1s, at most %s", life, wire.TokenLife)
			case origin != "" && !events.ValidOrigin(origin):
				return usagef("--origin: the first line of the ledger's checkpoint")
			case origin != "" && a.as == "":
				return usagef("whose token? give --as ID")
			case origin != "" && a.creds == "":
				return usagef("no key for %s; give --creds FILE.nk", clean(a.as))
			}
			if origin == "" {
				if err := a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
					note, err := c.Checkpoint(ctx)
					origin, _, _ = strings.Cut(note, "\n")
					return err
				}); err != nil {
					return err
				}
			}
			made, err := a.makeToken(origin, time.Now().Add(life))
			if err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, made)
			return nil
		},
	}
	cmd.Flags().StringVar(&origin, "origin", "", "the ledger's origin (default: ask it)")
	cmd.Flags().DurationVar(&life, "life", 10*time.Minute, "for how long it is good, at most 1h")
	return cmd
}

// makeToken signs a token with the seed of --creds.
func (a *app) makeToken(origin string, expires time.Time) (string, error) {
	if err := checkID("--as", a.as); err != nil {
		return "", err
	}
	if _, err := publicKeyOf(a.creds); err != nil {
		return "", usagef("the key of %s: %w", a.as, err)
	}
	seed, err := os.ReadFile(a.creds)
	if err != nil {
		return "", fmt.Errorf("read the key: %w", err)
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		return "", fmt.Errorf("read the key: %w", err)
	}
	defer key.Wipe()
	return wire.NewToken(key, origin, a.as, expires)
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

func (a *app) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "List, rotate and retire the ledger's own keys",
		Long: `The ledger's own keys: checkpoint signs the log, permit will sign permits, seal wraps
the keys of values. Rotate one now and then, or when who could read it has left. Of a
key that leaked the log cannot go on: "ledgerd epoch new --reason compromise".`,
	}
	cmd.AddCommand(a.keyListCommand(), a.keyRotateCommand(), a.keyRetireCommand())
	return cmd
}

func (a *app) keyRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate " + rotatable,
		Short: "Bring the next key of a kind",
		Long: `Bring the next key of a kind. The ledger makes it, in its directory of keys, before
the event that brings it. From then on every checkpoint has the signatures of both
keys, so that auditors who know the old one read on; give them the new verifier key
("ledgerd key list"), then "ledgerd key retire checkpoint".
A seal key takes the place of the one before at once: when the answer is there, every
data key is wrapped under it, the old wrappings are off the disk and the old file is
removed. Copy the new one, keys/seal-N.key, to where you keep the others, now: without
it no value opens.`,
		Example: `  ledgerd key rotate checkpoint --as admin --creds data/keys/admin.nk
  ledgerd key rotate seal --as admin --creds data/keys/admin.nk`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.control(cmd.Context(), "key.rotate", map[string]string{"key": args[0]}); err != nil {
				return err
			}
			if args[0] == events.KeyCheckpoint {
				a.newVKey(cmd.Context())
			}
			a.nextOfKey(afterRotation[args[0]])
			return nil
		},
	}
}

func (a *app) keyRetireCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retire checkpoint|permit",
		Short: "End the older of two keys of a kind",
		Long: `End the older of two keys of a kind that are in force. The event holds a note that
both have signed, by which who knows the old key learns of the new one; its secret
half is removed.`,
		Example: `  ledgerd key retire checkpoint --as admin --creds data/keys/admin.nk`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.control(cmd.Context(), "key.retire", map[string]string{"key": args[0]}); err != nil {
				return err
			}
			if args[0] == events.KeyCheckpoint {
				a.newVKey(cmd.Context())
			}
			a.nextOfKey("next: copy DIR/keys to where you keep it, and take a new backup; \"ledgerd key list --data DIR\" shows the key in force")
			return nil
		},
	}
}

// What is left to do after a rotation, by the kind of the key.
var afterRotation = map[string]string{
	events.KeyCheckpoint: `the new key's files: DIR/keys/checkpoint-N.key (secret) and checkpoint-N.vkey, the verifier key; "ledgerd key list --data DIR" shows both
next: give auditors and clients checkpoint-N.vkey, copy DIR/keys to where you keep it, take a new backup; then ledgerd key retire checkpoint`,
	events.KeyPermit: `the new key's file: DIR/keys/permit-N.key; "ledgerd key list --data DIR" shows it
next: copy DIR/keys to where you keep it, take a new backup; then ledgerd key retire permit`,
	events.KeySeal: `the new key's file: DIR/keys/seal-N.key; "ledgerd key list --data DIR" shows N
next: copy it to where you keep DIR/keys, now, and take a new backup: without it no value opens. Older backups need the key of their time`,
}

// newVKey shows the newest verifier key, for auditors, as the ledger proves it. It
// is a courtesy: the key is rotated, also where it cannot be had.
func (a *app) newVKey(ctx context.Context) {
	if a.output != "table" {
		return
	}
	err := a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		answer, err := c.Rotations(ctx)
		if err != nil {
			return err
		}
		list, err := audit.ParseRotations([]byte(answer.Rotations))
		if err == nil {
			err = audit.CheckRotations(list)
		}
		if err != nil {
			return err
		}
		e, err := events.Parse(list[len(list)-1].Extra)
		if rotated, ok := e.Body.(*events.KeyRotated); err == nil && ok {
			fmt.Fprintf(a.stdout, "the verifier key for auditors: %s\nwho has the one before it follows with: ledgerd proof rotations --out FILE\n", clean(rotated.PublicKey))
		}
		return err
	})
	if err != nil {
		fmt.Fprintf(a.stdout, "the new verifier key could not be shown: %s\n", plain(err))
	}
}

// nextOfKey says what is left to do, where a person reads.
func (a *app) nextOfKey(text string) {
	if a.output == "table" {
		fmt.Fprintln(a.stdout, text)
	}
}

// listedKey is one key as it is shown.
type listedKey struct {
	Kind   string `json:"key"`
	Number uint64 `json:"number"`
	From   uint64 `json:"from,omitempty"`
	Until  uint64 `json:"until,omitempty"`
	Public string `json:"public_key,omitempty"`
}

func (a *app) keyListCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:     "list --data DIR",
		Short:   "List the ledger's own keys, with the events that brought and retired them",
		Example: `  ledgerd key list --data ./data`,
		RunE: func(*cobra.Command, []string) error {
			if data == "" {
				return usagef("which ledger? give --data DIR")
			}
			list, err := listKeys(data)
			if err != nil {
				return openFault(data, err)
			}
			return a.showStruct(list, func() {
				for _, k := range list {
					state := "in force"
					if k.Until != 0 {
						state = fmt.Sprintf("retired by event %d", k.Until)
					}
					if k.Kind == events.KeySeal {
						fmt.Fprintf(a.stdout, "%-10s  %d  in force, the only one\n", k.Kind, k.Number)
						continue
					}
					fmt.Fprintf(a.stdout, "%-10s  %d  from event %d, %s  %s\n", k.Kind, k.Number, k.From, state, clean(k.Public))
				}
			})
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the data directory; its ledger may be served")
	return cmd
}

func listKeys(data string) (list []listedKey, err error) {
	st, err := store.OpenReadOnly(data, store.Options{})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	own, err := ledger.ReadOwnKeys(data, st)
	if err != nil {
		return nil, err
	}
	add := func(kind string, keys []projection.SigningKey) {
		for _, k := range keys {
			list = append(list, listedKey{kind, k.Number, k.From, k.Until, k.Public})
		}
	}
	add(events.KeyCheckpoint, own.Checkpoint)
	add(events.KeyPermit, own.Permit)
	return append(list, listedKey{Kind: events.KeySeal, Number: max(own.Seal, 1)}), nil
}

// rotatable names the kinds of keys that can be rotated.
const rotatable = "checkpoint|permit|seal"

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/witness"
)

// witnessing is a submitter at work.
type witnessing struct {
	*witness.Submitter
	cancel context.CancelFunc
	ended  chan struct{}
}

// readWitnessPolicy reads the file of --witness-policy, nil without it.
func readWitnessPolicy(o nodeOptions) (*audit.WitnessPolicy, error) {
	if o.witnessPolicy == "" {
		return nil, nil
	}
	if o.witnessEvery < time.Second {
		return nil, usagef("--witness-every is at least 1s")
	}
	return witnessPolicy(o.witnessPolicy)
}

func witnessPolicy(file string) (*audit.WitnessPolicy, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("read --witness-policy: %w", err)
	}
	p, err := audit.ParseWitnessPolicy(b)
	if err != nil {
		return nil, usagef("--witness-policy %s: %w", file, err)
	}
	return p, nil
}

// startWitnessing submits the node's checkpoints from now on.
func (n *node) startWitnessing(o nodeOptions, policy *audit.WitnessPolicy, log *slog.Logger) (*witnessing, error) {
	if policy == nil {
		return nil, nil
	}
	s, err := witness.New(witness.Options{
		Policy: policy, Dir: witnessDir(o.data), Note: n.ledger.Checkpoint, Hashes: n.ledger.Hashes, Every: o.witnessEvery, Log: log,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &witnessing{s, cancel, make(chan struct{})}
	go func() {
		s.Run(ctx)
		close(w.ended)
	}()
	return w, nil
}

func (w *witnessing) stop() {
	if w != nil {
		w.cancel()
		<-w.ended
	}
}

func (w *witnessing) submitter() *witness.Submitter {
	if w == nil {
		return nil
	}
	return w.Submitter
}

func witnessDir(data string) string { return filepath.Join(data, "witness") }

// checks are those of ledger and front door, and of the witnesses. One that
// refuses is a warning: the log goes on, and whoever looks is told.
func (n *node) checks() []ledger.Check {
	list := n.front.Checks()
	if n.seen == nil {
		return list
	}
	check := ledger.Check{Name: "witnesses", Status: ledger.CheckOK}
	for _, w := range n.seen.Stats().Witnesses {
		if w.State == witness.Refused || w.State == witness.Unavailable && check.Status == ledger.CheckOK {
			check.Status, check.Detail = ledger.CheckWarn, fmt.Sprintf("witness %s: %s: %s", w.Label, w.State, w.Why)
		}
		if w.State == witness.Refused {
			break
		}
	}
	return append(list, check)
}

func (a *app) witnessCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "witness", Short: "Who cosigns the log's checkpoints, and what they have cosigned"}
	cmd.AddCommand(a.witnessList(), a.witnessStatus())
	return cmd
}

func (a *app) witnessList() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "list --witness-policy FILE",
		Short:   "Read a witness policy, and show whom it names",
		Example: `  ledgerd witness list --witness-policy witnesses.policy`,
		RunE: func(*cobra.Command, []string) error {
			if file == "" {
				return usagef("which policy? give --witness-policy FILE")
			}
			p, err := witnessPolicy(file)
			if err != nil {
				return err
			}
			type row struct {
				Label string `json:"name"`
				VKey  string `json:"vkey"`
				URL   string `json:"url,omitempty"`
			}
			list := []row{}
			for _, w := range p.Witnesses {
				list = append(list, row{w.Label, w.VKey, w.URL})
			}
			return a.showStruct(list, func() {
				for _, w := range list {
					fmt.Fprintf(a.stdout, "%s  %s  %s\n", w.Label, w.VKey, w.URL)
				}
			})
		},
	}
	cmd.Flags().StringVar(&file, "witness-policy", "", "the policy")
	return cmd
}

func (a *app) witnessStatus() *cobra.Command {
	var file, data string
	cmd := &cobra.Command{
		Use:   "status --data DIR --witness-policy FILE",
		Short: "What each witness cosigned last, as it lies in the data directory",
		Long: `What each witness of a policy cosigned last, as it lies in DIR/witness and verifies with
its key. Exit code 6 where a file does not verify, 4 where no witness has cosigned yet.`,
		Example: `  ledgerd witness status --data ./data --witness-policy witnesses.policy`,
		RunE: func(*cobra.Command, []string) error {
			if data == "" || file == "" {
				return usagef("give --data DIR and --witness-policy FILE")
			}
			p, err := witnessPolicy(file)
			if err != nil {
				return err
			}
			list, err := witness.Read(witnessDir(data), p)
			if err != nil {
				return &exitError{exitIntegrity, err}
			}
			if err := a.showStruct(list, func() { a.printWitnesses(list) }); err != nil {
				return err
			}
			for _, w := range list {
				if w.State == witness.Cosigned {
					return nil
				}
			}
			return &exitError{exitNotFound, fmt.Errorf("no witness has cosigned this log yet")}
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the data directory")
	cmd.Flags().StringVar(&file, "witness-policy", "", "the policy that it is served with")
	return cmd
}

func (a *app) printWitnesses(list []witness.Status) {
	t := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "WITNESS\tSTATE\tSIZE\tAGE")
	for _, w := range list {
		age := "-"
		if !w.At.IsZero() {
			age = time.Since(w.At).Round(time.Second).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", w.Label, w.State, w.Size, age)
	}
	t.Flush()
}

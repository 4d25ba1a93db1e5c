package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
)

// prover is where proofs come from, and what becomes of them.
type prover struct {
	a                 *app
	data, export, out string
	event             string // file for the event's bytes
	checkpoint        string // file of the checkpoint that a proof is to be under
}

func (p *prover) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.out, "out", "", "write the proof to this file instead of the standard output")
	cmd.Flags().StringVar(&p.data, "data", "", "take it from this data directory, without a server")
	cmd.Flags().StringVar(&p.export, "export", "", "take it from this export, without a server")
}

func (a *app) proofCommand() *cobra.Command {
	p := &prover{a: a}
	cmd := &cobra.Command{
		Use:   "proof SEQ",
		Short: "Prove that the log holds an event, to whoever has the log's key and the event's receipt",
		Long: `Prove that the log holds an event, to whoever has the log's key and the event's
receipt: the seq and hash that its reply carried. The proof is a C2SP tlog-proof with
the signed checkpoint, and is checked offline by "verify --receipt FILE --proof FILE
--vkey KEY". Agents ask about their own decisions and those below them.

With --data and --checkpoint it is under a checkpoint that was kept, as that which
witnesses cosigned: DIR/witness/quorum.`,
		Example: `  ledgerd proof 16 --out 16.tlog-proof
  ledgerd proof 16 --export exported`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := number("SEQ", args[0])
			if err != nil {
				return err
			}
			if p.checkpoint != "" && p.data == "" {
				return usagef("--checkpoint goes with --data: a server proves under its newest, an export under its own")
			}
			return p.inclusion(cmd.Context(), seq)
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&p.checkpoint, "checkpoint", "", "with --data: file of the signed checkpoint that the proof is to be under (default: the anchor)")
	cmd.Flags().StringVar(&p.event, "event", "", "write the event's bytes to this file, where the log may be read")
	cmd.AddCommand(a.proofConsistency(), a.proofRotations())
	return cmd
}

func (a *app) proofConsistency() *cobra.Command {
	p := &prover{a: a}
	cmd := &cobra.Command{
		Use:   "consistency FROM [TO]",
		Short: "Prove that the log of TO events begins with the FROM events of an earlier checkpoint",
		Long: `Prove that the log of TO events begins with the FROM events of an earlier checkpoint,
unchanged. Without TO it is as far as the newest checkpoint, which comes with it; a
ledger keeps no earlier one, so that another TO takes --checkpoint, or -o json. The
proof is checked offline by "verify --consistency FILE --checkpoint FILE --vkey KEY".`,
		Example: `  ledgerd proof consistency 1200 --out newer.consistency`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := number("FROM", args[0])
			if err != nil {
				return err
			}
			to := uint64(0)
			if len(args) == 2 {
				if to, err = number("TO", args[1]); err != nil {
					return err
				}
				if to < from {
					return usagef("TO %d: it is at least FROM, %d", to, from)
				}
			}
			return p.consistency(cmd.Context(), from, to)
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&p.checkpoint, "checkpoint", "", "file of the signed checkpoint of TO, where it is not the newest")
	return cmd
}

func number(name, s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n > events.IntegerMax {
		return 0, usagef("%s %q: it is a whole number from 1", name, s)
	}
	return n, nil
}

func (p *prover) inclusion(ctx context.Context, seq uint64) error {
	answer, err := p.proofOf(ctx, seq)
	if err != nil {
		return err
	}
	proof, err := audit.ParseInclusionProof([]byte(answer.TlogProof))
	if err == nil {
		err = p.leadsToIt(proof, answer, seq)
	}
	if err != nil {
		return &exitError{exitIntegrity, fmt.Errorf("the proof does not hold: %w", err)}
	}
	if p.event != "" {
		if err := os.WriteFile(p.event, []byte(answer.Event), 0o644); err != nil {
			return usagef("--event: %w", err)
		}
	}
	return p.give(answer, answer.TlogProof, fmt.Sprintf("verify --receipt REPLY --proof %s --vkey KEY", p.out))
}

// leadsToIt checks all of a proof but the signature: the key is the reader's.
func (p *prover) leadsToIt(proof *audit.InclusionProof, answer *client.Proof, seq uint64) error {
	head, err := audit.ReadCheckpoint(proof.Checkpoint)
	if err != nil {
		return err
	}
	leaf, err := events.ParseHash(answer.Leaf)
	if err != nil {
		return err
	}
	if proof.Index != seq-1 {
		return fmt.Errorf("it is of event %d", proof.Index+1)
	}
	if p.event != "" && events.LeafHash([]byte(answer.Event)) != leaf {
		return errors.New("it is of another event than the one that came with it")
	}
	return proof.CheckPath(leaf, head)
}

func (p *prover) proofOf(ctx context.Context, seq uint64) (answer *client.Proof, err error) {
	if p.data+p.export == "" {
		err = p.a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
			ask := c.Proof
			if p.event != "" {
				ask = c.ProofWithEvent
			}
			answer, err = ask(ctx, seq)
			if missing(err) {
				return notFound("an event at seq %d that %s may see", seq, p.a.as)
			}
			return err
		})
		return answer, err
	}
	err = p.offline(func(s *audit.Source) error {
		proof, event, err := s.Prove(seq)
		if err != nil {
			return err
		}
		answer = &client.Proof{Seq: seq, Index: proof.Index, Leaf: events.LeafHash(event).String(), Hashes: hexes(proof.Hashes), Checkpoint: string(proof.Checkpoint), TlogProof: string(proof.Encode())}
		if p.event != "" {
			answer.Event = string(event)
		}
		return nil
	})
	return answer, err
}

// offline runs f on the log that the flags name.
func (p *prover) offline(f func(*audit.Source) error) error {
	var source *audit.Source
	if p.data != "" && p.export != "" {
		return usagef("give one of --data and --export")
	}
	if p.export != "" {
		var err error
		if source, err = audit.OpenExport(os.DirFS(p.export)); err != nil {
			return usagef("%w", err)
		}
	} else {
		d, err := datadir.Open(p.data)
		if err != nil {
			return openFault(p.data, err)
		}
		defer d.Close()
		source = d.Source()
		if p.checkpoint != "" {
			if source.Checkpoint, err = os.ReadFile(p.checkpoint); err != nil {
				return usagef("--checkpoint: %w", err)
			}
		}
		if source.Checkpoint == nil {
			return usagef("%s has no anchor: nothing signed can be proved", p.data)
		}
	}
	err := f(source)
	var known *exitError
	switch {
	case errors.Is(err, audit.ErrNoProof):
		return &exitError{exitNotFound, err}
	case errors.Is(err, audit.ErrRotationsSize):
		return &exitError{exitInternal, err}
	case err != nil && !errors.As(err, &known):
		return &exitError{exitIntegrity, fmt.Errorf("%s; run verify before anything else", plain(err))}
	}
	return err
}

func (p *prover) consistency(ctx context.Context, from, to uint64) error {
	kept, err := p.endingAt(&to)
	if err != nil {
		return err
	}
	answer, err := p.consistencyOf(ctx, from, to)
	if err != nil {
		return err
	}
	if kept != nil {
		answer.Checkpoint = string(kept)
	}
	if answer.Checkpoint == "" {
		if p.a.output == "table" || p.out != "" {
			return usagef("the ledger keeps no checkpoint of size %d: leave TO out, give --checkpoint FILE with the one you kept, or take -o json without --out", to)
		}
		return p.a.showStruct(answer, nil)
	}
	proof := &audit.ConsistencyProof{From: answer.From, Checkpoint: []byte(answer.Checkpoint)}
	for _, s := range answer.Hashes {
		h, err := events.ParseHash(s)
		if err != nil {
			return &exitError{exitIntegrity, fmt.Errorf("the proof does not hold: %w", err)}
		}
		proof.Hashes = append(proof.Hashes, h)
	}
	text := proof.Encode()
	_, err = audit.ParseConsistencyProof(text)
	if err == nil && answer.From != from {
		err = fmt.Errorf("it is from size %d", answer.From)
	}
	if err != nil {
		return &exitError{exitIntegrity, fmt.Errorf("the proof does not hold: %w", err)}
	}
	return p.give(answer, string(text), fmt.Sprintf("verify --consistency %s --checkpoint REMEMBERED --vkey KEY", p.out))
}

// endingAt reads --checkpoint, whose size TO then is.
func (p *prover) endingAt(to *uint64) ([]byte, error) {
	if p.checkpoint == "" {
		return nil, nil
	}
	b, err := os.ReadFile(p.checkpoint)
	if err != nil {
		return nil, usagef("--checkpoint: %w", err)
	}
	head, err := audit.ReadCheckpoint(b)
	if err != nil {
		return nil, usagef("--checkpoint: %w", err)
	}
	if *to != 0 && *to != head.Size {
		return nil, usagef("--checkpoint is of %d events, TO is %d", head.Size, *to)
	}
	*to = head.Size
	return b, nil
}

func (p *prover) consistencyOf(ctx context.Context, from, to uint64) (answer *client.Consistency, err error) {
	if p.data+p.export == "" {
		err = p.a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
			answer, err = c.Consistency(ctx, from, to)
			if missing(err) {
				return notFound("a log of %d events: it has fewer", max(from, to))
			}
			return err
		})
		return answer, err
	}
	err = p.offline(func(s *audit.Source) error {
		head, err := audit.ReadCheckpoint(s.Checkpoint)
		if err != nil {
			return err
		}
		if to != 0 && to != head.Size {
			return usagef("TO %d: without a server it is that of the checkpoint, %d", to, head.Size)
		}
		proof, _, err := s.ProveConsistency(from)
		if err != nil {
			return err
		}
		answer = &client.Consistency{From: from, To: head.Size, Hashes: hexes(proof.Hashes), Checkpoint: string(proof.Checkpoint)}
		return nil
	})
	return answer, err
}

// give shows a proof, or writes it to the file asked for and says what is next.
func (p *prover) give(answer any, text, next string) error {
	if p.out == "" {
		if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) && p.a.output == "table" {
			return &exitError{exitIntegrity, errors.New("the checkpoint holds control characters; give --out FILE")}
		}
		return p.a.showStruct(answer, func() { fmt.Fprint(p.a.stdout, text) })
	}
	if old, err := os.ReadFile(p.out); err == nil && !bytes.Equal(old, []byte(text)) {
		return usagef("%s exists; name another file", p.out)
	}
	if err := os.WriteFile(p.out, []byte(text), 0o644); err != nil {
		return usagef("--out: %w", err)
	}
	return p.a.showStruct(answer, func() { fmt.Fprintf(p.a.stdout, "proof in %s\nnext: %s\n", clean(p.out), clean(next)) })
}

func hexes(list []events.Hash) []string {
	out := make([]string, len(list))
	for i, h := range list {
		out[i] = h.String()
	}
	return out
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit"
)

func (a *app) proofRotations() *cobra.Command {
	p := &prover{a: a}
	cmd := &cobra.Command{
		Use:   "rotations",
		Short: "Show whoever pinned one of the log's checkpoint keys which keys follow on it",
		Long: `Show whoever pinned one of the log's checkpoint keys which keys follow on it: event 1
and every event that brought another key, each proved under a note that this key and
the one before it have signed. It is checked offline by "verify --proof" and "verify
--consistency" with --rotations FILE, and by the Go client's Auditor, which asks for it
itself where it may: agents are given the file.`,
		Example: `  ledgerd proof rotations --out log.rotations
  ledgerd proof rotations --export exported --out log.rotations`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.rotations(cmd.Context()) },
	}
	p.flags(cmd)
	return cmd
}

func (p *prover) rotations(ctx context.Context) error {
	text, err := p.rotationsOf(ctx)
	if err != nil {
		return err
	}
	list, err := audit.ParseRotations([]byte(text))
	if err == nil {
		err = audit.CheckRotations(list)
	}
	if errors.Is(err, audit.ErrRotationsSize) {
		return err
	}
	if err != nil {
		return &exitError{exitIntegrity, fmt.Errorf("the rotations do not hold: %w", err)}
	}
	if len(list) == 1 {
		return notFound("a rotation: the log has had one checkpoint key")
	}
	return p.give(client.Rotations{Rotations: text}, text, fmt.Sprintf("verify --receipt REPLY --proof PROOF --vkey KEY --rotations %s", p.out))
}

func (p *prover) rotationsOf(ctx context.Context) (text string, err error) {
	if p.data+p.export == "" {
		err = p.a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
			answer, err := c.Rotations(ctx)
			if err != nil {
				return err
			}
			text = answer.Rotations
			return nil
		})
		return text, err
	}
	err = p.offline(func(s *audit.Source) error {
		list, err := s.Rotations()
		if err != nil {
			return err
		}
		text = string(audit.EncodeRotations(list))
		if text == "" {
			return errors.New("the log has no event 1")
		}
		return nil
	})
	return text, err
}

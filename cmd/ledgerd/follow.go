package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
)

func (a *app) tailCommand() *cobra.Command {
	var from uint64
	var noFollow bool
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the log's events, the exact bytes of one a line, and go on as they come",
		Long:  "Print the log's events, the exact bytes of one a line, and go on as they come;\n-o has no effect.",
		Example: `  ledgerd tail --as auditor1 --creds creds/auditor1.nk
  ledgerd tail --from 100 --no-follow`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.tail(cmd.Context(), client.EventsQuery{From: max(from, 1)}, !noFollow, func(_ events.Event, b string) error {
				_, err := fmt.Fprintf(a.stdout, "%s\n", b)
				return err
			})
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 1, "the first event's seq")
	cmd.Flags().BoolVar(&noFollow, "no-follow", false, "end at the newest event")
	return cmd
}

// pollEvery is how often a follower that has caught up asks for more.
const pollEvery = 250 * time.Millisecond

// tail hands out the events that q selects, page by page, and checks that each
// continues the one before it where the two are neighbours. With follow it goes
// on until ctx ends, whatever becomes of the connection.
func (a *app) tail(ctx context.Context, q client.EventsQuery, follow bool, take func(events.Event, string) error) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	var last events.Event
	var hash client.Hash
	for {
		page, err := c.Events(ctx, q)
		switch {
		case follow && ctx.Err() != nil:
			return nil
		case follow && errors.Is(err, client.ErrUnavailable):
			fmt.Fprintf(a.stderr, "ledgerd: %s; trying again\n", cleanLines(err.Error()))
			pause(ctx, 4*pollEvery)
			continue
		case err != nil:
			return err
		}
		for _, b := range page.Events {
			e, err := events.Parse([]byte(b))
			if err != nil {
				return &exitError{exitIntegrity, fmt.Errorf("after event %d: %w", last.Seq, err)}
			}
			if e.Seq <= last.Seq || e.Seq == last.Seq+1 && last.Seq > 0 && e.Prev != hash {
				return &exitError{exitIntegrity, fmt.Errorf("event %d does not continue event %d", e.Seq, last.Seq)}
			}
			last, hash = e, events.LeafHash([]byte(b))
			if err := take(e, b); err != nil {
				return err
			}
		}
		caughtUp := page.Next > page.Head || page.Next <= q.From
		q.From = max(page.Next, q.From)
		switch {
		case caughtUp && !follow:
			return nil
		case caughtUp:
			pause(ctx, pollEvery)
		}
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (a *app) decisionsCommand() *cobra.Command {
	var q client.EventsQuery
	var denied bool
	cmd := &cobra.Command{
		Use:   "decisions",
		Short: "List decisions from the log",
		Example: `  ledgerd decisions --denied --as auditor1 --creds creds/auditor1.nk
  ledgerd decisions --agent researcher -o jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.Category, q.From = "decision", max(q.From, 1)
			if err := checkOptionalID("--agent", q.Agent); err != nil {
				return err
			}
			var items [][]byte
			found := false
			line := "%8d  %-20s  %-16s  %-16s  %-7s  %-36s  %s\n"
			if a.output == "table" {
				fmt.Fprintf(a.stdout, "%8s  %-20s  %-16s  %-16s  %-7s  %-36s  %s\n", "SEQ", "TIME", "AGENT", "OPERATION", "RESULT", "REASON", "RESOURCE")
			}
			err := a.tail(cmd.Context(), q, false, func(e events.Event, b string) error {
				d, ok := e.Body.(*events.Decision)
				if !ok || denied && d.Allowed {
					return nil
				}
				found = true
				switch a.output {
				case "table":
					fmt.Fprintf(a.stdout, line, e.Seq, e.Time.Std().Format("2006-01-02T15:04:05Z"), clean(d.Subject), clean(d.Operation),
						verdict(d.Allowed), clean(d.Reason), clean(d.Resource))
				case "jsonl":
					fmt.Fprintf(a.stdout, "%s\n", b)
				default:
					items = append(items, []byte(b))
				}
				return nil
			})
			if err == nil && !found && q.Agent != "" {
				err = a.mustBeKnown(cmd.Context(), q.Agent)
			}
			if err != nil || a.output == "table" || a.output == "jsonl" {
				return err
			}
			return a.showList(items, nil)
		},
	}
	cmd.Flags().Uint64Var(&q.From, "from", 1, "the first seq to look at")
	cmd.Flags().StringVar(&q.Agent, "agent", "", "only this agent's")
	cmd.Flags().BoolVar(&denied, "denied", false, "only denials")
	return cmd
}

// mustBeKnown is not found where the ledger knows no agent or principal of that
// name, as far as the asker may see.
func (a *app) mustBeKnown(ctx context.Context, id string) error {
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		known, err := registered(ctx, c)
		if err == nil && known[id] == "" {
			return notFound("agent or principal %s", id)
		}
		return nil // who may not ask gets the empty list
	})
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "DENIED"
}

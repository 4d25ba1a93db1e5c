package natsapi

import (
	"context"
	"errors"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// policy shows the document in force at a seq. It is the whole ledger's, so
// that an observer of one subtree is not shown it.
func (a *api) policy(w asker, q *wire.QueryRequest) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	return func() []byte {
		return a.folding(func(ctx context.Context) []byte {
			var out wire.Policy
			err := a.ledger.Policies(ctx, 1, q.At, func(e *events.Event, p *events.PolicyActivated) error {
				out.Activated = activated(e, p)
				return nil
			})
			if err != nil || out.Seq == 0 || q.At > a.ledger.Durable() {
				return unread(err)
			}
			document, err := a.ledger.PolicyDocument(out.Seq)
			if err != nil {
				return wire.Error(reason.NotFound)
			}
			out.Document = string(document)
			return wire.Encode(out)
		})
	}
}

// history lists the policies that were put in force, and who signs them now.
func (a *api) history(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	signers := s.Signers // never changed in place
	return func() []byte {
		return a.folding(func(ctx context.Context) []byte {
			out := wire.History{Policies: []wire.Activated{}, Signers: signers}
			size := 0
			err := a.ledger.Policies(ctx, q.From, 0, func(e *events.Event, p *events.PolicyActivated) error {
				entry := activated(e, p)
				size += len(wire.Encode(entry)) + 1
				if size > replyRoom || q.Limit > 0 && uint64(len(out.Policies)) == q.Limit {
					out.Next = e.Seq
					return errPageFull
				}
				out.Policies = append(out.Policies, entry)
				return nil
			})
			if err != nil && !errors.Is(err, errPageFull) {
				return unread(err)
			}
			return wire.Encode(out)
		})
	}
}

func activated(e *events.Event, p *events.PolicyActivated) wire.Activated {
	return wire.Activated{Seq: e.Seq, Time: e.Time.String(), Version: p.Version, Digest: p.Digest.String(), Rules: p.Rules, By: e.Agent}
}

func unread(err error) []byte {
	if errors.Is(err, context.DeadlineExceeded) {
		return wire.Error(reason.Overloaded)
	}
	return wire.Error(reason.NotFound)
}

// folding runs what reads the log from its start, one at a time.
func (a *api) folding(read func(context.Context) []byte) []byte {
	select {
	case a.folds <- struct{}{}:
		defer func() { <-a.folds }()
	default:
		return wire.Error(reason.Overloaded)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return read(ctx)
}

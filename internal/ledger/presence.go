package ledger

import (
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/reason"
)

// PresentFor is how long a handler counts as present after it was heard.
const PresentFor = 15 * time.Second

// presence knows which handlers were heard lately, and what they do. It is what
// the door sees, not what the log says: a decision that rests on it records it.
// Safe for concurrent use.
type presence struct {
	mu    sync.Mutex
	heard map[string]heard
}

type heard struct {
	at      time.Duration // of the ledger's monotonic clock
	actions []string
}

// Hello notes that the handler id is alive with these actions, which must be
// among those it is registered for. Safe for concurrent use.
func (l *Ledger) Hello(id string, actions []string) reason.Code {
	who := l.registered(id)
	switch {
	case who.ID == "":
		return reason.UnknownAgent
	case who.Revoked:
		return reason.AgentRevoked
	case who.Role != "handler":
		return reason.NotPermittedForRole
	}
	for _, action := range actions {
		if !slices.Contains(who.Actions, action) {
			return reason.NotPermittedForRole
		}
	}
	p := &l.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heard == nil {
		p.heard = map[string]heard{}
	}
	p.heard[id] = heard{l.clock.Elapsed(), slices.Clone(actions)}
	return ""
}

// missing returns, sorted, those of actions that no present handler does.
func (l *Ledger) missing(actions []string) []string {
	p := &l.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	present := map[string]bool{}
	for id, h := range p.heard {
		if l.clock.Elapsed()-h.at > PresentFor || l.registered(id).Revoked {
			delete(p.heard, id)
			continue
		}
		for _, action := range h.actions {
			present[action] = true
		}
	}
	var absent []string
	for _, action := range actions {
		if !present[action] {
			absent = append(absent, action)
		}
	}
	slices.Sort(absent)
	return slices.Compact(absent)
}

package ledgerdtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// Spy is a handler that does nothing but remember what it was asked to do, and
// answer as it was told. It is a real one: it holds a key, says hello, and
// keeps an effect store. Safe for concurrent use.
type Spy struct {
	ledger *Ledger
	id     string
	dir    string

	mu    sync.Mutex
	seen  []client.Effect
	react map[string]client.Func

	store  *client.EffectStore
	cancel context.CancelFunc
	ended  chan error
}

// Spy starts the handler that the documents call id, for all of its actions,
// and returns when the ledger knows that it is there. Each answers with no
// result until told otherwise. Before Spy and after Stop the handler is absent.
func (l *Ledger) Spy(id string) *Spy {
	l.t.Helper()
	if len(l.actions[id]) == 0 {
		l.t.Fatalf("%s is no handler of the documents applied here", id)
	}
	s := &Spy{ledger: l, id: id, dir: l.t.TempDir(), react: map[string]client.Func{}}
	s.Start()
	l.t.Cleanup(s.Stop)
	return s
}

// Return has an action succeed with a result.
func (s *Spy) Return(action string, result any) {
	s.Do(action, func(context.Context, client.Effect) (any, error) { return result, nil })
}

// Fail has an action fail.
func (s *Spy) Fail(action string, err error) {
	s.Do(action, func(context.Context, client.Effect) (any, error) { return nil, err })
}

// Delay has an action take d, or until its context ends, and then succeed
// without a result.
func (s *Spy) Delay(action string, d time.Duration) {
	s.Do(action, func(ctx context.Context, _ client.Effect) (any, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

// Do has an action do f, once the call is noted.
func (s *Spy) Do(action string, f client.Func) {
	s.ledger.t.Helper()
	if !slices.Contains(s.ledger.actions[s.id], action) {
		s.ledger.t.Fatalf("%s does not do %s", s.id, action)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.react[action] = f
}

// EffectsSeen lists what was asked for, in the order it was begun.
func (s *Spy) EffectsSeen() []client.Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Calls counts how often an action was asked for.
func (s *Spy) Calls(action string) int {
	n := 0
	for _, e := range s.EffectsSeen() {
		if e.Action == action {
			n++
		}
	}
	return n
}

// Doubts lists the effects that need a person, see client.EffectStore.
func (s *Spy) Doubts() []client.Doubt { return s.store.Doubts() }

// Start starts a stopped spy again, with the same effect store.
func (s *Spy) Start() {
	l := s.ledger
	l.t.Helper()
	var err error
	if s.store, err = client.OpenEffects(s.dir, client.Retention{}); err != nil {
		l.t.Fatalf("handler %s: %v", s.id, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan error, 1)
	ready := make(chan struct{})
	c, err := client.Connect(l.Context(), client.Options{Server: l.URL(), ID: s.id, Seed: l.Seed(s.id)})
	if err != nil {
		l.t.Fatalf("handler %s: %v", s.id, err)
	}
	actions := client.Actions{}
	for _, action := range l.actions[s.id] {
		actions[action] = s.do
	}
	go func(store *client.EffectStore, ended chan error) {
		defer c.Close()
		err := c.Handle(ctx, store, actions, client.HandleOptions{OnReady: func() { close(ready) }})
		ended <- errors.Join(err, store.Close())
	}(s.store, s.ended)
	select {
	case <-ready:
	case err := <-s.ended:
		l.t.Fatalf("handler %s: %v", s.id, err)
	case <-time.After(Deadline):
		l.t.Fatalf("handler %s is never ready", s.id)
	}
}

// do notes a call and does what the action was told to do.
func (s *Spy) do(ctx context.Context, e client.Effect) (any, error) {
	s.mu.Lock()
	s.seen = append(s.seen, e)
	react := s.react[e.Action]
	s.mu.Unlock()
	if react == nil {
		return nil, nil
	}
	return react(ctx, e)
}

// Stop ends the handler: it is absent from now on. The ledger counts it as
// present for up to 15 s more.
func (s *Spy) Stop() {
	s.ledger.t.Helper()
	if s.cancel == nil {
		return
	}
	s.cancel()
	s.cancel = nil
	err := <-s.ended
	if err != nil && !errors.Is(err, client.ErrUnauthorized) { // revoked during the test
		s.ledger.t.Errorf("handler %s: %v", s.id, err)
	}
}

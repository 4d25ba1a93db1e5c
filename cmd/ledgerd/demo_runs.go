package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// demoTools is a handler that only remembers what it was asked to do.
type demoTools struct {
	mu   sync.Mutex
	seen []string // actions, in the order of their calls
}

func (t *demoTools) do(_ context.Context, e client.Effect) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = append(t.seen, e.Action)
	return map[string]int{"call": len(t.seen)}, nil
}

func (t *demoTools) calls() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.seen...)
}

// start has the tools handle their actions until the returned function is
// called, once the ledger knows that they are there.
func (t *demoTools) start(ctx context.Context, c *client.Client, dir string) (stop func() error, err error) {
	store, err := client.OpenEffects(dir, client.Retention{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	actions := client.Actions{"document.summarize": t.do, "artifact.save": t.do, "external.upload": t.do}
	go func() {
		err := c.Handle(ctx, store, actions, client.HandleOptions{OnReady: func() { close(ready) }})
		ended <- errors.Join(err, store.Close())
	}()
	stop = func() error {
		cancel()
		return <-ended
	}
	select {
	case <-ready:
		return stop, nil
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("the demo's handler: %w", errors.Join(err, context.Cause(ctx)))
	}
}

// playRuns submits the two procedures: one runs, step by step, the other
// touches no tool.
func (d *demo) playRuns(ctx context.Context) error {
	d.say("\nRuns: the handler tools does what was judged, and only that")
	tools := &demoTools{}
	stop, err := tools.start(ctx, d.as["tools"], filepath.Join(d.work, "effects"))
	if err != nil {
		return err
	}
	good, bad := demoProcedures()
	err = errors.Join(d.run(ctx, good, bad, tools), stop())
	return err
}

// waiting is a procedure to be run, whose end is waited for.
type waiting struct {
	client.SOPRequest
	WaitMS int64 `json:"wait_ms"`
}

func (d *demo) run(ctx context.Context, good, bad client.SOPRequest, tools *demoTools) error {
	reply, err := d.propose(ctx, scene{"researcher", "sop.submit", waiting{good, 1500}, reason.SOPAdmitted, ""})
	if err != nil {
		return err
	}
	if reply.Run == nil {
		d.expect(false, "the procedure is not run")
		return nil
	}
	run := reply.Run
	for !run.AtRest() && ctx.Err() == nil {
		pause(ctx, 20*time.Millisecond)
		if run, err = d.as["researcher"].Run(ctx, run.RunID, ""); err != nil {
			return err
		}
	}
	for _, r := range run.Results {
		d.say("      %-14s  step %-11s  %-36s  %-7s  %s", "", clean(r.StepID), clean(r.Action), clean(r.State), safeJSON(r.Result))
	}
	d.say("      %-14s  the run is %s; the handler was called for %s", "", run.State, strings.Join(tools.calls(), ", "))
	d.expect(run.State == client.RunFinished && strings.Join(tools.calls(), " ") == "document.summarize artifact.save", "%s, and the calls were %q", run.State, tools.calls())

	reply, err = d.propose(ctx, scene{"researcher", "sop.submit", bad, reason.ActionNotInEffectiveCapabilities, ""})
	if err != nil {
		return err
	}
	more := len(tools.calls()) - 2
	d.say("      %-14s  the handler was called for it %d times", "", more)
	d.expect(more == 0 && reply.Run == nil, "a refused procedure caused %d calls", more)
	return nil
}

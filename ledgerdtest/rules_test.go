package ledgerdtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/ledgerdtest"
)

func procedure(steps ...client.Step) client.SOPRequest {
	for i := range steps {
		if steps[i].ID == "" {
			steps[i].ID = fmt.Sprintf("s%d", i)
		}
	}
	return client.SOPRequest{SOP: client.SOP{ID: "p", Version: 1, Steps: steps}}
}

func step(action string, arguments any) client.Step {
	return client.Step{Action: action, Arguments: arguments}
}

func submit(t *testing.T, c *client.Client, wait time.Duration, steps ...client.Step) *client.Reply {
	t.Helper()
	reply, err := c.SubmitSOP(t.Context(), procedure(steps...), wait)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// story is what the log has after seq from: each event's type, and of what it
// speaks.
func story(l *ledgerdtest.Ledger, from uint64) []string {
	var list []string
	for _, e := range l.Events() {
		if e.Seq <= from {
			continue
		}
		line := string(e.Body.Type())
		switch b := e.Body.(type) {
		case *events.Decision:
			line += " " + b.Operation + " " + b.StepID + " " + b.Reason
		case *events.EffectStarted:
			line += " " + b.StepID
		case *events.EffectFinished:
			line += " " + b.StepID + " by " + b.Handler
		case *events.EffectFailed:
			line += " " + b.StepID + " by " + b.Handler + " " + b.Outcome
		case *events.RunFailed:
			line += " " + b.StepID + " " + b.Reason
		case *events.RunDoubted:
			line += " " + b.StepID + " " + b.Reason
		case *events.RunResolved:
			line += " " + b.StepID + " " + b.Outcome
		case *events.RequestsRefused:
			continue
		}
		list = append(list, strings.Join(strings.Fields(line), " "))
	}
	return list
}

func head(l *ledgerdtest.Ledger) uint64 { return uint64(len(l.Events())) }

func wantStory(t *testing.T, l *ledgerdtest.Ledger, from uint64, want ...string) {
	t.Helper()
	if got := story(l, from); !slices.Equal(got, want) {
		t.Errorf("the log has\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// R6: a procedure whose last step uploads causes no handler call, one denial
// for exactly that step and one for the whole.
func TestR6_TheUploadTouchesNoTool(t *testing.T) {
	l := ledgerdtest.Start(t, policy)
	tools := l.Spy("tools")
	at := head(l)
	reply := submit(t, l.As("researcher"), time.Minute, step("document.summarize", nil), step("artifact.save", nil), step("external.upload", nil))
	if reply.Allowed || reply.ReasonCode != reason.ActionNotInEffectiveCapabilities || reply.Run != nil {
		t.Errorf("%s", reply.Raw)
	}
	wantStory(t, l, at,
		"decision.allowed sop.validate s0 step_allowed",
		"decision.allowed sop.validate s1 step_allowed",
		"decision.denied sop.validate s2 action_not_in_effective_capabilities",
		"decision.denied sop.submit action_not_in_effective_capabilities")
	if seen := tools.EffectsSeen(); len(seen) != 0 {
		t.Errorf("the tools were asked for %+v", seen)
	}
}

// R43: handlers are looked for after authorisation and before the first effect;
// one is missing: no effect at all, not even the ledger's own.
func TestR43_OneMissingHandlerNoEffectAtAll(t *testing.T) {
	l := ledgerdtest.Start(t, policy+"---\nkind: Principal\nid: saver\nrole: handler\nactions: [artifact.save]\n")
	saver := l.Spy("saver") // nobody summarizes
	researcher := l.As("researcher")
	at := head(l)
	write := step("memory.write", map[string]any{"owner_agent_id": "researcher", "namespace": "notes", "key": "a", "value": 1})
	reply := submit(t, researcher, 0, write, step("artifact.save", nil), step("document.summarize", nil))
	if reply.Allowed || reply.ReasonCode != reason.MissingHandlers || reply.Run != nil {
		t.Errorf("%s", reply.Raw)
	}
	wantStory(t, l, at,
		"decision.allowed sop.validate s0 step_allowed",
		"decision.allowed sop.validate s1 step_allowed",
		"decision.allowed sop.validate s2 step_allowed",
		"decision.denied sop.submit missing_handlers")
	if d, ok := l.Events()[reply.Seq-1].Body.(*events.Decision); !ok || !slices.Equal(d.Observed, []string{"document.summarize"}) {
		t.Errorf("the decision observed %+v", d)
	}
	// Authorisation comes first: what is missing is not told to who may not.
	reply = submit(t, researcher, 0, step("document.summarize", nil), step("external.upload", nil))
	if reply.ReasonCode != reason.ActionNotInEffectiveCapabilities {
		t.Errorf("%s", reply.Raw)
	}
	if seen := saver.EffectsSeen(); len(seen) != 0 {
		t.Errorf("the handler was asked for %+v", seen)
	}
	if r, err := researcher.Read(t.Context(), client.ReadRequest{Namespace: "notes", Key: "a"}); err != nil || r.ReasonCode != reason.RecordUnavailable {
		t.Errorf("the record: %+v, %v", r, err)
	}
	l.Spy("tools")
	if reply = submit(t, researcher, time.Minute, write, step("artifact.save", nil), step("document.summarize", nil)); reply.Run == nil || reply.Run.State != client.RunFinished {
		t.Errorf("with all handlers: %s", reply.Raw)
	}
}

// R45: results come back in step order; every effect leaves started and
// finished events; handlers get the judged, canonical arguments.
func TestR45_ResultsInStepOrder(t *testing.T) {
	l := ledgerdtest.Start(t, policy)
	tools := l.Spy("tools")
	tools.Do("document.summarize", func(_ context.Context, e client.Effect) (any, error) {
		return map[string]any{"got": e.Arguments, "by": e.Agent}, nil
	})
	researcher := l.As("researcher")
	at := head(l)
	reply := submit(t, researcher, time.Minute,
		step("document.summarize", json.RawMessage(`{ "z": 1, "a": "\u003c" }`)),
		step("memory.write", map[string]any{"owner_agent_id": "researcher", "namespace": "notes", "key": "a", "value": 1}),
		step("artifact.save", map[string]string{"path": "x"}),
		step("memory.read", map[string]any{"namespace": "notes", "key": "a"}))
	if !reply.Allowed || reply.Run == nil || reply.Run.State != client.RunFinished || len(reply.Run.Results) != 4 {
		t.Fatalf("%s", reply.Raw)
	}
	for i, r := range reply.Run.Results {
		if r.StepID != fmt.Sprintf("s%d", i) || r.State != "finished" {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	if got := string(reply.Run.Results[0].Result); got != `{"by":"researcher","got":{"a":"<","z":1}}` {
		t.Errorf("the first result is %s", got)
	}
	wantStory(t, l, at,
		"decision.allowed sop.validate s0 step_allowed", "decision.allowed sop.validate s1 step_allowed",
		"decision.allowed sop.validate s2 step_allowed", "decision.allowed sop.validate s3 step_allowed",
		"decision.allowed sop.submit sop_admitted", "run.admitted", "run.started",
		"decision.allowed sop.step s0 step_allowed", "effect.started s0", "effect.finished s0 by tools",
		"decision.allowed sop.step s1 step_allowed", "effect.started s1", "memory.written", "effect.finished s1 by sys",
		"decision.allowed sop.step s2 step_allowed", "effect.started s2", "effect.finished s2 by tools",
		"decision.allowed sop.step s3 step_allowed", "effect.started s3", "effect.finished s3 by sys",
		"run.finished")
	seen := tools.EffectsSeen()
	if len(seen) != 2 || seen[0].StepID != "s0" || seen[1].StepID != "s2" || string(seen[0].Arguments) != `{"a":"<","z":1}` ||
		seen[0].OperationID != reply.Run.RunID+"/s0" || seen[0].RunID != reply.Run.RunID || seen[0].Agent != "researcher" {
		t.Errorf("the tools were asked for %+v", seen)
	}
	run, err := researcher.Run(t.Context(), reply.Run.RunID, "s0")
	if err != nil || run.State != client.RunFinished || len(run.Results) != 1 || string(run.Results[0].Result) != `{"by":"researcher","got":{"a":"<","z":1}}` {
		t.Errorf("the query: %+v, %v", run, err)
	}
}

// R46: each step is judged again at its moment; what has become forbidden stops
// the run, and nothing further happens.
func TestR46_JudgedAgainAtItsMoment(t *testing.T) {
	for name, forbid := range map[string]func(*testing.T, *ledgerdtest.Ledger){
		"emergency": func(t *testing.T, l *ledgerdtest.Ledger) {
			r, err := l.Admin().EmergencyDeny(t.Context(), client.DenyRequest{AgentID: "report_manager", Capabilities: []string{"artifact.save"}, Reason: "test"})
			if err != nil || !r.Allowed || len(r.InFlight) != 1 || r.InFlight[0].StepID != "s1" {
				t.Errorf("%+v, %v", r, err)
			}
		},
		"environment": func(t *testing.T, l *ledgerdtest.Ledger) {
			if r, err := l.Admin().Control(t.Context(), "environment.set", map[string]any{"capabilities": []string{"document.summarize"}}); err != nil || !r.Allowed {
				t.Errorf("%+v, %v", r, err)
			}
		},
		"revocation above": func(t *testing.T, l *ledgerdtest.Ledger) {
			if r, err := l.Admin().Control(t.Context(), "agent.revoke", map[string]any{"agent_id": "report_manager"}); err != nil || !r.Allowed {
				t.Errorf("%+v, %v", r, err)
			}
		},
		"revocation": func(t *testing.T, l *ledgerdtest.Ledger) {
			if r, err := l.Admin().Control(t.Context(), "agent.revoke", map[string]any{"agent_id": "researcher"}); err != nil || !r.Allowed {
				t.Errorf("%+v, %v", r, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledgerdtest.Start(t, policy)
			tools := l.Spy("tools")
			second := "artifact.save"
			if name != "emergency" {
				second = "document.summarize"
			}
			calls := 0
			tools.Do(second, func(context.Context, client.Effect) (any, error) {
				calls++
				if name == "emergency" || calls == 2 {
					forbid(t, l)
				}
				return "done", nil
			})
			reply := submit(t, l.As("researcher"), 0, step("document.summarize", nil), step(second, nil), step("artifact.save", nil))
			if !reply.Allowed {
				t.Fatalf("%s", reply.Raw)
			}
			run := l.WaitRun(l.Admin(), reply.Run.RunID)
			if run.State != client.RunFailed || run.Results[1].State != "finished" || run.Results[2].State != "failed" {
				t.Errorf("%s", run.Raw)
			}
			if seen := tools.EffectsSeen(); len(seen) != 2 {
				t.Errorf("the tools were asked for %+v", seen)
			}
			last := story(l, 0)
			want := map[string]string{"emergency": "emergency_deny", "environment": "action_not_in_effective_capabilities",
				"revocation above": "action_not_in_effective_capabilities", "revocation": "agent_revoked"}[name]
			if got := strings.Join(last[len(last)-2:], ", "); got != "decision.denied sop.step s2 "+want+", run.failed s2 "+want {
				t.Errorf("the log ends with %s", got)
			}
		})
	}
}

const short = `apiVersion: ledgerd/v1
kind: Policy
version: lab-1
environment: [memory.read, slow.action, small.action, quick.action]
actions:
  slow.action: {timeout: 1s}
  small.action: {output: {max_bytes: 100}}
  quick.action: {}
---
kind: Agent
id: alice
capabilities: [memory.read, slow.action, small.action, quick.action]
---
kind: Principal
id: tools
role: handler
actions: [slow.action, small.action, quick.action]
---
kind: Principal
id: others
role: handler
actions: [quick.action]
`

// R53: a timeout, a failure, too large an output and a cancellation each end in
// an event.
func TestR53_EveryEndIsAnEvent(t *testing.T) {
	l := ledgerdtest.Start(t, short)
	tools := l.Spy("tools")
	alice := l.As("alice")

	at := head(l)
	tools.Fail("quick.action", errors.New("the disk is full"))
	reply := submit(t, alice, time.Minute, step("quick.action", nil), step("quick.action", nil))
	if reply.Run == nil || reply.Run.State != client.RunFailed || reply.Run.Reason != reason.EffectFailed {
		t.Errorf("failed: %s", reply.Raw)
	}
	wantEnd(t, l, at, "effect.failed s0 by tools effect_failed", "run.failed s0 effect_failed")

	at = head(l)
	tools.Return("small.action", strings.Repeat("x", 99))
	reply = submit(t, alice, time.Minute, step("small.action", nil), step("quick.action", nil))
	if reply.Run == nil || reply.Run.State != client.RunFailed || reply.Run.Reason != reason.OutputTooLarge {
		t.Errorf("too large: %s", reply.Raw)
	}
	wantEnd(t, l, at, "effect.failed s0 by tools output_too_large", "run.failed s0 output_too_large")
	tools.Return("small.action", strings.Repeat("x", 98))
	tools.Return("quick.action", nil)
	if reply = submit(t, alice, time.Minute, step("small.action", nil)); reply.Run == nil || reply.Run.State != client.RunFinished {
		t.Errorf("as large as may be: %s", reply.Raw)
	}

	at = head(l)
	begun, release := make(chan string, 1), make(chan bool)
	hold := func(_ context.Context, e client.Effect) (any, error) {
		begun <- e.RunID
		<-release
		return nil, nil
	}
	tools.Do("quick.action", hold)
	reply = submit(t, alice, 0, step("quick.action", nil), step("quick.action", nil))
	<-begun
	if r, err := alice.CancelRun(t.Context(), client.CancelRequest{RunID: reply.Run.RunID}); err != nil || r.ReasonCode != reason.RunCancelAccepted {
		t.Errorf("cancel: %+v, %v", r, err)
	}
	release <- true
	if run := l.WaitRun(alice, reply.Run.RunID); run.State != client.RunCancelled || run.Results[0].State != "finished" || run.Results[1].State != "waiting" {
		t.Errorf("cancelled: %s", run.Raw)
	}
	wantEnd(t, l, at, "decision.allowed run.cancel run_cancel_accepted", "effect.finished s0 by tools", "run.cancelled")

	at = head(l)
	tools.Do("slow.action", hold)
	reply = submit(t, alice, time.Minute, step("slow.action", nil), step("quick.action", nil))
	if reply.Run == nil || reply.Run.State != client.RunInDoubt || reply.Run.Reason != reason.EffectTimeout {
		t.Errorf("timeout: %s", reply.Raw)
	}
	<-begun
	wantEnd(t, l, at, "effect.started s0", "run.doubted s0 effect_timeout")
	release <- true // the late report is evidence, and the run still waits for a person
	waitEnd(t, l, "effect.finished s0 by tools")
	if run := l.WaitRun(alice, reply.Run.RunID); run.State != client.RunInDoubt {
		t.Errorf("after the late report: %s", run.Raw)
	}
	tools.Return("quick.action", nil)
	if r, err := l.Admin().ResolveRun(t.Context(), client.ResolveRequest{RunID: reply.Run.RunID, StepID: "s0", Done: true}); err != nil || !r.Allowed {
		t.Errorf("resolve: %+v, %v", r, err)
	}
	if run := l.WaitRun(alice, reply.Run.RunID); run.State != client.RunFinished {
		t.Errorf("resolved: %s", run.Raw)
	}
	if n := tools.Calls("slow.action"); n != 1 {
		t.Errorf("done %d times", n)
	}
}

// wantEnd compares the log's end after seq from.
func wantEnd(t *testing.T, l *ledgerdtest.Ledger, from uint64, want ...string) {
	t.Helper()
	got := story(l, from)
	if len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
		t.Errorf("the log has\n  %s\nand should end with\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func waitEnd(t *testing.T, l *ledgerdtest.Ledger, want string) {
	t.Helper()
	for end := time.Now().Add(ledgerdtest.Deadline); ; time.Sleep(10 * time.Millisecond) {
		got := story(l, 0)
		if got[len(got)-1] == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the log never ends with %s, but with %s", want, got[len(got)-1])
		}
	}
}

// R52: an effect that is under way when the ledger stops leaves its run in
// doubt; what the handler says later is recorded, the effect is not repeated,
// and a person decides.
func TestR52_ARestartLeavesTheRunInDoubt(t *testing.T) {
	for _, done := range []bool{true, false} {
		t.Run(fmt.Sprint(done), func(t *testing.T) {
			l := ledgerdtest.Start(t, short)
			tools := l.Spy("tools")
			alice := l.As("alice")
			begun, release := make(chan bool), make(chan bool)
			tools.Do("quick.action", func(context.Context, client.Effect) (any, error) {
				begun <- true
				<-release
				return 1, nil
			})
			reply := submit(t, alice, 0, step("quick.action", nil), step("small.action", nil))
			<-begun
			l.Restart()
			if run := l.WaitRun(alice, reply.Run.RunID); run.State != client.RunInDoubt || run.Reason != reason.InDoubt {
				t.Errorf("after the restart: %s", run.Raw)
			}
			release <- true
			waitEnd(t, l, "effect.finished s0 by tools")
			if run := l.WaitRun(alice, reply.Run.RunID); run.State != client.RunInDoubt {
				t.Errorf("after the report: %s", run.Raw)
			}
			resolve := client.ResolveRequest{RunID: reply.Run.RunID, StepID: "s0", Done: done}
			if r, err := alice.Propose(t.Context(), "run.resolve", map[string]any{"run_id": reply.Run.RunID, "step_id": "s0", "outcome": "done"}); err != nil || r.Allowed {
				t.Errorf("an agent resolves: %+v, %v", r, err)
			}
			if r, err := l.Admin().ResolveRun(t.Context(), resolve); err != nil || !r.Allowed {
				t.Fatalf("resolve: %+v, %v", r, err)
			}
			run := l.WaitRun(alice, reply.Run.RunID)
			if want := map[bool]client.RunState{true: client.RunFinished, false: client.RunFailed}[done]; run.State != want {
				t.Errorf("resolved: %s", run.Raw)
			}
			if n, m := tools.Calls("quick.action"), tools.Calls("small.action"); n != 1 || m != map[bool]int{true: 1, false: 0}[done] {
				t.Errorf("calls: %d, %d", n, m)
			}
		})
	}
}

// Two processes of one handler, and another handler, share the orders of an
// action: each is done by one of them.
func TestHandlersShareAQueue(t *testing.T) {
	l := ledgerdtest.Start(t, short)
	spies := []*ledgerdtest.Spy{l.Spy("tools"), l.Spy("tools"), l.Spy("others")}
	alice := l.As("alice")
	const runs = 60
	finished := make(chan error, runs)
	for range runs {
		go func() {
			reply, err := alice.SubmitSOP(t.Context(), procedure(step("quick.action", nil), step("quick.action", nil)), time.Minute)
			for err == nil && reply.Run != nil && !reply.Run.AtRest() { // so many answers at once are not held back
				time.Sleep(10 * time.Millisecond)
				reply.Run, err = alice.Run(t.Context(), reply.Run.RunID, "")
			}
			if err == nil && (reply.Run == nil || reply.Run.State != client.RunFinished) {
				err = fmt.Errorf("%+v", reply.Run)
			}
			finished <- err
		}()
	}
	for range runs {
		if err := <-finished; err != nil {
			t.Error(err)
		}
	}
	seen := map[string]int{}
	var shares []int
	for _, s := range spies {
		shares = append(shares, len(s.EffectsSeen()))
		for _, e := range s.EffectsSeen() {
			seen[e.OperationID]++
		}
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was done %d times", id, n)
		}
	}
	if len(seen) != 2*runs {
		t.Errorf("%d effects, want %d", len(seen), 2*runs)
	}
	t.Logf("shares: %v", shares)
}

// A handler revoked while it works is cut off; what it did is in doubt, and
// what it says is not taken.
func TestAHandlerRevokedMidRun(t *testing.T) {
	l := ledgerdtest.Start(t, short)
	tools := l.Spy("tools")
	alice := l.As("alice")
	begun, release := make(chan bool), make(chan bool)
	tools.Do("slow.action", func(context.Context, client.Effect) (any, error) {
		begun <- true
		<-release
		return nil, nil
	})
	reply := submit(t, alice, 0, step("slow.action", nil), step("quick.action", nil))
	<-begun
	if r, err := l.Admin().Control(t.Context(), "principal.revoke", map[string]any{"id": "tools"}); err != nil || !r.Allowed {
		t.Fatalf("%+v, %v", r, err)
	}
	release <- true
	if run := l.WaitRun(alice, reply.Run.RunID); run.State != client.RunInDoubt || run.Reason != reason.EffectTimeout {
		t.Errorf("%s", run.Raw)
	}
	if r := submit(t, alice, 0, step("slow.action", nil)); r.ReasonCode != reason.MissingHandlers {
		t.Errorf("a revoked handler counts as present: %s", r.Raw)
	}
	for _, line := range story(l, 0) {
		if strings.HasPrefix(line, "effect.finished") {
			t.Errorf("the report of a revoked handler was taken: %s", line)
		}
	}
}

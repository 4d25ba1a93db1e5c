package ledger_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// workshop is a running ledger with one handler, tools, in the same process: it
// takes what is dispatched and reports what the test says.
type workshop struct {
	*replaytest.Session
	t     *testing.T
	mu    sync.Mutex
	execs []wire.Exec
	came  chan wire.Exec
	state [][]byte
}

const toolsDocument = "kind: Principal\nid: tools\nrole: handler\nactions: [document.summarize, artifact.save, external.upload]\npublic_key: "

func openWorkshop(t *testing.T, o ledger.Options) *workshop {
	t.Helper()
	l, err := ledger.Open(o)
	must(t, err)
	w := &workshop{t: t, came: make(chan wire.Exec, 100)}
	l.Hooks.Dispatch = func(action string, exec []byte) {
		e, ok := wire.DecodeExec(exec)
		if !ok || e.Action != action {
			t.Errorf("exec %s", exec)
		}
		w.mu.Lock()
		w.execs = append(w.execs, e)
		w.mu.Unlock()
		w.came <- e
	}
	l.Hooks.State = func(state []byte) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.state = append(w.state, state)
	}
	w.Session = replaytest.Run(t, l, o)
	return w
}

// newWorkshop has the family, and the handler present.
func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	w := openWorkshop(t, newDir(t))
	w.Family()
	w.Apply(toolsDocument + replaytest.Key("tools") + "\n")
	w.hello()
	return w
}

func (w *workshop) hello() {
	w.t.Helper()
	if code := w.Hello("tools", []string{"document.summarize", "artifact.save", "external.upload"}); code != "" {
		w.t.Fatal(code)
	}
}

func (w *workshop) calls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.execs)
}

// next is the effect dispatched next, which must come soon.
func (w *workshop) next() wire.Exec {
	w.t.Helper()
	select {
	case e := <-w.came:
		return e
	case <-time.After(15 * time.Second):
		w.t.Fatal("no effect is dispatched")
		return wire.Exec{}
	}
}

// report says what became of an effect and waits for the acknowledgement.
func (w *workshop) report(handler, body string) replaytest.Reply {
	w.t.Helper()
	r, code := wire.DecodeReport([]byte(body))
	if code != "" {
		w.t.Fatalf("report %s: %s", body, code)
	}
	answers := make(chan ledger.Answer, 2)
	if code := w.Report(handler, r, func(a ledger.Answer) { answers <- a }); code != "" {
		w.t.Fatalf("report %s: %s", body, code)
	}
	return replaytest.ParseReply(<-answers)
}

func (w *workshop) done(operationID, result string) {
	w.t.Helper()
	if r := w.report("tools", fmt.Sprintf(`{"operation_id":%q,"ok":true,"result":%s}`, operationID, result)); r.Type != wire.AckType {
		w.t.Fatalf("report of %s: %s", operationID, r.Text)
	}
}

// procedure is a request to submit; each step is "id action arguments".
func procedure(id string, wait int, steps ...string) string {
	var list []string
	for _, s := range steps {
		parts := strings.SplitN(s, " ", 3)
		list = append(list, fmt.Sprintf(`{"step_id":%q,"action":%q,"arguments":%s}`, parts[0], parts[1], parts[2]))
	}
	return fmt.Sprintf(`{"sop":{"sop_id":%q,"version":1,"steps":[%s]},"wait_ms":%d}`, id, strings.Join(list, ","), wait)
}

type runReply struct {
	RunID   string `json:"run_id"`
	State   string `json:"state"`
	Reason  string `json:"reason_code"`
	Results []struct {
		StepID string          `json:"step_id"`
		Action string          `json:"action"`
		State  string          `json:"state"`
		Result json.RawMessage `json:"result"`
	} `json:"results"`
}

func runOf(t testing.TB, r replaytest.Reply) runReply {
	t.Helper()
	var b struct {
		Run *runReply `json:"run"`
	}
	must(t, json.Unmarshal([]byte(r.Text), &b))
	if b.Run == nil {
		t.Fatalf("no run in %s", r.Text)
	}
	return *b.Run
}

// run is a run as the state has it.
func (w *workshop) run(id string) projection.Run {
	w.t.Helper()
	return look(w.t, w.Ledger, func(s *projection.State) projection.Run {
		if r := ledger.RunCopy(s.Run(id)); r != nil {
			return *r
		}
		return projection.Run{}
	})
}

func (w *workshop) await(id string, state projection.RunState) projection.Run {
	w.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; {
		r := w.run(id)
		if r.State == state {
			return r
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("run %s is %s, want %s", id, r.State, state)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// history is every durable event of a run, as type and step.
func (w *workshop) history(id string) []string {
	w.t.Helper()
	var list []string
	must(w.t, w.Events(1, w.Durable(), func(_ uint64, b []byte) error {
		e, err := events.Parse(b)
		if err == nil && strings.Contains(string(b), `"run_id":"`+id+`"`) {
			var body struct {
				Body struct {
					StepID    string `json:"step_id"`
					Operation string `json:"operation"`
					Reason    string `json:"reason_code"`
				} `json:"body"`
			}
			err = json.Unmarshal(b, &body)
			list = append(list, strings.Join(strings.Fields(string(e.Body.Type())+" "+body.Body.Operation+" "+body.Body.StepID+" "+body.Body.Reason), " "))
		}
		return err
	}))
	return list
}

func (w *workshop) wantHistory(id string, want ...string) {
	w.t.Helper()
	if got := w.history(id); !slices.Equal(got, want) {
		w.t.Errorf("the run's history is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestR45_ResultsComeInStepOrder(t *testing.T) {
	w := newWorkshop(t)
	answer := w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("publish", 30_000,
		`read memory.read {"namespace":"project","key":"client_region"}`,
		`sum document.summarize {"b":2,"a":1}`,
		`note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"a","value":"x"}`,
		`save artifact.save {}`)))
	first := w.next()
	if string(first.Arguments) != `{"a":1,"b":2}` || first.Agent != "researcher" || first.SOPID != "publish" || first.StepID != "sum" {
		t.Errorf("exec %+v", first)
	}
	if n := w.calls(); n != 1 {
		t.Errorf("%d effects at once", n)
	}
	w.done(first.OperationID, `{"z":1, "words":[3]}`)
	w.done(w.next().OperationID, `7`)
	r := <-answer
	expect(t, r, reason.SOPAdmitted)
	run := runOf(t, r)
	var got []string
	for _, s := range run.Results {
		got = append(got, s.StepID+" "+s.State+" "+string(s.Result))
	}
	want := []string{
		`read finished {"namespace":"project","key":"client_region","value":"EU","owner_agent_id":"report_manager","visibility":"descendants","mutable_by":"owner","class":"preference","revision":1}`,
		`sum finished {"words":[3],"z":1}`,
		`note finished {"namespace":"notes","key":"a","owner_agent_id":"researcher","visibility":"private","mutable_by":"owner","class":"preference","revision":1}`,
		`save finished 7`,
	}
	if run.State != "finished" || !slices.Equal(got, want) {
		t.Errorf("run %s with\n%s\nwant\n%s", run.State, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	w.wantHistory(run.RunID,
		"decision.allowed sop.submit sop_admitted", "run.admitted", "run.started",
		"decision.allowed sop.step read step_allowed", "effect.started read", "effect.finished read",
		"decision.allowed sop.step sum step_allowed", "effect.started sum", "effect.finished sum",
		"decision.allowed sop.step note step_allowed", "effect.started note", "effect.finished note",
		"decision.allowed sop.step save step_allowed", "effect.started save", "effect.finished save", "run.finished")
	if revision(t, w.Ledger, "researcher", "notes", "a") != 1 {
		t.Error("the note was not written")
	}
	w.Stop()
}

func TestR6_OneForbiddenStepCallsNobody(t *testing.T) {
	w := newWorkshop(t)
	before := w.Durable()
	r := w.Propose("researcher", "sop.submit", procedure("export", 0,
		`sum document.summarize {}`, `save artifact.save {}`, `up external.upload {}`))
	expect(t, r, reason.ActionNotInEffectiveCapabilities)
	var reasons []string
	for _, d := range r.Decisions {
		reasons = append(reasons, d.StepID+" "+d.Reason)
	}
	if want := []string{"sum step_allowed", "save step_allowed", "up action_not_in_effective_capabilities"}; !slices.Equal(reasons, want) {
		t.Errorf("steps %v, want %v", reasons, want)
	}
	denied := decisions(t, w.Ledger, func(d *events.Decision) bool { return d.SOPID == "export" && !d.Allowed })
	open := look(t, w.Ledger, func(s *projection.State) int { return s.OpenCount() })
	if w.calls() != 0 || denied != 2 || open != 0 || w.Durable() != before+4 {
		t.Errorf("%d calls, %d denials, %d runs, %d events", w.calls(), denied, open, w.Durable()-before)
	}
	w.Stop()
}

func TestR43_OneMissingHandlerStopsAll(t *testing.T) {
	w := newWorkshop(t)
	if code := w.Hello("tools", []string{"document.summarize"}); code != "" { // the last hello counts
		t.Fatal(code)
	}
	r := w.Propose("researcher", "sop.submit", procedure("publish", 0,
		`note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"a","value":1}`,
		`sum document.summarize {}`, `save artifact.save {}`))
	expect(t, r, reason.MissingHandlers)
	d := logged(t, w.Ledger, r).Body.(*events.Decision)
	if !slices.Equal(d.Observed, []string{"artifact.save"}) || d.RunID != "" || !strings.Contains(r.Text, "artifact.save") {
		t.Errorf("observed %v in run %q; told %s", d.Observed, d.RunID, r.Text)
	}
	if w.calls() != 0 || revision(t, w.Ledger, "researcher", "notes", "a") != 0 {
		t.Errorf("%d calls, and the note at revision %d", w.calls(), revision(t, w.Ledger, "researcher", "notes", "a"))
	}
	// A judgement alone asks for no handler; and memory needs none.
	expect(t, w.Propose("researcher", "sop.validate", procedure("publish", 0, `save artifact.save {}`)), reason.SOPAdmitted)
	expect(t, w.Propose("researcher", "sop.submit", procedure("own", 0, `note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"a","value":1}`)), reason.SOPAdmitted)
	for _, row := range []struct {
		id      string
		actions []string
		want    reason.Code
	}{
		{"tools", []string{"no.such"}, reason.NotPermittedForRole}, {"researcher", nil, reason.NotPermittedForRole},
		{"watcher", nil, reason.NotPermittedForRole}, {"stranger", nil, reason.UnknownAgent},
	} {
		if code := w.Hello(row.id, row.actions); code != row.want {
			t.Errorf("hello of %s with %v: %q, want %s", row.id, row.actions, code, row.want)
		}
	}
	w.Stop()
}

// What becomes forbidden while a run is under way stops it before its next
// effect, whatever it was that changed.
func TestR46_EachStepIsJudgedAgain(t *testing.T) {
	all := []string{"memory.read", "memory.write", "document.summarize", "artifact.save", "agent.register"}
	for name, row := range map[string]struct {
		change func(w *workshop)
		want   reason.Code
	}{
		"the agent is told off":   {func(w *workshop) { w.Apply(replaytest.AgentDocument("researcher", "report_manager", all[:3]...)) }, reason.ActionNotInEffectiveCapabilities},
		"its manager is":          {func(w *workshop) { w.Apply(replaytest.AgentDocument("report_manager", "", all[:3]...)) }, reason.ActionNotInEffectiveCapabilities},
		"it is revoked":           {func(w *workshop) { w.Control("admin", "agent.revoke", `{"agent_id":"researcher"}`) }, reason.AgentRevoked},
		"its manager is revoked":  {func(w *workshop) { w.Control("admin", "agent.revoke", `{"agent_id":"report_manager"}`) }, reason.ActionNotInEffectiveCapabilities},
		"the environment narrows": {func(w *workshop) { w.Control("admin", "environment.set", `{"capabilities":["memory.read"]}`) }, reason.ActionNotInEffectiveCapabilities},
		"another policy":          {func(w *workshop) { w.Apply("apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-2\nenvironment: []\n") }, reason.UnknownAction},
		"an emergency deny": {func(w *workshop) {
			w.Control("admin", "emergency.deny", `{"ledger":true,"capabilities":["artifact.save"],"reason":"r"}`)
		}, reason.EmergencyDeny},
		"an emergency deny of all": {func(w *workshop) {
			w.Control("admin", "emergency.deny", `{"agent_id":"report_manager","all":true,"reason":"r"}`)
		}, reason.EmergencyDeny},
		"the handler goes":         {func(w *workshop) { w.Hello("tools", []string{"document.summarize"}) }, reason.MissingHandlers},
		"the handler is revoked":   {func(w *workshop) { w.report("tools", `{"operation_id":"none","ok":true}`) }, ""},
		"nothing of it is changed": {func(*workshop) {}, ""},
		"only another is told off": {func(w *workshop) { w.Apply(replaytest.AgentDocument("formatter", "researcher", "memory.read")) }, ""},
		"a deny of another subtree": {func(w *workshop) {
			w.Control("admin", "emergency.deny", `{"agent_id":"formatter","all":true,"reason":"r"}`)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t)
			r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`, `save artifact.save {}`, `again artifact.save {}`))
			expect(t, r, reason.SOPAdmitted)
			id := runOf(t, r).RunID
			first := w.next()
			row.change(w)
			w.done(first.OperationID, `1`)
			if row.want == "" {
				w.done(w.next().OperationID, `1`)
				w.done(w.next().OperationID, `1`)
				w.await(id, projection.Finished)
			} else {
				run := w.await(id, projection.Failed)
				if run.Reason != string(row.want) || w.calls() != 1 {
					t.Errorf("failed by %s with %d calls, want %s and 1", run.Reason, w.calls(), row.want)
				}
				w.wantHistory(id,
					"decision.allowed sop.submit sop_admitted", "run.admitted", "run.started",
					"decision.allowed sop.step sum step_allowed", "effect.started sum", "effect.finished sum",
					"decision.denied sop.step save "+string(row.want), "run.failed save "+string(row.want))
			}
			w.Stop()
		})
	}
}

func TestR46_RecordsOfTheMomentCount(t *testing.T) {
	w := newWorkshop(t)
	expect(t, w.Propose("researcher", "memory.write", write("a", "1", 0, "")), reason.OwnerWrite)
	r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`,
		`note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"a","value":2,"expected_revision":1}`, `save artifact.save {}`))
	id := runOf(t, r).RunID
	first := w.next()
	expect(t, w.Propose("researcher", "memory.write", write("a", "3", 1, "")), reason.OwnerWrite)
	w.done(first.OperationID, `1`)
	run := w.await(id, projection.Failed)
	if run.Reason != string(reason.RevisionConflict) || w.calls() != 1 || revision(t, w.Ledger, "researcher", "notes", "a") != 2 {
		t.Errorf("run %+v, %d calls, revision %d", run, w.calls(), revision(t, w.Ledger, "researcher", "notes", "a"))
	}
	w.Stop()
}

func timeouts(o string) string {
	return "apiVersion: ledgerd/v1\nkind: Policy\nversion: quick\nenvironment: [memory.read, memory.write, document.summarize, artifact.save]\nactions:\n" +
		"  document.summarize: {" + o + "}\n  artifact.save: {}\n  external.upload: {}\n"
}

func TestR53_ATimeoutEndsInDoubt(t *testing.T) {
	w := newWorkshop(t)
	w.Apply(timeouts("timeout: 100ms"))
	r := w.Propose("researcher", "sop.submit", procedure("publish", 8_000, `sum document.summarize {}`, `save artifact.save {}`))
	run := runOf(t, r)
	if run.State != "in_doubt" || run.Reason != string(reason.EffectTimeout) || w.calls() != 1 {
		t.Fatalf("run %+v after %d calls", run, w.calls())
	}
	exec := w.next()
	w.done(exec.OperationID, `"late"`) // evidence, and nothing more
	if got := w.run(run.RunID); got.State != projection.InDoubt || got.Steps[0].State != projection.StepFinished || w.calls() != 1 {
		t.Errorf("after a late report %+v, %d calls", got, w.calls())
	}
	w.done(exec.OperationID, `"late"`)
	w.wantHistory(run.RunID,
		"decision.allowed sop.submit sop_admitted", "run.admitted", "run.started",
		"decision.allowed sop.step sum step_allowed", "effect.started sum", "run.doubted sum effect_timeout", "effect.finished sum")
	expect(t, w.Control("admin", "run.resolve", fmt.Sprintf(`{"run_id":%q,"step_id":"sum","outcome":"done"}`, run.RunID)), reason.ControlDone)
	w.done(w.next().OperationID, `1`)
	w.await(run.RunID, projection.Finished)
	w.Stop()
}

func TestR53_OutputOverTheLimit(t *testing.T) {
	w := newWorkshop(t)
	w.Apply(timeouts("output: {max_bytes: 10}"))
	for result, want := range map[string]projection.RunState{`"12345678"`: projection.Finished, `"123456789"`: projection.Failed} {
		r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`))
		w.done(w.next().OperationID, result)
		run := w.await(runOf(t, r).RunID, want)
		if want == projection.Failed && run.Reason != string(reason.OutputTooLarge) {
			t.Errorf("failed by %s", run.Reason)
		}
	}
	w.Stop()
}

func TestR53_AFailedEffectFailsTheRun(t *testing.T) {
	w := newWorkshop(t)
	answer := w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("publish", 10_000, `sum document.summarize {}`, `save artifact.save {}`)))
	exec := w.next()
	w.report("tools", fmt.Sprintf(`{"operation_id":%q,"ok":false,"error":"canary-in-an-error"}`, exec.OperationID))
	r := <-answer
	if strings.Contains(r.Text, "canary") { // it is for people
		t.Errorf("told %s", r.Text)
	}
	run := w.await(runOf(t, r).RunID, projection.Failed)
	if run.Reason != string(reason.EffectFailed) || w.calls() != 1 {
		t.Errorf("run %+v, %d calls", run, w.calls())
	}
	must(t, w.Events(1, w.Durable(), func(seq uint64, b []byte) error {
		if strings.Contains(string(b), "canary") {
			t.Errorf("event %d holds the handler's text", seq)
		}
		return nil
	}))
	w.Stop()
}

func TestR53_CancelEndsTheRun(t *testing.T) {
	w := newWorkshop(t)
	r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`, `save artifact.save {}`))
	id := runOf(t, r).RunID
	exec := w.next()
	cancel := fmt.Sprintf(`{"run_id":%q}`, id)
	for _, other := range []string{"report_manager", "formatter"} { // neither above nor below: the run is its agent's
		expect(t, w.Propose(other, "run.cancel", cancel), reason.NotFound)
	}
	expect(t, w.Propose("researcher", "run.cancel", `{"run_id":"none"}`), reason.NotFound)
	if w.run(id).Cancelling {
		t.Fatal("another agent cancelled the run")
	}
	expect(t, w.Propose("researcher", "run.cancel", cancel), reason.RunCancelAccepted)
	expect(t, w.Propose("researcher", "run.cancel", cancel), reason.RunCancelAccepted)
	w.done(exec.OperationID, `1`)
	w.await(id, projection.Cancelled)
	expect(t, w.Propose("researcher", "run.cancel", cancel), reason.RunCancelled)
	if w.calls() != 1 {
		t.Errorf("%d calls", w.calls())
	}
	w.wantHistory(id,
		"decision.allowed sop.submit sop_admitted", "run.admitted", "run.started",
		"decision.allowed sop.step sum step_allowed", "effect.started sum",
		"decision.allowed run.cancel run_cancel_accepted", "decision.allowed run.cancel run_cancel_accepted", "effect.finished sum", "run.cancelled")
	w.Stop()
}

// A stop between an effect and its record leaves doubt; nothing is done again.
func TestR52_AStopLeavesDoubt(t *testing.T) {
	for outcome, want := range map[string]projection.RunState{"done": projection.Finished, "not_done": projection.Failed} {
		for _, late := range []string{"", `{"operation_id":%q,"ok":true,"result":5}`, `{"operation_id":%q,"ok":false,"error":"no"}`} {
			t.Run(outcome+" "+late, func(t *testing.T) {
				w := newWorkshop(t)
				r := w.Propose("researcher", "sop.submit", strings.TrimSuffix(procedure("publish", 0, `sum document.summarize {}`, `save artifact.save {}`), "}")+`,"operation_id":"once"}`)
				id := runOf(t, r).RunID
				exec := w.next()
				w.Stop()

				w = openWorkshop(t, w.Options)
				w.hello()
				run := w.await(id, projection.InDoubt)
				if run.Reason != string(reason.InDoubt) || w.calls() != 0 {
					t.Fatalf("run %+v, %d calls", run, w.calls())
				}
				again := w.Propose("researcher", "sop.submit", strings.TrimSuffix(procedure("publish", 30_000, `sum document.summarize {}`, `save artifact.save {}`), "}")+`,"operation_id":"once"}`)
				if got := runOf(t, again); again.Seq != r.Seq || got.RunID != id || got.State != "in_doubt" || w.calls() != 0 {
					t.Errorf("the same again: %s, %d calls", again.Text, w.calls())
				}
				if late != "" {
					if r := w.report("tools", fmt.Sprintf(late, exec.OperationID)); r.Type != wire.AckType {
						t.Fatalf("late report: %s", r.Text)
					}
				}
				if got := w.run(id); got.State != projection.InDoubt || w.calls() != 0 {
					t.Errorf("after the report %+v, %d calls", got, w.calls())
				}
				expect(t, w.Propose("researcher", "run.cancel", fmt.Sprintf(`{"run_id":%q}`, id)), reason.InDoubt)
				for _, bad := range []string{`{"run_id":%q,"step_id":"save","outcome":"done"}`, `{"run_id":%q,"step_id":"none","outcome":"done"}`} {
					expect(t, w.Control("admin", "run.resolve", fmt.Sprintf(bad, id)), reason.NotFound)
				}
				resolve := fmt.Sprintf(`{"run_id":%q,"step_id":"sum","outcome":%q}`, id, outcome)
				expect(t, w.Control("admin", "run.resolve", resolve), reason.ControlDone)
				if outcome == "done" {
					next := w.next()
					if next.StepID != "save" {
						t.Errorf("then came %+v", next)
					}
					w.done(next.OperationID, `1`)
				}
				w.await(id, want)
				expect(t, w.Control("admin", "run.resolve", resolve), reason.NotFound)
				w.done(exec.OperationID, `5`) // it goes on telling: acknowledged, and nothing changes
				if got := w.run(id); got.State != want {
					t.Errorf("after another report %+v", got)
				}
				w.Stop()
			})
		}
	}
}

func TestReportsAreTheirHandlersOwn(t *testing.T) {
	w := newWorkshop(t)
	w.Apply("kind: Principal\nid: other\nrole: handler\nactions: [artifact.save]\npublic_key: "+replaytest.Key("other")+"\n",
		"kind: Principal\nid: gone\nrole: handler\nactions: [document.summarize]\npublic_key: "+replaytest.Key("gone")+"\n")
	w.Control("admin", "principal.revoke", `{"id":"gone"}`)
	r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"a","value":1}`, `sum document.summarize {}`))
	id := runOf(t, r).RunID
	exec := w.next()
	before := w.Durable()
	for _, row := range []struct {
		who, operation string
		want           reason.Code
	}{
		{"other", exec.OperationID, reason.NotPermittedForRole}, {"gone", exec.OperationID, reason.AgentRevoked},
		{"researcher", exec.OperationID, reason.UnknownAgent}, {"watcher", exec.OperationID, reason.NotPermittedForRole},
		{"tools", "none", reason.NotFound}, {"tools", id + "/none", reason.NotFound}, {"tools", id, reason.NotFound},
		{"tools", id + "/note", reason.NotFound}, // what the ledger does itself nobody reports
	} {
		if r := w.report(row.who, fmt.Sprintf(`{"operation_id":%q,"ok":true}`, row.operation)); r.Reason != string(row.want) {
			t.Errorf("%s reports %s: %s, want %s", row.who, row.operation, r.Text, row.want)
		}
	}
	if w.Durable() != before || w.run(id).State != projection.Running {
		t.Errorf("%d events, run %+v", w.Durable()-before, w.run(id))
	}
	w.done(exec.OperationID, `1`)
	w.await(id, projection.Finished)
	w.Stop()
}

func TestR64_EmergencyDeny(t *testing.T) {
	w := newWorkshop(t)
	r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`, `save artifact.save {}`))
	id := runOf(t, r).RunID
	exec := w.next()
	dry := w.Control("admin", "emergency.deny", `{"agent_id":"report_manager","all":true,"reason":"a drill","dry_run":true}`)
	expect(t, dry, reason.ControlDone)
	if !strings.Contains(dry.Text, `"epoch":1,"in_flight":[{"run_id":"`+id+`","step_id":"sum"`) {
		t.Errorf("dry run: %s", dry.Text)
	}
	expect(t, w.Propose("researcher", "memory.read", readBody("project.client_region")), reason.VisibleFrom)
	elsewhere := w.Control("admin", "emergency.deny", `{"ledger":true,"capabilities":["external.upload"],"reason":"r"}`)
	if !strings.Contains(elsewhere.Text, `"epoch":1,"in_flight":[]`) {
		t.Errorf("a deny of another capability: %s", elsewhere.Text)
	}
	deny := w.Control("admin", "emergency.deny", `{"agent_id":"researcher","all":true,"reason":"r"}`)
	if !strings.Contains(deny.Text, `"epoch":2,"in_flight":[{"run_id":"`+id+`","step_id":"sum"`) {
		t.Errorf("deny: %s", deny.Text)
	}
	for _, who := range []string{"researcher", "formatter"} {
		expect(t, w.Propose(who, "memory.read", readBody("project.client_region")), reason.EmergencyDeny)
	}
	expect(t, w.Propose("researcher", "memory.read", `not even a request`), reason.EmergencyDeny)
	expect(t, w.Propose("report_manager", "memory.read", readBody("project.client_region")), reason.VisibleFrom)
	expect(t, w.Propose("report_manager", "action.authorize", `{"action":"external.upload","arguments":{}}`), reason.EmergencyDeny)
	expect(t, w.Propose("report_manager", "sop.validate", procedure("s", 0, `u external.upload {}`)), reason.EmergencyDeny)
	// A child registered later is under the same deny.
	expect(t, w.Control("admin", "agent.register", `{"agent_id":"late","parent_id":"formatter","capabilities":["memory.read"],"public_key":"`+replaytest.Key("late")+`"}`), reason.Registered)
	expect(t, w.Propose("late", "memory.read", readBody("project.client_region")), reason.EmergencyDeny)
	w.done(exec.OperationID, `1`)
	if run := w.await(id, projection.Failed); run.Reason != string(reason.EmergencyDeny) || w.calls() != 1 {
		t.Errorf("run %+v, %d calls", run, w.calls())
	}
	expect(t, w.Control("admin", "emergency.lift", `{"epoch":3}`), reason.NotFound)
	expect(t, w.Control("admin", "emergency.lift", `{"epoch":2}`), reason.ControlDone)
	expect(t, w.Control("admin", "emergency.lift", `{"epoch":2}`), reason.NotFound)
	expect(t, w.Propose("researcher", "memory.read", readBody("project.client_region")), reason.VisibleFrom)
	expect(t, w.Propose("report_manager", "action.authorize", `{"action":"external.upload","arguments":{}}`), reason.EmergencyDeny)
	for body, want := range map[string]reason.Code{
		`{"agent_id":"nobody","all":true,"reason":"r"}`:                           reason.NotFound,
		`{"ledger":true,"capabilities":["artifact.sav"],"reason":"r"}`:            reason.UnknownAction,
		`{"ledger":true,"capabilities":[],"reason":"r"}`:                          reason.MalformedRequest,
		`{"ledger":true,"capabilities":["a"],"all":true,"reason":"r"}`:            reason.MalformedRequest,
		`{"ledger":false,"all":true,"reason":"r"}`:                                reason.MalformedRequest,
		`{"ledger":true,"agent_id":"researcher","all":true,"reason":"r"}`:         reason.MalformedRequest,
		`{"ledger":true,"all":true}`:                                              reason.MalformedRequest,
		`{"ledger":true,"all":false,"capabilities":["a"],"reason":"r"}`:           reason.MalformedRequest,
		`{"ledger":true,"all":true,"reason":"` + strings.Repeat("r", 1025) + `"}`: reason.MalformedRequest,
	} {
		expect(t, w.Control("admin", "emergency.deny", body), want)
	}
	w.mu.Lock()
	states := make([]string, len(w.state))
	for i, s := range w.state {
		states[i] = string(s)
	}
	w.mu.Unlock()
	want := []string{
		`{"type":"io.ledgerd.control_state.v1","epoch":1,"denies":[{"epoch":1,"ledger":true,"capabilities":["external.upload"]}]}`,
		`{"type":"io.ledgerd.control_state.v1","epoch":2,"denies":[{"epoch":1,"ledger":true,"capabilities":["external.upload"]},{"epoch":2,"agent_id":"researcher","all":true}]}`,
		`{"type":"io.ledgerd.control_state.v1","epoch":2,"denies":[{"epoch":1,"ledger":true,"capabilities":["external.upload"]}]}`,
	}
	if !slices.Equal(states, want) {
		t.Errorf("announced\n%s\nwant\n%s", strings.Join(states, "\n"), strings.Join(want, "\n"))
	}
	w.Stop()

	w = openWorkshop(t, w.Options) // it outlives a restart
	expect(t, w.Propose("report_manager", "action.authorize", `{"action":"external.upload","arguments":{}}`), reason.EmergencyDeny)
	expect(t, w.Control("admin", "emergency.deny", `{"ledger":true,"all":true,"reason":"r"}`), reason.ControlDone)
	expect(t, w.Propose("report_manager", "memory.read", readBody("project.client_region")), reason.EmergencyDeny)
	expect(t, w.Control("admin", "environment.set", `{"capabilities":["memory.read"]}`), reason.ControlDone)
	w.Stop()
}

func TestR66_OpenRunsAreLimited(t *testing.T) {
	w := newWorkshop(t)
	for range events.OpenRunsMax {
		expect(t, w.Propose("researcher", "sop.submit", procedure("s", 0, `sum document.summarize {}`)), reason.SOPAdmitted)
	}
	r := w.Propose("researcher", "sop.submit", procedure("s", 0, `sum document.summarize {}`))
	expect(t, r, reason.QuotaExceeded)
	if n := look(t, w.Ledger, func(s *projection.State) int { return s.OpenCount() }); n != events.OpenRunsMax {
		t.Errorf("%d runs are open", n)
	}
	expect(t, w.Propose("report_manager", "sop.submit", procedure("s", 0, `sum document.summarize {}`)), reason.SOPAdmitted)
	w.done(w.next().OperationID, `1`)
	expect(t, w.Propose("researcher", "sop.submit", procedure("s", 0, `sum document.summarize {}`)), reason.SOPAdmitted)
	w.Stop()
}

func TestARunIsWaitedForNoLongerThanAsked(t *testing.T) {
	w := newWorkshop(t)
	r := w.Propose("researcher", "sop.submit", procedure("s", 50, `sum document.summarize {}`))
	if run := runOf(t, r); run.State != "running" || run.Results[0].State != "started" {
		t.Errorf("run %+v", run)
	}
	held := w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("s", 60_000, `sum document.summarize {}`)))
	w.next()
	w.next()
	must(t, w.End()) // what is held back is answered at the end
	if run := runOf(t, <-held); run.State != "running" {
		t.Errorf("run %+v", run)
	}
	replaytest.CheckLedger(t, w.Options)
}

// An agent has so many answers held back and no more; the rest come at once.
func TestR66_HeldAnswersAreLimited(t *testing.T) {
	w := newWorkshop(t)
	submit := func() <-chan replaytest.Reply {
		return w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("s", 60_000, `sum document.summarize {}`)))
	}
	var held []<-chan replaytest.Reply
	for range 16 {
		held = append(held, submit())
		w.next()
	}
	select {
	case r := <-submit():
		if run := runOf(t, r); run.State != "running" {
			t.Errorf("the one too many: %+v", run)
		}
	case <-time.After(20 * time.Second): // it would be held for a minute
		t.Error("the one too many is held too")
	}
	for i, answer := range held {
		select {
		case r := <-answer:
			t.Fatalf("answer %d was not held: %s", i, r.Text)
		default:
		}
	}
	w.mu.Lock()
	execs := slices.Clone(w.execs)
	w.mu.Unlock()
	for _, e := range execs[:16] {
		w.done(e.OperationID, `1`)
	}
	for _, answer := range held {
		if run := runOf(t, <-answer); run.State != "finished" {
			t.Errorf("run %+v", run)
		}
	}
	w.Stop()
}

// A handler hears of an effect only when its start is on disk.
func TestNothingStartsBeforeItIsDurable(t *testing.T) {
	o, sys := newMem(t)
	g := newGate()
	o.Store.FS = g.fs(sys)
	w := openWorkshop(t, o)
	w.Family()
	w.Apply(toolsDocument + replaytest.Key("tools") + "\n")
	w.hello()
	g.shut()
	answer := w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("s", 0, `sum document.summarize {}`)))
	<-g.waiting // the batch is on its way, and not synced
	time.Sleep(20 * time.Millisecond)
	if n := w.calls(); n != 0 {
		t.Errorf("%d effects before the sync", n)
	}
	g.open()
	expect(t, <-answer, reason.SOPAdmitted)
	w.done(w.next().OperationID, `1`)
	w.Stop()
}

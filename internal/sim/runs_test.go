package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// newRun stands for the id of a run that is only just admitted.
const newRun = "new"

// readRun reads the events of runs, effects and emergencies. The fact's version
// is the action or the epoch, its role the reason, outcome or handler.
func (f *fact) readRun(body events.Body) {
	effect := func(e events.Effect) {
		f.id, f.parent, f.version, f.role = e.RunID, e.StepID, e.Action, e.Outcome+"/"+e.Handler
	}
	emergency := func(e events.Emergency) {
		f.id, f.capabilities, f.version, f.role = e.Scope, e.Capabilities, fmt.Sprint(e.Epoch), fmt.Sprint(e.All)
	}
	switch b := body.(type) {
	case *events.RunAdmitted:
		f.id, f.version, f.steps, f.actions = b.RunID, b.SOPID, b.Steps, b.Actions
	case *events.RunStarted:
		f.id = b.RunID
	case *events.RunFinished:
		f.id = b.RunID
	case *events.RunCancelled:
		f.id = b.RunID
	case *events.RunFailed:
		f.id, f.parent, f.role = b.RunID, b.StepID, b.Reason
	case *events.RunDoubted:
		f.id, f.parent, f.role = b.RunID, b.StepID, b.Reason
	case *events.RunResolved:
		f.id, f.parent, f.role = b.RunID, b.StepID, b.Outcome
	case *events.EffectStarted:
		effect(b.Effect)
	case *events.EffectFinished:
		effect(b.Effect)
	case *events.EffectFailed:
		effect(b.Effect)
	case *events.EmergencyDenied:
		emergency(b.Emergency)
	case *events.EmergencyLifted:
		emergency(b.Emergency)
	}
}

// aRun is a run as its events leave it.
type aRun struct {
	id, agent, sop string
	decision       uint64
	admitted       events.Time
	state          string // admitted, running, in_doubt, or how it ended
	cancelling     bool
	next           int
	steps          []string
	actions        []string
	how            []string // of each step: "", started, finished, failed
	granted        uint64   // the decision on the effect in flight
	deadline       events.Time
}

func (r *aRun) open() bool {
	return r.state == "admitted" || r.state == "running" || r.state == "in_doubt"
}

func (r *aRun) idle() bool {
	return r.state == "running" && (r.next == len(r.steps) || r.how[r.next] == "")
}

// flying is the step whose effect has started and of which nothing is known.
func (r *aRun) flying() bool { return r.open() && r.next < len(r.steps) && r.how[r.next] == "started" }

func (r *aRun) effect() string { return r.id + "/" + r.steps[r.next] }

// run goes over all that was learnt and keeps what is of one run.
func (m *model) run(id string) *aRun {
	var r *aRun
	for i := range m.facts {
		f := &m.facts[i]
		switch {
		case f.kind == "run.admitted" && f.id == id:
			r = &aRun{id: id, agent: f.agent, sop: f.version, decision: f.cause, admitted: f.time, state: "admitted", steps: f.steps, actions: f.actions, how: make([]string, len(f.steps))}
		case r != nil && f.decision.run == id && f.decision.operation == "run.cancel" && f.decision.reason == "run_cancel_accepted":
			r.cancelling = true
		case r != nil && f.id == id:
			r.follow(f)
		}
	}
	return r
}

func (r *aRun) follow(f *fact) {
	switch f.kind {
	case "run.started":
		r.state = "running"
	case "effect.started":
		r.how[r.next], r.granted, r.deadline = "started", f.cause, f.deadline
	case "effect.finished":
		if r.how[r.next] = "finished"; r.state == "running" {
			r.next++
		}
	case "effect.failed":
		r.how[r.next] = "failed"
	case "run.doubted":
		r.state = "in_doubt"
	case "run.resolved":
		if r.state = "running"; f.role == "done" && r.how[r.next] != "started" {
			r.next++
		}
	case "run.finished", "run.failed", "run.cancelled":
		r.state = strings.TrimPrefix(f.kind, "run.")
	}
}

// openRuns lists the open runs in the order of their admission.
func (m *model) openRuns() (list []*aRun) {
	for i := range m.facts {
		if f := &m.facts[i]; f.kind == "run.admitted" {
			if r := m.run(f.id); r.open() {
				list = append(list, r)
			}
		}
	}
	return list
}

// timeout is how long an action's effect may take, in microseconds.
func (m *model) timeout(action string) events.Time {
	if m.policy != nil && m.policy.timeouts[action] > 0 {
		return events.Time(m.policy.timeouts[action]) * 1_000_000
	}
	return 30 * 1_000_000
}

// needs is the capability that a request of its own takes, empty for none.
func needs(operation string, b map[string]any) string {
	switch operation {
	case "memory.read", "agent.register":
		return operation
	case "memory.write", "memory.delete":
		return "memory.write"
	case "action.authorize":
		return text(b, "action")
	}
	return ""
}

// denies lists the emergency denies that are in force.
func (m *model) denies() (list []*fact) {
	for i := range m.facts {
		f := &m.facts[i]
		lifted := m.any(func(g *fact) bool { return g.kind == "emergency.lifted" && g.version == f.version })
		if f.kind == "emergency.denied" && !lifted {
			list = append(list, f)
		}
	}
	return list
}

// denied reports whether an emergency takes a capability from an agent; the
// empty one is any act at all.
func (m *model) denied(agent, capability string) bool {
	for _, d := range m.denies() {
		if m.covers(d, agent, capability) {
			return true
		}
	}
	return false
}

func (m *model) covers(d *fact, agent, capability string) bool {
	return (d.id == "all" || slices.Contains(m.ancestors(agent), d.id)) && (d.role == "true" || slices.Contains(d.capabilities, capability))
}

func (m *model) emergency(b map[string]any) verdict {
	scope, set := text(b, "agent_id"), list(b, "capabilities")
	switch {
	case scope == "":
		scope = "all"
	case m.agent(scope) == nil:
		return deny("not_found")
	}
	if !m.allCapabilities(set) {
		return deny("unknown_action")
	}
	epoch := uint64(1)
	for i := range m.facts {
		if m.facts[i].kind == "emergency.denied" {
			epoch++
		}
	}
	all, _ := b["all"].(bool)
	d := fact{kind: "emergency.denied", id: scope, capabilities: set, version: fmt.Sprint(epoch), role: fmt.Sprint(all)}
	v := allow("control_done", d)
	v.deny = true
	for _, r := range m.openRuns() {
		if r.flying() && m.covers(&d, r.agent, r.actions[r.next]) {
			v.inFlight = append(v.inFlight, r.effect())
		}
	}
	if dry, _ := b["dry_run"].(bool); dry {
		v.effects = nil
	}
	return v
}

func (m *model) lift(epoch uint64) verdict {
	for _, d := range m.denies() {
		if d.version == fmt.Sprint(epoch) {
			lifted := *d
			lifted.kind = "emergency.lifted"
			return allow("control_done", lifted)
		}
	}
	return deny("not_found")
}

// submit judges a procedure and looks for handlers.
func (m *model) submit(q request, sop any) verdict {
	v := m.procedure(q.subject, sop)
	if v.reason != "sop_admitted" {
		return v
	}
	p := sop.(map[string]any)
	admitted := fact{kind: "run.admitted", version: text(p, "sop_id")}
	for _, s := range p["steps"].([]any) {
		step := s.(map[string]any)
		action := text(step, "action")
		admitted.steps, admitted.actions = append(admitted.steps, text(step, "step_id")), append(admitted.actions, action)
		if !strings.HasPrefix(action, "memory.") && q.absent(action) {
			v.reason = "missing_handlers"
		}
	}
	if v.reason != "sop_admitted" {
		return v
	}
	v.run, v.effects = newRun, []fact{admitted, {kind: "run.started"}}
	return v
}

func (m *model) cancel(me, id string) verdict {
	r := m.run(id)
	switch {
	case r == nil || r.agent != me:
		return deny("not_found")
	case r.state == "cancelled":
		return deny("run_cancelled")
	case r.state == "in_doubt":
		return deny("in_doubt")
	case !r.open():
		return deny("not_found")
	}
	return verdict{reason: "run_cancel_accepted", run: id}
}

func (m *model) resolve(id, step, outcome string) verdict {
	r := m.run(id)
	if r == nil || r.state != "in_doubt" || r.steps[r.next] != step {
		return deny("not_found")
	}
	v := verdict{reason: "control_done", run: id, effects: []fact{{kind: "run.resolved", id: id, parent: step, role: outcome}}}
	ended := fact{kind: "effect.finished", id: id, parent: step, version: r.actions[r.next], role: outcome + "/"}
	if outcome != "done" {
		ended.kind = "effect.failed"
	}
	if r.how[r.next] == "started" {
		v.effects = append(v.effects, ended)
	}
	if outcome != "done" {
		v.effects = append(v.effects, fact{kind: "run.failed", id: id, parent: step, role: "effect_failed"})
	}
	return v
}

// goOn follows a run as far as it goes by itself.
func (w *world) goOn(id string, c *cursor) error {
	for {
		r := w.model.run(id)
		if id == "" || r == nil || !r.idle() {
			return nil
		}
		var err error
		switch {
		case r.cancelling:
			err = c.expect(r.agent, r.decision, fact{kind: "run.cancelled", id: id})
		case r.next == len(r.steps):
			err = c.expect(r.agent, r.decision, fact{kind: "run.finished", id: id})
		default:
			err = w.stepOf(r, c)
		}
		if err != nil {
			return fmt.Errorf("run %s of %s, step %d of %v: %w", id, r.agent, r.next, r.actions, err)
		}
	}
}

// stepOf holds the decision on a step at its moment, and what follows, against
// the model.
func (w *world) stepOf(r *aRun, c *cursor) error {
	v := w.judgeStep(r, c.time())
	e, leaf, err := c.next()
	if err != nil {
		return err
	}
	d, ok := e.Body.(*events.Decision)
	if !ok || d.Operation != ledger.StepOperation || d.RunID != r.id || d.StepID != r.steps[r.next] || d.Action != r.actions[r.next] || d.Subject != r.agent {
		return fmt.Errorf("event %d is no decision on it: %+v", e.Seq, e.Body)
	}
	if d.Reason != v.reason || d.Owner != v.owner {
		return fmt.Errorf("decided %s %q, want %s %q", d.Reason, d.Owner, v.reason, v.owner)
	}
	w.volumes.decisions["step: "+d.Reason]++
	w.model.learn(factOf(e, leaf, w.known))
	return c.expect(r.agent, e.Seq, v.effects...)
}

// judgeStep is the verdict on a run's next step now.
func (w *world) judgeStep(r *aRun, now events.Time) verdict {
	m := w.model
	m.now = now
	request := m.last(func(f *fact) bool { return f.seq == r.decision }).decision.request
	step := request.(map[string]any)["sop"].(map[string]any)["steps"].([]any)[r.next].(map[string]any)
	id, action := r.steps[r.next], r.actions[r.next]
	needs := action
	if action == "memory.delete" {
		needs = "memory.write"
	}
	var v verdict
	switch {
	case m.agentRevoked(r.agent):
		v = deny("agent_revoked")
	case m.denied(r.agent, needs):
		v = deny("emergency_deny")
	case m.policy == nil:
		v = deny("no_policy")
	case now >= r.admitted+24*3600*1_000_000:
		v = deny("effect_timeout")
	default:
		v = verdict{reason: m.step(r.agent, step, map[string]bool{})}
		if strings.HasPrefix(v.reason, "requirement_") {
			arguments, _ := step["arguments"].(map[string]any)
			_, v.owner = m.breaks(r.agent, action, arguments)
		}
	}
	memory := strings.HasPrefix(action, "memory.")
	if v.reason == "step_allowed" {
		arguments, _ := step["arguments"].(map[string]any)
		switch {
		case !memory && w.absent(action):
			v = deny("missing_handlers")
		case action == "memory.read":
			v = m.read(r.agent, arguments, true)
		case action == "memory.write":
			v = m.write(r.agent, arguments, r.id)
		case action == "memory.delete":
			v = m.delete(r.agent, arguments)
		}
	}
	allowed := slices.Contains([]string{"step_allowed", "visible_from", "combined_from", "owner_write", "owner_delete"}, v.reason)
	started := fact{kind: "effect.started", id: r.id, parent: id, version: action, role: "/"}
	switch {
	case !allowed:
		v.effects = []fact{{kind: "run.failed", id: r.id, parent: id, role: v.reason}}
	case memory:
		v.reason, started.role = "step_allowed", "/"+events.System
		finished := started
		finished.kind = "effect.finished"
		v.effects = append(append([]fact{started}, v.effects...), finished)
	default:
		v.effects = []fact{started}
	}
	return v
}

// compareReport holds what a report led to against the model.
func (w *world) compareReport(f *flight, c *cursor) error {
	m, report := w.model, f.report
	run := ""
	p := m.principal(report.handler)
	f.told = ""
	id, step, _ := strings.Cut(report.said.OperationID, "/")
	r := m.run(id)
	at := -1
	if r != nil {
		at = slices.Index(r.steps, step)
	}
	switch {
	case p == nil:
		f.told = "unknown_agent"
	case m.principalRevoked(report.handler):
		f.told = "agent_revoked"
	case p.role != "handler":
		f.told = "not_permitted_for_role"
	case at < 0 || r.how[at] == "" || strings.HasPrefix(r.actions[at], "memory."):
		f.told = "not_found"
	case !slices.Contains(p.capabilities, r.actions[at]):
		f.told = "not_permitted_for_role"
	case r.how[at] == "started":
		run = id
	}
	if run == "" {
		return nil
	}
	ended := fact{kind: "effect.finished", id: id, parent: step, version: r.actions[at], role: "/" + report.handler}
	want := []fact{ended}
	if !report.said.OK {
		want[0].kind, want[0].role = "effect.failed", "effect_failed/"+report.handler
		if r.state != "in_doubt" {
			want = append(want, fact{kind: "run.failed", id: id, parent: step, role: "effect_failed"})
		}
	}
	if err := c.expect(r.agent, r.granted, want...); err != nil {
		return fmt.Errorf("report of %s: %w", report.said.OperationID, err)
	}
	return w.goOn(id, c)
}

// compareTick holds a look after the open runs against the model. What the
// ledger's clock shows is known only from an event.
func (w *world) compareTick(c *cursor) error {
	now := c.time()
	for _, r := range w.model.openRuns() {
		switch {
		case r.state == "running" && r.flying() && now >= r.deadline:
			if err := c.expect(r.agent, r.granted, fact{kind: "run.doubted", id: r.id, parent: r.steps[r.next], role: "effect_timeout"}); err != nil {
				return err
			}
		default:
			if err := w.goOn(r.id, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// doubts are what an opening must say of the runs in the durable log: of every
// effect in flight, that nobody knows.
func (w *world) doubts() (want []string) {
	m := &model{known: w.known}
	for i, b := range w.log.events {
		if e, err := events.Parse(b); err == nil {
			m.learn(factOf(&e, w.log.leaves[i], w.known))
		}
	}
	for _, r := range m.openRuns() {
		if r.state == "running" && r.flying() {
			want = append(want, fact{kind: "run.doubted", id: r.id, parent: r.steps[r.next], role: "in_doubt"}.say())
		}
	}
	return want
}

func (w *world) checkDoubts(want []string, n int) error {
	var got []string
	for _, f := range w.model.facts[len(w.model.facts)-n:] {
		got = append(got, f.say())
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the opening says %v, want %v", got, want)
	}
	return nil
}

// handler does effects. Its store outlives it: it notes that it begins, does
// the effect, notes what came of it, and dies at any point in between.
type handler struct {
	id      string
	actions []string
	store   map[string]effect
	unheard []string // operation ids whose report is not acknowledged
}

type effect struct {
	ended bool // else begun, and the handler does not know
	ok    bool
}

type report struct {
	handler string
	said    *wire.Report
}

// absent reports whether no handler is there for an action: none was heard in
// the last 15 seconds of the ledger's own clock that is still in force.
func (w *world) absent(action string) bool {
	for _, h := range w.handlers {
		at, heard := w.heard[h.id]
		who, ok := w.stepper.Lookup(w.keyOfHandler(h))
		if heard && ok && !who.Revoked && slices.Contains(h.actions, action) && w.elapsed-at <= ledger.PresentFor {
			return false
		}
	}
	return true
}

func (w *world) keyOfHandler(h *handler) string { return publicKey(h.id) }

// work has a handler do something: say that it is there, do an effect, tell of
// one; or has the ledger take a report.
func (w *world) work() error {
	if len(w.handlers) == 0 {
		w.execs, w.reports = nil, nil
		return nil
	}
	for range 2 {
		switch {
		case len(w.execs) > 0 && w.percent(60):
			w.perform()
		case len(w.reports) > 0 && w.percent(70):
			return w.takeReport()
		default:
			w.tell(pick(w, w.handlers))
		}
	}
	return nil
}

// perform brings an effect's message to a handler, which may happen twice, or
// not at all, or long after.
func (w *world) perform() {
	i := 0
	if w.percent(w.options.Reorder) {
		i = w.r.IntN(len(w.execs))
	}
	e := w.execs[i]
	if !w.percent(w.options.Double) {
		w.execs = slices.Delete(w.execs, i, i+1)
	}
	if w.percent(w.options.Drop) {
		return
	}
	var able []*handler
	for _, h := range w.handlers {
		if slices.Contains(h.actions, e.Action) {
			able = append(able, h)
		}
	}
	h := pick(w, able)
	for _, other := range able { // they share their effect store
		if _, seen := other.store[e.OperationID]; seen {
			h = other
		}
	}
	crash := w.r.IntN(200)
	if done, seen := h.store[e.OperationID]; seen {
		if done.ended && !slices.Contains(h.unheard, e.OperationID) {
			h.unheard = append(h.unheard, e.OperationID)
		}
		return
	}
	h.store[e.OperationID] = effect{}
	if crash < w.options.HandlerCrash {
		w.volumes.handlerCrashes++
		return
	}
	ok := w.percent(85)
	if ok {
		w.effects[e.OperationID]++
	}
	if crash < 2*w.options.HandlerCrash {
		w.volumes.handlerCrashes++
		return
	}
	h.store[e.OperationID] = effect{ended: true, ok: ok}
	h.unheard = append(h.unheard, e.OperationID)
}

// tell has a handler say hello and send again what is not acknowledged.
func (w *world) tell(h *handler) {
	if w.percent(80) {
		who, ok := w.stepper.Lookup(publicKey(h.id))
		if code := w.stepper.Hello(h.id, h.actions); (code == "") != (ok && !who.Revoked) {
			panic(fmt.Sprintf("hello of %s: %q", h.id, code))
		} else if code == "" {
			w.heard[h.id] = w.elapsed
		}
	}
	for _, id := range h.unheard {
		said := &wire.Report{OperationID: id, OK: h.store[id].ok}
		if said.OK {
			said.Result = []byte(`"` + canary + `result"`)
		} else {
			said.Error = canary + "error"
		}
		w.reports = append(w.reports, report{h.id, said})
	}
	if w.percent(w.options.Buggy / 10) {
		w.reports = append(w.reports, report{h.id, &wire.Report{OperationID: w.someEffect(), OK: false, Error: "made up"}})
	}
}

// someEffect is an effect of nobody, or one that a handler that has begun it
// cannot know of.
func (w *world) someEffect() string {
	if runs := w.model.openRuns(); len(runs) > 0 && w.percent(50) {
		r := pick(w, runs)
		return r.id + "/" + r.steps[0] + "x"
	}
	return "nothing/none"
}

// takeReport has the ledger take one report, or lose it.
func (w *world) takeReport() error {
	i := w.r.IntN(len(w.reports))
	r := w.reports[i]
	if !w.percent(w.options.Double) {
		w.reports = slices.Delete(w.reports, i, i+1)
	}
	if w.percent(w.options.Drop) || len(w.flight) >= w.options.InFlight {
		return nil
	}
	step, err := w.stepper.Report(r.handler, r.said)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return w.take(&flight{step: step, first: w.model.seq, report: &r})
}

// tick has the ledger look after its runs.
func (w *world) tick() error {
	if len(w.flight) >= w.options.InFlight {
		return nil
	}
	w.ticked = w.elapsed
	step, err := w.stepper.Tick()
	if err != nil {
		return fmt.Errorf("tick: %w", err)
	}
	return w.take(&flight{step: step, first: w.model.seq, tick: true})
}

// dispatch sends the effects that a durable batch has started, and acknowledges
// a report.
func (w *world) dispatch(f *flight, answers []ledger.Answer) {
	w.execs = append(w.execs, f.step.Execs()...)
	if f.report == nil {
		return
	}
	if string(answers[0].Reason) != f.told {
		panic(fmt.Sprintf("a report of %s was answered %q, want %q", f.report.said.OperationID, answers[0].Reason, f.told))
	}
	if answers[0].Reason == "" && !w.percent(w.options.Drop) {
		for _, h := range w.handlers {
			if h.id == f.report.handler {
				h.unheard = slices.DeleteFunc(h.unheard, func(id string) bool { return id == f.report.said.OperationID })
			}
		}
	}
}

// someRun is a run of somebody's, mostly its own.
func (w *world) someRun(of string) string {
	var own []string
	for i := range w.model.facts {
		if f := &w.model.facts[i]; f.kind == "run.admitted" && (f.agent == of || w.percent(10)) {
			own = append(own, f.id)
		}
	}
	if len(own) == 0 {
		return "no-run"
	}
	return own[len(own)-1-w.r.IntN(min(len(own), 3))]
}

// emergencies are denies, lifts, and the word of a person on a doubted effect,
// who has looked what really happened.
func (w *world) emergencies() (string, object) {
	for _, r := range w.model.openRuns() {
		if r.state == "in_doubt" && w.percent(60) {
			outcome := "not_done"
			switch {
			case w.effects[r.effect()] > 0:
				outcome = "done"
			case len(w.flight) > 0 || slices.ContainsFunc(w.execs, func(e wire.Exec) bool { return e.OperationID == r.effect() }):
				continue // its message may still arrive: nobody can say that it is not done
			}
			return "run.resolve", object{"run_id": r.id, "step_id": r.steps[r.next], "outcome": outcome}
		}
	}
	if denies := w.model.denies(); len(denies) > 0 && w.percent(85) {
		epoch := 0
		fmt.Sscan(pick(w, denies).version, &epoch)
		return "emergency.lift", object{"epoch": epoch + w.r.IntN(10)/9}
	}
	body := object{"reason": canary + "reason"}
	if w.percent(30) {
		body["ledger"] = true
	} else {
		body["agent_id"] = w.agentID(nil)
	}
	if w.percent(40) {
		body["all"] = true
	} else {
		body["capabilities"] = []string{pick(w, append(slices.Clone(capabilities), "x.four"))}
	}
	if w.percent(15) {
		body["dry_run"] = true
	}
	return "emergency.deny", body
}

// checkEffects goes over the whole log: no effect without the decision that
// allowed it at its moment, none under an emergency deny or of somebody revoked;
// each done once at most; each that was started is ended in the log, or in doubt.
func (w *world) checkEffects() error {
	m := &model{known: w.known}
	started := map[string]bool{}
	for i := range w.model.facts {
		f := w.model.facts[i]
		if f.kind == "effect.started" {
			granted := m.last(func(d *fact) bool { return d.seq == f.cause })
			switch id := f.id + "/" + f.parent; {
			case granted == nil || granted.decision.operation != ledger.StepOperation || granted.decision.reason != "step_allowed" || granted.decision.run != f.id:
				return fmt.Errorf("effect %s at %d was not allowed", id, f.seq)
			case m.denied(f.agent, f.version) || m.agentRevoked(f.agent):
				return fmt.Errorf("effect %s at %d of %s, who is denied it", id, f.seq, f.agent)
			case started[id]:
				return fmt.Errorf("effect %s started twice", id)
			default:
				started[id] = true
			}
		}
		m.learn(f)
		switch f.kind {
		case "run.admitted":
			w.volumes.runs++
		case "run.doubted":
			w.volumes.doubts++
		case "run.cancelled":
			w.volumes.cancels++
		case "emergency.denied":
			w.volumes.denies++
		case "payload.erased":
			w.volumes.erasures++
		case "hold.placed":
			w.volumes.holds++
		}
	}
	for id, n := range w.effects {
		if !started[id] || n != 1 {
			return fmt.Errorf("effect %s was done %d times, started in the log: %v", id, n, started[id])
		}
		w.volumes.effects++
	}
	for i := range w.model.facts {
		if f := &w.model.facts[i]; f.kind == "effect.started" && f.role != "/"+events.System {
			if err := w.checkEnd(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkEnd: what the log says of an effect is what happened, or that it is not
// known.
func (w *world) checkEnd(f *fact) error {
	id := f.id + "/" + f.parent
	end := w.model.last(func(g *fact) bool {
		return (g.kind == "effect.finished" || g.kind == "effect.failed") && g.id == f.id && g.parent == f.parent
	})
	done := w.effects[id] > 0
	switch r := w.model.run(f.id); {
	case end == nil && !r.open():
		return fmt.Errorf("effect %s was started, the run is %s, and nothing says what became of it", id, r.state)
	case end != nil && (end.kind == "effect.finished") != done:
		return fmt.Errorf("the log says %s of effect %s, done: %v", end.kind, id, done)
	case !done:
		w.volumes.unperformed++
	}
	return nil
}

package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// procedure is what the writer keeps of an open run beside its state. Its steps
// it keeps only as long as it goes on with the run: parsed they are many times
// what the request was, and an agent may have many runs that wait.
type procedure struct {
	steps  []sop.Step           // nil while the run waits for a report
	salt   [events.SaltLen]byte // of the commitment to the request that brought it
	memory []memoryResult       // by step; of memory steps done since the ledger was opened
	broken bool                 // its payload does not open: nothing of it is done any more
}

// memoryResult is the record that a memory step read or changed.
type memoryResult struct {
	read    *Reading
	changed *wire.Record
}

// runView is a run as it stood when a batch was sealed, for those who wait.
type runView struct {
	run    projection.Run
	memory []memoryResult
}

// Report takes what a handler says of an effect. As with Submit, the empty code
// means that answer will be called, once, with wire.Ack or an error: only when
// what it said is durable, or was before.
func (l *Ledger) Report(handler string, r *wire.Report, answer func(Answer)) reason.Code {
	if l.low.Load() >= 2 {
		return reason.StorageLow
	}
	return l.enqueue(&l.intake.reports, handler, &job{report: r, handler: handler, answer: answer, bytes: len(r.Result)})
}

// judgeReport takes a report into the log and lets its run go on.
func (l *Ledger) judgeReport(w *sealing, j *job) error {
	effects, code := Reported(l.state, j.handler, j.report)
	run, step := l.state.Effect(j.report.OperationID)
	if j.told = code; len(effects) == 0 {
		if code == "" && j.report.OK != (step.State == projection.StepFinished) {
			l.log.Warn("a report is not what is recorded of its effect", "run", run.ID, "step", step.ID, "handler", j.handler, "ok", j.report.OK, "recorded", string(step.State))
		}
		return nil
	}
	if err := l.sealer.check(run.Agent); err != nil { // the handler goes on telling until somebody has mended it
		j.told = reason.NotKnownCommitted
		l.log.Error("a report cannot be kept", "run", run.ID, "error", err)
		return nil
	}
	if err := w.follow(run, step.Granted, effects...); err != nil {
		return err
	}
	return l.advance(w, run)
}

// advance takes an idle run as far as it goes: each step is judged at this
// moment, memory steps are done at once, and another's effect starts and is
// waited for. While storage is low nothing starts; a tick takes the run up again.
func (l *Ledger) advance(w *sealing, run *projection.Run) error {
	for run.Idle() && l.low.Load() == 0 {
		if body := Ending(run); body != nil {
			return w.follow(run, run.Decision, Effect{Body: body})
		}
		p := l.procedure(run)
		if p == nil || p.broken {
			return nil
		}
		step, next := &p.steps[run.Next], run.Next
		var observed []string
		if !builtIn(step.Action) {
			if l.flights.hold(run.ID, l.flightOf(run, step.Action)) {
				return nil
			}
			observed = l.missing([]string{step.Action})
		}
		now := l.now()
		o := JudgeStep(l.state, run, step, observed, now)
		o.DigestStep(p.salt, uint64(next)+1)
		if err := w.step(run, o, now); err != nil {
			return err
		}
		if run.InFlight() != nil {
			w.start(run, step)
		} else {
			p.memory[next] = memoryResult{read: o.Read, changed: changedByStep(o)}
		}
	}
	return nil
}

// changedByStep is the record that an allowed memory step changed, nil for none.
func changedByStep(o *Outcome) *wire.Record {
	for _, effect := range o.Effects {
		if r := changedRecord(effect.Body); r != nil {
			return r
		}
	}
	return nil
}

// procedure returns the steps of an open run: those at hand, or read again from
// the request beside its decision; nil as long as that is not durable.
func (l *Ledger) procedure(run *projection.Run) *procedure {
	p := l.procedures[run.ID]
	if p == nil {
		p = &procedure{memory: make([]memoryResult, len(run.Steps))}
		l.procedures[run.ID] = p
	}
	switch {
	case p.steps != nil || p.broken:
		return p
	case run.Decision > l.reads.Durable():
		return nil
	}
	salt, b, ok, err := l.payloads.Open(run.Decision)
	if err == nil && ok {
		p.salt = salt
		p.steps, err = ProcedureSteps(b)
	}
	if err == nil {
		err = l.sealer.check(run.Agent)
	}
	if len(p.steps) != len(run.Steps) || err != nil {
		p.broken, p.steps = true, nil
		l.log.Error("a run cannot go on: the procedure beside its decision, or its agent's data key, does not open", "run", run.ID, "decision", run.Decision, "error", err)
	}
	return p
}

// ProcedureSteps reads the steps of the procedure in a canonical sop.submit
// request.
func ProcedureSteps(request []byte) ([]sop.Step, error) {
	v, err := events.ParseJSON(request)
	if err != nil {
		return nil, err
	}
	body, _ := v.Get("sop")
	parsed, _ := sop.Parse(body)
	return parsed.Steps, nil
}

// tick ends the waiting of effects whose time has run out, and takes up runs
// that had to stand still.
func (l *Ledger) tick(w *sealing) error {
	now := l.now()
	for _, run := range l.state.OpenRuns() {
		if body := Doubted(run, now, false); body != nil {
			if err := w.follow(run, run.InFlight().Granted, Effect{Body: body}); err != nil {
				return err
			}
		} else if err := l.advance(w, run); err != nil {
			return err
		}
	}
	return nil
}

// doubtAll puts every run in doubt whose effect was in flight when the ledger
// was stopped: whether it happened only its handler or a person can say.
func (l *Ledger) doubtAll(w *sealing) error {
	now := l.now()
	for _, run := range l.state.OpenRuns() {
		if body := Doubted(run, now, true); body != nil {
			if err := w.follow(run, run.InFlight().Granted, Effect{Body: body}); err != nil {
				return err
			}
		}
	}
	return nil
}

const tickEvery = 100 * time.Millisecond

// watchRuns sees to it that the writer looks at open runs though nobody
// reports, and at records whose time has come though nobody asks.
func (l *Ledger) watchRuns(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if l.counters.openRuns.Load() > 0 || l.counters.nextExpiry.Load() <= int64(l.clock.now()) {
				l.enqueue(&l.intake.reports, events.System, &job{tick: true})
			}
		}
	}
}

// step seals the outcome of a step judged at its moment.
func (w *sealing) step(run *projection.Run, o *Outcome, now events.Time) error {
	if o.Hidden {
		var err error
		if o.Decision.Blind, err = w.blind(); err != nil {
			return err
		}
	}
	if err := w.add(events.Event{Time: now, Agent: run.Agent, Body: o.Decision}, nil); err != nil {
		return err
	}
	cause := w.l.state.Seq
	for _, effect := range o.Effects {
		if err := w.effect(run.Agent, cause, effect, now); err != nil {
			return err
		}
	}
	return nil
}

// follow seals events that follow on an earlier decision, of a run.
func (w *sealing) follow(run *projection.Run, cause uint64, effects ...Effect) error {
	now := w.l.now()
	for _, effect := range effects {
		if err := w.effect(run.Agent, cause, effect, now); err != nil {
			return err
		}
	}
	return nil
}

// start has an effect's message sent once its start is durable.
func (w *sealing) start(run *projection.Run, step *sop.Step) {
	w.execs = append(w.execs, wire.Exec{
		OperationID: projection.EffectID(run.ID, step.ID), RunID: run.ID, SOPID: run.SOPID, StepID: step.ID,
		Agent: run.Agent, Action: step.Action, Arguments: step.Arguments,
	})
}

// note keeps in mind what an event changed that others than its asker wait for.
func (w *sealing) note(b events.Body) {
	switch b := b.(type) {
	case *events.RunAdmitted:
		w.touched = append(w.touched, b.RunID)
	case *events.RunFinished:
		w.touched = append(w.touched, b.RunID)
	case *events.RunFailed:
		w.touched = append(w.touched, b.RunID)
	case *events.RunCancelled:
		w.touched = append(w.touched, b.RunID)
	case *events.RunDoubted:
		w.touched = append(w.touched, b.RunID)
	case *events.RunResolved:
		w.touched = append(w.touched, b.RunID)
	case *events.EffectFinished:
		w.touched = append(w.touched, b.RunID)
	case *events.EmergencyDenied, *events.EmergencyLifted:
		w.denies = true
	case *events.PayloadErased:
		if b.Owner != "" {
			w.l.sealer.renew(b.Owner, w.l.state.Seq)
		}
	}
}

// handOver gives the batch what is to be told once it is durable.
func (w *sealing) handOver(b *batch) {
	l := w.l
	b.execs = w.execs
	slices.Sort(w.touched)
	for _, id := range slices.Compact(w.touched) {
		run := l.state.Run(id)
		b.runs = append(b.runs, l.view(run))
		if p := l.procedures[id]; p != nil {
			p.steps = nil
		}
		if !run.Open() {
			delete(l.procedures, id)
		}
	}
	if w.denies {
		b.state = l.controlState()
	}
}

// Denies are the emergency denies in force as they are announced and asked for.
func Denies(s *projection.State) []wire.Deny {
	denies := []wire.Deny{}
	for _, d := range s.Denies() {
		entry := wire.Deny{Epoch: d.Epoch, AgentID: d.Scope, Capabilities: d.Capabilities, All: d.All}
		if d.Scope == events.ScopeAll {
			entry.AgentID, entry.Ledger = "", true
		}
		denies = append(denies, entry)
	}
	return denies
}

func (l *Ledger) controlState() []byte {
	state := wire.ControlState(l.state.DenyEpoch, Denies(l.state))
	l.lastState.Store(&state)
	return state
}

// ControlState is the message that announces the emergency denies in force,
// durable or about to be. Safe for concurrent use.
func (l *Ledger) ControlState() []byte { return *l.lastState.Load() }

func (l *Ledger) view(run *projection.Run) runView {
	v := runView{run: *run}
	v.run.Steps = slices.Clone(run.Steps)
	if p := l.procedures[run.ID]; p != nil {
		v.memory = slices.Clone(p.memory)
	}
	return v
}

// waiting is an answer that is held back until a run has come to rest. It keeps
// nothing of the request.
type waiting struct {
	id, agent string // of the run
	own       bool   // results are told: it is no retry
	reply     *wire.Reply
	answer    func(Answer)
	timer     *time.Timer
}

// Answers held back: of one agent, and of all. Beyond them an answer says at
// once how the run stands.
const (
	waitersOfOne = 16
	waitersMax   = 1024
)

// waiters holds the answers held back, by run. It belongs to the goroutine of
// answerAll, which hears of expired ones by expired.
type waiters struct {
	byRun   map[string][]*waiting
	last    map[string]runView
	of      map[string]int // by agent
	all     int
	expired chan *waiting
}

// hold keeps an answer back for at most its request's wait. It reports false
// where too many are held back.
func (l *Ledger) hold(j *job, r *wire.Reply, wait time.Duration) bool {
	run := &j.run.run
	if l.waiters.all >= waitersMax || l.waiters.of[run.Agent] >= waitersOfOne {
		return false
	}
	w := &waiting{id: run.ID, agent: run.Agent, own: j.outcome.Retry == 0, reply: r, answer: j.finish}
	l.waiters.byRun[w.id] = append(l.waiters.byRun[w.id], w)
	l.waiters.of[w.agent]++
	l.waiters.all++
	if _, known := l.waiters.last[w.id]; !known {
		l.waiters.last[w.id] = *j.run
	}
	w.timer = time.AfterFunc(wait, func() {
		select {
		case l.waiters.expired <- w:
		case <-l.stopped:
		}
	})
	return true
}

// atRest reports whether a run's state will not change by itself any more.
func atRest(run *projection.Run) bool { return !run.Open() || run.State == projection.InDoubt }

// tell gives those who wait what a durable batch says of their runs.
func (l *Ledger) tell(views []runView) {
	for i := range views {
		id := views[i].run.ID
		if len(l.waiters.byRun[id]) == 0 {
			continue
		}
		l.waiters.last[id] = views[i]
		if atRest(&views[i].run) {
			l.release(id)
		}
	}
}

// release answers all that wait for a run with what was last heard of it.
func (l *Ledger) release(id string) {
	for _, w := range l.waiters.byRun[id] {
		w.timer.Stop()
		l.finishRun(w, l.waiters.last[id])
	}
	delete(l.waiters.byRun, id)
	delete(l.waiters.last, id)
}

// expire answers one whose time is up.
func (l *Ledger) expire(w *waiting) {
	id := w.id
	i := slices.Index(l.waiters.byRun[id], w)
	if i < 0 {
		return // answered meanwhile
	}
	l.finishRun(w, l.waiters.last[id])
	if rest := slices.Delete(l.waiters.byRun[id], i, i+1); len(rest) > 0 {
		l.waiters.byRun[id] = rest
		return
	}
	delete(l.waiters.byRun, id)
	delete(l.waiters.last, id)
}

// finishRun has the answer made apart from the others, since its results are
// read from the store; without results where too much of that is waiting.
func (l *Ledger) finishRun(w *waiting, v runView) {
	if l.waiters.of[w.agent]--; l.waiters.of[w.agent] == 0 {
		delete(l.waiters.of, w.agent)
	}
	l.waiters.all--
	told := reason.Code(w.reply.Decision.Reason)
	encode := func(own bool) []byte {
		w.reply.Run = l.results(&v, own, "")
		return w.reply.Encode()
	}
	j := &job{answer: w.answer, told: told, render: func() []byte { return encode(w.own) }}
	select {
	case l.renders <- j:
	default:
		j.finish(Answer{Reply: encode(false), Reason: told})
	}
}

// results shows a run: of every step, or the one named, what became of it.
// Values come only where own.
func (l *Ledger) results(v *runView, own bool, only string) *wire.Run {
	run := &wire.Run{RunID: v.run.ID, State: string(v.run.State), Reason: string(reason.Told(reason.Code(v.run.Reason)))}
	room := events.ReplyBytesMax
	for i := range v.run.Steps {
		step := &v.run.Steps[i]
		if only != "" && step.ID != only {
			continue
		}
		result := wire.StepResult{StepID: step.ID, Action: step.Action, State: string(step.State)}
		if v.run.State == projection.Failed && i == v.run.Next && step.State == projection.StepWaiting { // denied at its moment, or by its own guards
			result.State = string(projection.StepFailed)
		}
		switch {
		case !own || step.State != projection.StepFinished: // what a handler says of a failure is for people
		case room <= 0:
			result.Omitted = true // nothing is read that has no place
		default:
			l.addResult(&result, v, i)
			room -= len(result.Result)
		}
		run.Results = append(run.Results, result)
	}
	return run
}

func (l *Ledger) addResult(result *wire.StepResult, v *runView, i int) {
	step := &v.run.Steps[i]
	if !builtIn(step.Action) {
		b, ok, err := l.payload(step.Ended)
		if err != nil {
			l.log.Error("a result does not open", "run", v.run.ID, "seq", step.Ended, "error", err)
			result.Omitted = true
		} else if ok {
			result.Result = b
		} else if e, _, err := l.event(step.Ended); err == nil && !e.Payload.IsZero() {
			result.Erased = true
		}
		return
	}
	if len(v.memory) == 0 {
		return
	}
	switch m := v.memory[i]; {
	case m.changed != nil:
		result.Record = m.changed
	case m.read != nil:
		r := &wire.Record{}
		if err := l.showReading(r, m.read); err != nil {
			l.log.Error("a record read by a run does not open", "run", v.run.ID, "error", err)
			result.Omitted = true
			return
		}
		result.Record = r
	}
}

// RunAnswer answers the query run from a copy of the run: see RunCopy. own
// says that the run's own agent asks, who alone is told results, and never a
// memory value.
func (l *Ledger) RunAnswer(run *projection.Run, own bool, only string, seq uint64) []byte {
	shown := l.results(&runView{run: *run}, own, only)
	if only != "" && len(shown.Results) == 0 {
		return wire.Error(reason.NotFound)
	}
	return wire.RunAnswer(run.Agent, run.SOPID, run.SOPVersion, seq, shown)
}

// RunCopy is a copy of a run that may be read outside the writer's goroutine;
// nil of nil.
func RunCopy(run *projection.Run) *projection.Run {
	if run == nil {
		return nil
	}
	c := *run
	c.Steps = slices.Clone(run.Steps)
	return &c
}

const inFlightTold = 1000 // effects that the reply to an emergency deny lists

// inFlight lists the effects that a deny comes too late for.
func inFlight(s *projection.State, deny *events.Emergency) (list []wire.InFlight) {
	d := projection.Deny{Scope: deny.Scope, Capabilities: deny.Capabilities, All: deny.All}
	for _, run := range s.OpenRuns() {
		step := run.InFlight()
		if step == nil || step.Ended != 0 || !d.Covers(s.Agent(run.Agent), step.Action) {
			continue
		}
		if len(list) == inFlightTold {
			break
		}
		list = append(list, wire.InFlight{
			RunID: run.ID, StepID: step.ID, Action: step.Action, OperationID: projection.EffectID(run.ID, step.ID), Agent: run.Agent,
		})
	}
	return list
}

// actionsOf lists the actions of a procedure that has not been judged yet.
func actionsOf(steps []sop.Step) (actions []string) {
	for i := range steps {
		actions = append(actions, steps[i].Action)
	}
	return actions
}

package ledger

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// StepOperation is the operation of the decision on a run's step at its moment.
const StepOperation = "sop.step"

// submit judges a procedure and, where every step is allowed, looks for
// handlers: one missing, and nothing of it starts.
func (j *judge) submit(r *wire.SOPSubmit) reason.Code {
	if code := j.sop(&r.Procedure); code != reason.SOPAdmitted {
		return code
	}
	if j.fails("open runs", j.agent.Runs >= events.OpenRunsMax) {
		j.note("%d runs of this agent are open; wait for them, or have the doubted ones resolved", j.agent.Runs)
		return reason.QuotaExceeded
	}
	q := &j.s.Policy.Quotas
	if j.over("open runs", quota{"open runs", j.agent.Runs, q.Runs, j.agent.Root().Tree.Runs, q.TreeRuns}) {
		return reason.QuotaExceeded
	}
	admitted := &events.RunAdmitted{RunID: j.p.RunID, SOPID: j.d.SOPID, SOPVersion: j.d.SOPVersion}
	for _, step := range j.out.Steps {
		admitted.Steps = append(admitted.Steps, step.StepID)
		admitted.Actions = append(admitted.Actions, step.Action)
	}
	j.d.Observed = within(j.p.Observed, admitted.Actions)
	if j.fails("handlers", len(j.d.Observed) > 0) {
		j.note("no handler is present for %v", j.d.Observed)
		return reason.MissingHandlers
	}
	j.d.RunID = j.p.RunID
	j.emit(admitted)
	j.emit(&events.RunStarted{RunID: j.p.RunID})
	return reason.SOPAdmitted
}

// within returns those of absent that actions name: what is said to be missing
// is only what is needed.
func within(absent, actions []string) []string {
	var list []string
	for _, action := range absent {
		if slices.Contains(actions, action) && !builtIn(action) {
			list = append(list, action)
		}
	}
	return list
}

// builtIn tells the actions that the ledger does itself.
func builtIn(action string) bool {
	return action == "memory.read" || action == "memory.write" || action == "memory.delete"
}

// JudgeStep judges the next step of an idle run at its moment, against the policy,
// the tree and the records as they are now. What was allowed when the run was
// admitted counts for nothing. The outcome is a decision and, where it allows,
// the start of the effect (of memory also the effect and its end), else the end
// of the run. args are the step's canonical arguments; observed lists the actions
// that no handler is present for; now is the time of the decision.
func JudgeStep(s *projection.State, run *projection.Run, step *sop.Step, observed []string, now events.Time) *Outcome {
	at := run.Steps[run.Next]
	j := judge{s: s, agent: s.Agent(run.Agent), out: &Outcome{}}
	j.d = &events.Decision{
		Subject: run.Agent, Lineage: j.agent.LineageIDs(), Operation: StepOperation, Resource: run.SOPID + ":" + at.ID, Action: at.Action,
		PolicyVersion: s.PolicyVersion(), PolicyDigest: s.PolicyDigest(),
		SOPID: run.SOPID, SOPVersion: run.SOPVersion, StepID: at.ID, RunID: run.ID,
	}
	j.p = &Proposal{Lane: wire.Propose, Subject: run.Agent, Operation: at.Action, Observed: observed, Now: now}
	code := j.step(run, step, now)
	j.d.Reason, j.d.Allowed = string(code), code.Allowed()
	effect := events.Effect{RunID: run.ID, StepID: at.ID, Action: at.Action, OperationID: projection.EffectID(run.ID, at.ID)}
	switch {
	case !j.d.Allowed:
		j.out.Effects, j.out.Read = []Effect{{Body: &events.RunFailed{RunID: run.ID, StepID: at.ID, Reason: string(code)}}}, nil
	case builtIn(at.Action):
		effect.Handler = events.System
		memory := j.out.Effects
		j.out.Effects = append([]Effect{{Body: &events.EffectStarted{Effect: effect}}}, memory...)
		j.emit(&events.EffectFinished{Effect: effect})
	default:
		j.emit(&events.EffectStarted{Effect: effect})
	}
	j.out.Hidden = reason.Told(code) != code
	j.out.Decision = j.d
	j.out.args = step.Arguments
	return j.out
}

func (j *judge) step(run *projection.Run, step *sop.Step, now events.Time) reason.Code {
	switch {
	case j.agent.Revoked:
		return reason.AgentRevoked
	case j.s.Denied(j.agent, step.Capability()):
		return reason.EmergencyDeny
	case j.s.Policy == nil:
		return reason.NoPolicy
	case now >= run.End():
		return reason.EffectTimeout
	}
	if code := sop.Judge(*step, j.scope()); code != reason.StepAllowed {
		b := j.broken[step.ID]
		b.tell(j.d)
		return code
	}
	if !builtIn(step.Action) {
		if j.d.Observed = within(j.p.Observed, []string{step.Action}); len(j.d.Observed) > 0 {
			return reason.MissingHandlers
		}
		return reason.StepAllowed
	}
	return j.memoryStep(step)
}

// memoryStep holds a memory step to the guards of the direct operation.
func (j *judge) memoryStep(step *sop.Step) reason.Code {
	request, code := wire.Decode(wire.Propose, step.Action, step.Arguments)
	if code != "" {
		return reason.ArgumentSchema
	}
	j.p.Request = request
	if code := j.proposal(); !code.Allowed() {
		return code
	}
	if w, ok := request.Body.(*wire.MemoryWrite); ok && j.out.Effects[len(j.out.Effects)-1].Open == nil {
		j.out.Effects[len(j.out.Effects)-1].Seal = w.Value // no request of its own lies beside its decision
	}
	return reason.StepAllowed
}

// Ending is the event that ends an idle run which has no step to judge any
// more, or whose agent asked for its end; nil where the next step is to be
// judged.
func Ending(run *projection.Run) events.Body {
	switch {
	case run.Cancelling:
		return &events.RunCancelled{RunID: run.ID}
	case run.Next == len(run.Steps):
		return &events.RunFinished{RunID: run.ID}
	}
	return nil
}

// Reported judges what a handler says of an effect. Without a code it is to be
// acknowledged: nothing follows where it was said before.
func Reported(s *projection.State, handler string, r *wire.Report) ([]Effect, reason.Code) {
	who := s.Principal(handler)
	switch {
	case who == nil:
		return nil, reason.UnknownAgent
	case who.Revoked:
		return nil, reason.AgentRevoked
	case who.Role != "handler":
		return nil, reason.NotPermittedForRole
	}
	run, step := s.Effect(r.OperationID)
	switch {
	case step == nil || builtIn(step.Action):
		return nil, reason.NotFound
	case !slices.Contains(who.Actions, step.Action):
		return nil, reason.NotPermittedForRole
	case step.Ended != 0:
		return nil, ""
	}
	effect := events.Effect{RunID: run.ID, StepID: step.ID, Action: step.Action, OperationID: r.OperationID, Handler: handler}
	switch {
	case !r.OK:
		effect.Outcome = string(reason.EffectFailed)
	case len(r.Result) > s.Policy.MaxOutput(step.Action):
		effect.Outcome = string(reason.OutputTooLarge)
	default:
		return []Effect{{Body: &events.EffectFinished{Effect: effect}, Seal: r.Result}}, ""
	}
	failed := Effect{Body: &events.EffectFailed{Effect: effect}}
	if r.Error != "" {
		failed.Seal = events.AppendString(nil, r.Error)
	}
	if run.State == projection.InDoubt { // evidence, for whoever resolves it
		return []Effect{failed}, ""
	}
	return []Effect{failed, {Body: &events.RunFailed{RunID: run.ID, StepID: step.ID, Reason: effect.Outcome}}}, ""
}

// Doubted is the event that puts a run in doubt whose effect was not reported
// in time, or, where the ledger was stopped, not before; nil where there is no
// effect in flight or its time has not come.
func Doubted(run *projection.Run, now events.Time, stopped bool) events.Body {
	step := run.InFlight()
	switch {
	case step == nil || run.State != projection.Running:
		return nil
	case stopped:
		return &events.RunDoubted{RunID: run.ID, StepID: step.ID, Reason: string(reason.InDoubt)}
	case now >= step.Deadline:
		return &events.RunDoubted{RunID: run.ID, StepID: step.ID, Reason: string(reason.EffectTimeout)}
	}
	return nil
}

// cancel marks a run for its end, which comes when the effect in flight has
// ended: nobody can call that back.
func (j *judge) cancel(r *wire.RunCancel) reason.Code {
	run := j.s.Run(r.RunID)
	switch {
	case j.fails("an open run of the sender's", run == nil || run.Agent != j.p.Subject):
		return reason.NotFound
	case j.fails("an open run of the sender's", run.State == projection.Cancelled):
		return reason.RunCancelled
	case j.fails("an open run of the sender's", run.State == projection.InDoubt):
		return reason.InDoubt
	case j.fails("an open run of the sender's", !run.Open()):
		j.note("the run has ended: %s", run.State)
		return reason.NotFound
	}
	j.d.RunID = run.ID
	return reason.RunCancelAccepted
}

// resolve takes a person's word for what became of a doubted effect. Done lets
// the run go on with its next step, not done ends it.
func (j *judge) resolve(r *wire.RunResolve) reason.Code {
	run := j.s.Run(r.RunID)
	switch {
	case run == nil:
		return reason.NotFound
	case run.State != projection.InDoubt || run.Steps[run.Next].ID != r.StepID:
		j.note("the run is %s, and not in doubt about this step", run.State)
		return reason.NotFound
	}
	j.d.RunID, j.d.StepID = run.ID, r.StepID
	j.emit(&events.RunResolved{RunID: run.ID, StepID: r.StepID, Outcome: r.Outcome})
	step := &run.Steps[run.Next]
	effect := events.Effect{RunID: run.ID, StepID: step.ID, Action: step.Action, OperationID: projection.EffectID(run.ID, step.ID), Outcome: r.Outcome}
	switch {
	case step.Ended != 0: // its handler has said so already
	case r.Outcome == events.OutcomeDone:
		j.emit(&events.EffectFinished{Effect: effect})
	default:
		j.emit(&events.EffectFailed{Effect: effect})
	}
	if r.Outcome == events.OutcomeNotDone {
		j.emit(&events.RunFailed{RunID: run.ID, StepID: step.ID, Reason: string(reason.EffectFailed)})
	}
	return reason.ControlDone
}

// deny takes capabilities from a subtree or from everyone. It comes after all
// that was decided before it and stops no effect that has started: those its
// reply lists.
func (j *judge) deny(r *wire.EmergencyDeny) reason.Code {
	scope := r.AgentID
	switch {
	case scope == "":
		scope = events.ScopeAll
	case j.s.Agent(scope) == nil:
		return reason.NotFound
	}
	set := policy.NewSet(r.Capabilities...)
	if unknown := policy.CheckCapabilities(j.s.Policy, set); len(unknown) > 0 {
		j.note("%s is declared nowhere, so that denying it would change nothing", unknown[0])
		return reason.UnknownAction
	}
	deny := events.Emergency{Scope: scope, Capabilities: set, All: r.All, Epoch: j.s.DenyEpoch + 1}
	j.out.Deny = &deny
	if !r.DryRun {
		j.emit(&events.EmergencyDenied{Emergency: deny})
	}
	return reason.ControlDone
}

func (j *judge) lift(r *wire.EmergencyLift) reason.Code {
	for _, d := range j.s.Denies() {
		if d.Epoch == r.Epoch {
			lifted := events.Emergency{Scope: d.Scope, Capabilities: d.Capabilities, All: d.All, Epoch: d.Epoch}
			j.emit(&events.EmergencyLifted{Emergency: lifted})
			return reason.ControlDone
		}
	}
	j.note("no deny of epoch %d is in force", r.Epoch)
	return reason.NotFound
}

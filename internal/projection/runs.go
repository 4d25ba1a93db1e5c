package projection

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// RunState says how far a run is.
type RunState string

// The states of a run. Running and InDoubt are open; the others are final.
const (
	Admitted  RunState = "admitted"
	Running   RunState = "running"
	Finished  RunState = "finished"
	Failed    RunState = "failed"
	Cancelled RunState = "cancelled"
	InDoubt   RunState = "in_doubt"
)

// Run is one admitted procedure on its way. A run that is Running and not
// between two of the writer's batches has the effect of Steps[Next] in flight.
type Run struct {
	ID         string
	Agent      string
	SOPID      string
	SOPVersion uint64
	Decision   uint64 // seq of the decision that admitted it; its payload is the procedure
	Admitted   events.Time
	State      RunState
	Reason     string // why it failed or is in doubt
	Cancelling bool   // its agent asked for its end
	Next       int    // the step whose effect is in flight, or that is judged next
	Steps      []RunStep
}

// RunStep is one step of a run. Its states are "" (not begun), started,
// finished and failed.
type RunStep struct {
	ID       string
	Action   string
	State    StepState
	Granted  uint64      // seq of the decision that allowed it at its moment
	Deadline events.Time // by which its effect must be reported
	Ended    uint64      // seq of effect.finished or effect.failed
}

// StepState says how far a step's effect is.
type StepState string

// The states of a step's effect.
const (
	StepWaiting  StepState = "waiting"
	StepStarted  StepState = "started"
	StepFinished StepState = "finished"
	StepFailed   StepState = "failed"
)

// Open reports whether the run has not come to its end.
func (r *Run) Open() bool { return r.State == Admitted || r.State == Running || r.State == InDoubt }

// Idle reports whether the run waits for the writer: to judge its next step, or
// to end it.
func (r *Run) Idle() bool {
	return r.State == Running && (r.Next == len(r.Steps) || r.Steps[r.Next].State == StepWaiting)
}

// InFlight is the step whose effect has started and is not reported, nil if
// there is none.
func (r *Run) InFlight() *RunStep {
	if !r.Open() || r.Next == len(r.Steps) || r.Steps[r.Next].State != StepStarted {
		return nil
	}
	return &r.Steps[r.Next]
}

// Run returns a run, open or not, or nil. It must not be changed.
func (s *State) Run(id string) *Run { return s.runs[id] }

// RunAt returns the run that the decision at seq admitted, or nil.
func (s *State) RunAt(seq uint64) *Run { return s.runAt[seq] }

// OpenRuns lists the open runs in the order of their admission.
func (s *State) OpenRuns() []*Run {
	list := make([]*Run, 0, len(s.open))
	for _, r := range s.open {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *Run) int { return cmp.Compare(a.Decision, b.Decision) })
	return list
}

// OpenCount is the number of open runs.
func (s *State) OpenCount() int { return len(s.open) }

// opens reports whether a run is open and an agent's own.
func (s *State) opens(id, agent string) bool {
	r := s.open[id]
	return r != nil && r.Agent == agent
}

// Effect returns the run and step that an effect's operation id names, or nil.
func (s *State) Effect(operationID string) (*Run, *RunStep) {
	id, step, ok := strings.Cut(operationID, "/")
	r := s.runs[id]
	if !ok || r == nil {
		return nil, nil
	}
	for i := range r.Steps {
		if r.Steps[i].ID == step && r.Steps[i].State != StepWaiting {
			return r, &r.Steps[i]
		}
	}
	return nil, nil
}

// EffectID is the operation id of a step's effect.
func EffectID(runID, stepID string) string { return runID + "/" + stepID }

func (s *State) admit(e *events.Event, b *events.RunAdmitted) error {
	a := s.agents[e.Agent]
	if a == nil || s.runs[b.RunID] != nil || s.runAt[e.Cause] != nil || len(b.Steps) == 0 || len(b.Steps) != len(b.Actions) || len(b.Steps) > events.SOPStepsMax {
		return fmt.Errorf("%w: no run to admit", ErrInconsistent)
	}
	r := &Run{ID: b.RunID, Agent: e.Agent, SOPID: b.SOPID, SOPVersion: b.SOPVersion, Decision: e.Cause, Admitted: e.Time, State: Admitted}
	for i := range b.Steps {
		r.Steps = append(r.Steps, RunStep{ID: b.Steps[i], Action: b.Actions[i], State: StepWaiting})
	}
	s.runs[r.ID], s.open[r.ID], s.runAt[r.Decision] = r, r, r
	a.Runs++
	a.add(Usage{Runs: 1})
	s.changedRun(r)
	return nil
}

// foldRun folds the events of runs and effects that follow on run.admitted.
func (s *State) foldRun(e *events.Event) error {
	switch b := e.Body.(type) {
	case *events.RunStarted:
		r, err := s.openRun(b.RunID, e, Admitted)
		if err == nil {
			r.State = Running
		}
		return err
	case *events.RunFinished:
		r, err := s.openRun(b.RunID, e, Running)
		if err == nil && (r.Next != len(r.Steps) || r.Cancelling) {
			err = fmt.Errorf("%w: the run is not at its end", ErrInconsistent)
		}
		return s.end(r, err, Finished, "")
	case *events.RunCancelled:
		r, err := s.openRun(b.RunID, e, Running)
		if err == nil && (!r.Cancelling || !r.Idle()) {
			err = fmt.Errorf("%w: the run is not to be cancelled", ErrInconsistent)
		}
		return s.end(r, err, Cancelled, "")
	case *events.RunFailed:
		r, err := s.openRun(b.RunID, e, Running)
		if err == nil && (r.Next == len(r.Steps) || r.Steps[r.Next].ID != b.StepID || r.Steps[r.Next].State == StepStarted) {
			err = fmt.Errorf("%w: not the step at hand", ErrInconsistent)
		}
		return s.end(r, err, Failed, b.Reason)
	case *events.RunDoubted:
		r, err := s.openRun(b.RunID, e, Running)
		if err == nil && (r.InFlight() == nil || r.InFlight().ID != b.StepID) {
			err = fmt.Errorf("%w: no such effect in flight", ErrInconsistent)
		}
		if err == nil {
			r.State, r.Reason = InDoubt, b.Reason
			s.doubts++
		}
		return err
	case *events.RunResolved:
		return s.resolve(e, b)
	case *events.EffectStarted:
		return s.startEffect(e, &b.Effect)
	case *events.EffectFinished:
		return s.endEffect(e, &b.Effect, StepFinished)
	case *events.EffectFailed:
		return s.endEffect(e, &b.Effect, StepFailed)
	}
	return fmt.Errorf("%w: unknown type", ErrInconsistent)
}

// openRun finds the run that an event speaks of, which must be in the state
// that the event asks for, and the event its agent's.
func (s *State) openRun(id string, e *events.Event, in ...RunState) (*Run, error) {
	r := s.runs[id]
	if r == nil || !slices.Contains(in, r.State) {
		return nil, fmt.Errorf("%w: no such run in that state", ErrInconsistent)
	}
	// What follows from an admin's run.resolve carries the admin's id.
	if by := s.principals[e.Agent]; r.Agent != e.Agent && (by == nil || by.Role != "admin") {
		return nil, fmt.Errorf("%w: another agent's run", ErrInconsistent)
	}
	s.changedRun(r)
	return r, nil
}

func (s *State) end(r *Run, err error, state RunState, reason string) error {
	if err != nil {
		return err
	}
	r.State, r.Reason = state, reason
	delete(s.open, r.ID)
	s.agents[r.Agent].Runs--
	s.agents[r.Agent].add(Usage{Runs: -1})
	s.endRun(r.ID)
	return nil
}

// resolve takes a person's word. An effect that nobody has reported is ended by
// the event after it.
func (s *State) resolve(e *events.Event, b *events.RunResolved) error {
	r, err := s.openRun(b.RunID, e, InDoubt)
	switch {
	case err != nil:
		return err
	case r.Steps[r.Next].ID != b.StepID || b.Outcome != events.OutcomeDone && b.Outcome != events.OutcomeNotDone:
		return fmt.Errorf("%w: no such doubt", ErrInconsistent)
	}
	r.State, r.Reason = Running, ""
	s.doubts--
	if r.Steps[r.Next].State != StepStarted && b.Outcome == events.OutcomeDone {
		r.Next++
	}
	return nil
}

func (s *State) startEffect(e *events.Event, b *events.Effect) error {
	r, err := s.openRun(b.RunID, e, Running)
	if err != nil {
		return err
	}
	if r.Next == len(r.Steps) || s.Policy == nil {
		return fmt.Errorf("%w: no step to start", ErrInconsistent)
	}
	step := &r.Steps[r.Next]
	if step.State != StepWaiting || step.ID != b.StepID || step.Action != b.Action || b.OperationID != EffectID(r.ID, step.ID) {
		return fmt.Errorf("%w: not the step at hand", ErrInconsistent)
	}
	step.State, step.Granted = StepStarted, e.Cause
	step.Deadline = min(e.Time+events.Time(s.Policy.Timeout(b.Action)), r.End())
	return nil
}

// End is the time at which the run's duration is used up.
func (r *Run) End() events.Time { return r.Admitted + events.RunDurationMax*1_000_000 }

// endEffect takes what is said of an effect: by its handler, by the ledger of
// what it did itself, or by a person. In a doubted run it is evidence, and
// moves nothing.
func (s *State) endEffect(e *events.Event, b *events.Effect, state StepState) error {
	r, err := s.openRun(b.RunID, e, Running, InDoubt)
	if err != nil {
		return err
	}
	step := r.InFlight()
	if step == nil || step.ID != b.StepID || step.Action != b.Action || b.OperationID != EffectID(r.ID, step.ID) {
		return fmt.Errorf("%w: no such effect in flight", ErrInconsistent)
	}
	step.State, step.Ended = state, e.Seq
	if r.State == Running && state == StepFinished {
		r.Next++
	}
	return nil
}

// Deny is one emergency deny in force.
type Deny struct {
	Epoch        uint64
	Scope        string // the agent at the subtree's top, or events.ScopeAll
	Capabilities policy.Set
	All          bool
}

// Reaches reports whether a is in the deny's scope.
func (d *Deny) Reaches(a *Agent) bool { return d.Scope == events.ScopeAll || a.Within(d.Scope) }

// Covers reports whether the deny takes a capability from a; the empty one
// stands for any act at all, which only a deny of everything takes.
func (d *Deny) Covers(a *Agent, capability string) bool {
	return d.Reaches(a) && (d.All || d.Capabilities.Has(capability))
}

// Denied reports whether an emergency deny in force takes a capability from a.
func (s *State) Denied(a *Agent, capability string) bool {
	for i := range s.denies {
		if s.denies[i].Covers(a, capability) {
			return true
		}
	}
	return false
}

// Denies lists the emergency denies in force, by epoch. It must not be changed.
func (s *State) Denies() []Deny { return s.denies }

func (s *State) foldDeny(b *events.Emergency) error {
	if b.Epoch != s.DenyEpoch+1 || b.All == (len(b.Capabilities) > 0) || b.Scope != events.ScopeAll && s.agents[b.Scope] == nil {
		return fmt.Errorf("%w: no emergency deny", ErrInconsistent)
	}
	s.DenyEpoch = b.Epoch
	s.denies = append(slices.Clone(s.denies), Deny{b.Epoch, b.Scope, policy.NewSet(b.Capabilities...), b.All})
	return nil
}

func (s *State) foldLift(b *events.Emergency) error {
	for i, d := range s.denies {
		if d.Epoch == b.Epoch && d.Scope == b.Scope && d.All == b.All && d.Capabilities.Equal(policy.NewSet(b.Capabilities...)) {
			s.denies = slices.Delete(slices.Clone(s.denies), i, i+1)
			return nil
		}
	}
	return fmt.Errorf("%w: no such emergency deny", ErrInconsistent)
}

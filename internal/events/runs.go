package events

// The event types of runs, effects and the emergency deny.
const (
	TypeEmergencyDenied Type = "emergency.denied"
	TypeEmergencyLifted Type = "emergency.lifted"
	TypeRunAdmitted     Type = "run.admitted"
	TypeRunStarted      Type = "run.started"
	TypeRunFinished     Type = "run.finished"
	TypeRunFailed       Type = "run.failed"
	TypeRunCancelled    Type = "run.cancelled"
	TypeRunDoubted      Type = "run.doubted"
	TypeRunResolved     Type = "run.resolved"
	TypeEffectStarted   Type = "effect.started"
	TypeEffectFinished  Type = "effect.finished"
	TypeEffectFailed    Type = "effect.failed"
)

func newRunBody(t Type) Body {
	switch t {
	case TypeEmergencyDenied:
		return &EmergencyDenied{}
	case TypeEmergencyLifted:
		return &EmergencyLifted{}
	case TypeRunAdmitted:
		return &RunAdmitted{}
	case TypeRunStarted:
		return &RunStarted{}
	case TypeRunFinished:
		return &RunFinished{}
	case TypeRunFailed:
		return &RunFailed{}
	case TypeRunCancelled:
		return &RunCancelled{}
	case TypeRunDoubted:
		return &RunDoubted{}
	case TypeRunResolved:
		return &RunResolved{}
	case TypeEffectStarted:
		return &EffectStarted{}
	case TypeEffectFinished:
		return &EffectFinished{}
	case TypeEffectFailed:
		return &EffectFailed{}
	}
	return nil
}

// EmergencyDenied takes Capabilities, or all of them, from a subtree or from
// the whole ledger. EmergencyLifted ends the deny of that epoch.
type EmergencyDenied struct{ Emergency }

// EmergencyLifted: see EmergencyDenied.
type EmergencyLifted struct{ Emergency }

// ScopeAll is the scope of a deny on the whole ledger. It is no id.
const ScopeAll = "all"

// Emergency is what both say.
type Emergency struct {
	Scope        string   // the agent at the subtree's top, or ScopeAll
	Capabilities []string // sorted; none where All
	All          bool
	Epoch        uint64 // of the deny, from 1; every deny has the next
}

// Type implements Body.
func (*EmergencyDenied) Type() Type { return TypeEmergencyDenied }

// Type implements Body.
func (*EmergencyLifted) Type() Type { return TypeEmergencyLifted }

func (b *Emergency) fields(c *coder) {
	c.str("scope", &b.Scope)
	c.optStrs("capabilities", &b.Capabilities)
	if c.present("all", b.All) {
		c.boolean("all", &b.All)
		if c.reading && !b.All {
			c.fail("optional field all is false")
		}
	}
	c.uint("epoch", &b.Epoch)
}

// RunAdmitted says that a procedure may run, and lists its steps.
type RunAdmitted struct {
	RunID      string // a version 7 UUID
	SOPID      string
	SOPVersion uint64
	Steps      []string // step ids in order
	Actions    []string // of each step
}

// Type implements Body.
func (*RunAdmitted) Type() Type { return TypeRunAdmitted }

func (b *RunAdmitted) fields(c *coder) {
	c.str("run_id", &b.RunID)
	c.str("sop_id", &b.SOPID)
	c.uint("sop_version", &b.SOPVersion)
	c.strs("steps", &b.Steps)
	c.strs("actions", &b.Actions)
}

// RunStarted says that the first step is to be judged at its moment.
type RunStarted struct{ RunID string }

// RunFinished says that every step is done.
type RunFinished struct{ RunID string }

// RunCancelled says that the run ended because its agent asked for it.
type RunCancelled struct{ RunID string }

// Type implements Body.
func (*RunStarted) Type() Type { return TypeRunStarted }

// Type implements Body.
func (*RunFinished) Type() Type { return TypeRunFinished }

// Type implements Body.
func (*RunCancelled) Type() Type { return TypeRunCancelled }

func (b *RunStarted) fields(c *coder)   { c.str("run_id", &b.RunID) }
func (b *RunFinished) fields(c *coder)  { c.str("run_id", &b.RunID) }
func (b *RunCancelled) fields(c *coder) { c.str("run_id", &b.RunID) }

// RunFailed says at which step a run ended, and why: the reason of the step's
// denial, or of its effect's failure.
type RunFailed struct{ RunID, StepID, Reason string }

// RunDoubted says that an effect started and nobody knows whether it happened:
// effect_timeout where its time ran out, in_doubt where the ledger was stopped.
type RunDoubted struct{ RunID, StepID, Reason string }

// Type implements Body.
func (*RunFailed) Type() Type { return TypeRunFailed }

// Type implements Body.
func (*RunDoubted) Type() Type { return TypeRunDoubted }

func (b *RunFailed) fields(c *coder) {
	c.str("run_id", &b.RunID)
	c.str("step_id", &b.StepID)
	c.str("reason_code", &b.Reason)
}

func (b *RunDoubted) fields(c *coder) {
	c.str("run_id", &b.RunID)
	c.str("step_id", &b.StepID)
	c.str("reason_code", &b.Reason)
}

// What a person says of a doubted effect.
const (
	OutcomeDone    = "done"
	OutcomeNotDone = "not_done"
)

// RunResolved says what a person found out about a doubted effect.
type RunResolved struct {
	RunID, StepID string
	Outcome       string // OutcomeDone or OutcomeNotDone
}

// Type implements Body.
func (*RunResolved) Type() Type { return TypeRunResolved }

func (b *RunResolved) fields(c *coder) {
	c.str("run_id", &b.RunID)
	c.str("step_id", &b.StepID)
	c.str("outcome", &b.Outcome)
}

// EffectStarted says that a step was allowed and its effect is under way.
type EffectStarted struct{ Effect }

// EffectFinished says that an effect is done. Its payload is the result, where
// there is one.
type EffectFinished struct{ Effect }

// EffectFailed says that an effect was not done, or not as it should be:
// Outcome is effect_failed, output_too_large or OutcomeNotDone. Its payload is
// the handler's text, where there is one.
type EffectFailed struct{ Effect }

// Effect is what all three say.
type Effect struct {
	RunID, StepID string
	Action        string
	OperationID   string // <run_id>/<step_id>
	Handler       string // who reported; System for what the ledger does itself; empty where nobody has, or a person did
	Outcome       string
}

// Type implements Body.
func (*EffectStarted) Type() Type { return TypeEffectStarted }

// Type implements Body.
func (*EffectFinished) Type() Type { return TypeEffectFinished }

// Type implements Body.
func (*EffectFailed) Type() Type { return TypeEffectFailed }

func (b *Effect) fields(c *coder) {
	c.str("run_id", &b.RunID)
	c.str("step_id", &b.StepID)
	c.str("action", &b.Action)
	c.str("operation_id", &b.OperationID)
	c.optStr("handler", &b.Handler)
	c.optStr("outcome", &b.Outcome)
}

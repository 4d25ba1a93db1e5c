package replay

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// written is what follows from a write of a record whose value nobody can read any
// more: it is gone, where its time had come, and it is written.
func (r *run) written(owner, namespace, key, operation string) []slot {
	now := r.decision.Time
	gone := slot{optional: true, want: func(b events.Body) events.Body {
		expired, ok := b.(*events.MemoryExpired)
		if want := r.s.Expiry(r.s.Record(owner, namespace, key), now); ok && want != nil && expired.Owner == owner {
			return want
		}
		return nil
	}}
	return []slot{gone, {typ: events.TypeMemoryWritten, want: func(b events.Body) events.Body {
		found, ok := b.(*events.MemoryWritten)
		if !ok || r.s.Policy == nil {
			return nil
		}
		want := &events.MemoryWritten{Record: events.Record{Owner: owner, Namespace: namespace, Key: key, Visibility: found.Visibility, Revision: 1}}
		record := r.s.Record(owner, namespace, key)
		class := r.s.Policy.Class(namespace, key)
		if record != nil {
			want.Revision = record.Revision + 1
		}
		if operation != "memory.load" && r.s.Stands(record, now) && record.Class == policy.Secret {
			class = policy.Secret
		}
		want.Class = string(class)
		if !slices.Contains([]string{"private", "children", "descendants"}, found.Visibility) {
			want.Visibility = "private"
		}
		r.lasting(want, found, operation)
		return want
	}}}
}

// lasting gives a record that is written the end that it may have.
func (r *run) lasting(want, found *events.MemoryWritten, operation string) {
	now := r.decision.Time
	most, task := r.s.Policy.TaskSeconds(want.Namespace, want.Key)
	longest := now + events.Time(most)*1_000_000
	asked := found.Expires > now && (found.Expires-now)%1_000_000 == 0 && want.Class != string(policy.Mandatory)
	switch {
	case operation == "memory.load":
		if most != 0 {
			want.Expires = longest
		}
	case asked && (!task || most == 0 || found.Expires <= longest):
		want.Expires = found.Expires
	case task && most != 0:
		want.Expires = longest
	case task && operation != ledger.StepOperation:
		want.Expires = now + 1_000_000 // it has one
	}
	if d := r.decision.Body.(*events.Decision); operation == ledger.StepOperation && task && (found.RunID != "" || want.Expires == 0) {
		want.RunID = d.RunID
		if most == 0 {
			want.Expires = 0
		}
	}
}

// admitted is what follows from an admitted procedure: its run, of the steps that
// were decided before it.
func (r *run) admitted(d *events.Decision) []slot {
	b := &events.RunAdmitted{RunID: d.RunID, SOPID: d.SOPID, SOPVersion: d.SOPVersion}
	for i := range r.steps {
		step := r.steps[i].Body.(*events.Decision)
		b.Steps, b.Actions = append(b.Steps, step.StepID), append(b.Actions, step.Action)
	}
	return []slot{exactly(b), exactly(&events.RunStarted{RunID: d.RunID})}
}

func held(h events.Hold) string {
	switch {
	case h.Seq != 0:
		return uintText(h.Seq)
	case h.Namespace != "":
		return h.Owner + ":" + h.Namespace + "." + h.Key
	}
	return h.Owner
}

// resolved is what follows from a person's word on a doubted effect.
func (r *run) resolved(d *events.Decision) []slot {
	current := r.s.Run(d.RunID)
	if current == nil || d.RunID != d.Resource || current.State != projection.InDoubt || current.Steps[current.Next].ID != d.StepID {
		return nil
	}
	step := current.Steps[current.Next]
	outcome := ""
	slots := []slot{{typ: events.TypeRunResolved, want: func(b events.Body) events.Body {
		found, ok := b.(*events.RunResolved)
		if !ok || found.Outcome != events.OutcomeDone && found.Outcome != events.OutcomeNotDone {
			return nil
		}
		outcome = found.Outcome
		return &events.RunResolved{RunID: d.RunID, StepID: d.StepID, Outcome: outcome}
	}}}
	if step.Ended == 0 {
		slots = append(slots, slot{typ: events.TypeEffectFinished, want: func(b events.Body) events.Body {
			effect := events.Effect{RunID: d.RunID, StepID: d.StepID, Action: step.Action, OperationID: projection.EffectID(d.RunID, d.StepID), Outcome: outcome}
			switch b.(type) {
			case *events.EffectFinished:
				return &events.EffectFinished{Effect: effect}
			case *events.EffectFailed:
				return &events.EffectFailed{Effect: effect}
			}
			return nil
		}})
	}
	return append(slots, slot{typ: events.TypeRunFailed, optional: true, want: func(b events.Body) events.Body {
		if _, ok := b.(*events.RunFailed); !ok || outcome != events.OutcomeNotDone {
			return nil
		}
		return &events.RunFailed{RunID: d.RunID, StepID: d.StepID, Reason: "effect_failed"}
	}})
}

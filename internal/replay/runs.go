package replay

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/sop"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// stepAtMoment judges the decision on a run's step at its moment again.
func (r *run) stepAtMoment(found logged, d *events.Decision) error {
	r.ended(found.Seq, "another decision")
	r.Decisions++
	r.lack = 0
	r.decision = found.Event
	current := r.s.Run(d.RunID)
	if current == nil || !current.Idle() || ledger.Ending(current) != nil {
		r.find(found.Seq, "no decision: there is no step to judge", describe(&found.Event))
		r.unjudged, r.slots = true, anything()
		return r.apply(&found, nil)
	}
	steps, salt, err := r.procedure(current)
	if err != nil {
		return err
	}
	if len(steps) != len(current.Steps) {
		r.lacking(current.Decision, lackProcedure)
		r.doubtMoment(&found, d, current)
		r.unjudged, r.slots = true, r.momentFollows(d, current)
		return r.apply(&found, nil)
	}
	n := current.Next
	o := ledger.JudgeStep(r.s, current, &steps[n], d.Observed, found.Time)
	o.DigestStep(salt, uint64(n)+1)
	if o.Hidden {
		o.Decision.Blind = "32 lower-case hex digits"
		if isBlind(d.Blind) {
			o.Decision.Blind = d.Blind
		}
	}
	r.Judged++
	if !r.compare(&found, events.Event{Time: found.Time, Agent: current.Agent, Body: o.Decision}) {
		r.explain(found.Seq, func() *audit.Derivation {
			derived := r.basis(d, o.Decision)
			r.terms(derived, current.Agent, steps[n].Capability())
			return derived
		})
	}
	r.due = o.Effects
	return r.apply(&found, nil)
}

// procedure opens the procedure that a run was admitted with; no steps where it
// is missing.
func (r *run) procedure(current *projection.Run) ([]sop.Step, [events.SaltLen]byte, error) {
	salt, b, ok, err := r.payload(current.Decision)
	if err != nil || !ok {
		return nil, salt, err
	}
	steps, err := ledger.ProcedureSteps(b)
	if err != nil {
		steps = nil // whole has found it when the run was admitted
	}
	return steps, salt, nil
}

// ofRun tells the events of runs that follow on no decision just made: what a
// handler reported, what time or a stop has put in doubt, and the end.
func ofRun(b events.Body) bool {
	switch b.(type) {
	case *events.EffectFinished, *events.EffectFailed, *events.RunDoubted, *events.RunFinished, *events.RunCancelled:
		return true
	}
	return false
}

// fromOutside tells those of them that nothing but a report, time or the run's
// own end brings, whatever decision came before.
func fromOutside(b events.Body) bool {
	switch b := b.(type) {
	case *events.EffectFinished:
		return b.Handler != "" && b.Handler != events.System
	case *events.EffectFailed:
		return b.Handler != ""
	}
	return ofRun(b)
}

// runEvent checks such an event against what the rules give for it.
func (r *run) runEvent(found logged) error {
	r.ended(found.Seq, string(found.Body.Type()))
	want := events.Event{Time: found.Time}
	switch b := found.Body.(type) {
	case *events.EffectFinished:
		want.Payload = found.Payload
		return r.reported(found, &b.Effect, want)
	case *events.EffectFailed:
		want.Payload = found.Payload
		return r.reported(found, &b.Effect, want)
	case *events.RunDoubted:
		if current := r.s.Run(b.RunID); current != nil {
			want.Body = ledger.Doubted(current, found.Time, r.opening && b.Reason == string(reason.InDoubt))
			if step := current.InFlight(); step != nil {
				want.Agent, want.Cause = current.Agent, step.Granted
			}
		}
	case *events.RunFinished:
		r.ending(b.RunID, &want)
	case *events.RunCancelled:
		r.ending(b.RunID, &want)
	}
	return r.expect(found, want)
}

func (r *run) ending(id string, want *events.Event) {
	if current := r.s.Run(id); current != nil && current.Idle() {
		want.Body, want.Agent, want.Cause = ledger.Ending(current), current.Agent, current.Decision
	}
}

func (r *run) expect(found logged, want events.Event) error {
	if want.Body == nil {
		r.find(found.Seq, "no event: nothing gives it", describe(&found.Event))
	} else {
		r.compare(&found, want)
	}
	return r.apply(&found, nil)
}

// reported makes the report anew from what the event says and its payload holds,
// and gives it to the rules.
func (r *run) reported(found logged, b *events.Effect, want events.Event) error {
	current, step := r.s.Effect(b.OperationID)
	if step == nil {
		return r.expect(found, want)
	}
	report, err := r.report(&found, b)
	if err != nil {
		return err
	}
	effects, code := ledger.Reported(r.s, b.Handler, report)
	if code != "" || len(effects) == 0 {
		return r.expect(found, want)
	}
	want.Agent, want.Cause, want.Body = current.Agent, step.Granted, effects[0].Body
	if err := r.expect(found, want); err != nil {
		return err
	}
	r.decision = events.Event{Seq: step.Granted, Time: found.Time, Agent: current.Agent}
	r.due = effects[1:]
	return nil
}

func (r *run) report(found *logged, b *events.Effect) (*wire.Report, error) {
	report := &wire.Report{OperationID: b.OperationID}
	if _, finished := found.Body.(*events.EffectFinished); finished {
		report.OK = true
	} else if b.Outcome == string(reason.OutputTooLarge) { // of which nothing is kept
		if report.OK, report.Result = true, make([]byte, events.OutputBytesMax+1); !found.Payload.IsZero() {
			r.find(found.Seq, "no payload: of a result that is too large nothing is kept", "one")
		}
		return report, nil
	}
	if found.Payload.IsZero() {
		return report, nil
	}
	salt, content, ok, err := r.payload(found.Seq)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		r.lacking(found.Seq, lackContent)
	case events.PayloadCommitment(salt, content) != found.Payload:
		r.find(found.Seq, "the payload that the event commits to", "another")
	case report.OK:
		if v, err := events.ParseJSON(content); err != nil || !bytes.Equal(v.AppendCanonical(nil), content) {
			r.find(found.Seq, "canonical JSON as payload", "something else")
		}
		report.Result = content
	default:
		v, err := events.ParseJSON(content)
		if err != nil || v.Kind != events.String {
			r.find(found.Seq, "a text as payload", "something else")
		} else if v.Text == "" || !bytes.Equal(events.AppendString(nil, v.Text), content) {
			r.find(found.Seq, "a text as the ledger writes it, or no payload where there is none", cut(string(content)))
		}
		report.Error = v.Text
	}
	return report, nil
}

// isRunID reports whether s is the text of a version 7 UUID.
func isRunID(s string) bool {
	groups := strings.Split(s, "-")
	if len(groups) != 5 || len(s) != 36 || strings.Trim(s, "0123456789abcdef-") != "" {
		return false
	}
	return len(groups[0]) == 8 && len(groups[1]) == 4 && len(groups[2]) == 4 && len(groups[3]) == 4 && groups[2][0] == '7' && strings.Contains("89ab", groups[3][:1])
}

// millisecond is the time that the text of a version 7 UUID begins with.
func millisecond(id string) events.Time {
	ms, _ := strconv.ParseInt(id[:8]+id[9:13], 16, 64)
	return events.Time(ms)
}

// opened checks, once something else comes after ledger.opened, that no effect
// was left in flight over a stop.
func (r *run) opened(seq uint64) {
	if !r.opening {
		return
	}
	r.opening = false
	for _, current := range r.s.OpenRuns() {
		if ledger.Doubted(current, 0, true) != nil {
			r.find(seq, "run "+current.ID+" in doubt, since its effect was in flight when the ledger was opened", "no run.doubted")
		}
	}
}

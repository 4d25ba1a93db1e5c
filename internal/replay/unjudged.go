package replay

import (
	"fmt"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// following is a type of event that a decision gives.
type following struct {
	typ  events.Type
	must bool // always, where the decision allows
}

// follow says what follows from an allowed decision whose request may be erased,
// in order: that much is judged also where the request is gone, so that nobody
// hangs an event on a decision that can no longer be judged. An operation that
// is not here is one whose request is never erased.
var follow = map[string][]following{
	"memory.read":        {},
	"memory.write":       {{events.TypeMemoryExpired, false}, {events.TypeMemoryWritten, true}},
	"memory.delete":      {{events.TypeMemoryDeleted, true}},
	"memory.load":        {{events.TypeMemoryExpired, false}, {events.TypeMemoryWritten, true}},
	"action.authorize":   {},
	"sop.validate":       {},
	"sop.submit":         {{events.TypeRunAdmitted, true}, {events.TypeRunStarted, true}},
	"run.cancel":         {},
	"run.resolve":        {{events.TypeRunResolved, true}, {events.TypeEffectFinished, false}, {events.TypeEffectFailed, false}, {events.TypeRunFailed, false}},
	"grant.give":         {{events.TypeGrantGiven, true}},
	"grant.revoke":       {{events.TypeGrantRevoked, true}},
	"emergency.deny":     {{events.TypeEmergencyDenied, false}}, // not in a dry run
	"emergency.lift":     {{events.TypeEmergencyLifted, true}},
	ledger.StepOperation: {{events.TypeEffectStarted, true}, {events.TypeMemoryExpired, false}, {events.TypeMemoryWritten, false}, {events.TypeMemoryDeleted, false}, {events.TypeEffectFinished, false}},
}

// unjudge has what follows from the decision at hand taken as it is, as far as
// such a decision gives it at all.
func (r *run) unjudge() {
	r.unjudged = true
	d := r.decision.Body.(*events.Decision)
	switch list, bounded := follow[d.Operation]; {
	case !bounded:
		r.still = nil
	case d.Allowed:
		r.still = append([]following{}, list...)
	case d.Operation == ledger.StepOperation:
		r.still = []following{{events.TypeRunFailed, true}}
	default:
		r.still = []following{}
	}
}

// gives takes an event off what may still follow.
func (r *run) gives(b events.Body) bool {
	if r.still == nil {
		return true
	}
	for i, f := range r.still {
		if f.typ == b.Type() {
			r.still = r.still[i+1:]
			return names(r.decision.Body.(*events.Decision), b)
		}
		if f.must {
			return false
		}
	}
	return false
}

// names reports whether an effect is on what its decision says it is on.
func names(d *events.Decision, b events.Body) bool {
	record := func(rec *events.Record) bool {
		return d.Operation == ledger.StepOperation && rec.Owner == d.Subject || d.Resource == rec.Owner+":"+rec.Namespace+"."+rec.Key
	}
	grant := func(g *events.Grant) bool {
		return g.Owner == d.Subject && strings.TrimPrefix(d.Resource, d.Subject+":") == g.Namespace+"."+g.Key
	}
	switch b := b.(type) {
	case *events.MemoryWritten:
		return record(&b.Record) && (d.Operation != "memory.write" || b.Revision == d.PreviousRevision+1)
	case *events.MemoryDeleted:
		return record(&b.Record)
	case *events.MemoryExpired:
		return record(&b.Record)
	case *events.GrantGiven:
		return grant(&b.Grant)
	case *events.GrantRevoked:
		return grant(&b.Grant)
	}
	return true
}

// unjudgedEffect takes an event that follows from a decision that could not be
// judged, as it is.
func (r *run) unjudgedEffect(found logged) error {
	r.takenAsItIs()
	if found.Time != r.decision.Time || found.Agent != r.decision.Agent {
		r.find(found.Seq, "the time and agent of "+describeSeq(r.decision.Seq), describe(&found.Event))
	}
	if !r.gives(found.Body) {
		r.find(found.Seq, fmt.Sprintf("no such event: %s gives none, whatever was asked", describeSeq(r.decision.Seq)), describe(&found.Event))
	}
	open, err := r.openPayload(&found.Event, nil)
	if err != nil {
		return err
	}
	return r.apply(&found, open)
}

// unended closes what follows from a decision that could not be judged.
func (r *run) unended(seq uint64, found string) {
	for _, f := range r.still {
		if f.must {
			r.find(seq, fmt.Sprintf("%s, which follows from %s", f.typ, describeSeq(r.decision.Seq)), found)
		}
	}
	r.still = nil
}

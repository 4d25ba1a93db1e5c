package natsapi

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// judgedAgain is what stands behind a denial in the log, beside the rules that
// it names itself.
type judgedAgain struct {
	whole wire.Why
	notes []string
	steps []wire.Explained
}

// judgedAgain judges the request of a denial again, by what is in force now. It
// tells only where the policy is still that of the decision, and the reason too:
// anything else would explain another decision.
func (a *api) judgedAgain(s *projection.State, w asker, told *teller, d *events.Decision, seq uint64) (out judgedAgain) {
	if d.Allowed || d.PolicyDigest != s.PolicyDigest() || s.Agent(d.Subject) == nil || ledger.IsStep(d) {
		return out
	}
	own := d.Subject == w.id
	if !own && !w.full() { // above it: the names in the log, and no more
		return out
	}
	request, ok := a.ledger.Request(seq)
	if !ok || len(request) > explainBytesMax {
		return out
	}
	e := ledger.Explain(s, a.ledger.Now(), wire.Propose, d.Subject, d.Operation, request)
	if e.Decision.Reason != d.Reason {
		return out
	}
	out.whole = told.again(e.Found, e.Why, own)
	for i, step := range e.Steps {
		shown := wire.Explained{StepID: step.StepID, ReasonCode: reason.Code(step.Reason)}
		if i < len(e.Descent.Steps) && !step.Allowed {
			shown.Why = told.again(e.Descent.Steps[i].Found, e.StepWhy[i], own)
		}
		out.steps = append(out.steps, shown)
	}
	for _, note := range e.Notes {
		if own {
			add(told, &out.whole, &out.notes, short(note))
		}
	}
	return out
}

// again is why, without the rules, which the decision names. What a sealed
// request holds stays between the ledger and its sender: to others a fault names
// the place in the schema, and nothing of the request.
func (t *teller) again(found ledger.Found, why ledger.Why, own bool) wire.Why {
	found.Rules = nil
	if !own {
		found.Schema = schemaAlone(found.Schema)
		for i := range why.Values {
			why.Values[i].Fault = schemaAlone(why.Values[i].Fault)
		}
	}
	return t.why(found, why)
}

func schemaAlone(f *policy.SchemaFault) *policy.SchemaFault {
	if f == nil {
		return nil
	}
	return &policy.SchemaFault{Why: "told to its sender alone", Place: f.Place, Says: f.Says}
}

package replay

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// differencesMax is how many keys of a stored state are named.
const differencesMax = 20

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// lastTouched reads the log once more, up to the stored state, and says which
// event was the last to touch each key that differs.
func (r *run) lastTouched(list []projection.Difference) []string {
	out := make([]string, len(list))
	for i := range out {
		out[i] = "no event"
	}
	if len(list) == 0 {
		return out
	}
	err := r.src.Events(1, r.StoredSeq, func(seq uint64, b []byte) error {
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		for i := range list {
			if touches(&e, &list[i]) {
				out[i] = "event " + uintText(seq)
			}
		}
		return nil
	})
	if err != nil {
		for i := range out {
			out[i] = "an event that is not known: " + err.Error()
		}
	}
	return out
}

// touches reports whether an event has to do with a key of a projection.
func touches(e *events.Event, d *projection.Difference) bool {
	switch d.Projection {
	case projection.OfAgents:
		return slices.Contains(agentsOf(e.Body), d.Key)
	case projection.OfPrincipals:
		switch b := e.Body.(type) {
		case *events.LedgerCreated:
			return d.Key == b.AdminID
		case *events.PrincipalRegistered:
			return d.Key == b.ID
		case *events.PrincipalRekeyed:
			return d.Key == b.ID
		case *events.PrincipalRevoked:
			return d.Key == b.ID
		}
	case projection.OfPolicies:
		b, ok := e.Body.(*events.PolicyActivated)
		return ok && b.Version == d.Key
	case projection.OfMemory:
		b := recordOf(e.Body)
		return b != nil && projection.RecordKey(b.Owner, b.Namespace, b.Key) == d.Key
	case projection.OfGrants:
		return touchesGrant(e.Body, d.Key)
	case projection.OfResources:
		b, ok := e.Body.(*events.ResourceSet)
		return ok && b.ID == d.Key
	case projection.OfRuns:
		return runOf(e.Body) == d.Key
	case projection.OfEmergency:
		switch b := e.Body.(type) {
		case *events.EmergencyDenied:
			return uintText(b.Epoch) == d.Key
		case *events.EmergencyLifted:
			return uintText(b.Epoch) == d.Key
		}
	case projection.OfOperations:
		b, ok := e.Body.(*events.Decision)
		return ok && b.OperationID != "" && b.Operation != "memory.read" && !ledger.IsStep(b) && projection.OperationKey(b.Subject, b.OperationID) == d.Key
	case projection.OfLedger:
		return touchesPlace(e.Body, d.Key)
	}
	return false
}

func agentsOf(b events.Body) []string {
	switch b := b.(type) {
	case *events.AgentRegistered:
		return []string{b.AgentID}
	case *events.AgentUpdated:
		return []string{b.AgentID}
	case *events.AgentRevoked:
		return []string{b.AgentID}
	case *events.RestrictionAdded:
		return []string{b.AgentID}
	case *events.RestrictionRemoved:
		return []string{b.AgentID}
	}
	return nil
}

func recordOf(b events.Body) *events.Record {
	switch b := b.(type) {
	case *events.MemoryWritten:
		return &b.Record
	case *events.MemoryDeleted:
		return &b.Record
	case *events.MemoryExpired:
		return &b.Record
	}
	return nil
}

func touchesGrant(b events.Body, key string) bool {
	name := func(g *events.Grant) bool {
		return projection.RecordKey(g.Owner, g.Namespace, g.Key)+" to "+g.To == key
	}
	switch b := b.(type) {
	case *events.GrantGiven:
		return name(&b.Grant)
	case *events.GrantRevoked:
		return name(&b.Grant)
	}
	return false
}

func runOf(b events.Body) string {
	switch b := b.(type) {
	case *events.RunAdmitted:
		return b.RunID
	case *events.RunStarted:
		return b.RunID
	case *events.RunFinished:
		return b.RunID
	case *events.RunFailed:
		return b.RunID
	case *events.RunCancelled:
		return b.RunID
	case *events.RunDoubted:
		return b.RunID
	case *events.RunResolved:
		return b.RunID
	case *events.EffectStarted:
		return b.RunID
	case *events.EffectFinished:
		return b.RunID
	case *events.EffectFailed:
		return b.RunID
	case *events.Decision:
		return b.RunID
	}
	return ""
}

func touchesPlace(b events.Body, key string) bool {
	switch b.(type) {
	case *events.LedgerOpened:
		return key == "rules"
	case *events.PolicyActivated:
		return key == "policy"
	case *events.EnvironmentChanged:
		return key == "environment"
	case *events.SignersSet:
		return key == "signers"
	case *events.EmergencyDenied, *events.EmergencyLifted:
		return key == "emergency epoch"
	}
	return key == "seq" || key == "time" || key == "leaf"
}

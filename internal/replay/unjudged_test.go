package replay_test

import (
	"slices"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay"
)

var honest *log

// honestLog is the log of a scenario, which no test changes.
func honestLog(t testing.TB) *log {
	t.Helper()
	if honest == nil {
		honest = read(t, scenario(t))
	}
	return honest
}

// sealed takes from a log all payloads but the open ones, as an export does.
func (l *log) sealed() *log {
	c := l.copy()
	for i := range c.events {
		if !ledger.HasOpenPayload(c.events[i].Body) {
			delete(c.payloads, c.events[i].Seq)
		}
	}
	return c
}

func TestR82_AnHonestLogWithoutItsSealedPayloadsLeavesWorkAndFindsNothing(t *testing.T) {
	report := replay.Run(honestLog(t).sealed().rechain(t))
	for _, f := range report.Findings {
		t.Error(f)
	}
	if report.Err != nil || len(report.Unverifiable) == 0 || report.UnjudgedSteps == 0 {
		t.Errorf("report: %+v", report)
	}
}

// A decision loses its payload, what follows from it erases just that, and
// something is put in between.
var behindErased = []struct {
	name  string
	forge func(testing.TB, *log) (at int, wrong events.Body)
}{
	{"an admin behind a denied action", func(t testing.TB, l *log) (int, events.Body) {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_not_in_effective_capabilities")
		return i, &events.PrincipalRegistered{ID: "mallory", Role: "admin", PublicKey: key(t, l)}
	}},
	{"an admin behind an allowed action", func(t testing.TB, l *log) (int, events.Body) {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		return i, &events.PrincipalRegistered{ID: "mallory", Role: "admin", PublicKey: key(t, l)}
	}},
	{"a root behind an allowed action", func(t testing.TB, l *log) (int, events.Body) {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		return i, &events.AgentRegistered{AgentID: "evil", Capabilities: []string{"memory.read"}, PublicKey: key(t, l)}
	}},
	{"a foreign record behind a write", func(t testing.TB, l *log) (int, events.Body) {
		i, _ := l.decision(t, "researcher", "memory.write", "owner_write")
		return i, &events.MemoryWritten{Record: events.Record{Owner: "report_manager", Namespace: "x", Key: "y", Visibility: "private", Class: "preference", Revision: 1}}
	}},
	{"an erasure of more than itself behind an action", func(t testing.TB, l *log) (int, events.Body) {
		i, _ := l.decision(t, "researcher", "action.authorize", "action_allowed")
		apply, _ := l.at(t, func(e *events.Event) bool {
			d, ok := e.Body.(*events.Decision)
			return ok && d.Operation == "apply"
		})
		return i, &events.PayloadErased{Basis: "mistake", Seqs: []uint64{uint64(apply) + 1}}
	}},
}

// key is a public key that nobody in the log has.
func key(t testing.TB, _ *log) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func TestR82_NothingIsBelievedBehindAnErasedDecision(t *testing.T) {
	honest := honestLog(t)
	for _, f := range behindErased {
		t.Run(f.name, func(t *testing.T) {
			l := honest.copy()
			i, wrong := f.forge(t, l)
			delete(l.payloads, l.events[i].Seq)
			l.follow(i, &events.PayloadErased{Basis: "mistake", Seqs: []uint64{uint64(i) + 1}})
			l.follow(i, wrong)
			report := replay.Run(l.rechain(t))
			found := slices.ContainsFunc(report.Findings, func(f replay.Finding) bool { return f.Seq == uint64(i)+2 })
			erasure := slices.ContainsFunc(report.Findings, func(f replay.Finding) bool { return f.Seq == uint64(i)+3 })
			if !found || !erasure || len(report.Erased) > 0 && report.Erased[uint64(i)+3] > 0 {
				t.Errorf("found %v, %v; erased %v", report.Findings, report.Err, report.Erased)
			}
		})
	}
}

// What a decision itself says is compared though its request is gone.
func TestR82_ADecisionWithoutItsRequestIsStillHeldToItsGuards(t *testing.T) {
	honest := honestLog(t).sealed()
	for name, forge := range map[string]func(testing.TB, *log) int{
		"an action that nobody holds allowed": func(t testing.TB, l *log) int {
			i, d := l.decision(t, "researcher", "action.authorize", "action_not_in_effective_capabilities")
			d.Allowed, d.Reason = true, "action_allowed"
			return i
		},
		"an action denied for want of what it holds": func(t testing.TB, l *log) int {
			i, d := l.decision(t, "researcher", "action.authorize", "action_allowed")
			d.Allowed, d.Reason = false, "action_not_in_effective_capabilities"
			return i
		},
		"a foreign write allowed": func(t testing.TB, l *log) int {
			i, d := l.decision(t, "researcher", "memory.write", "actor_is_not_owner")
			d.Allowed, d.Reason, d.Owner = true, "owner_write", ""
			return i
		},
		"a step of another agent": func(t testing.TB, l *log) int {
			i, e := l.at(t, func(e *events.Event) bool {
				d, ok := e.Body.(*events.Decision)
				return ok && d.SOPID == "good" && d.StepID == "two"
			})
			e.Body.(*events.Decision).PolicyVersion = "lab-9"
			return i
		},
		"a bad step allowed": func(t testing.TB, l *log) int {
			i, d := l.decision(t, "researcher", "sop.validate", "action_not_in_effective_capabilities")
			d.Allowed, d.Reason = true, "step_allowed"
			return i
		},
		"another run admitted": func(t testing.TB, l *log) int {
			i, b := l.body(t, events.TypeRunAdmitted)
			b.(*events.RunAdmitted).Actions[0] = "external.upload"
			return i
		},
		"a grant to itself": func(t testing.TB, l *log) int {
			i, b := l.body(t, events.TypeGrantGiven)
			b.(*events.GrantGiven).To = b.(*events.GrantGiven).Owner
			return i
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := honest.copy()
			i := forge(t, l)
			report := replay.Run(l.rechain(t))
			if !slices.ContainsFunc(report.Findings, func(f replay.Finding) bool { return f.Seq == uint64(i)+1 }) {
				t.Errorf("event %d: found %v, %v", i+1, report.Findings, report.Err)
			}
		})
	}
}

func TestR82_ASizeThatIsOnlyClaimedCostsNothing(t *testing.T) {
	src := honestLog(t).rechain(t)
	events, size := src.Events, src.Size
	src.Size = 9007199254740991
	src.Events = func(from, to uint64, fn func(uint64, []byte) error) error {
		if from > size {
			return nil
		}
		return events(from, min(to, size), fn)
	}
	if report := replay.Run(src); report.Err == nil || report.Events != size {
		t.Errorf("%d events, %v", report.Events, report.Err)
	}
}

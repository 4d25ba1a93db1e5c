package ledger

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// checkTrace holds an explanation to the decision that it explains: same
// outcome, the reason at the one guard that failed, and every guard a row of
// the table that can give that reason.
func checkTrace(t rapid.TB, s *projection.State, p *Proposal, want *Outcome) {
	t.Helper()
	got, guards := Trace(s, p)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s %s: explained as %+v, decided as %+v", p.Subject, p.Operation, got, want)
	}
	if want.Retry != 0 {
		return
	}
	code := reason.Code(want.Decision.Reason)
	failed := 0
	for i, g := range guards {
		switch {
		case g.Result == "failed":
			failed++
			if g.Reason != code {
				t.Fatalf("%s: guard %s failed with %s, the decision says %s", p.Operation, g.Name, g.Reason, code)
			}
			row := slices.IndexFunc(guardsOf(want.Decision.Operation), func(r guard) bool { return r.name == g.Name && r.stops(code) })
			if row < 0 && own[p.Operation] != nil && want.Decision.Operation != events.Unsupported {
				t.Fatalf("%s: guard %q is no row of the table that gives %s", p.Operation, g.Name, code)
			}
		case g.Reason != "", (g.Result == "not_reached") != (failed == 1), failed == 0 && g.Result != "passed":
			t.Fatalf("%s %s: guard %d of %+v", p.Operation, code, i, guards)
		}
	}
	if (failed == 0) != want.Decision.Allowed {
		t.Fatalf("%s %s: %d guards failed: %+v", p.Operation, code, failed, guards)
	}
	if rows := own[p.Operation]; want.Decision.Allowed && rows != nil && p.Lane == wire.Propose {
		var names []string
		for _, g := range guards {
			names = append(names, g.Name)
		}
		for _, row := range guardsOf(p.Operation) {
			if !slices.Contains(names, row.name) {
				t.Fatalf("%s is allowed and guard %q was never asked: %v", p.Operation, row.name, names)
			}
		}
	}
}

// What is explained is what is decided, on over a thousand random cases; the
// tables of testdata/decide and all other histories are held to it too. A short
// run has fewer.
func TestTrace_AgreesWithTheDecision(t *testing.T) {
	cases := 0
	histories(t, func(t *rapid.T, h *history, p *Proposal, o *Outcome, _ map[string][]string) { cases++ }, nothing)
	if cases < 1000 && !testing.Short() {
		t.Errorf("%d cases", cases)
	}
}

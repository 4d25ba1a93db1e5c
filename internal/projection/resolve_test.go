package projection

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

// R51: whoever names an operation id finds its outcome again, also where the
// decision is about one step of a run: a resolution.
func TestR51_AResolutionIsRemembered(t *testing.T) {
	s := New()
	for _, d := range []events.Decision{
		{Subject: "admin", Operation: "run.resolve", RunID: "r", StepID: "one", OperationID: "resolve", Allowed: true},
		{Subject: "admin", Operation: "sop.step", RunID: "r", StepID: "one", Allowed: true},
	} {
		if err := s.foldDecision(7, &d); err != nil {
			t.Fatal(err)
		}
	}
	if op, used := s.Operation("admin", "resolve"); !used || op.Name != "run.resolve" || op.Seq != 7 {
		t.Errorf("%+v, %v", op, used)
	}
	if _, used := s.Operation("admin", ""); used {
		t.Error("a step without an id is remembered")
	}
}

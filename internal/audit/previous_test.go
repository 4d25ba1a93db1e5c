package audit_test

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// TestR81_AMalformedPreviousIsFound: what event 1 says of the epoch before is
// checked for its form by everybody.
func TestR81_AMalformedPreviousIsFound(t *testing.T) {
	old := logtest.Sample("log.example/a/1", 1, 9)
	good := events.Previous{Origin: old.Origin, Checkpoint: string(old.Note(9)), Reason: "loss"}
	for name, c := range map[string]struct {
		change func(p *events.Previous)
		found  string
	}{
		"whole":               {func(*events.Previous) {}, ""},
		"no note":             {func(p *events.Previous) { p.Checkpoint = "lost" }, "not a signed checkpoint"},
		"a note of no event":  {func(p *events.Previous) { p.Checkpoint = string(old.Note(0)) }, "at size 0"},
		"a note of another":   {func(p *events.Previous) { p.Checkpoint = string(logtest.Sample("log.example/b/1", 1, 9).Note(9)) }, "log.example/b/1"},
		"another log":         {func(p *events.Previous) { p.Origin = "log.example/b/1" }, "log.example/b/1"},
		"the same epoch":      {func(p *events.Previous) { p.Origin = "log.example/a/2" }, "log.example/a/2"},
		"a later epoch":       {func(p *events.Previous) { p.Origin = "log.example/a/3" }, "log.example/a/3"},
		"no origin":           {func(p *events.Previous) { p.Origin = "" }, `""`},
		"a reason of no kind": {func(p *events.Previous) { p.Reason = "whim" }, "whim"},
	} {
		l := logtest.Sample("log.example/a/2", 2, 9)
		l.Edit(0, func(e *events.Event) {
			p := good
			c.change(&p)
			e.Body.(*events.LedgerCreated).Previous = &p
		})
		l.Relink(1)
		r, err := audit.VerifyLog(l.Source(), audit.Options{VKey: l.VKey})
		if err != nil {
			t.Fatal(err)
		}
		if c.found == "" {
			if r.Exit != audit.ExitPass {
				t.Errorf("%s: %+v", name, r.Faults)
			}
			continue
		}
		if r.Exit != audit.ExitFail || r.Faults[0].Check != "origin" || r.Faults[0].Seq != 1 || !strings.Contains(r.Faults[0].Found, c.found) {
			t.Errorf("%s: exit %d %+v", name, r.Exit, r.Faults)
		}
	}
}

package trial

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const examples = "../../examples/policies"

// example is one directory of examples/policies.
type example struct {
	name      string
	parts     []policy.Part
	documents []policy.Document
	cases     []policy.Case
}

func allExamples(t *testing.T) (list []example) {
	t.Helper()
	dirs, err := os.ReadDir(examples)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		e := example{name: dir.Name()}
		b, err := os.ReadFile(filepath.Join(examples, e.name, "cases.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		c, faults := policy.ParseCases(e.name+"/cases.yaml", string(b))
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		e.cases = c.Cases
		if b, err = os.ReadFile(filepath.Join(examples, e.name, c.Policy)); err != nil {
			t.Fatal(err)
		}
		if e.documents, faults = policy.ParseFile(e.name+"/"+c.Policy, string(b)); len(faults) > 0 {
			t.Fatal(faults)
		}
		e.parts = policy.SplitFile(c.Policy, string(b))
		list = append(list, e)
	}
	if len(list) < 4 {
		t.Fatalf("%d examples", len(list))
	}
	return list
}

// Every example holds what it says, and shows what is allowed as well as what
// is not.
func TestExamples_Cases(t *testing.T) {
	for _, e := range allExamples(t) {
		failures, faults := Run(e.parts, e.documents, e.cases)
		if len(faults) > 0 {
			t.Errorf("%s: %v", e.name, faults)
		}
		for _, f := range failures {
			t.Errorf("%s, %s: want %s, got %s", e.name, f.Case.Name, f.Want, f.Got)
		}
		allowed := 0
		for _, c := range e.cases {
			if c.Reason.Allowed() {
				allowed++
			}
		}
		if allowed < 3 || len(e.cases)-allowed < 3 {
			t.Errorf("%s: %d cases, %d of them allowed", e.name, len(e.cases), allowed)
		}
		for _, w := range Lint(e.parts, e.documents) {
			t.Errorf("%s: %s", e.name, w)
		}
	}
}

// A ledger gives each example's cases the same answers, in any order of those
// that build on nothing; and its log judged again, twice and after a restart,
// gives every verdict again.
func TestExamples_TheLogJudgedAgain(t *testing.T) {
	for _, e := range allExamples(t) {
		t.Run(e.name, func(t *testing.T) {
			var alone []policy.Case
			for _, c := range e.cases {
				if len(c.Given) == 0 && !changes(c) {
					alone = append(alone, c)
					continue
				}
				o, s := e.start(t)
				e.ask(t, s, c)
				s.Stop() // which judges the log again
				judgedAgain(t, o)
			}
			o, s := e.start(t)
			for range 2 {
				rand.Shuffle(len(alone), func(i, k int) { alone[i], alone[k] = alone[k], alone[i] })
				for _, c := range alone {
					e.ask(t, s, c)
				}
				s.Stop()
				s = replaytest.Start(t, o)
			}
			s.Stop()
			judgedAgain(t, o)
		})
	}
}

// start runs a ledger of its own with the example's documents in force.
func (e example) start(t *testing.T) (ledger.Options, *replaytest.Session) {
	t.Helper()
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, o)
	texts, faults := Texts(e.parts, e.documents, Key)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if r := s.Control(ledger.AdminID, "apply", string(ApplyRequest(texts))); !r.Allowed {
		t.Fatalf("apply: %s", r.Text)
	}
	return o, s
}

// judgedAgain judges a closed log again, twice, and wants every decision judged
// and nothing found.
func judgedAgain(t *testing.T, o ledger.Options) {
	t.Helper()
	for range 2 {
		r := replaytest.CheckLedger(t, o)
		if r.Judged != r.Decisions || r.Found != 0 {
			t.Errorf("%d of %d decisions judged again, %v", r.Judged, r.Decisions, r.Findings)
		}
	}
}

// changes reports whether a case leaves something behind that others could see.
func changes(c policy.Case) bool {
	return slices.Contains([]reason.Code{
		reason.OwnerWrite, reason.OwnerDelete, reason.Registered, reason.ControlDone, reason.RestrictionAdded, reason.GrantGiven, reason.GrantRevoked,
	}, c.Reason)
}

func send(s *replaytest.Session, step policy.Step) replaytest.Reply {
	if step.Agent == ledger.AdminID {
		return s.Control(step.Agent, step.Operation, string(step.Request))
	}
	operation, request := Asked(wire.Propose, step.Operation, step.Request)
	return s.Propose(step.Agent, operation, string(request))
}

func (e example) ask(t *testing.T, s *replaytest.Session, c policy.Case) {
	t.Helper()
	for _, step := range c.Given {
		if r := send(s, step); !r.Allowed {
			t.Errorf("%s: given: %s", c.Name, r.Text)
		}
	}
	if r := send(s, c.Step); r.Reason != string(reason.Told(c.Reason)) {
		t.Errorf("%s: the ledger says %s, the case %s", c.Name, r.Text, c.Reason)
	}
}

package projection

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

// TestDiff: a difference is named by projection, key and both values; what one
// state lacks is an empty value; and no more than asked are listed.
func TestDiff(t *testing.T) {
	make := func() *State {
		s := New()
		s.agents["a"] = &Agent{ID: "a", Depth: 1, Declared: []string{"memory.read"}}
		s.records.put(&Record{Owner: "a", Kind: &Kind{Namespace: "notes"}, Key: "k", Revision: 3, Extra: noExtra})
		s.principals["p"] = &Principal{ID: "p", Role: "observer"}
		s.runs["r"] = &Run{ID: "r", Agent: "a", State: Running}
		s.grants[events.Grant{Owner: "a", Namespace: "credentials", Key: "t", To: "b"}] = &Grant{Grant: events.Grant{Owner: "a", Namespace: "credentials", Key: "t", To: "b"}}
		s.denies = []Deny{{Epoch: 1, Scope: "a", All: true}}
		if _, _, err := s.operations.add("a", "op", Operation{4, "memory.write"}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if list := make().Diff(make(), 9); len(list) != 0 {
		t.Errorf("of one state: %+v", list)
	}
	for want, bend := range map[string]func(*State){
		"agents a":                              func(s *State) { s.agents["a"].Declared = nil },
		"agents b":                              func(s *State) { s.agents["b"] = &Agent{ID: "b"} },
		"memory a:notes.k":                      func(s *State) { s.Record("a", "notes", "k").Revision++ },
		"principals p":                          func(s *State) { delete(s.principals, "p") },
		"runs r":                                func(s *State) { s.runs["r"].State = InDoubt },
		"grants a:credentials.t to b":           func(s *State) { s.grants = nil },
		"emergency 1":                           func(s *State) { s.denies = nil },
		"ledger rules":                          func(s *State) { s.Rules++ },
		"policies v":                            func(s *State) { s.versions["v"] = events.Hash{1} },
		"operations " + OperationKey("a", "op"): func(s *State) { s.operations = operations{} },
		"operations " + OperationKey("a", "no"): func(s *State) { _, _, _ = s.operations.add("a", "no", Operation{5, "apply"}) },
	} {
		s, bent := make(), make()
		bend(bent)
		for _, list := range [][]Difference{s.Diff(bent, 9), bent.Diff(s, 9)} {
			if len(list) != 1 || list[0].Projection+" "+list[0].Key != want || list[0].Want == list[0].Got {
				t.Errorf("want %s: %+v", want, list)
			}
		}
		if s.Digest() == bent.Digest() && !strings.HasPrefix(want, "policies") {
			t.Errorf("%s: one digest", want)
		}
	}
	if list := New().Diff(make(), 2); len(list) != 2 {
		t.Errorf("%d listed", len(list))
	}
}

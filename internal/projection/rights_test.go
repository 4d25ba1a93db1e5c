package projection

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"pgregory.net/rapid"
)

// plainly is an effective set as I5 says it, worked out from nothing but the
// declarations.
func plainly(s *State, a *Agent) policy.Set {
	set := s.Environment()
	for ; a != nil; a = a.Parent {
		if a.Revoked {
			return nil
		}
		set = set.Intersect(a.Declared)
	}
	return set
}

// R15: what is effective follows every change at once, whoever asked before it.
func TestR15_EffectiveFollowsEveryChange(t *testing.T) {
	capabilities := []string{"memory.read", "memory.write", "x.one", "x.two"}
	rapid.Check(t, func(t *rapid.T) {
		some := func(label string) []string {
			return slices.DeleteFunc(slices.Clone(capabilities), func(string) bool { return rapid.IntRange(0, 3).Draw(t, label) == 0 })
		}
		s := New()
		apply := func(e entry) {
			if err := s.apply(e); err != nil {
				t.Fatal(err)
			}
		}
		policies := 0
		activate := func() {
			policies++
			version := fmt.Sprint("p", policies)
			apply(activated(version, fmt.Sprintf("apiVersion: ledgerd/v1\nkind: Policy\nversion: %s\nenvironment: [%s]\nactions: {x.one: {}, x.two: {}}\n",
				version, strings.Join(some("environment"), ", "))))
		}
		var ids []string
		register := func() {
			id, parent := fmt.Sprint("a", len(ids)), ""
			if len(ids) > 0 {
				parent = rapid.SampledFrom(append([]string{""}, ids...)).Draw(t, "parent")
			}
			if parent != "" && s.Agent(parent).Revoked {
				parent = ""
			}
			apply(of(&events.AgentRegistered{AgentID: id, ParentID: parent, Capabilities: some("declared"), PublicKey: "U" + id}))
			ids = append(ids, id)
		}
		apply(created())
		activate()
		register()
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			a := s.Agent(rapid.SampledFrom(ids).Draw(t, "agent"))
			switch rapid.IntRange(0, 4).Draw(t, "change") {
			case 0:
				activate()
			case 1:
				apply(of(&events.EnvironmentChanged{Capabilities: some("narrowed")}))
			case 2:
				if !a.Revoked {
					apply(of(&events.AgentUpdated{AgentID: a.ID, Capabilities: some("declared anew")}))
				}
			case 3:
				if !a.Revoked && rapid.Bool().Draw(t, "for good") {
					apply(of(&events.AgentRevoked{AgentID: a.ID}))
				}
			default:
				register()
			}
			for _, id := range ids {
				a := s.Agent(id)
				want := plainly(s, a)
				if got := s.Effective(a); !got.Equal(want) {
					t.Fatalf("%s has %v, want %v", id, got, want)
				}
				for _, capability := range append(capabilities, "x.none") {
					if ok, by := s.Holds(a, capability); ok != want.Has(capability) || ok != (by == "") {
						t.Fatalf("%s %s: %v by %q", id, capability, ok, by)
					}
				}
			}
		}
	})
}

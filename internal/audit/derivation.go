package audit

import (
	"fmt"
	"strings"
)

// Derivation is how a decision comes about from the rules in force: what a
// report shows beside one that is recorded otherwise.
type Derivation struct {
	Capability string  `json:"capability,omitempty"`
	Terms      []Term  `json:"terms,omitempty"` // environment ∩ declared(root) ∩ … ∩ declared(agent)
	Removed    []Term  `json:"removed,omitempty"`
	Policy     string  `json:"policy_version"`
	Digest     string  `json:"policy_digest"`
	PolicySeq  uint64  `json:"policy_seq,omitempty"` // of the event that put it in force
	Rules      uint64  `json:"rules"`
	Guards     []Guard `json:"guards,omitempty"`
	Recorded   string  `json:"recorded"`
	Recomputed string  `json:"recomputed"`
}

// Term is one factor of an effective set, and whether it holds the capability.
type Term struct {
	Of    string `json:"of"` // environment, declared(agent), use(agent) or emergency
	Holds bool   `json:"holds"`
	Why   string `json:"why,omitempty"`
}

// Guard is one step of the descent that a judgement makes.
type Guard struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
}

// Lines are the derivation for people.
func (d *Derivation) Lines() []string {
	lines := []string{fmt.Sprintf("recorded %s; the rules give %s", d.Recorded, d.Recomputed)}
	if d.PolicySeq == 0 {
		lines = append(lines, "no policy was in force")
	} else {
		lines = append(lines, fmt.Sprintf("policy %s %s, put in force by event %d; rules %d", d.Policy, d.Digest, d.PolicySeq, d.Rules))
	}
	if d.Capability != "" {
		var names []string
		for _, t := range d.Terms {
			names = append(names, t.Of)
		}
		lines = append(lines, d.Capability+" ∈ "+strings.Join(names, " ∩ ")+"?")
		for _, t := range d.Removed {
			lines = append(lines, fmt.Sprintf("no: %s removes it (%s)", t.Of, t.Why))
		}
		if len(d.Removed) == 0 {
			lines = append(lines, "yes: no term removes it")
		}
	}
	var guards []string
	for _, g := range d.Guards {
		if g.Reason != "" {
			guards = append(guards, g.Name+" "+g.Result+" ("+g.Reason+")")
		} else if g.Result != "not_reached" {
			guards = append(guards, g.Name+" "+g.Result)
		}
	}
	if len(guards) > 0 {
		lines = append(lines, "guards: "+strings.Join(guards, ", "))
	}
	return lines
}

package audit

import (
	"errors"
	"fmt"
)

// errHalted ends the reading of a log at its first fault.
var errHalted = errors.New("halted")

// halts reports whether there is a fault, and no other is asked for.
func (v *Verifier) halts() bool { return v.opts.First && len(v.failed) > 0 }

// halted is the report of a log that was looked at as far as its first fault: which
// check failed, and of none that it passed.
func (v *Verifier) halted() *Report {
	open := fmt.Sprintf("it was not looked at to its end: this stopped at the first fault, behind event %d", v.size)
	r := &Report{Origin: v.origin, Events: v.size, KeySource: "the data itself", Key: v.vkey, Erasures: []Erasure{}}
	if v.pinned != nil {
		r.Key, r.KeySource = v.opts.VKey, "pinned"
	}
	if v.size > 0 {
		r.Head = v.leaf.String()
	}
	of := func(name string) Check {
		if v.failed[name] {
			return Check{Name: name, Status: Fail}
		}
		return Check{Name: name, Status: NotRun, Open: open}
	}
	for _, name := range []string{"parse", "sequence", "chain", "time", "origin", "tree", "checkpoint", "payloads", "operations", "clock"} {
		r.Integrity.Checks = append(r.Integrity.Checks, of(name))
	}
	r.Completeness.Checks = []Check{of("remembered")}
	r.Semantics = Verdict{NotRun, []Check{{Name: "replay", Status: NotRun, Open: open}}}
	r.Faults, r.FaultsMore = v.sorted(), v.more
	v.nothingIsLeftOut(r)
	r.Settle()
	return r
}

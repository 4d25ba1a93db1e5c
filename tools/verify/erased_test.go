package main

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// TestR83_AnExportHoldsNoErasedPayload: an opened payload of an agent all of whose
// are erased is found by both programs, whatever is erased after it.
func TestR83_AnExportHoldsNoErasedPayload(t *testing.T) {
	const seq = 11
	for name, c := range map[string]struct {
		operation string
		before    []uint64
		exit      int
	}{
		"not of it":               {"memory.write", []uint64{seq}, audit.ExitPass},
		"of it":                   {"memory.write", []uint64{seq + 1}, audit.ExitFail},
		"of it, and a lesser one": {"memory.write", []uint64{seq + 1, 2}, audit.ExitFail},
		"one that is never":       {"apply", []uint64{seq + 1}, audit.ExitPass},
	} {
		l := logtest.Sample(testOrigin, 1, seq-1)
		l.AddOpen("researcher", 0, []byte(`{"secret":"x"}`), &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: c.operation, Allowed: true, Reason: "owner_write", PolicyVersion: "lab-1"})
		for _, before := range c.before {
			l.Add("admin", 0, &events.PayloadErased{Basis: "retention_end", Owner: "researcher", Before: before})
		}
		dir := export(t, l.Files())
		if exit, r := verifyJSON(t, "--export", dir, "--vkey", l.VKey); exit != c.exit {
			t.Errorf("%s: exit %d, %v", name, exit, r.Faults)
		}
		exit, out := python(t, dir, "--vkey", l.VKey)
		if exit != c.exit || exit == audit.ExitFail && !strings.Contains(out, "seq 11: event 12 erased its payload, which is here") {
			t.Errorf("%s: verify.py %d, %s", name, exit, out)
		}
	}
}

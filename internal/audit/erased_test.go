package audit_test

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// erasedOwner is a log with a sealed payload of researcher beside event seq, and
// erasures of all that this agent has before each of the given events.
func erasedOwner(before ...uint64) (l *logtest.Log, seq uint64) {
	l = logtest.Sample(origin, 1, 9)
	p := audit.Payload{State: audit.PayloadReadable, Salt: [32]byte{7}, Bytes: []byte(`{"secret":"x"}`)}
	seq = l.Add("researcher", 0, &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: "memory.write", Resource: "researcher:notes.a", Allowed: true, Reason: "owner_write", PolicyVersion: "lab-1"})
	l.Edit(int(seq-1), func(e *events.Event) { e.Payload = events.PayloadCommitment(p.Salt, p.Bytes) })
	l.Payloads[seq] = p
	for _, b := range before {
		l.Add("admin", 0, &events.PayloadErased{Basis: "retention_end", Owner: "researcher", Before: b})
	}
	return l, seq
}

// TestR83_AnErasureIsNotHiddenByALaterOne: what an agent's erasure is of has to be
// gone, however little a later one is of; in a store and in an export.
func TestR83_AnErasureIsNotHiddenByALaterOne(t *testing.T) {
	_, at := erasedOwner()
	for name, c := range map[string]struct {
		before []uint64
		faulty bool
	}{
		"not of it":               {[]uint64{at}, false},
		"of it":                   {[]uint64{at + 1}, true},
		"of it, and a lesser one": {[]uint64{at + 1, 2}, true},
		"of it after a lesser":    {[]uint64{2, at + 1}, true},
		"two lesser ones":         {[]uint64{2, at}, false},
	} {
		l, seq := erasedOwner(c.before...)
		s := l.Source()
		s.Payload = func(q uint64) (audit.Payload, error) { return l.Payloads[q], nil }
		stored, err := audit.VerifyLog(s, audit.Options{VKey: l.VKey})
		if err != nil {
			t.Fatal(err)
		}
		for where, r := range map[string]*audit.Report{"store": stored, "export": verify(t, mapFS(l.Files()), audit.Options{VKey: l.VKey})} {
			found := ""
			for _, f := range r.Faults {
				if f.Seq == seq {
					found = f.String()
				}
			}
			if c.faulty != strings.Contains(found, "still there: not erased") || c.faulty != (r.Exit == audit.ExitFail) {
				t.Errorf("%s, %s: exit %d, %v", name, where, r.Exit, r.Faults)
			}
		}
	}
}

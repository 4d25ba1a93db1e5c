package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

// The writer may leave a batch before its answers are told, or after: only the
// second to leave empties what they use.
func TestABatchIsEmptiedByTheSecondToLeave(t *testing.T) {
	outcome := func(operation string) *job {
		o := &Outcome{Steps: []*events.Decision{{Reason: "x"}}}
		o.Decision = &o.decision
		o.decision.Reason = "visible_from"
		return &job{proposal: &Proposal{Operation: operation}, outcome: o}
	}
	filled := func(kept bool) (*batch, *Outcome, *Outcome) {
		read, run := outcome("memory.read"), outcome("sop.submit")
		b := &batch{jobs: []*job{read, run, {tick: true}}, sealed: []sealedEvent{{event: events.Event{Seq: 7}}}}
		b.spare.users.Add(2)
		b.spare.kept = kept
		return b, read.outcome, run.outcome
	}
	b, read, run := filled(false)
	sealed := b.sealed
	b.leave()
	if read.Decision == nil || read.decision.Reason == "" || b.sealed[0].event.Seq != 7 || b.last() != 7 {
		t.Error("emptied by the first to leave")
	}
	b.leave()
	if read.Decision != nil || read.decision.Reason != "" || len(read.Steps) != 0 || sealed[0].event.Seq != 0 || b.jobs[0].outcome != nil {
		t.Error("not emptied by the second")
	}
	if run.decision.Reason == "" || b.jobs[1].outcome != run {
		t.Error("what a run keeps was emptied")
	}
	for _, b := range []*batch{func() *batch { b, _, _ := filled(true); return b }(), func() *batch { b, _, _ := filled(false); b.failed = true; return b }()} {
		b.leave()
		b.leave()
		if b.sealed == nil || b.jobs[0].outcome == nil {
			t.Error("what others have, or what failed, was emptied")
		}
	}
}

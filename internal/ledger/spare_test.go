package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// doneCounter counts how often an arrival is given back.
type doneCounter int

func (c *doneCounter) Read(*Proposal) reason.Code { return "" }
func (c *doneCounter) Answer(Answer)              {}
func (c *doneCounter) Done()                      { *c++ }

// An arrival is given back once, by the second to leave, and only if nobody has
// it: no run, no failed answer, no reader.
func TestAnArrivalIsGivenBackOnce(t *testing.T) {
	for name, c := range map[string]struct {
		job  *job
		want doneCounter
	}{
		"judged":              {&job{proposal: &Proposal{Operation: "memory.read"}, outcome: &Outcome{}}, 1},
		"refused":             {&job{proposal: &Proposal{Operation: "sop.submit"}, refused: reason.Overloaded}, 1},
		"of a run":            {&job{proposal: &Proposal{Operation: "sop.submit"}, outcome: &Outcome{}}, 0},
		"not answered":        {&job{proposal: &Proposal{Operation: "memory.read"}}, 0},
		"a reader's still":    {&job{proposal: &Proposal{Operation: "memory.read"}, outcome: &Outcome{}}, 0},
		"refused, a reader's": {&job{proposal: &Proposal{Operation: "memory.read"}, refused: reason.Overloaded}, 0},
	} {
		var done doneCounter
		c.job.caller = &done
		c.job.reading.Store(name == "a reader's still" || name == "refused, a reader's")
		b := &batch{jobs: []*job{c.job}}
		b.spare.users.Add(2)
		if b.leave(); done != 0 {
			t.Errorf("%s: given back by the first to leave", name)
		}
		if b.leave(); done != c.want {
			t.Errorf("%s: given back %d times, want %d", name, done, c.want)
		}
	}
}

// A reader that comes late finds the job already read by the writer, and says
// when it is done with it.
func TestAReaderSaysWhenItIsDoneWithAnArrival(t *testing.T) {
	var in intake
	in.open(waitDefault, queueDefault, func(id string) string { return id })
	var done doneCounter
	jobs := make([]*job, chunkMax)
	for i := range jobs {
		jobs[i] = &job{proposal: &Proposal{}, caller: &done}
		if code := in.put(&in.proposals, "bob", jobs[i]); code != "" {
			t.Fatal(code)
		}
	}
	stop := make(chan struct{})
	blocked := &blockedReader{entered: make(chan struct{}), leave: make(chan struct{})}
	jobs[1].caller = blocked
	go func() {
		defer close(stop)
		in.read()
	}()
	<-blocked.entered
	for i, j := range jobs {
		if reads := j.reading.Load(); reads != (i > 0) {
			t.Errorf("job %d, while the second is read: a reader has it: %v", i, reads)
		}
	}
	close(blocked.leave)
	in.close()
	<-stop
	for i, j := range jobs {
		if j.reading.Load() {
			t.Errorf("job %d is still a reader's", i)
		}
	}
}

type blockedReader struct {
	doneCounter
	entered, leave chan struct{}
}

func (r *blockedReader) Read(*Proposal) reason.Code {
	close(r.entered)
	<-r.leave
	return ""
}

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

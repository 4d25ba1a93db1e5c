package ledger

import (
	"testing"
	"time"
)

// An admin's verb comes before everything that waits, in a batch that is soon
// judged and answered.
func TestABatchWithAnAdminsVerbIsSmall(t *testing.T) {
	var in intake
	in.open(time.Second, 2000, rootOf)
	for i := range 500 {
		if code := in.put(&in.proposals, "agent", labelled("agent", i, 1)); code != "" {
			t.Fatal(code)
		}
	}
	if jobs, _ := in.take(0); len(jobs) != batchJobsMax {
		t.Fatalf("a batch has %d jobs", len(jobs))
	}
	if code := in.put(&in.controls, "admin", labelled("admin", 0, 1)); code != "" {
		t.Fatal(code)
	}
	if jobs, _ := in.take(0); len(jobs) != batchControlMax || label(jobs[0]) != "admin#0" {
		t.Errorf("a batch with a control request has %d jobs, the first %s", len(jobs), label(jobs[0]))
	}
}

// beginning is an intake with so many proposals, and what takes of it for the writer.
func beginning(t *testing.T, waiting int) (in *intake, more func(lane *fairQueue, n int), begins func() int) {
	in = &intake{}
	in.open(time.Second, 2000, rootOf)
	more = func(lane *fairQueue, n int) {
		t.Helper()
		for i := range n {
			if code := in.put(lane, "agent", labelled("agent", i, 1)); code != "" {
				t.Fatal(code)
			}
		}
	}
	more(&in.proposals, waiting)
	return in, more, func() int {
		jobs, closed := in.take(0)
		if closed {
			t.Fatal("it is closed")
		}
		return len(jobs)
	}
}

// roused reports whether the writer was woken.
func roused(in *intake) bool {
	select {
	case <-in.wake:
		return true
	default:
		return false
	}
}

// The writer begins no batch while more than a full one is not answered, whatever
// waits, and goes on as soon as that is over.
func TestTheWriterWaitsForTheAnswers(t *testing.T) {
	in, more, begins := beginning(t, 300)
	in.handed(unansweredMax)
	if n := begins(); n != batchJobsMax {
		t.Fatalf("with a full batch unanswered it takes %d", n)
	}
	in.handed(1)
	more(&in.controls, 1)
	if n := begins(); n != 0 {
		t.Fatalf("with one more it takes %d", n)
	}
	more(&in.controls, 1)
	if in.settled(); roused(in) {
		t.Fatal("it is woken before anything is answered")
	}
	in.answered(1)
	if !roused(in) {
		t.Fatal("it waits for ever")
	}
	if n := begins(); n != 46 {
		t.Errorf("it takes %d, want the 44 and two that wait", n)
	}
}

// Few do not follow a batch that is not on disk yet: enough do, and control requests
// and queries, and the few once the batch is there.
func TestFewDoNotFollowABatchOnItsWay(t *testing.T) {
	for name, goesOn := range map[string]func(in *intake, more func(*fairQueue, int)){
		"enough":  func(in *intake, more func(*fairQueue, int)) { more(&in.proposals, 2) },
		"control": func(in *intake, more func(*fairQueue, int)) { more(&in.controls, 1) },
		"query":   func(in *intake, more func(*fairQueue, int)) { more(&in.questions, 1) },
		"on disk": func(in *intake, _ func(*fairQueue, int)) { in.settled() },
		"closed":  func(in *intake, _ func(*fairQueue, int)) { in.close() },
	} {
		in, more, begins := beginning(t, batchJobsEnough-2)
		in.handed(1)
		if n := begins(); n != 0 || roused(in) {
			t.Fatalf("%s: it takes %d", name, n)
		}
		goesOn(in, more)
		if !roused(in) {
			t.Fatalf("%s: it waits for ever", name)
		}
		if jobs, _ := in.take(0); len(jobs) < batchJobsEnough-2 {
			t.Errorf("%s: it takes %d", name, len(jobs))
		}
	}
}

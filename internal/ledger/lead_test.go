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

// The writer begins no batch while more than a full one is not answered.
func TestTheWriterWaitsForTheAnswers(t *testing.T) {
	l := lead{less: make(chan struct{}, 1)}
	l.add(leadMax)
	l.wait()
	l.add(1)
	began := make(chan struct{})
	go func() {
		l.wait()
		close(began)
	}()
	select {
	case <-began:
		t.Fatal("it does not wait")
	case <-time.After(20 * time.Millisecond):
	}
	l.done(1)
	select {
	case <-began:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for ever")
	}
}

package ledger_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// inBubble runs a workshop on a disk in memory, where time stands still but for
// what waits for it: a timer fires at its exact moment, or not at all.
func inBubble(t *testing.T, test func(t *testing.T, w *workshop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o, _ := newMem(t)
		w := openWorkshop(t, o)
		defer w.Stop() // or a failed test would end as a deadlock
		w.Family()
		w.Apply(toolsDocument + replaytest.Key("tools") + "\n")
		w.hello()
		test(t, w)
	})
}

func TestR43_AHandlerIsPresentForFifteenSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		time.Sleep(ledger.PresentFor)
		r := w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`))
		expect(t, r, reason.SOPAdmitted)
		w.done(w.next().OperationID, `1`)
		w.await(runOf(t, r).RunID, projection.Finished)
		w.hello()
		time.Sleep(ledger.PresentFor + time.Millisecond)
		expect(t, w.Propose("researcher", "sop.submit", procedure("publish", 0, `sum document.summarize {}`)), reason.MissingHandlers)
		if w.calls() != 1 {
			t.Errorf("%d calls", w.calls())
		}
	})
}

// A timeout ends in doubt at its moment and no earlier, and who waits for a run
// hears at the end of the wait what there is.
func TestR53_TimersFireAtTheirMoment(t *testing.T) {
	const timeout = time.Duration(policy.TimeoutDefault) * time.Microsecond
	inBubble(t, func(t *testing.T, w *workshop) {
		start := time.Now()
		r := w.Propose("researcher", "sop.submit", procedure("publish", 8_000, `sum document.summarize {}`))
		if run := runOf(t, r); run.State != "running" || time.Since(start) != 8*time.Second {
			t.Errorf("told %s after %s", run.State, time.Since(start))
		}
		id := runOf(t, r).RunID
		time.Sleep(timeout - time.Since(start) - time.Millisecond)
		if run := w.run(id); run.State != projection.Running {
			t.Errorf("before its timeout %+v", run)
		}
		time.Sleep(100 * time.Millisecond)
		if run := w.run(id); run.State != projection.InDoubt || run.Reason != string(reason.EffectTimeout) || w.calls() != 1 {
			t.Errorf("just after its timeout %+v, %d calls", run, w.calls())
		}
	})
}

func TestR53_ARunLastsADay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		w.Apply(timeouts("timeout: 1h"))
		var steps []string
		for i := range 30 {
			steps = append(steps, fmt.Sprintf(`s%d document.summarize {}`, i))
		}
		id := runOf(t, w.Propose("researcher", "sop.submit", procedure("long", 0, steps...))).RunID
		start := time.Now()
		for time.Since(start) < (events.RunDurationMax-1800)*time.Second {
			if run := w.run(id); run.State != projection.Running {
				t.Fatalf("after %s %+v", time.Since(start), run)
			}
			e := w.next()
			time.Sleep(59 * time.Minute)
			w.hello()
			w.done(e.OperationID, `1`)
		}
		time.Sleep(events.RunDurationMax*time.Second - time.Since(start) - time.Millisecond)
		if run := w.run(id); run.State != projection.Running {
			t.Errorf("before its day is over %+v", run)
		}
		time.Sleep(100 * time.Millisecond)
		if run := w.run(id); run.State != projection.InDoubt || w.calls() != 25 { // an effect is under way
			t.Errorf("after its day %s by %s, %d calls", run.State, run.Reason, w.calls())
		}
	})
}

// What is answered is signed within a tenth of a second, without another event.
func TestACheckpointFollowsWithinATenthOfASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		time.Sleep(time.Second)
		r := w.Propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`)
		if signed := string(w.Checkpoint()); strings.Contains(signed, fmt.Sprintf("\n%d\n", r.Seq)) {
			t.Error("signed before it was answered")
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if signed := string(w.Checkpoint()); !strings.Contains(signed, fmt.Sprintf("\n%d\n", w.Durable())) || w.Durable() < r.Seq {
			t.Errorf("durable %d, signed %q", w.Durable(), signed)
		}
	})
}

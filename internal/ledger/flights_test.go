package ledger_test

import (
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// R66: a tree has at most 16 effects of one action under way. Its other runs
// wait, in order, and another tree's effect is not behind them.
func TestR66_ATreesEffectsDoNotFillTheHandlers(t *testing.T) {
	w := newWorkshop(t)
	w.Apply("kind: Agent\nid: other\ncapabilities: [document.summarize]\npublic_key: " + replaytest.Key("other") + "\n")
	var runs []string
	submit := func(agent string) {
		r := w.Propose(agent, "sop.submit", procedure(fmt.Sprint("p", len(runs)), 0, `sum document.summarize {}`))
		expect(t, r, reason.SOPAdmitted)
		runs = append(runs, runOf(t, r).RunID)
	}
	for range 40 {
		submit("researcher")
	}
	submit("other")
	first := map[string]int{}
	for range 17 {
		first[w.next().Agent]++
	}
	if first["researcher"] != 16 || first["other"] != 1 {
		t.Errorf("under way at once: %v", first)
	}
	if n := w.calls(); n != 17 {
		t.Errorf("%d dispatched", n)
	}
	for i, id := range runs[:40] {
		w.done(projection.EffectID(id, "sum"), `1`)
		w.await(id, projection.Finished)
		if i < 24 {
			if e := w.next(); e.RunID != runs[i+16] {
				t.Errorf("after the end of %d goes %s, not %s", i, e.RunID, runs[i+16])
			}
		}
	}
	w.done(projection.EffectID(runs[40], "sum"), `1`)
	w.await(runs[40], projection.Finished)
	if n := w.calls(); n != 41 {
		t.Errorf("%d dispatched for 41 runs", n)
	}
	w.Stop()
}

// What has timed out is under way no more, nor is what waited for it held.
func TestR66_ADoubtedEffectMakesRoom(t *testing.T) {
	w := newWorkshop(t)
	w.Apply(timeouts("timeout: 300ms"))
	for i := range 20 {
		expect(t, w.Propose("researcher", "sop.submit", procedure(fmt.Sprint("p", i), 0, `sum document.summarize {}`)), reason.SOPAdmitted)
	}
	for range 20 { // the last four once the first are in doubt
		w.next()
	}
	w.Stop()
}

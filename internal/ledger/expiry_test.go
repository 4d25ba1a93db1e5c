package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

func writeTTL(namespace, key string, seconds int) string {
	return fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":%q,"key":%q,"value":1,"ttl_seconds":%d}`, namespace, key, seconds)
}

// expiries lists what the durable log says is gone, as key@revision.
func expiries(t testing.TB, l *ledger.Ledger) (list []string) {
	t.Helper()
	must(t, l.Events(1, l.Durable(), func(_ uint64, b []byte) error {
		e, err := events.Parse(b)
		if gone, ok := e.Body.(*events.MemoryExpired); ok {
			list = append(list, fmt.Sprintf("%s@%d", gone.Key, gone.Revision))
		}
		return err
	}))
	return list
}

// R31: a record's end is said once, at its moment, though nobody asks; more of
// them than one batch takes are said by the next ones.
func TestR31_TheEndIsSaidOnceAndAtItsMoment(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		const many = 600
		for i := range many {
			expect(t, w.Propose("researcher", "memory.write", writeTTL("notes", fmt.Sprintf("k%d", i), 60)), reason.OwnerWrite)
		}
		expect(t, w.Propose("researcher", "memory.write", writeTTL("notes", "later", 3600)), reason.OwnerWrite)
		time.Sleep(time.Minute - 200*time.Millisecond)
		if got := expiries(t, w.Ledger); len(got) != 0 {
			t.Fatalf("before their time: %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		seen := map[string]bool{}
		for _, e := range expiries(t, w.Ledger) {
			if seen[e] {
				t.Errorf("%s twice", e)
			}
			seen[e] = true
		}
		if len(seen) != many || !seen["k7@2"] {
			t.Errorf("%d of %d are said to be gone", len(seen), many)
		}
		expect(t, w.Propose("researcher", "memory.read", readBody("notes.k1")), reason.RecordUnavailable)
		expect(t, w.Propose("researcher", "memory.read", readBody("notes.later")), reason.VisibleFrom)
		r := w.Propose("researcher", "memory.write", write("k1", "2", 0, "again"))
		if expect(t, r, reason.OwnerWrite); r.Record.Revision != 3 {
			t.Errorf("written again as %+v", r.Record)
		}
	})
}

// R31: a write in the place of a record whose end is not yet said says it first;
// its retry, before and after a restart, tells the same record.
func TestR31_AWriteOverAGoneRecord(t *testing.T) {
	o, c := clocked(t)
	s := replaytest.Start(t, o)
	s.Family()
	expect(t, s.Propose("researcher", "memory.write", writeTTL("notes", "a", 60)), reason.OwnerWrite)
	c.pass(time.Minute)
	again := write("a", "2", 0, "again")
	first := s.Propose("researcher", "memory.write", again) // before any tick, or after it: the same
	expect(t, first, reason.OwnerWrite)
	if first.Record == nil || first.Record.Revision != 3 || string(first.Record.Value) != "2" {
		t.Errorf("written again: %s", first.Text)
	}
	if r := s.Propose("researcher", "memory.write", again); r.Seq != first.Seq || r.Record == nil || r.Record.Revision != 3 || len(r.Record.Value) != 0 {
		t.Errorf("its retry: %s", r.Text)
	}
	s.Stop()
	s = replaytest.Start(t, o)
	if r := s.Propose("researcher", "memory.write", again); r.Seq != first.Seq || r.Record == nil || r.Record.Revision != 3 {
		t.Errorf("its retry after a restart: %s", r.Text)
	}
	if got := expiries(t, s.Ledger); len(got) != 1 || got[0] != "a@2" {
		t.Errorf("said to be gone: %v", got)
	}
	s.Stop()
}

// R31: what a run writes as task state is gone with the run, however it ends,
// and by events; until then it is there, and what has an end of its own keeps it.
func TestR31_ARunsRecordsGoWithIt(t *testing.T) {
	o, _ := newMem(t)
	w := openWorkshop(t, o)
	w.Family()
	w.Apply(toolsDocument + replaytest.Key("tools") + "\n")
	w.hello()
	n := 0
	begin := func() (id, effect string) {
		n++
		steps := []string{`task memory.write {"owner_agent_id":"researcher","namespace":"tasks","key":"at","value":1}`, `sum document.summarize {}`}
		if n == 1 {
			steps = append([]string{`own memory.write {"owner_agent_id":"researcher","namespace":"tasks","key":"own","value":1,"ttl_seconds":900}`,
				`note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"kept","value":1}`}, steps...)
		}
		r := w.Propose("researcher", "sop.submit", procedure("s", 0, steps...))
		expect(t, r, reason.SOPAdmitted)
		if got := revision(t, w.Ledger, "researcher", "tasks", "at"); got != uint64(2*n-1) {
			t.Errorf("during run %d the record is at %d", n, got)
		}
		return runOf(t, r).RunID, w.next().OperationID
	}
	end := map[string]func(id, effect string){
		"finished": func(_, effect string) { w.done(effect, `1`) },
		"failed": func(_, effect string) {
			w.report("tools", fmt.Sprintf(`{"operation_id":%q,"ok":false}`, effect))
		},
		"cancelled": func(id, effect string) {
			expect(t, w.Propose("researcher", "run.cancel", fmt.Sprintf(`{"run_id":%q}`, id)), reason.RunCancelAccepted)
			if revision(t, w.Ledger, "researcher", "tasks", "at") == 0 {
				t.Error("gone while the run is open")
			}
			w.done(effect, `1`)
		},
		"resolved": func(id, _ string) {
			w.Stop()
			w = openWorkshop(t, o)
			w.hello()
			if revision(t, w.Ledger, "researcher", "tasks", "at") == 0 {
				t.Error("gone while the run is in doubt")
			}
			expect(t, w.Control(ledger.AdminID, "run.resolve", fmt.Sprintf(`{"run_id":%q,"step_id":"sum","outcome":"not_done"}`, id)), reason.ControlDone)
		},
	}
	for name, ends := range end {
		id, effect := begin()
		ends(id, effect)
		if got := revision(t, w.Ledger, "researcher", "tasks", "at"); got != 0 {
			t.Errorf("after a run that was %s the record is at %d", name, got)
		}
		if got := expiries(t, w.Ledger); len(got) != n || got[n-1] != fmt.Sprintf("at@%d", 2*n) {
			t.Errorf("after a run that was %s: %v", name, got)
		}
	}
	for namespace, key := range map[string]string{"tasks": "own", "notes": "kept"} {
		if revision(t, w.Ledger, "researcher", namespace, key) != 1 {
			t.Errorf("%s.%s is gone", namespace, key)
		}
	}
	expect(t, w.Propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"tasks","key":"outside","value":1}`), reason.ValueNotAllowed)
	w.Stop()
}

// R31, R75: killed after a record's time has come and before that is said, a
// ledger says it once it is opened again, once.
func TestR31_KilledBetweenTheMomentAndItsEvent(t *testing.T) {
	o, sys := newMem(t)
	c := newClock()
	o.Clock = c.clock()
	c.pass(365 * 24 * time.Hour) // newMem's ledger began by the machine's clock
	s := replaytest.Start(t, o)
	s.Family()
	expect(t, s.Propose("researcher", "memory.write", writeTTL("notes", "a", 60)), reason.OwnerWrite)
	for i, snapshot := range []bool{false, true} {
		if snapshot { // what was written down knows of the record
			s.Stop()
			s = replaytest.Start(t, o)
		}
		crashed := o
		left := sys.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 2))})
		left.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
		crashed.Store.FS = left
		later := newClock()
		later.pass(365*24*time.Hour + 2*time.Minute)
		crashed.Clock = later.clock()
		crashed.Anchor = filepath.Join(t.TempDir(), "anchor")
		signed, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
		must(t, err)
		must(t, os.WriteFile(crashed.Anchor, signed, 0o600))
		for range 2 {
			again := replaytest.Start(t, crashed)
			expect(t, again.Propose("researcher", "memory.read", readBody("notes.a")), reason.RecordUnavailable)
			for deadline := time.Now().Add(10 * time.Second); len(expiries(t, again.Ledger)) == 0 && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
			if got := expiries(t, again.Ledger); len(got) != 1 || got[0] != "a@2" {
				t.Errorf("crash %d: said to be gone: %v", i, got)
			}
			again.Stop()
		}
	}
	s.Stop()
}

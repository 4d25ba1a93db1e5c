package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// The simulation found it: what somebody was denied because of who it is, revoked
// or no agent, is judged again also where the request is erased.
func TestR82_ErasedRequestsOfWhoMayNotAsk(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	expect(t, s.Propose("researcher", "memory.write", write("a", `1`, 0, "")), reason.OwnerWrite)
	expect(t, s.Control(ledger.AdminID, "agent.revoke", `{"agent_id":"researcher"}`), reason.ControlDone)
	submit := replaytest.SOP("s-1", `{"step_id":"one","action":"artifact.save"}`)
	var seqs []uint64
	for _, who := range []string{"researcher", ledger.AdminID, "nobody"} {
		for operation, body := range map[string]string{"memory.write": write("b", `1`, 0, ""), "sop.submit": submit, "memory.read": readBody("notes.a")} {
			r := s.Propose(who, operation, body)
			if r.Allowed {
				t.Fatalf("%s: %s", who, r.Text)
			}
			seqs = append(seqs, r.Seq)
		}
	}
	for _, seq := range seqs {
		r := s.Control(ledger.AdminID, "payload.erase", eraseSeqs(seq))
		if r.Reason != string(reason.ControlDone) && r.Reason != string(reason.NotFound) { // nothing may be kept of a stranger's
			t.Fatal(r.Text)
		}
	}
	s.Stop()
	if report := replaytest.CheckLedger(t, o); len(report.Erased) < 6 {
		t.Errorf("judged again: %v", report.Erased)
	}
}

// The simulation found it: an admin's memory.load is sent again after all of the
// record's owner is erased. It is the same operation, as far as anyone can tell;
// that of another owner is compared as ever.
func TestR83_ARetriedLoadOfAnErasedOwner(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	load := func(owner, key, id string) replaytest.Reply {
		return s.Control(ledger.AdminID, "memory.load", fmt.Sprintf(`{"owner_agent_id":%q,"namespace":"notes","key":%q,"value":"loaded","operation_id":%q}`, owner, key, id))
	}
	first, other := load("researcher", "a", "l1"), load("report_manager", "a", "l2")
	expect(t, first, reason.ControlDone)
	expect(t, other, reason.ControlDone)
	expect(t, s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"subject_request"}`), reason.ControlDone)
	if again := load("researcher", "a", "l1"); again.Seq != first.Seq || strings.Contains(again.Text, "loaded") {
		t.Errorf("sent again: %s, first %s", again.Text, first.Text)
	}
	if again := load("report_manager", "a", "l2"); again.Seq != other.Seq {
		t.Errorf("of who is not erased: %s", again.Text)
	}
	expect(t, load("researcher", "b", "l2"), reason.OperationIDConflict)
	s.Stop()
	s = replaytest.Start(t, o)
	if again := load("researcher", "a", "l1"); again.Seq != first.Seq {
		t.Errorf("sent again after an opening: %s", again.Text)
	}
	expect(t, load("researcher", "b", "l2"), reason.OperationIDConflict)
	s.Stop()
}

// The simulation found it: a request of somebody whom the ledger does not know, as
// one whose registration was lost in a crash, is nobody's to be held. It can be
// erased, and the ledger goes on.
func TestR83_AHoldOnAStrangersRequest(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	r := s.Propose("stranger", "memory.write", `{"owner_agent_id":"stranger","namespace":"notes","key":"a","value":1}`)
	expect(t, r, reason.UnknownAgent)
	before := s.Durable()
	expect(t, s.Control(ledger.AdminID, "hold.place", fmt.Sprintf(`{"seq":%d}`, r.Seq)), reason.NotFound)
	if s.Durable() != before+1 {
		t.Error("a refused hold leaves more than its decision")
	}
	expect(t, s.Control(ledger.AdminID, "hold.lift", fmt.Sprintf(`{"seq":%d}`, r.Seq)), reason.NotFound)
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(r.Seq)), reason.ControlDone)
	s.Stop()
	replaytest.CheckLedger(t, o)
}

// As many erasures as are carried out behind are judged, and not one more: it is
// refused before anything of it is in the log, and nobody else waits.
func TestR83_TooManyErasuresAreRefusedUnjudged(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	w := s.Propose("researcher", "memory.write", write("a", `1`, 0, ""))
	expect(t, w, reason.OwnerWrite)
	erase := fmt.Sprintf(`{"seqs":[%d],"basis":"mistake","operation_id":"e1"}`, w.Seq)
	s.SetErasing(64)
	before := s.Durable()
	refused := s.Control(ledger.AdminID, "payload.erase", erase)
	if refused.Reason != string(reason.Overloaded) && !strings.Contains(refused.Text, "overloaded") || refused.Seq != 0 || s.Durable() != before {
		t.Fatalf("refused: %s, %d events more", refused.Text, s.Durable()-before)
	}
	if revision(t, s.Ledger, "researcher", "notes", "a") != 1 {
		t.Error("the record is gone")
	}
	expect(t, s.Control(ledger.AdminID, "payload.erase", strings.Replace(erase, `"e1"`, `"e0","dry_run":true`, 1)), reason.ControlDone)
	expect(t, s.Control(ledger.AdminID, "clock.accept", `{}`), reason.ControlDone)
	s.SetErasing(0)
	done := s.Control(ledger.AdminID, "payload.erase", erase)
	expect(t, done, reason.ControlDone)
	s.SetErasing(64)
	if again := s.Control(ledger.AdminID, "payload.erase", erase); again.Seq != done.Seq {
		t.Errorf("sent again: %s", again.Text)
	}
	s.SetErasing(0)
	s.Stop()
	replaytest.CheckLedger(t, o)
}

// A run that has read a value which is erased while it goes on tells it to nobody
// any more, neither who waits for it nor who asks later.
func TestR83_ARunThatHasReadWhatIsErased(t *testing.T) {
	w := newWorkshop(t)
	kept := w.Propose("report_manager", "memory.write", `{"owner_agent_id":"report_manager","namespace":"project","key":"fact","value":"about her","visibility":"descendants"}`)
	expect(t, kept, reason.OwnerWrite)
	waiting := w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("publish", 20_000,
		`look memory.read {"namespace":"project","key":"fact"}`, `save artifact.save {}`)))
	save := w.next()
	expect(t, w.Propose("researcher", "memory.read", readBody("project.fact")), reason.VisibleFrom) // it is in memory, too
	expect(t, w.Control(ledger.AdminID, "payload.erase", eraseSeqs(kept.Seq)), reason.ControlDone)
	w.done(save.OperationID, `"saved"`)
	r := <-waiting
	expect(t, r, reason.SOPAdmitted)
	if strings.Contains(r.Text, "about her") || !strings.Contains(r.Text, `"saved"`) || !strings.Contains(r.Text, `"step_id":"look","action":"memory.read","state":"finished","omitted":true`) {
		t.Errorf("the answer: %s", r.Text)
	}
	run := look(t, w.Ledger, func(s *projection.State) *projection.Run { return ledger.RunCopy(s.RunAt(r.Seq)) })
	if text := string(w.RunAnswer(run, true, "", 0)); strings.Contains(text, "about her") {
		t.Errorf("asked later: %s", text)
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	replaytest.CheckLedger(t, w.Options)
}

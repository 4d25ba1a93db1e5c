package ledger_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func eraseSeqs(seqs ...uint64) string {
	return fmt.Sprintf(`{"seqs":%s,"basis":"subject_request"}`, strings.ReplaceAll(fmt.Sprint(seqs), " ", ","))
}

// rawPayloads reads the records beside events as they are stored.
func rawPayloads(t testing.TB, o ledger.Options, seqs ...uint64) (list [][]byte) {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	defer st.Close()
	for _, seq := range seqs {
		b, ok, err := st.Payload(seq)
		if err != nil || !ok {
			t.Fatalf("payload %d: %v %v", seq, ok, err)
		}
		list = append(list, b)
	}
	return list
}

// onDisk reports in which files of the directory some bytes of b stand: any 24
// of them in a row that no other payload could have.
func onDisk(t testing.TB, dir string, b []byte) (files []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		for at := len(b) % 24; at+24 <= len(b); at += 24 {
			if at > 20 && bytes.Contains(text, b[at:at+24]) {
				files = append(files, filepath.Base(path))
				break
			}
		}
		return err
	}))
	return files
}

// The value, its salt and its ciphertext are in no file of the directory once the
// answer is there, wherever they were: in a table, in the write-ahead log, or in
// one that was kept to be written over. The record is gone, and the log verifies.
func TestR83_ErasedBytesAreNowhereOnDisk(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	noise := func(n int) {
		for i := range n {
			expect(t, s.Propose("researcher", "memory.write", write(fmt.Sprint("noise", s.Durable(), "-", i), `"`+strings.Repeat("x", 4000)+`"`, 0, "")), reason.OwnerWrite)
		}
	}
	first := s.Propose("researcher", "memory.write", write("a", `"`+strings.Repeat("one", 300)+`"`, 0, "w1"))
	expect(t, first, reason.OwnerWrite)
	noise(40)
	second := s.Propose("researcher", "memory.write", write("a", `"`+strings.Repeat("two", 300)+`"`, 1, "w2"))
	expect(t, second, reason.OwnerWrite)
	raw := rawPayloads(t, o, first.Seq, second.Seq)
	for i, b := range raw {
		if len(onDisk(t, o.Dir, b)) == 0 {
			t.Fatalf("payload %d is not found where it is", i)
		}
	}
	r := s.Control(ledger.AdminID, "payload.erase", eraseSeqs(first.Seq, second.Seq))
	expect(t, r, reason.ControlDone)
	for i, b := range raw {
		if files := onDisk(t, o.Dir, b); len(files) > 0 {
			t.Errorf("payload %d is still in %v", i, files)
		}
	}
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.a")), reason.RecordUnavailable)
	if again := s.Propose("researcher", "memory.write", write("a", `"`+strings.Repeat("one", 300)+`"`, 0, "w1")); again.Seq != first.Seq || again.Record == nil || again.Record.Value != nil {
		t.Errorf("the retry of an erased request: %s", again.Text)
	}
	next := s.Propose("researcher", "memory.write", write("a", `"three"`, 0, "w3"))
	expect(t, next, reason.OwnerWrite)
	if next.Record.Revision != 4 { // two writes, the erasure
		t.Errorf("the revision does not count on: %s", next.Text)
	}
	s.Stop()
	s = replaytest.Start(t, o)
	s.Stop()
}

func TestR83_WhatIsErasedAndWhatNever(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	admin := func(verb, body string) replaytest.Reply { return s.Control(ledger.AdminID, verb, body) }
	kept := s.Propose("researcher", "memory.write", write("a", `1`, 0, ""))
	expect(t, kept, reason.OwnerWrite)
	read := s.Propose("researcher", "memory.read", readBody("notes.a"))
	expect(t, read, reason.VisibleFrom)
	never := 0
	must(t, s.Events(1, s.Durable(), func(seq uint64, b []byte) error {
		e, err := events.Parse(b)
		if _, mayErase := e.Sealed(); err == nil && !e.Payload.IsZero() && !mayErase {
			never++
			expect(t, admin("payload.erase", eraseSeqs(seq)), reason.NotErasable)
		}
		return err
	}))
	if never < 3 {
		t.Errorf("only %d payloads that are never erased were tried", never)
	}
	expect(t, admin("payload.erase", eraseSeqs(1)), reason.NotFound)
	expect(t, admin("payload.erase", eraseSeqs(1<<40)), reason.NotFound)
	expect(t, admin("payload.erase", `{"agent_id":"nobody","basis":"mistake"}`), reason.NotFound)
	expect(t, admin("payload.erase", `{"seqs":[3],"basis":"whim"}`), reason.MalformedRequest)
	expect(t, s.Control("researcher", "payload.erase", eraseSeqs(kept.Seq)), reason.NotPermittedForRole)
	expect(t, admin("hold.place", fmt.Sprintf(`{"seq":%d}`, read.Seq)), reason.ControlDone)
	expect(t, admin("payload.erase", eraseSeqs(read.Seq)), reason.PayloadHeld)
	expect(t, admin("payload.erase", `{"agent_id":"researcher","basis":"mistake"}`), reason.PayloadHeld)
	expect(t, admin("hold.lift", fmt.Sprintf(`{"seq":%d}`, read.Seq)), reason.ControlDone)
	expect(t, admin("hold.lift", fmt.Sprintf(`{"seq":%d}`, read.Seq)), reason.NotFound)
	expect(t, admin("hold.place", `{"owner_agent_id":"researcher","namespace":"notes","key":"a"}`), reason.ControlDone)
	before := s.Durable()
	expect(t, admin("payload.erase", eraseSeqs(kept.Seq)), reason.PayloadHeld)
	if s.Durable() != before+1 || revision(t, s.Ledger, "researcher", "notes", "a") != 1 {
		t.Error("a refused erasure leaves more than its decision")
	}
	expect(t, admin("payload.erase", eraseSeqs(read.Seq)), reason.ControlDone) // it is no value
	expect(t, admin("hold.lift", `{"owner_agent_id":"researcher","namespace":"notes","key":"a"}`), reason.ControlDone)
	dry := admin("payload.erase", fmt.Sprintf(`{"seqs":[%d],"basis":"mistake","dry_run":true}`, kept.Seq))
	expect(t, dry, reason.ControlDone)
	if !strings.Contains(dry.Text, `"records":["researcher:notes.a"]`) || revision(t, s.Ledger, "researcher", "notes", "a") != 1 {
		t.Errorf("dry run: %s", dry.Text)
	}
	expect(t, admin("payload.erase", eraseSeqs(kept.Seq)), reason.ControlDone)
	at := s.Durable()
	expect(t, admin("payload.erase", eraseSeqs(kept.Seq)), reason.ControlDone)
	if s.Durable() != at+1 {
		t.Error("what is erased is erased once more")
	}
	s.Stop()
}

// All of an agent's is erased: every payload but registrations, and its data key;
// what it does later is sealed under another one.
func TestR83_AWholeAgent(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	expect(t, s.Propose("researcher", "memory.write", write("a", `"secret one"`, 0, "")), reason.OwnerWrite)
	last := s.Propose("researcher", "memory.write", write("b", `"secret two"`, 0, ""))
	expect(t, last, reason.OwnerWrite)
	raw := rawPayloads(t, o, last.Seq)[0]
	r := s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"subject_request"}`)
	expect(t, r, reason.ControlDone)
	if !strings.Contains(r.Text, `"records":["researcher:notes.a","researcher:notes.b"]`) {
		t.Errorf("reply: %s", r.Text)
	}
	if files := onDisk(t, o.Dir, raw); len(files) > 0 {
		t.Errorf("still in %v", files)
	}
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.b")), reason.RecordUnavailable)
	expect(t, s.Propose("researcher", "memory.write", write("c", `"later"`, 0, "")), reason.OwnerWrite)
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.c")), reason.VisibleFrom)
	names := dataKeys(t, o)
	if strings.Contains(names+" ", "researcher ") || !strings.Contains(names, "researcher#") {
		t.Errorf("data keys: %s", names)
	}
	s.Stop()
	s = replaytest.Start(t, o)
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.c")), reason.VisibleFrom)
	expect(t, s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"subject_request"}`), reason.ControlDone)
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.c")), reason.RecordUnavailable)
	s.Stop()
}

func dataKeys(t testing.TB, o ledger.Options) string {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	defer st.Close()
	names, err := st.DataKeys()
	must(t, err)
	return strings.Join(names, " ")
}

// What a crash between the event and the deletion leaves is done at the next
// opening.
func TestR83_ACrashBeforeTheDeletion(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	w := s.Propose("researcher", "memory.write", write("a", `"`+strings.Repeat("one", 300)+`"`, 0, ""))
	expect(t, w, reason.OwnerWrite)
	raw := rawPayloads(t, o, w.Seq)[0]
	key, ok, err := storedKey(t, o, "researcher")
	if must(t, err); !ok {
		t.Fatal("no data key")
	}
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(w.Seq)), reason.ControlDone)
	expect(t, s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"court_order"}`), reason.ControlDone)
	s.Stop()
	overwritePayload(t, o, w.Seq, raw) // as if neither had been done
	overwrite(t, o, []byte("kresearcher"), key)
	db, err := pebble.Open(filepath.Join(o.Dir, "db"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	must(t, err)
	must(t, db.Delete([]byte("mpurged"), pebble.Sync))
	must(t, db.Close())
	if report, err := replaytest.Check(o); err == nil || !strings.Contains(err.Error(), "not erased") {
		t.Fatalf("the auditor: %v %v", report, err)
	}
	s = replaytest.Start(t, o)
	if files := onDisk(t, o.Dir, raw); len(files) > 0 {
		t.Errorf("still in %v", files)
	}
	if names := dataKeys(t, o); strings.Contains(names+" ", "researcher ") {
		t.Errorf("data keys: %s", names)
	}
	s.Stop()
}

func storedKey(t testing.TB, o ledger.Options, name string) ([]byte, bool, error) {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	defer st.Close()
	return st.DataKey(name)
}

// The first erasure is authorised, and passes; a payload blanked by hand does not,
// and is told from it.
func TestR83_BlankedByHand(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	one := s.Propose("researcher", "memory.write", write("a", `1`, 0, ""))
	two := s.Propose("researcher", "memory.write", write("b", `2`, 0, ""))
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(one.Seq)), reason.ControlDone)
	s.Stop()
	db, err := pebble.Open(filepath.Join(o.Dir, "db"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	must(t, err)
	must(t, db.Delete(binary.BigEndian.AppendUint64([]byte{'p'}, two.Seq), pebble.Sync))
	must(t, db.Close())
	_, err = replaytest.Check(o)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("seq %d", two.Seq)) || strings.Contains(err.Error(), fmt.Sprintf("seq %d:", one.Seq)) {
		t.Fatalf("the auditor: %v", err)
	}
}

// What a run that is still open needs stays: its procedure, and the results so far.
// Afterwards both go, the run says so, and judging it again finds nothing.
func TestR83_ARunInFlight(t *testing.T) {
	w := newWorkshop(t)
	admin := func(body string) replaytest.Reply { return w.Control(ledger.AdminID, "payload.erase", body) }
	answer := w.Send(replaytest.Proposal(wire.Propose, "researcher", "sop.submit", procedure("publish", 0,
		`sum document.summarize {"text":"about her"}`, `note memory.write {"owner_agent_id":"researcher","namespace":"notes","key":"a","value":"about her"}`, `save artifact.save {}`)))
	r := <-answer
	expect(t, r, reason.SOPAdmitted)
	expect(t, admin(eraseSeqs(r.Seq)), reason.PayloadInUse)
	expect(t, admin(`{"agent_id":"researcher","basis":"mistake"}`), reason.PayloadInUse)
	w.done(w.next().OperationID, `"a result"`)
	save := w.next()
	steps := look(t, w.Ledger, func(s *projection.State) []projection.RunStep { return s.RunAt(r.Seq).Steps })
	expect(t, admin(eraseSeqs(steps[0].Ended)), reason.PayloadInUse)
	w.done(save.OperationID, `"another"`)
	w.await(runOf(t, r).RunID, projection.Finished)
	note := look(t, w.Ledger, func(s *projection.State) uint64 { return s.Record("researcher", "notes", "a").Written })
	raw := rawPayloads(t, w.Options, r.Seq, steps[0].Ended, note)
	erased := admin(eraseSeqs(r.Seq, steps[0].Ended, note))
	expect(t, erased, reason.ControlDone)
	if !strings.Contains(erased.Text, "researcher:notes.a") {
		t.Errorf("the record that the run wrote is not gone: %s", erased.Text)
	}
	for i, b := range raw {
		if files := onDisk(t, w.Options.Dir, b); len(files) > 0 {
			t.Errorf("payload %d is still in %v", i, files)
		}
	}
	run := look(t, w.Ledger, func(s *projection.State) *projection.Run { return ledger.RunCopy(s.RunAt(r.Seq)) })
	if text := string(w.RunAnswer(run, true, "", 0)); !strings.Contains(text, `"step_id":"sum","action":"document.summarize","state":"finished","erased":true`) || !strings.Contains(text, `"another"`) {
		t.Errorf("run: %s", text)
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	report := replaytest.CheckLedger(t, w.Options)
	if len(report.Erased) != 1 || report.Unjudged() != 4 || report.ErasedEvents == 0 || report.UnverifiedEvents != 0 {
		t.Errorf("judged again: %v, %d unjudged, %d events", report.Erased, report.Unjudged(), report.ErasedEvents)
	}
}

// A secret goes with its grant, and a record just rewritten keeps its new value
// where an old one is erased.
func TestR83_SecretsAndRewrittenRecords(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	secret := s.Propose("report_manager", "memory.write", `{"owner_agent_id":"report_manager","namespace":"credentials","key":"fresh","value":"s3cret"}`)
	expect(t, secret, reason.OwnerWrite)
	expect(t, s.Propose("report_manager", "grant.give", `{"namespace":"credentials","key":"fresh","to":"researcher","expires_seconds":600}`), reason.GrantGiven)
	read := `{"owner_agent_id":"report_manager","namespace":"credentials","key":"fresh"}`
	expect(t, s.Propose("researcher", "memory.read", read), reason.GrantedBy)
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(secret.Seq)), reason.ControlDone)
	expect(t, s.Propose("researcher", "memory.read", read), reason.RecordUnavailable)
	expect(t, s.Propose("report_manager", "grant.revoke", `{"namespace":"credentials","key":"fresh","to":"researcher"}`), reason.NotFound)

	old := s.Propose("researcher", "memory.write", write("a", `"old"`, 0, ""))
	expect(t, s.Propose("researcher", "memory.write", write("a", `"new"`, 1, "")), reason.OwnerWrite)
	r := s.Control(ledger.AdminID, "payload.erase", eraseSeqs(old.Seq))
	expect(t, r, reason.ControlDone)
	if got := s.Propose("researcher", "memory.read", readBody("notes.a")); strings.Contains(r.Text, "records") || got.Record == nil || string(got.Record.Value) != `"new"` {
		t.Errorf("the new value: %s after %s", got.Text, r.Text)
	}
	s.Stop()
}

// What is younger than the policy has it kept is not erased, to the day; of an
// agent's the older goes and the younger stays, under the next data key.
func TestR83_TheRetentionFloor(t *testing.T) {
	o, c := clocked(t)
	s := start(t, o)
	document := strings.Replace(replaytest.PolicyDocument("kept"), "children: 20", "children: 20, retention_days: 2", 1)
	expect(t, s.Control(ledger.AdminID, "apply", replaytest.ApplyRequest(document)), reason.ControlDone)
	first := s.Propose("researcher", "memory.write", write("a", `"first"`, 0, ""))
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(first.Seq)), reason.RetentionFloor)
	expect(t, s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"retention_end"}`), reason.RetentionFloor)
	c.pass(2 * 24 * time.Hour) // from noon to noon: the day itself and one whole day lie between
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(first.Seq)), reason.RetentionFloor)
	c.pass(12*time.Hour - time.Second)
	expect(t, s.Control(ledger.AdminID, "payload.erase", eraseSeqs(first.Seq)), reason.RetentionFloor)
	later := s.Propose("researcher", "memory.write", write("b", `"later"`, 0, ""))
	expect(t, later, reason.OwnerWrite)
	c.pass(2 * time.Second)
	s.Stop()
	s = replaytest.Start(t, o) // what was written down knows the days
	r := s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"retention_end"}`)
	expect(t, r, reason.ControlDone)
	if !strings.Contains(r.Text, `"records":["researcher:notes.a"]`) {
		t.Errorf("erased: %s", r.Text)
	}
	if got := s.Propose("researcher", "memory.read", readBody("notes.b")); got.Record == nil || string(got.Record.Value) != `"later"` {
		t.Errorf("what is younger: %s", got.Text)
	}
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.a")), reason.RecordUnavailable)
	if names := dataKeys(t, o); strings.Contains(names+" ", "researcher ") {
		t.Errorf("data keys: %s", names)
	}
	s.Stop()
}

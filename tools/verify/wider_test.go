package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// wider are the attacks that take more than an export to try, or to find.
var wider = []struct {
	name string
	run  func(t *testing.T)
}{
	{"08 two views, compared", splitView},
	{"20 tree and chain disagree behind the last checkpoint", treeAndChain},
	{"22 an entry dated ahead, or all of them back", datedAhead},
	{"25 a payload missing, and no event says why", payloadMissing},
	{"26 a payload erased under an event", payloadErased},
	{"27 a payload said to be erased, and still there", notErased},
	{"28 a projection edited", projected},
	{"29 a projection that says it stands further on", stale},
	{"30 a wrong decision, signed", judgedOnly("allowed-instead-of-denied", "denied-instead-of-allowed", "wrong-reason")},
	{"31 a decision under a policy that is not in the log", judgedOnly("policy-not-in-the-log", "wrong-policy-digest", "shadowed-mandatory-record")},
	{"32 a write to an ancestor's record, and a read through a hidden one", judgedOnly("foreign-write", "read-through-a-hidden-ancestor")},
	{"33 a step before the whole procedure was judged", judgedOnly("step-before-the-whole", "step-decision-after-effect", "missing-step-decision")},
	{"34 done, and not in the log", unlogged},
	{"35 allowed, with other arguments", judgedOnly("other-arguments")},
	{"36 a stream that is not the log", otherStream},
	{"37 a subject other than the connection's", judgedOnly("another-identity")},
	{"39 a batch cut off", tornTail},
}

// put writes a file of its own and returns its path.
func put(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// finds runs verify, which must fail a check and name seq, and returns its
// report.
func finds(t testing.TB, check string, seq uint64, args ...string) audit.Report {
	t.Helper()
	exit, r := verifyJSON(t, args...)
	if exit != audit.ExitFail || r.Verdict != "failed" || !failed(r, check) {
		t.Fatalf("%v: exit %d, %s, %+v", args, exit, r.Verdict, r)
	}
	for _, f := range r.Faults {
		if f.Check == check && f.Seq == seq && f.Expected != "" && f.Found != "" {
			return r
		}
	}
	t.Fatalf("%v: %s names no seq %d: %+v", args, check, seq, r.Faults)
	return r
}

// says runs verify, which must end with an exit code and say something.
func says(t testing.TB, exit int, text string, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := run(args, nil, &out, &errs); got != exit || !strings.Contains(out.String()+errs.String(), text) {
		t.Errorf("%v: exit %d, want %d; want %q in\n%s%s", args, got, exit, text, out.String(), errs.String())
	}
}

// judgedOnly: histories of the forged corpus that no hash tells from a true one.
// Without --replay the report says that decisions were not judged; with it it
// names the event.
func judgedOnly(kinds ...string) func(t *testing.T) {
	return func(t *testing.T) {
		b, err := os.ReadFile(filepath.Join(corpus, "manifest.json"))
		if err != nil {
			t.Fatal(err)
		}
		var manifest struct {
			VKey   string
			Forged []forged
		}
		if err := json.Unmarshal(b, &manifest); err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			i := slices.IndexFunc(manifest.Forged, func(f forged) bool { return f.Kind == kind })
			if i < 0 {
				t.Fatalf("no %s in the corpus", kind)
			}
			dir := filepath.Join(corpus, kind)
			says(t, audit.ExitPass, "decisions were not judged again", "--export", dir, "--vkey", manifest.VKey)
			finds(t, "replay", manifest.Forged[i].Seq, "--export", dir, "--vkey", manifest.VKey, "--replay")
		}
	}
}

// splitView: two auditors were shown logs of one name, key and size.
func splitView(t *testing.T) {
	one := logtest.Sample(testOrigin, 1, 14)
	other := one.Clone()
	other.Edit(6, func(e *events.Event) { e.Agent = "other" })
	other.Relink(7)
	a, b := put(t, "a.note", one.Note(14)), put(t, "b.note", other.Note(14))
	for _, dir := range []string{export(t, one.Files()), export(t, other.Files())} { // each by itself is without a fault
		if exit, r := verifyJSON(t, "--export", dir, "--vkey", one.VKey); exit != audit.ExitPass || r.Completeness.Status != audit.NotRun {
			t.Errorf("one view alone: exit %d: %+v", exit, r)
		}
	}
	r := finds(t, "compare", 0, "--compare", a, b, "--vkey", one.VKey)
	if len(r.Notes) != 2 || r.Notes[0] != string(one.Note(14)) || r.Notes[1] != string(other.Note(14)) {
		t.Errorf("the notes are not shown: %q", r.Notes)
	}
	says(t, audit.ExitFail, "two views of one log", "--compare", a, b, "--vkey", one.VKey)
	says(t, audit.ExitFail, "  | "+testOrigin, "--compare", a, b)
	says(t, audit.ExitPass, "one root at size 14", "--compare", a, a, "--vkey", one.VKey)
	says(t, audit.ExitImpossible, "who signed the checkpoints is not known", "--compare", a, a)
	early, lateOther := put(t, "early", one.Note(9)), put(t, "late", other.Note(14))
	says(t, audit.ExitImpossible, "takes a consistency proof", "--compare", early, a, "--vkey", one.VKey)
	whole := export(t, one.Files())
	says(t, audit.ExitPass, "2 checkpoints are states of this log", "--compare", early, a, "--vkey", one.VKey, "--export", whole)
	finds(t, "compare", 0, "--compare", early, lateOther, "--vkey", one.VKey, "--export", whole)
	finds(t, "compare", 13, "--export", export(t, cutTo(one, 12).Files()), "--compare", early, a)
	says(t, audit.ExitImpossible, "not one signed by the pinned key", "--compare", a, put(t, "forged", logtest.New(testOrigin, 9).Sign(one.Text(14))), "--vkey", one.VKey)
	says(t, audit.ExitImpossible, "takes two files", "--compare", a)
	says(t, audit.ExitImpossible, "of two logs", "--compare", a, put(t, "other", logtest.Sample("ledgerd.example/other/1", 1, 9).Note(9)))
}

func cutTo(l *logtest.Log, n int) *logtest.Log {
	c := l.Clone()
	c.Entries = c.Entries[:n]
	return c
}

// datedAhead: dates in order are good by themselves; a checkpoint whose time of
// arrival is known brackets them.
func datedAhead(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	kept := put(t, "kept", l.Note(9))
	seen := time.UnixMicro(int64(logtest.Start)).Add(9 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	ahead, back := l.Clone(), l.Clone()
	for i := 11; i < 14; i++ {
		ahead.Edit(i, func(e *events.Event) { e.Time += events.Time(time.Hour.Microseconds()) })
	}
	ahead.Relink(11)
	says(t, audit.ExitPass, "dates were not held against another clock", "--export", export(t, ahead.Files()))
	says(t, audit.ExitPass, "14 dates held against 1 moments", "--export", export(t, l.Files()), "--checkpoint", kept, "--seen", seen)
	finds(t, "clock", 12, "--export", export(t, ahead.Files()), "--checkpoint", put(t, "later", ahead.Note(14)), "--seen", seen)
	for i := range back.Entries { // the whole log an hour early, and the auditor's checkpoint with it
		back.Edit(i, func(e *events.Event) { e.Time -= events.Time(time.Hour.Microseconds()) })
	}
	back.Relink(0)
	finds(t, "clock", 10, "--export", export(t, back.Files()), "--checkpoint", put(t, "back", back.Note(9)), "--seen", seen)
	says(t, audit.ExitImpossible, "--seen goes with --checkpoint", "--export", export(t, l.Files()), "--seen", seen)
	says(t, audit.ExitImpossible, "--seen:", "--export", export(t, l.Files()), "--checkpoint", kept, "--seen", "noon")
}

// otherStream: what the stream brought is held against the log.
func otherStream(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	whole := export(t, l.Files())
	lines := func(entries ...[]byte) string {
		return put(t, "mirror.jsonl", append(bytes.Join(entries, []byte("\n")), '\n'))
	}
	same := lines(l.Entries...)
	says(t, audit.ExitPass, "14 events from 1 on are those of the log", "--export", whole, "--mirror", same)
	says(t, audit.ExitPass, "the mirror ends at event 9; 10–14 were not compared", "--export", whole, "--mirror", lines(l.Entries[:9]...))
	says(t, audit.ExitPass, "the mirror begins at event 5", "--export", whole, "--mirror", lines(l.Entries[4:]...))
	other := l.Clone()
	other.Edit(6, func(e *events.Event) { e.Agent = "other" })
	finds(t, "mirror", 7, "--export", whole, "--mirror", lines(other.Entries...))
	if exit, r := verifyJSON(t, "--export", whole); exit != audit.ExitPass || failed(r, "mirror") {
		t.Errorf("without the mirror: exit %d", exit)
	}
	finds(t, "mirror", 8, "--export", whole, "--mirror", lines(append(l.Clone().Entries[:7:7], l.Entries[8:]...)...)) // one left out
	finds(t, "mirror", 15, "--export", whole, "--mirror", lines(append(l.Clone().Entries, l.Entries[13])...))
	finds(t, "mirror", 11, "--export", export(t, cutTo(l, 10).Files()), "--mirror", same) // the log was cut, the stream was not
	finds(t, "mirror", 3, "--export", whole, "--mirror", lines(l.Entries[0], l.Entries[1], []byte("no event"), l.Entries[3]))
	says(t, audit.ExitImpossible, "holds no event", "--export", whole, "--mirror", put(t, "empty", nil))
	says(t, audit.ExitImpossible, "a line of over", "--export", whole, "--mirror", put(t, "long", append(bytes.Join(l.Entries[:3], []byte("\n")), bytes.Repeat([]byte("x"), 1<<20)...)))
	says(t, audit.ExitImpossible, "could not check", "--export", whole, "--mirror", same+"x")
	in, err := os.Open(same)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out bytes.Buffer
	if exit := run([]string{"--export", whole, "--mirror", "-"}, in, &out, &out); exit != audit.ExitPass {
		t.Errorf("from the standard input: exit %d: %s", exit, out.String())
	}
}

// plant writes the state that lies beside a log anew, bent, with the ledger's
// own keys.
func plant(t *testing.T, dir string, bend func(*projection.State)) {
	t.Helper()
	st, err := store.OpenReadOnly(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	state, err := ledger.StoredState(dir, st)
	if err != nil || state == nil {
		t.Fatal(state, err)
	}
	bend(state)
	hexKey, err := os.ReadFile(filepath.Join(dir, "keys", "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	sealKey, err := hex.DecodeString(strings.TrimSpace(string(hexKey)))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, sealKey)
	fmt.Fprintf(mac, "ledgerd/state/v1\n%s", st.Origin())
	b, err := state.EncodeSnapshot(mac.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(dir, "state", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "state", fmt.Sprintf("0-%d", state.Seq)), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// projected: the state that the ledger serves from is edited, the log is not.
// The report names the projection, the key, both values and the last event that
// had to do with it.
func projected(t *testing.T) {
	dir := realLedger(t)
	plant(t, dir, func(*projection.State) {})
	says(t, audit.ExitPass, "the stored state of seq", "--data", dir, "--replay")
	for name, c := range map[string]struct {
		bend  func(*projection.State)
		where string
		found string
	}{
		"a record": {func(s *projection.State) {
			s.Record("report_manager", "policy", "external_upload").Mandatory = []byte("true")
		}, `projection memory, key "report_manager:policy.external_upload", last touched by event `, "value true"},
		"a capability": {func(s *projection.State) {
			a := s.Agent("formatter")
			a.Declared = policy.NewSet(append([]string{"external.upload"}, a.Declared...)...)
		}, `projection agents, key "formatter", last touched by event `, "external.upload"},
		"a revocation undone": {func(s *projection.State) { s.Agent("researcher").Revoked = false }, `projection agents, key "researcher", last touched by event `, "revoked false"},
		"an admin":            {func(s *projection.State) { s.Principal("clerk").Role = "admin" }, `projection principals, key "clerk"`, "role admin"},
	} {
		plant(t, dir, c.bend)
		if exit, r := verifyJSON(t, "--data", dir); exit != audit.ExitPass || r.Semantics.Status != audit.NotRun {
			t.Errorf("%s, by its hashes: exit %d", name, exit)
		}
		exit, r := verifyJSON(t, "--data", dir, "--replay")
		if exit != audit.ExitFail || !failed(r, "replay") {
			t.Fatalf("%s: exit %d: %+v", name, exit, r)
		}
		if !slices.ContainsFunc(r.Faults, func(f audit.Fault) bool {
			return strings.HasPrefix(f.Where, c.where) && !strings.Contains(f.Where, "no event") && strings.Contains(f.Found, c.found) && !strings.Contains(f.Expected, c.found)
		}) {
			t.Errorf("%s is not named: %+v", name, r.Faults)
		}
		plant(t, dir, func(s *projection.State) { undo(s) })
	}
}

// undo is what the scenario really ends in.
func undo(s *projection.State) {
	s.Record("report_manager", "policy", "external_upload").Mandatory = []byte("false")
	a := s.Agent("formatter")
	a.Declared = slices.DeleteFunc(slices.Clone(a.Declared), func(c string) bool { return c == "external.upload" })
	s.Agent("researcher").Revoked = true
	s.Principal("clerk").Role = "registrar"
}

// stale: the state says that it stands further on than what is folded into it.
func stale(t *testing.T) {
	dir := realLedger(t)
	seq := uint64(0)
	plant(t, dir, func(s *projection.State) {
		seq = s.Seq
		s.Record("researcher", "notes", "a").Revision-- // as before the last write
	})
	says(t, audit.ExitPass, "decisions were not judged again", "--data", dir)
	r := finds(t, "replay", seq, "--data", dir, "--replay")
	if !strings.Contains(fmt.Sprint(r.Faults), "researcher:notes.a") {
		t.Errorf("%+v", r.Faults)
	}
	plant(t, dir, func(s *projection.State) { s.Record("researcher", "notes", "a").Revision++; s.Seq-- }) // and one whose place is another
	finds(t, "replay", 0, "--data", dir, "--replay")
}

// build writes a data directory that holds a log as it is, faults and all, with
// its payloads, and leaves as its tree's leaves; the anchor covers the first
// anchored events.
func build(t *testing.T, l *logtest.Log, leaves []events.Hash, anchored int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	half := len(l.Entries) / 2
	batches := []store.Batch{{First: 1, Events: l.Entries[:half], Leaves: leaves[:half]}, {First: uint64(half) + 1, Events: l.Entries[half:], Leaves: leaves[half:]}}
	for seq := uint64(1); seq <= uint64(len(l.Entries)); seq++ {
		if p, ok := l.Payloads[seq]; ok {
			b := &batches[min(1, (seq-1)/uint64(half))]
			b.Payloads = append(b.Payloads, store.Payload{Seq: seq, Record: append(append([]byte{0}, p.Salt[:]...), p.Bytes...)})
		}
	}
	err := store.Init(dir, store.Options{}, l.Origin, func(tmp string, st *store.Store) error {
		for _, b := range batches {
			commit, err := st.Append(b)
			if err == nil {
				err = commit.Wait()
			}
			if err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(tmp, "anchor"), l.Note(anchored), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// treeAndChain: behind the last checkpoint, which signs neither, the tree holds
// another entry than the chain goes through.
func treeAndChain(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	for seq := uint64(7); seq <= 14; seq += 2 { // the sample's sealed payloads are none
		delete(l.Payloads, seq)
	}
	says(t, audit.ExitPass, "events 11–14 came after it and are signed by nobody yet", "--data", build(t, l, l.Leaves(), 10))
	other := l.Clone()
	other.Edit(11, func(e *events.Event) { e.Agent = "other" })
	leaves := l.Leaves()
	leaves[11] = events.LeafHash(other.Entries[11])
	finds(t, "tree", 12, "--data", build(t, l, leaves, 10)) // the tree has the other one
	finds(t, "chain", 13, "--data", build(t, other, other.Leaves(), 10))
}

// erased is the log of a payload that was erased under an event, the payload
// still there; seq is of the payload, under of the event.
func erased(t *testing.T) (l *logtest.Log, seq, under uint64) {
	t.Helper()
	h := newHistory(t)
	h.family("")
	h.does("action_allowed", "worker", "action.authorize", save)
	seq = h.log.Durable()
	h.admin("payload.erase", fmt.Sprintf(`{"seqs":[%d],"basis":"subject_request"}`, seq))
	under = h.log.Durable()
	h.stop()
	return h.sealed(), seq, under
}

// payloadMissing: a payload is gone and no event says why.
func payloadMissing(t *testing.T) {
	l, seq, _ := erased(t)
	l.Entries = l.Entries[:seq]
	says(t, audit.ExitPass, "consistent", "--data", build(t, l, l.Leaves(), int(seq)))
	delete(l.Payloads, seq)
	r := finds(t, "payloads", seq, "--data", build(t, l, l.Leaves(), int(seq)))
	if !strings.Contains(r.Faults[0].Found, "no event says that it was erased") {
		t.Errorf("%+v", r.Faults[0])
	}
}

// payloadErased: it is gone, and an event says so: no failure, and counted.
func payloadErased(t *testing.T) {
	l, seq, under := erased(t)
	delete(l.Payloads, seq)
	dir := build(t, l, l.Leaves(), len(l.Entries))
	says(t, audit.ExitPass, fmt.Sprintf("erased under #%d", under), "--data", dir)
	if _, r := verifyJSON(t, "--data", dir); r.Erased != 1 || len(r.Erasures) != 1 || r.Erasures[0].Under != under {
		t.Errorf("%+v", r.Erasures)
	}
}

// notErased: an event says that it is gone, and it is not.
func notErased(t *testing.T) {
	l, seq, under := erased(t)
	r := finds(t, "payloads", seq, "--data", build(t, l, l.Leaves(), len(l.Entries)))
	if !strings.Contains(r.Faults[0].Expected, fmt.Sprintf("erased under #%d", under)) || !strings.Contains(r.Faults[0].Found, "not erased") {
		t.Errorf("%+v", r.Faults[0])
	}
}

// An erasure that a writer carries out while its log is looked at is no fault of
// the log: whether it is done by now is asked, once.
func TestR83_AnErasureUnderWayIsNoFault(t *testing.T) {
	l, seq, under := erased(t)
	for _, done := range []bool{true, false} {
		asked := 0
		s := l.Source()
		s.CarriedOut = func(which uint64) bool {
			asked++
			return done && which == under
		}
		r, err := audit.VerifyLog(s, audit.Options{VKey: l.VKey})
		if err != nil || asked != 1 {
			t.Fatalf("%v, asked %d times", err, asked)
		}
		if found := len(r.Faults) > 0 && r.Faults[0].Seq == seq; found == done || (r.Exit == audit.ExitPass) != done {
			t.Errorf("done %v: exit %d, %v", done, r.Exit, r.Faults)
		}
	}
}

// tornTail: the write-ahead log ends in the midst of a batch. What is behind the
// anchor may be missing, since nobody was answered from it; what is before it may
// not, and is named.
func tornTail(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 400)
	cut := func(anchored int) string {
		dir := build(t, l, l.Leaves(), anchored)
		logs, err := filepath.Glob(filepath.Join(dir, "db", "*.log"))
		if err != nil || len(logs) == 0 {
			t.Fatal(logs, err)
		}
		for _, path := range logs {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b[:len(b)-100], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	exit, r := verifyJSON(t, "--data", cut(200))
	if exit != audit.ExitPass || r.Events != 200 {
		t.Errorf("cut behind the anchor: exit %d, %d events: %+v", exit, r.Events, r.Faults)
	}
	finds(t, "checkpoint", 201, "--data", cut(300))
}

// unlogged: an executor holds an event that it acted on and that the log does not
// have: what it kept is a mirror of one line, or a receipt.
func unlogged(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	left := l.Clone()
	left.Edit(6, func(e *events.Event) { e.Body.(*events.Decision).OperationID = "another" })
	left.Relink(7)
	dir := export(t, left.Files())
	says(t, audit.ExitPass, "cannot be ruled out", "--export", dir, "--vkey", l.VKey)
	finds(t, "mirror", 7, "--export", dir, "--mirror", put(t, "acted", append(slices.Clone(l.Entries[6]), '\n')))
	e, err := events.Parse(l.Entries[6])
	if err != nil {
		t.Fatal(err)
	}
	receipt := audit.Receipt{Origin: testOrigin, Seq: 7, EventID: events.UUIDString(e.ID), Hash: events.LeafHash(l.Entries[6])}
	finds(t, "receipt", 7, "--export", dir, "--vkey", l.VKey, "--receipt", put(t, "receipt", receipt.Encode()))
}

// TestCase1_APayloadByteFlipped: case kind 1, row 1. One byte of a payload in the
// store, every hash as it was.
func TestCase1_APayloadByteFlipped(t *testing.T) {
	l, seq, _ := erased(t)
	l.Entries = l.Entries[:seq]
	p := l.Payloads[seq]
	p.Bytes = bytes.Clone(p.Bytes)
	p.Bytes[3] ^= 1
	l.Payloads[seq] = p
	finds(t, "payloads", seq, "--data", build(t, l, l.Leaves(), int(seq)))
}

// TestCase2_ErasedAndBlanked: case kind 2, row 19. What was erased by the
// supported command passes; what was blanked by hand beside it does not.
func TestCase2_ErasedAndBlanked(t *testing.T) {
	l, seq, under := erased(t)
	delete(l.Payloads, seq)
	says(t, audit.ExitPass, fmt.Sprintf("1 erased under #%d (subject_request)", under), "--data", build(t, l, l.Leaves(), len(l.Entries)))
	for other := range l.Payloads {
		if other == seq {
			continue
		}
		blanked := l.Clone()
		p := blanked.Payloads[other]
		p.Bytes = nil
		blanked.Payloads[other] = p
		finds(t, "payloads", other, "--data", build(t, blanked, blanked.Leaves(), len(l.Entries)))
		delete(blanked.Payloads, other)
		finds(t, "payloads", other, "--data", build(t, blanked, blanked.Leaves(), len(l.Entries)))
	}
}

// TestCase5_EveryFileCut: case kind 5, row 55. An export whose files are cut short,
// emptied, huge or no files ends in an error, at once and in little memory.
func TestCase5_EveryFileCut(t *testing.T) {
	files := logtest.Sample(testOrigin, 1, 300).Files()
	for name := range files {
		for what, change := range map[string]func(path string) error{
			"emptied":     func(path string) error { return os.Truncate(path, 0) },
			"cut":         func(path string) error { return os.Truncate(path, int64(len(files[name])/2)) },
			"huge":        func(path string) error { return os.Truncate(path, 1<<40) },
			"a directory": func(path string) error { _ = os.Remove(path); return os.Mkdir(path, 0o755) },
			"a pipe":      func(path string) error { _ = os.Remove(path); return syscall.Mkfifo(path, 0o600) },
			"a loop":      func(path string) error { _ = os.Remove(path); return os.Symlink(filepath.Base(path), path) },
		} {
			dir := export(t, files)
			if err := change(filepath.Join(dir, filepath.FromSlash(name))); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if exit := run([]string{"--export", dir, "--replay"}, nil, &out, &out); exit == audit.ExitPass || strings.Contains(out.String(), "\nconsistent") {
				t.Errorf("%s %s: exit %d\n%s", name, what, exit, out.String())
			}
		}
	}
}

// TestCase6_AnOlderRelease: case kind 6. A format or rules of another release are
// named, and are no pass.
func TestCase6_AnOlderRelease(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 8)
	newer := l.Clone()
	newer.Edit(1, func(e *events.Event) { e.Body = &events.LedgerOpened{Rules: ledger.Rules + 1, Build: "later"} })
	newer.Relink(2)
	says(t, audit.ExitImpossible, "this program knows rules up to", "--export", export(t, newer.Files()), "--replay")
	l.Edit(0, func(e *events.Event) { e.Body.(*events.LedgerCreated).Format = "ledgerd/2" })
	l.Relink(1)
	finds(t, "origin", 1, "--export", export(t, l.Files()))
}

// TestCase20_WhatALogSaysIsShownHarmlessly: case kind 20, row 183. Texts of a
// log that anyone could write to are shown without what draws on a terminal, in
// a fault, a derivation and a note.
func TestCase20_WhatALogSaysIsShownHarmlessly(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	const evil = "a\x1b[2J\u202e\u009b"
	l.Edit(10, func(e *events.Event) { e.Body.(*events.Decision).OperationID = evil })
	l.Add("researcher", 0, func() events.Body { e, _ := events.Parse(l.Entries[10]); return e.Body }())
	l.Relink(11)
	evidence := filepath.Join(t.TempDir(), "evidence")
	var out bytes.Buffer
	exit := run([]string{"--export", export(t, l.Files()), "--replay", "--evidence", evidence}, nil, &out, &out)
	readme, err := os.ReadFile(filepath.Join(evidence, "README.txt"))
	if exit != audit.ExitFail || err != nil || strings.ContainsAny(out.String()+string(readme), "\x1b\u202e\u009b") {
		t.Errorf("exit %d, %v: %q", exit, err, out.String())
	}
}

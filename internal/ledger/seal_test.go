package ledger_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// A value that must stay sealed, whatever is done with it.
const canary = "canary-7e1f0c-do-not-leak"

func leaks(b string) bool {
	raw := []byte(canary)
	for _, form := range []string{
		canary, hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)),
		base64.StdEncoding.EncodeToString(raw)[:20], base64.RawURLEncoding.EncodeToString(raw)[:20],
	} {
		if strings.Contains(b, form) {
			return true
		}
	}
	return false
}

// The canary goes in by every way there is: written, loaded, applied, as
// arguments, in a refused and in a malformed request; it is read and asked for
// again. It stands in no file of the directory, while running nor after, in no
// event and in no line of the log.
func TestR3_ASealedValueIsNowhereInPlain(t *testing.T) {
	o := newDir(t)
	var lines bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := start(t, o)
	secret := `{"text":"` + canary + `"}`
	expect(t, s.Propose("researcher", "memory.write", write("a", secret, 0, "w1")), reason.OwnerWrite)
	expect(t, s.Propose("researcher", "memory.write", write("a", secret, 0, "w2")), reason.ExpectedRevisionRequired)
	if r := s.Propose("researcher", "memory.write", write("a", secret, 0, "w1")); leaks(r.Text) {
		t.Errorf("a retry tells the value: %s", r.Text)
	}
	expect(t, s.Control(ledger.AdminID, "memory.load", fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"notes","key":"b","value":%s,"visibility":"private"}`, secret)), reason.ControlDone)
	s.Apply(
		replaytest.PolicyDocument("lab-1"),
		replaytest.MemoryDocument("researcher", "notes", "c", canary, "private"),
		replaytest.MemoryDocument("researcher", "credentials", "token", canary, "descendants"),
	)
	for _, body := range []string{
		`{"action":"artifact.save","arguments":` + secret + `}`,
		`{"action":"external.upload","arguments":` + secret + `}`,
		`{"action":"artifact.save","arguments":` + secret + `,"more":1}`,
	} {
		s.Propose("researcher", "action.authorize", body)
	}
	s.Propose("researcher", "sop.validate", replaytest.SOP("s", `{"step_id":"one","action":"artifact.save","arguments":`+secret+`}`))
	s.Propose("researcher", "sop.validate", replaytest.SOP("s", `{"step_id":"one","action":"memory.write","arguments":{"value":`+secret+`}}`))
	for _, key := range []string{"a", "b", "c"} {
		if r := s.Propose("researcher", "memory.read", readBody("notes."+key)); r.Record == nil || !leaks(string(r.Record.Value)) {
			t.Fatalf("the owner cannot read it: %s", r.Text)
		}
	}
	for _, who := range []string{"formatter", "report_manager"} {
		for _, name := range []string{"notes.a", "notes.b", "notes.c", "credentials.token"} {
			if r := s.Propose(who, "memory.read", readBody(name)); r.Allowed || leaks(r.Text) {
				t.Errorf("%s reads %s: %s", who, name, r.Text)
			}
		}
	}
	scan := func(when string) {
		t.Helper()
		n := 0
		for path, b := range contents(t, o.Dir) {
			n += len(b)
			if leaks(b) {
				t.Errorf("%s, the canary stands in %s", when, path)
			}
		}
		if n < 10_000 {
			t.Errorf("%s, only %d bytes were searched", when, n)
		}
	}
	scan("while running")
	must(t, s.Events(1, s.Durable(), func(seq uint64, b []byte) error {
		if leaks(string(b)) {
			t.Errorf("event %d tells the canary", seq)
		}
		return nil
	}))
	s.Stop()
	scan("after the end")
	s = replaytest.Start(t, o)
	scan("after a restart")
	s.Stop()
	if leaks(lines.String()) {
		t.Error("the canary stands in the log lines")
	}
	if !leaks(write("a", secret, 0, "")) || !leaks(hex.EncodeToString([]byte("x"+canary))) {
		t.Error("the search finds nothing")
	}
}

// R73: what an event says of a value is a commitment that nobody can guess.
func TestR73_EqualValuesHaveDifferentCommitments(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	seen := map[events.Hash]string{}
	note := func(what string, h events.Hash) {
		t.Helper()
		if h.IsZero() {
			t.Fatalf("%s commits to nothing", what)
		}
		if other := seen[h]; other != "" {
			t.Errorf("%s and %s have one commitment", what, other)
		}
		seen[h] = what
	}
	for i := 1; i <= 3; i++ {
		for _, p := range []struct{ operation, body string }{
			{"memory.write", write("same", `"same"`, i-1, "")},
			{"action.authorize", `{"action":"artifact.save","arguments":{"path":"same"}}`},
			{"action.authorize", `{"action":"external.upload","arguments":{"path":"same"}}`},
		} {
			r := s.Propose("researcher", p.operation, p.body)
			e := logged(t, s.Ledger, r)
			d := e.Body.(*events.Decision)
			note(fmt.Sprintf("event %d", e.Seq), e.Payload)
			if p.operation == "action.authorize" {
				note(fmt.Sprintf("the arguments of event %d", e.Seq), d.ArgumentsDigest)
			}
		}
	}
	same := `{"step_id":"%d","action":"artifact.save","arguments":{"path":"same"}}`
	r := s.Propose("researcher", "sop.validate", replaytest.SOP("steps", fmt.Sprintf(same, 1), fmt.Sprintf(same, 2)))
	for seq := r.Seq - 2; seq < r.Seq; seq++ {
		b, err := s.Event(seq)
		must(t, err)
		e, err := events.Parse(b)
		must(t, err)
		note(fmt.Sprintf("the step's arguments in event %d", seq), e.Body.(*events.Decision).ArgumentsDigest)
	}
	// a commitment is a hash over the salt, so that the value alone gives nothing
	if h := events.PayloadCommitment([events.SaltLen]byte{}, []byte(`"same"`)); seen[h] != "" {
		t.Error("a commitment without salt")
	}
	s.Stop()
}

// payloads opens the log of a stopped ledger and its payloads.
func payloads(t *testing.T, o ledger.Options) (*store.Store, *ledger.Payloads) {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	t.Cleanup(func() { st.Close() })
	p, err := ledger.OpenPayloads(o.Dir, st)
	must(t, err)
	return st, p
}

func TestAPayloadOpensOnlyWhereItWasSealed(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	first := s.Propose("researcher", "memory.write", write("a", `"one"`, 0, ""))
	second := s.Propose("researcher", "memory.write", write("b", `"two"`, 0, ""))
	other := s.Propose("formatter", "memory.read", readBody("project.client_region"))
	s.Stop()

	st, p := payloads(t, o)
	for _, r := range []replaytest.Reply{first, second, other} {
		salt, b, ok, err := p.Open(r.Seq)
		if err != nil || !ok {
			t.Fatalf("payload %d: %v %v", r.Seq, ok, err)
		}
		raw, err := st.Event(r.Seq)
		must(t, err)
		e, err := events.Parse(raw)
		must(t, err)
		if events.PayloadCommitment(salt, b) != e.Payload {
			t.Errorf("payload %d is not what event %d commits to", r.Seq, r.Seq)
		}
	}
	if _, _, ok, err := p.Open(1); ok || err != nil {
		t.Errorf("event 1 has a payload: %v %v", ok, err)
	}
	record, _, err := st.Payload(first.Seq)
	must(t, err)
	open := ledger.Opener(p)
	if _, b, err := open(first.Seq, record); err != nil || !bytes.Contains(b, []byte(`"one"`)) {
		t.Fatalf("the record where it lay: %s %v", b, err)
	}
	if _, _, err := open(second.Seq, record); !errors.Is(err, ledger.ErrPayload) {
		t.Errorf("moved to %d it opens: %v", second.Seq, err)
	}
	for i := range record { // the first bytes say kind and owner, the rest is sealed
		bad := bytes.Clone(record)
		bad[i] ^= 1
		_, b, err := open(first.Seq, bad)
		if err == nil && (i > 0 || bytes.Contains(b, []byte(`"one"`))) {
			t.Errorf("with byte %d changed it opens", i)
		}
	}
	for n := range record {
		if _, _, err := open(first.Seq, record[:n]); !errors.Is(err, ledger.ErrPayload) {
			t.Errorf("%d bytes of it open: %v", n, err)
		}
	}
	foreign := bytes.Clone(record) // under another owner's name it is another key
	copy(foreign[2:], "formatte_r")
	if _, _, err := open(first.Seq, foreign); !errors.Is(err, ledger.ErrPayload) {
		t.Errorf("under another owner it opens: %v", err)
	}
}

// Without its data key a payload is an error, not an absence.
func TestAMissingDataKeyIsAnError(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	r := s.Propose("researcher", "memory.write", write("a", `"one"`, 0, ""))
	s.Stop()
	st, _ := payloads(t, o)
	record, _, err := st.Payload(r.Seq)
	must(t, err)
	for name, fetch := range map[string]func(string) ([]byte, bool, error){
		"missing": func(string) ([]byte, bool, error) { return nil, false, nil },
		"another": func(string) ([]byte, bool, error) { return st.DataKey("report_manager") },
		"cut":     func(owner string) ([]byte, bool, error) { b, ok, err := st.DataKey(owner); return b[:5], ok, err },
	} {
		open, err := ledger.OpenerWith(filepath.Join(o.Dir, "keys"), st.Origin(), fetch)
		must(t, err)
		if _, _, err := open(r.Seq, record); !errors.Is(err, ledger.ErrPayload) {
			t.Errorf("data key %s: %v", name, err)
		}
	}
	open, err := ledger.OpenerWith(filepath.Join(o.Dir, "keys"), st.Origin()+"x", st.DataKey)
	must(t, err)
	if _, _, err := open(r.Seq, record); err == nil {
		t.Error("it opens under another origin")
	}
}

// Someone who can write the database, but not seal, exchanges a payload: the
// ledger does not serve it, and judging again finds it.
func TestAnExchangedPayloadIsNotServed(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	r := s.Propose("researcher", "memory.write", write("a", `"mine"`, 0, "w1"))
	s.Stop()
	forged := append([]byte{0}, make([]byte, events.SaltLen)...)
	forged = append(forged, `{"key":"a","namespace":"notes","owner_agent_id":"researcher","value":"theirs"}`...)
	overwritePayload(t, o, r.Seq, forged)

	st, _ := payloads(t, o)
	src, err := replay.Stored(o.Dir, st)
	must(t, err)
	if report := replay.Run(src); report.Found != 1 || report.Findings[0].Seq != r.Seq {
		t.Errorf("report: %+v", report)
	}
	s = replaytest.Start(t, o)
	for range 2 {
		for _, p := range []*ledger.Proposal{
			replaytest.Proposal(wire.Propose, "researcher", "memory.read", readBody("notes.a")),
			proposeWrite("a", `"theirs"`, 0, "w1"),
		} {
			r := <-s.Send(p)
			expect(t, r, reason.NotKnownCommitted)
			if r.Seq != 0 || strings.Contains(r.Text, "theirs") || strings.Contains(r.Text, "mine") {
				t.Errorf("reply %s", r.Text)
			}
		}
	}
	servesOn(t, s, 4)
	if report := replay.Run(src); report.Found != 1 || report.Findings[0].Seq != r.Seq {
		t.Errorf("report: %+v", report)
	}
}

// servesOn checks that a ledger with damage below n answers says so, and goes
// on with all that does not rest on it.
func servesOn(t *testing.T, s *replaytest.Session, n uint64) {
	t.Helper()
	if got := s.Ledger.Stats().Damaged; got != n {
		t.Errorf("%d damaged answers counted, want %d", got, n)
	}
	said := ""
	for _, c := range s.Checks() {
		if c.Status == ledger.CheckFail {
			t.Errorf("not ready: %+v", c)
		}
		if c.Name == "payloads" && c.Status == ledger.CheckWarn {
			said = c.Detail
		}
	}
	if !strings.Contains(said, "answers failed") || !strings.Contains(said, "run verify") {
		t.Errorf("health says %q", said)
	}
	expect(t, s.Propose("report_manager", "memory.write", `{"owner_agent_id":"report_manager","namespace":"notes","key":"after","value":"fine"}`), reason.OwnerWrite)
	if r := s.Propose("report_manager", "memory.read", readBody("notes.after")); !strings.Contains(r.Text, `"value":"fine"`) {
		t.Errorf("reply %s", r.Text)
	}
	must(t, s.End())
}

// Where an owner's data key does not open, nothing new can be sealed for that
// owner: its proposals fail before anything of them is in state or log.
func TestADataKeyThatDoesNotOpenFailsItsOwnerAlone(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	expect(t, s.Propose("researcher", "memory.write", write("a", `"mine"`, 0, "")), reason.OwnerWrite)
	s.Stop()
	overwrite(t, o, append([]byte{'k'}, "researcher"...), make([]byte, 60))

	s = replaytest.Start(t, o)
	before := s.Durable()
	for _, p := range []*ledger.Proposal{
		proposeWrite("b", `"new"`, 0, "w2"),
		proposeWrite("b", `"new"`, 0, "w2"),
		replaytest.Proposal(wire.Propose, "researcher", "memory.read", readBody("notes.a")),
		replaytest.Proposal(wire.Propose, "researcher", "memory.delete", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","expected_revision":1}`),
	} {
		expect(t, <-s.Send(p), reason.NotKnownCommitted)
	}
	if s.Durable() != before {
		t.Errorf("the log grew from %d to %d", before, s.Durable())
	}
	if r := look(t, s.Ledger, func(st *projection.State) *projection.Record { return st.Live("researcher", "notes", "b", st.Time) }); r != nil {
		t.Errorf("a record is in the state: %+v", r)
	}
	servesOn(t, s, 4)
}

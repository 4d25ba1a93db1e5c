package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// The sync is held back: whatever has been judged, nobody hears of it, nothing
// of it can be read, no key is known by it, and no follower is told.
func TestR70_NothingLeavesBeforeTheSync(t *testing.T) {
	o := newDir(t)
	g := newGate()
	o.Store.FS = g.fs(vfs.Default)
	l, err := ledger.Open(o)
	must(t, err)
	var told atomic.Uint64
	l.Hooks.Durable = func(seq uint64) { told.Store(seq) }
	s := replaytest.Run(t, l, o)
	s.Family()
	before := l.Durable()

	g.shut()
	written := s.Send(proposeWrite("a", `"first"`, 0, "w1"))
	denied := s.Send(proposeWrite("b", `1`, 9, ""))
	child := s.Send(replaytest.Proposal(wire.Propose, "researcher", "agent.register",
		fmt.Sprintf(`{"agent_id":"helper","capabilities":[],"public_key":%q}`, replaytest.Key("helper"))))
	<-g.waiting
	judged, asked := make(chan uint64, 1), make(chan ledger.Answer, 1)
	l.Ask("admin", func(st *projection.State) func() []byte {
		judged <- st.Seq
		return func() []byte { return nil }
	}, func(a ledger.Answer) { asked <- a })
	if seq := <-judged; seq < before+5 { // two outcomes of two events and a denial
		t.Fatalf("the state stands at %d, want all judged after %d", seq, before)
	}
	_, known := l.Lookup(replaytest.Key("helper"))
	_, err = l.Event(before + 1)
	switch {
	case len(written)+len(denied)+len(child)+len(asked) > 0:
		t.Fatal("an answer has left before the sync")
	case l.Durable() != before || told.Load() > before:
		t.Fatalf("durable %d, told %d, was %d", l.Durable(), told.Load(), before)
	case known:
		t.Fatal("a key is known before its registration is durable")
	case !errors.Is(err, store.ErrNotFound):
		t.Fatalf("an event can be read before the sync: %v", err)
	}

	g.open()
	for _, answer := range []<-chan replaytest.Reply{written, denied, child} {
		logged(t, l, <-answer)
	}
	<-asked
	if _, known := l.Lookup(replaytest.Key("helper")); !known {
		t.Error("the registered key is not known")
	}
	s.Stop()
	if told.Load() < before+5 {
		t.Errorf("followers were told of %d", told.Load())
	}
}

func TestR70_EveryAnswerStandsInTheLogWhenItLeaves(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	const n = 300
	faults := make(chan string, n)
	for i := range n {
		code := s.Submit(proposeWrite(fmt.Sprintf("k%d", i%7), `1`, 0, ""), func(a ledger.Answer) {
			r := replaytest.ParseReply(a)
			if r.Seq == 0 || r.Seq > s.Durable() {
				faults <- fmt.Sprintf("answered %d, durable %d: %s", r.Seq, s.Durable(), r.Text)
				return
			}
			if b, err := s.Event(r.Seq); err != nil || events.LeafHash(b).String() != r.Hash {
				faults <- fmt.Sprintf("the receipt of %s is not that of event %s (%v)", r.Text, b, err)
				return
			}
			faults <- ""
		})
		if code != "" {
			t.Fatal(code)
		}
	}
	for range n {
		if f := <-faults; f != "" {
			t.Error(f)
		}
	}
	s.Stop()
}

func TestR72_ASecondWriterIsRefused(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	before := s.Durable()
	if _, err := ledger.Open(o); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a second opener: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(o.Dir, link))
	if _, err := ledger.Open(ledger.Options{Dir: link}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a second opener by another path: %v", err)
	}
	expect(t, s.Propose("researcher", "memory.write", write("a", `1`, 0, "")), reason.OwnerWrite)
	if s.Durable() != before+2 {
		t.Errorf("the log grew from %d to %d", before, s.Durable())
	}
	s.Stop()
}

func TestR51_ARetryGetsTheRecordedOutcomeAndWritesNothing(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	first := s.Propose("researcher", "memory.write", write("a", `"secret value"`, 0, "w1"))
	expect(t, first, reason.OwnerWrite)
	denied := s.Propose("researcher", "memory.write", write("a", `2`, 0, "w2"))
	expect(t, denied, reason.ExpectedRevisionRequired)
	sop := replaytest.SOP("good", `{"step_id":"one","action":"artifact.save"}`, `{"step_id":"two","action":"external.upload"}`)
	judged := s.Propose("researcher", "sop.validate", sop)
	expect(t, judged, reason.ActionNotInEffectiveCapabilities)
	again := s.Propose("researcher", "sop.validate", strings.Replace(sop, "op-good", "op-2", 1))

	check := func(s *replaytest.Session) {
		t.Helper()
		before := s.Durable()
		// other trace ids and order of members are the same content
		retry := s.Propose("researcher", "memory.write", `{"trace_id":"x","operation_id":"w1","value":"secret value","key":"a","namespace":"notes","owner_agent_id":"researcher"}`)
		if retry.Seq != first.Seq || retry.Hash != first.Hash || retry.EventID != first.EventID || retry.Reason != first.Reason {
			t.Errorf("retry %s, first %s", retry.Text, first.Text)
		}
		if retry.Record == nil || retry.Record.Revision != 1 || retry.Record.Value != nil || strings.Contains(retry.Text, "secret value") {
			t.Errorf("a retry's record: %s", retry.Text)
		}
		if r := s.Propose("researcher", "memory.write", write("a", `2`, 0, "w2")); r.Text != denied.Text {
			t.Errorf("retry %s, first %s", r.Text, denied.Text)
		}
		if r := s.Propose("researcher", "sop.validate", sop); r.Text != judged.Text {
			t.Errorf("retry %s, first %s", r.Text, judged.Text)
		}
		if r := s.Propose("researcher", "sop.validate", strings.Replace(sop, "op-good", "op-2", 1)); r.Text != again.Text {
			t.Errorf("retry %s, first %s", r.Text, again.Text)
		}
		if s.Durable() != before {
			t.Errorf("retries wrote %d events", s.Durable()-before)
		}
		other := s.Propose("researcher", "memory.write", write("a", `"other"`, 0, "w1"))
		expect(t, other, reason.OperationIDConflict)
		expect(t, s.Propose("researcher", "memory.delete", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","expected_revision":1,"operation_id":"w1"}`), reason.OperationIDConflict)
		if s.Durable() != before+2 {
			t.Errorf("two conflicts left %d events, want their denials", s.Durable()-before)
		}
		if got := revision(t, s.Ledger, "researcher", "notes", "a"); got != 1 {
			t.Errorf("revision %d", got)
		}
	}
	check(s)

	// another agent's same id is another operation
	other := s.Propose("report_manager", "memory.write", `{"owner_agent_id":"report_manager","namespace":"notes","key":"a","value":1,"operation_id":"w1"}`)
	expect(t, other, reason.OwnerWrite)
	if other.Seq == first.Seq {
		t.Error("an id of one agent answered another")
	}

	// reads are judged and logged anew, their id echoed
	body := `{"namespace":"notes","key":"a","operation_id":"w1"}`
	one, two := s.Propose("researcher", "memory.read", body), s.Propose("researcher", "memory.read", body)
	expect(t, one, reason.VisibleFrom)
	if two.Seq != one.Seq+1 || string(two.Record.Value) != `"secret value"` || !strings.Contains(two.Text, `"operation_id":"w1"`) {
		t.Errorf("reads: %s and %s", one.Text, two.Text)
	}

	for i := range 300 {
		expect(t, s.Propose("researcher", "action.authorize", fmt.Sprintf(`{"action":"artifact.save","operation_id":"many-%d"}`, i)), reason.ActionAllowed)
	}
	check(s)
	s.Stop()
	for range 2 { // the first opening has a snapshot, the second folds after it
		s = replaytest.Start(t, o)
		check(s)
		s.Stop()
	}

	// what has ended is checked before what was recorded
	s = replaytest.Start(t, o)
	expect(t, s.Control(ledger.AdminID, "agent.revoke", `{"agent_id":"researcher"}`), reason.ControlDone)
	expect(t, s.Propose("researcher", "memory.write", write("a", `"secret value"`, 0, "w1")), reason.AgentRevoked)
	s.Stop()
}

// All in one batch, before anything of it is durable.
func TestR51_RetriesInOneBatch(t *testing.T) {
	o := newDir(t)
	start(t, o).Stop()
	l, err := ledger.Open(o)
	must(t, err)
	s := &replaytest.Session{Ledger: l, T: t, Options: o}
	first, retry := s.Send(proposeWrite("a", `1`, 0, "w1")), s.Send(proposeWrite("a", `1`, 0, "w1"))
	conflict, last := s.Send(proposeWrite("a", `2`, 0, "w1")), s.Send(proposeWrite("a", `1`, 0, "w1"))
	before := l.Durable()
	s = replaytest.Run(t, l, o)
	one, two := <-first, <-retry
	expect(t, one, reason.OwnerWrite)
	expect(t, <-conflict, reason.OperationIDConflict)
	if three := <-last; two.Seq != one.Seq || three.Seq != one.Seq || two.Hash != one.Hash {
		t.Errorf("first %s, retries %s and %s", one.Text, two.Text, three.Text)
	}
	if l.Durable() != before+3 {
		t.Errorf("%d events, want the write, its effect and the conflict", l.Durable()-before)
	}
	s.Stop()
}

// A retry while the first is still syncing waits for it.
func TestR51_ARetryWaitsForTheFirst(t *testing.T) {
	o := newDir(t)
	g := newGate()
	o.Store.FS = g.fs(vfs.Default)
	s := start(t, o)
	g.shut()
	first := s.Send(proposeWrite("a", `1`, 0, "w1"))
	<-g.waiting
	retry := s.Send(proposeWrite("a", `1`, 0, "w1"))
	judged := make(chan struct{})
	s.Ask("admin", func(*projection.State) func() []byte { close(judged); return func() []byte { return nil } }, nil)
	<-judged
	s.Ask("admin", func(*projection.State) func() []byte { return func() []byte { return nil } }, nil)
	if len(first)+len(retry) > 0 {
		t.Fatal("answered before the sync")
	}
	g.open()
	one, two := <-first, <-retry
	expect(t, one, reason.OwnerWrite)
	if one.Seq != two.Seq {
		t.Errorf("first %s, retry %s", one.Text, two.Text)
	}
	s.Stop()
}

func TestR26_OfManyWritesOnOneRevisionOneWins(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	const writers, rounds = 16, 20
	expect(t, s.Propose("researcher", "memory.write", write("a", `0`, 0, "")), reason.OwnerWrite)
	for round := 1; round <= rounds; round++ {
		replies := make([]replaytest.Reply, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				replies[w] = s.Propose("researcher", "memory.write", write("a", fmt.Sprint(w), round, ""))
			})
		}
		wg.Wait()
		winner := -1
		for w, r := range replies {
			switch {
			case r.Allowed && winner >= 0:
				t.Fatalf("round %d: two winners", round)
			case r.Allowed:
				winner = w
			default:
				expect(t, r, reason.RevisionConflict)
			}
		}
		if winner < 0 {
			t.Fatalf("round %d: nobody won", round)
		}
		got := s.Propose("researcher", "memory.read", readBody("notes.a"))
		if got.Record == nil || got.Record.Revision != uint64(round)+1 || string(got.Record.Value) != fmt.Sprint(winner) {
			t.Fatalf("round %d, winner %d: %s", round, winner, got.Text)
		}
	}
	won := decisions(t, s.Ledger, func(d *events.Decision) bool { return d.Reason == string(reason.OwnerWrite) })
	lost := decisions(t, s.Ledger, func(d *events.Decision) bool { return d.Reason == string(reason.RevisionConflict) })
	if won != rounds+1 || lost != rounds*(writers-1) {
		t.Errorf("%d won and %d lost in the log", won, lost)
	}
	s.Stop()
}

func TestR26_OfManyFirstWritesOneWins(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	var won atomic.Int32
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			if s.Propose("researcher", "memory.write", write("new", fmt.Sprint(w), 0, "")).Allowed {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || revision(t, s.Ledger, "researcher", "notes", "new") != 1 {
		t.Errorf("%d won", won.Load())
	}
	s.Stop()
}

// Whatever was accepted is answered, once, and the log is closed at its anchor.
func TestStopAnswersWhatWasAccepted(t *testing.T) {
	for round := range 5 {
		o := newDir(t)
		o.QueueMax = 128
		s := start(t, o)
		var accepted, answered, decided atomic.Int64
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					code := s.Submit(proposeWrite(fmt.Sprintf("k%d-%d", w, i), `1`, 0, ""), func(a ledger.Answer) {
						answered.Add(1)
						if a.Reason == reason.OwnerWrite {
							decided.Add(1)
						}
					})
					switch code {
					case "":
						accepted.Add(1)
					case reason.NotKnownCommitted:
						return
					}
				}
			})
		}
		for answered.Load() < int64(round*50) {
			time.Sleep(time.Millisecond)
		}
		must(t, s.End())
		wg.Wait()
		if accepted.Load() != answered.Load() || decided.Load() != accepted.Load() {
			t.Fatalf("round %d: %d accepted, %d answered, %d decided", round, accepted.Load(), answered.Load(), decided.Load())
		}
		if code := s.Submit(proposeWrite("late", `1`, 0, ""), func(ledger.Answer) { t.Error("a late proposal was answered") }); code != reason.NotKnownCommitted {
			t.Errorf("after the end: %q", code)
		}
		if code := s.Ask("admin", func(*projection.State) func() []byte { return nil }, nil); code != reason.NotKnownCommitted {
			t.Errorf("a question after the end: %q", code)
		}
		<-s.Done()
		report := replaytest.CheckLedger(t, o)
		if size := anchorSize(t, o); size != report.Events {
			t.Fatalf("the anchor is at %d, the log at %d", size, report.Events)
		}
		if !report.StoredSame || report.StoredSeq != report.Events {
			t.Fatalf("no snapshot at the end: %+v", report)
		}
	}
}

func anchorSize(t testing.TB, o ledger.Options) uint64 {
	t.Helper()
	return anchored(t, o).Size
}

func anchored(t testing.TB, o ledger.Options) store.Checkpoint {
	t.Helper()
	path := o.Anchor
	if path == "" {
		path = filepath.Join(o.Dir, "anchor")
	}
	signed, err := os.ReadFile(path)
	must(t, err)
	vkey, err := os.ReadFile(filepath.Join(o.Dir, "keys", "checkpoint.vkey"))
	must(t, err)
	verifier, err := note.NewVerifier(strings.TrimSpace(string(vkey)))
	must(t, err)
	cp, err := store.ParseCheckpoint(signed, verifier)
	must(t, err)
	return cp
}

// Jobs of every kind submitted while the ledger stops: each that was accepted
// is answered once.
func TestStopRacingWithEverything(t *testing.T) {
	for range 12 {
		o := newDir(t)
		s := replaytest.Start(t, o)
		var accepted, answered atomic.Int64
		answer := func(ledger.Answer) { answered.Add(1) }
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 60 {
					var code reason.Code
					switch i % 3 {
					case 0:
						code = s.Submit(replaytest.Proposal(wire.Propose, "researcher", "memory.read", readBody("a.b")), answer)
					case 1:
						code = s.Submit(replaytest.Proposal(wire.Control, "admin", "clock.accept", `{}`), answer)
					case 2:
						code = s.Ask("admin", func(*projection.State) func() []byte { return func() []byte { return nil } }, answer)
					}
					if code == "" {
						accepted.Add(1)
					}
				}
			})
		}
		err := s.End()
		wg.Wait()
		must(t, err)
		if accepted.Load() != answered.Load() {
			t.Fatalf("%d accepted, %d answered", accepted.Load(), answered.Load())
		}
		replaytest.CheckLedger(t, o)
	}
}

func TestAFullQueueRefusesAtTheDoor(t *testing.T) {
	o := newDir(t)
	o.QueueMax = 12 // of which one sender may have a third
	l, err := ledger.Open(o)
	must(t, err)
	var answered atomic.Int32
	answers := make(chan ledger.Answer, 8)
	for i := range 4 {
		if code := l.Submit(proposeWrite(fmt.Sprint(i), `1`, 0, ""), func(a ledger.Answer) { answers <- a }); code != "" {
			t.Fatal(code)
		}
	}
	before := l.Durable()
	if code := l.Submit(proposeWrite("5", `1`, 0, ""), func(ledger.Answer) { answered.Add(1) }); code != reason.Overloaded {
		t.Errorf("the fifth: %q", code)
	}
	control := make(chan ledger.Answer, 1)
	if code := l.Submit(replaytest.Proposal(wire.Control, "admin", "clock.accept", `{}`), func(a ledger.Answer) { control <- a }); code != "" {
		t.Errorf("control stands in the proposals' queue: %q", code)
	}
	s := replaytest.Run(t, l, o)
	for range 4 {
		<-answers
	}
	<-control
	if got := l.Durable() - before; got != 4+2 {
		t.Errorf("%d events, want four decisions and clock.accept's two", got)
	}
	s.Stop()
	if answered.Load() != 0 {
		t.Error("a refused proposal was answered as well")
	}
}

func TestBelowTheStorageGateNothingIsJudged(t *testing.T) {
	o, sys := newMem(t)
	start(t, o).Stop()
	control := func() *ledger.Proposal {
		return replaytest.Proposal(wire.Control, "admin", "clock.accept", `{}`)
	}
	for _, c := range []struct {
		free              uint64
		proposal, control reason.Code
	}{
		{256 << 20, "", ""},
		{256<<20 - 1, reason.StorageLow, ""},
		{64 << 20, reason.StorageLow, ""},
		{64<<20 - 1, reason.StorageLow, reason.StorageLow},
	} {
		sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: c.free})
		s := replaytest.Start(t, o)
		before := s.Durable()
		answers := make(chan ledger.Answer, 4)
		answer := func(a ledger.Answer) { answers <- a }
		want := uint64(0)
		if got := s.Submit(replaytest.Proposal(wire.Propose, "researcher", "memory.read", readBody("a.b")), answer); got != c.proposal {
			t.Errorf("%d free: a proposal %q, want %q", c.free, got, c.proposal)
		} else if got == "" {
			<-answers
			want++
		}
		if got := s.Submit(control(), answer); got != c.control {
			t.Errorf("%d free: control %q, want %q", c.free, got, c.control)
		} else if got == "" {
			<-answers
			want += 2
		}
		refusal := events.Refusals{Code: string(reason.StorageLow), Count: 1, First: s.Time()}
		refusal.Last = refusal.First
		if got := s.Note(&events.RequestsRefused{Refusals: refusal}); got != c.control {
			t.Errorf("%d free: a note %q, want %q", c.free, got, c.control)
		} else if got == "" {
			want++
		}
		if healthy := len(s.Health()) == 0; healthy != (c.proposal == "") {
			t.Errorf("%d free: health %v", c.free, s.Health())
		}
		look(t, s.Ledger, func(*projection.State) int { return 0 }) // asking is always possible
		if got := s.Durable() - before; got != want {
			t.Errorf("%d free: %d events, want %d", c.free, got, want)
		}
		must(t, s.End())
	}
	sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
	s := replaytest.Start(t, o)
	sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20}) // and while running
	for {
		code := s.Submit(replaytest.Proposal(wire.Propose, "researcher", "memory.read", readBody("a.b")), nil)
		if code == reason.StorageLow {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.Stop()
}

// A body that has no form in the log stops the ledger before anything of its
// batch is written.
func TestAFailureToSealStopsTheLedger(t *testing.T) {
	o := newDir(t)
	start(t, o).Stop()
	size := replaytest.CheckLedger(t, o).Events
	l, err := ledger.Open(o)
	must(t, err)
	s := &replaytest.Session{Ledger: l, T: t, Options: o}
	var answers []<-chan replaytest.Reply // more than one batch takes
	for i := range 400 {
		answers = append(answers, s.Send(proposeWrite(fmt.Sprint(i), `1`, 0, "")))
	}
	l.Note(&events.TransportDenied{Refusals: events.Refusals{ID: "\xff"}})
	s = replaytest.Run(t, l, o)
	for _, answer := range answers {
		expect(t, <-answer, reason.NotKnownCommitted)
	}
	if err := s.End(); err == nil || l.Err() == nil {
		t.Error("Run returned no failure")
	}
	if code := l.Submit(proposeWrite("c", `1`, 0, ""), nil); code != reason.NotKnownCommitted {
		t.Errorf("afterwards: %q", code)
	}
	if report := replaytest.CheckLedger(t, o); report.Events != size+1 {
		t.Errorf("%d events after %d and an opening", report.Events, size)
	}
	s = replaytest.Start(t, o)
	expect(t, s.Propose("researcher", "memory.write", write("a", `1`, 0, "")), reason.OwnerWrite)
	s.Stop()
}

func TestOpenRefusesALogThatItsAnchorDoesNotFit(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	expect(t, s.Propose("researcher", "memory.write", write("a", `1`, 0, "")), reason.OwnerWrite)
	s.Stop()
	anchor := filepath.Join(o.Dir, "anchor")
	mine, err := os.ReadFile(anchor)
	must(t, err)
	other := newDir(t)
	start(t, other).Stop()
	theirs, err := os.ReadFile(filepath.Join(other.Dir, "anchor"))
	must(t, err)
	key, err := os.ReadFile(filepath.Join(o.Dir, "keys", "checkpoint.key"))
	must(t, err)
	signer, err := note.NewSigner(strings.TrimSpace(string(key)))
	must(t, err)
	at := anchored(t, o)
	sign := func(c store.Checkpoint) []byte {
		b, err := store.SignCheckpoint(signer, c)
		must(t, err)
		return b
	}
	otherRoot := at.Root
	otherRoot[0] ^= 1
	for _, c := range []struct {
		name   string
		anchor []byte
		want   error
	}{
		{"missing", nil, store.ErrNoAnchor},
		{"another ledger's", theirs, store.ErrCheckpoint},
		{"broken", mine[:len(mine)-5], store.ErrCheckpoint},
		{"ahead", sign(store.Checkpoint{Origin: at.Origin, Size: at.Size + 1, Root: at.Root}), store.ErrBehindAnchor},
		{"of another history", sign(store.Checkpoint{Origin: at.Origin, Size: at.Size, Root: otherRoot}), store.ErrDiverged},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, os.Remove(anchor))
			if c.anchor != nil {
				must(t, os.WriteFile(anchor, c.anchor, 0o600))
			}
			before := contents(t, o.Dir)
			if _, err := ledger.Open(o); !errors.Is(err, c.want) {
				t.Errorf("opened: %v", err)
			}
			after := contents(t, o.Dir)
			for path, b := range after {
				if before[path] != b {
					t.Errorf("%s was changed", path)
				}
			}
			if len(before) != len(after) {
				t.Error("files came or went")
			}
			must(t, os.WriteFile(anchor, mine, 0o600))
		})
	}
	replaytest.Start(t, o).Stop()
}

func TestLookCanRefuseBeforeAnythingIsWritten(t *testing.T) {
	o := newDir(t)
	before := contents(t, o.Dir)
	refusal := errors.New("the stream is ahead")
	o.Look = func(s *store.Store) error {
		if s.Durable() != 1 {
			t.Errorf("looked at a log of %d", s.Durable())
		}
		return refusal
	}
	if _, err := ledger.Open(o); !errors.Is(err, refusal) {
		t.Errorf("opened: %v", err)
	}
	for path, b := range contents(t, o.Dir) {
		if before[path] != b {
			t.Errorf("%s was changed", path)
		}
	}
	o.Look = nil
	replaytest.Start(t, o).Stop()
}

func TestTheAnchorIsAheadOfEveryAnswerWhereAsked(t *testing.T) {
	o := newDir(t)
	o.AnchorSync = true
	s := start(t, o)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Add(1)
		s.Submit(proposeWrite(fmt.Sprint(i), `1`, 0, ""), func(a ledger.Answer) {
			defer wg.Done()
			if r := replaytest.ParseReply(a); anchorSize(t, o) < r.Seq {
				t.Errorf("answered %d, the anchor is at %d", r.Seq, anchorSize(t, o))
			}
		})
	}
	wg.Wait()
	s.Stop()
}

// An anchor that cannot be advanced ends the ledger: a log that grows beyond
// what anyone remembers could be cut.
func TestWithoutItsAnchorTheLedgerStops(t *testing.T) {
	for _, every := range []bool{false, true} {
		o := newDir(t)
		o.AnchorSync = every
		s := start(t, o)
		saved, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
		must(t, err)
		must(t, os.Remove(filepath.Join(o.Dir, "anchor")))
		answers := 0
		for s.Err() == nil {
			r := s.Propose("researcher", "action.authorize", `{"action":"artifact.save"}`)
			if r.Reason == string(reason.ActionAllowed) {
				answers++
			}
		}
		if every && answers > 0 {
			t.Errorf("%d answers without the anchor before them", answers)
		}
		expect(t, s.Propose("researcher", "action.authorize", `{"action":"artifact.save"}`), reason.NotKnownCommitted)
		if err := s.End(); !errors.Is(err, store.ErrNoAnchor) {
			t.Errorf("Run returned %v", err)
		}
		must(t, os.WriteFile(filepath.Join(o.Dir, "anchor"), saved, 0o600))
		replaytest.Start(t, o).Stop()
	}
}

// What is still queued when the ledger fails is not decided any more, though
// the store would take it.
func TestNothingIsDecidedAfterAFailure(t *testing.T) {
	o := newDir(t)
	start(t, o).Stop()
	g := newGate()
	o.Store.FS, o.AnchorSync = g.fs(vfs.Default), true
	s := replaytest.Start(t, o)
	g.shut()
	answers := []<-chan replaytest.Reply{s.Send(proposeWrite("early", `1`, 0, ""))}
	<-g.waiting
	for range ledger.Ahead { // each question in a batch of its own, until the writer waits for the first
		judged := make(chan struct{})
		s.Ask("admin", func(*projection.State) func() []byte { close(judged); return nil }, nil)
		<-judged
	}
	for i := range 10 {
		answers = append(answers, s.Send(proposeWrite(fmt.Sprintf("late%d", i), `1`, 0, "")))
	}
	anchor := filepath.Join(o.Dir, "anchor")
	must(t, os.Rename(anchor, anchor+".away"))
	g.open()
	for _, answer := range answers {
		expect(t, <-answer, reason.NotKnownCommitted)
	}
	if err := s.End(); !errors.Is(err, store.ErrNoAnchor) {
		t.Errorf("Run returned %v", err)
	}
	must(t, os.Rename(anchor+".away", anchor))
	o.Store.FS = nil
	s = replaytest.Start(t, o)
	for i := range 10 {
		if got := revision(t, s.Ledger, "researcher", "notes", fmt.Sprintf("late%d", i)); got != 0 {
			t.Errorf("late%d was written after the failure", i)
		}
	}
	if got := revision(t, s.Ledger, "researcher", "notes", "early"); got != 1 {
		t.Error("the first, which was synced, is not there")
	}
	s.Stop()
}

func digest(t testing.TB, l *ledger.Ledger) events.Hash {
	t.Helper()
	return look(t, l, func(s *projection.State) events.Hash {
		c := *s // the opening's own event and time differ each time
		c.Seq, c.Time, c.Leaf = 0, 0, events.Hash{}
		return c.Digest()
	})
}

// A snapshot only saves time: whatever is wrong with it, the state is that of
// the log.
func TestAStateFromASnapshotIsTheStateOfTheLog(t *testing.T) {
	o := newDir(t)
	s := replaytest.Start(t, o)
	s.Scenario()
	s.Stop()
	s = replaytest.Start(t, o) // what was open when it stopped is in doubt from here on
	want := digest(t, s.Ledger)
	s.Stop()
	other := newDir(t)
	start(t, other).Stop()

	part := func(o ledger.Options) string {
		names, err := filepath.Glob(filepath.Join(o.Dir, "state", "0-*"))
		must(t, err)
		if len(names) != 1 {
			t.Fatalf("first parts of the state: %v", names)
		}
		return names[0]
	}
	foreign, err := os.ReadFile(part(other))
	must(t, err)
	for name, bend := range map[string]func(path string, b []byte) error{
		"as it is":       func(string, []byte) error { return nil },
		"garbage":        func(path string, b []byte) error { return os.WriteFile(path, []byte("garbage"), 0o600) },
		"empty":          func(path string, b []byte) error { return os.WriteFile(path, nil, 0o600) },
		"cut":            func(path string, b []byte) error { return os.WriteFile(path, b[:len(b)/2], 0o600) },
		"a bit":          func(path string, b []byte) error { b[len(b)/2] ^= 8; return os.WriteFile(path, b, 0o600) },
		"another log's":  func(path string, b []byte) error { return os.WriteFile(path, foreign, 0o600) },
		"another moment": func(path string, b []byte) error { return os.Rename(path, filepath.Join(filepath.Dir(path), "0-7")) },
		"the future": func(path string, b []byte) error {
			return os.Rename(path, filepath.Join(filepath.Dir(path), "0-999999"))
		},
		"gone": func(path string, b []byte) error { return os.Remove(path) },
		"a gap": func(path string, b []byte) error {
			return os.Rename(path, strings.Replace(path, "state/0-", "state/1-", 1))
		},
		"half written": func(path string, b []byte) error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), "tmp"), b[:9], 0o600)
		},
		"planted": func(string, []byte) error { return plant(t, o) },
	} {
		t.Run(name, func(t *testing.T) {
			path := part(o)
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, bend(path, b))
			s := replaytest.Start(t, o)
			if got := digest(t, s.Ledger); got != want {
				t.Error("the state is not that of the log")
			}
			expect(t, s.Propose("report_manager", "memory.read", readBody("project.client_region")), reason.VisibleFrom)
			s.Stop()
			if _, err := os.Stat(filepath.Join(o.Dir, "state", "tmp")); !errors.Is(err, fs.ErrNotExist) {
				t.Error("what was half written is still there")
			}
			replaytest.CheckLedger(t, o)
		})
	}
}

// The state is written behind while the ledger runs, so that one whose process
// was killed is opened from it and the end of the log: the same as from the log
// alone, whenever the crash came.
func TestTheStateIsWrittenBehind(t *testing.T) {
	t.Cleanup(ledger.SetBehindEvents(7))
	o, sys := newMem(t)
	s := replaytest.Start(t, o)
	s.Scenario()
	crashes := 0
	for i := range 12 {
		for j := range 5 {
			s.Propose("researcher", "memory.write", write(fmt.Sprintf("k%d", (i+j)%9), "1", 0, "")) // allowed or a conflict
		}
		crashed := o
		crashed.Store.FS = sys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 20 * i % 101, RNG: rand.New(rand.NewPCG(1, uint64(i)))})
		crashed.Anchor = filepath.Join(t.TempDir(), "anchor")
		signed, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
		must(t, err)
		must(t, os.WriteFile(crashed.Anchor, signed, 0o600))
		st, err := store.OpenReadOnly(crashed.Dir, crashed.Store)
		must(t, err)
		stored, err := ledger.StoredState(o.Dir, st)
		must(t, err)
		must(t, st.Close())
		if stored != nil {
			crashes++
		}
		again := replaytest.Start(t, crashed)
		again.Stop()
		if report := replaytest.CheckLedger(t, crashed); !report.StoredSame {
			t.Fatalf("crash %d: %+v", i, report)
		}
	}
	if crashes == 0 {
		t.Error("nothing was written behind")
	}
	s.Stop()
}

// plant writes a state in which an agent has all it wants, as whoever has the
// directory but no key can: it fits the log's end and is whole in itself.
func plant(t testing.TB, o ledger.Options) error {
	st, err := store.OpenReadOnly(o.Dir, store.Options{})
	must(t, err)
	defer st.Close()
	state, err := ledger.StoredState(o.Dir, st)
	must(t, err)
	for _, id := range state.AgentIDs() {
		state.Agent(id).Declared = policy.NewSet("memory.read", "memory.write", "artifact.save")
	}
	b, err := state.EncodeSnapshot([]byte("no key of this ledger"))
	must(t, err)
	dir := filepath.Join(o.Dir, "state")
	return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, fmt.Sprintf("0-%d", state.Seq)), b, 0o600))
}

// The largest apply: thousands of effects from one request, sealed, answered
// and judged again.
func TestAnApplyOfThousandsOfDocuments(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	var documents []string
	size := len(`{"documents":[]}`)
	for i := 0; ; i++ {
		d := fmt.Sprintf("kind: Memory\nowner: researcher\nnamespace: n\nkey: k%d\nvalue: 1\nvisibility: private\n", i)
		size += len(d) + 8 + 3 // quotes, comma, escaped line ends
		if size > events.RequestBytesMax {
			break
		}
		documents = append(documents, d)
	}
	before := s.Durable()
	r := s.Apply(documents...)
	if got := s.Durable() - before; got != uint64(len(documents))+1 {
		t.Errorf("%d events from %d documents", got, len(documents))
	}
	if len(documents) < 2000 {
		t.Errorf("only %d documents", len(documents))
	}
	last := fmt.Sprintf("n.k%d", len(documents)-1)
	if got := s.Propose("researcher", "memory.read", readBody(last)); got.Record == nil || string(got.Record.Value) != "1" {
		t.Errorf("the last record: %s", got.Text)
	}
	t.Logf("%d documents, reply of %d bytes", len(documents), len(r.Text))
	s.Stop()
}

// Batches of large requests stay within their bound, and all are answered.
func TestManyLargeRequestsAtOnce(t *testing.T) {
	o := newDir(t)
	start(t, o).Stop()
	l, err := ledger.Open(o)
	must(t, err)
	n := 300
	if testing.Short() {
		n = 100 // with the race detector on top they would wait for too long
	}
	answers := make(chan ledger.Answer, n)
	value := `"` + strings.Repeat("v", 60_000) + `"`
	for i := range n {
		if code := l.Submit(proposeWrite(fmt.Sprint(i), value, 0, fmt.Sprint("op", i)), func(a ledger.Answer) { answers <- a }); code != "" {
			t.Fatal(code)
		}
	}
	s := replaytest.Run(t, l, o)
	for range n {
		if a := <-answers; a.Reason != reason.OwnerWrite {
			t.Fatalf("%s", a.Reply)
		}
	}
	s.Stop()
}

// Whose connections end is told before the one who ended them is answered.
func TestR13_RevocationAndRekeyingCutBeforeTheAnswer(t *testing.T) {
	o := newDir(t)
	l, err := ledger.Open(o)
	must(t, err)
	var mu sync.Mutex
	var cut []string
	l.Hooks.Cut = func(id string) { mu.Lock(); cut = append(cut, id); mu.Unlock() }
	s := replaytest.Run(t, l, o)
	s.Family()
	check := func(verb, body, id string, keys ...string) {
		t.Helper()
		expect(t, s.Control(ledger.AdminID, verb, body), reason.ControlDone)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(cut, []string{id}) {
			t.Errorf("%s: cut %v", verb, cut)
		}
		cut = nil
		for _, key := range keys {
			if who, known := l.Lookup(key); !known || !who.Revoked {
				t.Errorf("%s: the key is %+v", verb, who)
			}
		}
	}
	if who, known := l.Lookup(replaytest.Key("researcher")); !known || who.ID != "researcher" || who.Role != "agent" {
		t.Errorf("the key of researcher: %+v %v", who, known)
	}
	check("principal.rekey", fmt.Sprintf(`{"id":"watcher","public_key":%q}`, replaytest.Key("watcher 2")), "watcher", replaytest.Key("watcher"))
	if who, known := l.Lookup(replaytest.Key("watcher 2")); !known || who.ID != "watcher" || who.Role != "observer" {
		t.Errorf("the new key: %+v %v", who, known)
	}
	check("principal.revoke", `{"id":"watcher"}`, "watcher", replaytest.Key("watcher"), replaytest.Key("watcher 2"))
	check("agent.revoke", `{"agent_id":"researcher"}`, "researcher", replaytest.Key("researcher"))
	for _, id := range []string{"researcher", "watcher"} { // never given again
		expect(t, s.Control(ledger.AdminID, "agent.register", fmt.Sprintf(`{"agent_id":%q,"capabilities":[],"public_key":%q}`, id, replaytest.Key("heir"))), reason.DuplicateAgent)
	}
	expect(t, s.Control(ledger.AdminID, "agent.register", fmt.Sprintf(`{"agent_id":"heir","capabilities":[],"public_key":%q}`, replaytest.Key("watcher"))), reason.KeyInUse)
	s.Stop()
	s = replaytest.Start(t, o)
	for _, id := range []string{"researcher", "watcher", "watcher 2"} {
		if who, known := s.Lookup(replaytest.Key(id)); !known || !who.Revoked {
			t.Errorf("after a restart the key of %s is %+v", id, who)
		}
	}
	s.Stop()
}

func TestCheckpointsFollowTheLog(t *testing.T) {
	o := newDir(t)
	l, err := ledger.Open(o)
	must(t, err)
	notes := make(chan []byte, 100)
	l.Hooks.Note = func(b []byte) { notes <- b }
	s := replaytest.Run(t, l, o)
	s.Family()
	head := s.Durable()
	for anchorSize(t, o) < head {
		time.Sleep(time.Millisecond)
	}
	if string(<-notes) == "" || string(l.Checkpoint()) == "" {
		t.Error("no note was announced")
	}
	for _, seq := range []uint64{1, head / 2, s.Propose("researcher", "memory.read", readBody("a.b")).Seq} {
		p, err := s.Prove(seq)
		must(t, err)
		if p.Index != seq-1 || len(p.Checkpoint) == 0 {
			t.Errorf("proof of %d: %+v", seq, p)
		}
	}
	s.Stop()
}

// An end that comes with a deadline passed, or before anything ran.
func TestRunWithAnEndedContext(t *testing.T) {
	o := newDir(t)
	l, err := ledger.Open(o)
	must(t, err)
	answers := make(chan ledger.Answer, 1)
	l.Submit(replaytest.Proposal(wire.Control, "admin", "clock.accept", `{}`), func(a ledger.Answer) { answers <- a })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must(t, l.Run(ctx))
	if a := <-answers; a.Reason != reason.ControlDone {
		t.Errorf("%s", a.Reply)
	}
	replaytest.CheckLedger(t, o)
}

// TestR66_WhatWaitedTooLongIsNotJudged: it is answered, and leaves no event; a
// control request waits as long as it must.
func TestR66_WhatWaitedTooLongIsNotJudged(t *testing.T) {
	o := newDir(t)
	start(t, o).Stop()
	o.MaxWait = time.Nanosecond
	l, err := ledger.Open(o)
	must(t, err)
	s := replaytest.Run(t, l, o)
	before := s.Durable()
	answers := make(chan ledger.Answer, 1)
	if code := s.Submit(proposeWrite("late", `1`, 0, ""), func(a ledger.Answer) { answers <- a }); code != "" {
		t.Fatal(code)
	}
	if a := <-answers; a.Reason != reason.Overloaded || !a.Refused || s.Durable() != before {
		t.Errorf("late: %+v", a)
	}
	expect(t, s.Control("admin", "clock.accept", `{}`), reason.ControlDone)
	s.Stop()
}

package client_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

func (s *served) key(verb string) {
	s.t.Helper()
	admin, err := client.Connect(deadline(s.t), client.Options{Server: s.node.URL(), ID: "admin", SeedFile: filepath.Join(s.dir, "keys", "admin.nk")})
	if err != nil {
		s.t.Fatal(err)
	}
	defer admin.Close()
	if r, err := admin.Control(deadline(s.t), verb, map[string]any{"key": "checkpoint"}); err != nil || !r.Allowed {
		s.t.Fatalf("%s: %+v, %v", verb, r, err)
	}
}

// An auditor with a pinned key goes on over two rotations, also one who slept
// through both, and remembers over a restart. An agent, who may not read the log,
// goes on while its key signs, and then with the file.
func TestR81_AnAuditorFollowsARotation(t *testing.T) {
	s := serveFamily(t)
	ctx, vkey, memory := deadline(t), s.vkey(), t.TempDir()
	awake, asleep, agents := newAuditor(t, vkey, memory), newAuditor(t, vkey, t.TempDir()), newAuditor(t, vkey, t.TempDir())
	write := func(n int) *client.Receipt {
		t.Helper()
		r, err := s.as("alice").Write(ctx, client.WriteRequest{Owner: "alice", Namespace: "notes", Key: "k" + string(rune('a'+n)), Value: n})
		if err != nil {
			t.Fatal(err)
		}
		receipt, err := awake.Receipt(r)
		if err != nil {
			t.Fatal(err)
		}
		return receipt
	}
	first := write(0)
	for _, a := range []*client.Auditor{asleep, agents} {
		if err := a.Follow(ctx, s.as("watcher")); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 2 {
		s.key("key.rotate")
		if _, err := awake.Prove(ctx, s.as("watcher"), write(1+4*n)); err != nil || len(awake.Keys()) != n+2 {
			t.Fatalf("while two keys are in force: %v, %d keys", err, len(awake.Keys()))
		}
		if err := agents.Follow(ctx, s.as("alice")); (err == nil) != (n == 0) {
			t.Errorf("an agent, while two keys are in force: %v", err)
		}
		s.key("key.retire")
		if _, err := awake.Prove(ctx, s.as("watcher"), write(2+4*n)); err != nil {
			t.Fatal(err)
		}
		if err := awake.Follow(ctx, s.as("watcher")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := asleep.Prove(ctx, s.as("watcher"), first); err != nil || len(asleep.Keys()) != 3 {
		t.Errorf("who slept through two rotations: %v", err)
	}
	mismatch(t, "an agent, after two rotations", agents.Follow(ctx, s.as("alice")), "checkpoint")
	var refusal *client.Refusal
	if _, err := s.as("alice").Rotations(ctx); !errors.As(err, &refusal) || refusal.Reason != client.Reason("not_permitted_for_role") {
		t.Errorf("an agent asks for events: %v", err)
	}
	shown, err := s.as("watcher").Rotations(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := agents.Learn([]byte(shown.Rotations)); err != nil {
		t.Fatal(err)
	}
	if _, err := agents.Prove(ctx, s.as("alice"), first); err != nil {
		t.Errorf("an agent with the file: %v", err)
	}
	remembered := awake.Remembered()
	if err := awake.Close(); err != nil {
		t.Fatal(err)
	}
	again := newAuditor(t, vkey, memory)
	if !bytes.Equal(again.Remembered(), remembered) || len(again.Keys()) != 3 {
		t.Errorf("remembered %q, %d keys", again.Remembered(), len(again.Keys()))
	}
	if err := again.Follow(ctx, s.as("watcher")); err != nil {
		t.Error(err)
	}
}

// What an auditor was shown of its keys it holds to: a key that was stolen after
// it handed over hands over to nobody else, signs nothing more, and memory that
// was damaged is no new beginning.
func TestR81_AnAuditorHoldsAStolenKeyToItsSuccessor(t *testing.T) {
	const origin = "ledgerd.example/auditor"
	l := logtest.Sample(origin, 1, 14)
	fill := func(l *logtest.Log) { l.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"}) }
	shown := func(l *logtest.Log, at ...uint64) []byte {
		t.Helper()
		list, err := l.Source().Rotations(at...)
		if err != nil {
			t.Fatal(err)
		}
		return audit.EncodeRotations(list)
	}
	step := func(l *logtest.Log, from int) *client.Consistency {
		t.Helper()
		p, _, err := l.Source().ProveConsistency(uint64(from))
		if err != nil {
			t.Fatal(err)
		}
		out := &client.Consistency{From: uint64(from)}
		for _, h := range p.Hashes {
			out.Hashes = append(out.Hashes, h.String())
		}
		return out
	}
	stolen := l.Clone()
	l.Rotate(2)
	fill(l)
	both := l.Note(len(l.Entries))
	extended := l.Clone() // the thief goes on from what was seen, and rotates anew
	l.Retire()
	fill(l)
	dir := t.TempDir()
	a := newAuditor(t, l.VKey, dir)
	if err := a.Remember(both, nil); err != nil { // seen, and the rotation not looked at
		t.Fatal(err)
	}
	stolen.Rotate(7)
	fill(stolen)
	extended.Also, extended.Next = nil, nil
	extended.Rotate(7)
	mismatch(t, "a thief's successor, from before", a.Learn(shown(stolen)), "checkpoint")
	mismatch(t, "a thief's successor, behind what was seen", a.Learn(shown(extended, 1, 17)), "rotation")
	if len(a.Keys()) != 1 {
		t.Fatal("the thief's key is trusted")
	}
	if err := a.Learn(shown(l)); err != nil {
		t.Fatal(err)
	}
	size := len(l.Entries)
	if err := a.Remember(l.Note(size), step(l, 16)); err != nil {
		t.Fatal(err)
	}
	mismatch(t, "a thief's successor, later", a.Learn(shown(stolen)), "rotation")
	alone := l.Clone()
	alone.Signer, _ = logtest.Key(origin, 1)
	fill(alone)
	mismatch(t, "the retired key", a.Remember(alone.Note(size+1), step(alone, size)), "checkpoint")
	if !bytes.Equal(a.Remembered(), l.Note(size)) || len(a.Keys()) != 2 {
		t.Error("what was refused is remembered")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.rotations"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	good, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, good[:100], shown(stolen)} {
		if err := os.WriteFile(names[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := client.NewAuditor(l.VKey, dir); !errors.Is(err, client.ErrStoreDamaged) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
	if err := os.Remove(names[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := client.NewAuditor(l.VKey, dir); !errors.Is(err, client.ErrStoreDamaged) {
		t.Errorf("none: %v", err)
	}
}

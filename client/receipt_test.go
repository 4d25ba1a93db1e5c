package client_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

var proofs = flag.Int("proofs", 200, "proofs asked for while four write")

// vkey is the key that an auditor was given of a served ledger.
func (s *served) vkey() string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, "keys", "checkpoint.vkey"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func newAuditor(t testing.TB, vkey, dir string) *client.Auditor {
	t.Helper()
	a, err := client.NewAuditor(vkey, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func mismatch(t testing.TB, what string, err error, check string) {
	t.Helper()
	var m *client.Mismatch
	if !errors.Is(err, client.ErrEvidence) || !errors.As(err, &m) || m.Check != check || m.Expected == "" || m.Found == "" {
		t.Errorf("%s: %v, want a mismatch of %s", what, err, check)
	}
}

// TestR81_ProofAndCheckpointAlwaysMatch: while four write, every proof is of the
// checkpoint that comes with it, covers its event, and continues what was
// remembered; no false alarm among all of them.
func TestR81_ProofAndCheckpointAlwaysMatch(t *testing.T) {
	s := serveFamily(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var written sync.Map // by a number of its own
	var count atomic.Int64
	writing, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for i, id := range []string{"boss", "alice", "bob", "boss"} {
		c := s.as(id)
		writers.Go(func() {
			for n := 0; writing.Err() == nil; n++ {
				r, err := c.Write(writing, client.WriteRequest{Owner: id, Namespace: "notes", Key: fmt.Sprintf("k%d_%d", i, n), Value: n})
				if err == nil && r.Seq > 0 {
					written.Store(count.Add(1), r)
				}
			}
		})
	}
	watcher, auditor := s.as("watcher"), newAuditor(t, s.vkey(), t.TempDir())
	for i := 0; i < *proofs && !t.Failed(); {
		n := count.Load()
		v, ok := written.Load(n - int64(i)%max(n, 1))
		if !ok {
			time.Sleep(time.Millisecond)
			continue
		}
		i++
		receipt, err := auditor.Receipt(v.(*client.Reply))
		if err != nil {
			t.Fatal(err)
		}
		proof, err := auditor.Prove(ctx, watcher, receipt)
		if err != nil {
			t.Fatalf("proof %d, of seq %d: %v", i, receipt.Seq, err)
		}
		if err := auditor.CheckInclusion(receipt, proof); err != nil {
			t.Error(err)
		}
		if i%8 == 0 {
			if err := auditor.Follow(ctx, watcher); err != nil {
				t.Fatalf("after proof %d: %v", i, err)
			}
		}
	}
	stop()
	writers.Wait()
	t.Logf("%d proofs while %d writes were answered", *proofs, count.Load())
}

// TestR81_AuditorThroughTheClient: an agent proves its own decisions to itself
// and to others, its auditor remembers over a restart, and a restored older
// state of the ledger is found.
func TestR81_AuditorThroughTheClient(t *testing.T) {
	s := serveFamily(t)
	ctx, alice, memory := deadline(t), s.as("alice"), t.TempDir()
	denied, err := alice.Write(ctx, client.WriteRequest{Owner: "boss", Namespace: "notes", Key: "a", Value: 1})
	if err != nil {
		t.Fatal(err)
	}
	a := newAuditor(t, s.vkey(), memory)
	if _, err := client.NewAuditor(s.vkey(), memory); err == nil {
		t.Error("two auditors with one memory")
	}
	receipt, err := a.Receipt(denied)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := client.ParseReceipt(receipt.Encode())
	if err != nil || *kept != *receipt || kept.Seq != denied.Seq || kept.Hash.String() != denied.Hash {
		t.Fatal(kept, err)
	}
	proof, err := a.Prove(ctx, alice, kept)
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := alice.Write(ctx, client.WriteRequest{Owner: "alice", Namespace: "notes", Key: "a", Value: 1})
	if err != nil {
		t.Fatal(err)
	}
	next, err := a.Receipt(allowed)
	if err != nil {
		t.Fatal(err)
	}
	mismatch(t, "the proof of another event", a.CheckInclusion(next, proof), "inclusion")
	if _, err := a.Prove(ctx, alice, next); err != nil {
		t.Error(err)
	}
	lied := *next
	lied.Hash = receipt.Hash
	_, err = a.Prove(ctx, alice, &lied)
	mismatch(t, "a receipt that the log does not keep", err, "inclusion")
	var refusal *client.Refusal
	if _, err := s.as("bob").Proof(ctx, denied.Seq); !errors.As(err, &refusal) {
		t.Errorf("a sibling's decision: %v", err)
	}
	if _, err := alice.ProofWithEvent(ctx, denied.Seq); !errors.As(err, &refusal) || refusal.Reason != client.Reason("not_permitted_for_role") {
		t.Errorf("an agent reads its event: %v", err)
	}
	p, err := s.as("watcher").ProofWithEvent(ctx, denied.Seq)
	if err != nil || receipt.Holds([]byte(p.Event)) != nil {
		t.Errorf("%v: %+v", err, p)
	}
	if err := a.Follow(ctx, alice); err != nil {
		t.Error(err)
	}
	remembered := a.Remembered()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a = newAuditor(t, s.vkey(), memory); !bytes.Equal(a.Remembered(), remembered) {
		t.Errorf("remembered %q, then %q", remembered, a.Remembered())
	}
}

// TestR81_WhatAnAuditorRefuses: a smaller log, another history of one size, one
// that does not continue the remembered one, another key, another origin; its
// memory stays. Another key has another memory.
func TestR81_WhatAnAuditorRefuses(t *testing.T) {
	l := logtest.Sample("ledgerd.example/auditor", 1, 20)
	dir := t.TempDir()
	a := newAuditor(t, l.VKey, dir)
	forked := l.Clone()
	forked.Edit(9, func(e *events.Event) { e.Time++ })
	forked.Relink(10)
	foreign := logtest.New(l.Origin, 2)
	foreign.Entries = l.Entries
	mismatch(t, "a first checkpoint of another key", a.Remember(foreign.Note(8), nil), "checkpoint")
	if a.Remembered() != nil {
		t.Errorf("it is remembered")
	}
	if err := a.Remember(l.Note(12), nil); err != nil {
		t.Fatal(err)
	}
	at := func(l *logtest.Log, from, to int) *client.Consistency {
		c := l.Clone()
		c.Entries = c.Entries[:to]
		p, _, err := c.Source().ProveConsistency(uint64(from))
		if err != nil {
			t.Fatal(err)
		}
		out := &client.Consistency{From: uint64(from), To: uint64(to), Checkpoint: string(p.Checkpoint)}
		for _, h := range p.Hashes {
			out.Hashes = append(out.Hashes, h.String())
		}
		return out
	}
	for what, try := range map[string]struct {
		signed []byte
		proof  *client.Consistency
		check  string
	}{
		"smaller": {l.Note(11), nil, "consistency"}, "smaller, with a proof": {l.Note(11), at(l, 11, 12), "consistency"},
		"equal size, other root": {forked.Note(12), nil, "consistency"}, "equal size, other root, its own proof": {forked.Note(12), at(forked, 12, 12), "consistency"},
		"no proof": {l.Note(13), nil, "consistency"}, "a proof from elsewhere": {l.Note(13), at(l, 11, 13), "consistency"},
		"another history": {forked.Note(13), at(forked, 12, 13), "consistency"}, "another key": {foreign.Note(13), at(l, 12, 13), "checkpoint"},
		"nobody's": {bytes.Replace(l.Note(13), []byte("\n13\n"), []byte("\n14\n"), 1), at(l, 12, 13), "checkpoint"},
	} {
		mismatch(t, what, a.Remember(try.signed, try.proof), try.check)
		if !bytes.Equal(a.Remembered(), l.Note(12)) {
			t.Fatalf("%s: remembers %q", what, a.Remembered())
		}
	}
	if err := a.Remember(l.Note(12), nil); err != nil {
		t.Errorf("the same again: %v", err)
	}
	bad := at(l, 12, 20)
	bad.Hashes[0] = "zz"
	if err := a.Remember(l.Note(20), bad); !errors.Is(err, client.ErrBadReply) {
		t.Errorf("no hash: %v", err)
	}
	if err := a.Remember(l.Note(20), at(l, 12, 20)); err != nil || !bytes.Equal(a.Remembered(), l.Note(20)) {
		t.Error(err)
	}
	other := newAuditor(t, foreign.VKey, dir)
	if other.Remembered() != nil {
		t.Error("one key's memory is another's")
	}
	inForked, _, err := forked.Source().Prove(5)
	if err != nil {
		t.Fatal(err)
	}
	e, err := events.Parse(l.Entries[4])
	if err != nil {
		t.Fatal(err)
	}
	receipt := &client.Receipt{Origin: l.Origin, Seq: 5, EventID: events.UUIDString(e.ID), Hash: events.LeafHash(l.Entries[4])}
	inForked.Checkpoint = forked.Note(20)
	mismatch(t, "the history of another checkpoint of that size", a.CheckInclusion(receipt, inForked.Encode()), "consistency")
	mismatch(t, "no proof", a.CheckInclusion(receipt, []byte("x")), "proof")
	for _, vkey := range []string{"", "x", "a+b+c", strings.Replace(l.VKey, "ledgerd", "ledgerx", 1)} {
		if _, err := client.NewAuditor(vkey, ""); err == nil {
			t.Errorf("the key %q is taken", vkey)
		}
	}
	forgetful := newAuditor(t, l.VKey, "")
	if err := forgetful.Remember(l.Note(12), nil); err != nil || forgetful.Remembered() == nil {
		t.Error(err)
	}
}

// TestAuditorWithADamagedMemory: it does not begin anew.
func TestAuditorWithADamagedMemory(t *testing.T) {
	l, dir := logtest.Sample("ledgerd.example/auditor", 1, 20), t.TempDir()
	a := newAuditor(t, l.VKey, dir)
	if err := a.Remember(l.Note(12), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.checkpoint"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	for _, b := range [][]byte{{}, l.Note(12)[:60], logtest.New(l.Origin, 2).Note(1)} {
		if err := os.WriteFile(names[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := client.NewAuditor(l.VKey, dir); !errors.Is(err, client.ErrStoreDamaged) {
			t.Errorf("%q: %v", b, err)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// A writer that was killed before it signed its last events leaves a log longer
// than its checkpoint. That is no fault, the second time neither.
func TestResumeBehindAnUnsignedTail(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	for seq := uint64(7); seq <= 14; seq += 2 {
		delete(l.Payloads, seq)
	}
	state := filepath.Join(t.TempDir(), "state")
	for range 3 {
		says(t, audit.ExitPass, "events 12–14 came after it and are signed by nobody yet", "--data", build(t, l, l.Leaves(), 11), "--vkey", l.VKey, "--resume", state)
	}
	says(t, audit.ExitPass, "authentic:", "--data", build(t, l, l.Leaves(), 14), "--vkey", l.VKey, "--resume", state)
	// An older checkpoint of another history is found as ever.
	other := l.Clone()
	other.Edit(6, func(e *events.Event) { e.Agent = "other" })
	other.Relink(7)
	dir := build(t, l, l.Leaves(), 11)
	if err := os.WriteFile(filepath.Join(dir, "anchor"), other.Note(11), 0o600); err != nil {
		t.Fatal(err)
	}
	exit, r := verifyJSON(t, "--data", dir, "--vkey", l.VKey, "--resume", state)
	if exit != audit.ExitFail || !failed(r, "checkpoint") {
		t.Errorf("another anchor: exit %d %+v", exit, r.Faults)
	}
}

// Checkpoints and dates of before the place where the log is taken up are held
// against what was verified then, at every size, and the answer is that of
// reading it all; what cannot be told is not passed.
func TestResumeWithOlderCheckpoints(t *testing.T) {
	const size = 600
	l := logtest.Sample(testOrigin, 1, size)
	other := l.Clone()
	other.Edit(6, func(e *events.Event) { e.Agent = "other" })
	other.Relink(7)
	dir, state := export(t, l.Files()), filepath.Join(t.TempDir(), "state")
	says(t, audit.ExitPass, "authentic:", "--export", dir, "--vkey", l.VKey, "--resume", state)
	kept, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	resumed := []string{"--export", dir, "--vkey", l.VKey, "--resume", state}
	for _, n := range []int{1, 2, 7, 12, 255, 256, 257, 300, 511, 512, 513, 598, 599, 600} {
		note := put(t, "note", l.Note(n))
		says(t, audit.ExitPass, "unchanged", append(resumed, "--checkpoint", note)...)
		says(t, audit.ExitPass, "are states of this log", append(resumed, "--compare", note, put(t, "other", l.Note(300)))...)
		if n < 7 {
			continue
		}
		exit, r := verifyJSON(t, append(resumed, "--checkpoint", put(t, "fork", other.Note(n)))...)
		if exit != audit.ExitFail || !failed(r, "remembered") {
			t.Errorf("another history of %d events: exit %d: %+v", n, exit, r.Faults)
		}
		exit, r = verifyJSON(t, append(resumed, "--compare", note, put(t, "fork", other.Note(n)))...)
		if exit != audit.ExitFail || !failed(r, "compare") {
			t.Errorf("two histories of %d events: exit %d: %+v", n, exit, r.Faults)
		}
	}
	// Dates: of what the checkpoint covers, and of what came after it.
	for _, n := range []int{10, 300, 599, 600} {
		note := put(t, "note", l.Note(n))
		seen := func(seq int) string {
			e, err := events.Parse(l.Entries[seq-1])
			if err != nil {
				t.Fatal(err)
			}
			return e.Time.String()
		}
		for at, exit := range map[string]int{"1980-01-01T00:00:00Z": audit.ExitFail, seen(n): audit.ExitPass, "2090-01-01T00:00:00Z": audit.ExitFail} {
			if n == size && at[:4] == "2090" {
				exit = audit.ExitPass // nothing came after it
			}
			for _, args := range [][]string{resumed, resumed[:4]} {
				got, r := verifyJSON(t, append(args[:len(args):len(args)], "--checkpoint", note, "--seen", at)...)
				if got != exit {
					t.Errorf("%d events seen %s, %v: exit %d: %+v", n, at, args[4:], got, r.Faults)
				}
			}
		}
	}
	// Stored hashes that are not those of what was verified say nothing.
	f := l.Files()
	f["tile/0/001"][40] ^= 1
	damaged := export(t, f)
	for _, args := range [][]string{{"--checkpoint", put(t, "note", l.Note(300))}, {"--checkpoint", put(t, "fork", other.Note(300))}, {"--compare", put(t, "a", l.Note(300)), put(t, "b", l.Note(300))}} {
		if err := os.WriteFile(state, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		says(t, audit.ExitImpossible, "cannot be told", append([]string{"--export", damaged, "--vkey", l.VKey, "--resume", state}, args...)...)
	}
	says(t, audit.ExitImpossible, "could not be told", "--export", damaged, "--vkey", l.VKey, "--resume", state, "--checkpoint", put(t, "late", l.Note(300)), "--seen", "2020-01-01T00:00:00Z")
}

// An operation id used on both sides of the place is not found, and that is said.
func TestResumeSaysThatOlderOperationsWereNotCompared(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	state := filepath.Join(t.TempDir(), "state")
	says(t, audit.ExitPass, "none under a used one", "--export", export(t, l.Files()), "--vkey", l.VKey, "--resume", state)
	l.Add("researcher", 0, &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: "memory.write", Resource: "researcher:notes.a", Allowed: true, Reason: "owner_write", PolicyVersion: "lab-1", OperationID: "op-1"})
	dir := export(t, l.Files())
	finds(t, "operations", 15, "--export", dir, "--vkey", l.VKey)
	exit, r := verifyJSON(t, "--export", dir, "--vkey", l.VKey, "--resume", state)
	for _, c := range r.Integrity.Checks {
		if c.Name == "operations" && (exit != audit.ExitPass || c.Status != audit.NotRun || c.Open == "") {
			t.Errorf("exit %d, operations %+v", exit, c)
		}
	}
}

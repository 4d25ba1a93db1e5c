package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// TestResume: what was verified is not read again, at any size, where the log
// grew out of it; and where it did not that is found, whatever was changed.
func TestResume(t *testing.T) {
	whole := logtest.Sample(testOrigin, 1, 700)
	state := filepath.Join(t.TempDir(), "state")
	before := 0
	for _, size := range []int{1, 2, 3, 14, 255, 256, 257, 300, 511, 512, 700, 700} {
		dir := export(t, cutTo(whole, size).Files())
		exit, r := verifyJSON(t, "--export", dir, "--vkey", whole.VKey, "--resume", state)
		if exit != audit.ExitPass || r.Events != uint64(size) || r.Verdict != "authentic" {
			t.Fatalf("%d after %d: exit %d: %+v", size, before, exit, r)
		}
		if _, full := verifyJSON(t, "--export", dir); full.Root != r.Root || full.Head != r.Head {
			t.Errorf("%d after %d: another root than of the whole", size, before)
		}
		if said := fmt.Sprintf("events 1–%d were verified before", before); before > 0 && !strings.Contains(text(&r), said) {
			t.Errorf("%d after %d: it does not say so: %s", size, before, text(&r))
		}
		before = size
	}
	kept, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	restore := func(size int) {
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
		if exit, _ := verifyJSON(t, "--export", export(t, cutTo(whole, size).Files()), "--vkey", whole.VKey, "--resume", state); exit != audit.ExitPass {
			t.Fatal(exit)
		}
	}
	// What was rewritten, cut or replaced before the place is found, and the state
	// is left as it was.
	restore(600)
	was, _ := os.ReadFile(state)
	rewritten := whole.Clone()
	rewritten.Edit(300, func(e *events.Event) { e.Agent = "other" })
	rewritten.Relink(301)
	for name, l := range map[string]*logtest.Log{"rewritten": rewritten, "cut": cutTo(whole, 599), "replaced": logtest.Sample(testOrigin, 1, 900).Clone()} {
		if name == "replaced" {
			l.Edit(1, func(e *events.Event) { e.Body = &events.LedgerOpened{Rules: 2} })
			l.Relink(2)
		}
		dir := export(t, l.Files())
		if exit, r := verifyJSON(t, "--export", dir, "--vkey", whole.VKey); exit != audit.ExitPass || r.Completeness.Status != audit.NotRun {
			t.Errorf("%s without memory: exit %d", name, exit)
		}
		seq := uint64(600)
		finds(t, "resumed", seq, "--export", dir, "--vkey", whole.VKey, "--resume", state)
		if now, _ := os.ReadFile(state); !bytes.Equal(now, was) {
			t.Errorf("%s: the state was written", name)
		}
	}
	// A tile changed under an event that was verified: where the stored hash is part
	// of the edge it is found at once, else when everything is read.
	f := whole.Files()
	f["tile/1/000.p/2"][40] ^= 1
	says(t, audit.ExitPass, "stored hashes and operation ids of events 1–600 were not looked at again", "--export", export(t, f), "--vkey", whole.VKey, "--resume", state)
	f["tile/1/000.p/2"][8] ^= 1
	restore(300)
	finds(t, "resumed", 1, "--export", export(t, f), "--vkey", whole.VKey, "--resume", state)
	// An entry changed after the place is found as ever.
	late := whole.Clone()
	late.Edit(650, func(e *events.Event) { e.Agent = "other" })
	finds(t, "chain", 652, "--export", export(t, late.Files()), "--vkey", whole.VKey, "--resume", state)

	dir := export(t, whole.Files())
	var known map[string]any
	if err := json.Unmarshal(kept, &known); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"another format": func() { known["format"] = "x" }, "a size": func() { known["size"] = 3 }, "a hash": func() { known["range"].([]any)[0] = "x" },
		"a time": func() { known["time"] = "noon" }, "an origin": func() { known["origin"] = "" }, "no leaf": func() { known["leaf"] = "" },
	} {
		if err := json.Unmarshal(kept, &known); err != nil {
			t.Fatal(err)
		}
		change()
		b, err := json.Marshal(known)
		if err != nil {
			t.Fatal(err)
		}
		says(t, audit.ExitImpossible, "state of an earlier verification", "--export", dir, "--vkey", whole.VKey, "--resume", put(t, name, b))
	}
	says(t, audit.ExitImpossible, "give it again", "--export", dir, "--resume", state)
	says(t, audit.ExitImpossible, "not the one given", "--export", dir, "--vkey", logtest.New(testOrigin, 5).VKey, "--resume", state)
	says(t, audit.ExitImpossible, "state of an earlier verification", "--export", dir, "--resume", put(t, "text", []byte("no")))
}

// TestResumeDataDirectory: the same of a store, in chunks, with payloads.
func TestResumeDataDirectory(t *testing.T) {
	dir := realLedger(t)
	state := filepath.Join(t.TempDir(), "state")
	says(t, audit.ExitPass, "consistent:", "--data", dir, "--resume", state)
	says(t, audit.ExitPass, "and not read again", "--data", dir, "--resume", state)
	other := realLedger(t)
	exit, r := verifyJSON(t, "--data", other, "--resume", state)
	if exit != audit.ExitFail || !failed(r, "resumed") {
		t.Errorf("another ledger: exit %d: %+v", exit, r)
	}
}

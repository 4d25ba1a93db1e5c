package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// realLedger is the data directory of a ledger that has done everything once.
func realLedger(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := ledger.Init(dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, ledger.Options{Dir: dir})
	s.Scenario()
	s.Stop()
	return dir
}

// TestDataDirectory: the command on a real data directory, asked for everything.
func TestDataDirectory(t *testing.T) {
	dir := realLedger(t)
	vkey := "@" + filepath.Join(dir, "keys", "checkpoint.vkey")
	kept := filepath.Join(t.TempDir(), "kept")
	anchor, err := os.ReadFile(filepath.Join(dir, "anchor"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, anchor, 0o644); err != nil {
		t.Fatal(err)
	}
	exit, r := verifyJSON(t, "--data", dir, "--vkey", vkey, "--checkpoint", kept, "--replay")
	if exit != audit.ExitPass || r.Verdict != "authentic" || r.Integrity.Status != audit.Pass || r.Completeness.Status != audit.Pass || r.Semantics.Status != audit.Pass {
		t.Fatalf("exit %d: %+v", exit, r)
	}
	if c := r.Semantics.Checks[0]; strings.HasPrefix(c.Text, "0 ") || c.Open != "" {
		t.Errorf("%+v", c)
	}
	// A log cut below its anchor, and one whose anchor is gone or elsewhere.
	if err := os.Remove(filepath.Join(dir, "anchor")); err != nil {
		t.Fatal(err)
	}
	if exit, r := verifyJSON(t, "--data", dir); exit != audit.ExitImpossible || r.Completeness.Status != audit.NotRun {
		t.Errorf("without an anchor: exit %d: %+v", exit, r)
	}
	if exit, r := verifyJSON(t, "--data", dir, "--checkpoint", kept); exit != audit.ExitPass {
		t.Errorf("with the anchor from elsewhere: exit %d: %+v", exit, r)
	}
}

// TestDamagedDataDirectory: a bit changed anywhere in the store's files, as a
// disk would, never passes for whole: it is found, or the log ends before its
// anchor, or the store does not open.
func TestDamagedDataDirectory(t *testing.T) {
	dir := realLedger(t)
	tried := 0
	names, err := filepath.Glob(filepath.Join(dir, "db", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range names {
		original, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if ext := filepath.Ext(path); ext != ".log" && ext != ".sst" || len(original) == 0 {
			continue
		}
		for i := 0; i < len(original); i += 1 + len(original)/12 {
			b := bytes.Clone(original)
			b[i] ^= 0x10
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			exit := run([]string{"--data", dir}, nil, &out, &errs)
			tried++
			if exit == audit.ExitPass && !unchanged(t, dir) {
				t.Errorf("%s, byte %d: exit 0\n%s", filepath.Base(path), i, out.String())
			}
		}
		if err := os.WriteFile(path, original, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if tried < 30 {
		t.Errorf("only %d changes tried", tried)
	}
}

// unchanged reports whether a log that passed is still whole to its last event:
// a bit in a part that nothing reads, such as the snapshot or padding, is no
// damage to the log.
func unchanged(t *testing.T, dir string) bool {
	t.Helper()
	_, r := verifyJSON(t, "--data", dir)
	anchor, err := os.ReadFile(filepath.Join(dir, "anchor"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(anchor, fmt.Appendf(nil, "\n%d\n", r.Events))
}

// TestR82_ReplayFindsAForgery: a decision changed by somebody with the log's own
// key, the chain, the tree and the signature made to fit: integrity passes, and
// judging again finds it and names it. Without sealed payloads, what could not
// be judged is counted, and is no pass.
func TestR82_ReplayFindsAForgery(t *testing.T) {
	dir := realLedger(t)
	out := filepath.Join(t.TempDir(), "export")
	d, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	source := d.Source()
	if err := audit.WriteExport(out, source); err != nil {
		t.Fatal(err)
	}
	exit, r := verifyJSON(t, "--export", out, "--replay")
	if exit != audit.ExitImpossible || r.Semantics.Status != audit.Impossible || !strings.Contains(r.Semantics.Checks[0].Open, "not judged") {
		t.Errorf("an export without its sealed payloads: exit %d: %+v", exit, r.Semantics)
	}
	skey, err := os.ReadFile(filepath.Join(dir, "keys", "checkpoint.key"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(strings.TrimSpace(string(skey)))
	if err != nil {
		t.Fatal(err)
	}
	l := &logtest.Log{Origin: signer.Name(), Signer: signer, Payloads: map[uint64]audit.Payload{}}
	forged := uint64(0)
	err = source.Events(1, source.Size, func(seq uint64, b []byte) error {
		l.Entries = append(l.Entries, bytes.Clone(b))
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		if d, ok := e.Body.(*events.Decision); ok && d.Reason == "not_visible_from" {
			forged = seq
		}
		if p, err := audit.OpenExport(os.DirFS(out)); err == nil {
			if open, err := p.Payload(seq); err == nil && open.State == audit.PayloadReadable {
				l.Payloads[seq] = open
			}
		}
		return nil
	})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil || forged == 0 {
		t.Fatal(forged, err)
	}
	l.Edit(int(forged-1), func(e *events.Event) {
		d := e.Body.(*events.Decision)
		d.Allowed, d.Reason, d.Blind = true, "visible_from", ""
	})
	l.Relink(int(forged))
	bad := export(t, l.Files())
	if exit, r := verifyJSON(t, "--export", bad); exit != audit.ExitPass || r.Semantics.Status != audit.NotRun {
		t.Errorf("the forgery by its hashes: exit %d: %+v", exit, r)
	}
	exit, r = verifyJSON(t, "--export", bad, "--replay")
	if exit != audit.ExitFail || r.Integrity.Status != audit.Pass || r.Semantics.Status != audit.Fail {
		t.Fatalf("the forgery judged again: exit %d: %+v", exit, r)
	}
	if r.Faults[0].Seq != forged || r.Faults[0].Check != "replay" {
		t.Errorf("named %+v, forged %d", r.Faults[0], forged)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/epoch"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

const oldOrigin, newOrigin = "log.example/epochs/1", "log.example/epochs/2"

// next is the log that continues another, as its event 1 says.
func next(origin string, p *events.Previous) *logtest.Log {
	l := logtest.Sample(origin, 2, 9)
	l.Edit(0, func(e *events.Event) { e.Body.(*events.LedgerCreated).Previous = p })
	l.Relink(1)
	return l
}

func named(l *logtest.Log, note []byte) *events.Previous {
	return &events.Previous{Origin: l.Origin, Checkpoint: string(note), Reason: "loss"}
}

// TestR81_TheEpochBeforeIsTheRememberedOne: event 1 of a new epoch names a
// checkpoint of the old, which is the one that was kept, or goes on from it.
func TestR81_TheEpochBeforeIsTheRememberedOne(t *testing.T) {
	old, stranger := logtest.Sample(oldOrigin, 1, 20), logtest.Sample("log.example/other/1", 1, 20)
	other := old.Clone() // the same key, the same size, another history
	other.Edit(8, func(e *events.Event) { e.Body.(*events.Decision).OperationID = "another" })
	other.Relink(9)
	thief := logtest.Sample(oldOrigin, 3, 20)
	kept := put(t, "kept", old.Note(12))
	for name, c := range map[string]struct {
		log   *logtest.Log
		more  []string
		exit  int
		found string
	}{
		"the remembered one":                   {log: next(newOrigin, named(old, old.Note(12))), exit: audit.ExitPass, found: "continues"},
		"wrong origin":                         {log: next("log.example/other/2", named(stranger, stranger.Note(12))), exit: audit.ExitFail, found: "log.example/other/1"},
		"an older note":                        {log: next(newOrigin, named(old, old.Note(11))), exit: audit.ExitFail, found: "size 11: 1 events that were seen are left out"},
		"the same size, another root":          {log: next(newOrigin, named(old, other.Note(12))), exit: audit.ExitFail, found: "two histories under one key"},
		"signed by somebody else":              {log: next(newOrigin, named(old, thief.Note(12))), exit: audit.ExitFail, found: "signed by the given key"},
		"an epoch left out":                    {log: next("log.example/epochs/3", named(old, old.Note(12))), exit: audit.ExitFail, found: "expected epoch 2"},
		"a log that continues none":            {log: next(newOrigin, nil), exit: audit.ExitFail, found: "continues none"},
		"a later one, and no log":              {log: next(newOrigin, named(old, old.Note(15))), exit: audit.ExitImpossible, found: "--previous-export"},
		"a later one, shown":                   {log: next(newOrigin, named(old, old.Note(15))), more: []string{"--previous-export", export(t, old.Files())}, exit: audit.ExitPass, found: "size 15, which holds every event of the remembered size 12"},
		"a later one of another past":          {log: next(newOrigin, named(old, other.Note(15))), more: []string{"--previous-export", export(t, old.Files())}, exit: audit.ExitFail, found: "at size 15"},
		"a past that is not remembered":        {log: next(newOrigin, named(old, other.Note(15))), more: []string{"--previous-export", export(t, other.Files())}, exit: audit.ExitFail, found: "at size 12"},
		"shown by another log":                 {log: next(newOrigin, named(old, old.Note(15))), more: []string{"--previous-export", export(t, stranger.Files())}, exit: audit.ExitFail, found: "log.example/other/1"},
		"beyond the log at hand":               {log: next(newOrigin, named(old, logtest.Sample(oldOrigin, 1, 30).Note(25))), more: []string{"--previous-export", export(t, old.Files())}, exit: audit.ExitImpossible, found: "has 20 events"},
		"a later one that nobody of it signed": {log: next(newOrigin, named(old, thief.Note(15))), more: []string{"--previous-export", export(t, old.Files())}, exit: audit.ExitFail, found: "signed by the keys that were in force"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--export", export(t, c.log.Files()), "--vkey", c.log.VKey, "--previous", kept, "--previous-vkey", old.VKey}, c.more...)
			says(t, c.exit, c.found, args...)
			if c.exit == audit.ExitFail {
				finds(t, "previous", 1, args...)
			}
		})
	}
	l := next(newOrigin, named(old, old.Note(12)))
	says(t, audit.ExitPass, "was not held against a checkpoint remembered", "--export", export(t, l.Files()), "--vkey", l.VKey)
	if _, r := verifyJSON(t, "--export", export(t, old.Files()), "--vkey", old.VKey); len(r.Completeness.Checks) == 0 || failed(r, "previous") || r.Completeness.Checks[len(r.Completeness.Checks)-1].Name == "previous" {
		t.Errorf("of a log that continues none something is said: %+v", r.Completeness)
	}
	one := export(t, l.Files())
	for _, args := range [][]string{
		{"--previous", kept}, {"--previous-vkey", old.VKey}, {"--previous-data", "x"}, {"--previous", "", "--previous-vkey", old.VKey},
		{"--previous", kept, "--previous-vkey", "none"}, {"--previous", kept, "--previous-vkey", l.VKey}, {"--previous", kept + ".none", "--previous-vkey", old.VKey},
		{"--previous", kept, "--previous-vkey", old.VKey, "--previous-export", one, "--previous-data", one},
		{"--previous", kept, "--previous-vkey", old.VKey, "--previous-export", one + ".none"},
		{"--previous", kept, "--previous-vkey", old.VKey, "--resume", filepath.Join(t.TempDir(), "state")},
		{"--previous", put(t, "empty", old.Note(0)), "--previous-vkey", old.VKey},
	} {
		says(t, audit.ExitImpossible, "", append([]string{"--export", one, "--vkey", l.VKey}, args...)...)
	}
}

// TestR81_ARealEpochContinuesTheRememberedLog: what epoch new makes passes, and
// the old directory shows that the log went on after it was last looked at.
func TestR81_ARealEpochContinuesTheRememberedLog(t *testing.T) {
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "old")}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, o)
	s.Family()
	s.Stop()
	kept, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
	if err != nil {
		t.Fatal(err)
	}
	s = replaytest.Start(t, o)
	s.Control(ledger.AdminID, "agent.revoke", `{"agent_id":"formatter"}`)
	s.Stop()
	data := filepath.Join(t.TempDir(), "new")
	if _, err := epoch.New(epoch.Options{From: o.Dir, Data: data, Reason: "compromise"}); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(o.Dir, "keys", "checkpoint.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--data", data, "--previous", put(t, "kept", kept), "--previous-vkey", "@" + put(t, "key", key)}
	says(t, audit.ExitImpossible, "--previous-data", args...)
	says(t, audit.ExitPass, "which holds every event of the remembered size", append(args, "--previous-data", o.Dir)...)
}

// TestR81_TheKeyOfAnotherEpochIsNamed: who pinned the key of the epoch before is
// told what follows, of a log, of a proof, and of the log before under the new key.
func TestR81_TheKeyOfAnotherEpochIsNamed(t *testing.T) {
	old := logtest.Sample(oldOrigin, 1, 20)
	l := next(newOrigin, named(old, old.Note(20)))
	receipt, proof := put(t, "receipt", receiptOf(t, l, 9).Encode()), put(t, "proof", inclusion(t, l, 9))
	for _, args := range [][]string{{"--export", export(t, l.Files())}, {"--receipt", receipt, "--proof", proof}} {
		says(t, audit.ExitFail, "the pinned key is of epoch 1 and this log is epoch 2 of that name", append(args, "--vkey", old.VKey)...)
		says(t, audit.ExitFail, "--previous FILE --previous-vkey KEY", append(args, "--vkey", old.VKey)...)
	}
	says(t, audit.ExitFail, "is epoch 1 of that name, which was gone on with", "--export", export(t, old.Files()), "--vkey", l.VKey)
	stranger := logtest.Sample("log.example/other/1", 1, 20)
	if _, r := verifyJSON(t, "--export", export(t, l.Files()), "--vkey", stranger.VKey); strings.Contains(r.Faults[0].Found, "pinned key is of") {
		t.Errorf("another log's key: %v", r.Faults)
	}
}

// TestR81_AnEpochAfterARotation: the key of event 1, and the one that follows on
// it, each tell whether a new epoch goes on from what was remembered.
func TestR81_AnEpochAfterARotation(t *testing.T) {
	old := logtest.Sample(oldOrigin, 1, 14)
	old.Rotate(2)
	old.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"})
	old.Retire()
	for len(old.Entries) < 20 {
		old.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"})
	}
	log, before := []string{"--previous-export", export(t, old.Files())}, put(t, "before", noteBy(old, 12, 1))
	l := next(newOrigin, named(old, noteBy(old, 20, 2)))
	forged := next(newOrigin, named(old, noteBy(old, 20, 1))) // by the key that was retired
	for what, c := range map[string]struct {
		log        *logtest.Log
		note, vkey string
		more       []string
		exit       int
		found      string
	}{
		"remembered before, shown":                  {l, before, old.VKey, log, audit.ExitPass, "holds every event of the remembered size 12"},
		"remembered before, no log":                 {l, before, old.VKey, nil, audit.ExitFail, "was rotated, only the log shows it"},
		"remembered after, the new key":             {l, put(t, "after", noteBy(old, 20, 2)), old.Next[0], nil, audit.ExitPass, "continues"},
		"remembered after, the old key":             {l, put(t, "after", noteBy(old, 20, 2)), old.VKey, log, audit.ExitPass, "continues"},
		"remembered between, the old key":           {l, put(t, "after", noteBy(old, 18, 2)), old.VKey, log, audit.ExitPass, "holds every event of the remembered size 18"},
		"remembered after, the old key, no log":     {l, put(t, "after", noteBy(old, 20, 2)), old.VKey, nil, audit.ExitImpossible, "if that log's key was rotated, give that log"},
		"remembered of a stranger":                  {l, put(t, "after", noteBy(old, 20, 9)), old.VKey, log, audit.ExitImpossible, "cannot be used"},
		"remembered of the retired key":             {l, put(t, "after", noteBy(old, 20, 1)), old.VKey, log, audit.ExitImpossible, "could not"},
		"remembered after, an earlier one is named": {next(newOrigin, named(old, noteBy(old, 12, 1))), put(t, "after", noteBy(old, 20, 2)), old.VKey, log, audit.ExitFail, "8 events that were seen are left out"},
		"named by the retired key":                  {forged, before, old.VKey, log, audit.ExitFail, "in force"},
	} {
		says(t, c.exit, c.found, append([]string{"--export", export(t, c.log.Files()), "--vkey", c.log.VKey, "--previous", c.note, "--previous-vkey", c.vkey}, c.more...)...)
		if t.Failed() {
			t.Fatal(what)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// rotating is a log whose key is rotated twice as it is verified again and again:
// at is told of it after every event.
func rotating(at func(*logtest.Log)) *logtest.Log {
	l := logtest.Sample(testOrigin, 1, 14)
	at(l)
	for _, n := range []byte{2, 3} {
		for _, step := range []func(){func() { l.Rotate(n) }, func() { l.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"}) }, l.Retire} {
			step()
			at(l)
		}
	}
	return l
}

// TestR81_ResumeAcrossRotations: a log is taken up before, between and after the
// events of two rotations, under any key that it was verified with, and nothing
// is read twice; what a key signs where it is not in force is found as ever.
func TestR81_ResumeAcrossRotations(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var states [][]byte
	pinned := ""
	l := rotating(func(l *logtest.Log) {
		if pinned == "" {
			pinned = l.VKey
		}
		n := len(l.Entries)
		exit, r := verifyJSON(t, "--export", export(t, l.Files()), "--vkey", pinned, "--resume", state)
		if exit != audit.ExitPass || len(states) > 0 && !strings.Contains(open(r), "operation ids of events 1–") {
			t.Fatalf("size %d: exit %d %+v", n, exit, r)
		}
		b, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, b)
	})
	whole := export(t, l.Files())
	for i, b := range states {
		for _, vkey := range append([]string{l.VKey}, l.Next...) {
			known, err := audit.ParseKnown(b)
			if err != nil {
				t.Fatal(err)
			}
			exit, r := mayVerify(t, "--export", whole, "--vkey", vkey, "--resume", put(t, "state", b))
			if want := map[bool]int{true: audit.ExitPass, false: audit.ExitImpossible}[known.Knows(vkey)]; exit != want || want == audit.ExitPass && len(r.Keys) != 3 {
				t.Errorf("state %d, key %s: exit %d %+v", i, vkey, exit, r)
			}
		}
	}
	// What comes behind the place is held to the keys as if all were read.
	both := states[2] // of 16 events, two keys in force
	forged := map[string]func(l *logtest.Log){
		"the hand-over of another root": func(l *logtest.Log) {
			l.Edit(16, func(e *events.Event) {
				other := l.Clone()
				other.Edit(3, func(e *events.Event) { e.Time++ })
				e.Body.(*events.KeyRetired).Checkpoint = string(noteBy(other, 16, 1, 2))
			})
		},
		"the hand-over by the new key alone": func(l *logtest.Log) {
			l.Edit(16, func(e *events.Event) { e.Body.(*events.KeyRetired).Checkpoint = string(noteBy(l, 16, 2)) })
		},
		"the hand-over of before the new key": func(l *logtest.Log) {
			l.Edit(16, func(e *events.Event) { e.Body.(*events.KeyRetired).Checkpoint = string(noteBy(l, 14, 1, 2)) })
		},
	}
	for what, change := range forged {
		bad := l.Clone()
		change(bad)
		bad.Relink(17)
		for _, args := range [][]string{{"--resume", put(t, "state", both)}, nil} {
			exit, r := verifyJSON(t, append([]string{"--export", export(t, bad.Files()), "--vkey", l.VKey}, args...)...)
			if exit != audit.ExitFail || !failed(r, "keys") || r.Faults[0].Seq != 17 {
				t.Errorf("%s, %v: exit %d %+v", what, args, exit, r.Faults)
			}
		}
	}
	retired := l.Files()
	retired["checkpoint"] = noteBy(l, len(l.Entries), 1)
	if exit, r := verifyJSON(t, "--export", export(t, retired), "--vkey", l.VKey, "--resume", put(t, "state", states[len(states)-1])); exit != audit.ExitFail || !failed(r, "checkpoint") {
		t.Errorf("signed by a retired key: exit %d %+v", exit, r.Faults)
	}
	// A state whose keys are no timeline is none.
	last := states[len(states)-1]
	for was, is := range map[string]string{`verified/v2`: `verified/v1`, `"from": 15`: `"from": 25`, `"from": 1,`: `"from": 2,`, `"until": 17`: `"until": 15`, `"until": 20`: `"until": 18`, l.Next[1]: l.Next[0]} {
		bad := bytes.Replace(last, []byte(was), []byte(is), 1)
		if was == l.Next[1] {
			bad = bytes.ReplaceAll(last, []byte(was), []byte(is))
		}
		if bytes.Equal(bad, last) {
			t.Fatalf("%s: the state has none\n%s", was, last)
		}
		if _, err := audit.ParseKnown(bad); err == nil {
			t.Errorf("%s for %s is taken", is, was)
		}
	}
}

// mayVerify is verifyJSON where nothing may be reported.
func mayVerify(t testing.TB, args ...string) (int, audit.Report) {
	t.Helper()
	var out, errs bytes.Buffer
	exit := run(append(args, "-o", "json"), nil, &out, &errs)
	var r audit.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil && out.Len() > 0 {
		t.Fatal(err)
	}
	return exit, r
}

// noteBy is the checkpoint of the first size events under the keys made from n.
func noteBy(l *logtest.Log, size int, n ...byte) []byte {
	c := *l
	c.Also = nil
	for i, n := range n {
		signer, _ := logtest.Key(l.Origin, n)
		if c.Also = append(c.Also, signer); i == 0 {
			c.Signer, c.Also = signer, nil
		}
	}
	return c.Note(size)
}

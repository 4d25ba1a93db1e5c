package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
)

// What would not be looked at is refused, and nothing is taken for done that was
// not.
func TestWhatWouldBeIgnoredIsRefused(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	dir, a, zero := export(t, l.Files()), put(t, "a", l.Note(12)), put(t, "z", l.Note(0))
	alone := []string{"--compare", a, a, "--vkey", l.VKey}
	whole := []string{"--export", dir, "--vkey", l.VKey}
	says(t, audit.ExitPass, "authentic:", alone...)
	says(t, audit.ExitImpossible, "cover no event", "--compare", zero, zero, "--vkey", l.VKey)
	for _, more := range [][]string{{"--replay"}, {"--checkpoint", a}, {"--checkpoint", a, "--seen", "2030-01-01T00:00:00Z"}, {"--resume", "x"}, {"--mirror", "x"}} {
		says(t, audit.ExitImpossible, "--compare alone", append(alone[:5:5], more...)...)
	}
	for _, more := range [][]string{{"--checkpoint", a, "--checkpoint", a}, {"--replay", "--replay"}, {"--vkey", l.VKey}, {"--checkpoint", a, "--seen", "", "--skew", "1s"}, {"--skew", "1m"}, {"--checkpoint", a, "--skew", "1m"}} {
		says(t, audit.ExitImpossible, "see verify --help", append(whole[:4:4], more...)...)
	}
}

// The state is kept only where all that was asked passed.
func TestResumeKeepsNothingOfWhatDidNotPass(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	dir, state := export(t, l.Files()), filepath.Join(t.TempDir(), "state")
	_, key := cosign("a", time.Now(), nil)
	for _, more := range [][]string{{"--mirror", put(t, "m", []byte("x\n"))}, {"--mirror", put(t, "none", nil)}, {"--require-quorum", "1", "--witness", key}} {
		if exit, r := verifyJSON(t, append(more, "--export", dir, "--vkey", l.VKey, "--resume", state)...); exit == audit.ExitPass || len(r.Completeness.Checks) == 0 {
			t.Errorf("%v: exit %d", more, exit)
		}
		if _, err := os.Stat(state); err == nil {
			t.Fatalf("%v: the state was written", more)
		}
	}
	says(t, audit.ExitPass, "authentic:", "--export", dir, "--vkey", l.VKey, "--resume", state)
	if _, err := os.Stat(state); err != nil {
		t.Error(err)
	}
}

// A policy holds for the logs it names, and a cosignature from the future counts
// for nothing.
func TestWitnessesOfThisLogAndNow(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	f := l.Files()
	line, key := cosign("a", time.Now(), l.Note(14))
	f["checkpoint"] = append(l.Note(14), line...)
	args := []string{"--export", export(t, f), "--vkey", l.VKey}
	rest := "\nwitness w " + key + "\nquorum w\n"
	other := "log " + logtest.New("another.example/log", 50).VKey
	says(t, audit.ExitPass, "1 of 1 witnesses", append(args[:4:4], "--witness-policy", put(t, "own", []byte(other+"\nlog "+l.VKey+rest)))...)
	says(t, audit.ExitImpossible, "for other logs", append(args[:4:4], "--witness-policy", put(t, "other", []byte(other+rest)))...)
	line, _ = cosign("a", time.Now().Add(1000*time.Hour), l.Note(14))
	f["checkpoint"] = append(l.Note(14), line...)
	args[1] = export(t, f)
	for _, more := range [][]string{nil, {"--max-age", "1h"}} {
		says(t, audit.ExitFail, "dated ahead", append(args[:4:4], append(more, "--require-quorum", "1", "--witness", key)...)...)
	}
}

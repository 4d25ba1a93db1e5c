package main

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// A pinned key answers for a log that it, or a key it handed over to, has signed;
// not for one that only names it, behind all that is signed.
func TestR81_APinnedKeyThatSignedNothing(t *testing.T) {
	pinned := logtest.New(testOrigin, 99).VKey // of another log: the forger has this line and no more
	forged := logtest.Sample(testOrigin, 1, 14)
	forged.Add("admin", 0, &events.KeyRotated{Key: events.KeyCheckpoint, Number: 2, PublicKey: pinned})
	size := len(forged.Entries)
	for _, signed := range []int{size - 1, 3} {
		exit, r := verifyJSON(t, "--data", build(t, forged, forged.Leaves(), signed), "--vkey", pinned)
		if exit != audit.ExitFail || r.Verdict != "failed" || len(r.Faults) == 0 || !strings.Contains(r.Faults[0].Found, "signed nothing") {
			t.Errorf("signed up to %d: exit %d, %s %v", signed, exit, r.Verdict, r.Faults)
		}
	}
	// Its own first key answers for what is signed.
	if exit, r := verifyJSON(t, "--data", build(t, forged, forged.Leaves(), size-1), "--vkey", forged.VKey); exit != audit.ExitPass || r.Verdict != "authentic" {
		t.Errorf("with the key that signed: exit %d, %s %v", exit, r.Verdict, r.Faults)
	}
}

// A fault that is listed is a check that failed, whatever it is a fault of.
func TestR80_NoFaultIsListedBesideAPass(t *testing.T) {
	for name, body := range map[string]events.Body{
		"the only key is retired":   &events.KeyRetired{Key: events.KeyCheckpoint, Number: 1, Checkpoint: "x"},
		"a key of the wrong number": &events.KeyRotated{Key: events.KeyCheckpoint, Number: 9, PublicKey: "junk"},
		"a key that is none":        &events.KeyRotated{Key: events.KeyCheckpoint, Number: 2, PublicKey: "junk"},
	} {
		l := logtest.Sample(testOrigin, 1, 14)
		l.Add("admin", 0, body)
		exit, r := verifyJSON(t, "--export", export(t, l.Files()), "--vkey", l.VKey)
		if exit != audit.ExitFail || r.Integrity.Status != audit.Fail || len(r.Faults) == 0 || r.Faults[0].Seq != 15 {
			t.Errorf("%s: exit %d, %s %v", name, exit, r.Integrity.Status, r.Faults)
		}
	}
}

// A checkpoint of no events answers for none.
func TestR81_ACheckpointOfNothing(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	exit, r := verifyJSON(t, "--data", build(t, l, l.Leaves(), 0), "--vkey", l.VKey)
	if exit != audit.ExitImpossible || r.Integrity.Status == audit.Pass {
		t.Errorf("exit %d, %s", exit, r.Integrity.Status)
	}
}

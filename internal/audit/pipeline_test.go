package audit_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// Where a log is cut into chunks to be verified makes no difference: roots at
// any size, and damage beside every cut is named as elsewhere.
func TestChunksMakeNoDifference(t *testing.T) {
	const size = 8200 // two chunks and a bit
	l := logtest.Sample(origin, 1, size)
	for _, at := range []int{1, 2, 4095, 4096, 4097, 5000, 8191, 8192, 8193, size} {
		s := l.Source()
		s.Checkpoint = l.Note(at)
		if r := verifyLog(t, s, audit.Options{Remembered: l.Note(at), VKey: l.VKey}); r.Exit != audit.ExitPass || r.Completeness.Status != audit.Pass {
			t.Errorf("checkpoint at %d: %s", at, text(r))
		}
	}
	for _, at := range []uint64{4095, 4096, 4097, 8192, 8193, size} {
		s := l.Source()
		s.Events = failing(s.Events, errors.New("bad block"), at)
		if r := verifyLog(t, s, audit.Options{}); len(r.Faults) != 1 || r.Faults[0].Seq != at || status(r, "checkpoint") != audit.Pass || r.Events != size {
			t.Errorf("unreadable at %d: %s", at, text(r))
		}
		s = l.Source()
		s.Hashes = changed(s.Hashes, tlog.StoredHashIndex(0, int64(at)-1))
		if r := verifyLog(t, s, audit.Options{}); len(r.Faults) != 1 || r.Faults[0].Seq != at || r.Faults[0].Check != "tree" {
			t.Errorf("stored leaf of %d: %s", at, text(r))
		}
		edited := l.Clone()
		edited.Edit(int(at)-1, func(e *events.Event) { e.Agent = "other" })
		s = l.Source()
		s.Events = edited.Source().Events
		r := verifyLog(t, s, audit.Options{})
		named := map[string]bool{}
		for _, f := range r.Faults {
			named[fmt.Sprint(f.Check, f.Seq)] = true
		}
		if !named[fmt.Sprint("tree", at)] || !named["checkpoint0"] || at < size && !named[fmt.Sprint("chain", at+1)] || len(r.Faults) > 3 {
			t.Errorf("changed at %d: %s", at, text(r))
		}
	}
	// A stored node above the chunks.
	s := l.Source()
	s.Hashes = changed(s.Hashes, tlog.StoredHashIndex(13, 0))
	if r := verifyLog(t, s, audit.Options{}); len(r.Faults) != 1 || r.Faults[0].Seq != 1 || r.Faults[0].To != 8192 {
		t.Errorf("node over two chunks: %s", text(r))
	}
	// The rest is given up after so many unreadable events in a row, not before.
	s = l.Source()
	s.Events = func(uint64, uint64, func(uint64, []byte) error) error { return errors.New("bad block") }
	if r := verifyLog(t, s, audit.Options{}); r.Exit != audit.ExitFail || r.Events != 4097 {
		t.Errorf("nothing readable: %d events, %s", r.Events, text(r))
	}
}

// Links and tree alone see a changed byte and a moved event, and are never
// called good.
func TestLinksOnlyIsNeverGood(t *testing.T) {
	opts := audit.Options{LinksOnly: true}
	l := logtest.Sample(origin, 1, 300)
	if r := verifyLog(t, l.Source(), opts); r.Exit != audit.ExitImpossible || r.Verdict != "could not check" || len(r.Faults) != 0 || status(r, "parse") != audit.Impossible || status(r, "tree") != audit.Pass || status(r, "chain") != audit.Pass {
		t.Errorf("%s", text(r))
	}
	edited := l.Clone()
	edited.Edit(99, func(e *events.Event) { e.Agent = "other" })
	s := l.Source()
	s.Events = edited.Source().Events
	if r := verifyLog(t, s, opts); r.Exit != audit.ExitFail || status(r, "chain") != audit.Fail || status(r, "tree") != audit.Fail {
		t.Errorf("%s", text(r))
	}
	swapped := l.Clone()
	swapped.Entries[50], swapped.Entries[51] = swapped.Entries[51], swapped.Entries[50]
	s = l.Source()
	s.Events = swapped.Source().Events
	if r := verifyLog(t, s, opts); r.Exit != audit.ExitFail || status(r, "sequence") != audit.Fail {
		t.Errorf("%s", text(r))
	}
}

// What lies in a store and belongs to no log is a fault.
func TestStrangersAreFaults(t *testing.T) {
	l := logtest.Sample(origin, 1, 300)
	s := l.Source()
	s.Strangers = func() ([]string, error) { return []string{"key 78"}, nil }
	if r := verifyLog(t, s, audit.Options{}); r.Exit != audit.ExitFail || status(r, "files") != audit.Fail || len(r.Faults) != 1 {
		t.Errorf("%s", text(r))
	}
	s.Strangers = nil
	s.Payloads = func(from, to uint64) (audit.PayloadWalk, error) {
		return audit.PayloadWalk{At: s.Payload, End: func() ([]uint64, error) { return []uint64{9}, nil }}, nil
	}
	if r := verifyLog(t, s, audit.Options{}); r.Exit != audit.ExitFail || status(r, "payloads") != audit.Fail || r.Faults[0].Seq != 9 {
		t.Errorf("%s", text(r))
	}
}

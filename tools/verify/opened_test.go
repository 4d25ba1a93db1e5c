package main

import (
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// R82: from an export with payloads every decision is judged again, as from the
// data directory; from one without, what could not be is counted.
func TestR82_AnExportWithPayloadsIsJudgedWhole(t *testing.T) {
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, o)
	s.Family()
	for _, key := range []string{"a", "b"} {
		s.Propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"`+key+`","value":"secret"}`)
	}
	s.Stop()
	d, err := datadir.Open(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	opened, plain := filepath.Join(t.TempDir(), "opened"), filepath.Join(t.TempDir(), "plain")
	if err := audit.WriteExportOpened(opened, d.Source()); err != nil {
		t.Fatal(err)
	}
	if err := audit.WriteExport(plain, d.Source()); err != nil {
		t.Fatal(err)
	}
	if exit, r := verifyJSON(t, "--export", opened, "--replay"); exit != 0 || r.Semantics.Status != audit.Pass {
		t.Errorf("with payloads: exit %d, %+v %+v", exit, r.Semantics, r.Faults)
	}
	if exit, r := verifyJSON(t, "--export", plain, "--replay"); exit != 2 || r.Semantics.Status != audit.Impossible || r.Integrity.Status != audit.Pass {
		t.Errorf("without: exit %d, %+v %+v", exit, r.Semantics, r.Faults)
	}
	if exit, out := python(t, opened); exit != 0 {
		t.Errorf("the second implementation: exit %d: %s", exit, out)
	}
}

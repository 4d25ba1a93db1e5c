package replay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// keyText reads one of a ledger's key files.
func keyText(t testing.TB, o ledger.Options, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(o.Dir, "keys", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// forgeDir writes a whole data directory as only the holder of all keys of the
// ledger in o can: the log with one event changed, chained, its tree built and
// its anchor signed anew, and everything else as it lay in o.
func forgeDir(t testing.TB, o ledger.Options, change func(*log) int) (ledger.Options, uint64) {
	t.Helper()
	l := read(t, o)
	seq := uint64(change(l)) + 1
	src := l.rechain(t)
	from, err := store.OpenReadOnly(o.Dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	batch := store.Batch{First: 1, Keys: map[string][]byte{}}
	err = src.Events(1, src.Size, func(seq uint64, b []byte) error {
		batch.Events, batch.Leaves = append(batch.Events, b), append(batch.Leaves, events.LeafHash(b))
		record, ok, err := from.Payload(seq)
		if ok {
			batch.Payloads = append(batch.Payloads, store.Payload{Seq: seq, Record: record})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []string{"nobody", "admin", "clerk", "watcher", "report_manager", "researcher", "formatter"} {
		if key, ok, err := from.DataKey(owner); err != nil {
			t.Fatal(err)
		} else if ok {
			batch.Keys[owner] = key
		}
	}
	signer, err := note.NewSigner(keyText(t, o, "checkpoint.key"))
	if err != nil {
		t.Fatal(err)
	}
	forged := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	err = store.Init(forged.Dir, store.Options{}, from.Origin(), func(tmp string, st *store.Store) error {
		commit, err := st.Append(batch)
		if err == nil {
			err = commit.Wait()
		}
		if err != nil {
			return err
		}
		root, err := st.Root(src.Size)
		if err != nil {
			return err
		}
		signed, err := store.SignCheckpoint(signer, store.Checkpoint{Origin: st.Origin(), Size: src.Size, Root: root})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, "anchor"), signed, 0o600); err != nil {
			return err
		}
		return os.CopyFS(filepath.Join(tmp, "keys"), os.DirFS(filepath.Join(o.Dir, "keys")))
	})
	if err != nil {
		t.Fatal(err)
	}
	return forged, seq
}

// A directory forged with every key of the ledger is whole to the auditor, opens
// and serves; only judging it again finds the one decision that the rules would
// not give.
func TestR82_AForgedDirectoryIsWholeButItsDecisionIsFound(t *testing.T) {
	o := scenario(t)
	same, _ := forgeDir(t, o, func(*log) int { return 0 })
	replaytest.CheckLedger(t, same)

	forged, seq := forgeDir(t, o, func(l *log) int {
		i, d := l.decision(t, "researcher", "action.authorize", "action_not_in_effective_capabilities")
		d.Allowed, d.Reason = true, "action_allowed"
		return i
	})
	s := replaytest.Start(t, forged)
	r := s.Propose("report_manager", "memory.read", `{"namespace":"project","key":"client_region"}`)
	if r.Reason != string(reason.VisibleFrom) {
		t.Errorf("the forged log does not serve: %s", r.Text)
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	report, err := replaytest.Check(forged)
	if err == nil || report.Found != 1 || report.Findings[0].Seq != seq {
		t.Errorf("forged at %d, report %+v, %v", seq, report, err)
	}
	if !report.StoredSame {
		t.Error("the decision is all that is forged, and yet the projection differs")
	}
}

// BenchmarkRun judges a log of reads, writes and authorisations again.
func BenchmarkRun(b *testing.B) {
	o := ledger.Options{Dir: filepath.Join(b.TempDir(), "data"), QueueMax: 1 << 16}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		b.Fatal(err)
	}
	s := replaytest.Start(b, o)
	s.Family()
	const n = 20_000
	outstanding := make(chan struct{}, 500) // as much as the queue takes from one
	for i := range n {
		operation, body := "memory.read", `{"namespace":"project","key":"client_region"}`
		switch i % 5 {
		case 3:
			operation, body = "memory.write", fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"notes","key":"k%d","value":{"text":"some words"},"operation_id":"op-%d"}`, i, i)
		case 4:
			operation, body = "action.authorize", `{"action":"artifact.save","arguments":{"path":"draft/a.md","size":100}}`
		}
		p := replaytest.Proposal(wire.Propose, "researcher", operation, body)
		outstanding <- struct{}{}
		if code := s.Submit(p, func(ledger.Answer) { <-outstanding }); code != "" {
			b.Fatal(code)
		}
	}
	for range cap(outstanding) {
		outstanding <- struct{}{}
	}
	if err := s.End(); err != nil {
		b.Fatal(err)
	}
	st, err := store.OpenReadOnly(o.Dir, store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	src, err := replay.Stored(o.Dir, st)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if report := replay.Run(src); report.Found > 0 || report.Err != nil || report.Unjudged() > 0 {
			b.Fatalf("%+v", report)
		}
	}
	b.ReportMetric(float64(src.Size)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

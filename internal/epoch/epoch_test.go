package epoch_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/backup"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/epoch"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// old is a log with something of everything that has to be carried over.
func old(t *testing.T) ledger.Options {
	t.Helper()
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "old")}
	must(t, ledger.Init(o.Dir, ledger.InitOptions{}))
	s := replaytest.Start(t, o)
	s.Family()
	do := func(operation, body string) {
		t.Helper()
		if r := s.Control("admin", operation, body); !r.Allowed {
			t.Fatalf("%s: %s", operation, r.Text)
		}
	}
	do("agent.register", `{"agent_id":"leaver","parent_id":"researcher","capabilities":["memory.read"],"public_key":"`+replaytest.Key("leaver")+`"}`)
	do("agent.revoke", `{"agent_id":"leaver"}`)
	do("hold.place", `{"agent_id":"researcher"}`)
	do("principal.register", `{"id":"gone","role":"auditor","public_key":"`+replaytest.Key("gone")+`"}`)
	do("principal.revoke", `{"id":"gone"}`)
	do("resource.set", `{"id":"plan","classification":"internal","owner":"ops","tags":["a","b"]}`)
	do("environment.set", `{"capabilities":["memory.read","memory.write","artifact.save"]}`)
	do("emergency.deny", `{"agent_id":"formatter","capabilities":["artifact.save"],"reason":"it went wrong"}`)
	if r := s.Propose("report_manager", "restriction.add", `{"id":"small","action":"artifact.save","require":"args.size < 10"}`); !r.Allowed {
		t.Fatalf("restriction: %s", r.Text)
	}
	if r := s.Propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"a","value":{"n":[1,2.50,"<x>"]},"visibility":"children"}`); !r.Allowed {
		t.Fatalf("write: %s", r.Text)
	}
	if r := s.Propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"tasks","key":"t","value":1,"ttl_seconds":60}`); !r.Allowed {
		t.Fatalf("task: %s", r.Text)
	}
	s.Stop()
	return o
}

func folded(t *testing.T, dir string) *ledger.Old {
	t.Helper()
	st, err := store.OpenReadOnly(dir, store.Options{})
	must(t, err)
	t.Cleanup(func() { st.Close() })
	read, err := ledger.ReadOld(dir, st)
	must(t, err)
	return read
}

// Row 62: after a restore a new epoch begins: another origin, positions from 1,
// event 1 names the old log, its last checkpoint and why, and what stood is
// stated anew by decisions that can be judged again.
func TestKind7_62_ANewEpochCarriesOverWhatStood(t *testing.T) {
	o := old(t)
	dir, restored, data := filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "r"), filepath.Join(t.TempDir(), "new")
	_, err := backup.Write(o.Dir, dir, backup.Options{Keys: true})
	must(t, err)
	_, _, err = backup.Restore(dir, restored, backup.RestoreOptions{})
	must(t, err)
	r, err := epoch.New(epoch.Options{From: restored, Data: data, Reason: "loss"})
	must(t, err)

	before, after := folded(t, restored), folded(t, data)
	a, b := before.State, after.State
	if b.Origin != strings.TrimSuffix(a.Origin, "/1")+"/2" || b.Time < a.Time {
		t.Fatalf("origin %s at %s after %s at %s", b.Origin, b.Time, a.Origin, a.Time)
	}
	created := first(t, data)
	anchor, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
	must(t, err)
	if p := created.Previous; p == nil || p.Origin != a.Origin || p.Checkpoint != string(anchor) || p.Reason != "loss" {
		t.Fatalf("previous %+v", created.Previous)
	}
	sameParties(t, a, b)
	sameRecords(t, before, after, r)
	if !slices.Equal(a.HoldList(), b.HoldList()) || len(b.HoldList()) != 1 {
		t.Fatalf("holds %v, were %v", b.HoldList(), a.HoldList())
	}
	if !b.IsNarrowed || !b.Narrowed.Equal(a.Narrowed) || b.PolicyDigest() != a.PolicyDigest() || len(b.Denies()) != 1 || b.Denies()[0].Scope != "formatter" {
		t.Fatalf("narrowed %v, policy %s, denies %v", b.Narrowed, b.PolicyDigest(), b.Denies())
	}
	if got, _ := json.Marshal(b.Resources()); string(got) != string(must1(json.Marshal(a.Resources()))) {
		t.Fatalf("resources %s", got)
	}

	s := replaytest.Start(t, ledger.Options{Dir: data})
	if r := s.Propose("researcher", "memory.read", `{"namespace":"notes","key":"a"}`); !r.Allowed || string(must1(json.Marshal(r.Record.Value))) == "" {
		t.Fatalf("read: %s", r.Text)
	}
	if r := s.Propose("formatter", "action.authorize", `{"action":"artifact.save","arguments":{"size":1}}`); r.Allowed {
		t.Fatalf("the emergency deny is gone: %s", r.Text)
	}
	if r := s.Propose("researcher", "action.authorize", `{"action":"artifact.save","arguments":{"size":100}}`); r.Allowed {
		t.Fatalf("the restriction is gone: %s", r.Text)
	}
	if r := s.Propose("leaver", "memory.read", `{"namespace":"notes","key":"a"}`); r.Reason != "agent_revoked" {
		t.Fatalf("the revoked: %s", r.Text)
	}
	s.Stop() // judges the whole log again
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func first(t *testing.T, dir string) *events.LedgerCreated {
	t.Helper()
	d, err := datadir.Open(dir)
	must(t, err)
	defer d.Close()
	b, err := d.Store.Event(1)
	must(t, err)
	e, err := events.Parse(b)
	must(t, err)
	return e.Body.(*events.LedgerCreated)
}

func sameParties(t *testing.T, a, b *projection.State) {
	t.Helper()
	if !slices.Equal(a.AgentIDs(), b.AgentIDs()) || !slices.Equal(a.PrincipalIDs(), b.PrincipalIDs()) {
		t.Fatalf("agents %v, were %v; principals %v, were %v", b.AgentIDs(), a.AgentIDs(), b.PrincipalIDs(), a.PrincipalIDs())
	}
	for _, id := range a.AgentIDs() {
		x, y := a.Agent(id), b.Agent(id)
		if !x.Declared.Equal(y.Declared) || !x.Use.Equal(y.Use) || !x.Writes.Equal(y.Writes) || x.PublicKey != y.PublicKey || x.Revoked != y.Revoked ||
			!slices.Equal(x.LineageIDs(), y.LineageIDs()) || len(x.Restrictions) != len(y.Restrictions) {
			t.Fatalf("agent %+v, was %+v", y, x)
		}
	}
	for _, id := range a.PrincipalIDs() {
		x, y := a.Principal(id), b.Principal(id)
		if x.Role != y.Role || x.PublicKey != y.PublicKey || x.Root != y.Root || x.Revoked != y.Revoked {
			t.Fatalf("principal %+v, was %+v", y, x)
		}
	}
}

// sameRecords compares all records with their values; what has an end is left,
// and said to be.
func sameRecords(t *testing.T, before, after *ledger.Old, r *epoch.Report) {
	t.Helper()
	n := 0
	before.State.Records(before.State.Time, func(x *projection.Record) bool {
		y := after.State.Live(x.Owner, x.Namespace, x.Key, after.State.Time)
		if x.Expires != 0 {
			if y != nil || !slices.ContainsFunc(r.Left, func(s string) bool { return strings.Contains(s, "researcher:tasks.t") }) {
				t.Fatalf("record %+v was carried over, or not said to be left: %v", x, r.Left)
			}
			return true
		}
		n++
		if y == nil || y.Class != x.Class || y.Visibility != x.Visibility || y.Revision != 1 {
			t.Fatalf("record %+v, was %+v", y, x)
		}
		v, err := before.Value(x)
		must(t, err)
		w, err := after.Value(y)
		must(t, err)
		if string(v) != string(w) {
			t.Fatalf("value %s, was %s", w, v)
		}
		return true
	})
	if n < 5 || r.Records != n {
		t.Fatalf("%d records, %d said", n, r.Records)
	}
}

// No two logs have one name: the old one is not served again, a second epoch
// from it takes a higher number, and none is made beside a writer.
func TestKind7_62_NoPositionIsUsedTwice(t *testing.T) {
	o := old(t)
	s := replaytest.Start(t, o)
	if _, err := epoch.New(epoch.Options{From: o.Dir, Data: filepath.Join(t.TempDir(), "n"), Reason: "loss"}); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("beside a writer: %v", err)
	}
	s.Stop()
	one := filepath.Join(t.TempDir(), "one")
	a, err := epoch.New(epoch.Options{From: o.Dir, Data: one, Reason: "rollback"})
	must(t, err)
	if _, err := ledger.Open(o); !errors.Is(err, ledger.ErrContinued) {
		t.Fatalf("the old log: %v", err)
	}
	two := filepath.Join(t.TempDir(), "two")
	if _, err := epoch.New(epoch.Options{From: o.Dir, Data: two, Reason: "rollback"}); !errors.Is(err, epoch.ErrMade) {
		t.Fatalf("again: %v", err)
	}
	if _, err := epoch.New(epoch.Options{From: o.Dir, Data: two, Reason: "rollback", Epoch: 2}); !errors.Is(err, epoch.ErrUsage) {
		t.Fatalf("the same number: %v", err)
	}
	b, err := epoch.New(epoch.Options{From: o.Dir, Data: two, Reason: "rollback", Epoch: 3})
	must(t, err)
	if a.Origin == b.Origin || first(t, one).CheckpointKey == first(t, two).CheckpointKey {
		t.Fatalf("%+v and %+v", a, b)
	}
}

// After a compromise no key of the ledger's own is one of before.
func TestKind7_ACompromiseMakesNewKeys(t *testing.T) {
	o := old(t)
	data := filepath.Join(t.TempDir(), "new")
	r, err := epoch.New(epoch.Options{From: o.Dir, Data: data, Reason: "compromise"})
	must(t, err)
	if !r.AdminKey {
		t.Fatal("no admin key was made")
	}
	for _, name := range []string{"admin.nk", "checkpoint.key", "checkpoint.vkey", "permit.key", "seal.key"} {
		was, err := os.ReadFile(filepath.Join(o.Dir, "keys", name))
		must(t, err)
		now, err := os.ReadFile(filepath.Join(data, "keys", name))
		must(t, err)
		if string(was) == string(now) {
			t.Errorf("%s is the same", name)
		}
	}
	replaytest.CheckLedger(t, ledger.Options{Dir: data})
}

// The newest checkpoint known is named even where the log does not reach it, and
// one of another log, or of nobody, is refused with nothing made.
func TestKind7_62_TheNewestCheckpointKnownIsNamed(t *testing.T) {
	o := old(t)
	b, r := filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "r")
	_, err := backup.Write(o.Dir, b, backup.Options{Keys: true})
	must(t, err)
	_, _, err = backup.Restore(b, r, backup.RestoreOptions{})
	must(t, err)
	s := replaytest.Start(t, o)
	s.Stop()
	newest := filepath.Join(o.Dir, "anchor")

	other := filepath.Join(t.TempDir(), "other")
	must(t, ledger.Init(other, ledger.InitOptions{}))
	forged := filepath.Join(t.TempDir(), "forged")
	text, err := os.ReadFile(newest)
	must(t, err)
	must(t, os.WriteFile(forged, []byte(strings.Replace(string(text), "\n", "\n9", 1)), 0o600))
	data := filepath.Join(t.TempDir(), "new")
	for _, bad := range []string{filepath.Join(other, "anchor"), forged} {
		if _, err := epoch.New(epoch.Options{From: r, Data: data, Reason: "loss", Anchor: bad}); !errors.Is(err, epoch.ErrDamage) {
			t.Fatalf("%s: %v", bad, err)
		}
		if _, err := os.Stat(filepath.Join(r, ledger.ContinuedFile)); err == nil {
			t.Fatal("the old directory was marked")
		}
	}
	report, err := epoch.New(epoch.Options{From: r, Data: data, Reason: "loss", Anchor: newest})
	must(t, err)
	if report.Size <= report.Events || first(t, data).Previous.Checkpoint != string(text) {
		t.Fatalf("%+v", report)
	}
}

// Without seal.key what is sealed stays closed, and no epoch is made. Where that
// is wanted the rest is carried over, and each record that is not is named.
func TestKind7_AnEpochWithoutTheSealKey(t *testing.T) {
	o := old(t)
	must(t, os.Remove(filepath.Join(o.Dir, "keys", "seal.key")))
	data := filepath.Join(t.TempDir(), "new")
	if _, err := epoch.New(epoch.Options{From: o.Dir, Data: data, Reason: "loss"}); !errors.Is(err, epoch.ErrSealed) {
		t.Fatalf("not told to: %v", err)
	}
	notMade(t, o.Dir, data)
	r, err := epoch.New(epoch.Options{From: o.Dir, Data: data, Reason: "loss", WithoutSealed: true})
	must(t, err)
	left := 0
	for _, line := range r.Left {
		if strings.Contains(line, "seal.key is not here") {
			left++
		}
	}
	if r.Records != 1 || left != 4 {
		t.Fatalf("%d records, %d left: %v", r.Records, left, r.Left)
	}
	replaytest.CheckLedger(t, ledger.Options{Dir: data})
}

// notMade looks that a refused epoch left nothing: no directory, no mark.
func notMade(t *testing.T, from, data string) {
	t.Helper()
	for _, path := range []string{data, filepath.Join(from, ledger.ContinuedFile)} {
		if _, err := os.Lstat(path); err == nil {
			t.Fatalf("%s was made", path)
		}
	}
	if left, _ := filepath.Glob(data + ".*"); len(left) > 0 {
		t.Fatalf("%v is left", left)
	}
}

// Keys of another ledger are refused as keys; the log is not blamed.
func TestKind7_AnEpochWithForeignKeys(t *testing.T) {
	o := old(t)
	other := filepath.Join(t.TempDir(), "other")
	must(t, ledger.Init(other, ledger.InitOptions{}))
	data := filepath.Join(t.TempDir(), "new")
	for _, name := range []string{"seal.key", "checkpoint.key", "checkpoint.vkey", "permit.key"} {
		path := filepath.Join(o.Dir, "keys", name)
		kept := must1(os.ReadFile(path))
		must(t, os.WriteFile(path, must1(os.ReadFile(filepath.Join(other, "keys", name))), 0o600))
		for _, without := range []bool{false, true} {
			_, err := epoch.New(epoch.Options{From: o.Dir, Data: data, Reason: "loss", WithoutSealed: without})
			if !errors.Is(err, ledger.ErrKey) || !strings.Contains(err.Error(), path) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		notMade(t, o.Dir, data)
		must(t, os.WriteFile(path, kept, 0o600))
	}
	must1(epoch.New(epoch.Options{From: o.Dir, Data: data, Reason: "loss"}))
}

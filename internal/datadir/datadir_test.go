package datadir_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const canary = "canary-8831"

// makeLedger makes a real ledger with a policy, an agent, a mandatory record
// and a secret, and closes it unless beside is set, which is called while the
// writer is at work.
func makeLedger(t *testing.T, beside func(dir string, ask func(body string))) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := ledger.Init(dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	ask := func(lane wire.Lane, who, operation, body string) {
		request, code := wire.Decode(lane, operation, []byte(body))
		answer := make(chan ledger.Answer, 1)
		if c := l.Submit(&ledger.Proposal{Lane: lane, Subject: who, Operation: wire.Known(lane, operation), Refused: code, Request: request}, func(a ledger.Answer) { answer <- a }); c != "" {
			t.Fatal(c)
		}
		if a := <-answer; !bytes.Contains(a.Reply, []byte(`"allowed":true`)) {
			t.Fatalf("%s: %s", operation, a.Reply)
		}
	}
	agent, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := agent.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	ask(wire.Control, "admin", "apply", fmt.Sprintf(`{"documents":[%q,%q,%q]}`,
		"apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-1\nenvironment: [memory.read, memory.write]\nnamespaces:\n  policy: {class: mandatory, combine: all_true}\n  credentials: {class: secret}\n",
		"kind: Agent\nid: boss\ncapabilities: [memory.read, memory.write]\npublic_key: "+public+"\n",
		"kind: Memory\nowner: boss\nnamespace: credentials\nkey: token\nvalue: "+canary+"\n"))
	write := func(body string) { ask(wire.Propose, "boss", "memory.write", body) }
	write(`{"owner_agent_id":"boss","namespace":"policy","key":"upload","value":false,"visibility":"descendants"}`)
	for i := range 20 {
		write(fmt.Sprintf(`{"owner_agent_id":"boss","namespace":"notes","key":"k%d","value":%q}`, i, canary))
	}
	if beside != nil {
		beside(dir, write)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return dir
}

func verify(t *testing.T, dir string, opts audit.Options) *audit.Report {
	t.Helper()
	d, err := datadir.Open(dir)
	if r := datadir.Damaged(err); r != nil {
		return r
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := audit.VerifyLog(d.Source(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pinned(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "keys", "checkpoint.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func check(r *audit.Report, name string) audit.Check {
	for _, v := range []audit.Verdict{r.Integrity, r.Completeness, r.Semantics} {
		for _, c := range v.Checks {
			if c.Name == name {
				return c
			}
		}
	}
	return audit.Check{}
}

// TestDataDirectoryVerifies: a real log passes with all its payloads opened, as
// does its export, which holds no sealed value; nothing on disk changes.
func TestDataDirectoryVerifies(t *testing.T) {
	dir := makeLedger(t, nil)
	before := snapshot(t, dir)
	r := verify(t, dir, audit.Options{VKey: pinned(t, dir)})
	if r.Exit != audit.ExitPass || r.Verdict != "authentic" || r.Events < 40 {
		t.Fatalf("%+v", r)
	}
	if c := check(r, "payloads"); !strings.HasPrefix(c.Text, "25 ") || c.Open != "" { // 22 requests, the policy, a mandatory record, a secret
		t.Errorf("payloads: %+v", c)
	}
	if c := check(r, "tree"); strings.HasPrefix(c.Text, "0 ") {
		t.Errorf("no stored hash was compared: %+v", c)
	}
	d, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := audit.WriteExport(out, d.Source()); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for name, b := range snapshot(t, out) {
		if strings.Contains(b, canary) {
			t.Errorf("%s holds a value", name)
		}
	}
	exported, err := audit.VerifyExport(os.DirFS(out), audit.Options{VKey: pinned(t, dir)})
	if err != nil || exported.Exit != audit.ExitPass || exported.Root != r.Root {
		t.Errorf("export: %v %+v", err, exported)
	}
	after := snapshot(t, dir)
	for name, b := range before {
		if after[name] != b {
			t.Errorf("%s changed", name)
		}
		delete(after, name)
	}
	for name := range after {
		t.Errorf("%s is new", name)
	}
}

func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(err, len(files))
	}
	return files
}

// TestBesideTheWriter: verification of a directory whose writer goes on shows
// a log that is whole, again and again, and disturbs nothing.
func TestBesideTheWriter(t *testing.T) {
	makeLedger(t, func(dir string, write func(string)) {
		last := uint64(0)
		for i := range 20 {
			write(fmt.Sprintf(`{"owner_agent_id":"boss","namespace":"live","key":"k%d","value":1}`, i))
			r := verify(t, dir, audit.Options{VKey: pinned(t, dir)})
			if r.Exit != audit.ExitPass {
				t.Fatalf("round %d: %+v", i, r)
			}
			if r.Events <= last {
				t.Errorf("round %d: %d events after %d", i, r.Events, last)
			}
			last = r.Events
		}
	})
}

// TestDamageInTheStore: every change of a stored event, hash or payload by
// somebody who writes through Pebble, checksums and all, is found and named.
func TestDamageInTheStore(t *testing.T) {
	dir := makeLedger(t, nil)
	change := func(t *testing.T, key []byte, f func(v []byte) []byte) string {
		t.Helper()
		bad := filepath.Join(t.TempDir(), "bad")
		if err := os.CopyFS(bad, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		db, err := pebble.Open(filepath.Join(bad, "db"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest})
		if err != nil {
			t.Fatal(err)
		}
		v, closer, err := db.Get(key)
		if err == nil {
			v = bytes.Clone(v)
			closer.Close()
		} else if !errors.Is(err, pebble.ErrNotFound) {
			t.Fatal(err)
		}
		if v = f(v); v == nil {
			err = db.Delete(key, pebble.Sync)
		} else {
			err = db.Set(key, v, pebble.Sync)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return bad
	}
	flip := func(i int) func([]byte) []byte {
		return func(v []byte) []byte { v[i] ^= 1; return v }
	}
	gone := func([]byte) []byte { return nil }
	key := func(kind byte, n byte) []byte { return []byte{kind, 0, 0, 0, 0, 0, 0, 0, n} }
	const seq = 7 // the first decision of boss, with a sealed payload
	for _, c := range []struct {
		name, check string
		key         []byte
		f           func([]byte) []byte
		seq         uint64
	}{
		{"event", "tree", key('e', seq), flip(60), seq},
		{"event gone", "parse", key('e', seq), gone, seq},
		{"event empty", "parse", key('e', seq), func([]byte) []byte { return []byte{} }, seq},
		{"stored leaf hash", "tree", key('h', 1), flip(0), 2}, // stored index 1 is the leaf of event 2, and begins a run
		{"stored inner hash", "tree", key('h', 1), flip(32), 1},
		{"stored hash gone", "tree", key('h', 1), gone, 2},
		{"sealed payload", "payloads", key('p', seq), flip(40), seq},
		{"payload gone", "payloads", key('p', seq), gone, seq},
		{"payload of no commitment", "payloads", key('p', 1), func([]byte) []byte { return []byte("x") }, 1},
		{"payload past the end", "files", key('p', 200), func([]byte) []byte { return []byte("x") }, 0},
		{"hash past the end", "files", key('h', 250), func([]byte) []byte { return []byte("x") }, 0},
		{"unknown kind", "files", []byte("x"), func([]byte) []byte { return []byte("x") }, 0},
		{"unknown setting", "files", []byte("mformat2"), func([]byte) []byte { return []byte("x") }, 0},
		{"the first key of all", "files", []byte{0}, func([]byte) []byte { return []byte("x") }, 0},
		{"payload of another event", "payloads", key('p', seq), func(v []byte) []byte { return bytes.Clone(otherPayload(t, dir)) }, seq},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := verify(t, change(t, c.key, c.f), audit.Options{})
			if r.Exit != audit.ExitFail || check(r, c.check).Status != audit.Fail {
				t.Fatalf("exit %d, %s is %q: %+v", r.Exit, c.check, check(r, c.check).Status, r.Faults)
			}
			if r.Faults[0].Seq != c.seq || r.Faults[0].Expected == "" || r.Faults[0].Found == "" {
				t.Errorf("first fault %+v, want seq %d", r.Faults[0], c.seq)
			}
		})
	}
}

// otherPayload is the stored payload of another event of the same owner.
func otherPayload(t *testing.T, dir string) []byte {
	t.Helper()
	d, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, ok, err := d.Store.Payload(9)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	return b
}

// TestWithoutTheSealKey: what cannot be opened is said to be unchecked, and the
// rest passes.
func TestWithoutTheSealKey(t *testing.T) {
	dir := makeLedger(t, nil)
	if err := os.Remove(filepath.Join(dir, "keys", "seal.key")); err != nil {
		t.Fatal(err)
	}
	r := verify(t, dir, audit.Options{})
	if r.Exit != audit.ExitPass || r.Verdict != "consistent" || check(r, "payloads").Open == "" {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys", "seal.key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := datadir.Open(dir); err == nil {
		d.Close()
		t.Error("a broken seal key is taken")
	}
	wrong := sha256.Sum256(nil)
	if err := os.WriteFile(filepath.Join(dir, "keys", "seal.key"), fmt.Appendf(nil, "%x", wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir, audit.Options{}); r.Exit != audit.ExitFail || check(r, "payloads").Status != audit.Fail {
		t.Errorf("with another seal key: %+v", r)
	}
}

// TestAnchor: a log without its anchor is signed by nobody; one shorter than
// its anchor is truncated.
func TestAnchor(t *testing.T) {
	dir := makeLedger(t, nil)
	short := filepath.Join(t.TempDir(), "short")
	if err := os.CopyFS(short, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Options{Dir: dir}) // which is an event
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	anchor, err := os.ReadFile(filepath.Join(dir, "anchor"))
	if err != nil {
		t.Fatal(err)
	}
	if r := verify(t, short, audit.Options{}); r.Exit != audit.ExitPass || r.Completeness.Status != audit.NotRun {
		t.Errorf("older copy on its own: %+v", r)
	}
	if r := verify(t, short, audit.Options{Remembered: anchor}); r.Exit != audit.ExitFail || r.Completeness.Status != audit.Fail {
		t.Errorf("older copy against a newer checkpoint: %+v", r)
	}
	old, err := os.ReadFile(filepath.Join(short, "anchor"))
	if err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir, audit.Options{Remembered: old}); r.Exit != audit.ExitPass || r.Completeness.Status != audit.Pass {
		t.Errorf("grown log against an older checkpoint: %+v", r)
	}
	if err := os.WriteFile(filepath.Join(short, "anchor"), anchor, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, short, audit.Options{}); r.Exit != audit.ExitFail || check(r, "checkpoint").Status != audit.Fail {
		t.Errorf("older log under its newer anchor: %+v", r)
	}
	if err := os.Remove(filepath.Join(dir, "anchor")); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir, audit.Options{}); r.Exit != audit.ExitImpossible || check(r, "checkpoint").Status != audit.Impossible {
		t.Errorf("without an anchor: %+v", r)
	}
	if d, err := datadir.Open(t.TempDir()); err == nil {
		d.Close()
		t.Error("an empty directory is a log")
	} else if datadir.Damaged(err) != nil {
		t.Errorf("an empty directory is a damaged log: %v", err)
	}
}

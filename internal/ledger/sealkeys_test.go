package ledger_test

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

const rotateSeal = `{"key":"seal"}`

// wrappings are the data keys of a log as they are stored, by name.
func wrappings(t testing.TB, o ledger.Options) map[string][]byte {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	defer st.Close()
	names, err := st.DataKeys()
	must(t, err)
	list := map[string][]byte{}
	for _, name := range names {
		list[name], _, err = st.DataKey(name)
		must(t, err)
	}
	return list
}

// opening counts the sealed payloads of a log, all of which must open, and those
// that open with the seal key in another directory of keys.
func opening(t testing.TB, o ledger.Options, keys string) (all, with int) {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	defer st.Close()
	payloads, err := ledger.OpenPayloads(o.Dir, st)
	must(t, err)
	other, err := ledger.OpenerWith(keys, st.Origin(), st.DataKey)
	must(t, err)
	for seq := uint64(1); seq <= st.Durable(); seq++ {
		record, ok, err := st.Payload(seq)
		must(t, err)
		if !ok || record[0] == 0 {
			continue
		}
		all++
		if _, _, _, err := payloads.Open(seq); err != nil {
			t.Errorf("payload %d: %v", seq, err)
		}
		if _, _, err := other(seq, record); err == nil {
			with++
		}
	}
	return all, with
}

// keptKeys copies the seal key in force out of the directory.
func keptKeys(t testing.TB, o ledger.Options, name string) (dir, text string) {
	t.Helper()
	dir, text = t.TempDir(), keyText(t, o, name)
	must(t, os.WriteFile(filepath.Join(dir, "seal.key"), []byte(text+"\n"), 0o600))
	return dir, text
}

// nowhere fails where an old seal key or what it had wrapped is left in a
// directory.
func nowhere(t testing.TB, o ledger.Options, key string, wrapped map[string][]byte) {
	t.Helper()
	raw, err := hex.DecodeString(key)
	must(t, err)
	for name, text := range contents(t, o.Dir) {
		if strings.Contains(text, key) || strings.Contains(text, string(raw)) {
			t.Errorf("the old key is in %s", name)
		}
		for owner, b := range wrapped {
			if strings.Contains(text, string(b[len(b)-32:])) {
				t.Errorf("the old data key of %s is in %s", owner, name)
			}
		}
	}
}

func sealedOfMany(t testing.TB, s *replaytest.Session) {
	t.Helper()
	for i, value := range []string{"one", "two", "three"} {
		expect(t, s.Propose("researcher", "memory.write", write("k"+value, `"`+strings.Repeat(value, 200)+`"`, 0, "")), reason.OwnerWrite)
		if i == 1 {
			expect(t, s.Control(ledger.AdminID, "payload.erase", `{"agent_id":"researcher","basis":"court_order"}`), reason.ControlDone)
		}
	}
}

// After a rotation every payload opens, those of the keys that erasures brought
// too; the old key opens none and is nowhere in the directory, and nor is any
// wrapping of before. Values go on, and the log verifies and judges again alike.
func TestR3_ARotatedSealKeyOpensNothing(t *testing.T) {
	defer ledger.SetBehindEvents(4)()
	o := newDir(t)
	s := start(t, o)
	s.Family()
	sealedOfMany(t, s)
	kept, key := keptKeys(t, o, "seal.key")
	before := wrappings(t, o)
	if all, with := opening(t, o, kept); all == 0 || all != with || len(before) < 3 {
		t.Fatalf("%d of %d open with the key in force, data keys %v", with, all, before)
	}
	expect(t, s.Control("watcher", "key.rotate", rotateSeal), reason.NotPermittedForRole)
	if _, err := os.Stat(keyFile(o, "seal-2.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a key was made: %v", err)
	}
	expect(t, s.Control(ledger.AdminID, "key.retire", rotateSeal), reason.MalformedRequest)
	expect(t, s.Control(ledger.AdminID, "key.rotate", rotateSeal), reason.ControlDone)
	info, err := os.Stat(keyFile(o, "seal-2.key"))
	if must(t, err); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if all, with := opening(t, o, kept); all == 0 || with != 0 {
		t.Errorf("%d of %d open with the old key", with, all)
	}
	nowhere(t, o, key, before)
	expect(t, s.Propose("researcher", "memory.write", write("later", `"four"`, 0, "")), reason.OwnerWrite)
	expect(t, s.Propose("report_manager", "memory.write", write("first", `"of another"`, 0, "")), reason.ActorIsNotOwner)
	s.Stop()
	if r := audited(t, o, keyText(t, o, "checkpoint.vkey"), nil); r.Exit != audit.ExitPass {
		t.Errorf("the auditor's own reader: %+v", r)
	}
	s = start(t, o)
	expect(t, s.Control(ledger.AdminID, "key.rotate", rotateSeal), reason.ControlDone)
	expect(t, s.Control(ledger.AdminID, "key.rotate", rotateSeal), reason.ControlDone)
	expect(t, s.Propose("researcher", "memory.read", readBody("notes.later")), reason.VisibleFrom)
	s.Stop()
	if all, with := opening(t, o, kept); all == 0 || with != 0 {
		t.Errorf("%d of %d open with the first key", with, all)
	}
	names, err := filepath.Glob(keyFile(o, "seal*"))
	if must(t, err); len(names) != 1 || filepath.Base(names[0]) != "seal-4.key" {
		t.Errorf("seal keys %v", names)
	}
	replaytest.CheckLedger(t, o)
}

// A crash anywhere between the event and the removal of the old key is made good
// at the next opening: whatever was wrapped anew by then, and where nothing was.
func TestR75_ARotationOfTheSealKeyIsFinished(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	sealedOfMany(t, s)
	kept, key := keptKeys(t, o, "seal.key")
	before := wrappings(t, o)
	expect(t, s.Control(ledger.AdminID, "key.rotate", rotateSeal), reason.ControlDone)
	s.Stop()
	names := []string{}
	for name := range before {
		names = append(names, name)
	}
	slices.Sort(names)
	for crash, undone := range map[string][]string{"before the wrapping": names, "a half of it, as no crash leaves it": names[:1], "before the purge": nil} {
		must(t, os.WriteFile(keyFile(o, "seal.key"), []byte(key+"\n"), 0o600))
		for _, name := range undone {
			overwrite(t, o, append([]byte("k"), name...), before[name])
		}
		if _, with := opening(t, o, kept); (with > 0) != (len(undone) > 0) {
			t.Fatalf("%s: %d open with the old key", crash, with)
		}
		if r := audited(t, o, keyText(t, o, "checkpoint.vkey"), nil); r.Exit != audit.ExitPass { // the auditor opens with either
			t.Errorf("%s: %+v", crash, r)
		}
		s = start(t, o)
		if _, with := opening(t, o, kept); with != 0 {
			t.Errorf("%s: %d open with the old key", crash, with)
		}
		nowhere(t, o, key, before)
		s.Stop()
	}
	replaytest.CheckLedger(t, o)
}

// A new seal key whose event a crash took away is used for nothing, and one that
// is in force and not there refuses the start.
func TestR75_ASealKeyWithoutItsEventCountsForNothing(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	sealedOfMany(t, s)
	s.Stop()
	stray := strings.Repeat("5a", 32)
	must(t, os.WriteFile(keyFile(o, "seal-2.key"), []byte(stray+"\n"), 0o600))
	s = start(t, o)
	expect(t, s.Propose("report_manager", "memory.write", write("x", `"y"`, 0, "")), reason.ActorIsNotOwner)
	if _, err := os.Stat(keyFile(o, "seal-2.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stray key is there: %v", err)
	}
	expect(t, s.Control(ledger.AdminID, "key.rotate", rotateSeal), reason.ControlDone)
	s.Stop()
	if keyText(t, o, "seal-2.key") == stray {
		t.Error("the stray key is in force")
	}
	must(t, os.Rename(keyFile(o, "seal-2.key"), keyFile(o, "seal.key")))
	_, err := ledger.Open(o)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "keys/seal-2.key") {
		t.Errorf("without the key in force: %v", err)
	}
	db, err := pebble.Open(filepath.Join(o.Dir, "db"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	must(t, err)
	must(t, db.Close())
	must(t, os.Rename(keyFile(o, "seal.key"), keyFile(o, "seal-2.key")))
	replaytest.CheckLedger(t, o)
}

// Who opened the log before a rotation of the seal key reads on after it, with the
// keys as they were then: without those the moment that is looked at stays closed.
func TestR82_AReaderBesideARotationOfTheSealKey(t *testing.T) {
	o := newDir(t)
	s := start(t, o)
	s.Family()
	s.Stop() // so that a state is written down
	s = start(t, o)
	had := ledger.ReadSealKeys(o.Dir)
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	must(t, err)
	defer st.Close()
	expect(t, s.Control("admin", "key.rotate", rotateSeal), reason.ControlDone)
	s.Stop()
	if _, err := os.Stat(keyFile(o, "seal.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the old key is still here: %v", err)
	}
	opened := func(had ...ledger.SealKeys) (n int, fault error) {
		payloads, err := ledger.OpenPayloads(o.Dir, st, had...)
		must(t, err)
		for seq := uint64(1); seq <= st.Durable(); seq++ {
			if _, _, ok, err := payloads.Open(seq); err != nil {
				fault = err
			} else if ok {
				n++
			}
		}
		return n, fault
	}
	if _, err := opened(); !errors.Is(err, ledger.ErrPayload) {
		t.Errorf("with the keys of now: %v", err)
	}
	if n, err := opened(had); err != nil || n == 0 {
		t.Errorf("with those of then: %d, %v", n, err)
	}
	if state, err := ledger.StoredState(o.Dir, st, had); err != nil || state == nil {
		t.Errorf("the state of then: %v", err)
	}
	if r, err := replay.Stored(o.Dir, st, had); err != nil {
		t.Error(err)
	} else if r := replay.Run(r); r.Err != nil || r.Found > 0 || r.Unjudged() > 0 {
		t.Errorf("%v, %v, %d unjudged", r.Err, r.Findings, r.Unjudged())
	}
	if list := ledger.ReadSealKeys(t.TempDir()); list != nil {
		t.Error("keys where there are none")
	}
}

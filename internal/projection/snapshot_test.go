package projection

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
)

func encoded(t rapid.TB, s *State) []byte {
	t.Helper()
	b, err := s.EncodeSnapshot(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// same checks that a state from a snapshot is the one the snapshot was made of,
// field by field.
func same(t rapid.TB, s, restored *State) {
	t.Helper()
	describe := func(s *State) string {
		var b strings.Builder
		fmt.Fprintln(&b, s.Seq, s.Time, s.Leaf, s.Origin, s.Ledger, s.Rules, s.PolicyVersion(), s.PolicyDigest(), s.IsNarrowed, []string(s.Narrowed), s.admins)
		for _, id := range s.AgentIDs() {
			a := *s.agents[id]
			fmt.Fprintln(&b, a.LineageIDs(), a.Depth, a.Children, []string(a.Declared), a.PublicKey, a.Revoked, []string(s.Effective(&a)))
		}
		for _, id := range s.PrincipalIDs() {
			fmt.Fprintln(&b, *s.principals[id])
		}
		s.Keys(func(key, id string) {
			if !s.KeyTaken(key) || !s.IDTaken(id) {
				fmt.Fprintln(&b, "a key of nobody", key, id)
			}
		})
		fmt.Fprintln(&b, s.keys, s.versions, s.operations.names, s.operations.count)
		for e := range s.operations.all() {
			fmt.Fprintln(&b, e)
		}
		fmt.Fprintln(&b, s.Grants(0))
		fmt.Fprintln(&b, s.DenyEpoch, s.denies, len(s.open), len(s.runAt))
		for _, id := range sortedKeys(s.runs) {
			r := s.runs[id]
			fmt.Fprintln(&b, *r, s.runAt[r.Decision] == r, s.open[id] == r, s.agents[r.Agent].Runs)
		}
		for _, name := range sortedKeys(s.byText()) {
			r := s.byText()[name]
			fmt.Fprintln(&b, name, *r.Kind, r.Revision, r.Decision, r.Written, r.Deleted, r.OwnPayload, *r.Extra)
		}
		return b.String()
	}
	if a, b := describe(s), describe(restored); a != b {
		t.Fatalf("a snapshot of\n%s\nis restored as\n%s", a, b)
	}
	if s.Digest() != restored.Digest() {
		t.Fatal("the digests differ")
	}
}

// bendOperation changes the one operation of a state.
func bendOperation(s *State, bend func(*operationEntry)) {
	for i := range s.operations.shards {
		for j, e := range s.operations.shards[i].places {
			if e.use != 0 {
				bend(&s.operations.shards[i].places[j])
			}
		}
	}
}

func (s *State) byText() map[string]*Record {
	m := map[string]*Record{}
	for r := range s.records.all() {
		m[fmt.Sprint(r.Owner, r.Namespace, r.Key)] = r
	}
	return m
}

func TestSnapshotRestoresTheState(t *testing.T) {
	for n := range len(start()) + 1 {
		s := folded(t, start()[:n]...)
		s.Leaf[0] = byte(n)
		restored, err := DecodeSnapshot(encoded(t, s), nil)
		if err != nil {
			t.Fatalf("after %d events: %v", n, err)
		}
		same(t, s, restored)
	}
}

// The same state has the same bytes: maps are in order, and it does not matter
// how often or from where it is encoded.
func TestSnapshotIsDeterministic(t *testing.T) {
	a, b := folded(t, start()...), folded(t, start()...)
	want := encoded(t, a)
	for range 20 {
		if !bytes.Equal(encoded(t, b), want) {
			t.Fatal("other bytes of the same state")
		}
		var err error
		if b, err = DecodeSnapshot(want, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// Each event that changes anything changes the digest; so does each field.
func TestDigestTellsStatesApart(t *testing.T) {
	seen := map[events.Hash]string{}
	check := func(what string, s *State) {
		t.Helper()
		if other, twice := seen[s.Digest()]; twice {
			t.Errorf("%s and %s have one digest", what, other)
		}
		seen[s.Digest()] = what
	}
	s := New()
	check("nothing", s)
	for i, e := range start() {
		if err := s.apply(e); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprint("event ", i+1), s)
	}
	for what, bend := range map[string]func(*State){
		"seq":               func(s *State) { s.Seq++ },
		"time":              func(s *State) { s.Time++ },
		"leaf":              func(s *State) { s.Leaf[31]++ },
		"origin":            func(s *State) { s.Origin += "x" },
		"ledger":            func(s *State) { s.Ledger += "x" },
		"rules":             func(s *State) { s.Rules++ },
		"narrowed":          func(s *State) { s.Narrowed = s.Narrowed[1:] },
		"not narrowed":      func(s *State) { s.IsNarrowed = false },
		"policy":            func(s *State) { s.document = append(s.document, '\n') },
		"declared":          func(s *State) { s.agents["kid"].Declared = nil },
		"agent revoked":     func(s *State) { s.agents["kid"].Revoked = true },
		"agent key":         func(s *State) { s.agents["kid"].PublicKey = "x" },
		"parent":            func(s *State) { s.agents["kid"].Parent = nil },
		"role":              func(s *State) { s.principals["tools"].Role = "admin" },
		"actions":           func(s *State) { s.principals["tools"].Actions = nil },
		"groups":            func(s *State) { s.principals["tools"].Groups = []string{"g"} },
		"root":              func(s *State) { s.principals["eyes"].Root = "" },
		"principal revoked": func(s *State) { s.principals["eyes"].Revoked = false },
		"key":               func(s *State) { s.keys["UTOOLS"] = "kid" },
		"key gone":          func(s *State) { delete(s.keys, "UTOOLS") },
		"version":           func(s *State) { s.versions["p0"] = events.Hash{} },
		"operation":         func(s *State) { bendOperation(s, func(e *operationEntry) { e.use -= 1 << 16 }) },
		"operation's name":  func(s *State) { s.operations.names[0] = "memory.delete" },
		"operation's agent": func(s *State) { bendOperation(s, func(e *operationEntry) { e.lo++ }) },
		"visibility":        func(s *State) { s.Record("root", "rule", "a").Visibility = "children" },
		"class":             func(s *State) { s.Record("kid", "secret", "a").Class = "preference" },
		"revision":          func(s *State) { s.Record("root", "rule", "a").Revision++ },
		"mandatory value":   func(s *State) { s.Record("root", "rule", "a").Mandatory = []byte("false") },
		"deleted":           func(s *State) { s.Record("root", "note", "a").Deleted = false },
		"tombstone gone":    func(s *State) { delete(s.records.named, recordName{"note", "a"}.hash()) },
		"written":           func(s *State) { s.Record("root", "rule", "a").Written++ },
		"decision":          func(s *State) { s.Record("root", "rule", "a").Decision++ },
		"own payload":       func(s *State) { s.Record("root", "rule", "a").OwnPayload = true },
	} {
		s := folded(t, start()...)
		bend(s)
		check(what, s)
	}
}

// Any bytes but those written are refused: cut, lengthened, one bit changed, and
// what is whole but could not be of any state.
func TestDecodeSnapshotRefusesAnythingElse(t *testing.T) {
	good := encoded(t, folded(t, start()...))
	for n := range good {
		if _, err := DecodeSnapshot(good[:n], nil); err == nil {
			t.Fatalf("the first %d of %d bytes are a snapshot", n, len(good))
		}
		for bit := range 8 {
			bent := bytes.Clone(good)
			bent[n] ^= 1 << bit
			if _, err := DecodeSnapshot(bent, nil); err == nil {
				t.Fatalf("bit %d of byte %d changes nothing", bit, n)
			}
		}
	}
	for _, b := range [][]byte{nil, {0}, append(bytes.Clone(good), 0), append([]byte{0}, good...), append(bytes.Clone(good), good...)} {
		if _, err := DecodeSnapshot(b, nil); err == nil {
			t.Errorf("%d bytes are a snapshot", len(b))
		}
	}
	for name, bend := range map[string]func(*State){
		"record of nobody": func(s *State) {
			s.records.put(&Record{Owner: "x", Kind: &Kind{"n", "private", "secret"}, Key: "k", Extra: noExtra})
		},
		"record of no class":       func(s *State) { s.Record("root", "rule", "a").Class = "public" },
		"record of no visibility":  func(s *State) { s.Record("root", "rule", "a").Visibility = "world" },
		"key of nobody":            func(s *State) { s.keys["UNEW"] = "nobody" },
		"agent with another's key": func(s *State) { s.agents["kid"].PublicKey = "UROOT" },
		"agent and principal":      func(s *State) { s.principals["kid"] = &Principal{ID: "kid", Role: "admin", PublicKey: "UKID"} },
		"parent below its child":   func(s *State) { s.agents["root"].Parent = s.agents["kid"] },
		"policy of no version":     func(s *State) { delete(s.versions, "p1") },
		"policy of another digest": func(s *State) { s.versions["p1"] = events.Hash{1} },
		"document that is none":    func(s *State) { s.document = []byte("kind: Policy\n") },
		"time before 1970":         func(s *State) { s.Time = -1 },
	} {
		s := folded(t, start()...)
		bend(s)
		if _, err := DecodeSnapshot(s.encode(nil), nil); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

// sections are those that a whole snapshot of s has, without their sums.
func sections(s *State) (head, operations, records, rest []byte) {
	c := s.whole()
	c.end(s)
	w := &snapshotWriter{}
	c.write(w)
	h := &snapshotWriter{}
	h.head(0, c.Seq, c.sizes)
	o := &snapshotWriter{}
	o.texts(c.names)
	o.uint(uint64(len(c.operations)))
	at := len(h.buf) + len(o.buf) + operationBytes*len(c.operations)
	rec := &snapshotWriter{}
	for _, r := range c.records {
		rec.flag(true)
		rec.record(r)
	}
	rec.flag(false)
	end := at + len(rec.buf)
	return w.buf[:len(h.buf)], w.buf[len(h.buf):at], w.buf[at:end], w.buf[end:]
}

// closed puts a snapshot's sections together, each with its sum.
func closed(sections ...[]byte) []byte {
	mac, b := hmac.New(sha256.New, nil), []byte(snapshotTag)
	for _, section := range sections {
		b = append(b, section...)
		mac.Reset()
		mac.Write(b)
		b = mac.Sum(b)
	}
	return b
}

func TestEncodeSnapshotNeedsTheDocument(t *testing.T) {
	s, other := folded(t, start()...), folded(t, start()...)
	s.document = nil
	if _, err := s.EncodeSnapshot(nil); err == nil {
		t.Error("a policy without its document")
	}
	other.Policy = nil
	if _, err := other.EncodeSnapshot(nil); err == nil {
		t.Error("a document without its policy")
	}
}

// apart reads a snapshot as an opening does.
func apart(key []byte, parts ...[]byte) (*State, error) {
	s, operations, records := New(), &Operations{}, &Records{}
	var err error
	for _, b := range parts {
		err = errors.Join(err, operations.Read(bytes.NewReader(b), key), records.Read(bytes.NewReader(b), key), s.ReadApart(bytes.NewReader(b), key))
	}
	return s, errors.Join(err, s.Join(operations, records))
}

// What was read apart comes together only where all of it ends at one event.
func TestPartsReadApartAreOfOneMoment(t *testing.T) {
	s := New()
	var parts [][]byte
	for i, e := range start() {
		if err := s.apply(e); err != nil {
			t.Fatal(err)
		}
		if i%6 == 5 {
			c, err := s.TakeChanges()
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := c.Write(&b, nil); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, b.Bytes())
		}
	}
	for operations := range 3 {
		for records := range 3 {
			s, o, r := New(), &Operations{}, &Records{}
			var err error
			for i, b := range parts[:2] {
				err = errors.Join(err, s.ReadApart(bytes.NewReader(b), nil))
				if i < operations {
					err = errors.Join(err, o.Read(bytes.NewReader(b), nil))
				}
				if i < records {
					err = errors.Join(err, r.Read(bytes.NewReader(b), nil))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Join(o, r); (err == nil) != (operations == 2 && records == 2) {
				t.Errorf("%d parts of operations, %d of records, 2 of the rest: %v", operations, records, err)
			}
		}
	}
}

// FuzzDecodeSnapshot: no panic, and whatever decodes is written the same way.
func FuzzDecodeSnapshot(f *testing.F) {
	s := New()
	for _, e := range start() {
		if err := s.apply(e); err != nil {
			f.Fatal(err)
		}
		head, operations, records, rest := sections(s)
		if !bytes.Equal(closed(head, operations, records, rest), s.encode(nil)) {
			f.Fatal("a snapshot is not its sections")
		}
		f.Add(head, operations, records, rest)
	}
	f.Fuzz(func(t *testing.T, head, operations, records, rest []byte) {
		b := closed(head, operations, records, rest)
		s, err := DecodeSnapshot(b, nil)
		apart, failed := apart(nil, b)
		if (err == nil) != (failed == nil) {
			t.Fatalf("in one go: %v; apart: %v", err, failed)
		}
		if err != nil {
			return
		}
		same(t, s, apart)
		if again := encoded(t, s); !bytes.Equal(again, b) {
			t.Fatalf("%x is decoded and written as %x", b, again)
		}
	})
}

// randomEntry draws an event, of any type, over few names, so that about half
// of what is drawn fits.
func randomEntry(t *rapid.T, s *State) entry {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "id")
	other := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "other")
	key := "U" + rapid.StringMatching("[A-H]{2}").Draw(t, "key")
	capabilities := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"memory.read", "memory.write", "x.one"}), func(s string) string { return s }).Draw(t, "capabilities")
	name := rapid.SampledFrom([]string{"note.a", "rule.a", "secret.a"}).Draw(t, "name")
	namespace, recordKey, _ := strings.Cut(name, ".")
	old := s.Record(id, namespace, recordKey)
	rec := record(id, name, rapid.SampledFrom([]string{"private", "children", "descendants"}).Draw(t, "visibility"), "preference", old.revision()+1)
	open := ""
	switch namespace {
	case "rule":
		rec.Class, open = "mandatory", rapid.SampledFrom([]string{"true", "false"}).Draw(t, "value")
	case "secret":
		rec.Class = "secret"
	}
	version := rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "version")
	text := strings.Replace(document, "p1", version, 1)
	gone := rec
	if old != nil {
		gone.Class, gone.Visibility = string(old.Class), old.Visibility
	}
	effect := events.Effect{RunID: "run-" + id, StepID: "one", Action: "x.one", OperationID: "run-" + id + "/one"}
	return rapid.SampledFrom([]entry{
		of(&events.AgentRegistered{AgentID: id, ParentID: other, Capabilities: capabilities, PublicKey: key}),
		of(&events.AgentUpdated{AgentID: id, Capabilities: capabilities}),
		of(&events.AgentRevoked{AgentID: id}),
		of(&events.PrincipalRegistered{ID: id, Role: "admin", PublicKey: key}),
		of(&events.PrincipalRegistered{ID: id, Role: "approver", PublicKey: key, Groups: []string{"g"}}),
		of(&events.PrincipalRekeyed{ID: id, PublicKey: key}),
		of(&events.PrincipalRevoked{ID: id}),
		of(&events.EnvironmentChanged{Capabilities: capabilities}),
		of(&events.Decision{Subject: id, OperationID: key, Operation: "memory.write"}),
		of(&events.Decision{Subject: id, OperationID: key, Operation: "memory.read"}),
		of(&events.RequestsRefused{Refusals: events.Refusals{ID: id}}),
		of(&events.LedgerOpened{Rules: 2}),
		activated(version, text),
		{body: &events.MemoryWritten{Record: rec}, open: open},
		of(&events.MemoryDeleted{Record: gone}),
		asked(id, &events.RunAdmitted{RunID: "run-" + id, SOPID: "sop", SOPVersion: 1, Steps: []string{"one", "two"}, Actions: []string{"x.one", "x.one"}}),
		asked(id, &events.RunStarted{RunID: "run-" + id}),
		asked(id, &events.EffectStarted{Effect: effect}),
		asked(id, &events.EffectFinished{Effect: effect}),
		asked(id, &events.RunDoubted{RunID: "run-" + id, StepID: "one", Reason: "in_doubt"}),
		asked(id, &events.RunFailed{RunID: "run-" + id, StepID: "two", Reason: "not_authorized"}),
		of(&events.Decision{Subject: id, Operation: "run.cancel", Allowed: true, RunID: "run-" + other}),
		of(&events.EmergencyDenied{Emergency: events.Emergency{Scope: id, All: true, Epoch: s.DenyEpoch + 1}}),
		of(&events.EmergencyLifted{Emergency: events.Emergency{Scope: id, All: true, Epoch: s.DenyEpoch}}),
	}).Draw(t, "entry")
}

// A log folds to the same state at once and in two parts, with a snapshot
// between them at any place.
func TestSnapshotAnywhereInALog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		live := New()
		log := []entry{created()}
		if err := live.apply(created()); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 60).Draw(t, "length") {
			e := randomEntry(t, live)
			tried, err := DecodeSnapshot(encoded(t, live), nil)
			if err != nil {
				t.Fatal(err)
			}
			same(t, live, tried)
			if tried.apply(e) != nil {
				continue
			}
			if err := live.apply(e); err != nil {
				t.Fatalf("applied after a snapshot and not without: %v", err)
			}
			log = append(log, e)
		}
		at := rapid.IntRange(0, len(log)).Draw(t, "at")
		s := New()
		for i, e := range log {
			if i == at {
				var err error
				if s, err = DecodeSnapshot(encoded(t, s), nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.apply(e); err != nil {
				t.Fatal(err)
			}
		}
		same(t, live, s)
		if !bytes.Equal(encoded(t, live), encoded(t, s)) {
			t.Fatal("other bytes")
		}
	})
}

// What a snapshot holds of a record is what the log's events say: no value, but
// that of a mandatory record.
func TestSnapshotHoldsNoSealedValue(t *testing.T) {
	const canary = "5ecr3t-canary"
	s := folded(t, start()...)
	e := s.next(written("kid", "note.b", "private", "preference", 1, ""))
	e.Payload = events.PayloadCommitment([events.SaltLen]byte{1}, []byte(canary))
	if err := s.Apply(e, nil); err != nil {
		t.Fatal(err)
	}
	b := encoded(t, s)
	if bytes.Contains(b, []byte(canary)) || bytes.Contains(b, e.Payload[:]) {
		t.Error("a value, or its commitment, is in the snapshot")
	}
	if !s.Record("kid", "note", "b").OwnPayload {
		t.Error("the record's payload is not its own")
	}
}

// A state written in parts, read part by part or merged first, in whatever order
// neighbours are merged, is the state at the end.
func TestSnapshotPartsAreTheWhole(t *testing.T) {
	key := []byte("key")
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		if err := s.apply(created()); err != nil {
			t.Fatal(err)
		}
		var parts [][]byte
		for range rapid.IntRange(1, 6).Draw(t, "parts") {
			for range rapid.IntRange(0, 25).Draw(t, "length") {
				if err := s.apply(randomEntry(t, s)); err != nil && !errors.Is(err, ErrInconsistent) {
					t.Fatal(err)
				}
			}
			c, err := s.TakeChanges()
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := c.Write(&b, key); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, b.Bytes())
		}
		read := func() *State {
			restored := New()
			for _, b := range parts {
				if err := restored.ReadSnapshot(bytes.NewReader(b), key); err != nil {
					t.Fatal(err)
				}
			}
			separate, err := apart(key, parts...)
			if err != nil {
				t.Fatal(err)
			}
			same(t, restored, separate)
			return restored
		}
		same(t, s, read())
		for len(parts) > 1 {
			i := rapid.IntRange(0, len(parts)-2).Draw(t, "merge")
			var b bytes.Buffer
			if err := MergeSnapshots(&b, bytes.NewReader(parts[i]), bytes.NewReader(parts[i+1]), key); err != nil {
				t.Fatal(err)
			}
			parts = slices.Replace(parts, i, i+2, b.Bytes())
			same(t, s, read())
		}
		whole, err := s.EncodeSnapshot(key)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(whole, parts[0]) {
			t.Fatal("merged parts are not the bytes of the whole")
		}
	})
}

// Parts are refused where they do not belong: on another seq, twice, out of
// order, under another key.
func TestSnapshotPartsFitOnlyTheirPlace(t *testing.T) {
	s := New()
	var parts [][]byte
	for i, e := range start() {
		if err := s.apply(e); err != nil {
			t.Fatal(err)
		}
		if i%6 == 5 {
			c, err := s.TakeChanges()
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := c.Write(&b, nil); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, b.Bytes())
		}
	}
	for _, order := range [][]int{{1}, {0, 0}, {1, 0}} {
		s := New()
		var err error
		for _, i := range order {
			err = errors.Join(err, s.ReadSnapshot(bytes.NewReader(parts[i]), nil))
		}
		if err == nil {
			t.Errorf("parts %v are a snapshot", order)
		}
		if len(order) == 2 && MergeSnapshots(io.Discard, bytes.NewReader(parts[order[0]]), bytes.NewReader(parts[order[1]]), nil) == nil {
			t.Errorf("parts %v can be merged", order)
		}
	}
	if New().ReadSnapshot(bytes.NewReader(parts[0]), []byte("other")) == nil {
		t.Error("a part under another key")
	}
	for n := range parts[1] {
		bent := bytes.Clone(parts[1])
		bent[n] ^= 4
		if s, err := apart(nil, parts[0], bent); err == nil {
			t.Fatalf("byte %d of a part changes nothing when read apart: %d", n, s.Seq)
		}
		if MergeSnapshots(io.Discard, bytes.NewReader(parts[0]), bytes.NewReader(bent), nil) == nil {
			t.Fatalf("byte %d of a part changes nothing when merged", n)
		}
	}
}

package audit_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

func verifyLog(t testing.TB, s *audit.Source, opts audit.Options) *audit.Report {
	t.Helper()
	r, err := audit.VerifyLog(s, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func status(r *audit.Report, name string) audit.Status {
	for _, v := range []audit.Verdict{r.Integrity, r.Completeness, r.Semantics} {
		for _, c := range v.Checks {
			if c.Name == name {
				return c.Status
			}
		}
	}
	return ""
}

// TestVerifyLog: an honest log passes under every option; its root is the one
// x/mod computes, and every stored hash was looked at.
func TestVerifyLog(t *testing.T) {
	l := logtest.Sample(origin, 1, 1500)
	s := l.Source()
	done := []uint64{}
	r := verifyLog(t, s, audit.Options{VKey: l.VKey, Remembered: l.Note(700), Progress: func(n, of uint64) { done = append(done, n, of) }})
	if r.Exit != audit.ExitPass || r.Verdict != "authentic" || r.Completeness.Status != audit.Pass || r.Events != 1500 || r.Origin != origin {
		t.Fatalf("%+v\n%s", r, text(r))
	}
	root, err := tlog.TreeHash(1500, tlog.HashReaderFunc(s.Hashes))
	if err != nil || r.Root != events.Hash(root).String() {
		t.Errorf("root %s, want %s (%v)", r.Root, events.Hash(root), err)
	}
	if want := fmt.Sprint(tlog.StoredHashCount(1500)); !strings.Contains(text(r), want+" stored hashes") {
		t.Errorf("want %s stored hashes in\n%s", want, text(r))
	}
	if len(done) < 2 || done[len(done)-1] != 1500 || done[len(done)-2] != 1500 {
		t.Errorf("progress ends with %v", done)
	}
	// The part behind the checkpoint counts, and is said to be unsigned.
	s.Checkpoint = l.Note(1000)
	if r := verifyLog(t, s, audit.Options{}); r.Exit != audit.ExitPass || r.Verdict != "consistent" || !strings.Contains(text(r), "events 1001–1500") {
		t.Errorf("%s", text(r))
	}
}

// TestSourceDamage: whatever a store loses or changes is named, and what lies
// behind it is still looked at.
func TestSourceDamage(t *testing.T) {
	boom := errors.New("bad block")
	for _, c := range []struct {
		name   string
		damage func(l *logtest.Log, s *audit.Source)
		checks []string
		seqs   []uint64 // named faults among others
		exit   int
	}{
		{"event unreadable", func(l *logtest.Log, s *audit.Source) { s.Events = failing(s.Events, boom, 40) }, []string{"parse"}, []uint64{40}, 1},
		{"three events unreadable", func(l *logtest.Log, s *audit.Source) { s.Events = failing(s.Events, boom, 10, 11, 300) }, []string{"parse"}, []uint64{10, 300}, 1},
		{"last event unreadable", func(l *logtest.Log, s *audit.Source) { s.Events = failing(s.Events, boom, 400) }, []string{"parse"}, []uint64{400}, 1},
		{"first event unreadable", func(l *logtest.Log, s *audit.Source) { s.Events = failing(s.Events, boom, 1) }, []string{"parse"}, []uint64{1}, 1},
		{"log ends early", func(l *logtest.Log, s *audit.Source) { l.Entries = l.Entries[:390] }, []string{"parse"}, []uint64{391}, 1},
		{"unreadable and changed", func(l *logtest.Log, s *audit.Source) {
			s.Events = failing(s.Events, boom, 40)
			l.Edit(299, func(e *events.Event) { e.Agent = "other" })
		}, []string{"parse", "chain", "tree", "checkpoint"}, []uint64{40, 300, 301}, 1},
		{"stored hash changed", func(l *logtest.Log, s *audit.Source) { s.Hashes = changed(s.Hashes, tlog.StoredHashIndex(0, 41)) }, []string{"tree"}, []uint64{42}, 1},
		{"stored inner hash changed", func(l *logtest.Log, s *audit.Source) { s.Hashes = changed(s.Hashes, tlog.StoredHashIndex(3, 5)) }, []string{"tree"}, []uint64{41}, 1},
		{"stored hashes unreadable", func(l *logtest.Log, s *audit.Source) {
			s.Hashes = func([]int64) ([]tlog.Hash, error) { return nil, boom }
		}, []string{"tree"}, []uint64{1}, 1},
		{"too few hashes", func(l *logtest.Log, s *audit.Source) {
			s.Hashes = func([]int64) ([]tlog.Hash, error) { return nil, nil }
		}, []string{"tree"}, []uint64{1}, 1},
		{"payload unreadable", func(l *logtest.Log, s *audit.Source) {
			s.Payload = func(seq uint64) (audit.Payload, error) { return audit.Payload{}, boom }
		}, []string{"payloads"}, []uint64{4, 6}, 1},
		{"payload gone", func(l *logtest.Log, s *audit.Source) {
			s.Payload = func(seq uint64) (audit.Payload, error) { return audit.Payload{}, nil }
		}, []string{"payloads"}, []uint64{4, 6}, 1},
		{"open payload sealed", func(l *logtest.Log, s *audit.Source) {
			s.Payload = func(seq uint64) (audit.Payload, error) { return audit.Payload{State: audit.PayloadLocked}, nil }
		}, []string{"payloads"}, []uint64{4, 6}, 1},
		{"everything unreadable", func(l *logtest.Log, s *audit.Source) {
			s.Events = func(uint64, uint64, func(uint64, []byte) error) error { return boom }
		}, []string{"parse"}, []uint64{1}, 1},
		{"no checkpoint", func(l *logtest.Log, s *audit.Source) { s.Checkpoint = nil }, nil, nil, 2},
		{"nothing", func(l *logtest.Log, s *audit.Source) { s.Size = 0 }, nil, nil, 2},
		{"nothing under a checkpoint of nothing", func(l *logtest.Log, s *audit.Source) { s.Size, s.Checkpoint = 0, l.Note(0) }, nil, nil, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := logtest.Sample(origin, 1, 400)
			s := l.Source()
			c.damage(l, s)
			r := verifyLog(t, s, audit.Options{})
			if r.Exit != c.exit {
				t.Fatalf("exit %d, want %d\n%s", r.Exit, c.exit, text(r))
			}
			for _, name := range c.checks {
				if status(r, name) != audit.Fail {
					t.Errorf("%s is %s\n%s", name, status(r, name), text(r))
				}
			}
			for _, seq := range c.seqs {
				found := false
				for _, f := range r.Faults {
					found = found || f.Seq == seq
				}
				if !found {
					t.Errorf("seq %d is not named\n%s", seq, text(r))
				}
			}
		})
	}
	// One whose leaf is gone too is one fault at its place, and no noise above it.
	both := logtest.Sample(origin, 1, 400)
	lost := both.Source()
	lost.Events = failing(lost.Events, boom, 40)
	all := lost.Hashes
	lost.Hashes = func(indexes []int64) ([]tlog.Hash, error) {
		if slices.Contains(indexes, tlog.StoredHashIndex(0, 39)) {
			return nil, boom
		}
		return all(indexes)
	}
	if r := verifyLog(t, lost, audit.Options{}); r.Exit != audit.ExitFail || len(r.Faults) != 2 || r.Faults[0].Seq != 40 || r.Faults[1].Check != "checkpoint" {
		t.Errorf("%s", text(r))
	}
	// An unreadable event whose leaf is stored leaves the rest proven: the root fits.
	l := logtest.Sample(origin, 1, 400)
	s := l.Source()
	s.Events = failing(s.Events, boom, 40)
	if r := verifyLog(t, s, audit.Options{}); status(r, "checkpoint") != audit.Pass || status(r, "chain") != audit.Pass || len(r.Faults) != 1 {
		t.Errorf("%s", text(r))
	}
}

type eventsFunc = func(from, to uint64, fn func(uint64, []byte) error) error

// failing is a source that cannot read some events.
func failing(read eventsFunc, err error, bad ...uint64) eventsFunc {
	return func(from, to uint64, fn func(uint64, []byte) error) error {
		return read(from, to, func(seq uint64, b []byte) error {
			for _, n := range bad {
				if n == seq {
					return err
				}
			}
			return fn(seq, b)
		})
	}
}

func changed(read func([]int64) ([]tlog.Hash, error), index int64) func([]int64) ([]tlog.Hash, error) {
	return func(indexes []int64) ([]tlog.Hash, error) {
		list, err := read(indexes)
		for i := range list {
			if indexes[i] == index {
				list[i][7] ^= 1
			}
		}
		return list, err
	}
}

// TestCheckpointClaims: whatever size a checkpoint claims, no more is read than
// is there, and the missing part is named.
func TestCheckpointClaims(t *testing.T) {
	l := logtest.Sample(origin, 1, 600)
	for _, size := range []string{"601", "700", "100000", "9007199254740991", "599", "512", "1"} {
		f := l.Files()
		f["checkpoint"] = l.Sign(strings.Replace(l.Text(600), "\n600\n", "\n"+size+"\n", 1))
		began := time.Now()
		r := verify(t, mapFS(f), audit.Options{})
		if r.Exit != audit.ExitFail || status(r, "checkpoint") != audit.Fail {
			t.Errorf("size %s: exit %d\n%s", size, r.Exit, text(r))
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("size %s: %s", size, took)
		}
	}
	for _, size := range []string{"9007199254740992", "18446744073709551616", "-1", "", "0x258", "6e2"} {
		f := l.Files()
		f["checkpoint"] = l.Sign(strings.Replace(l.Text(600), "\n600\n", "\n"+size+"\n", 1))
		if r := verify(t, mapFS(f), audit.Options{}); r.Exit != audit.ExitFail || status(r, "checkpoint") != audit.Fail || r.Events != 600 {
			t.Errorf("size %q: exit %d, %d events\n%s", size, r.Exit, r.Events, text(r))
		}
	}
}

// TestBundlesMissing: bundles lost from the middle, the beginning or the end.
func TestBundlesMissing(t *testing.T) {
	l := logtest.Sample(origin, 1, 900)
	for lost, seqs := range map[string][2]uint64{"000": {1, 256}, "001": {257, 512}, "002": {513, 768}, "003.p/132": {769, 900}} {
		f := l.Files()
		if f["tile/entries/"+lost] == nil {
			t.Fatal(lost)
		}
		delete(f, "tile/entries/"+lost)
		r := verify(t, mapFS(f), audit.Options{})
		named := false
		for _, fault := range r.Faults {
			named = named || fault.Seq == seqs[0] && fault.To == seqs[1]
		}
		if r.Exit != audit.ExitFail || !named {
			t.Errorf("%s: exit %d, seq %v not named\n%s", lost, r.Exit, seqs, text(r))
		}
		if lost == "001" && (r.Events != 900 || status(r, "checkpoint") != audit.Pass) {
			t.Errorf("%s: the rest is not proven:\n%s", lost, text(r))
		}
	}
}

// odd is a file system with something that is no regular file.
type odd struct {
	fstest.MapFS
	name string
}

func (o odd) Open(name string) (fs.File, error) {
	if name == o.name {
		panic("opened what would hang")
	}
	return o.MapFS.Open(name)
}

// TestIrregularFiles: a pipe or device is never opened, and a huge file is not read.
func TestIrregularFiles(t *testing.T) {
	l := logtest.Sample(origin, 1, 10)
	for _, name := range []string{"checkpoint", "tile/entries/000.p/10", "tile/0/000.p/10", "payloads/4"} {
		m := mapFS(l.Files())
		m[name] = &fstest.MapFile{Mode: fs.ModeNamedPipe}
		if r := verify(t, statFS{odd{m, name}}, audit.Options{}); r.Exit == audit.ExitPass {
			t.Errorf("%s as a pipe passes", name)
		}
		m = mapFS(l.Files())
		m[name] = &fstest.MapFile{Data: append(bytes.Clone(m[name].Data), make([]byte, 17<<20)...)}
		if r := verify(t, m, audit.Options{}); r.Exit != audit.ExitFail {
			t.Errorf("%s of 17 MiB: exit %d", name, r.Exit)
		}
	}
}

// statFS answers Stat without opening.
type statFS struct{ odd }

func (s statFS) Stat(name string) (fs.FileInfo, error) { return s.MapFS.Stat(name) }

// TestOptions: a key that is none is an error, not a report.
func TestOptions(t *testing.T) {
	l := logtest.Sample(origin, 1, 10)
	for _, key := range []string{"x", l.VKey + "A", strings.Replace(l.VKey, "+", "", 1), "a+00000000+" + strings.Repeat("A", 44)} {
		if r, err := audit.VerifyLog(l.Source(), audit.Options{VKey: key}); err == nil {
			t.Errorf("%q: %s", key, r.Verdict)
		}
		if r, err := audit.VerifyExport(mapFS(l.Files()), audit.Options{VKey: key}); err == nil {
			t.Errorf("%q: %s", key, r.Verdict)
		}
	}
}

// TestSettle: one failed check is a failure whatever else passed; one that
// could not be done is never a pass; what was not asked for is no pass either.
func TestSettle(t *testing.T) {
	verdict := func(s ...audit.Status) audit.Verdict {
		v := audit.Verdict{}
		for _, s := range s {
			v.Checks = append(v.Checks, audit.Check{Status: s})
		}
		return v
	}
	for _, c := range []struct {
		integrity, completeness, semantics audit.Verdict
		exit                               int
		verdict                            string
	}{
		{verdict("pass"), verdict("not_run"), verdict("not_run"), 0, "consistent"},
		{verdict("pass", "pass"), verdict("pass"), verdict("pass"), 0, "consistent"},
		{verdict("pass", "fail"), verdict("pass"), verdict("pass"), 1, "failed"},
		{verdict("pass", "impossible"), verdict("pass"), verdict("pass"), 2, "could not check"},
		{verdict("impossible", "fail"), verdict("pass"), verdict("pass"), 1, "failed"},
		{verdict("pass"), verdict("fail"), verdict("impossible"), 1, "failed"},
		{verdict("pass"), verdict("impossible"), verdict("not_run"), 2, "could not check"},
		{verdict("pass"), verdict("not_run"), verdict("impossible"), 2, "could not check"},
		{verdict("pass"), verdict("not_run"), verdict("fail"), 1, "failed"},
		{verdict("not_run"), verdict("pass"), verdict("pass"), 2, "could not check"},
		{verdict(), verdict(), verdict(), 2, "could not check"},
	} {
		r := audit.Report{Integrity: c.integrity, Completeness: c.completeness, Semantics: c.semantics}
		if r.Settle(); r.Exit != c.exit || r.Verdict != c.verdict {
			t.Errorf("%v %v %v: %d %s", c.integrity, c.completeness, c.semantics, r.Exit, r.Verdict)
		}
	}
	r := audit.Report{KeySource: "pinned", Integrity: verdict("pass")}
	if r.Settle(); r.Verdict != "authentic" {
		t.Errorf("%s", r.Verdict)
	}
}

// TestGarbage: the verifier takes any bytes for entries and any order of calls.
func TestGarbage(t *testing.T) {
	l := logtest.Sample(origin, 1, 10)
	for _, note := range [][]byte{nil, {}, []byte("\n\n"), []byte("a\nb\nc\n\n— a AAAA\n"), l.Note(3)} {
		v, err := audit.NewVerifier(note, audit.Options{Remembered: note})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{nil, {}, []byte("{}"), l.Entries[4], l.Entries[0], bytes.Repeat([]byte{'['}, 70_000), l.Entries[1]} {
			v.Event(b)
			v.Unreadable("gone")
		}
		if r := v.Finish(); r.Exit != audit.ExitFail || r.Events != 14 {
			t.Errorf("%q: exit %d, %d events", note, r.Exit, r.Events)
		}
	}
}

// FuzzVerifyExport: no change of an export's files makes the verifier panic,
// hang, or pass.
func FuzzVerifyExport(f *testing.F) {
	original := map[string]string{}
	for name, b := range logtest.Sample(origin, 1, 8).Files() {
		original[name] = string(b)
	}
	names := []string{"checkpoint", "tile/entries/000.p/8", "tile/0/000.p/8", "payloads/4", "payloads/6", "tile/entries/000", "tile/entries/001.p/8", "tile/1/000.p/1", "payloads/5", "x"}
	f.Add([]byte{1, 0, 0, 1, 255})
	f.Add([]byte{1, 1, 0, 1, 0, 0, 0, 0, 10, 1})
	f.Add([]byte{0, 2, 0, 25, 0})
	f.Add([]byte{1, 3, 5, 0, 0, 0, 0, 0, 25, 50})
	f.Fuzz(func(t *testing.T, program []byte) {
		files := map[string]string{}
		for name, b := range original {
			files[name] = b
		}
		for ; len(program) >= 5; program = program[5:] {
			name, at, value := names[int(program[0])%len(names)], int(program[2])<<8|int(program[3]), program[4]
			b := files[name]
			at %= len(b) + 1
			switch program[1] % 7 {
			case 0:
				if at < len(b) {
					files[name] = b[:at] + string(value) + b[at+1:]
				}
			case 1:
				files[name] = b[:at]
			case 2:
				files[name] = b[:at] + string(value) + b[at:]
			case 3:
				files[names[int(value)%len(names)]] = b
			case 4:
				delete(files, name)
			case 5:
				files[name] = b[:at] + b
			case 6:
				if at < len(b) {
					files[name] = b[:at] + b[at+1:]
				}
			}
		}
		same := maps.Equal(files, original)
		fsys := fstest.MapFS{}
		for name, b := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(b)}
		}
		r, err := audit.VerifyExport(fsys, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if (r.Exit == audit.ExitPass) != same {
			t.Fatalf("exit %d of files that are the same: %v\n%s", r.Exit, same, text(r))
		}
		if s, err := audit.OpenExport(fsys); err == nil {
			_ = s.Events(1, s.Size, func(uint64, []byte) error { return nil })
		}
	})
}

// TestTreesDoNotMeet: case kind 1. No list of entries shares a root with
// another of a different length or shape: not with its last entry doubled, not
// with entries that look like inner nodes.
func TestTreesDoNotMeet(t *testing.T) {
	leaf := func(s string) events.Hash { return events.LeafHash([]byte(s)) }
	a, b, c, d := leaf("a"), leaf("b"), leaf("c"), leaf("d")
	pair := func(x, y events.Hash) events.Hash { return leaf(string(x[:]) + string(y[:])) }
	roots := map[events.Hash]string{}
	for name, leaves := range map[string][]events.Hash{
		"none": nil, "a": {a}, "ab": {a, b}, "aa": {a, a}, "abc": {a, b, c}, "abcc": {a, b, c, c}, "abcd": {a, b, c, d},
		"(ab)c": {pair(a, b), c}, "(ab)(cd)": {pair(a, b), pair(c, d)}, "ba": {b, a}, "abcabc": {a, b, c, a, b, c},
	} {
		root := logtest.Root(leaves)
		if other, met := roots[root]; met {
			t.Errorf("%s and %s share a root", name, other)
		}
		roots[root] = name
	}
}

package audit_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

const origin = "ledgerd.example/audit/1"

func mapFS(files map[string][]byte) fstest.MapFS {
	m := fstest.MapFS{}
	for name, b := range files {
		m[name] = &fstest.MapFile{Data: b}
	}
	return m
}

// walkFiles calls fn with every file's contents.
func walkFiles(fsys fs.FS, fn func(name string, b []byte)) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(fsys, name)
		fn(name, b)
		return err
	})
}

func verify(t testing.TB, fsys fs.FS, opts audit.Options) *audit.Report {
	t.Helper()
	r, err := audit.VerifyExport(fsys, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(r *audit.Report) string {
	var b strings.Builder
	for _, f := range r.Faults {
		b.WriteString(f.String() + "\n")
	}
	for _, v := range []audit.Verdict{r.Integrity, r.Completeness, r.Semantics} {
		for _, c := range v.Checks {
			fmt.Fprintf(&b, "%+v\n", c)
		}
	}
	return b.String()
}

// TestExportLayout: at every size around the edges of tiles, the writer's files
// are those of a naive reading of the format, whole, and verify.
func TestExportLayout(t *testing.T) {
	for _, size := range []int{6, 7, 8, 255, 256, 257, 511, 512, 513, 1000} {
		l := logtest.Sample(origin, 1, size)
		l.Entries = l.Entries[:size]
		dir := filepath.Join(t.TempDir(), "out")
		if err := audit.WriteExport(dir, l.Source()); err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		want := l.Files()
		got := tree(t, dir)
		for name, b := range want {
			if got[name] != string(b) {
				t.Errorf("size %d: %s differs", size, name)
			}
			delete(got, name)
		}
		for name := range got {
			t.Errorf("size %d: %s is no file of the layout", size, name)
		}
		r := verify(t, os.DirFS(dir), audit.Options{VKey: l.VKey})
		if r.Exit != audit.ExitPass || r.Verdict != "authentic" || r.Events != uint64(size) {
			t.Errorf("size %d: %s\n%s", size, r.Verdict, text(r))
		}
		readBack(t, dir, l)
	}
}

// readBack compares an opened export with the log it was made of.
func readBack(t *testing.T, dir string, l *logtest.Log) {
	t.Helper()
	s, err := audit.OpenExport(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	if s.Size != uint64(len(l.Entries)) {
		t.Errorf("size %d, want %d", s.Size, len(l.Entries))
	}
	for _, r := range [][2]uint64{{1, s.Size}, {s.Size, s.Size + 5}, {2, 3}, {1, 1}, {5, 4}, {min(255, s.Size), s.Size}} {
		next := r[0]
		err := s.Events(r[0], r[1], func(seq uint64, b []byte) error {
			if seq != next || !bytes.Equal(b, l.Entries[seq-1]) {
				return fmt.Errorf("event %d where %d was due", seq, next)
			}
			next++
			return nil
		})
		if err != nil || next != max(r[0], min(r[1], s.Size)+1) {
			t.Errorf("events %v: ended before %d: %v", r, next, err)
		}
	}
	if err := s.Events(0, 1, nil); err == nil {
		t.Error("event 0 is read")
	}
	stop := errors.New("stop")
	if err := s.Events(1, s.Size, func(uint64, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped with %v", err)
	}
	p, err := s.Payload(6)
	if err != nil || p.State != audit.PayloadReadable || string(p.Bytes) != "false" {
		t.Errorf("payload 6: %+v, %v", p, err)
	}
	if p, err := s.Payload(5); err != nil || p.State != audit.PayloadAbsent {
		t.Errorf("payload 5: %+v, %v", p, err)
	}
}

// TestWriteExportRefuses: nothing is overwritten, nothing half-written stays,
// and a log that does not verify leaves no export.
func TestWriteExportRefuses(t *testing.T) {
	l := logtest.Sample(origin, 1, 10)
	parent := t.TempDir()
	full := filepath.Join(parent, "full")
	if err := logtest.Write(full, map[string][]byte{"kept": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(parent, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	change := func(f func(s *audit.Source)) *audit.Source {
		s := l.Source()
		f(s)
		return s
	}
	edited := l.Clone()
	edited.Edit(7, func(e *events.Event) { e.Agent = "other" })
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		dir string
		s   *audit.Source
	}{
		"directory with a file": {full, l.Source()},
		"a file":                {file, l.Source()},
		"no parent":             {filepath.Join(parent, "no", "such"), l.Source()},
		"no checkpoint":         {filepath.Join(parent, "a"), change(func(s *audit.Source) { s.Checkpoint = nil })},
		"checkpoint ahead":      {filepath.Join(parent, "b"), change(func(s *audit.Source) { s.Size-- })},
		"other checkpoint":      {filepath.Join(parent, "c"), change(func(s *audit.Source) { s.Checkpoint = edited.Note(10) })},
		"edited event":          {filepath.Join(parent, "d"), edited.Source()},
		"events that stop": {filepath.Join(parent, "e"), change(func(s *audit.Source) {
			s.Events = func(uint64, uint64, func(uint64, []byte) error) error { return nil }
		})},
		"events that fail": {filepath.Join(parent, "f"), change(func(s *audit.Source) {
			s.Events = func(uint64, uint64, func(uint64, []byte) error) error { return boom }
		})},
		"open payload missing": {filepath.Join(parent, "g"), change(func(s *audit.Source) { s.Payload = func(uint64) (audit.Payload, error) { return audit.Payload{}, nil } })},
		"open payload locked": {filepath.Join(parent, "h"), change(func(s *audit.Source) {
			s.Payload = func(uint64) (audit.Payload, error) { return audit.Payload{State: audit.PayloadLocked}, nil }
		})},
		"open payload fails": {filepath.Join(parent, "i"), change(func(s *audit.Source) {
			s.Payload = func(uint64) (audit.Payload, error) { return audit.Payload{}, boom }
		})},
		"checkpoint of 0 events": {filepath.Join(parent, "j"), change(func(s *audit.Source) { s.Checkpoint = l.Note(0) })},
	} {
		if err := audit.WriteExport(c.dir, c.s); err == nil {
			t.Errorf("%s: exported", name)
		}
	}
	left, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range left {
		if n := d.Name(); n != "full" && n != "file" {
			t.Errorf("%s stays behind", n)
		}
	}
	if b, err := os.ReadFile(filepath.Join(full, "kept")); err != nil || string(b) != "x" {
		t.Errorf("a file that was there: %q, %v", b, err)
	}

	// The same log goes into a new and into an empty directory, and of a log
	// that grew past its checkpoint the signed part goes.
	empty := filepath.Join(parent, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	grown := change(func(s *audit.Source) { s.Checkpoint = l.Note(8) })
	if err := audit.WriteExport(empty, grown); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, os.DirFS(empty), audit.Options{}); r.Exit != audit.ExitPass || r.Verdict != "consistent" || r.Events != 8 {
		t.Errorf("%s, %d events\n%s", r.Verdict, r.Events, text(r))
	}
}

// TestExportHoldsNoSealedPayload: a source that could open every payload still
// leaves the sealed ones out.
func TestExportHoldsNoSealedPayload(t *testing.T) {
	l := logtest.Sample(origin, 1, 10)
	const canary = "canary-5512"
	e := events.Event{Seq: 11, Time: logtest.Start * 2, Agent: "researcher", Body: &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: "memory.write", Allowed: true, Reason: "owner_write", PolicyVersion: "lab-1"}}
	e.Payload = events.PayloadCommitment([32]byte{1}, []byte(canary))
	e.ID[6], e.ID[8] = 0x70, 0x80
	b, err := e.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Entries = append(l.Entries, b)
	l.Relink(10)
	s := l.Source()
	asked := s.Payload
	s.Payload = func(seq uint64) (audit.Payload, error) {
		if seq == 11 {
			return audit.Payload{State: audit.PayloadReadable, Salt: [32]byte{1}, Bytes: []byte(canary)}, nil
		}
		return asked(seq)
	}
	if r, err := audit.VerifyLog(s, audit.Options{}); err != nil || r.Exit != audit.ExitPass {
		t.Fatalf("%v\n%s", err, text(r))
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := audit.WriteExport(dir, s); err != nil {
		t.Fatal(err)
	}
	files := tree(t, dir)
	for name, b := range files {
		if strings.Contains(b, canary) {
			t.Errorf("%s holds a sealed payload", name)
		}
	}
	if len(files) < 4 {
		t.Errorf("only %d files", len(files))
	}
	r := verify(t, os.DirFS(dir), audit.Options{VKey: l.VKey})
	if r.Exit != audit.ExitPass || !strings.Contains(text(r), "1 sealed payloads") {
		t.Errorf("%s", text(r))
	}
}

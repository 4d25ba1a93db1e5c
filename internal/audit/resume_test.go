package audit_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
)

// TestResumeInChunks: a log taken up before, at and after the places where its
// chunks meet has the root that it has when all of it is read, and a fault behind
// the place is found.
func TestResumeInChunks(t *testing.T) {
	l := logtest.Sample(origin, 1, 9000)
	source := l.Source()
	all, err := audit.VerifyLog(source, audit.Options{VKey: l.VKey})
	if err != nil || all.Exit != audit.ExitPass {
		t.Fatalf("%v %+v", err, all)
	}
	bad := l.Clone()
	bad.Entries[8500] = bytes.Replace(bad.Entries[8500], []byte(`"type"`), []byte(`"tipe"`), 1)
	broken := bad.Source()
	broken.Checkpoint, broken.Hashes = source.Checkpoint, source.Hashes
	for _, size := range []uint64{1, 4095, 4096, 4097, 5000, 8191, 8192, 8193, 8500, uint64(len(l.Entries))} {
		part := *source
		part.Size, part.Checkpoint = size, l.Note(int(size))
		r, err := audit.VerifyLog(&part, audit.Options{VKey: l.VKey})
		if err != nil || r.Known == nil || r.Known.Size != size {
			t.Fatalf("%d: %v %+v", size, err, r)
		}
		b, err := json.Marshal(r.Known)
		if err != nil {
			t.Fatal(err)
		}
		known, err := audit.ParseKnown(b)
		if err != nil {
			t.Fatal(err)
		}
		r, err = audit.VerifyLog(source, audit.Options{VKey: l.VKey, Known: known, Remembered: l.Note(9000)})
		if err != nil || r.Exit != audit.ExitPass || r.Root != all.Root || r.Head != all.Head || r.Events != all.Events {
			t.Errorf("%d: %v %s", size, err, text(r))
		}
		if size > 8500 {
			continue
		}
		r, err = audit.VerifyLog(broken, audit.Options{VKey: l.VKey, Known: known})
		if err != nil || r.Exit != audit.ExitFail || r.Faults[0].Seq != 8501 || r.Known != nil {
			t.Errorf("%d, broken behind it: %v %s", size, err, text(r))
		}
	}
}

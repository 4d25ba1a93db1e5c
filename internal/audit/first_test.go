package audit_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// Who asks for the first fault gets it as soon as it is found: nothing far behind it
// is read, and no check is said to have passed.
func TestR80_TheFirstFaultEndsIt(t *testing.T) {
	const size = 30_000
	l := logtest.Sample(origin, 1, size)
	l.Edit(99, func(e *events.Event) { e.Agent = "other" })
	var last atomic.Uint64
	s := l.Source()
	events := s.Events
	s.Events = func(from, to uint64, fn func(uint64, []byte) error) error {
		last.Store(max(last.Load(), to))
		return events(from, to, fn)
	}
	files := mapFS(l.Files())
	rows := strings.Join(rowsOf(t, logtest.Sample(origin, 1, 2000), audit.JSONLines), "") + "\n"
	rows = strings.Replace(rows, `{"seq":100,`, `{"seq":101,`, 1)
	for name, verify := range map[string]func(audit.Options) (*audit.Report, error){
		"a log":     func(o audit.Options) (*audit.Report, error) { return audit.VerifyLog(s, o) },
		"an export": func(o audit.Options) (*audit.Report, error) { return audit.VerifyExport(files, o) },
		"serial":    func(o audit.Options) (*audit.Report, error) { o.Serial = true; return audit.VerifyExport(files, o) },
		"lines":     func(o audit.Options) (*audit.Report, error) { return verifyRows(t, rows, o) },
	} {
		r, err := verify(audit.Options{First: true})
		if err != nil || r.Exit != audit.ExitFail || r.Events > 101 || len(r.Faults) == 0 || r.Faults[0].Seq > 101 {
			t.Errorf("%s: %v %s", name, err, text(r))
		}
		for _, c := range append(r.Integrity.Checks, r.Completeness.Checks...) {
			if c.Status != audit.Fail && c.Status != audit.NotRun {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
	if at := last.Load(); at >= size {
		t.Errorf("read up to event %d", at)
	}
	if r := verifyLog(t, logtest.Sample(origin, 1, 300).Source(), audit.Options{First: true}); r.Exit != audit.ExitPass {
		t.Errorf("a good log: %s", text(r))
	}
	s.Events = func(uint64, uint64, func(uint64, []byte) error) error { return errors.New("bad block") }
	if r := verifyLog(t, s, audit.Options{First: true}); r.Exit != audit.ExitFail || r.Events != 1 {
		t.Errorf("unreadable: %s", text(r))
	}
}

package replay_test

import (
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
)

// scenario makes a log of everything in a temporary directory, in two sittings.
func scenario(t testing.TB) ledger.Options {
	t.Helper()
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	if err := ledger.Init(o.Dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, o)
	s.Scenario()
	s.Stop()
	s = replaytest.Start(t, o)
	s.Propose("report_manager", "memory.read", `{"namespace":"project","key":"client_region"}`)
	s.Stop()
	return o
}

func TestR82_AnHonestLogIsJudgedWholeAndNothingIsFound(t *testing.T) {
	o := scenario(t)
	report := replaytest.CheckLedger(t, o)
	types, reasons := map[events.Type]int{}, map[string]int{}
	for _, e := range read(t, o).events {
		types[e.Body.Type()]++
		if d, ok := e.Body.(*events.Decision); ok {
			reasons[d.Reason]++
		}
	}
	for _, typ := range events.Types() {
		if types[typ] == 0 {
			t.Errorf("the scenario leaves no %s", typ)
		}
	}
	if report.Decisions < 90 || report.Judged != report.Decisions || !report.Stored || !report.StoredSame {
		t.Errorf("report: %+v", report)
	}
	t.Logf("%d events, %d decisions judged, %d reasons: %v", report.Events, report.Judged, len(reasons), reasons)
}

func read(t testing.TB, o ledger.Options) *log {
	t.Helper()
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	src, err := replay.Stored(o.Dir, st)
	if err != nil {
		t.Fatal(err)
	}
	l := &log{payloads: map[uint64]payload{}}
	err = src.Events(1, src.Size, func(seq uint64, b []byte) error {
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		l.events = append(l.events, e)
		salt, p, ok, err := src.Payload(seq)
		if ok {
			l.payloads[seq] = payload{salt, p}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := src.State()
	if err != nil {
		t.Fatal(err)
	}
	if stored != nil {
		l.storedSeq = stored.Seq
		if l.stored, err = stored.EncodeSnapshot(nil); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// log is a whole log in memory, for forgers.
type log struct {
	events    []events.Event
	payloads  map[uint64]payload
	stored    []byte // the stored state
	storedSeq uint64
	ids       bool // forged too, and kept
}

func (l *log) storedState(t testing.TB) *projection.State {
	t.Helper()
	s, err := projection.DecodeSnapshot(l.stored, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type payload struct {
	salt  [events.SaltLen]byte
	bytes []byte
}

package projection

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
)

// until is a private record of kid's that ends.
func until(name, class string, revision uint64, expires events.Time, run string) *events.MemoryWritten {
	return &events.MemoryWritten{Record: record("kid", name, "private", class, revision), Expires: expires, RunID: run}
}

func (s *State) at(t events.Time, b events.Body, agent string) error {
	return s.Apply(&events.Event{Seq: s.Seq + 1, Time: t, Agent: agent, Cause: s.Seq, Body: b}, nil)
}

// R31: that a record is gone is believed at its moment and not before, once,
// and of the record as it was; nothing is done with it before that is said.
func TestR31_AnEndIsBelievedAtItsMoment(t *testing.T) {
	expired := func(revision uint64) *events.MemoryExpired {
		return &events.MemoryExpired{Record: record("kid", "task.a", "private", "task", revision)}
	}
	before := func() *State {
		s := folded(t, start()...)
		for _, b := range []events.Body{
			until("task.a", "task", 1, s.Time+100, ""), until("task.b", "task", 1, 0, ""),
			&events.RunAdmitted{RunID: "run", SOPID: "s", SOPVersion: 1, Steps: []string{"one"}, Actions: []string{"x.one"}}, &events.RunStarted{RunID: "run"},
			until("task.c", "task", 1, 0, "run"),
		} {
			if err := s.at(s.Time, b, "kid"); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	for name, c := range map[string]struct {
		after events.Time
		body  events.Body
		ok    bool
	}{
		"early":                        {99, expired(2), false},
		"in time":                      {100, expired(2), true},
		"late":                         {1000, expired(2), true},
		"of the revision it had":       {100, expired(1), false},
		"of none":                      {100, &events.MemoryExpired{Record: record("kid", "task.x", "private", "task", 2)}, false},
		"of one for ever":              {100, &events.MemoryExpired{Record: record("kid", "task.b", "private", "task", 2)}, false},
		"of an open run":               {100, &events.MemoryExpired{Record: record("kid", "task.c", "private", "task", 2)}, false},
		"of another class":             {100, &events.MemoryExpired{Record: record("kid", "task.a", "private", "preference", 2)}, false},
		"of another view":              {100, &events.MemoryExpired{Record: record("kid", "task.a", "children", "task", 2)}, false},
		"written before its end":       {99, until("task.a", "task", 2, 0, ""), true},
		"written over unsaid":          {100, until("task.a", "task", 2, 0, ""), false},
		"written over unsaid, counted": {100, until("task.a", "task", 3, 0, ""), false},
		"deleted before its end":       {99, &events.MemoryDeleted{Record: expired(2).Record}, true},
		"deleted after it":             {100, &events.MemoryDeleted{Record: expired(2).Record}, false},
		"one that is gone at once":     {100, until("task.d", "task", 1, 1, ""), false},
		"of a run of nobody":           {100, until("task.d", "task", 1, 0, "no-run"), false},
		"of an own open run":           {100, until("task.d", "task", 1, 0, "run"), true},
	} {
		s := before()
		err := s.at(s.Time+c.after, c.body, "kid")
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInconsistent) {
			t.Errorf("%s: %v", name, err)
		}
		if gone, ok := c.body.(*events.MemoryExpired); err == nil && ok {
			if s.Due(s.Time+1<<40) != nil || s.at(s.Time, gone, "kid") == nil || !s.Record("kid", "task", "a").Deleted {
				t.Errorf("%s: said once more", name)
			}
		}
	}
	s := before()
	for _, b := range []events.Body{&events.RunFailed{RunID: "run", StepID: "one", Reason: "r"}} {
		if err := s.at(s.Time, b, "kid"); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.Due(s.Time); r == nil || r.Key != "c" {
		t.Errorf("due after the run's end: %+v", r)
	}
	mandatory := until("rule.x", "mandatory", 1, s.Time+9, "")
	if err := s.Apply(&events.Event{Seq: s.Seq + 1, Time: s.Time, Body: mandatory}, []byte("true")); !errors.Is(err, ErrInconsistent) {
		t.Errorf("a mandatory record that ends: %v", err)
	}
}

// R31: whatever was written, rewritten and deleted, what is due next is what a
// look at every record finds; and so it is of a state that was written down.
func TestR31_WhatIsDueIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		for _, e := range start() {
			if err := s.apply(e); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			now := s.Time + events.Time(rapid.IntRange(0, 5).Draw(t, "passes"))
			name := fmt.Sprintf("task.k%d", rapid.IntRange(0, 5).Draw(t, "key"))
			old := s.Record("kid", "task", name[5:])
			switch due := s.Due(now); {
			case due != nil:
				if err := s.at(now, s.Expiry(due, now), events.System); err != nil {
					t.Fatal(err)
				}
			case s.Stands(old, now) && rapid.Bool().Draw(t, "delete"):
				if err := s.at(now, &events.MemoryDeleted{Record: record("kid", name, "private", "task", old.Revision+1)}, "kid"); err != nil {
					t.Fatal(err)
				}
			default:
				if err := s.at(now, until(name, "task", old.revision()+1, now+events.Time(rapid.IntRange(1, 9).Draw(t, "lasts")), ""), "kid"); err != nil {
					t.Fatal(err)
				}
			}
			restored, err := DecodeSnapshot(encoded(t, s), nil)
			if err != nil {
				t.Fatal(err)
			}
			for later := now; later < now+10; later++ {
				var want *Record
				for r := range s.records.all() {
					if s.Expiry(r, later) != nil && (want == nil || r.Expires < want.Expires || r.Expires == want.Expires && r.compare(want) < 0) {
						want = r
					}
				}
				for _, state := range []*State{s, restored} {
					if got := state.Due(later); (got == nil) != (want == nil) || got != nil && got.compare(want) != 0 {
						t.Fatalf("due at %d: %+v, want %+v", later, got, want)
					}
				}
			}
		}
	})
}

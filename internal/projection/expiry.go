package projection

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// gone reports whether a record's time has come at ledger time now, or its run
// has ended: it is gone then, whether or not that has been said yet.
func (s *State) gone(r *Record, now events.Time) bool {
	if r.Expires != 0 && now >= r.Expires {
		return true
	}
	if r.RunID == "" {
		return false
	}
	run := s.runs[r.RunID]
	return run == nil || !run.Open()
}

// Stands reports whether a record is there at ledger time now: neither deleted
// nor gone.
func (s *State) Stands(r *Record, now events.Time) bool {
	return r != nil && !r.Deleted && !s.gone(r, now)
}

// Expiry is what says that a record is gone, nil where it is not or that has
// been said.
func (s *State) Expiry(r *Record, now events.Time) *events.MemoryExpired {
	if r == nil || r.Deleted || !s.gone(r, now) {
		return nil
	}
	return &events.MemoryExpired{Record: events.Record{
		Owner: r.Owner, Namespace: r.Namespace, Key: r.Key,
		Visibility: r.Visibility, Class: string(r.Class), Revision: r.Revision + 1,
	}}
}

// Due returns the record of which it is to be said next that it is gone at now,
// nil if there is none.
func (s *State) Due(now events.Time) *Record {
	for len(s.ending) > 0 {
		next := s.ending[0]
		switch {
		case s.records.same(next.record) != next.record || next.record.Deleted:
			heap.Pop(&s.ending) // it was changed meanwhile
		case next.at > now:
			return nil
		default:
			return next.record
		}
	}
	return nil
}

// NextExpiry is the ledger time at which the next record will be gone; ok is
// false where none will be by time.
func (s *State) NextExpiry() (at events.Time, ok bool) {
	if len(s.ending) == 0 {
		return 0, false
	}
	return s.ending[0].at, true
}

func (s *State) expire(e *events.Event, b *events.Record) error {
	old := s.Record(b.Owner, b.Namespace, b.Key)
	if want := s.Expiry(old, e.Time); want == nil || want.Record != *b {
		return fmt.Errorf("%w: no such record whose time has come", ErrInconsistent)
	}
	s.drop(e, old)
	return nil
}

// drop leaves of a record what a deleted one has.
func (s *State) drop(e *events.Event, old *Record) {
	s.keep(&Record{
		Owner: old.Owner, Kind: old.Kind, Key: old.Key, Extra: noExtra,
		Revision: old.Revision + 1, Deleted: true, Decision: e.Cause, Written: e.Seq,
	})
	s.endGrants(func(g *Grant) bool { return g.Owner == old.Owner && g.Namespace == old.Namespace && g.Key == old.Key })
}

// ending is a heap of the records that have an end, by when it comes and name.
// One that was changed meanwhile stays in it until its turn, or until such ones
// are the most: no record is looked for in it.
type ending []ends

type ends struct {
	at     events.Time // 0 for one whose run has ended
	record *Record
}

func (h ending) Len() int      { return len(h) }
func (h ending) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h ending) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), h[i].record.compare(h[j].record)) < 0
}
func (h *ending) Push(x any) { *h = append(*h, x.(ends)) }
func (h *ending) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last], *h = ends{}, (*h)[:last]
	return x
}

// willEnd takes note of a record that has an end.
func (s *State) willEnd(r *Record) {
	if r.Expires != 0 {
		s.endAt(r, r.Expires)
	}
	if r.RunID == "" {
		return
	}
	if run := s.runs[r.RunID]; run == nil || !run.Open() {
		s.endAt(r, 0)
		return
	}
	s.ofRun[r.RunID] = append(s.ofRun[r.RunID], r)
}

const endingSlack = 1024 // entries of changed records that are not worth a search

func (s *State) endAt(r *Record, at events.Time) {
	if len(s.ending) >= 2*s.lasting+endingSlack {
		s.ending = slices.DeleteFunc(s.ending, func(e ends) bool { return s.records.same(e.record) != e.record })
		heap.Init(&s.ending)
	}
	heap.Push(&s.ending, ends{at, r})
}

// endRun makes what was written for a run due.
func (s *State) endRun(id string) {
	for _, r := range s.ofRun[id] {
		if s.records.same(r) == r {
			s.endAt(r, 0)
		}
	}
	delete(s.ofRun, id)
}

func (r *Record) ends() bool { return r != nil && !r.Deleted && (r.Expires != 0 || r.RunID != "") }

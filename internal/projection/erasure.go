package projection

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Erasure is what one payload.erased says.
type Erasure struct {
	Seq uint64 // of that event
	events.PayloadErased
}

// erasures are all there were, and what is held.
type erasures struct {
	all    []Erasure
	bySeq  map[uint64]uint64           // erased by its seq → the event that says so
	owners map[string]*events.Covering // those of all of an owner's
	holds  map[events.Hold]uint64      // → the event that placed it
	days   []day
}

// day is the first event of a day of ledger time.
type day struct{ number, seq uint64 }

const dayMicros = 86_400_000_000

// Erasures lists all erasures, oldest first. It must not be changed.
func (s *State) Erasures() []Erasure { return s.erasures.all }

// ErasedBy is the payload.erased under which the payload of an event was
// destroyed, 0 where it was not.
func (s *State) ErasedBy(e *events.Event) uint64 {
	if under := s.erasures.bySeq[e.Seq]; under != 0 {
		return under
	}
	if len(s.erasures.owners) == 0 {
		return 0
	}
	owner, mayErase := e.Sealed()
	if !mayErase {
		return 0
	}
	return s.erasures.owners[owner].Over(e.Seq)
}

// add keeps an erasure that is later than all before it.
func (x *erasures) add(er Erasure) {
	x.all = append(x.all, er)
	if er.Owner == "" {
		return
	}
	if x.owners[er.Owner] == nil {
		x.owners[er.Owner] = &events.Covering{}
	}
	x.owners[er.Owner].Add(er.Seq, er.Before)
}

// AnyErased reports whether anything was ever erased.
func (s *State) AnyErased() bool { return len(s.erasures.all) > 0 }

// HoldList lists what is held, in order.
func (s *State) HoldList() []events.Hold {
	list := make([]events.Hold, 0, len(s.erasures.holds))
	for h := range s.erasures.holds {
		list = append(list, h)
	}
	slices.SortFunc(list, compareHolds)
	return list
}

// HoldCount is how many holds there are.
func (s *State) HoldCount() int { return len(s.erasures.holds) }

// Held is the event that placed a hold, 0 where there is none.
func (s *State) Held(h events.Hold) uint64 { return s.erasures.holds[h] }

// HoldsOn reports whether anything of an owner's is held.
func (s *State) HoldsOn(owner string) bool {
	for h := range s.erasures.holds {
		if h.Owner == owner {
			return true
		}
	}
	return false
}

func compareHolds(a, b events.Hold) int {
	return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Seq, b.Seq))
}

// InUse reports whether an open run needs the payload of event seq.
func (s *State) InUse(seq uint64) bool {
	for _, run := range s.open {
		if run.Decision == seq || slices.ContainsFunc(run.Steps, func(step RunStep) bool { return step.Ended == seq }) {
			return true
		}
	}
	return false
}

// BeforeDays is the first event that is not yet more than so many days of
// ledger time old at now, counted in whole UTC days: all before it are. With no
// days to wait it is the next event.
func (s *State) BeforeDays(days int, now events.Time) uint64 {
	if days == 0 {
		return s.Seq + 1
	}
	today := uint64(now) / dayMicros
	at, _ := slices.BinarySearchFunc(s.erasures.days, today, func(d day, today uint64) int {
		return cmp.Compare(d.number+uint64(days), today)
	})
	if at == len(s.erasures.days) {
		return s.Seq + 1
	}
	return s.erasures.days[at].seq
}

// passDay notes the first event of each day.
func (s *State) passDay(e *events.Event) {
	number := uint64(e.Time) / dayMicros
	if n := len(s.erasures.days); n == 0 || s.erasures.days[n-1].number < number {
		s.erasures.days = append(s.erasures.days, day{number, e.Seq})
	}
}

func (s *State) foldErasure(e *events.Event) error {
	switch b := e.Body.(type) {
	case *events.PayloadErased:
		return s.erase(e, b)
	case *events.MemoryErased:
		last := len(s.erasures.all)
		if last == 0 || b.Class == "mandatory" {
			return fmt.Errorf("%w: no erasure that would end the record", ErrInconsistent)
		}
		return s.remove(e, &b.Record)
	case *events.HoldPlaced:
		if !s.IDTaken(b.Owner) || s.Held(b.Hold) != 0 || (b.Namespace == "") != (b.Key == "") || b.Seq >= e.Seq || b.Seq != 0 && b.Namespace != "" {
			return fmt.Errorf("%w: no such hold to place", ErrInconsistent)
		}
		s.erasures.holds[b.Hold] = e.Seq
	case *events.HoldLifted:
		if s.Held(b.Hold) == 0 {
			return fmt.Errorf("%w: no such hold", ErrInconsistent)
		}
		delete(s.erasures.holds, b.Hold)
	}
	return nil
}

func (s *State) erase(e *events.Event, b *events.PayloadErased) error {
	whole := b.Owner != ""
	switch {
	case !slices.Contains(events.Bases(), b.Basis), whole != (b.Before != 0), whole == (len(b.Seqs) > 0),
		whole && (s.agents[b.Owner] == nil || b.Before > e.Seq),
		!whole && b.Seqs[len(b.Seqs)-1] >= e.Seq:
		return fmt.Errorf("%w: no such payloads to erase", ErrInconsistent)
	}
	for _, seq := range b.Seqs {
		if s.erasures.bySeq[seq] != 0 {
			return fmt.Errorf("%w: a payload erased twice", ErrInconsistent)
		}
		s.erasures.bySeq[seq] = e.Seq
	}
	kept := *b
	kept.Owner, kept.Basis, kept.Seqs = strings.Clone(b.Owner), s.text(b.Basis), slices.Clone(b.Seqs)
	s.erasures.add(Erasure{e.Seq, kept})
	return nil
}

func (w *snapshotWriter) erasures(s *State) {
	w.uint(uint64(len(s.erasures.all)))
	for i := range s.erasures.all {
		er := &s.erasures.all[i]
		w.uint(er.Seq)
		w.text(er.Basis)
		w.text(er.Owner)
		w.uint(er.Before)
		w.uint(uint64(len(er.Seqs)))
		for _, seq := range er.Seqs {
			w.uint(seq)
		}
	}
	holds := s.HoldList()
	w.uint(uint64(len(holds)))
	for _, h := range holds {
		w.text(h.Owner)
		w.text(h.Namespace)
		w.text(h.Key)
		w.uint(h.Seq)
		w.uint(s.erasures.holds[h])
	}
	w.uint(uint64(len(s.erasures.days)))
	for _, d := range s.erasures.days {
		w.uint(d.number)
		w.uint(d.seq)
	}
}

func (r *snapshotReader) erasures(s *State) {
	s.erasures = newErasures()
	for n, before := r.uint(), uint64(0); n > 0 && r.err == nil; n-- {
		er := Erasure{Seq: r.uint(), PayloadErased: events.PayloadErased{Basis: s.text(r.text()), Owner: r.text(), Before: r.uint()}}
		for m, last := r.uint(), uint64(0); m > 0 && r.err == nil; m-- {
			seq := r.uint()
			if seq <= last || seq >= er.Seq || s.erasures.bySeq[seq] != 0 {
				r.fail("erased payloads out of order")
			}
			er.Seqs, last = append(er.Seqs, seq), seq
			s.erasures.bySeq[seq] = er.Seq
		}
		if er.Seq <= before || er.Seq > s.Seq || er.Before > er.Seq || (er.Owner == "") == (len(er.Seqs) == 0) || (er.Owner == "") != (er.Before == 0) || !slices.Contains(events.Bases(), er.Basis) {
			r.fail("erasures out of order, or of nothing")
		}
		before = er.Seq
		s.erasures.add(er)
	}
	var before events.Hold
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		h := events.Hold{Owner: r.text(), Namespace: r.text(), Key: r.text(), Seq: r.uint()}
		if len(s.erasures.holds) > 0 && compareHolds(before, h) >= 0 {
			r.fail("holds out of order")
		}
		before = h
		if s.erasures.holds[h] = r.uint(); s.erasures.holds[h] == 0 || s.erasures.holds[h] > s.Seq {
			r.fail("a hold that nobody placed")
		}
	}
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		d := day{r.uint(), r.uint()}
		if at := len(s.erasures.days); at > 0 && (s.erasures.days[at-1].number >= d.number || s.erasures.days[at-1].seq >= d.seq) || d.seq == 0 || d.seq > s.Seq {
			r.fail("days out of order")
		}
		s.erasures.days = append(s.erasures.days, d)
	}
}

func newErasures() erasures {
	return erasures{bySeq: map[uint64]uint64{}, owners: map[string]*events.Covering{}, holds: map[events.Hold]uint64{}}
}

// Payloads is a copy of as much of the state as says what may become of an
// owner's payloads, to be asked outside the goroutine that has the state: erasures,
// holds, and its runs.
func (s *State) Payloads(owner string) *State {
	c := &State{
		Seq: s.Seq, Policy: s.Policy, open: map[string]*Run{}, runs: map[string]*Run{},
		erasures: erasures{all: s.erasures.all, bySeq: maps.Clone(s.erasures.bySeq), holds: maps.Clone(s.erasures.holds), days: s.erasures.days},
	}
	if covering := s.erasures.owners[owner]; covering != nil {
		is := *covering
		c.erasures.owners = map[string]*events.Covering{owner: &is}
	}
	for id, run := range s.runs {
		if run.Agent != owner {
			continue
		}
		kept := &Run{ID: run.ID, Decision: run.Decision}
		if c.runs[id] = kept; run.Open() {
			kept.Steps = slices.Clone(run.Steps)
			c.open[id] = kept
		}
	}
	return c
}

package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// flightsMax is how many effects of one action a tree may have under way at
// once. What a tree adds beyond that waits here and not at the handlers, so that
// another's effect, whose time runs from its start, is not behind all of it.
const flightsMax = 16

// flights counts the effects under way and keeps the order of the runs that wait
// for others of their tree. It is no part of the state: when a run waits changes
// no verdict. Owned by the goroutine of Run.
type flights struct {
	of    map[string]flight // by run
	count map[flight]int
	held  map[flight][]string // runs, the first to wait first
	waits map[string]bool     // those in held
}

type flight struct{ tree, action string }

func newFlights() flights {
	return flights{map[string]flight{}, map[flight]int{}, map[flight][]string{}, map[string]bool{}}
}

// hold reports whether a run has to wait for others of its tree before it does
// the action, and remembers that it does.
func (f *flights) hold(run string, next flight) bool {
	if f.count[next] < flightsMax {
		return false
	}
	if !f.waits[run] {
		f.waits[run] = true
		f.held[next] = append(f.held[next], run)
	}
	return true
}

func (f *flights) started(run string, as flight) {
	f.of[run] = as
	f.count[as]++
}

// ended returns what the run's effect was, if it was under way.
func (f *flights) ended(run string) (flight, bool) {
	was, ok := f.of[run]
	if ok {
		delete(f.of, run)
		if f.count[was]--; f.count[was] == 0 {
			delete(f.count, was)
		}
	}
	return was, ok
}

// next takes the run that has waited longest for such a flight, empty for none.
func (f *flights) next(as flight) (run string) {
	queue := f.held[as]
	if len(queue) == 0 {
		return ""
	}
	run, queue = queue[0], queue[1:]
	delete(f.waits, run)
	if f.held[as] = queue; len(queue) == 0 {
		delete(f.held, as)
	}
	return run
}

// landed lets runs go on that waited for the effects that have ended in w.
func (l *Ledger) landed(w *sealing) error {
	for len(w.landed) > 0 {
		as := w.landed[0]
		w.landed = w.landed[1:]
		for l.flights.count[as] < flightsMax {
			id := l.flights.next(as)
			if id == "" {
				break
			}
			if run := l.state.Run(id); run != nil && run.Open() {
				if err := l.advance(w, run); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (l *Ledger) flightOf(run *projection.Run, action string) flight {
	lineage := l.state.Agent(run.Agent).LineageIDs()
	return flight{lineage[len(lineage)-1], action}
}

// follows keeps count of the handlers' effects that an event starts or ends.
func (w *sealing) follows(b events.Body) {
	f := &w.l.flights
	id := ""
	switch b := b.(type) {
	case *events.EffectStarted:
		if builtIn(b.Action) { // it ends with what started it
			return
		}
		f.started(b.RunID, w.l.flightOf(w.l.state.Run(b.RunID), b.Action))
		return
	case *events.EffectFinished:
		id = b.RunID
	case *events.EffectFailed:
		id = b.RunID
	case *events.RunDoubted:
		id = b.RunID
	default:
		return
	}
	if was, ok := f.ended(id); ok && len(f.held[was]) > 0 {
		w.landed = append(w.landed, was)
	}
}

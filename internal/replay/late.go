package replay

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// What the writer does of itself has no time by which it must come: at the end of a
// log, over a stop, and while storage is low it is not there yet. But then no agent's
// proposal is taken either. Where agents' proposals are decided in one second after
// the other and it still does not come, it was left out.
const lateSeconds = 10

// lateRuns counts the seconds in which proposals were decided while something was due.
type lateRuns struct {
	second events.Time
	runs   map[string]lateRun
	record string // whose time has come and who is not said to be gone
	since  int
}

type lateRun struct {
	typ     events.Type // of what is due
	seconds int         // negative once it was found
}

// overdue is told of each decision on an agent's proposal, before it is folded.
func (r *run) overdue(e *events.Event) {
	l := &r.late
	if second := e.Time / 1_000_000; second == l.second {
		return
	} else {
		l.second = second
	}
	due := map[string]lateRun{}
	if r.s.OpenCount() > 0 {
		for _, current := range r.s.OpenRuns() {
			body := dueOf(current, e.Time)
			if body == nil {
				continue
			}
			late := l.runs[current.ID]
			if late.typ != body.Type() {
				late = lateRun{typ: body.Type()}
			}
			if late.seconds++; late.seconds == lateSeconds {
				r.find(e.Seq, string(late.typ)+" of run "+current.ID+", which was due all the while", describe(e))
			}
			due[current.ID] = late
		}
	}
	l.runs = due
	r.overdueRecord(e)
}

// dueOf is what the writer does with a run of itself, nil for nothing.
func dueOf(current *projection.Run, now events.Time) events.Body {
	if body := ledger.Doubted(current, now, false); body != nil {
		return body
	}
	if current.Idle() {
		return ledger.Ending(current)
	}
	return nil
}

// overdueRecord is overdue for the record that is the next to be said to be gone.
func (r *run) overdueRecord(e *events.Event) {
	l, name := &r.late, ""
	if record := r.s.Due(e.Time); record != nil {
		name = record.Owner + ":" + record.Namespace + "." + record.Key
	}
	if name == "" || name != l.record {
		l.record, l.since = name, 0
	}
	if l.since++; name != "" && l.since == lateSeconds {
		r.find(e.Seq, "memory.expired of "+name+", whose time had come all the while", describe(e))
	}
}

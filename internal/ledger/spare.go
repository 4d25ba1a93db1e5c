package ledger

import (
	"sync"
	"sync/atomic"
)

// What judging takes is used again, since making it anew was a fifth of all a
// decision cost. A batch has two users: the writer, as long as it looks back at
// what may not be durable yet, and answerAll. The second to leave gives back the
// events, the outcomes and the arrivals, emptied, so that whoever kept one after all
// would see nothing in it. An arrival that a reader still has is left to it.
type spare struct {
	users atomic.Int32
	kept  bool // a Stepper's, whose outcomes its caller has
}

var (
	outcomes   = sync.Pool{New: func() any { return new(Outcome) }}
	sealedRoom sync.Pool // of *[]sealedEvent
)

const (
	sealedRoomMax = 4096     // events; more of them are not kept
	replyRoomMax  = 64 << 10 // bytes, just so
)

// newSealed makes room for about jobs outcomes of one event each.
func newSealed(jobs int) []sealedEvent {
	if room, ok := sealedRoom.Get().(*[]sealedEvent); ok {
		return *room
	}
	return make([]sealedEvent, 0, jobs+jobs/2+1)
}

// last is the seq of the batch's last event. It must have some.
func (b *batch) last() uint64 { return b.sealed[len(b.sealed)-1].event.Seq }

// leave says that one of the batch's users is done with it.
func (b *batch) leave() {
	if b.spare.users.Add(-1) > 0 || b.spare.kept || b.failed {
		return
	}
	for _, j := range b.jobs {
		passed := j.refused != ""
		if j.outcome != nil && passing(j.proposal.Operation) {
			j.outcome.empty()
			outcomes.Put(j.outcome)
			j.outcome, passed = nil, true
		}
		j.sealed = nil
		if passed && j.caller != nil && !j.reading.Load() {
			j.caller.Done()
		}
	}
	if cap(b.sealed) <= sealedRoomMax {
		clear(b.sealed)
		room := b.sealed[:0]
		sealedRoom.Put(&room)
	}
	b.sealed = nil
}

// passing reports whether nothing of an operation's outcome stays behind when it
// has been answered: no run, no policy, no erasure.
func passing(operation string) bool {
	switch operation {
	case "memory.read", "memory.write", "action.authorize", "sop.validate":
		return true
	}
	return false
}

func newOutcome() *Outcome { return outcomes.Get().(*Outcome) }

// empty takes everything out of an outcome but the room that the next one takes
// over.
func (o *Outcome) empty() {
	clear(o.Steps)
	clear(o.steps)
	*o = Outcome{Steps: o.Steps[:0], steps: o.steps[:0], room: o.room}
}

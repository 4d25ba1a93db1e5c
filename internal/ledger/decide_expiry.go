package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// checkLifetime holds a write that asks for so many seconds, 0 for not saying,
// to what the policy says of its name. Task state has an end: its own, its
// rule's or its run's. A mandatory record has none, since what it lays down
// would be loosened with nobody deciding so.
func checkLifetime(p *policy.Policy, namespace, key string, seconds uint64, inRun bool) reason.Code {
	most, task := p.TaskSeconds(namespace, key)
	switch {
	case seconds != 0 && p.Class(namespace, key) == policy.Mandatory,
		task && most != 0 && seconds > most,
		task && most == 0 && seconds == 0 && !inRun:
		return reason.ValueNotAllowed
	}
	return ""
}

const lifetimeText = "task state outside a run needs ttl_seconds, at most what its namespace rule says; a mandatory record takes none"

// ends gives what is written at now its end: the time from which it is gone,
// and in a run, where the write names none, the run.
func (j *judge) ends(w *events.MemoryWritten, seconds uint64) {
	most, task := j.s.Policy.TaskSeconds(w.Namespace, w.Key)
	if task && seconds == 0 {
		seconds = most
		if j.inRun() {
			w.RunID = j.d.RunID
		}
	}
	if seconds != 0 {
		w.Expires = j.now() + events.Time(seconds)*1_000_000
	}
}

// inRun reports whether a run's step is judged at its moment.
func (j *judge) inRun() bool { return j.d.Operation == StepOperation }

package ledger

import "sync/atomic"

// leadMax is how many jobs may be judged and not answered when the next batch
// begins: a full one, which covers a sync of some milliseconds. With more, what
// comes first in the next batch, an admin's verb, would wait for all their
// answers where these are what takes longest.
const leadMax = batchJobsMax

// lead is how many jobs the writer is ahead of the answers.
type lead struct {
	jobs atomic.Int64
	less chan struct{} // holds one
}

// wait returns once the writer may begin the next batch.
func (l *lead) wait() {
	for l.jobs.Load() > leadMax {
		<-l.less
	}
}

func (l *lead) add(jobs int) { l.jobs.Add(int64(jobs)) }

// done says that so many jobs are answered.
func (l *lead) done(jobs int) {
	l.jobs.Add(-int64(jobs))
	select {
	case l.less <- struct{}{}:
	default:
	}
}

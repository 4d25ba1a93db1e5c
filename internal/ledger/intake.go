package ledger

import (
	"math"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/reason"
)

const (
	batchJobsMax     = 256     // answered together; keeps one sync's worth of waiting short
	batchControlMax  = 64      // of a batch with control requests, which wait for all of it
	batchJobsEnough  = 64      // are a batch while another is on its way to disk
	unansweredMax    = 256     // judged and not answered when a batch begins: a full one, which covers a sync of some milliseconds
	batchBytesMax    = 4 << 20 // a batch stays well under a memtable
	queueDefault     = 32_768  // proposals waiting
	queueBytes       = 64 << 20
	senderQueueMax   = 4096 // of one sender
	senderQueueBytes = 32 << 20
	waitDefault      = 2 * time.Second
	reportQueueMax   = 12_288 // reports waiting; a handler whose report is refused sends it again
	smallQueueMax    = 4096   // queries, and control requests, waiting
	smallSenderMax   = 256

	aheadMax = 128 // proposals read before the writer asks for them
	chunkMax = 16  // of them read in one go
)

// intake is what waits for the writer. Its lanes are served control first, then
// reports, then queries and proposals side by side. Control requests and reports
// wait as long as they must.
//
// A proposal is read (decoded) when its turn has come, not before: whoever
// sends most would otherwise have most of the reading done. The readers read
// ahead of the writer, in the order of turns, as long as it is busy; one that
// they have not come to it reads itself, so that nothing is handed over where
// nothing waits.
type intake struct {
	wait time.Duration       // the longest a proposal or query may wait to be judged
	root func(string) string // of a sender

	mu        sync.Mutex
	closed    bool // nothing is queued any more
	controls  fairQueue
	reports   fairQueue // of handlers
	questions fairQueue
	proposals fairQueue
	ahead     fifo[*job] // proposals whose turn it was, read or being read
	idle      bool       // the writer waits for wake

	unsettled  int           // batches that the writer has handed over and that are not durable yet
	unanswered int           // jobs of batches that it has handed over
	wake       chan struct{} // holds one
	reading    sync.Cond     // readers wait for it
	resting    int           // how many
}

func (in *intake) open(wait time.Duration, proposals int, root func(string) string) {
	in.wait, in.root = wait, root
	in.proposals = newFairQueue(queueLimits{proposals, queueBytes, senderQueueMax, senderQueueBytes})
	in.questions = newFairQueue(queueLimits{smallQueueMax, queueBytes, smallSenderMax, senderQueueBytes})
	in.reports = newFairQueue(queueLimits{reportQueueMax, queueBytes, reportQueueMax, senderQueueBytes})
	in.controls = newFairQueue(queueLimits{smallQueueMax, queueBytes, smallSenderMax, senderQueueBytes})
	in.wake = make(chan struct{}, 1)
	in.reading.L = &in.mu
}

// put queues j of a sender on one of the lanes. Any code but the empty one says
// why not.
func (in *intake) put(lane *fairQueue, from string, j *job) reason.Code {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return reason.NotKnownCommitted
	}
	if !lane.push(from, j, in.root) {
		in.mu.Unlock()
		return reason.Overloaded
	}
	wake := in.ready()
	if !wake && in.readable() {
		in.reading.Signal()
	}
	in.mu.Unlock()
	if wake {
		in.rouse()
	}
	return ""
}

func (in *intake) rouse() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

func (in *intake) waiting() int {
	return in.controls.jobs + in.reports.jobs + in.questions.jobs + in.proposals.jobs + in.ahead.len()
}

// needs is how many have to wait for the next batch to begin.
//
// While more than a full batch is judged and not answered none begins: what comes
// first in it, an admin's verb, would wait for all those answers where they are
// what takes longest. While one is on its way to disk, few are no batch: the log is
// synced by one at a time, so that a small batch behind another would be durable no
// sooner, and cost as much as a large one. Control requests, and queries, which
// need no sync, wait for no company.
func (in *intake) needs() int {
	switch {
	case in.unanswered > unansweredMax:
		return math.MaxInt
	case in.unsettled > 0 && in.controls.jobs+in.questions.jobs == 0:
		return batchJobsEnough
	}
	return 1
}

// ready reports, once, that the writer waits and need not any more.
func (in *intake) ready() bool {
	if !in.idle || in.waiting() < in.needs() {
		return false
	}
	in.idle = false
	return true
}

// handed counts a batch as on its way to disk and to its answers.
func (in *intake) handed(jobs int) {
	in.mu.Lock()
	in.unsettled, in.unanswered = in.unsettled+1, in.unanswered+jobs
	in.mu.Unlock()
}

// settled counts a batch as on disk, or as lost.
func (in *intake) settled() { in.past(1, 0) }

// answered counts so many jobs as answered.
func (in *intake) answered(jobs int) { in.past(0, jobs) }

func (in *intake) past(batches, jobs int) {
	in.mu.Lock()
	in.unsettled, in.unanswered = in.unsettled-batches, in.unanswered-jobs
	wake := in.ready()
	in.mu.Unlock()
	if wake {
		in.rouse()
	}
}

// take returns the jobs of the next batch at now, in order. When there are none, or
// too few to begin one, the writer is to wait for wake, unless the intake is closed.
func (in *intake) take(now int64) (jobs []*job, closed bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	waiting := in.waiting()
	if waiting == 0 || !in.closed && waiting < in.needs() {
		in.idle = !in.closed
		return nil, in.closed
	}
	jobs = make([]*job, 0, min(waiting, batchJobsMax))
	bytes := 0
	from := func(most int, next func() *job) {
		for len(jobs) < most && bytes < batchBytesMax {
			j := next()
			if j == nil {
				return
			}
			jobs, bytes = append(jobs, j), bytes+j.bytes
		}
	}
	most := batchJobsMax
	from(most, in.controls.pop)
	if len(jobs) > 0 {
		most = batchControlMax
	}
	from(most, in.reports.pop)
	patient := len(jobs)
	from(most-min(most/4, in.questions.jobs), in.nextProposal)
	from(most, in.questions.pop)
	for _, j := range jobs[patient:] {
		j.late = now-j.at > int64(in.wait)
	}
	if in.readable() {
		in.reading.Signal()
	}
	return jobs, false
}

func (in *intake) nextProposal() *job {
	if in.ahead.len() > 0 {
		return in.ahead.pop()
	}
	return in.proposals.pop()
}

// readable reports whether a reader that rests has a chunk's worth to do.
func (in *intake) readable() bool {
	return in.resting > 0 && in.proposals.jobs >= chunkMax && in.ahead.len()+chunkMax <= aheadMax
}

// read is a reader: it takes proposals in their turn and reads them, until the
// intake is closed.
func (in *intake) read() {
	chunk := make([]*job, 0, chunkMax)
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.closed {
		if in.proposals.jobs < chunkMax || in.ahead.len()+chunkMax > aheadMax {
			in.resting++
			in.reading.Wait()
			in.resting--
			continue
		}
		chunk = chunk[:0]
		for range chunkMax {
			j := in.proposals.pop()
			j.reading.Store(true)
			in.ahead.push(j)
			chunk = append(chunk, j)
		}
		in.mu.Unlock()
		for i, j := range chunk {
			j.readOnce()
			j.reading.Store(false) // from here on it may be another's
			chunk[i] = nil
		}
		in.mu.Lock()
	}
}

// close ends the queueing: what was put before is still there, and nothing comes
// after. It reports whether it was open.
func (in *intake) close() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	in.closed = true
	in.reading.Broadcast()
	in.rouse()
	return true
}

// depths tells how much waits in each lane.
func (in *intake) depths() []Queue {
	in.mu.Lock()
	defer in.mu.Unlock()
	return []Queue{
		{"control", in.controls.jobs, in.controls.limits.jobs},
		{"report", in.reports.jobs, in.reports.limits.jobs},
		{"propose", in.proposals.jobs + in.ahead.len(), in.proposals.limits.jobs + aheadMax},
		{"query", in.questions.jobs, in.questions.limits.jobs},
	}
}

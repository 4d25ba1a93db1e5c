package ledger

import (
	"strconv"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// BenchmarkCounters is what counting adds to a proposal that is judged alone in
// its batch, the dearest case, and to one of a full batch.
func BenchmarkCounters(b *testing.B) {
	for _, n := range []int{1, batchJobsMax} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var c counters
			c.init()
			s := projection.New()
			jobs := make([]job, n)
			sealed := make([]sealedEvent, n)
			for i := range jobs {
				jobs[i].outcome = &Outcome{}
				sealed[i].event.Body = &events.Decision{Operation: "memory.read", Reason: string(reason.VisibleFrom)}
			}
			b.ReportAllocs()
			for b.Loop() {
				for i := range jobs {
					jobs[i].at = c.now()
				}
				c.writing.Store(c.now())
				c.measure(s)
				at := c.now()
				c.writing.Store(0)
				c.answering.Store(c.now())
				c.batch.add(uint64(n))
				now := c.now()
				c.sync.add(uint64(now-at) / 1000)
				c.decided(sealed)
				for i := range jobs {
					c.answered(&jobs[i], now)
				}
				c.answering.Store(0)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/proposal")
		})
	}
}

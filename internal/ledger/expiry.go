package ledger

import (
	"math"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// expiriesMax bounds what one batch says of records that are gone, so that no
// answer waits for a heap of them. They are gone all the same.
const expiriesMax = 256

// expire says of records that their time has come, or their run has ended.
func (w *sealing) expire() error {
	l := w.l
	if _, any := l.state.NextExpiry(); !any || l.low.Load() > 0 {
		return nil
	}
	now := l.now()
	for range expiriesMax {
		record := l.state.Due(now)
		if record == nil {
			return nil
		}
		if err := w.add(events.Event{Time: now, Agent: events.System, Body: l.state.Expiry(record, now)}, nil); err != nil {
			return err
		}
	}
	return nil
}

// nextExpiry is when the writer is to be woken for records that are gone.
func nextExpiry(s *projection.State) int64 {
	if at, any := s.NextExpiry(); any {
		return int64(at)
	}
	return math.MaxInt64
}

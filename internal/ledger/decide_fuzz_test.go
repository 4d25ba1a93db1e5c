package ledger

import (
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// FuzzDecide sends anything under any operation: no panic, a decision within
// its grammar, and events that seal, read back, fold and publish.
func FuzzDecide(f *testing.F) {
	senders := []string{"researcher", "report_manager", "formatter", "nobody", AdminID, "clerk", "tools"}
	for _, name := range allTables(f) {
		for _, s := range runTable(f, name).sent {
			for i, who := range senders {
				if who == s.who && len(s.body) < 8<<10 {
					f.Add(s.lane == wire.Control, uint8(i), s.operation, []byte(s.body))
				}
			}
		}
	}
	lab := newLab(f)
	snapshot, err := lab.state.EncodeSnapshot(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, control bool, sender uint8, operation string, body []byte) {
		state, err := projection.DecodeSnapshot(snapshot, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := &tinyLog{t: t, state: state, events: slices.Clip(lab.events), open: map[uint64][]byte{}, request: map[uint64][]byte{}}
		lane := wire.Propose
		if control {
			lane = wire.Control
		}
		first := len(l.events)
		l.ask(lane, senders[int(sender)%len(senders)], operation, string(body))
		if len(l.events) == first {
			t.Fatal("a first request leaves no decision")
		}
	})
}

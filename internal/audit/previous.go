package audit

import (
	"fmt"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// continues checks the form of what event 1 says of the log before it: a log of
// another epoch of the same name, a checkpoint of it, and a reason.
func (v *Verifier) continues(b *events.LedgerCreated) {
	p := b.Previous
	if p == nil {
		return
	}
	fault := func(expected, found string) {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: expected, Found: found})
	}
	base, epoch := events.SplitEpoch(b.Origin)
	if of, before := events.SplitEpoch(p.Origin); of != base || before >= epoch || !events.ValidOrigin(p.Origin) {
		fault("as previous an earlier epoch of "+quote(base), quote(p.Origin))
	}
	if !slices.Contains(events.EpochReasons(), p.Reason) {
		fault(fmt.Sprintf("a reason of %q", events.EpochReasons()), quote(p.Reason))
	}
	switch c, err := readCheckpoint([]byte(p.Checkpoint)); {
	case err != nil:
		fault("a signed checkpoint of the log before", quote(p.Checkpoint)+": "+err.Error())
	case c.Origin != p.Origin || c.Size == 0:
		fault("a checkpoint of "+quote(p.Origin), fmt.Sprintf("one of %s at size %d", quote(c.Origin), c.Size))
	}
}

package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// rotate brings the next key of a kind, which the writer has made. The one before
// it goes on beside it until it is retired, so that there are never three.
func (j *judge) rotate(r *wire.KeyRotate) reason.Code {
	if old := j.s.Overlap(r.Key); old != nil {
		j.note("%s key %d is still in force: retire it first", r.Key, old.Number)
		return reason.RevisionConflict
	}
	j.emit(&events.KeyRotated{Key: r.Key, Number: j.s.KeyNumber(r.Key) + 1, PublicKey: j.p.NewKey})
	return reason.ControlDone
}

// retire ends the older of two keys. What both have signed is kept with it, so
// that who knows the older one learns of the newer.
func (j *judge) retire(r *wire.KeyRetire) reason.Code {
	old := j.s.Overlap(r.Key)
	if old == nil {
		j.note("one %s key is in force, and it is not to be done without: rotate it first", r.Key)
		return reason.RevisionConflict
	}
	j.emit(&events.KeyRetired{Key: r.Key, Number: old.Number, Checkpoint: j.p.Handoff})
	return reason.ControlDone
}

package ledger

import (
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Report takes what a handler says of an effect. As with Submit, the empty code
// means that answer will be called, once, with wire.Ack or an error: only when
// what it said is durable, or was before.
func (l *Ledger) Report(handler string, r *wire.Report, answer func(Answer)) reason.Code {
	return reason.UnsupportedOperation
}

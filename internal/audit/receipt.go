package audit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Receipt says which event of which log somebody was promised: what a reply
// says of itself. It proves nothing alone; held against a proof or the log, it
// shows whether the promise was kept.
type Receipt struct {
	Origin  string // the log; empty in a reply, which does not name it
	Seq     uint64
	EventID string
	Hash    events.Hash // the leaf hash of the event

	reply *events.Value // what it was read from; nil for a receipt itself
}

const (
	receiptType = "io.ledgerd.receipt.v1"
	replyType   = "io.ledgerd.decision.v1"
)

var eventID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// ReceiptBytesMax bounds what is read as a receipt: a reply may carry a value.
const ReceiptBytesMax = events.ReplyBytesMax

// ParseReceipt reads a receipt as Encode writes it, or a ledger's reply, of
// which it takes the receipt.
func ParseReceipt(b []byte) (*Receipt, error) {
	if len(b) > ReceiptBytesMax {
		return nil, fmt.Errorf("no receipt: %d bytes", len(b))
	}
	v, err := events.ParseJSON(b)
	if err != nil {
		return nil, fmt.Errorf("no receipt: %w", err)
	}
	if v.Kind != events.Object {
		return nil, errors.New("no receipt: not one JSON object")
	}
	r := &Receipt{}
	text := func(name string) string {
		m, _ := v.Get(name)
		if m.Kind != events.String {
			return ""
		}
		return m.Text
	}
	switch kind := text("type"); kind {
	case receiptType:
		r.Origin = text("origin")
		if names := []string{"event_id", "hash", "origin", "seq", "type"}; len(v.Members) != len(names) || !events.ValidOrigin(r.Origin) ||
			slices.ContainsFunc(names, func(name string) bool { _, ok := v.Get(name); return !ok }) {
			return nil, errors.New("no receipt: it has type, origin, seq, event_id and hash, and nothing else")
		}
	case replyType:
		r.reply = &v
	default:
		return nil, fmt.Errorf("no receipt: its type is %s", quote(kind))
	}
	seq, _ := v.Get("seq")
	n, ok := seq.Int()
	if !ok || n < 1 || strconv.FormatInt(n, 10) != seq.Text {
		return nil, errors.New("no receipt: it names no seq")
	}
	r.Seq, r.EventID = uint64(n), text("event_id")
	if r.Hash, err = events.ParseHash(text("hash")); err != nil || r.Hash.IsZero() {
		return nil, errors.New("no receipt: it names no hash")
	}
	if !eventID.MatchString(r.EventID) {
		return nil, errors.New("no receipt: it names no event id")
	}
	return r, nil
}

// Encode is the receipt as a file: one line of JSON.
func (r *Receipt) Encode() []byte {
	b := append([]byte(`{"type":"`+receiptType+`","origin":`), events.AppendString(nil, r.Origin)...)
	b = strconv.AppendUint(append(b, `,"seq":`...), r.Seq, 10)
	return fmt.Appendf(b, `,"event_id":"%s","hash":"%s"}`+"\n", r.EventID, r.Hash)
}

// Holds reports whether event, which stands at the receipt's seq, is the one of
// the receipt, and says what the reply does that it was read from. The error is
// a *Fault.
func (r *Receipt) Holds(event []byte) error {
	if got := events.LeafHash(event); got != r.Hash {
		return &Fault{Check: "receipt", Seq: r.Seq, Expected: "the receipt's event " + r.EventID + ", hash " + r.Hash.String(), Found: "another, hash " + got.String()}
	}
	e, err := events.Parse(event)
	if err != nil {
		return &Fault{Check: "receipt", Seq: r.Seq, Expected: "an event", Found: err.Error()}
	}
	if got := events.UUIDString(e.ID); got != r.EventID || e.Seq != r.Seq {
		return &Fault{Check: "receipt", Seq: r.Seq, Expected: "the receipt's event " + r.EventID, Found: fmt.Sprintf("event %s of seq %d", got, e.Seq)}
	}
	return r.says(e.Body)
}

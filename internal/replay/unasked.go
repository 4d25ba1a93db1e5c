package replay

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// What no request gives is held to what the writer would have written.

// unasked checks an event that no decision caused.
func (r *run) unasked(found logged) {
	switch b := found.Body.(type) {
	case *events.LedgerCreated:
		r.created(found, b)
	case *events.LedgerOpened:
		r.opening, r.since, r.late = true, r.s.Time, lateRuns{} // the door may open before the writer does
		if b.Rules < max(1, r.s.Rules) {
			r.find(found.Seq, fmt.Sprintf("rules %d or later", max(1, r.s.Rules)), fmt.Sprintf("rules %d", b.Rules))
		}
	case *events.MemoryExpired:
		want := r.s.Expiry(r.s.Record(b.Owner, b.Namespace, b.Key), found.Time)
		if want == nil || *want != *b {
			r.find(found.Seq, "no event: the record's time has not come", describe(&found.Event))
		}
	case *events.TransportDenied:
		r.refusals(found, &b.Refusals, transportCodes[b.Code])
	case *events.RequestsRefused:
		info, known := reason.Of(reason.Code(b.Code))
		r.refusals(found, &b.Refusals, known && !info.Allowed && info.Code != reason.NotKnownCommitted)
	}
}

// created holds event 1 to what init makes: keys that are keys, each for one end.
func (r *run) created(found logged, b *events.LedgerCreated) {
	permit := b.Origin + "/permit"
	switch {
	case b.Format != events.Format || b.AdminID != ledger.AdminID || found.Seq != 1:
		r.find(found.Seq, fmt.Sprintf("a ledger of format %s with the admin %s, at event 1", events.Format, ledger.AdminID), describe(&found.Event))
	case !events.ValidOrigin(b.Origin) || !events.ValidID(b.Ledger):
		r.find(found.Seq, "an origin, and an id as the ledger's name", quote(b.Origin)+", "+quote(b.Ledger))
	case !policy.ValidPublicKey(b.AdminPublicKey):
		r.find(found.Seq, "the public key of a NATS user as the admin's", quote(b.AdminPublicKey))
	case !events.ValidVerifierKey(b.CheckpointKey, b.Origin):
		r.find(found.Seq, "a verifier key called "+b.Origin+" for checkpoints", quote(b.CheckpointKey))
	case !events.ValidVerifierKey(b.PermitKey, permit):
		r.find(found.Seq, "a verifier key called "+permit+" for permits", quote(b.PermitKey))
	case events.KeyText(b.PermitKey) == events.KeyText(b.CheckpointKey):
		r.find(found.Seq, "a key of their own for permits", "that of checkpoints")
	case !policy.ValidSigners(b.PolicySigners):
		r.find(found.Seq, "public keys of NATS users as signers, each once and in order", fmt.Sprint(b.PolicySigners))
	}
}

// transportCodes are those that the NATS server's refusals are counted under.
var transportCodes = map[string]bool{"auth_failed": true, "publish_denied": true, "subscribe_denied": true}

// countedOf is what refusals are counted by.
type countedOf struct {
	kind     events.Type
	id, code string
}

// refusals checks a count of refusals: of a known reason, of somebody registered,
// of a time that is over, began since the ledger was opened, and was not counted before.
func (r *run) refusals(found logged, b *events.Refusals, known bool) {
	of := countedOf{found.Body.Type(), b.ID, b.Code}
	before := max(r.since, r.counted[of])
	switch {
	case b.Count == 0:
		r.find(found.Seq, "a count of at least 1", "0")
	case !known:
		r.find(found.Seq, "a code that refusals are counted under", quote(b.Code))
	case b.ID != "" && !r.s.IDTaken(b.ID):
		r.find(found.Seq, "an id that was registered", quote(b.ID))
	case b.First > b.Last || b.Count == 1 && b.First != b.Last:
		r.find(found.Seq, "a last refusal after the first, or the same where it is one", b.First.String()+" to "+b.Last.String())
	case b.Last > found.Time:
		r.find(found.Seq, "refusals up to "+found.Time.String(), "one of "+b.Last.String())
	case b.First < before:
		r.find(found.Seq, "refusals since "+before.String()+", when they were last counted or the ledger was opened", "one of "+b.First.String())
	}
	if r.counted == nil {
		r.counted = map[countedOf]events.Time{}
	}
	r.counted[of] = max(before, b.Last)
}

// eventIDs finds an id that two events have. Each begins with its event's own
// millisecond, so that only those of one millisecond can be the same.
type eventIDs struct {
	of   events.Time // milliseconds
	seen map[[16]byte]struct{}
}

const idsOfOneMax = 1 << 18 // a millisecond of more was never written, and is not looked at whole

func (ids *eventIDs) take(r *run, e *events.Event) {
	ms, at := events.Time(0), e.Time/1000
	for _, b := range e.ID[:6] {
		ms = ms<<8 | events.Time(b)
	}
	if ms != at {
		r.find(e.Seq, fmt.Sprintf("an id that begins with the event's millisecond, %012x", uint64(at)), events.UUIDString(e.ID))
		return
	}
	if ids.seen == nil || ids.of != at {
		ids.of, ids.seen = at, make(map[[16]byte]struct{}, 8)
	}
	switch _, twice := ids.seen[e.ID]; {
	case twice:
		r.find(e.Seq, "an id of its own", events.UUIDString(e.ID)+", which an event before it has")
	case len(ids.seen) < idsOfOneMax:
		ids.seen[e.ID] = struct{}{}
	default:
		r.UncomparedIDs++
	}
}

// accepted is the last wall clock that an admin took the word of.
type accepted struct {
	seq  uint64
	wall events.Time
}

// dated holds the time of an event to the clock that was accepted before it: unless
// the ledger was stopped in between, it was followed at once.
func (r *run) dated(e *events.Event) {
	if b, ok := e.Body.(*events.ClockAccepted); ok {
		r.accepted = accepted{seq: e.Seq, wall: b.Wall}
		return
	}
	if a := r.accepted; a.seq != 0 && e.Time < a.wall {
		if _, opened := e.Body.(*events.LedgerOpened); !opened {
			r.find(a.seq, "a wall clock at "+e.Time.String()+" at most, which is the time of the next event", a.wall.String())
		}
	}
	r.accepted = accepted{}
}

// ownKey finds a new key of the ledger's that is an old one, under whichever name.
func (r *run) ownKey(e *events.Event) {
	b, ok := e.Body.(*events.KeyRotated)
	if !ok || b.PublicKey == "" {
		return
	}
	for _, list := range [][]projection.SigningKey{r.s.CheckpointKeys(), r.s.PermitKeys()} {
		for _, k := range list {
			if events.KeyText(k.Public) == events.KeyText(b.PublicKey) {
				r.find(e.Seq, "a new key", fmt.Sprintf("the one that event %d brought as %s", k.From, k.Public))
			}
		}
	}
}

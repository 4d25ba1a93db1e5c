package ledger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	holdsMax         = 4096 // at a time: they are looked over with every erasure
	erasedRecordsMax = 4096 // that one erasure ends, each an event of its outcome
)

// Beside lists the seqs of the events that a judgement of the request reads from
// the log: what it erases or holds lies beside them. It is at most EraseSeqsMax.
func Beside(r *wire.Request) []uint64 {
	if r == nil {
		return nil
	}
	switch b := r.Body.(type) {
	case *wire.PayloadErase:
		return b.Seqs[:min(len(b.Seqs), wire.EraseSeqsMax)]
	case *wire.HoldPlace:
		return oneSeq(b.Seq)
	case *wire.HoldLift:
		return oneSeq(b.Seq)
	}
	return nil
}

func oneSeq(seq uint64) []uint64 {
	if seq == 0 {
		return nil
	}
	return []uint64{seq}
}

func (j *judge) erase(r *wire.PayloadErase) reason.Code {
	erased := &events.PayloadErased{Basis: r.Basis, Owner: r.Owner}
	var records []*projection.Record
	var code reason.Code
	if r.Owner != "" {
		records, code = j.eraseOwner(erased)
	} else {
		records, code = j.eraseSeqs(r.Seqs, erased)
	}
	if code != "" {
		return code
	}
	j.out.Erased = &wire.Erased{Seqs: erased.Seqs, Owner: erased.Owner, Before: erased.Before}
	for _, rec := range records {
		j.out.Erased.Records = append(j.out.Erased.Records, rec.Owner+":"+rec.Namespace+"."+rec.Key)
	}
	if r.DryRun || erased.Owner == "" && len(erased.Seqs) == 0 {
		return reason.ControlDone
	}
	j.emit(erased)
	for _, rec := range records {
		j.emit(&events.MemoryErased{Record: events.Record{
			Owner: rec.Owner, Namespace: rec.Namespace, Key: rec.Key,
			Visibility: rec.Visibility, Class: string(rec.Class), Revision: rec.Revision + 1,
		}})
	}
	return reason.ControlDone
}

// eraseOwner erases all of an agent's that may be: what is older than the floor.
func (j *judge) eraseOwner(erased *events.PayloadErased) ([]*projection.Record, reason.Code) {
	a := j.s.Agent(erased.Owner)
	floor := j.floor()
	switch {
	case a == nil:
		return nil, reason.NotFound
	case j.s.HoldsOn(a.ID):
		j.note("holds on %s or on records of %s are in force: they are listed by the query holds", a.ID, a.ID)
		return nil, reason.PayloadHeld
	case a.Runs > 0:
		j.note("%d runs of %s are open", a.Runs, a.ID)
		return nil, reason.PayloadInUse
	case floor <= 1:
		j.note("%s", j.kept(floor))
		return nil, reason.RetentionFloor
	}
	erased.Before = floor
	var records []*projection.Record
	j.s.Records(j.now(), func(rec *projection.Record) bool {
		if rec.Owner == a.ID && rec.Mandatory == nil && rec.Written < floor {
			records = append(records, rec)
		}
		return true
	})
	if len(records) > erasedRecordsMax {
		j.note("%s has %d records; erase some of them first", a.ID, len(records))
		return nil, reason.RequestTooLarge
	}
	slices.SortFunc(records, func(a, b *projection.Record) int {
		return strings.Compare(a.Namespace+"\x00"+a.Key, b.Namespace+"\x00"+b.Key)
	})
	return records, ""
}

// floor is the first event whose payload is not yet old enough to be erased.
func (j *judge) floor() uint64 {
	if j.s.Policy == nil {
		return j.s.Seq + 1
	}
	return j.s.BeforeDays(j.s.Policy.RetentionDays, j.now())
}

// kept says how long the policy has payloads kept.
func (j *judge) kept(floor uint64) string {
	if j.s.Policy == nil {
		return "there is no policy"
	}
	return fmt.Sprintf("the policy keeps payloads for %d days (limits.retention_days), those from event %d on are younger", j.s.Policy.RetentionDays, floor)
}

func (j *judge) eraseSeqs(seqs []uint64, erased *events.PayloadErased) (records []*projection.Record, _ reason.Code) {
	floor := j.floor()
	for i, seq := range seqs {
		e := j.p.beside(i)
		if e == nil || e.Payload.IsZero() {
			j.note("no payload lies beside %d", seq)
			return nil, reason.NotFound
		}
		if j.s.ErasedBy(e) != 0 {
			continue
		}
		rec := carried(j.s, e, j.now())
		owner, mayErase := e.Sealed()
		var code reason.Code
		switch {
		case !mayErase:
			code = reason.NotErasable
		case j.held(e, owner):
			code = reason.PayloadHeld
		case j.s.InUse(seq):
			code = reason.PayloadInUse
		case seq >= floor:
			code = reason.RetentionFloor
		}
		switch code {
		case "":
		case reason.RetentionFloor:
			j.note("the payload beside %d: %s", seq, j.kept(floor))
			return nil, code
		default:
			j.note("the payload beside %d", seq)
			return nil, code
		}
		erased.Seqs = append(erased.Seqs, seq)
		if rec != nil {
			records = append(records, rec)
		}
	}
	return records, ""
}

// beside is the event at the i-th of the seqs that Beside lists, nil where the
// log has not come so far.
func (p *Proposal) beside(i int) *events.Event {
	if i >= len(p.Beside) {
		return nil
	}
	return p.Beside[i]
}

// RecordOf names the record whose value the payload beside an event holds, or
// was asked to: all but those of procedures.
func RecordOf(e *events.Event) (owner, namespace, key string, ok bool) {
	switch b := e.Body.(type) {
	case *events.MemoryWritten:
		return b.Owner, b.Namespace, b.Key, true
	case *events.Decision:
		if b.Operation != "memory.write" && b.Operation != "memory.load" {
			return "", "", "", false
		}
		owner, name, named := strings.Cut(b.Resource, ":")
		dot := strings.LastIndexByte(name, '.')
		if !named || dot < 0 {
			return "", "", "", false
		}
		return owner, name[:dot], name[dot+1:], true
	}
	return "", "", "", false
}

// carried is the record whose value, as it stands, is the payload beside e; nil
// where there is none.
func carried(s *projection.State, e *events.Event, now events.Time) *projection.Record {
	owner, namespace, key, ok := RecordOf(e)
	if !ok {
		return nil
	}
	rec := s.Live(owner, namespace, key, now)
	if rec == nil || rec.Mandatory != nil {
		return nil
	}
	at := rec.Decision
	if rec.OwnPayload {
		at = rec.Written
	}
	if at != e.Seq {
		return nil
	}
	return rec
}

// held reports whether a hold keeps the payload beside e, which is owner's.
func (j *judge) held(e *events.Event, owner string) bool { return HeldUnder(j.s, e, owner) != 0 }

// HeldUnder is the event that placed a hold on the payload beside e, which is
// owner's; 0 for none.
func HeldUnder(s *projection.State, e *events.Event, owner string) uint64 {
	if s.HoldCount() == 0 {
		return 0
	}
	under := max(s.Held(events.Hold{Owner: owner}), s.Held(events.Hold{Owner: owner, Seq: e.Seq}))
	if of, namespace, key, ok := RecordOf(e); ok {
		under = max(under, s.Held(events.Hold{Owner: of, Namespace: namespace, Key: key}), s.Held(events.Hold{Owner: of}))
	}
	return under
}

// StateOf says what may become of the payload beside an event: kept, erased,
// held, in_use, retained or never, and under which event.
func StateOf(s *projection.State, e *events.Event, now events.Time) (state string, under uint64) {
	owner, mayErase := e.Sealed()
	days := 0
	if s.Policy != nil {
		days = s.Policy.RetentionDays
	}
	if under := s.ErasedBy(e); under != 0 {
		return "erased", under
	}
	switch under := HeldUnder(s, e, owner); {
	case !mayErase:
		return "never", 0
	case under != 0:
		return "held", under
	case s.InUse(e.Seq):
		return "in_use", 0
	case e.Seq >= s.BeforeDays(days, now):
		return "retained", 0
	}
	return "kept", 0
}

// hold completes what a request says of a hold: whose one payload is.
func (j *judge) hold(h events.Hold) (events.Hold, reason.Code) {
	if h.Seq == 0 {
		if j.s.Agent(h.Owner) == nil {
			return h, reason.NotFound
		}
		if h.Namespace != "" && j.s.Record(h.Owner, h.Namespace, h.Key) == nil {
			j.note("%s has no record %s.%s, and never had", h.Owner, h.Namespace, h.Key)
			return h, reason.NotFound
		}
		return h, ""
	}
	e := j.p.beside(0)
	if e == nil {
		return h, reason.NotFound
	}
	owner, mayErase := e.Sealed()
	switch {
	case owner == "":
		j.note("no sealed payload lies beside %d", h.Seq)
		return h, reason.NotFound
	case !j.s.IDTaken(owner):
		j.note("the payload beside %d is of %s, who was never registered", h.Seq, owner)
		return h, reason.NotFound
	case !mayErase:
		j.note("the payload beside %d is never erased", h.Seq)
		return h, reason.NotErasable
	case j.s.ErasedBy(e) != 0:
		j.note("the payload beside %d is erased", h.Seq)
		return h, reason.NotFound
	}
	h.Owner = owner
	return h, ""
}

func (j *judge) placeHold(of events.Hold) reason.Code {
	h, code := j.hold(of)
	switch {
	case code != "":
		return code
	case j.s.Held(h) != 0:
	case j.s.HoldCount() >= holdsMax:
		return reason.QuotaExceeded
	default:
		j.emit(&events.HoldPlaced{Hold: h})
	}
	return reason.ControlDone
}

func (j *judge) liftHold(of events.Hold) reason.Code {
	h, code := j.hold(of)
	switch {
	case code != "":
		return code
	case j.s.Held(h) == 0:
		return reason.NotFound
	}
	j.emit(&events.HoldLifted{Hold: h})
	return reason.ControlDone
}

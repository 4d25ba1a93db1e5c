package replay

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// lack is a payload that was needed and is not there, and what was left open by
// it: a decision, for a reason, and the events that followed; or, without a
// reason, its own event's content.
type lack struct {
	seq    uint64 // of its event
	events uint32
	why    uint8 // index of reasons
}

const lacksMax = 4 << 20 // an export may lack them all

// Why a decision could not be judged for want of a payload.
var lackReasons = []string{
	"", "the request is missing", "the request first made under the operation id is missing", "the procedure of its run is missing",
}

const (
	lackContent = iota
	lackRequest
	lackPrior
	lackProcedure
)

// lacking counts what is left open for want of the payload beside event seq.
func (r *run) lacking(seq uint64, why uint8) {
	if why == lackContent {
		r.MissingPayloads++
	} else {
		r.unverifiable(lackReasons[why])
	}
	if len(r.lacks) == lacksMax {
		return
	}
	r.lacks = append(r.lacks, lack{seq: seq, why: why})
	if why != lackContent {
		r.lack = len(r.lacks)
	}
}

// takenAsItIs counts an event that was taken as it is, since what it follows from
// could not be judged.
func (r *run) takenAsItIs() {
	r.UnverifiedEvents++
	if r.lack > 0 {
		r.lacks[r.lack-1].events++
	}
}

// erased finds, at the end, which payloads were missing because an event says
// that they are destroyed: what that leaves open is counted apart.
func (r *run) erased() error {
	if len(r.s.Erasures()) == 0 {
		return nil
	}
	r.Erased = map[uint64]uint64{}
	named, owners := r.coverings()
	for _, l := range r.lacks {
		e, err := r.logged(l.seq)
		if err != nil {
			return err
		}
		owner, mayErase := e.Sealed()
		under := named[l.seq]
		switch {
		case under != 0 && !mayErase:
			r.find(under, "no erasure of the payload of event "+uintText(l.seq)+", which is never erased", "one")
			continue
		case under == 0 && mayErase:
			under = owners[owner].Over(l.seq)
		}
		if !r.erasures[under] { // what no judged decision erased is missing
			continue
		}
		r.Erased[under]++
		if l.why == lackContent {
			r.MissingPayloads--
			continue
		}
		r.UnverifiedEvents -= uint64(l.events)
		r.ErasedEvents += uint64(l.events)
		why := lackReasons[l.why]
		if r.Unverifiable[why]--; r.Unverifiable[why] == 0 {
			delete(r.Unverifiable, why)
		}
	}
	return nil
}

// coverings are the erasures that the log says, by the payload that they name and
// by the owner all of whose they are.
func (r *run) coverings() (named map[uint64]uint64, owners map[string]*events.Covering) {
	named, owners = map[uint64]uint64{}, map[string]*events.Covering{}
	for _, er := range r.s.Erasures() {
		for _, seq := range er.Seqs {
			named[seq] = er.Seq
		}
		if er.Owner == "" {
			continue
		}
		if owners[er.Owner] == nil {
			owners[er.Owner] = &events.Covering{}
		}
		owners[er.Owner].Add(er.Seq, er.Before)
	}
	return named, owners
}

func (r *run) logged(seq uint64) (*events.Event, error) {
	var e events.Event
	err := r.src.Events(seq, seq, func(_ uint64, b []byte) (err error) {
		e, err = events.Parse(b)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", seq, err)
	}
	return &e, nil
}

// beside reads the events that the judgement of a request at seq looks at.
func (r *run) beside(seq uint64, request *wire.Request) (list []*events.Event, err error) {
	for _, at := range ledger.Beside(request) {
		var e *events.Event
		if at < seq {
			if e, err = r.logged(at); err != nil {
				return nil, err
			}
		}
		list = append(list, e)
	}
	return list, nil
}

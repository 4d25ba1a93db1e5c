package audit

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Erasure is what one payload.erased of a log came to.
type Erasure struct {
	Under   uint64 `json:"under"` // that event's seq
	Basis   string `json:"basis"`
	AgentID string `json:"agent_id,omitempty"` // whose payloads all are erased
	Erased  uint64 `json:"erased"`             // payloads that are missing for it
}

// erasures is what a log says of destroyed payloads, and what is missing. That
// an event authorises it is known only at the end.
type erasures struct {
	all   []*erasure
	lacks []lack
}

type erasure struct {
	Erasure
	body *events.PayloadErased
}

// lack is a sealed payload that is committed to and not there.
type lack struct {
	seq      uint64
	owner    string
	mayErase bool
}

// lacking is what of an event's payload has to be known once it is missing.
func lacking(b []byte) *lack {
	e, err := events.Parse(b)
	if err != nil {
		return nil
	}
	owner, mayErase := e.Sealed()
	return &lack{e.Seq, owner, mayErase}
}

// note takes what an entry says or lacks.
func (x *erasures) note(position uint64, e *entry) {
	if e.erased != nil {
		x.all = append(x.all, &erasure{Erasure{Under: position, Basis: e.erased.Basis, AgentID: e.erased.Owner}, e.erased})
	}
	if e.lacks != nil {
		x.lacks = append(x.lacks, *e.lacks)
	}
}

// of is the first erasure that covers a payload, nil where none does.
func (x *erasures) of(l *lack, bySeq map[uint64]*erasure, owners map[string]*events.Covering) *erasure {
	if er := bySeq[l.seq]; er != nil || !l.mayErase {
		return er
	}
	under := owners[l.owner].Over(l.seq)
	if under == 0 {
		return nil
	}
	i, _ := slices.BinarySearchFunc(x.all, under, func(er *erasure, under uint64) int { return cmp.Compare(er.Under, under) })
	return x.all[i]
}

// settle holds what is missing, and what is not, against what the log says was
// erased.
func (v *Verifier) settle() {
	bySeq, owners := map[uint64]*erasure{}, map[string]*events.Covering{}
	for _, er := range v.erasures.all {
		if owner := er.body.Owner; owner != "" {
			if owners[owner] == nil {
				owners[owner] = &events.Covering{}
			}
			owners[owner].Add(er.Under, er.body.Before)
		}
		for _, seq := range er.body.Seqs {
			if bySeq[seq] == nil && seq < er.Under {
				bySeq[seq] = er
			}
		}
	}
	missing := make(map[uint64]bool, len(bySeq))
	for i := range v.lacks {
		l := &v.lacks[i]
		er := v.of(l, bySeq, owners)
		switch {
		case er == nil:
			v.fault(Fault{Check: "payloads", Seq: l.seq, Expected: "the payload", Found: "none, and no event says that it was erased"})
		case !l.mayErase:
			v.fault(Fault{Check: "payloads", Seq: l.seq, Expected: "the payload, which is never erased", Found: fmt.Sprintf("none: event %d says that it was erased", er.Under)})
		default:
			er.Erased++
		}
		if bySeq[l.seq] != nil {
			missing[l.seq] = true
		}
	}
	if v.payload == nil {
		return
	}
	for _, er := range v.erasures.all {
		for _, seq := range er.body.Seqs {
			if !missing[seq] {
				v.notErased(seq, er)
			}
		}
	}
	if v.source != nil {
		v.ownersErased(v.source, owners)
	}
}

// notErased looks for a payload that is to be gone.
func (v *Verifier) notErased(seq uint64, er *erasure) {
	p, err := v.payload(seq, false)
	if err == nil && (p.State == PayloadAbsent || p.State == PayloadLocked && !v.required) { // an export has no sealed ones
		return
	}
	if v.underWay(er) {
		return
	}
	v.fault(Fault{Check: "payloads", Seq: seq, Expected: fmt.Sprintf("no payload: it was erased under #%d", er.Under), Found: "it is still there: not erased"})
}

// underWay reports whether an erasure was being carried out while the log was
// looked at, and is done by now.
func (v *Verifier) underWay(er *erasure) bool {
	if v.source == nil || v.source.CarriedOut == nil {
		return false
	}
	done, asked := v.carried[er.Under]
	if !asked {
		done = v.source.CarriedOut(er.Under)
		v.carried[er.Under] = done
	}
	return done
}

// ownersErased looks for payloads and data keys of agents all of whose payloads
// are to be gone. An earlier erasure may reach further than a later one.
func (v *Verifier) ownersErased(s *Source, owners map[string]*events.Covering) {
	last := map[string]*erasure{}
	to := uint64(0)
	for _, er := range v.erasures.all {
		if er.body.Owner != "" {
			last[er.body.Owner] = er
			to = max(to, er.body.Before)
		}
	}
	if len(last) == 0 {
		return
	}
	v.keysErased(s, last)
	lacked := make(map[uint64]bool, len(v.lacks))
	for _, l := range v.lacks {
		lacked[l.seq] = true
	}
	_ = s.Events(1, min(to, s.Size), func(seq uint64, b []byte) error { // what cannot be read is a fault already
		if lacked[seq] || !bytes.Contains(b, []byte(`,"payload":"`)) {
			return nil
		}
		l := lacking(b)
		if l == nil || l.seq != seq {
			return nil
		}
		if er := v.of(l, nil, owners); er != nil {
			v.notErased(seq, er)
		}
		return nil
	})
}

// keysErased looks for data keys that are to be gone: an owner's first is named
// after it, each later one after it and the erasure that brought it.
func (v *Verifier) keysErased(s *Source, last map[string]*erasure) {
	if s.Keys == nil {
		return
	}
	names, err := s.Keys()
	if err != nil {
		v.fault(Fault{Check: "payloads", Expected: "data keys that can be listed", Found: err.Error()})
	}
	for _, name := range names {
		owner, text, _ := strings.Cut(name, "#")
		since, _ := strconv.ParseUint(text, 10, 64)
		if er := last[owner]; er != nil && since < er.Under && !v.underWay(er) {
			v.fault(Fault{Check: "payloads", Seq: er.Under, Where: quote("data key " + name), Expected: fmt.Sprintf("no such data key: it was erased under #%d", er.Under), Found: "it is still there: not erased"})
		}
	}
}

// list is what the report says of erasures.
func (x *erasures) list() (list []Erasure, erased uint64) {
	list = []Erasure{}
	for _, er := range x.all {
		list = append(list, er.Erasure)
		erased += er.Erased
	}
	return list, erased
}

// erasedText is that on one line, empty where nothing was erased.
func (x *erasures) erasedText() string {
	list, _ := x.list()
	list = slices.DeleteFunc(list, func(e Erasure) bool { return e.Erased == 0 })
	const most = 10
	var text strings.Builder
	for _, e := range list[:min(len(list), most)] {
		fmt.Fprintf(&text, ", %d erased under #%d (%s)", e.Erased, e.Under, quoteBasis(e.Basis))
	}
	if len(list) > most {
		fmt.Fprintf(&text, ", and more under %d other events", len(list)-most)
	}
	return text.String()
}

func quoteBasis(basis string) string {
	if slices.Contains(events.Bases(), basis) {
		return basis
	}
	return quote(basis)
}

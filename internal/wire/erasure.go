package wire

import (
	"slices"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
)

// PayloadErase destroys payloads: those beside the events Seqs, or all of
// Owner's that may be.
type PayloadErase struct {
	Owner  string   // empty where Seqs are
	Seqs   []uint64 // ascending
	Basis  string
	DryRun bool
}

// HoldPlace keeps payloads from being erased, HoldLift lets them go. Of a single
// payload the hold has no owner yet.
type HoldPlace struct{ events.Hold }

// HoldLift: see HoldPlace.
type HoldLift struct{ events.Hold }

// EraseSeqsMax is how many payloads one request erases by their seq.
const EraseSeqsMax = 1024

const commentMax = 1024 // bytes

// comment is for people; with the request it is kept sealed.
func (f *fields) comment() {
	if f.has("comment") {
		why := f.str("comment")
		f.check(why != "" && len(why) <= commentMax)
	}
}

func decodeErase(f *fields) any {
	r := &PayloadErase{Basis: f.str("basis")}
	f.check(slices.Contains(events.Bases(), r.Basis))
	if f.has("seqs") {
		r.Seqs = f.ascending("seqs")
	} else {
		r.Owner = f.id("agent_id")
	}
	if f.has("dry_run") {
		r.DryRun = f.boolean("dry_run")
	}
	f.comment()
	return r
}

// ascending is a list of positive integers, each greater than the one before.
func (f *fields) ascending(name string) (list []uint64) {
	v, ok := f.take(name)
	f.check(ok && v.Kind == events.Array && len(v.Elements) > 0)
	f.tooLarge = f.tooLarge || len(v.Elements) > EraseSeqsMax
	last := int64(0)
	for _, e := range v.Elements {
		n, integer := e.Int()
		f.check(integer && n > last)
		list, last = append(list, uint64(max(n, 0))), n
	}
	return list
}

// hold names an agent, a record or the payload beside one event.
func (f *fields) hold() (h events.Hold) {
	switch {
	case f.has("seq"):
		h.Seq = f.positive("seq")
	case f.has("agent_id"):
		h.Owner = f.id("agent_id")
	default:
		h.Owner, h.Namespace, h.Key = f.id("owner_agent_id"), f.namespace(), f.recordKey()
	}
	f.comment()
	return h
}

func eraseResource(r *PayloadErase) string {
	if r.Owner != "" {
		return r.Owner
	}
	return strconv.FormatUint(r.Seqs[0], 10)
}

func holdResource(h events.Hold) string {
	switch {
	case h.Seq != 0:
		return strconv.FormatUint(h.Seq, 10)
	case h.Namespace != "":
		return h.Owner + ":" + h.Namespace + "." + h.Key
	}
	return h.Owner
}

// Erased says in a reply what was erased, or would be: the payloads beside
// Seqs, or Owner's before Before, and the records that are gone with them.
type Erased struct {
	Seqs    []uint64
	Owner   string
	Before  uint64
	Records []string // OWNER:NAMESPACE.KEY
	Under   uint64   // the event, 0 where nothing was left to erase or it is a dry run
	Pending bool     // the bytes may still lie in files that are to be deleted
}

func (e *Erased) encode(w *writer) {
	w.key("erased")
	w.open()
	if e.Under > 0 {
		w.uint("under", e.Under)
	}
	if e.Owner != "" {
		w.str("agent_id", e.Owner)
		w.uint("before", e.Before)
	} else {
		w.key("seqs")
		w.buf = append(w.buf, '[')
		for i, seq := range e.Seqs {
			if i > 0 {
				w.buf = append(w.buf, ',')
			}
			w.buf = strconv.AppendUint(w.buf, seq, 10)
		}
		w.buf = append(w.buf, ']')
	}
	w.optStrs("records", e.Records)
	if e.Pending {
		w.boolean("pending", true)
	}
	w.shut()
}

// Holds answers the query of that name, by the event that placed each. Next, if
// any, is the one to continue with.
type Holds struct {
	Holds []Hold `json:"holds"`
	Next  uint64 `json:"next,omitempty"`
	Seq   uint64 `json:"seq"`
}

// Hold is one hold, and the event that placed it.
type Hold struct {
	AgentID   string `json:"agent_id"`
	Namespace string `json:"namespace,omitempty"`
	Key       string `json:"key,omitempty"`
	Payload   uint64 `json:"payload,omitempty"`
	Placed    uint64 `json:"placed"`
}

// Payloads answers the query of that name, by seq. Next, if any, is the seq to
// continue with.
type Payloads struct {
	Payloads []Payload `json:"payloads"`
	Next     uint64    `json:"next,omitempty"`
	Seq      uint64    `json:"seq"`
}

// Payload is what lies, or lay, beside one event.
type Payload struct {
	Seq     uint64 `json:"seq"`
	Time    string `json:"time"`
	AgentID string `json:"agent_id"` // whose it is
	Of      string `json:"of"`       // the operation of a request, else the event's type
	Record  string `json:"record,omitempty"`
	State   string `json:"state"` // kept, erased, held, in_use, retained or never
	Under   uint64 `json:"under,omitempty"`
}

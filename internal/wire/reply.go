package wire

import (
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Schema ids, the member "type" of what ledgerd sends.
const (
	DecisionType = "io.ledgerd.decision.v1"
	ErrorType    = "io.ledgerd.error.v1"
	RunType      = "io.ledgerd.run.v1"
)

// Record is a memory record as a reply shows it.
type Record struct {
	Namespace, Key string
	Value          []byte // canonical JSON; nil where a reply carries none
	Owner          string
	Visibility     string
	Class          string
	Revision       uint64
	Expires        events.Time // 0 where it has no end by time
	RunID          string      // with whose end it is gone
	Contributors   []string
}

// Step is one SOP step's decision as a reply shows it.
type Step struct {
	StepID, Action string
	Reason         reason.Code
}

// Document is one document of an apply and what became of it.
type Document struct{ Kind, ID, Result string }

// Run is a run as a reply or query shows it.
type Run struct {
	RunID   string
	State   string
	Reason  string // why it failed or is in doubt; empty otherwise
	Results []StepResult
}

// StepResult is what became of one step.
type StepResult struct {
	StepID, Action string
	State          string // waiting, started, finished or failed
	Result         []byte // canonical JSON; nil for none
	Record         *Record
	Erased         bool // the result is destroyed
	Omitted        bool // the result does not fit here: ask for the step alone
}

// InFlight is an effect that started before an emergency deny and is not
// reported.
type InFlight struct{ RunID, StepID, Action, OperationID, Agent string }

// Reply is the answer to a proposal or control request. Everything but the
// value, faults and documents is in the log.
type Reply struct {
	Decision  *events.Decision
	Seq       uint64 // with EventID and Hash the receipt
	EventID   [16]byte
	Hash      events.Hash
	Record    *Record
	Steps     []Step
	Faults    []string
	Documents []Document
	Run       *Run
	Epoch     uint64     // of an emergency deny or lift
	InFlight  []InFlight // what an emergency deny does not stop any more
	Erased    *Erased
	Full      bool // for those who may read the log: its own reason, not the told one
}

// size is about what Encode needs.
func (r *Reply) size() int {
	n := 576 + 96*len(r.Steps)
	if r.Record != nil {
		n += 192 + len(r.Record.Value)
	}
	return n
}

// Encode is the reply's JSON: what may be told, and no more.
func (r *Reply) Encode() []byte { return r.EncodeIn(make([]byte, 0, r.size())) }

// EncodeIn is Encode in room that the caller has, or in new where that is too
// small. Whatever was in it is gone.
func (r *Reply) EncodeIn(room []byte) []byte {
	d := r.Decision
	told := reason.Told(reason.Code(d.Reason))
	if r.Full {
		told = reason.Code(d.Reason)
	}
	w := &writer{buf: append(room[:0], headOf(told, d.Allowed)...), more: true}
	w.str("subject", d.Subject)
	w.str("operation", d.Operation)
	w.str("resource", d.Resource)
	w.str("policy_version", d.PolicyVersion)
	w.uint("seq", r.Seq)
	w.key("event_id")
	w.buf = append(events.AppendUUID(append(w.buf, '"'), r.EventID), '"')
	w.key("hash")
	w.buf = append(r.Hash.Append(append(w.buf, '"')), '"')
	w.optStr("operation_id", d.OperationID)
	if told == reason.Code(d.Reason) {
		w.optStr("owner", d.Owner)
		w.optStr("rule", d.Rule)
		if len(d.Failed)+len(r.Faults) > 0 {
			w.optStrs("failed", append(append([]string(nil), d.Failed...), r.Faults...))
		}
	}
	if r.Record != nil {
		r.Record.encode(w)
	}
	if len(r.Steps) > 0 {
		list(w, "decisions", r.Steps, func(s *Step) {
			w.str("step_id", s.StepID)
			w.str("action", s.Action)
			w.boolean("allowed", s.Reason == reason.StepAllowed)
			w.str("reason_code", string(s.Reason))
		})
	}
	if r.Run != nil {
		w.key("run")
		r.Run.encode(w)
	}
	if r.Epoch > 0 {
		w.uint("epoch", r.Epoch)
		list(w, "in_flight", r.InFlight, func(e *InFlight) {
			w.str("run_id", e.RunID)
			w.str("step_id", e.StepID)
			w.str("action", e.Action)
			w.str("operation_id", e.OperationID)
			w.str("agent", e.Agent)
		})
	}
	if r.Erased != nil {
		r.Erased.encode(w)
	}
	if len(r.Documents) > 0 {
		list(w, "documents", r.Documents, func(doc *Document) {
			w.str("kind", doc.Kind)
			w.str("id", doc.ID)
			w.str("result", doc.Result)
		})
	}
	return w.end()
}

// heads are what the replies with one reason begin with, denied and allowed.
var heads = func() map[reason.Code][2]string {
	all := map[reason.Code][2]string{}
	for _, info := range reason.All() {
		all[info.Code] = [2]string{makeHead(info.Code, false), makeHead(info.Code, true)}
	}
	return all
}()

func headOf(told reason.Code, allowed bool) string {
	head, known := heads[told]
	switch {
	case !known:
		return makeHead(told, allowed)
	case allowed:
		return head[1]
	}
	return head[0]
}

func makeHead(told reason.Code, allowed bool) string {
	w := &writer{}
	w.str("type", DecisionType)
	w.boolean("allowed", allowed)
	w.str("reason_code", string(told))
	w.str("message", told.Text())
	return string(w.buf)
}

// encode writes the run. Results that would take the message over the limit of
// a reply are left out, and said to be.
func (r *Run) encode(w *writer) {
	w.open()
	w.str("run_id", r.RunID)
	w.str("state", r.State)
	w.optStr("reason_code", r.Reason)
	room := events.ReplyBytesMax - len(w.buf) - 512*len(r.Results) - 16<<10
	list(w, "results", r.Results, func(s *StepResult) {
		w.str("step_id", s.StepID)
		w.str("action", s.Action)
		w.str("state", s.State)
		result := s.Result
		if s.Record != nil {
			result = s.Record.JSON()
		}
		switch {
		case s.Erased:
			w.boolean("erased", true)
		case s.Omitted || len(result) > room:
			w.boolean("omitted", true)
		case result != nil:
			room -= len(result)
			w.key("result")
			w.buf = append(w.buf, result...)
		}
	})
	w.shut()
}

// RunAnswer is the answer to the query run.
func RunAnswer(agent, sopID string, sopVersion, seq uint64, r *Run) []byte {
	w := &writer{}
	w.str("type", RunType)
	w.str("agent", agent)
	w.str("sop_id", sopID)
	w.uint("sop_version", sopVersion)
	w.uint("seq", seq)
	w.key("run")
	r.encode(w)
	return w.end()
}

// JSON is the record as one JSON object.
func (r *Record) JSON() []byte {
	w := &writer{}
	r.members(w)
	return w.end()
}

func (r *Record) encode(w *writer) {
	w.key("record")
	w.open()
	r.members(w)
	w.shut()
}

func (r *Record) members(w *writer) {
	w.str("namespace", r.Namespace)
	w.str("key", r.Key)
	if r.Value != nil {
		w.key("value")
		w.buf = append(w.buf, r.Value...)
	}
	w.str("owner_agent_id", r.Owner)
	w.str("visibility", r.Visibility)
	w.str("mutable_by", "owner")
	w.str("class", r.Class)
	w.uint("revision", r.Revision)
	if r.Expires != 0 {
		w.str("expires", r.Expires.String())
	}
	w.optStr("run_id", r.RunID)
	w.optStrs("contributors", r.Contributors)
}

// Error is the answer to a query or report that is refused, and to a request
// refused at the door.
func Error(code reason.Code) []byte {
	w := &writer{}
	w.str("type", ErrorType)
	w.str("reason_code", string(code))
	w.str("message", code.Text())
	return w.end()
}

// writer appends one JSON object member by member.
type writer struct {
	buf  []byte
	more bool
}

func (w *writer) open() { w.buf, w.more = append(w.buf, '{'), false }
func (w *writer) shut() { w.buf, w.more = append(w.buf, '}'), true }

func (w *writer) end() []byte { return append(w.buf, '}') }

func (w *writer) key(name string) {
	switch {
	case len(w.buf) == 0:
		w.buf = append(w.buf, '{')
	case w.more:
		w.buf = append(w.buf, ',')
	}
	w.more = true
	w.buf = append(append(append(w.buf, '"'), name...), '"', ':')
}

func (w *writer) str(name, s string) {
	w.key(name)
	w.buf = events.AppendString(w.buf, s)
}

func (w *writer) optStr(name, s string) {
	if s != "" {
		w.str(name, s)
	}
}

func (w *writer) optStrs(name string, list []string) {
	if len(list) > 0 {
		w.strs(name, list)
	}
}

func (w *writer) strs(name string, list []string) {
	w.key(name)
	w.buf = append(w.buf, '[')
	for i, s := range list {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = events.AppendString(w.buf, s)
	}
	w.buf = append(w.buf, ']')
}

// list writes one object for each of entries.
func list[T any](w *writer, name string, entries []T, members func(*T)) {
	w.key(name)
	w.buf = append(w.buf, '[')
	for i := range entries {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.open()
		members(&entries[i])
		w.shut()
	}
	w.buf = append(w.buf, ']')
}

func (w *writer) uint(name string, n uint64) {
	w.key(name)
	w.buf = strconv.AppendUint(w.buf, n, 10)
}

func (w *writer) boolean(name string, b bool) {
	w.key(name)
	w.buf = strconv.AppendBool(w.buf, b)
}

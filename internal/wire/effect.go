package wire

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Schema ids of what passes between the ledger and handlers.
const (
	ExecType         = "io.ledgerd.exec.v1"
	AckType          = "io.ledgerd.ack.v1"
	ControlStateType = "io.ledgerd.control_state.v1"
)

// ReportMax is the size of a report message, in bytes: a request's.
const ReportMax = events.RequestBytesMax

// Exec asks a handler for one effect. OperationID names the effect, and is
// unlike any other's, of this ledger or another: a handler that has seen it
// answers what it did then, and does nothing again.
type Exec struct {
	OperationID, RunID, SOPID, StepID string
	Agent, Action                     string
	Arguments                         []byte // the judged, canonical ones
}

// Encode is the message on gov.<ledger>.exec.<action>.
func (e *Exec) Encode() []byte {
	w := &writer{buf: make([]byte, 0, 256+len(e.Arguments))}
	w.str("type", ExecType)
	w.str("operation_id", e.OperationID)
	w.str("run_id", e.RunID)
	w.str("sop_id", e.SOPID)
	w.str("step_id", e.StepID)
	w.str("agent", e.Agent)
	w.str("action", e.Action)
	w.key("arguments")
	w.buf = append(w.buf, e.Arguments...)
	return w.end()
}

// DecodeExec reads what Encode wrote.
func DecodeExec(b []byte) (Exec, bool) {
	f, ok := open(b)
	if !ok {
		return Exec{}, false
	}
	kind := f.str("type")
	e := Exec{
		OperationID: f.valid("operation_id", events.ValidOperationID), RunID: f.valid("run_id", events.ValidToken),
		SOPID: f.valid("sop_id", events.ValidToken), StepID: f.valid("step_id", events.ValidToken),
		Agent: f.id("agent"), Action: f.valid("action", events.ValidAction), Arguments: f.arguments(),
	}
	return e, kind == ExecType && f.fault() == ""
}

// Report is what a handler says of an effect: that it is done, with a result or
// none, or that it is not, with a text.
type Report struct {
	OperationID string
	OK          bool
	Result      []byte // canonical JSON; nil for none
	Error       string // of an effect that failed; for people, kept sealed
}

// Encode is the message on gov.<ledger>.effect.<handler>.report.
func (r *Report) Encode() []byte {
	w := &writer{buf: make([]byte, 0, 128+len(r.Result)+len(r.Error))}
	w.str("operation_id", r.OperationID)
	w.boolean("ok", r.OK)
	if r.Result != nil {
		w.key("result")
		w.buf = append(w.buf, r.Result...)
	}
	w.optStr("error", r.Error)
	return w.end()
}

// DecodeReport reads {operation_id, ok [, result] [, error]} strictly: a result
// goes with ok, an error without.
func DecodeReport(b []byte) (*Report, reason.Code) {
	if len(b) > ReportMax {
		return nil, reason.RequestTooLarge
	}
	f, ok := open(b)
	if !ok {
		return nil, reason.MalformedRequest
	}
	r := &Report{OperationID: f.valid("operation_id", events.ValidOperationID), OK: f.boolean("ok")}
	if f.has("result") {
		v, ok := f.take("result")
		if f.check(ok && r.OK); ok {
			r.Result = v.AppendCanonical(nil)
		}
	}
	if f.has("error") {
		r.Error = f.str("error")
		f.check(!r.OK)
	}
	if f.fault() != "" {
		return nil, reason.MalformedRequest
	}
	return r, ""
}

// Hello is the message on gov.<ledger>.effect.<handler>.hello.
func Hello(actions []string) []byte {
	w := &writer{}
	w.strs("actions", actions)
	return w.end()
}

// DecodeHello reads {actions}: what a handler can do from now on.
func DecodeHello(b []byte) ([]string, reason.Code) {
	if len(b) > ReportMax {
		return nil, reason.RequestTooLarge
	}
	f, ok := open(b)
	if !ok {
		return nil, reason.MalformedRequest
	}
	actions := f.names("actions", events.ValidAction)
	switch {
	case f.fault() != "":
		return nil, reason.MalformedRequest
	case f.tooLarge:
		return nil, reason.RequestTooLarge
	}
	return actions, ""
}

// Ack answers a report that is durable, and a hello.
func Ack() []byte { return []byte(`{"type":"` + AckType + `","ok":true}`) }

func open(b []byte) (*fields, bool) {
	v, err := events.ParseJSON(b)
	return &fields{value: v}, err == nil && v.Kind == events.Object
}

// Deny is one emergency deny in force. Its reason is sealed in the log.
type Deny struct {
	Epoch        uint64   `json:"epoch"`
	AgentID      string   `json:"agent_id,omitempty"` // the subtree's top; empty for the whole ledger
	Ledger       bool     `json:"ledger,omitempty"`   // the whole ledger
	All          bool     `json:"all,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
}

// ControlState announces the denies in force, on gov.<ledger>.control.state:
// after every change, and every few seconds.
func ControlState(epoch uint64, denies []Deny) []byte {
	w := &writer{}
	w.str("type", ControlStateType)
	w.uint("epoch", epoch)
	list(w, "denies", denies, func(d *Deny) {
		w.uint("epoch", d.Epoch)
		w.optStr("agent_id", d.AgentID)
		if d.Ledger {
			w.boolean("ledger", true)
		}
		if d.All {
			w.boolean("all", true)
		}
		w.optStrs("capabilities", d.Capabilities)
	})
	return w.end()
}

package natsapi

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
	"github.com/nats-io/nats.go"
)

// api turns messages into calls of the ledger and answers into messages. It
// holds no rule: what it refuses itself is form (the subject, the reply
// subject, the rate), and everything else is judged and logged.
type api struct {
	ledger     *ledger.Ledger
	name       string
	refused    *Refusals // before judgement, for requests.refused
	turnedAway tally     // the same since the start
	rates      *rates
	reports    *rates        // of handlers
	folds      chan struct{} // one fold of the whole log at a time
}

// request is a message, and the connection to answer it on.
type request struct {
	subject, reply string
	data           []byte
	from           publisher
}

// publisher is the part of a nats.Conn that answers.
type publisher interface {
	Publish(subject string, data []byte) error
	PublishMsg(*nats.Msg) error
}

// propose takes a proposal. The sender is the subject's own token, which the
// server has pinned to the connection's key.
func (a *api) propose(m request) { a.judge(m, wire.Propose) }

// control takes an admin's or a registrar's verb. It has a queue of its own,
// so that it is never behind proposals, and for admins no rate.
func (a *api) control(m request) { a.judge(m, wire.Control) }

func (a *api) judge(m request, lane wire.Lane) {
	s, reply, ok := a.parse(m, lane)
	if !ok {
		return
	}
	if (lane == wire.Propose || a.ledger.Role(s.ID) != RoleAdmin) && !a.rates.take(s.ID, weight(m)) {
		a.refuse(m, s.ID, reply, reason.RateLimited)
		return
	}
	r := arrivals.Get().(*arrival)
	r.api, r.m, r.name, r.reply = a, m, s.Name, reply
	r.Lane, r.Subject, r.Operation = lane, s.ID, wire.Known(lane, s.Name)
	r.Bytes, r.Caller = len(m.data)+arrivalBytes, r
	if code := a.ledger.Receive(&r.Arrival); code != "" {
		r.Done()
		a.refuse(m, s.ID, reply, code)
	}
}

const arrivalBytes = 1 << 10 // what a message takes beside its data, about

// arrivals are used again, emptied.
var arrivals = sync.Pool{New: func() any { return new(arrival) }}

// arrival is a proposal or control request on its way through the ledger, whose
// ledger.Caller it is.
type arrival struct {
	ledger.Arrival
	api   *api
	m     request
	name  string
	reply replyKind
}

// Read decodes the request, once its turn has come.
func (r *arrival) Read(p *ledger.Proposal) reason.Code {
	if r.reply == foreignReply {
		p.Refused = reason.BadReplySubject
		return ""
	}
	p.Request, p.Refused, p.Fault = wire.Read(p.Lane, r.name, r.m.data)
	if p.Refused == "" && p.Lane == wire.Propose && !r.api.rates.take(p.Subject, eventsCaused(p.Request)-1) {
		return reason.RateLimited
	}
	return ""
}

// Answer answers it, if it asked for that.
func (r *arrival) Answer(out ledger.Answer) {
	switch {
	case out.Refused:
		r.api.refuse(r.m, r.Subject, r.reply, out.Reason)
	case r.reply == ownReply:
		respond(r.m, out.Reply, out.Reason)
	}
}

// Done makes room for another.
func (r *arrival) Done() {
	*r = arrival{}
	arrivals.Put(r)
}

// weight is what a message costs of its sender's rate before anything of it is
// read: reading takes time that grows with its size, and is done for all
// senders in turn.
func weight(m request) int { return 1 + len(m.data)/weightBytes }

const weightBytes = 4 << 10

// eventsCaused is the most events that a proposal can cause, which is what it
// costs of its sender's rate. Of a procedure that is run each step has two
// decisions, a start, an end and perhaps a record, and the run itself four events.
func eventsCaused(r *wire.Request) int {
	switch b := r.Body.(type) {
	case *wire.MemoryWrite, *wire.MemoryDelete, *wire.AgentRegister:
		return 2
	case *wire.RunCancel, *wire.GrantGive, *wire.GrantRevoke:
		return 2
	case *wire.RestrictionAdd:
		return 2 + compileWeight
	case *wire.SOPValidate:
		return 1 + min(b.Length, events.SOPStepsMax)
	case *wire.SOPSubmit:
		return 4 + 5*min(b.Length, events.SOPStepsMax)
	}
	return 1
}

// DearestRequest is what the dearest request of all costs: a procedure of as many
// steps, in a message as large, as there may be.
const DearestRequest = 4 + 5*events.SOPStepsMax + events.RequestBytesMax/weightBytes

// compileWeight is what compiling a requirement takes at most, in events.
const compileWeight = 100

// Where a request's answer may go.
type replyKind int

const (
	noReply      replyKind = iota
	ownReply               // under the sender's own inbox
	foreignReply           // anywhere else: the server does not check, so we must
)

// parse takes the message's subject apart. Where it does not parse, or names
// another ledger, the request is answered malformed_request and only counted.
// A query's subject proves its sender only with a reply under the sender's own
// inbox: in FEED the stream's server delivers where a consumer tells it to.
func (a *api) parse(m request, lane wire.Lane) (wire.Subject, replyKind, bool) {
	s, ok := wire.ParseSubject(m.subject)
	if !ok || s.Ledger != a.name || s.Lane != lane {
		id := senderOf(m.subject)
		if lane == wire.Query && a.replyOf(m, id) != ownReply {
			return s, noReply, false
		}
		a.refuse(m, id, a.replyOf(m, id), reason.MalformedRequest)
		return s, noReply, false
	}
	return s, a.replyOf(m, s.ID), true
}

// senderOf is the id token of a subject whose rest does not parse: the server
// pinned it all the same.
func senderOf(subject string) string {
	parts := strings.SplitN(subject, ".", 5)
	if len(parts) == 5 && events.ValidID(parts[3]) {
		return parts[3]
	}
	return ""
}

func (a *api) replyOf(m request, id string) replyKind {
	switch reply := m.reply; {
	case reply == "":
		return noReply
	case id != "" && wire.OwnInbox(id, reply):
		return ownReply
	}
	return foreignReply
}

// count counts a refusal: one event a second tells of all.
func (a *api) count(id string, code reason.Code) {
	a.turnedAway.add(string(code))
	if code != reason.NotKnownCommitted {
		a.refused.Add(id, string(code), time.Now())
	}
}

// refuse turns a request away before judgement, counted.
func (a *api) refuse(m request, id string, reply replyKind, code reason.Code) {
	a.count(id, code)
	if reply == ownReply {
		respond(m, errorOf(code), code)
	}
}

// errorOf is the body of a refusal, made once for each code.
func errorOf(code reason.Code) []byte {
	if b, ok := errorBodies[code]; ok {
		return b
	}
	return wire.Error(code)
}

var errorBodies = func() map[reason.Code][]byte {
	all := map[reason.Code][]byte{}
	for _, info := range reason.All() {
		b := wire.Error(info.Code)
		all[info.Code] = b[:len(b):len(b)]
	}
	return all
}()

// respond answers, with the reason in headers too where it is no allowance; a
// denial is an answer like any other. (A message with headers costs its reader
// and the server as much again.) A failure to send is the connection's to report:
// the outcome is found by operation id.
func respond(m request, body []byte, code reason.Code) {
	if code == "" || code.Allowed() {
		_ = m.from.Publish(m.reply, body)
		return
	}
	_ = m.from.PublishMsg(&nats.Msg{Subject: m.reply, Header: headersOf(code), Data: body})
}

// headersOf are the headers of an answer. They are made once for each code, and
// nobody changes them.
func headersOf(code reason.Code) nats.Header {
	if h, ok := headers[code]; ok {
		return h
	}
	return makeHeaders(code)
}

var headers = func() map[reason.Code]nats.Header {
	all := map[reason.Code]nats.Header{}
	for _, info := range reason.All() {
		all[info.Code] = makeHeaders(info.Code)
	}
	return all
}()

func makeHeaders(code reason.Code) nats.Header {
	info, _ := reason.Of(code)
	return nats.Header{
		"Ledgerd-Reason":          {string(code)},
		"Nats-Service-Error-Code": {strconv.Itoa(info.Number)},
		"Nats-Service-Error":      {info.Text},
	}
}

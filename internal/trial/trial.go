// Package trial tries a policy without a ledger: the documents of its file are
// applied to an empty state in memory, and questions are put to it through the
// very function that the ledger decides by. First call: New.
//
// Nothing is stored, signed or sent. Ids get keys made from their names, which
// are nobody's: a trial shows what is decided, not who may connect.
package trial

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Trial is a ledger's state in memory.
type Trial struct {
	state    *projection.State
	requests map[uint64][]byte // canonical, by the seq of their decision
	outcomes map[uint64]*ledger.Outcome
}

var start = events.TimeOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// New applies the documents of a policy file to a ledger without history. The
// faults are those that the apply has.
func New(parts []policy.Part, documents []policy.Document) (*Trial, []string) {
	t := &Trial{state: projection.New(), requests: map[uint64][]byte{}, outcomes: map[uint64]*ledger.Outcome{}}
	err := t.add(events.System, 0, &events.LedgerCreated{
		Format: events.Format, Origin: "ledgerd.local/trial/0000000000000000/1", Ledger: "trial",
		AdminID: ledger.AdminID, AdminPublicKey: Key(ledger.AdminID), CheckpointKey: "none", PermitKey: "none",
	}, nil)
	if err == nil {
		err = t.add(events.System, 0, &events.LedgerOpened{Rules: ledger.Rules, Build: "trial"}, nil)
	}
	if err != nil {
		return nil, []string{err.Error()}
	}
	texts, faults := Texts(parts, documents, Key)
	if len(faults) > 0 {
		return nil, faults
	}
	o, err := t.Do(ledger.AdminID, "apply", ApplyRequest(texts))
	switch {
	case err != nil:
		return nil, []string{err.Error()}
	case !o.Decision.Allowed:
		return nil, append(slices.Clone(o.Faults), fmt.Sprintf("apply is denied: %s %s", o.Decision.Reason, o.Decision.Resource))
	}
	return t, nil
}

// Texts are the documents as an apply sends them: with the key that key gives
// where one has none.
func Texts(parts []policy.Part, documents []policy.Document, key func(id string) string) (texts, faults []string) {
	for i, p := range parts {
		text := p.Text
		var err error
		switch d := documents[i]; {
		case d.Agent != nil && d.Agent.PublicKey == "":
			text, err = policy.WithKey(text, key(d.Agent.ID))
		case d.Principal != nil && d.Principal.PublicKey == "":
			text, err = policy.WithKey(text, key(d.Principal.ID))
		}
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s:%d: %v", p.File, p.Line+1, err))
		}
		texts = append(texts, text)
	}
	return texts, faults
}

// ApplyRequest is the request that applies documents.
func ApplyRequest(texts []string) []byte {
	b := []byte(`{"documents":[`)
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = events.AppendString(b, text)
	}
	return append(b, `]}`...)
}

// Key is the public key that an id has in trials.
func Key(id string) string {
	seed := sha256.Sum256([]byte("ledgerd/trial/v1\n" + id))
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
	if err != nil {
		panic(err) // a seed of 32 bytes is always one
	}
	key, err := pair.PublicKey()
	if err != nil {
		panic(err)
	}
	return key
}

// Asked turns a name into an operation and its request: an operation as it is,
// any other name as the action of action.authorize.
func Asked(lane wire.Lane, name string, request []byte) (string, []byte) {
	if lane == wire.Control || wire.Known(wire.Propose, name) != events.Unsupported {
		return name, request
	}
	b := append(events.AppendString([]byte(`{"action":`), name), `,"arguments":`...)
	return "action.authorize", append(append(b, request...), '}')
}

// Proposal is what a name and its request come to at the front door: a proposal
// of an agent's, or a control verb of anyone else's.
func (t *Trial) Proposal(who, name string, request []byte) *ledger.Proposal {
	lane := wire.Propose
	if t.state.Principal(who) != nil {
		lane = wire.Control
	}
	operation, body := Asked(lane, name, request)
	r, code, fault := wire.Read(lane, operation, body)
	p := &ledger.Proposal{
		Lane: lane, Subject: who, Operation: wire.Known(lane, operation), Refused: code, Fault: fault, Request: r,
		Wall: t.state.Time, RunID: fmt.Sprintf("00000000-0000-7000-8000-%012d", t.state.Seq),
	}
	if r != nil {
		if op, used := t.state.Operation(who, r.OperationID); used {
			p.Prior = t.requests[op.Seq]
		}
	}
	return p
}

// Ask judges and changes nothing.
func (t *Trial) Ask(who, name string, request []byte) *ledger.Outcome {
	return ledger.Decide(t.state, t.Proposal(who, name, request))
}

// Do judges, and lets what follows happen.
func (t *Trial) Do(who, name string, request []byte) (*ledger.Outcome, error) {
	p := t.Proposal(who, name, request)
	o := ledger.Decide(t.state, p)
	if o.Retry != 0 {
		return o, nil
	}
	for _, step := range o.Steps {
		if err := t.add(who, 0, step, nil); err != nil {
			return nil, err
		}
	}
	if err := t.add(who, 0, o.Decision, nil); err != nil {
		return nil, err
	}
	cause := t.state.Seq
	t.outcomes[cause] = o
	if p.Request != nil {
		t.requests[cause] = p.Request.Canonical
	}
	for _, effect := range o.Effects {
		if err := t.add(who, cause, effect.Body, effect.Open); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (t *Trial) add(agent string, cause uint64, b events.Body, open []byte) error {
	e := events.Event{Seq: t.state.Seq + 1, Time: start + events.Time(t.state.Seq), Agent: agent, Cause: cause, Body: b}
	return t.state.Apply(&e, open)
}

// Failure is a case that did not come out as it should.
type Failure struct {
	Case policy.Case
	Want string
	Got  string
}

// Run puts every case to a ledger of its own and returns those that fail.
func Run(parts []policy.Part, documents []policy.Document, cases []policy.Case) (failures []Failure, faults []string) {
	if len(cases) == 0 {
		return nil, []string{"there is no case"}
	}
	base, faults := New(parts, documents)
	if len(faults) > 0 {
		return nil, faults
	}
	for _, c := range cases {
		t := base
		if len(c.Given) > 0 {
			if t, faults = New(parts, documents); len(faults) > 0 {
				return nil, faults
			}
		}
		if got := t.fails(c); got != "" {
			failures = append(failures, Failure{c, Want(c), got})
		}
	}
	return failures, nil
}

// fails is what a case comes to where that is not what it should.
func (t *Trial) fails(c policy.Case) string {
	for i, s := range c.Given {
		o, err := t.Do(s.Agent, s.Operation, s.Request)
		switch {
		case err != nil:
			return fmt.Sprintf("given step %d: %v", i+1, err)
		case !t.recorded(o).Decision.Allowed:
			return fmt.Sprintf("given step %d: %s", i+1, Outcome(o))
		}
	}
	o := t.recorded(t.Ask(c.Agent, c.Operation, c.Request))
	if Fits(c, o) {
		return ""
	}
	return Outcome(o)
}

// recorded is an outcome, or for a repeated operation id the one recorded.
func (t *Trial) recorded(o *ledger.Outcome) *ledger.Outcome {
	if o.Retry != 0 {
		return t.outcomes[o.Retry]
	}
	return o
}

// Fits reports whether an outcome is the one that a case asks for.
func Fits(c policy.Case, o *ledger.Outcome) bool {
	d := o.Decision
	return d.Reason == string(c.Reason) && (c.Rule == "" || c.Rule == d.Rule) && (c.Failed == nil || slices.Equal(c.Failed, d.Failed))
}

// Want is the answer that a case asks for, in one line.
func Want(c policy.Case) string {
	return line(c.Reason.Allowed(), string(c.Reason), c.Rule, c.Failed)
}

// Outcome is an answer in one line: the log's reason, not the one told. Under a
// procedure that is refused stand its steps.
func Outcome(o *ledger.Outcome) string {
	text := line(o.Decision.Allowed, o.Decision.Reason, o.Decision.Rule, o.Decision.Failed)
	for _, step := range o.Steps {
		if !step.Allowed {
			text += fmt.Sprintf("; step %s: %s", step.StepID, line(false, step.Reason, step.Rule, step.Failed))
		}
	}
	for _, fault := range o.Faults {
		text += "; " + fault
	}
	return text
}

func line(allowed bool, code, rule string, failed []string) string {
	text := "denied " + code
	if allowed {
		text = "allowed " + code
	}
	if rule != "" {
		text += " by rule " + rule
	}
	if len(failed) > 0 {
		text += " (failed: " + strings.Join(failed, ", ") + ")"
	}
	return text
}

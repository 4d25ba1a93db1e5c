package ledger

import (
	"bytes"
	"crypto/sha256"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nkeys"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// tinyLog is a log without a store: it decides, makes the events that sealing
// would make, with constant salts and blinds, and folds them. Whatever is asked
// of it, it checks that Decide is pure and that a denial changes nothing.
type tinyLog struct {
	t       rapid.TB
	state   *projection.State
	events  [][]byte
	open    map[uint64][]byte // open payloads by seq
	request map[uint64][]byte // canonical requests by the seq of their decision
	asked   []asked
	quick   bool        // no digests of the state, which is large
	ahead   events.Time // that has passed with nothing happening
}

// asked is a proposal as it can be found in the log again.
type asked struct {
	proposal Proposal
	first    uint64 // seq of the outcome's first event
}

const tinyOrigin = "ledgerd.local/main/0123456789abcdef/1"

func newTinyLog(t rapid.TB) *tinyLog {
	l := &tinyLog{t: t, state: projection.New(), open: map[uint64][]byte{}, request: map[uint64][]byte{}}
	l.add(events.System, 0, &events.LedgerCreated{
		Format: events.Format, Origin: tinyOrigin, Ledger: "main",
		AdminID: AdminID, AdminPublicKey: publicKey(AdminID), CheckpointKey: "checkpoint", PermitKey: "permit",
	}, nil, false)
	l.add(events.System, 0, &events.LedgerOpened{Rules: Rules, Build: "test"}, nil, false)
	return l
}

// publicKey is the same key for the same name.
func publicKey(name string) string {
	seed := sha256.Sum256([]byte(name))
	raw, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
	if err != nil {
		panic(err)
	}
	key, err := raw.PublicKey()
	if err != nil {
		panic(err)
	}
	return key
}

var tinyStart = events.TimeOf(time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC))

// add appends an event as bytes, reads it back, and folds what was read.
func (l *tinyLog) add(agent string, cause uint64, b events.Body, payload []byte, open bool) {
	l.t.Helper()
	e := events.Event{
		Seq: l.state.Seq + 1, Prev: l.state.Leaf, Time: l.now(), Agent: agent, Cause: cause, Body: b,
	}
	if e.Seq == 1 {
		e.Prev = events.GenesisHash(tinyOrigin)
	}
	e.ID[6], e.ID[8] = 0x70, 0x80
	if payload != nil {
		e.Payload = events.PayloadCommitment([events.SaltLen]byte{}, payload)
	}
	bytes, err := e.Append(nil)
	if err != nil {
		l.t.Fatalf("seal %s: %v", b.Type(), err)
	}
	l.events = append(l.events, bytes)
	if open {
		l.open[e.Seq] = payload
	}
	l.fold(l.state, e.Seq)
}

func (l *tinyLog) fold(s *projection.State, seq uint64) events.Event {
	l.t.Helper()
	b := l.events[seq-1]
	e, err := events.Parse(b)
	if err != nil {
		l.t.Fatalf("parse %d: %v\n%s", seq, err, b)
	}
	if again, err := e.Append(nil); err != nil || !bytes.Equal(again, b) {
		l.t.Fatalf("event %d is not written as read: %v", seq, err)
	}
	if seq > 1 && e.Prev != s.Leaf {
		l.t.Fatalf("event %d does not follow the one before", seq)
	}
	if err := s.Apply(&e, l.open[seq]); err != nil {
		l.t.Fatalf("apply: %v\n%s", err, b)
	}
	s.Leaf = events.LeafHash(b)
	checkSubject(l.t, &e)
	return e
}

// checkSubject checks that the event can be published: a literal subject.
func checkSubject(t rapid.TB, e *events.Event) {
	t.Helper()
	subject := e.StreamSubject("main")
	for _, token := range strings.Split(subject, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n\x00") {
			t.Fatalf("no subject to publish on: %q", subject)
		}
	}
}

// now is the time of the next event.
func (l *tinyLog) now() events.Time { return tinyStart + l.ahead + events.Time(len(l.events)) }

// ask decodes a request, has it judged, and seals the outcome.
func (l *tinyLog) ask(lane wire.Lane, who, operation, request string) *Outcome {
	l.t.Helper()
	r, code := wire.Decode(lane, operation, []byte(request))
	return l.submit(&Proposal{Lane: lane, Subject: who, Operation: wire.Known(lane, operation), Refused: code, Request: r})
}

func (l *tinyLog) submit(p *Proposal) *Outcome {
	l.t.Helper()
	p.Wall, p.Now = tinyStart, l.now()
	if p.Request != nil {
		if op, used := l.state.Operation(p.Subject, p.Request.OperationID); used {
			p.Prior = l.request[op.Seq]
		}
	}
	o := l.decide(l.state, p)
	if o.Retry != 0 {
		return o
	}
	for _, d := range append(o.Steps, o.Decision) {
		checkDecision(l.t, l.state, p, d)
	}
	for _, effect := range o.Effects {
		checkEffect(l.t, effect.Body)
	}
	before := l.essence()
	first := l.state.Seq + 1
	l.seal(p, o)
	l.asked = append(l.asked, asked{*p, first})
	d := o.Decision
	if !d.Allowed && (len(o.Effects) > 0 || o.Read != nil) {
		l.t.Fatalf("%s has effects or a reading", d.Reason)
	}
	if !d.Allowed && d.OperationID == "" && l.essence() != before {
		l.t.Fatalf("%s changed the state", d.Reason)
	}
	return o
}

// decide judges twice and checks that neither the answer nor the state moves.
func (l *tinyLog) decide(s *projection.State, p *Proposal) *Outcome {
	l.t.Helper()
	before := l.digest(s)
	o, again := Decide(s, p), Decide(s, p)
	if !reflect.DeepEqual(o, again) {
		l.t.Fatalf("two judgements of one proposal: %+v and %+v", o.Decision, again.Decision)
	}
	checkTrace(l.t, s, p, o)
	if l.digest(s) != before {
		l.t.Fatalf("Decide changed the state")
	}
	return o
}

// essence is the state's digest but for its place in the log.
func (l *tinyLog) essence() events.Hash {
	s := *l.state
	s.Seq, s.Time, s.Leaf = 0, 0, events.Hash{}
	return l.digest(&s)
}

func (l *tinyLog) digest(s *projection.State) events.Hash {
	if l.quick {
		return events.Hash{}
	}
	return s.Digest()
}

// checkDecision checks what holds of any decision: R8, and that everything in it
// is within its grammar, so that nobody's free choice of text reaches the log.
func checkDecision(t rapid.TB, s *projection.State, p *Proposal, d *events.Decision) {
	t.Helper()
	_, known := reason.Of(reason.Code(d.Reason))
	lineage := []string{p.Subject}
	if a := s.Agent(p.Subject); a != nil {
		lineage = a.LineageIDs()
	}
	faults := map[string]bool{
		"reason":    !known,
		"allowed":   d.Allowed != reason.Code(d.Reason).Allowed(),
		"subject":   d.Subject != p.Subject,
		"lineage":   !slices.Equal(d.Lineage, lineage),
		"operation": d.Operation != p.Operation || wire.Known(p.Lane, d.Operation) != d.Operation,
		"policy":    d.PolicyVersion != s.PolicyVersion() || d.PolicyDigest != s.PolicyDigest(),
		"resource":  !validResource(d.Resource),
		"action":    d.Action != "" && !events.ValidAction(d.Action),
		"owner":     d.Owner != "" && !events.ValidID(d.Owner),
		"trace":     d.TraceID != "" && !events.ValidTraceID(d.TraceID),
		"id":        d.OperationID != "" && !events.ValidOperationID(d.OperationID),
		"sop":       d.SOPID != "" && !events.ValidToken(d.SOPID),
		"step":      d.StepID != "" && !events.ValidToken(d.StepID),
		"later":     d.Blind != "",
		"rule":      (d.Rule != "") != (len(d.Failed) > 0) || d.Rule != "" && (!events.ValidToken(d.Rule) || d.Allowed),
		"malformed": d.Reason == string(reason.MalformedRequest) &&
			d.Resource+d.Action+d.Owner+d.TraceID+d.OperationID+d.SOPID+d.StepID != "",
	}
	for fault, there := range faults {
		if there {
			t.Fatalf("%s of a decision: %+v", fault, d)
		}
	}
}

// validResource takes nothing, a name on its own, [owner:]namespace.key, or
// sop:step.
func validResource(s string) bool {
	if s == "" || events.ValidResourceID(s) || events.ValidID(s) || events.ValidAction(s) || events.ValidToken(s) || validRecord(s) {
		return true
	}
	of, name, ok := strings.Cut(s, ":")
	return ok && (events.ValidID(of) && validRecord(name) || events.ValidToken(of) && (name == "" || events.ValidToken(name)))
}

func validRecord(s string) bool {
	dot := strings.LastIndexByte(s, '.')
	return dot > 0 && events.ValidNamespace(s[:dot]) && events.ValidKey(s[dot+1:])
}

// checkEffect checks the same of what follows from a decision.
func checkEffect(t rapid.TB, b events.Body) {
	t.Helper()
	ok := true
	record := func(r events.Record) bool {
		_, class := policy.ParseClass(r.Class)
		return events.ValidID(r.Owner) && events.ValidNamespace(r.Namespace) && events.ValidKey(r.Key) &&
			events.ValidVisibility(r.Visibility) && class && r.Revision > 0
	}
	capabilities := func(list []string) bool {
		return slices.IsSorted(list) && !slices.ContainsFunc(list, func(s string) bool { return !events.ValidAction(s) })
	}
	switch b := b.(type) {
	case *events.AgentRegistered:
		ok = events.ValidID(b.AgentID) && (b.ParentID == "" || events.ValidID(b.ParentID)) && capabilities(b.Capabilities) && policy.ValidPublicKey(b.PublicKey)
	case *events.AgentUpdated:
		ok = events.ValidID(b.AgentID) && capabilities(b.Capabilities)
	case *events.AgentRevoked:
		ok = events.ValidID(b.AgentID)
	case *events.PrincipalRegistered:
		ok = events.ValidID(b.ID) && policy.ValidRole(b.Role) && policy.ValidPublicKey(b.PublicKey) && (b.Root == "" || events.ValidID(b.Root)) &&
			!slices.ContainsFunc(b.Actions, func(s string) bool { return !events.ValidAction(s) }) &&
			!slices.ContainsFunc(b.Groups, func(s string) bool { return !events.ValidToken(s) })
	case *events.PrincipalRekeyed:
		ok = events.ValidID(b.ID) && policy.ValidPublicKey(b.PublicKey)
	case *events.PrincipalRevoked:
		ok = events.ValidID(b.ID)
	case *events.PolicyActivated:
		ok = events.ValidToken(b.Version) && b.Version != "none"
	case *events.EnvironmentChanged:
		ok = capabilities(b.Capabilities)
	case *events.MemoryWritten:
		ok = record(b.Record)
	case *events.MemoryDeleted:
		ok = record(b.Record)
	case *events.MemoryExpired:
		ok = record(b.Record)
	case *events.GrantGiven:
		ok = record(events.Record{Owner: b.Owner, Namespace: b.Namespace, Key: b.Key, Visibility: "private", Class: "secret", Revision: 1}) && events.ValidID(b.To) && b.Expires > 0
	case *events.GrantRevoked:
		ok = record(events.Record{Owner: b.Owner, Namespace: b.Namespace, Key: b.Key, Visibility: "private", Class: "secret", Revision: 1}) && events.ValidID(b.To)
	case *events.EmergencyDenied:
		ok = events.ValidID(b.Scope) && capabilities(b.Capabilities) && b.Epoch > 0
	case *events.EmergencyLifted:
		ok = events.ValidID(b.Scope) && capabilities(b.Capabilities) && b.Epoch > 0
	case *events.ClockAccepted:
	case *events.RestrictionAdded:
		ok = events.ValidID(b.AgentID) && policy.Restriction{ID: b.ID, Action: b.Action, Text: b.Require}.Valid()
	case *events.RestrictionRemoved:
		ok = events.ValidID(b.AgentID) && events.ValidToken(b.ID)
	case *events.SignersSet:
		ok = b.Number > 0 && policy.ValidSigners(b.Keys)
	case *events.ResourceSet:
		ok = policy.Resource{ID: b.ID, Classification: b.Classification, Owner: b.Owner, Tags: b.Tags}.Valid()
	default:
		ok = false
	}
	if !ok {
		t.Fatalf("%s is not within its grammar: %+v", b.Type(), b)
	}
}

func (l *tinyLog) seal(p *Proposal, o *Outcome) {
	l.t.Helper()
	o.Digest([events.SaltLen]byte{})
	if o.Hidden {
		o.Decision.Blind = "00112233445566778899aabbccddeeff"
	}
	for _, step := range o.Steps {
		l.add(p.Subject, 0, step, nil, false)
	}
	var payload []byte
	if o.KeepsRequest(p) {
		payload = p.Request.Canonical
		l.request[l.state.Seq+1] = payload
	}
	l.add(p.Subject, 0, o.Decision, payload, false)
	cause := l.state.Seq
	for _, effect := range o.Effects {
		switch {
		case effect.Open != nil:
			l.add(p.Subject, cause, effect.Body, effect.Open, true)
		default:
			l.add(p.Subject, cause, effect.Body, effect.Seal, false)
		}
	}
}

// verify folds the log again from its bytes and judges every proposal again on
// the way, from nothing but what the log and its payloads say.
func (l *tinyLog) verify() {
	l.t.Helper()
	s := projection.New()
	next, who := 0, newRegistry(s)
	for seq := uint64(1); seq <= uint64(len(l.events)); seq++ {
		if next < len(l.asked) && l.asked[next].first == seq {
			l.judgeAgain(s, l.asked[next])
			next++
		}
		l.fold(s, seq)
		e, err := events.Parse(l.events[seq-1])
		if err != nil {
			l.t.Fatal(err)
		}
		who.apply(e.Body)
	}
	if s.Digest() != l.state.Digest() {
		l.t.Fatalf("the log folds to another state")
	}
	if of := newRegistry(s); !reflect.DeepEqual(who.byKey, of.byKey) || !reflect.DeepEqual(who.byID, of.byID) {
		l.t.Fatalf("the registry that follows the events is not that of the state")
	}
	b, err := s.EncodeSnapshot(nil)
	if err != nil {
		l.t.Fatalf("snapshot: %v", err)
	}
	if restored, err := projection.DecodeSnapshot(b, nil); err != nil || restored.Digest() != s.Digest() {
		l.t.Fatalf("the snapshot restores another state: %v", err)
	}
}

func (l *tinyLog) judgeAgain(s *projection.State, a asked) {
	l.t.Helper()
	p := a.proposal
	if p.Request != nil {
		r, code := wire.Decode(p.Lane, p.Operation, p.Request.Canonical)
		if code != "" {
			l.t.Fatalf("the canonical request does not decode: %s\n%s", code, p.Request.Canonical)
		}
		r.OperationID, r.TraceID = p.Request.OperationID, p.Request.TraceID
		p.Request = r
	}
	o := Decide(s, &p)
	var bodies []events.Body
	for _, step := range o.Steps {
		bodies = append(bodies, step)
	}
	bodies = append(bodies, o.Decision)
	for _, effect := range o.Effects {
		bodies = append(bodies, effect.Body)
	}
	for i, body := range bodies {
		e, err := events.Parse(l.events[a.first-1+uint64(i)])
		if err != nil {
			l.t.Fatal(err)
		}
		if logged, ok := e.Body.(*events.Decision); ok {
			judged := body.(*events.Decision)
			judged.Blind, judged.ArgumentsDigest = logged.Blind, logged.ArgumentsDigest
		}
		want, err := (&events.Event{Seq: e.Seq, Prev: e.Prev, Time: e.Time, ID: e.ID, Agent: e.Agent, Cause: e.Cause, Payload: e.Payload, Body: body}).Append(nil)
		if err != nil || !bytes.Equal(want, l.events[e.Seq-1]) {
			l.t.Fatalf("judged again (%v):\n%s\nthe log has\n%s", err, want, l.events[e.Seq-1])
		}
	}
}

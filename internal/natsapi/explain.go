package natsapi

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *api) explain(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	if q.Seq != 0 {
		return a.explainRecorded(s, w, q.Seq)
	}
	id, lane := q.AgentID, wire.Propose
	if id == "" {
		id = w.id
	}
	if s.Agent(id) == nil {
		lane = wire.Control
	}
	if id != w.id && !w.sees(s, id) || s.Agent(id) == nil && s.Principal(id) == nil {
		return refusal(reason.NotFound)
	}
	if id != w.id && !mayExplain(w, lane, q.Operation) {
		return refusal(reason.NotPermittedForRole)
	}
	e := ledger.Explain(s, a.ledger.Now(), lane, id, q.Operation, q.Request)
	if e.Asks && id != w.id && !w.full() {
		return refusal(reason.NotPermittedForRole) // the answer would tell of its records
	}
	out := explanation(e.Decision, e.Guards, w.full())
	out.Seq = s.Seq
	if w.root != "" && out.Owner != "" && !w.sees(s, out.Owner) && id != w.id {
		out.Owner = ""
	}
	told := newTeller(s, w)
	out.Why = told.why(e.Found, e.Why)
	for _, note := range e.Notes {
		add(told, &out.Why, &out.Notes, short(note))
	}
	for i, step := range e.Steps {
		shown := wire.Explained{StepID: step.StepID, Action: step.Action, Allowed: step.Allowed, ReasonCode: reason.Code(step.Reason)}
		if i < len(e.Descent.Steps) {
			shown.Guards = guards(e.Descent.Steps[i].Guards, w.full())
			shown.Why = told.why(e.Descent.Steps[i].Found, e.StepWhy[i])
		}
		out.Decisions = append(out.Decisions, shown)
	}
	return func() []byte { return wire.Encode(out) }
}

// mayExplain reports whether w may have an operation judged as another. An
// agent may not where the answer depends on records, which nobody sees from
// above; and control verbs are an admin's to try.
func mayExplain(w asker, lane wire.Lane, operation string) bool {
	if lane == wire.Control {
		return w.role == RoleAdmin
	}
	return w.full() || !strings.HasPrefix(operation, "memory.") && !strings.HasPrefix(operation, "grant.")
}

func explanation(d *events.Decision, list []ledger.Guard, full bool) wire.Explanation {
	code := reason.Code(d.Reason)
	told := reason.Told(code)
	hidden := told != code && !full
	if full {
		told = code
	}
	out := wire.Explanation{
		Subject: d.Subject, Lineage: d.Lineage, Operation: d.Operation, Resource: d.Resource, Allowed: d.Allowed,
		ReasonCode: told, Message: told.Text(), PolicyVersion: d.PolicyVersion, Guards: guards(list, full),
	}
	if !hidden {
		out.Owner = d.Owner
	}
	return out
}

func guards(list []ledger.Guard, full bool) []wire.Guard {
	out := []wire.Guard{}
	for _, g := range list {
		if g.Reason != "" && !full {
			g.Reason = reason.Told(g.Reason)
		}
		out = append(out, wire.Guard{Guard: g.Name, Result: g.Result, ReasonCode: g.Reason})
	}
	return out
}

// explainRecorded explains a decision in the log by what it says, and that on a
// procedure by its steps' too. The texts of rules are those that stand now, where
// they still do.
func (a *api) explainRecorded(s *projection.State, w asker, seq uint64) func() []byte {
	d := a.decided(s, w, seq)
	if d == nil {
		return refusal(reason.NotFound)
	}
	told := newTeller(s, w)
	text := told.texts(d)
	again := a.judgedAgain(s, w, told, d, seq)
	erased := uint64(0)
	if e, err := a.durable(seq); err == nil {
		erased = s.ErasedBy(&e)
	}
	return func() []byte {
		out := explanation(d, guardsOf(d), w.full())
		out.Seq, out.Erased = seq, erased
		out.Why, out.Notes = again.whole, again.notes
		told.recorded(&out.Why, d, text)
		for i, step := range a.stepsOf(d, seq) {
			shown := wire.Explained{
				StepID: step.StepID, Action: step.Action, Allowed: step.Allowed, ReasonCode: reason.Code(step.Reason), Guards: guards(guardsOf(step), w.full()),
			}
			if i < len(again.steps) && again.steps[i].StepID == step.StepID && again.steps[i].ReasonCode == shown.ReasonCode {
				shown.Why = again.steps[i].Why
			}
			told.recorded(&shown.Why, step, text)
			out.Decisions = append(out.Decisions, shown)
		}
		return wire.Encode(out)
	}
}

func guardsOf(d *events.Decision) []ledger.Guard {
	if d.StepID != "" && d.Operation == "sop.validate" {
		return ledger.StepGuards(d.Action, reason.Code(d.Reason))
	}
	return ledger.Guards(d.Operation, reason.Code(d.Reason))
}

// stepsOf are the decisions on the steps of a procedure, which stand right
// before the one on the whole.
func (a *api) stepsOf(d *events.Decision, seq uint64) (steps []*events.Decision) {
	if d.SOPID == "" || d.StepID != "" {
		return nil
	}
	for at := seq - 1; at > 0 && len(steps) < events.SOPStepsMax; at-- {
		e, err := a.durable(at)
		step, ok := e.Body.(*events.Decision)
		if err != nil || !ok || step.Subject != d.Subject || step.SOPID != d.SOPID || step.Operation != "sop.validate" || !strings.HasPrefix(step.Resource, d.SOPID+":") {
			break
		}
		steps = append(steps, step)
	}
	slices.Reverse(steps)
	return steps
}

// recorded adds the rules that a decision names.
func (t *teller) recorded(out *wire.Why, d *events.Decision, text func(d *events.Decision, owner, id string) string) {
	for _, name := range d.Failed {
		owner, id, of := strings.Cut(name, ":")
		if !of {
			owner, id = "", name
		}
		t.rule(out, wire.FailedRule{ID: id, Owner: owner, Require: text(d, owner, id)})
	}
}

// texts looks up what rules say: those of the policy that a decision was made
// under, where it is in force, and the restrictions on its subject.
func (t *teller) texts(d *events.Decision) func(d *events.Decision, owner, id string) string {
	p, digest := t.s.Policy, t.s.PolicyDigest()
	if !t.w.readsRules(t.s, "") {
		p = nil
	}
	restrictions := map[string]string{}
	for _, id := range d.Lineage {
		if agent := t.s.Agent(id); agent != nil && t.w.readsRules(t.s, id) {
			for _, r := range agent.Restrictions {
				restrictions[id+":"+r.ID] = r.Text
			}
		}
	}
	return func(d *events.Decision, owner, id string) string {
		if owner != "" || p == nil || d.PolicyDigest != digest {
			return restrictions[owner+":"+id]
		}
		for _, clause := range p.Actions[d.Action].Require {
			if clause.ID == id {
				return clause.Text
			}
		}
		return ""
	}
}

// teller shows what stands behind denials, as far as its asker may know and
// there is room.
type teller struct {
	s    *projection.State
	w    asker
	room int // in bytes
}

func newTeller(s *projection.State, w asker) *teller { return &teller{s, w, replyRoom - explainedMax} }

// Of one text no more than this is shown, and a schema not at all if it is
// longer. What is always shown of an explanation is within explainedMax.
const (
	noteMax      = 1024
	schemaMax    = 4096
	explainedMax = 128 << 10
)

// fits reports whether there is room for v, and takes it.
func (t *teller) fits(v any) bool {
	size := len(wire.Encode(v)) + 1
	if size > t.room {
		return false
	}
	t.room -= size
	return true
}

func (t *teller) why(found ledger.Found, why ledger.Why) (out wire.Why) {
	for _, rule := range found.Rules {
		shown := wire.FailedRule{ID: rule.ID, Owner: rule.Owner, Require: rule.Text, Error: short(rule.Err)}
		if !t.w.readsRules(t.s, rule.Owner) {
			shown.Require = ""
		}
		t.rule(&out, shown)
	}
	if f := found.Schema; f != nil {
		t.fault(&out, "", f, "")
	}
	for _, v := range why.Values {
		t.fault(&out, v.Rule, v.Fault, v.Schema)
	}
	for _, r := range why.Removed {
		for _, level := range r.Levels {
			add(t, &out, &out.Removed, wire.Removed{Capability: r.Capability, By: level.By, Why: level.Why})
		}
	}
	for _, level := range why.Writes {
		add(t, &out, &out.Writes, wire.Writes{AgentID: level.Agent, Writes: list(level.Writes)})
	}
	i := wire.Instead{
		Action: why.Instead.Action, AgentID: why.Instead.Agent, Capabilities: why.Instead.Capabilities, Writes: why.Instead.Writes, Revision: why.Instead.Revision,
	}
	if (i.Action != "" || i.AgentID != "" || len(i.Capabilities) > 0 || len(i.Writes) > 0 || i.Revision > 0) && t.fits(i) {
		out.Instead = &i
	}
	return out
}

// add appends an entry, or counts it where there is no room.
func add[Entry any](t *teller, out *wire.Why, list *[]Entry, e Entry) {
	if t.fits(e) {
		*list = append(*list, e)
		return
	}
	out.LeftOut++
}

// rule adds a rule: whole where there is room, else by its name alone.
func (t *teller) rule(out *wire.Why, r wire.FailedRule) {
	if t.fits(r) {
		out.Rules = append(out.Rules, r)
		return
	}
	add(t, out, &out.Rules, wire.FailedRule{ID: r.ID, Owner: r.Owner})
}

// readsRules reports whether w may read the rules of an owner, none being the
// policy: an agent may know what binds it, and an observer of one subtree is
// shown nothing from outside of it.
func (w asker) readsRules(s *projection.State, owner string) bool {
	return w.role == RoleAgent || w.root == "" || owner != "" && w.sees(s, owner)
}

func (t *teller) fault(out *wire.Why, rule string, f *policy.SchemaFault, schema string) {
	shown := wire.SchemaFault{Rule: rule, At: short(f.At), Fault: short(f.Why), Place: short(f.Place)}
	if len(f.Says) <= schemaMax {
		shown.Says = f.Says
	}
	if len(schema) <= schemaMax {
		shown.Schema = schema
	}
	add(t, out, &out.Faults, shown)
}

// short cuts a text where it gets long, at the end of a character.
func short(text string) string {
	if len(text) <= noteMax {
		return text
	}
	cut := noteMax
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

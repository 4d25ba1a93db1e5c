package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// erasure is what one payload.erased says.
type erasure struct {
	basis, owner string
	before       uint64
	seqs         []uint64
}

// held is what a hold is on.
type held struct {
	owner, name string // of a record, NAMESPACE.KEY
	seq         uint64
}

const day = 24 * 3600 * 1_000_000

func (f *fact) readErasure(body events.Body) {
	hold := func(h events.Hold) {
		f.hold = held{owner: h.Owner, seq: h.Seq}
		if h.Namespace != "" {
			f.hold.name = h.Namespace + "." + h.Key
		}
	}
	switch b := body.(type) {
	case *events.PayloadErased:
		f.erased = erasure{b.Basis, b.Owner, b.Before, b.Seqs}
	case *events.HoldPlaced:
		hold(b.Hold)
	case *events.HoldLifted:
		hold(b.Hold)
	}
}

// erasableOperations are those whose requests may be erased.
var erasableOperations = []string{
	"memory.read", "memory.write", "memory.delete", "memory.load", "action.authorize", "sop.validate", "sop.submit",
	"run.cancel", "run.resolve", "grant.give", "grant.revoke", "emergency.deny", "emergency.lift",
}

// sealed says whose the payload beside an event is, and whether it may be erased.
func (f *fact) sealed() (owner string, may bool) {
	switch {
	case !f.payload:
	case f.decision.operation != "":
		owner = f.decision.subject
		if of, _, ok := strings.Cut(f.decision.resource, ":"); ok && f.decision.operation == "memory.load" {
			owner = of
		}
		return owner, slices.Contains(erasableOperations, f.decision.operation)
	case f.kind == "memory.written" && f.record.class != "mandatory":
		return f.record.owner, true
	case f.kind == "effect.finished" || f.kind == "effect.failed":
		return f.agent, true
	}
	return "", false
}

// holding names the record whose value a payload holds, or was to.
func (f *fact) holding() (owner, name string, ok bool) {
	switch {
	case f.kind == "memory.written":
		return f.record.owner, f.record.name, true
	case f.decision.operation == "memory.write" || f.decision.operation == "memory.load":
		return strings.Cut(f.decision.resource, ":")
	}
	return "", "", false
}

// erasedUnder is the first event that says that a payload is erased, 0 for none:
// one that names it, before those that are of all of its owner's.
func (m *model) erasedUnder(f *fact) uint64 {
	for i := range m.facts {
		if e := &m.facts[i].erased; slices.Contains(e.seqs, f.seq) {
			return m.facts[i].seq
		}
	}
	owner, may := f.sealed()
	for i := range m.facts {
		if e := &m.facts[i].erased; may && e.owner == owner && f.seq < e.before {
			return m.facts[i].seq
		}
	}
	return 0
}

func (m *model) at(seq uint64) *fact {
	if seq == 0 || seq > uint64(len(m.facts)) {
		return nil
	}
	return &m.facts[seq-1]
}

// holds in force, in the order in which they were placed.
func (m *model) holdsInForce() (list []held) {
	for i := range m.facts {
		switch f := &m.facts[i]; f.kind {
		case "hold.placed":
			list = append(list, f.hold)
		case "hold.lifted":
			list = slices.DeleteFunc(list, func(h held) bool { return h == f.hold })
		}
	}
	return list
}

// isHeld is whether any hold keeps the payload beside an event.
func (m *model) isHeld(f *fact) bool {
	owner, _ := f.sealed()
	of, name, named := f.holding()
	return slices.ContainsFunc(m.holdsInForce(), func(h held) bool {
		whole := h.name == "" && h.seq == 0
		return whole && h.owner == owner || h.seq == f.seq || named && h.owner == of && (whole || h.name == name)
	})
}

// inUse is whether an open run needs the payload beside an event.
func (m *model) inUse(f *fact) bool {
	return slices.ContainsFunc(m.openRuns(), func(r *aRun) bool {
		return r.decision == f.seq || f.id == r.id && strings.HasPrefix(f.kind, "effect.f")
	})
}

// young is the first event of those that are not old enough to be erased.
func (m *model) young() uint64 {
	if m.policy != nil && m.policy.retention > 0 {
		for i := range m.facts {
			if m.facts[i].time/day+events.Time(m.policy.retention) >= m.now/day {
				return m.facts[i].seq
			}
		}
	}
	return m.seq + 1
}

// gone is a record that goes with its value.
func goneWith(r *record) fact {
	last := *r
	last.deleted, last.revision, last.expires, last.run = true, r.revision+1, 0, ""
	return fact{kind: "memory.erased", record: last}
}

// written is the event that wrote a record as it is, nil where it is not there.
func (m *model) written(owner, name string) *fact {
	if m.live(owner, name) == nil {
		return nil
	}
	return m.last(func(f *fact) bool {
		return f.kind == "memory.written" && f.record.owner == owner && f.record.name == name
	})
}

func (m *model) erase(b map[string]any) verdict {
	e := erasure{basis: text(b, "basis"), owner: text(b, "agent_id")}
	var gone []fact
	var reason string
	if e.owner != "" {
		gone, reason = m.eraseAgent(&e)
	} else {
		gone, reason = m.eraseSeqs(&e, numbers(b, "seqs"))
	}
	if reason != "" {
		return deny(reason)
	}
	v := allow("control_done")
	v.erased = &e
	for _, f := range gone {
		v.records = append(v.records, f.record.owner+":"+f.record.name)
	}
	if dry, _ := b["dry_run"].(bool); !dry && (e.owner != "" || len(e.seqs) > 0) {
		v.effects = append([]fact{{kind: "payload.erased", erased: e}}, gone...)
	}
	return v
}

func (m *model) eraseSeqs(e *erasure, seqs []uint64) (gone []fact, reason string) {
	for _, seq := range seqs {
		f := m.at(seq)
		if f == nil || !f.payload {
			return nil, "not_found"
		}
		if m.erasedUnder(f) != 0 {
			continue
		}
		_, may := f.sealed()
		switch {
		case !may:
			return nil, "not_erasable"
		case m.isHeld(f):
			return nil, "payload_held"
		case m.inUse(f):
			return nil, "payload_in_use"
		case seq >= m.young():
			return nil, "retention_floor"
		}
		e.seqs = append(e.seqs, seq)
		owner, name, named := f.holding()
		if w := m.written(owner, name); named && w != nil && w.record.class != "mandatory" && (w.payload && w.seq == seq || !w.payload && w.cause == seq) {
			gone = append(gone, goneWith(&w.record))
		}
	}
	return gone, ""
}

func (m *model) eraseAgent(e *erasure) (gone []fact, reason string) {
	e.before = m.young()
	switch {
	case m.agent(e.owner) == nil:
		return nil, "not_found"
	case slices.ContainsFunc(m.holdsInForce(), func(h held) bool { return h.owner == e.owner }):
		return nil, "payload_held"
	case slices.ContainsFunc(m.openRuns(), func(r *aRun) bool { return r.agent == e.owner }):
		return nil, "payload_in_use"
	case e.before == 1:
		return nil, "retention_floor"
	}
	names := map[string]bool{}
	for i := range m.facts {
		if r := &m.facts[i].record; r.owner == e.owner {
			names[r.name] = true
		}
	}
	for name := range names {
		if w := m.written(e.owner, name); w != nil && w.record.class != "mandatory" && w.seq < e.before {
			gone = append(gone, goneWith(&w.record))
		}
	}
	slices.SortFunc(gone, func(a, b fact) int {
		dot := func(name string) int { return strings.LastIndexByte(name, '.') }
		x, y := a.record.name, b.record.name
		if c := strings.Compare(x[:dot(x)], y[:dot(y)]); c != 0 {
			return c
		}
		return strings.Compare(x[dot(x):], y[dot(y):])
	})
	return gone, ""
}

// holdOf says what a request's hold is on.
func (m *model) holdOf(b map[string]any) (h held, reason string) {
	if seq := number(b, "seq"); seq != 0 {
		f := m.at(seq)
		if f == nil {
			return h, "not_found"
		}
		owner, may := f.sealed()
		switch {
		case owner == "" || !m.taken(owner):
			return h, "not_found"
		case !may:
			return h, "not_erasable"
		case m.erasedUnder(f) != 0:
			return h, "not_found"
		}
		return held{owner: owner, seq: seq}, ""
	}
	h.owner = text(b, "agent_id")
	if _, record := b["key"]; record {
		h.owner, h.name = text(b, "owner_agent_id"), nameOf(b)
		if m.change(h.owner, h.name) == nil {
			return h, "not_found"
		}
	}
	if m.agent(h.owner) == nil {
		return h, "not_found"
	}
	return h, ""
}

func (m *model) placeHold(b map[string]any) verdict {
	h, reason := m.holdOf(b)
	switch {
	case reason != "":
		return deny(reason)
	case slices.Contains(m.holdsInForce(), h):
		return allow("control_done")
	}
	return allow("control_done", fact{kind: "hold.placed", hold: h})
}

func (m *model) liftHold(b map[string]any) verdict {
	h, reason := m.holdOf(b)
	switch {
	case reason != "":
		return deny(reason)
	case !slices.Contains(m.holdsInForce(), h):
		return deny("not_found")
	}
	return allow("control_done", fact{kind: "hold.lifted", hold: h})
}

func numbers(b map[string]any, name string) (list []uint64) {
	items, _ := b[name].([]any)
	for _, item := range items {
		n, _ := item.(json.Number)
		i, _ := strconv.ParseUint(n.String(), 10, 64)
		list = append(list, i)
	}
	return list
}

// erasures are what an admin asks of payloads and holds.
func (w *world) erasures() (string, object) {
	body := object{"basis": pick(w, events.Bases())}
	if w.percent(20) {
		body["comment"] = canary + "comment"
	}
	switch at := w.r.IntN(100); {
	case at < 45:
		seqs := []uint64{}
		for range 1 + w.r.IntN(4) {
			seqs = append(seqs, w.somePayload())
		}
		slices.Sort(seqs)
		body["seqs"] = slices.Compact(seqs)
	case at < 62:
		body["agent_id"] = w.agentID(nil)
	default:
		delete(body, "basis")
		return w.holds(body, at < 82)
	}
	if w.percent(10) {
		body["dry_run"] = true
	}
	return "payload.erase", body
}

// somePayload is an event with a payload that may be erased, mostly; often one that holds a value.
func (w *world) somePayload() uint64 {
	var may, values []uint64
	for i := range w.model.facts {
		f := &w.model.facts[i]
		if _, erasable := f.sealed(); erasable {
			may = append(may, f.seq)
			if _, _, ok := f.holding(); ok {
				values = append(values, f.seq)
			}
		}
	}
	switch {
	case w.percent(10) || len(may) == 0:
		return 1 + w.r.Uint64N(w.model.seq+3)
	case w.percent(60) && len(values) > 0:
		return pick(w, values)
	}
	return pick(w, may)
}

func (w *world) holds(body object, place bool) (string, object) {
	on := func(h held) {
		switch dot := strings.LastIndexByte(h.name, '.'); {
		case h.seq != 0:
			body["seq"] = h.seq
		case dot > 0:
			body["owner_agent_id"], body["namespace"], body["key"] = h.owner, h.name[:dot], h.name[dot+1:]
		default:
			body["agent_id"] = h.owner
		}
	}
	if list := w.model.holdsInForce(); !place && len(list) > 0 && w.percent(90) {
		on(pick(w, list))
		return "hold.lift", body
	}
	switch w.r.IntN(3) {
	case 0:
		on(held{seq: w.somePayload()})
	case 1:
		on(held{owner: w.agentID(nil)})
	default:
		r := w.record(w.agentID(nil))
		on(held{owner: r["owner_agent_id"].(string), name: r["namespace"].(string) + "." + r["key"].(string)})
	}
	if place {
		return "hold.place", body
	}
	return "hold.lift", body
}

// carryOut destroys what the log says to be erased up to an event: the payloads,
// and of an agent all of whose are, the data keys that nothing is left under.
func (w *world) carryOut(upTo uint64) {
	var keys []string
	for i := range w.model.facts {
		f := &w.model.facts[i]
		if f.kind == "payload.erased" && f.seq > w.log.purged && f.seq <= upTo {
			w.destroy(f.seq)
			if f.erased.owner != "" {
				keys = append(keys, w.destroyKeys(f)...)
			}
			w.log.purged = f.seq
		}
	}
	w.stepper.Erased(w.log.purged, keys...)
}

func (w *world) destroy(under uint64) {
	for i := range w.model.facts {
		if f := &w.model.facts[i]; f.payload && w.log.payloads[f.seq] != nil && w.model.erasedUnder(f) == under {
			delete(w.log.payloads, f.seq)
			w.volumes.destroyed++
		}
	}
}

func (w *world) destroyKeys(f *fact) (gone []string) {
	used := map[string]bool{}
	for _, record := range w.log.payloads {
		if record[0] == 1 {
			used[string(record[2:2+record[1]])] = true
		}
	}
	for name := range w.log.keys {
		owner, since, _ := strings.Cut(name, "#")
		if n, _ := strconv.ParseUint(since, 10, 64); owner == f.erased.owner && n < f.seq && !used[name] {
			delete(w.log.keys, name)
			gone = append(gone, name)
		}
	}
	return gone
}

// compareErasures holds what the state says of erasures and holds against the
// model, event by event.
func (w *world) compareErasures(s *projection.State) error {
	for i := range w.model.facts {
		if f := &w.model.facts[i]; f.payload && f.seq <= w.log.Durable() {
			e, err := events.Parse(w.log.events[f.seq-1])
			if err != nil {
				return err
			}
			if got, want := s.ErasedBy(&e), w.model.erasedUnder(f); got != want {
				return fmt.Errorf("the payload of %d is erased under %d, want %d", f.seq, got, want)
			}
		}
	}
	want := w.model.holdsInForce()
	for _, h := range s.HoldList() {
		is := held{owner: h.Owner, seq: h.Seq}
		if h.Namespace != "" {
			is.name = h.Namespace + "." + h.Key
		}
		if !slices.Contains(want, is) {
			return fmt.Errorf("a hold on %+v, want %v", is, want)
		}
	}
	if len(s.HoldList()) != len(want) {
		return fmt.Errorf("holds %v, want %v", s.HoldList(), want)
	}
	return nil
}

// checkErased holds what a reply says of an erasure against the model.
func (v *verdict) checkErased(r *reply) error {
	if v.retry != 0 {
		return nil
	}
	if (v.erased != nil) != (r.Erased != nil) {
		return fmt.Errorf("erased: %+v, want %+v", r.Erased, v.erased)
	}
	if v.erased == nil {
		return nil
	}
	under := uint64(0)
	if len(v.effects) > 0 {
		under = r.Seq + 1
	}
	e := r.Erased
	if e.AgentID != v.erased.owner || e.Before != v.erased.before || !slices.Equal(e.Seqs, v.erased.seqs) || !slices.Equal(e.Records, v.records) || e.Under != under {
		return fmt.Errorf("erased: %+v, want %+v with %v under %d", e, v.erased, v.records, under)
	}
	return nil
}

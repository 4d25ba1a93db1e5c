package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// naive is a second implementation of what a decision may depend on, as plain
// as it can be: lists that are scanned from end to end. It learns from the
// events that follow from decisions and from nothing else.
type naive struct {
	agents      []naiveAgent
	environment []string // of the policy
	narrowed    []string
	isNarrowed  bool
	records     []naiveRecord // every write and deletion there ever was, the last ones last
}

type naiveAgent struct {
	id, parent string
	declared   []string
	revoked    bool
}

type naiveRecord struct {
	owner, name, visibility, class, value string
	revision                              uint64
	deleted                               bool
}

// naivePolicies are the environments of the policies of these histories, by
// version; all declare the same actions and classes.
var naivePolicies = map[string][]string{
	"wide":   {"memory.read", "memory.write", "agent.register", "x.one", "x.two"},
	"narrow": {"memory.read", "x.one"},
	"other":  {"memory.write", "memory.read", "agent.register", "x.two"},
	"none-":  {},
}

func naiveClass(name string) string {
	switch strings.Split(name, ".")[0] {
	case "rule":
		return "mandatory"
	case "secret":
		return "secret"
	}
	return "preference"
}

func (n *naive) learn(b events.Body, value string) {
	switch b := b.(type) {
	case *events.AgentRegistered:
		n.agents = append(n.agents, naiveAgent{b.AgentID, b.ParentID, b.Capabilities, false})
	case *events.AgentUpdated:
		n.agent(b.AgentID).declared = b.Capabilities
	case *events.AgentRevoked:
		n.agent(b.AgentID).revoked = true
	case *events.PolicyActivated:
		n.environment = naivePolicies[b.Version]
	case *events.EnvironmentChanged:
		n.narrowed, n.isNarrowed = b.Capabilities, true
	case *events.MemoryWritten:
		n.records = append(n.records, naiveRecord{b.Owner, b.Namespace + "." + b.Key, b.Visibility, b.Class, value, b.Revision, false})
	case *events.MemoryDeleted:
		n.records = append(n.records, naiveRecord{owner: b.Owner, name: b.Namespace + "." + b.Key, revision: b.Revision, deleted: true})
	}
}

func (n *naive) agent(id string) *naiveAgent {
	for i := range n.agents {
		if n.agents[i].id == id {
			return &n.agents[i]
		}
	}
	return nil
}

// ancestors lists an agent, its parent, and so on.
func (n *naive) ancestors(id string) (list []naiveAgent) {
	for id != "" {
		a := n.agent(id)
		list = append(list, *a)
		id = a.parent
	}
	return list
}

// holds asks every level, the environment first.
func (n *naive) holds(id, capability string) bool {
	votes := []bool{slices.Contains(n.environment, capability)}
	if n.isNarrowed {
		votes = append(votes, slices.Contains(n.narrowed, capability))
	}
	for _, a := range n.ancestors(id) {
		votes = append(votes, !a.revoked, slices.Contains(a.declared, capability))
	}
	return !slices.Contains(votes, false)
}

func (n *naive) effective(id string) []string {
	set := []string{}
	for _, capability := range naiveCapabilities {
		if n.holds(id, capability) {
			set = append(set, capability)
		}
	}
	return set
}

// last is the last thing that happened to a record, if anything did.
func (n *naive) last(owner, name string) *naiveRecord {
	for _, r := range slices.Backward(n.records) {
		if r.owner == owner && r.name == name {
			return &r
		}
	}
	return nil
}

// read says what reading a name, or one owner's record, must come to.
func (n *naive) read(reader, owner, name string) (code reason.Code, of string) {
	lineage := n.ancestors(reader)
	if !n.holds(reader, "memory.read") {
		return reason.CapabilityNotInherited, ""
	}
	type candidate struct {
		level   int
		visible bool
		record  naiveRecord
	}
	var found []candidate
	for _, r := range n.records { // every one, then what is not the last of its name goes
		level := slices.IndexFunc(lineage, func(a naiveAgent) bool { return a.id == r.owner })
		last := n.last(r.owner, r.name)
		if r.name != name || owner != "" && r.owner != owner || last.deleted || last.revision != r.revision || owner == "" && level < 0 {
			continue
		}
		visible := level == 0 ||
			level > 0 && r.class != "secret" && (r.visibility == "descendants" || r.visibility == "children" && level == 1)
		found = append(found, candidate{level, visible, r})
	}
	slices.SortFunc(found, func(a, b candidate) int { return a.level - b.level })
	if len(found) == 0 {
		return reason.RecordNotFound, ""
	}
	seen := slices.IndexFunc(found, func(c candidate) bool { return c.visible })
	switch {
	case owner != "" && seen < 0 && found[0].record.class == "secret":
		return reason.GrantRequired, owner
	case seen < 0:
		return reason.NotVisibleFrom, found[0].record.owner
	case owner == "" && naiveClass(name) == "mandatory":
		return reason.CombinedFrom, found[seen].record.owner
	}
	return reason.VisibleFrom, found[seen].record.owner
}

// combined is true unless any record of the lineage says otherwise.
func (n *naive) combined(reader, name string) bool {
	for _, a := range n.ancestors(reader) {
		if r := n.last(a.id, name); r != nil && !r.deleted && r.value != "true" {
			return false
		}
	}
	return true
}

var (
	naiveCapabilities = []string{"memory.read", "memory.write", "agent.register", "x.one", "x.two", "x.three"}
	naiveNames        = []string{"note.a", "note.b", "rule.a", "secret.a"}
)

// history is one random life of a ledger, followed by the naive model.
type history struct {
	log    *tinyLog
	model  naive
	agents []string
	serial int
	watch  func(t *rapid.T, h *history, p *Proposal, o *Outcome, before map[string][]string)
}

func newHistory(t *rapid.T) *history {
	h := &history{log: newTinyLog(t)}
	h.control(t, reason.ControlDone, "apply", object{"documents": []string{naivePolicy("wide")}})
	for range 2 {
		h.control(t, reason.Registered, "agent.register", object{
			"agent_id": h.newID(), "capabilities": naiveCapabilities, "public_key": publicKey(h.agents[len(h.agents)-1]),
		})
	}
	return h
}

func naivePolicy(version string) string {
	return "apiVersion: ledgerd/v1\nkind: Policy\nversion: " + version +
		"\nenvironment: [" + strings.Join(naivePolicies[version], ", ") + "]\n" +
		"actions: {x.one: {}, x.two: {}, x.three: {}}\n" +
		"namespaces: {rule: {class: mandatory, combine: all_true}, secret: {class: secret}}\n" +
		"limits: {tree_depth: 5, children: 4}\n"
}

func (h *history) newID() string {
	h.serial++
	id := fmt.Sprint("a", h.serial)
	h.agents = append(h.agents, id)
	return id
}

// ask has a request judged, teaches the model what followed, and shows both to
// the watcher.
func (h *history) ask(t *rapid.T, lane wire.Lane, who, operation string, request object) *Outcome {
	before := h.effective()
	r, code := wire.Decode(lane, operation, []byte(toJSON(request)))
	if code != "" {
		t.Fatalf("%s: %s", operation, code)
	}
	p := &Proposal{Lane: lane, Subject: who, Operation: operation, Request: r}
	o := h.log.submit(p)
	if o.Retry != 0 {
		return o
	}
	for _, effect := range o.Effects {
		value := string(effect.Open)
		h.model.learn(effect.Body, value)
	}
	if h.watch != nil {
		h.watch(t, h, p, o, before)
	}
	return o
}

func (h *history) control(t *rapid.T, want reason.Code, operation string, request object) {
	if o := h.ask(t, wire.Control, AdminID, operation, request); o.Decision.Reason != string(want) {
		t.Fatalf("%s: %+v", operation, o.Decision)
	}
}

func (h *history) effective() map[string][]string {
	sets := map[string][]string{}
	for _, id := range h.log.state.AgentIDs() {
		sets[id] = append([]string{}, h.log.state.Effective(h.log.state.Agent(id))...)
	}
	return sets
}

func someCapabilities(t *rapid.T) []string {
	return rapid.SliceOfDistinct(rapid.SampledFrom(naiveCapabilities), func(s string) string { return s }).Draw(t, "capabilities")
}

func (h *history) someone(t *rapid.T) string { return rapid.SampledFrom(h.agents).Draw(t, "agent") }

// actions are the steps of a history: whatever agents and admins can do, with
// arguments that are right as often as not.
func (h *history) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"child": func(t *rapid.T) {
			parent, id := h.someone(t), fmt.Sprint("a", h.serial+1)
			h.registered(h.ask(t, wire.Propose, parent, "agent.register",
				object{"agent_id": id, "capabilities": someCapabilities(t), "public_key": publicKey(id)}))
		},
		"register": func(t *rapid.T) {
			parent, id := h.someone(t), fmt.Sprint("a", h.serial+1)
			h.registered(h.ask(t, wire.Control, AdminID, "agent.register",
				object{"agent_id": id, "parent_id": parent, "capabilities": someCapabilities(t), "public_key": publicKey(id)}))
		},
		"update": func(t *rapid.T) {
			a := h.log.state.Agent(h.someone(t))
			parent := ""
			if a.Parent != nil {
				parent = "\nparent: " + a.Parent.ID
			}
			h.ask(t, wire.Control, AdminID, "apply", object{"documents": []string{
				"kind: Agent\nid: " + a.ID + parent + "\ncapabilities: [" + strings.Join(someCapabilities(t), ", ") + "]\n",
			}})
		},
		"revoke": func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "seldom") == 0 {
				h.ask(t, wire.Control, AdminID, "agent.revoke", object{"agent_id": h.someone(t)})
			}
		},
		"narrow": func(t *rapid.T) {
			if rapid.Bool().Draw(t, "all") {
				h.ask(t, wire.Control, AdminID, "environment.set", object{"capabilities": naiveCapabilities})
			} else {
				h.ask(t, wire.Control, AdminID, "environment.set", object{"capabilities": someCapabilities(t)})
			}
		},
		"policy": func(t *rapid.T) {
			version := rapid.SampledFrom(slices.Sorted(maps.Keys(naivePolicies))).Draw(t, "version")
			h.ask(t, wire.Control, AdminID, "apply", object{"documents": []string{naivePolicy(version)}})
		},
		"write":  h.write,
		"write2": h.write,
		"delete": func(t *rapid.T) {
			who, request := h.record(t)
			delete(request, "visibility")
			if request["expected_revision"] == nil {
				request["expected_revision"] = 1
			}
			h.ask(t, wire.Propose, who, "memory.delete", request)
		},
		"load": func(t *rapid.T) {
			_, request := h.record(t)
			delete(request, "expected_revision")
			request["value"] = h.value(t)
			h.ask(t, wire.Control, AdminID, "memory.load", request)
		},
		"read":  h.read,
		"read2": h.read,
		"authorize": func(t *rapid.T) {
			h.ask(t, wire.Propose, h.someone(t), "action.authorize",
				object{"action": rapid.SampledFrom(append(naiveCapabilities, "x.four")).Draw(t, "action")})
		},
		"sop": func(t *rapid.T) {
			var steps []any
			for i, action := range rapid.SliceOfN(rapid.SampledFrom([]string{"x.one", "x.two", "x.four"}), 1, 3).Draw(t, "actions") {
				steps = append(steps, object{"step_id": fmt.Sprint(i), "action": action})
			}
			h.ask(t, wire.Propose, h.someone(t), "sop.validate", object{"sop": object{"sop_id": "s", "version": 1, "steps": steps}})
		},
	}
}

func (h *history) registered(o *Outcome) {
	if o.Decision.Allowed {
		h.newID()
	}
}

// record is who touches which record, mostly its own, mostly at its revision.
func (h *history) record(t *rapid.T) (who string, request object) {
	owner := h.someone(t)
	who = owner
	if rapid.IntRange(0, 4).Draw(t, "other") == 0 {
		who = h.someone(t)
	}
	name := rapid.SampledFrom(naiveNames).Draw(t, "name")
	namespace, key, _ := strings.Cut(name, ".")
	request = object{"owner_agent_id": owner, "namespace": namespace, "key": key}
	if visibility := rapid.SampledFrom([]string{"", "private", "children", "descendants"}).Draw(t, "visibility"); visibility != "" {
		request["visibility"] = visibility
	}
	revision := uint64(rapid.IntRange(0, 3).Draw(t, "revision"))
	if last := h.model.last(owner, name); last != nil && !last.deleted && rapid.IntRange(0, 3).Draw(t, "right") > 0 {
		revision = last.revision
	}
	if revision > 0 {
		request["expected_revision"] = revision
	}
	return who, request
}

func (h *history) value(t *rapid.T) any {
	return rapid.SampledFrom([]any{true, false, true, "true", 1}).Draw(t, "value")
}

func (h *history) write(t *rapid.T) {
	who, request := h.record(t)
	request["value"] = h.value(t)
	h.ask(t, wire.Propose, who, "memory.write", request)
}

func (h *history) read(t *rapid.T) {
	name := rapid.SampledFrom(naiveNames).Draw(t, "name")
	namespace, key, _ := strings.Cut(name, ".")
	request := object{"namespace": namespace, "key": key}
	owner := ""
	if rapid.Bool().Draw(t, "by owner") {
		owner = h.someone(t)
		request["owner_agent_id"] = owner
	}
	h.ask(t, wire.Propose, h.someone(t), "memory.read", request)
}

// histories checks random histories, after every step, and each log at its end.
func histories(t *testing.T, watch func(t *rapid.T, h *history, p *Proposal, o *Outcome, before map[string][]string), invariant func(t *rapid.T, h *history)) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.watch = watch
		actions := h.actions()
		actions[""] = func(t *rapid.T) { invariant(t, h) }
		t.Repeat(actions)
		h.log.verify()
	})
}

func nothing(*rapid.T, *history) {}

// R14: effective(agent) is environment ∩ declared(root) ∩ … ∩ declared(agent),
// empty below anyone revoked, and Holds says the same one by one.
func TestR14_EffectiveIsTheIntersection(t *testing.T) {
	histories(t, nil, func(t *rapid.T, h *history) {
		for _, id := range h.agents {
			a := h.log.state.Agent(id)
			want := h.model.effective(id)
			slices.Sort(want)
			if got := h.log.state.Effective(a); !slices.Equal(got, want) {
				t.Fatalf("effective(%s) is %v, want %v", id, got, want)
			}
			for _, capability := range naiveCapabilities {
				if got, by := h.log.state.Holds(a, capability); got != h.model.holds(id, capability) || got != (by == "") {
					t.Fatalf("%s holds %s: %v by %q", id, capability, got, by)
				}
			}
		}
	})
}

// R15: whatever happened, no child holds what its parent does not.
func TestR15_ChildWithinParent(t *testing.T) {
	histories(t, nil, func(t *rapid.T, h *history) {
		for _, id := range h.agents {
			a := h.log.state.Agent(id)
			if a.Parent != nil && !h.log.state.Effective(a).SubsetOf(h.log.state.Effective(a.Parent)) {
				t.Fatalf("effective(%s) %v, of its parent %v", id, h.log.state.Effective(a), h.log.state.Effective(a.Parent))
			}
		}
	})
}

// R16: nothing that an agent proposes changes what anyone holds; a child it
// makes holds no more than it does itself.
func TestR16_NoProposalWidens(t *testing.T) {
	histories(t, func(t *rapid.T, h *history, p *Proposal, o *Outcome, before map[string][]string) {
		if p.Lane != wire.Propose {
			return
		}
		after := h.effective()
		for id, set := range after {
			old, was := before[id]
			switch {
			case was && !slices.Equal(set, old):
				t.Fatalf("%s by %s: %s held %v, holds %v", p.Operation, p.Subject, id, old, set)
			case !was && (p.Operation != "agent.register" || h.model.agent(id).parent != p.Subject):
				t.Fatalf("%s by %s made %s", p.Operation, p.Subject, id)
			case !was:
				for _, capability := range h.model.agent(id).declared {
					if !slices.Contains(before[p.Subject], capability) {
						t.Fatalf("%s declared %s for its child and holds %v", p.Subject, capability, before[p.Subject])
					}
				}
			}
		}
	}, nothing)
}

// R7, R14: an action is allowed if the policy knows it and the agent holds it,
// a procedure if all its steps are.
func TestR7_ActionsAgainstNaive(t *testing.T) {
	judge := func(h *history, who, action string) reason.Code {
		switch {
		case !slices.Contains([]string{"x.one", "x.two", "x.three", "memory.read", "memory.write"}, action):
			return reason.UnknownAction
		case !h.model.holds(who, action):
			return reason.ActionNotInEffectiveCapabilities
		}
		return reason.ActionAllowed
	}
	histories(t, func(t *rapid.T, h *history, p *Proposal, o *Outcome, _ map[string][]string) {
		if h.model.agent(p.Subject) == nil || h.model.agent(p.Subject).revoked {
			return
		}
		switch r := p.Request.Body.(type) {
		case *wire.ActionAuthorize:
			if want := judge(h, p.Subject, r.Action); o.Decision.Reason != string(want) {
				t.Fatalf("%s %s: %s, want %s", p.Subject, r.Action, o.Decision.Reason, want)
			}
		case *wire.SOPValidate:
			whole := reason.SOPAdmitted
			for _, step := range o.Steps {
				want := judge(h, p.Subject, step.Action)
				if want == reason.ActionAllowed {
					want = reason.StepAllowed
				} else if whole == reason.SOPAdmitted {
					whole = want
				}
				if step.Reason != string(want) {
					t.Fatalf("%s step %s: %s, want %s", p.Subject, step.Action, step.Reason, want)
				}
			}
			if o.Decision.Reason != string(whole) {
				t.Fatalf("the whole: %s, want %s", o.Decision.Reason, whole)
			}
		}
	}, nothing)
}

// R13: a revoked agent gets one answer, and makes nothing happen.
func TestR13_RevokedDoesNothing(t *testing.T) {
	histories(t, func(t *rapid.T, h *history, p *Proposal, o *Outcome, before map[string][]string) {
		if a := h.model.agent(p.Subject); a != nil && a.revoked && (o.Decision.Reason != string(reason.AgentRevoked) || len(o.Effects) > 0) {
			t.Fatalf("%s, revoked, %s: %s", p.Subject, p.Operation, o.Decision.Reason)
		}
	}, nothing)
}

// R21, R22, R30: a read comes to what a second implementation says.
func TestR21_ReadsAgainstNaive(t *testing.T) {
	histories(t, func(t *rapid.T, h *history, p *Proposal, o *Outcome, _ map[string][]string) {
		r, ok := p.Request.Body.(*wire.MemoryRead)
		if !ok || h.model.agent(p.Subject).revoked {
			return
		}
		name := r.Namespace + "." + r.Key
		want, owner := h.model.read(p.Subject, r.Owner, name)
		if o.Decision.Reason != string(want) || o.Decision.Owner != owner {
			t.Fatalf("%s reads %s of %q: %s from %q, want %s from %q", p.Subject, name, r.Owner, o.Decision.Reason, o.Decision.Owner, want, owner)
		}
		if o.Read == nil {
			return
		}
		last := h.model.last(owner, name)
		if got := o.Read.Record; got.Owner != owner || got.Revision != last.revision || got.Visibility != last.visibility {
			t.Fatalf("%s reads %+v, want %+v", p.Subject, got, last)
		}
		if want == reason.CombinedFrom && string(o.Read.Combined) != fmt.Sprint(h.model.combined(p.Subject, name)) {
			t.Fatalf("%s: combined %s", name, o.Read.Combined)
		}
	}, nothing)
}

// R24, R25, R26, R27: only the owner writes and deletes, or an admin loads what
// is not there; each change is the next revision; a visibility not mentioned
// stays.
func TestR24_ChangesAgainstNaive(t *testing.T) {
	histories(t, func(t *rapid.T, h *history, p *Proposal, o *Outcome, _ map[string][]string) {
		for _, effect := range o.Effects {
			var rec events.Record
			deleted := false
			switch b := effect.Body.(type) {
			case *events.MemoryWritten:
				rec = b.Record
			case *events.MemoryDeleted:
				rec, deleted = b.Record, true
			default:
				continue
			}
			if p.Operation != "memory.load" && rec.Owner != p.Subject {
				t.Fatalf("%s changed a record of %s", p.Subject, rec.Owner)
			}
			name := rec.Namespace + "." + rec.Key
			var before *naiveRecord
			changes := uint64(0)
			for _, r := range h.model.records[:len(h.model.records)-1] {
				if r.owner == rec.Owner && r.name == name {
					before, changes = &r, changes+1
				}
			}
			live := before != nil && !before.deleted
			if rec.Revision != changes+1 {
				t.Fatalf("%s:%s revision %d after %d changes", rec.Owner, name, rec.Revision, changes)
			}
			if p.Operation == "memory.load" && live || deleted && !live {
				t.Fatalf("%s of a record that is live: %v", p.Operation, live)
			}
			w, ok := p.Request.Body.(*wire.MemoryWrite)
			if !ok {
				continue
			}
			want := w.Visibility
			if want == "" {
				want = "private"
				if live {
					want = before.visibility
				}
			}
			if live != (w.Revision != 0) || live && w.Revision != before.revision || rec.Visibility != want {
				t.Fatalf("write of %+v onto %+v gave %+v", w, before, rec)
			}
		}
	}, nothing)
}

// R29: a record that a descendant adds never turns a combined false into true,
// for itself or anyone below; only a boolean is ever combined.
func TestR29_DescendantsOnlyTighten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		actions := h.actions()
		combined := func(reader string) string {
			d := h.log.decide(h.log.state, h.mustDecode(t, reader))
			if d.Read != nil {
				return string(d.Read.Combined)
			}
			return d.Decision.Reason
		}
		delete(actions, "policy") // so that everybody can read and write
		delete(actions, "narrow")
		delete(actions, "update")
		delete(actions, "revoke")
		actions["tighten"] = func(t *rapid.T) {
			owner := h.someone(t)
			var below []string
			answers := map[string]string{}
			for _, id := range h.agents {
				if h.log.state.Agent(id).Within(owner) && h.model.last(owner, "rule.a") == nil {
					below = append(below, id)
					answers[id] = combined(id)
				}
			}
			h.ask(t, wire.Propose, owner, "memory.write", object{
				"owner_agent_id": owner, "namespace": "rule", "key": "a", "value": h.value(t), "visibility": "descendants",
			})
			for _, id := range below {
				if after := combined(id); answers[id] == "false" && after != "false" {
					t.Fatalf("a record of %s turned false into %s for %s", owner, after, id)
				}
			}
		}
		t.Repeat(actions)
		h.log.verify()
	})
}

func (h *history) mustDecode(t *rapid.T, reader string) *Proposal {
	r, code := wire.Decode(wire.Propose, "memory.read", []byte(`{"namespace":"rule","key":"a"}`))
	if code != "" {
		t.Fatal(code)
	}
	return &Proposal{Lane: wire.Propose, Subject: reader, Operation: "memory.read", Request: r}
}

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// grant lets one agent read one secret of another.
type grant struct {
	owner, name, to string
	expires         events.Time
	uses            uint64 // 0 for any number
}

// rule is a restriction that an agent has put on itself and all beneath it.
type rule struct{ agent, id, action, text string }

// ruleTexts are the requirements that the simulation knows the meaning of: whether
// arguments meet them, and whether that can be said at all. nil is none.
var ruleTexts = map[string]func(args map[string]any) (meets, said bool){
	"args.n < 3":                func(args map[string]any) (bool, bool) { n, ok := args["n"].(json.Number); return n < "3", ok },
	"has(args.n) && args.n < 3": func(args map[string]any) (bool, bool) { n, ok := args["n"].(json.Number); return ok && n < "3", true },
	"!has(args.path)":           func(args map[string]any) (bool, bool) { _, ok := args["path"]; return !ok, true },
	"args.n <":                  nil,
	"mandatory('rule.k0')":      nil,
}

func (f *fact) readLending(body events.Body) {
	switch b := body.(type) {
	case *events.GrantGiven:
		f.grant = grant{b.Owner, b.Namespace + "." + b.Key, b.To, b.Expires, b.Uses}
	case *events.GrantRevoked:
		f.grant = grant{owner: b.Owner, name: b.Namespace + "." + b.Key, to: b.To}
	case *events.RestrictionAdded:
		f.rule = rule{b.AgentID, b.ID, b.Action, b.Require}
	case *events.RestrictionRemoved:
		f.rule = rule{agent: b.AgentID, id: b.ID}
	}
}

// granted goes over all that was learnt and returns what is left of a grant, nil
// where it is used up, ended or of nothing.
func (m *model) granted(owner, name, to string) *grant {
	var g *grant
	for i := range m.facts {
		f := &m.facts[i]
		same := f.grant.owner == owner && f.grant.name == name && f.grant.to == to
		_, read, _ := strings.Cut(f.decision.resource, ":")
		switch {
		case f.kind == "grant.given" && same:
			given := f.grant
			g = &given
		case g == nil:
		case f.kind == "grant.revoked" && same,
			f.kind == "agent.revoked" && (f.id == owner || f.id == to),
			f.record.deleted && f.record.owner == owner && f.record.name == name:
			g = nil
		case f.decision.reason == "granted_by" && f.decision.subject == to && f.decision.owner == owner && read == name && g.uses > 0:
			if g.uses--; g.uses == 0 {
				g = nil
			}
		}
	}
	if g == nil || g.expires <= m.now || m.live(owner, name) == nil {
		return nil
	}
	return g
}

func (m *model) give(me string, b map[string]any) verdict {
	r, to := m.live(me, nameOf(b)), text(b, "to")
	if r == nil || !m.secret(r) || m.agent(to) == nil || m.agentRevoked(to) || to == me {
		return deny("not_found")
	}
	g := grant{me, nameOf(b), to, m.now + events.Time(number(b, "expires_seconds"))*1_000_000, number(b, "uses")}
	return allow("grant_given", fact{kind: "grant.given", grant: g})
}

func (m *model) takeBack(me string, b map[string]any) verdict {
	if m.granted(me, nameOf(b), text(b, "to")) == nil {
		return deny("not_found")
	}
	return allow("grant_revoked", fact{kind: "grant.revoked", grant: grant{owner: me, name: nameOf(b), to: text(b, "to")}})
}

// rules in force, in the order in which they were added.
func (m *model) rules() (list []rule) {
	for i := range m.facts {
		switch f := &m.facts[i]; f.kind {
		case "restriction.added":
			list = append(list, f.rule)
		case "restriction.removed":
			list = slices.DeleteFunc(list, func(r rule) bool { return r.agent == f.rule.agent && r.id == f.rule.id })
		}
	}
	return list
}

func (m *model) rulesOf(agent string) (list []rule) {
	for _, r := range m.rules() {
		if r.agent == agent {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b rule) int { return strings.Compare(a.id, b.id) })
	return list
}

func (m *model) restrict(r rule) verdict {
	own := m.rulesOf(r.agent)
	for _, old := range own {
		switch {
		case old == r:
			return allow("restriction_added")
		case old.id == r.id:
			return deny("record_exists")
		}
	}
	switch {
	case len(own) >= policy.RestrictionsMax:
		return deny("quota_exceeded")
	case ruleTexts[r.text] == nil || !slices.Contains(m.policy.actions, r.action):
		return deny("policy_invalid")
	}
	return allow("restriction_added", fact{kind: "restriction.added", rule: r})
}

func (m *model) unrestrict(agent, id string) verdict {
	for _, r := range m.rulesOf(agent) {
		if r.id == id {
			return allow("control_done", fact{kind: "restriction.removed", rule: rule{agent: agent, id: id}})
		}
	}
	return deny("not_found")
}

// breaks is the first requirement that arguments do not meet: whose it is, and
// whether it says so; from the root down.
func (m *model) breaks(me, action string, args map[string]any) (reason, owner string) {
	line := m.ancestors(me)
	for _, agent := range slices.Backward(line) {
		for _, r := range m.rulesOf(agent) {
			if r.action != action {
				continue
			}
			switch meets, said := ruleTexts[r.text](args); {
			case !said:
				return "requirement_error", agent
			case !meets:
				return "requirement_failed", agent
			}
		}
	}
	return "", ""
}

// lending is what an agent asks for of grants and restrictions, and of what it
// was granted.
func (w *world) lending(from *actor) (string, object) {
	secret := func() object {
		body := object{"namespace": "secret", "key": "k" + itoa(w.r.IntN(min(w.options.Names, 3)))}
		if w.percent(8) {
			body = w.record(from.id)
			delete(body, "owner_agent_id")
		}
		return body
	}
	switch at := w.r.IntN(100); {
	case at < 20:
		body := secret()
		body["owner_agent_id"], body["value"] = from.id, w.value(nil)
		w.revision(body, 5)
		w.ttl(body)
		return "memory.write", body
	case at < 45:
		body := secret()
		if own := w.model.secretsOf(from.id); len(own) > 0 && w.percent(85) {
			body = split(pick(w, own))
		}
		body["to"], body["expires_seconds"] = w.agentID(nil), pick(w, []int{1, 60, 3600, 86400})
		if w.percent(40) {
			body["uses"] = 1 + w.r.IntN(3)
		}
		return "grant.give", body
	case at < 70:
		body := secret()
		body["owner_agent_id"] = w.agentID(nil)
		for i := range w.model.facts {
			if g := w.model.facts[i].grant; g.to == from.id && w.percent(60) {
				body = split(g.name)
				body["owner_agent_id"] = g.owner
			}
		}
		return "memory.read", body
	case at < 78:
		body := secret()
		body["to"] = w.agentID(nil)
		for i := range w.model.facts {
			if g := w.model.facts[i].grant; g.owner == from.id && w.percent(60) {
				body = split(g.name)
				body["to"] = g.to
			}
		}
		return "grant.revoke", body
	}
	texts := make([]string, 0, len(ruleTexts))
	for text := range ruleTexts {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	action := pick(w, actions)
	if w.percent(10) {
		action = pick(w, []string{"x.four", "memory.read"})
	}
	return "restriction.add", object{"id": "r" + itoa(w.r.IntN(3)), "action": action, "require": pick(w, texts)}
}

// secretsOf lists an agent's secrets that are there.
func (m *model) secretsOf(agent string) (names []string) {
	for i := range m.facts {
		r := &m.facts[i].record
		if r.owner != agent || slices.Contains(names, r.name) {
			continue
		}
		if r := m.live(agent, r.name); r != nil && m.secret(r) {
			names = append(names, r.name)
		}
	}
	return names
}

func split(name string) object {
	dot := strings.LastIndexByte(name, '.')
	return object{"namespace": name[:dot], "key": name[dot+1:]}
}

// compareLending holds the grants and restrictions of the state against the model.
func (w *world) compareLending(s *projection.State) error {
	m := w.model
	m.now = max(m.now, s.Time)
	want := map[grant]bool{}
	for i := range m.facts {
		if g := m.facts[i].grant; m.facts[i].kind == "grant.given" {
			if left := m.granted(g.owner, g.name, g.to); left != nil {
				want[*left] = true
			}
		}
	}
	list := s.Grants(m.now)
	for _, g := range list {
		is := grant{g.Owner, g.Namespace + "." + g.Key, g.To, g.Expires, 0}
		if g.Counted {
			is.uses = g.Uses
		}
		if !want[is] {
			return fmt.Errorf("a grant %+v, want %v", is, want)
		}
	}
	if len(list) != len(want) {
		return fmt.Errorf("grants %v, want %v", list, want)
	}
	rules := m.rules()
	var err error
	n := 0
	s.Restricted(func(a *projection.Agent, r policy.Restriction) {
		if n++; !slices.Contains(rules, rule{a.ID, r.ID, r.Action, r.Text}) {
			err = fmt.Errorf("a restriction %+v of %s, want %v", r, a.ID, rules)
		}
	})
	if err == nil && n != len(rules) {
		err = fmt.Errorf("%d restrictions, want %v", n, rules)
	}
	return err
}

package epoch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
)

// request is one control request that states something of the old state in the
// new log.
type request struct {
	operation string
	body      any
	about     string
	count     *int // goes up where it is done
	may       bool // fail, and be left; all else must not
}

// planner puts together what is carried over.
type planner struct {
	old      *ledger.Old
	s        *projection.State
	report   *Report
	requests []request
}

type object = map[string]any

// plan lists the requests that state the old state, in the order in which they
// can be judged. The admin is there already.
func plan(old *ledger.Old, admin string, r *Report) ([]request, error) {
	p := &planner{old: old, s: old.State, report: r}
	if p.s.Policy != nil {
		p.add("apply", object{"documents": []string{string(p.s.Document())}}, "policy "+p.s.Policy.Version)
	}
	if len(p.s.Signers) > 0 {
		p.add("signers.set", object{"keys": p.s.Signers}, "the signers of policies")
	}
	if err := p.agents(); err != nil {
		return nil, err
	}
	p.principals(admin)
	p.takenAway()
	for _, res := range p.s.Resources() {
		body := object{"id": res.ID, "classification": res.Classification}
		p.optional(body, "owner", res.Owner)
		if len(res.Tags) > 0 {
			body["tags"] = res.Tags
		}
		p.requests = append(p.requests, request{"resource.set", body, "resource " + res.ID, &r.Resources, false})
	}
	if err := p.records(); err != nil {
		return nil, err
	}
	p.holds()
	p.revocations(admin)
	p.leave()
	return p.requests, nil
}

func (p *planner) add(operation string, body object, about string) {
	p.requests = append(p.requests, request{operation: operation, body: body, about: about})
}

func (p *planner) optional(body object, name, value string) {
	if value != "" {
		body[name] = value
	}
}

// known leaves out capabilities that the policy does not know any more: nobody
// could use them.
func (p *planner) known(what string, set policy.Set) []string {
	unknown := policy.CheckCapabilities(p.s.Policy, set)
	kept := []string{}
	for _, c := range set {
		if slices.Contains(unknown, c) {
			p.report.left("capability %s of %s: the policy knows none of that name", c, what)
			continue
		}
		kept = append(kept, c)
	}
	return kept
}

// agents registers parents before children.
func (p *planner) agents() error {
	ids := p.s.AgentIDs()
	slices.SortStableFunc(ids, func(a, b string) int { return p.s.Agent(a).Depth - p.s.Agent(b).Depth })
	for _, id := range ids {
		a := p.s.Agent(id)
		body := object{"capabilities": p.known(id, a.Declared), "public_key": a.PublicKey}
		if use := p.known(id, a.Use); len(use) > 0 {
			body["use"] = use
		} else if len(a.Use) > 0 {
			return fmt.Errorf("%w: of what %s may use the policy knows nothing any more; update it before", ErrUsage, id)
		}
		if len(a.Writes) > 0 {
			body["writes"] = a.Writes
		}
		parent := ""
		if a.Parent != nil {
			parent = a.Parent.ID
		}
		if len(a.Restrictions) == 0 {
			body["agent_id"] = id
			p.optional(body, "parent_id", parent)
			p.requests = append(p.requests, request{"agent.register", body, "agent " + id, &p.report.Agents, false})
			continue
		}
		text, err := document(body, id, parent, a.Restrictions)
		if err != nil {
			return err
		}
		p.requests = append(p.requests, request{"apply", object{"documents": []string{string(p.s.Document()), text}}, "agent " + id, &p.report.Agents, false})
	}
	return nil
}

// document is an agent's document, for what a registration cannot say.
func document(body object, id, parent string, restrictions []policy.Restriction) (string, error) {
	d := maps.Clone(body)
	d["apiVersion"], d["kind"], d["id"] = "ledgerd/v1", "Agent", id
	if parent != "" {
		d["parent"] = parent
	}
	list := []object{}
	for _, r := range restrictions {
		list = append(list, object{"id": r.ID, "action": r.Action, "require": r.Text})
	}
	d["restrictions"] = list
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(d)
	return b.String(), err
}

func (p *planner) principals(admin string) {
	for _, id := range p.s.PrincipalIDs() {
		if id == admin {
			continue
		}
		f := p.s.Principal(id)
		body := object{"id": id, "role": f.Role, "public_key": f.PublicKey}
		p.optional(body, "root", f.Root)
		if len(f.Actions) > 0 {
			body["actions"] = f.Actions
		}
		if len(f.Groups) > 0 {
			body["groups"] = f.Groups
		}
		p.requests = append(p.requests, request{"principal.register", body, "principal " + id, &p.report.Principals, false})
	}
}

// takenAway carries over the narrowed environment and the emergency denies.
func (p *planner) takenAway() {
	if p.s.IsNarrowed {
		p.add("environment.set", object{"capabilities": p.known("the environment", p.s.Narrowed)}, "the narrowed environment")
	}
	for _, d := range p.s.Denies() {
		body := object{"reason": fmt.Sprintf("in force in %s as epoch %d", p.s.Origin, d.Epoch)}
		if d.Scope == events.ScopeAll {
			body["ledger"] = true
		} else {
			body["agent_id"] = d.Scope
		}
		if d.All {
			body["all"] = true
		} else {
			body["capabilities"] = d.Capabilities
		}
		p.add("emergency.deny", body, fmt.Sprintf("emergency deny %d", d.Epoch))
	}
}

// records carries over what is remembered, as it stands at the end of the old
// log, without what has an end of its own.
func (p *planner) records() error {
	var list []*projection.Record
	p.s.Records(p.s.Time, func(r *projection.Record) bool {
		list = append(list, r)
		return true
	})
	slices.SortFunc(list, func(a, b *projection.Record) int { return strings.Compare(name(a), name(b)) })
	for _, r := range list {
		if r.Expires != 0 || r.RunID != "" {
			p.report.left("record %s: it has an end of its own", name(r))
			continue
		}
		if now := p.s.Policy.Class(r.Namespace, r.Key); now != r.Class {
			p.report.left("record %s: written as %s, by the policy in force it would become %s", name(r), r.Class, now)
			continue
		}
		value, err := p.old.Value(r)
		if errors.Is(err, ledger.ErrLocked) || errors.Is(err, ledger.ErrPayload) {
			p.report.left("record %s: %v", name(r), err)
			if errors.Is(err, ledger.ErrLocked) {
				p.report.sealed++
			}
			continue
		}
		if err != nil {
			return err
		}
		p.requests = append(p.requests, request{"memory.load", object{
			"owner_agent_id": r.Owner, "namespace": r.Namespace, "key": r.Key, "visibility": r.Visibility, "value": json.RawMessage(value),
		}, "record " + name(r), &p.report.Records, r.Mandatory == nil})
	}
	return nil
}

func name(r *projection.Record) string { return r.Owner + ":" + r.Namespace + "." + r.Key }

// holds carries over what is held from erasure. Positions are those of the old
// log, which keeps what lies beside them.
func (p *planner) holds() {
	for _, h := range p.s.HoldList() {
		switch {
		case h.Seq != 0:
			p.report.left("the hold on event %d: it holds in the old log", h.Seq)
		case h.Namespace != "":
			body := object{"owner_agent_id": h.Owner, "namespace": h.Namespace, "key": h.Key}
			p.requests = append(p.requests, request{"hold.place", body, "hold on " + h.Owner + ":" + h.Namespace + "." + h.Key, nil, true})
		default:
			p.add("hold.place", object{"agent_id": h.Owner}, "hold on "+h.Owner)
		}
	}
}

// revocations come last: nothing can be stated of the revoked.
func (p *planner) revocations(admin string) {
	for _, id := range p.s.AgentIDs() {
		if p.s.Agent(id).Revoked {
			p.add("agent.revoke", object{"agent_id": id}, "revocation of "+id)
		}
	}
	for _, id := range p.s.PrincipalIDs() {
		if p.s.Principal(id).Revoked && id != admin {
			p.add("principal.revoke", object{"id": id}, "revocation of "+id)
		}
	}
}

// leave says what is not carried over.
func (p *planner) leave() {
	if n := p.s.OpenCount(); n > 0 {
		p.report.left("%d open runs: what their effects came to has to be looked up; resolve by hand", n)
	}
	if n := len(p.s.Grants(p.s.Time)); n > 0 {
		p.report.left("%d grants: owners give them anew", n)
	}
	p.report.left("operation ids: each counts anew, so that a retry of an operation of the old epoch would act again")
	p.report.left("revisions: each record begins at 1")
}

// admin chooses the first admin of the new log. After a compromise its key is a
// new one.
func (o *Options) admin(s *projection.State) (id, key string, err error) {
	for _, at := range append([]string{ledger.AdminID}, s.PrincipalIDs()...) {
		if p := s.Principal(at); p != nil && p.Role == "admin" && !p.Revoked {
			if o.Reason == "compromise" {
				return p.ID, "", nil
			}
			return p.ID, p.PublicKey, nil
		}
	}
	return "", "", fmt.Errorf("%w: the old log has no admin", ErrDamage)
}

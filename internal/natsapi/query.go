package natsapi

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// query answers a question. Queries leave no event, return no memory value,
// and tell an agent no more than its replies did. One whose reply is not under
// its asker's own inbox is dropped.
func (a *api) query(m request) {
	s, reply, ok := a.parse(m, wire.Query)
	if !ok || reply != ownReply {
		return
	}
	if !a.rates.take(s.ID, weight(m)) {
		a.refuse(m, s.ID, reply, reason.RateLimited)
		return
	}
	q, code := wire.DecodeQuery(s.Name, m.data)
	if code == "" && len(q.Request) > explainBytesMax {
		code = reason.RequestTooLarge
	}
	if code == "" && q.Operation == "restriction.add" && !a.rates.take(s.ID, compileWeight) {
		code = reason.RateLimited
	}
	if code != "" {
		respond(m, wire.Error(code), code)
		return
	}
	look := func(state *projection.State) func() []byte {
		asker, code := newAsker(state, s.ID)
		if code == "" {
			code = asker.mayAsk(s.Name)
		}
		if code != "" {
			return func() []byte { return wire.Error(code) }
		}
		return a.answer(state, asker, s.Name, q)
	}
	answer := func(out ledger.Answer) {
		if out.Refused {
			a.refuse(m, s.ID, reply, out.Reason)
			return
		}
		respondQuery(m, out)
	}
	if code := a.ledger.Ask(s.ID, look, answer); code != "" {
		a.refuse(m, s.ID, reply, code)
	}
}

// explainBytesMax bounds a request to be explained: it is judged in the
// writer's goroutine, and nothing of it is kept.
const explainBytesMax = 16 << 10

// respondQuery runs apart from the ledger's answers: a proof or a page of
// events takes its time.
func respondQuery(m request, out ledger.Answer) {
	if out.Reason != "" {
		respond(m, out.Reply, out.Reason)
		return
	}
	code := refusalIn(out.Reply)
	respond(m, out.Reply, code)
}

// refusalIn is the code of an error reply, empty for any other.
func refusalIn(reply []byte) reason.Code {
	prefix := `{"type":"` + wire.ErrorType + `","reason_code":"`
	rest, ok := strings.CutPrefix(string(reply[:min(len(reply), 256)]), prefix)
	if !ok {
		return ""
	}
	code, _, _ := strings.Cut(rest, `"`)
	return reason.Code(code)
}

// asker is who asks and what of the ledger is open to it.
type asker struct {
	id   string
	role string
	root string // an observer's subtree; an agent's own id; empty for the whole ledger
}

func newAsker(s *projection.State, id string) (asker, reason.Code) {
	if a := s.Agent(id); a != nil {
		if a.Revoked {
			return asker{}, reason.AgentRevoked
		}
		return asker{id, RoleAgent, id}, ""
	}
	p := s.Principal(id)
	switch {
	case p == nil:
		return asker{}, reason.UnknownAgent
	case p.Revoked:
		return asker{}, reason.AgentRevoked
	}
	return asker{id, p.Role, p.Root}, ""
}

// mayAsk is the table of who may ask what.
func (w asker) mayAsk(what string) reason.Code {
	switch w.role {
	case RoleAdmin, RoleObserver, RoleAuditor:
		return ""
	case RoleAgent:
		if slices.Contains([]string{"capabilities", "explain", "run", "decision", "proof", "checkpoint", "consistency", "grants", "runs"}, what) {
			return ""
		}
	case RoleApprover:
		if what == "run" || what == "decision" || what == "checkpoint" || what == "consistency" {
			return ""
		}
	case RoleHandler, RoleRegistrar:
		if what == "checkpoint" || what == "consistency" {
			return ""
		}
	}
	return reason.NotPermittedForRole
}

// full reports whether w is told what the log says, not what the sender was.
func (w asker) full() bool { return w.role != RoleAgent && w.role != RoleApprover }

// sees reports whether agent's doings are open to w.
func (w asker) sees(s *projection.State, agent string) bool {
	if w.root == "" {
		return true
	}
	a := s.Agent(agent)
	return a != nil && a.Within(w.root)
}

func refusal(code reason.Code) func() []byte {
	return func() []byte { return wire.Error(code) }
}

// answer runs in the writer's goroutine: it takes from the state what it
// needs and leaves the rest to the returned function.
func (a *api) answer(s *projection.State, w asker, what string, q *wire.QueryRequest) func() []byte {
	switch what {
	case "capabilities":
		return a.capabilities(s, w, q)
	case "explain":
		return a.explain(s, w, q)
	case "decision":
		return a.decision(s, w, q)
	case "run":
		return a.run(s, w, q)
	case "agents":
		return agents(s, w, q)
	case "principals":
		return principals(s, w, q)
	case "policy":
		return a.policy(w, q)
	case "history":
		return a.history(s, w, q)
	case "resources":
		return resources(s, w, q)
	case "denies":
		return denies(s, w)
	case "grants":
		return grants(s, w, q, a.ledger.Now())
	case "runs":
		return runs(s, w, q)
	case "holds":
		return holds(s, w, q)
	case "payloads":
		return a.payloads(s, w, q)
	case "events":
		return a.events(s, w, q)
	case "proof":
		return a.proof(s, w, q)
	case "consistency":
		return a.consistency(q)
	case "rotations":
		return a.rotations(s, w)
	case "checkpoint":
		return func() []byte { return wire.Encode(wire.Checkpoint{Checkpoint: string(a.ledger.Checkpoint())}) }
	}
	return refusal(reason.UnsupportedOperation)
}

func (a *api) capabilities(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	id := q.AgentID
	if id == "" {
		id = w.id
	}
	if !w.sees(s, id) || s.Agent(id) == nil {
		return refusal(reason.NotFound)
	}
	if q.At == 0 || q.At == s.Seq {
		out := capabilitiesOf(s, w, id)
		return func() []byte { return wire.Encode(out) }
	}
	if !w.full() {
		return refusal(reason.NotPermittedForRole) // it folds the whole log
	}
	return func() []byte { return a.capabilitiesAt(w, id, q.At) }
}

func (a *api) capabilitiesAt(w asker, id string, at uint64) []byte {
	return a.folding(func(ctx context.Context) []byte {
		s, err := a.ledger.StateAt(ctx, at)
		if err != nil || s.Agent(id) == nil {
			return unread(err)
		}
		return wire.Encode(capabilitiesOf(s, w, id))
	})
}

func capabilitiesOf(s *projection.State, w asker, id string) wire.Capabilities {
	agent := s.Agent(id)
	out := wire.Capabilities{
		AgentID: id, Declared: list(agent.Declared), Use: list(agent.Use), Writes: agent.Writes,
		Effective: list(s.Effective(agent)), Removed: []wire.Removed{}, Restrictions: restrictionsOn(s, w, agent), Seq: s.Seq,
	}
	if len(agent.Use) == 0 {
		out.Use = out.Declared
	}
	for _, capability := range agent.Declared {
		if ok, by := s.Holds(agent, capability); !ok {
			out.Removed = append(out.Removed, wire.Removed{Capability: capability, By: by})
		}
	}
	return out
}

// list is a slice that JSON writes as [] when it is empty.
func list(s []string) []string { return append([]string{}, s...) }

func (a *api) decision(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	seq := q.Seq
	if seq == 0 {
		id := q.AgentID
		if id == "" {
			id = w.id
		}
		op, ok := s.Operation(id, q.OperationID)
		if !ok || id != w.id && !w.sees(s, id) {
			return refusal(reason.NotFound)
		}
		seq = op.Seq
	}
	run := ledger.RunCopy(s.RunAt(seq))
	return a.recorded(s, w, seq, func(seq uint64, d *events.Decision, full bool) []byte {
		reply, err := a.ledger.Recorded(seq, full, run)
		if err != nil || q.Seq == 0 && d.OperationID != q.OperationID { // the index can hit by chance
			return wire.Error(reason.NotFound)
		}
		return reply
	})
}

// run shows how a run stands: to its own agent with the results of its effects,
// to others who may see the agent without.
func (a *api) run(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	run := ledger.RunCopy(s.Run(q.RunID))
	if run == nil || run.Agent != w.id && !w.sees(s, run.Agent) {
		return refusal(reason.NotFound)
	}
	own := run.Agent == w.id
	if own && !a.rates.take(w.id, resultsShown(run, q.StepID)) {
		return refusal(reason.RateLimited)
	}
	seq := s.Seq
	return func() []byte { return a.ledger.RunAnswer(run, own, q.StepID, seq) }
}

// resultsShown is how many ended steps an answer shows, the results of which are
// read from the store. Each costs as an event does.
func resultsShown(run *projection.Run, only string) int {
	n := 0
	for i := range run.Steps {
		if run.Steps[i].Ended != 0 && (only == "" || run.Steps[i].ID == only) {
			n++
		}
	}
	return n
}

// recorded shows a decision in the log to w, if its subject's doings are open
// to w.
func (a *api) recorded(s *projection.State, w asker, seq uint64, show func(uint64, *events.Decision, bool) []byte) func() []byte {
	d := a.decided(s, w, seq)
	if d == nil {
		return refusal(reason.NotFound)
	}
	return func() []byte { return show(seq, d, w.full()) }
}

// decided is the decision at seq, or nil if there is none that is open to w.
func (a *api) decided(s *projection.State, w asker, seq uint64) *events.Decision {
	e, err := a.durable(seq)
	d, ok := e.Body.(*events.Decision)
	if err != nil || !ok || d.Subject != w.id && !w.sees(s, d.Subject) {
		return nil
	}
	return d
}

func (a *api) durable(seq uint64) (events.Event, error) {
	b, err := a.ledger.Event(seq)
	if err != nil {
		return events.Event{}, err
	}
	return events.Parse(b)
}

// subtree is the ids open to an asker; nil is everyone.
type subtree map[string]bool

func (t subtree) has(id string) bool { return t == nil || t[id] }

func subtreeOf(s *projection.State, w asker) subtree {
	if w.root == "" {
		return nil
	}
	t := subtree{}
	for _, id := range s.AgentIDs() {
		if s.Agent(id).Within(w.root) {
			t[id] = true
		}
	}
	return t
}

func agents(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	out := wire.Agents{Agents: []wire.Agent{}, Seq: s.Seq}
	size := 0
	for _, id := range s.AgentIDs() {
		a := s.Agent(id)
		if id <= q.After || q.Root != "" && !a.Within(q.Root) || !w.sees(s, id) {
			continue
		}
		entry := wire.Agent{
			AgentID: id, Depth: a.Depth, Capabilities: list(a.Declared), Effective: list(s.Effective(a)),
			Use: a.Use, Writes: a.Writes, Restrictions: restrictionsOf(a), PublicKey: a.PublicKey, Revoked: a.Revoked,
		}
		if a.Parent != nil {
			entry.ParentID = a.Parent.ID
		}
		size += len(wire.Encode(entry)) + 1
		if n := len(out.Agents); size > replyRoom || q.Limit > 0 && uint64(n) == q.Limit {
			out.Next = out.Agents[n-1].AgentID
			break
		}
		out.Agents = append(out.Agents, entry)
	}
	return func() []byte { return wire.Encode(out) }
}

// principals lists those who are no agents; an observer of one subtree sees
// none of them.
func principals(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	if w.root != "" {
		return refusal(reason.NotPermittedForRole)
	}
	out := wire.Principals{Principals: []wire.Principal{}, Seq: s.Seq}
	size := 0
	for _, id := range s.PrincipalIDs() {
		if id <= q.After {
			continue
		}
		p := s.Principal(id)
		entry := wire.Principal{ID: id, Role: p.Role, PublicKey: p.PublicKey, Actions: p.Actions, Groups: p.Groups, Root: p.Root, Revoked: p.Revoked}
		size += len(wire.Encode(entry)) + 1
		if n := len(out.Principals); size > replyRoom || q.Limit > 0 && uint64(n) == q.Limit {
			out.Next = out.Principals[n-1].ID
			break
		}
		out.Principals = append(out.Principals, entry)
	}
	return func() []byte { return wire.Encode(out) }
}

// replyRoom leaves space for what stands around a list in a reply.
const replyRoom = events.ReplyBytesMax - 4096

var errPageFull = errors.New("page full")

func (a *api) events(s *projection.State, w asker, q *wire.QueryRequest) func() []byte {
	subtree := subtreeOf(s, w)
	return func() []byte {
		out := wire.Events{Events: []string{}, Next: q.From, Head: a.ledger.Durable()}
		size := 0
		err := a.ledger.Events(q.From, min(out.Head, q.From+eventsScanMax), func(seq uint64, b []byte) error {
			e, err := events.Parse(b)
			if err != nil {
				return err
			}
			category, _, _ := strings.Cut(string(e.Body.Type()), ".")
			if subtree.has(e.Agent) && (q.Agent == "" || q.Agent == e.Agent) && (q.Category == "" || q.Category == category) {
				size += len(wire.Encode(string(b))) + 1
				if size > replyRoom || uint64(len(out.Events)) == q.Limit {
					return errPageFull
				}
				out.Events = append(out.Events, string(b))
			}
			out.Next = seq + 1
			return nil
		})
		if err != nil && !errors.Is(err, errPageFull) && !errors.Is(err, store.ErrNotFound) {
			return wire.Error(reason.NotKnownCommitted)
		}
		return wire.Encode(out)
	}
}

const eventsScanMax = 10_000 // events looked at for one page; next tells where to go on

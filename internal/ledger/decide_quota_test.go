package ledger

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func quotaDocument(version, limits string) string {
	return "apiVersion: ledgerd/v1\nkind: Policy\nversion: " + version + "\nenvironment: [memory.read, memory.write, agent.register, art.save]\nactions: {art.save: {}}\nlimits: {" + limits + "}\n"
}

// newQuotaLab has the trees top → low → deep and other.
func newQuotaLab(t rapid.TB, limits string) *tinyLog {
	l := newTinyLog(t)
	documents := []string{quotaDocument("v", limits)}
	for _, a := range [][2]string{{"top", ""}, {"low", "parent: top\n"}, {"deep", "parent: low\n"}, {"other", ""}} {
		documents = append(documents, "kind: Agent\nid: "+a[0]+"\n"+a[1]+"capabilities: [memory.read, memory.write, agent.register, art.save]\npublic_key: "+publicKey(a[0])+"\n")
	}
	if o := l.ask(wire.Control, AdminID, "apply", toJSON(object{"documents": documents})); !o.Decision.Allowed {
		t.Fatalf("%s %v", o.Decision.Reason, o.Faults)
	}
	return l
}

func (l *tinyLog) put(who, key string, more object) *events.Decision {
	request := object{"owner_agent_id": who, "namespace": "notes", "key": key, "value": 1}
	for k, v := range more {
		request[k] = v
	}
	return l.ask(wire.Propose, who, "memory.write", toJSON(request)).Decision
}

func (l *tinyLog) wants(d *events.Decision, code reason.Code, owner string) {
	l.t.Helper()
	if d.Reason != string(code) || d.Owner != owner {
		l.t.Fatalf("%s by %s: %s %q, want %s %q", d.Operation, d.Subject, d.Reason, d.Owner, code, owner)
	}
}

// R66: records are limited for each agent and for each tree; a denial says whose
// quota it is, and what is deleted or gone makes room.
func TestR66_QuotasOfRecords(t *testing.T) {
	l := newQuotaLab(t, "records: 2, tree_records: 3")
	l.wants(l.put("top", "a", nil), reason.OwnerWrite, "")
	l.wants(l.put("top", "b", object{"ttl_seconds": 5}), reason.OwnerWrite, "")
	l.wants(l.put("top", "c", nil), reason.QuotaExceeded, "top")
	l.wants(l.put("top", "a", object{"expected_revision": 1}), reason.OwnerWrite, "") // a change takes no place
	l.wants(l.put("top", "c", object{"expected_revision": 1}), reason.RevisionConflict, "")
	l.wants(l.put("deep", "a", nil), reason.OwnerWrite, "")
	l.wants(l.put("low", "a", nil), reason.QuotaExceeded, "top") // the tree's, which is its root's
	l.wants(l.put("other", "a", nil), reason.OwnerWrite, "")
	if l.state.Record("top", "notes", "c") != nil || l.state.Record("low", "notes", "a") != nil {
		t.Error("refused, and written")
	}
	gone := l.state.Record("top", "notes", "b")
	l.ahead += gone.Expires - l.now()
	l.wants(l.put("top", "b", nil), reason.OwnerWrite, "") // in the place of its own that is gone
	l.wants(l.put("low", "a", nil), reason.QuotaExceeded, "top")
	l.wants(l.ask(wire.Propose, "deep", "memory.delete", `{"owner_agent_id":"deep","namespace":"notes","key":"a","expected_revision":1}`).Decision, reason.OwnerDelete, "")
	l.wants(l.put("low", "a", nil), reason.OwnerWrite, "")
	l.wants(l.put("deep", "a", nil), reason.QuotaExceeded, "top")
	// An admin's word is no agent's doing.
	l.wants(l.ask(wire.Control, AdminID, "memory.load", `{"owner_agent_id":"deep","namespace":"notes","key":"z","value":1,"visibility":"private"}`).Decision, reason.ControlDone, "")
	l.verify()
}

// R66: agents of a tree are limited where agents register them; a revoked one
// makes room.
func TestR66_QuotaOfAgents(t *testing.T) {
	l := newQuotaLab(t, "tree_agents: 4")
	register := func(who, id string) *events.Decision {
		return l.ask(wire.Propose, who, "agent.register", toJSON(object{"agent_id": id, "capabilities": []string{}, "public_key": publicKey(id)})).Decision
	}
	l.wants(register("deep", "a"), reason.Registered, "")
	l.wants(register("low", "b"), reason.QuotaExceeded, "top")
	l.wants(register("other", "c"), reason.Registered, "")
	l.wants(l.ask(wire.Control, AdminID, "agent.revoke", `{"agent_id":"a"}`).Decision, reason.ControlDone, "")
	l.wants(register("low", "b"), reason.Registered, "")
	l.wants(register("low", "d"), reason.QuotaExceeded, "top")
	l.verify()
}

// R66: open runs are limited for each agent and for each tree.
func TestR66_QuotasOfRuns(t *testing.T) {
	l := newQuotaLab(t, "runs: 1, tree_runs: 2")
	n := 0
	submit := func(who string) *events.Decision {
		n++
		r, _ := wire.Decode(wire.Propose, "sop.submit", []byte(`{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"memory.read","arguments":{"namespace":"n","key":"k"}}]}}`))
		return Decide(l.state, &Proposal{Lane: wire.Propose, Subject: who, Operation: "sop.submit", Request: r, RunID: fmt.Sprint("run", n), Now: l.now()}).Decision
	}
	open := func(who string) {
		l.add(who, l.state.Seq, &events.RunAdmitted{RunID: fmt.Sprint("open-", who), SOPID: "s", SOPVersion: 1, Steps: []string{"a"}, Actions: []string{"memory.read"}}, nil, false)
		l.add(who, l.state.Seq-1, &events.RunStarted{RunID: fmt.Sprint("open-", who)}, nil, false)
	}
	l.wants(submit("low"), reason.SOPAdmitted, "")
	open("low")
	l.wants(submit("low"), reason.QuotaExceeded, "low")
	l.wants(submit("deep"), reason.SOPAdmitted, "")
	open("deep")
	l.wants(submit("top"), reason.QuotaExceeded, "top")
	l.wants(submit("other"), reason.SOPAdmitted, "")
	l.add("low", l.state.Seq, &events.RunFailed{RunID: "open-low", StepID: "a", Reason: "r"}, nil, false)
	l.wants(submit("top"), reason.SOPAdmitted, "")
	recount(t, l.state)
}

// recount holds every counter of a state to what is counted one by one.
func recount(t rapid.TB, s *projection.State) {
	t.Helper()
	own, tree, runs := map[string]int{}, map[string]projection.Usage{}, map[string]int{}
	up := func(id string, u projection.Usage) {
		for _, a := range s.Agent(id).Lineage() {
			sum := tree[a.ID]
			tree[a.ID] = projection.Usage{
				Records: sum.Records + u.Records, Agents: sum.Agents + u.Agents, Runs: sum.Runs + u.Runs, Restrictions: sum.Restrictions + u.Restrictions,
			}
		}
	}
	s.Records(0, func(r *projection.Record) bool {
		own[r.Owner]++
		up(r.Owner, projection.Usage{Records: 1})
		return true
	})
	for _, r := range s.OpenRuns() {
		runs[r.Agent]++
		up(r.Agent, projection.Usage{Runs: 1})
	}
	for _, id := range s.AgentIDs() {
		if !s.Agent(id).Revoked {
			up(id, projection.Usage{Agents: 1})
		}
	}
	s.Restricted(func(a *projection.Agent, _ policy.Restriction) { up(a.ID, projection.Usage{Restrictions: 1}) })
	for _, id := range s.AgentIDs() {
		if a := s.Agent(id); a.Records != own[id] || a.Runs != runs[id] || a.Tree != tree[id] {
			t.Fatalf("%s has %d records and %+v, counted %d and %+v", id, a.Records, a.Tree, own[id], tree[id])
		}
	}
}

// R66: after any history what is counted is what is there, of a state that was
// read as well; and what is allowed under quotas is allowed without them.
func TestR66_CountersAreWhatIsThere(t *testing.T) {
	ids := []string{"top", "low", "deep", "other", "new0", "new1", "new2"}
	free, faults := policy.ParseDocument(quotaDocument("free", "tree_depth: 16"))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	rapid.Check(t, func(t *rapid.T) {
		l := newQuotaLab(t, "records: 2, tree_records: 4, tree_agents: 5")
		for range rapid.IntRange(1, 40).Draw(t, "n") {
			who, key := rapid.SampledFrom(ids).Draw(t, "who"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
			l.ahead += events.Time(rapid.IntRange(0, 3).Draw(t, "seconds")) * 1_000_000
			lane, operation, request := wire.Propose, "memory.write", object{"owner_agent_id": who, "namespace": "notes", "key": key, "value": 1}
			if r := l.state.Live(who, "notes", key, l.now()); r != nil {
				request["expected_revision"] = r.Revision
			}
			switch rapid.IntRange(0, 10).Draw(t, "what") {
			case 0, 1, 2:
				request["ttl_seconds"] = rapid.IntRange(1, 5).Draw(t, "ttl")
			case 3, 4:
				operation = "memory.delete"
				delete(request, "value")
			case 5:
				operation, request = "agent.register", object{"agent_id": "new" + fmt.Sprint(len(key)%3), "capabilities": []string{"memory.write"}, "public_key": publicKey("new" + key)}
			case 6:
				lane, who, operation, request = wire.Control, AdminID, "agent.revoke", object{"agent_id": who}
			case 8:
				operation, request = "restriction.add", object{"id": key, "action": "art.save", "require": "true"}
			case 9:
				lane, operation, request = wire.Control, "restriction.remove", object{"agent_id": who, "id": key}
				who = AdminID
			case 7:
				if r := l.state.Due(l.now()); r != nil {
					l.add(events.System, 0, l.state.Expiry(r, l.now()), nil, false)
				}
				continue
			}
			r, code := wire.Decode(lane, operation, []byte(toJSON(request)))
			if code != "" {
				continue
			}
			p := &Proposal{Lane: lane, Subject: who, Operation: operation, Request: r, Now: l.now()}
			limited := Decide(l.state, p).Decision
			l.state.Under(free.Policy, nil, func() {
				if without := Decide(l.state, p).Decision; limited.Allowed && !without.Allowed || limited.Reason != without.Reason && limited.Reason != string(reason.QuotaExceeded) {
					t.Fatalf("%s with quotas, %s without", limited.Reason, without.Reason)
				}
			})
			l.submit(p)
			recount(t, l.state)
		}
		l.verify()
		b, err := l.state.EncodeSnapshot(nil)
		if err != nil {
			t.Fatal(err)
		}
		restored, err := projection.DecodeSnapshot(b, nil)
		if err != nil {
			t.Fatal(err)
		}
		recount(t, restored)
	})
}

// What limits cannot be.
func TestR66_QuotasAreNumbers(t *testing.T) {
	for _, limits := range []string{"records: 0", "records: -1", "tree_runs: many", "runs: 65", "quota: 3", "tree_records: 10000000000"} {
		if _, faults := policy.ParseDocument(quotaDocument("v", limits)); len(faults) == 0 || !strings.Contains(faults[0].Message, strings.Split(limits, ":")[0]) {
			t.Errorf("%s: %v", limits, faults)
		}
	}
}

// R66: grants of one owner are limited; one that is renewed takes no place, and
// one that has ended makes room.
func TestR66_QuotaOfGrants(t *testing.T) {
	l := newGrantLab(t)
	for i := range events.GrantsOfOneMax {
		id := fmt.Sprintf("a%d", i)
		l.add(AdminID, 0, &events.AgentRegistered{AgentID: id, PublicKey: publicKey(id)}, nil, false)
		l.want(reason.GrantGiven, l.give("top", id, nil))
	}
	l.want(reason.QuotaExceeded, l.give("top", "other", nil))
	l.want(reason.GrantGiven, l.give("top", "a0", nil))
	if n := len(l.state.Grants(l.now())); n != events.GrantsOfOneMax {
		t.Errorf("%d grants", n)
	}
	l.ahead += 61_000_000
	l.want(reason.GrantGiven, l.give("top", "other", nil))
	l.verify()
}

// R66: one tree does not take every grant of the ledger, and a grant whose owner
// may not read any more takes no place.
func TestR66_OneTreeLeavesGrantsToOthers(t *testing.T) {
	l := newGrantLab(t)
	n := 0
	for i := 0; n < events.GrantsOfTreeMax; i++ {
		owner := fmt.Sprintf("o%d", i)
		l.add(AdminID, 0, &events.AgentRegistered{AgentID: owner, ParentID: "top", Capabilities: []string{"memory.read", "memory.write"}, PublicKey: publicKey(owner)}, nil, false)
		l.want(reason.OwnerWrite, l.ask(wire.Propose, owner, "memory.write", toJSON(object{"owner_agent_id": owner, "namespace": "credentials", "key": "token", "value": "x"})))
		for k := range events.GrantsOfOneMax {
			if i == 0 {
				id := fmt.Sprintf("t%d", k)
				l.add(AdminID, 0, &events.AgentRegistered{AgentID: id, PublicKey: publicKey(id)}, nil, false)
			}
			l.want(reason.GrantGiven, l.give(owner, fmt.Sprintf("t%d", k), nil))
			n++
		}
	}
	l.want(reason.QuotaExceeded, l.give("top", "other", nil))
	l.add(AdminID, 0, &events.AgentRegistered{AgentID: "apart", Capabilities: []string{"memory.read", "memory.write"}, PublicKey: publicKey("apart")}, nil, false)
	l.want(reason.OwnerWrite, l.ask(wire.Propose, "apart", "memory.write", `{"owner_agent_id":"apart","namespace":"credentials","key":"token","value":"x"}`))
	l.want(reason.GrantGiven, l.give("apart", "other", nil))
	l.want(reason.ControlDone, l.ask(wire.Control, AdminID, "agent.revoke", `{"agent_id":"o0"}`))
	l.want(reason.GrantGiven, l.give("top", "other", nil))
	l.verify()
}

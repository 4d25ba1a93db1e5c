package projection

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

const document = "apiVersion: ledgerd/v1\nkind: Policy\nversion: p1\nenvironment: [memory.read, memory.write, x.one]\n" +
	"actions: {x.one: {}}\nnamespaces: {rule: {class: mandatory, combine: all_true}, secret: {class: secret}}\n"

// entry is an event before it has its place, with its open payload.
type entry struct {
	body events.Body
	open string
	by   string // an agent; empty is nobody
}

func of(b events.Body) entry { return entry{body: b} }

// asked is an event that follows from the one before it, which an agent asked for.
func asked(agent string, b events.Body) entry { return entry{body: b, by: agent} }

func activated(version, text string) entry {
	return entry{body: &events.PolicyActivated{Version: version, Digest: sha256.Sum256([]byte(text)), Rules: 1}, open: text}
}

func record(owner, name, visibility, class string, revision uint64) events.Record {
	namespace, key, _ := strings.Cut(name, ".")
	return events.Record{Owner: owner, Namespace: namespace, Key: key, Visibility: visibility, Class: class, Revision: revision}
}

func written(owner, name, visibility, class string, revision uint64, open string) entry {
	return entry{body: &events.MemoryWritten{Record: record(owner, name, visibility, class, revision)}, open: open}
}

func created() entry {
	return of(&events.LedgerCreated{Format: events.Format, Origin: "log/1", Ledger: "main", AdminID: "admin", AdminPublicKey: "UADMIN"})
}

// start is a log with a policy, a tree of three, one revoked agent, some
// principals and records of every class, deleted ones included.
func start() []entry {
	return []entry{
		created(),
		of(&events.LedgerOpened{Rules: 1, Build: "test"}),
		activated("p1", document),
		of(&events.AgentRegistered{AgentID: "root", Capabilities: []string{"memory.read", "x.one"}, PublicKey: "UROOT"}),
		of(&events.AgentRegistered{AgentID: "kid", ParentID: "root", Capabilities: []string{"memory.read"}, PublicKey: "UKID"}),
		of(&events.AgentRegistered{AgentID: "gone", ParentID: "root", PublicKey: "UGONE"}),
		of(&events.AgentRevoked{AgentID: "gone"}),
		of(&events.PrincipalRegistered{ID: "tools", Role: "handler", PublicKey: "UTOOLS", Actions: []string{"x.one"}}),
		of(&events.PrincipalRegistered{ID: "eyes", Role: "observer", PublicKey: "UEYES", Root: "kid"}),
		of(&events.PrincipalRevoked{ID: "eyes"}),
		of(&events.PrincipalRekeyed{ID: "tools", PublicKey: "UTOOLS2"}),
		of(&events.EnvironmentChanged{Capabilities: []string{"memory.read", "x.one"}}),
		of(&events.Decision{Subject: "root", Operation: "memory.write", OperationID: "op 1", Reason: "owner_write", Allowed: true}),
		written("root", "note.a", "children", "preference", 1, ""),
		written("root", "rule.a", "descendants", "mandatory", 1, "true"),
		written("kid", "secret.a", "private", "secret", 1, ""),
		of(&events.MemoryDeleted{Record: record("root", "note.a", "children", "preference", 2)}),
	}
}

const tick = 1_000_000

func (s *State) next(e entry) *events.Event {
	if e.by != "" {
		return &events.Event{Seq: s.Seq + 1, Time: s.Time + tick, Agent: e.by, Cause: s.Seq, Body: e.body}
	}
	return &events.Event{Seq: s.Seq + 1, Time: s.Time + tick, Agent: "sys", Body: e.body}
}

func (s *State) apply(e entry) error {
	var open []byte
	if e.open != "" {
		open = []byte(e.open)
	}
	return s.Apply(s.next(e), open)
}

func folded(t *testing.T, entries ...entry) *State {
	t.Helper()
	s := New()
	for _, e := range entries {
		if err := s.apply(e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestApplyFolds(t *testing.T) {
	s := folded(t, start()...)
	kid, gone := s.Agent("kid"), s.Agent("gone")
	for what, ok := range map[string]bool{
		"place":        s.Seq == 17 && s.Origin == "log/1" && s.Ledger == "main" && s.Rules == 1,
		"tree":         kid.Depth == 2 && kid.Parent == s.Agent("root") && kid.Parent.Children == 2 && strings.Join(kid.LineageIDs(), " ") == "kid root",
		"within":       kid.Within("root") && kid.Within("kid") && !kid.Within("gone") && !s.Agent("root").Within("kid"),
		"revoked":      gone.Revoked && len(s.Effective(gone)) == 0,
		"effective":    strings.Join(s.Effective(kid), " ") == "memory.read" && strings.Join(s.Effective(s.Agent("root")), " ") == "memory.read x.one",
		"ids":          s.IDTaken("admin") && s.IDTaken("gone") && s.IDTaken("eyes") && !s.IDTaken("nobody"),
		"keys":         s.KeyTaken("UTOOLS") && s.KeyTaken("UTOOLS2") && s.KeyTaken("UGONE") && !s.KeyTaken("UNEW"),
		"principals":   s.Principal("tools").PublicKey == "UTOOLS2" && s.Principal("eyes").Revoked && s.LastAdmin(s.Principal("admin")),
		"policy":       s.PolicyVersion() == "p1" && s.PolicyDigest() == sha256.Sum256([]byte(document)),
		"deleted":      s.Live("root", "note", "a", s.Time) == nil && s.Record("root", "note", "a").Revision == 2,
		"mandatory":    string(s.Live("root", "rule", "a", s.Time).Mandatory) == "true",
		"secret":       s.Live("kid", "secret", "a", s.Time).Class == policy.Secret && s.Live("kid", "secret", "a", s.Time).Mandatory == nil,
		"other record": s.Live("kid", "note", "a", s.Time) == nil && s.Live("root", "secret", "a", s.Time) == nil,
	} {
		if !ok {
			t.Error(what)
		}
	}
	if op, ok := s.Operation("root", "op 1"); !ok || op != (Operation{13, "memory.write"}) {
		t.Error("operation", op, ok)
	}
	if _, ok := s.Operation("kid", "op 1"); ok {
		t.Error("another agent's operation id")
	}
	for _, d := range []*events.Decision{
		{Subject: "root", Operation: "action.authorize", OperationID: "op 1"}, // the first use stays
		{Subject: "root", Operation: "sop.validate", StepID: "a", OperationID: "op 2"},
		{Subject: "root", Operation: "memory.read", OperationID: "op 2"},
	} {
		if err := s.apply(of(d)); err != nil {
			t.Fatal(err)
		}
	}
	if op, _ := s.Operation("root", "op 1"); op.Seq != 13 {
		t.Error("the first use of an operation id is forgotten", op)
	}
	if op, ok := s.Operation("root", "op 2"); ok {
		t.Error("a step or a read takes an operation id", op)
	}
}

// R60: an event that does not fit the state before it stops the fold, whatever
// is wrong with it.
func TestR60_InconsistentEventsStopTheFold(t *testing.T) {
	second := strings.Replace(document, "x.one: {}", "x.two: {}", 1)
	for name, e := range map[string]entry{
		"created again":                of(created().body),
		"update of nobody":             of(&events.AgentUpdated{AgentID: "nobody"}),
		"update of a principal":        of(&events.AgentUpdated{AgentID: "tools"}),
		"update of a revoked agent":    of(&events.AgentUpdated{AgentID: "gone"}),
		"revocation of nobody":         of(&events.AgentRevoked{AgentID: "nobody"}),
		"revocation twice":             of(&events.AgentRevoked{AgentID: "gone"}),
		"agent id taken":               of(&events.AgentRegistered{AgentID: "kid", PublicKey: "UNEW"}),
		"agent id of a revoked":        of(&events.AgentRegistered{AgentID: "gone", PublicKey: "UNEW"}),
		"agent id of a principal":      of(&events.AgentRegistered{AgentID: "tools", PublicKey: "UNEW"}),
		"agent key taken":              of(&events.AgentRegistered{AgentID: "new", PublicKey: "UKID"}),
		"agent key once a principal's": of(&events.AgentRegistered{AgentID: "new", PublicKey: "UTOOLS"}),
		"parent unknown":               of(&events.AgentRegistered{AgentID: "new", ParentID: "nobody", PublicKey: "UNEW"}),
		"parent itself":                of(&events.AgentRegistered{AgentID: "new", ParentID: "new", PublicKey: "UNEW"}),
		"parent a principal":           of(&events.AgentRegistered{AgentID: "new", ParentID: "tools", PublicKey: "UNEW"}),
		"parent revoked":               of(&events.AgentRegistered{AgentID: "new", ParentID: "gone", PublicKey: "UNEW"}),
		"principal id taken":           of(&events.PrincipalRegistered{ID: "kid", Role: "auditor", PublicKey: "UNEW"}),
		"principal key taken":          of(&events.PrincipalRegistered{ID: "new", Role: "auditor", PublicKey: "UGONE"}),
		"principal of no role":         of(&events.PrincipalRegistered{ID: "new", Role: "god", PublicKey: "UNEW"}),
		"rekey of nobody":              of(&events.PrincipalRekeyed{ID: "nobody", PublicKey: "UNEW"}),
		"rekey of an agent":            of(&events.PrincipalRekeyed{ID: "kid", PublicKey: "UNEW"}),
		"rekey of a revoked":           of(&events.PrincipalRekeyed{ID: "eyes", PublicKey: "UNEW"}),
		"rekey to a key taken":         of(&events.PrincipalRekeyed{ID: "tools", PublicKey: "UTOOLS"}),
		"principal nobody revoked":     of(&events.PrincipalRevoked{ID: "nobody"}),
		"principal revoked twice":      of(&events.PrincipalRevoked{ID: "eyes"}),
		"last admin revoked":           of(&events.PrincipalRevoked{ID: "admin"}),
		"policy without document":      of(activated("p2", second).body),
		"policy of another document":   {body: activated("p1", document).body, open: second},
		"policy under a used version":  activated("p1", second),
		"policy by another name":       {body: &events.PolicyActivated{Version: "p2", Digest: sha256.Sum256([]byte(document))}, open: document},
		"policy that cannot be read":   activated("p2", document+"allow: all\n"),
		"policy that is an agent":      activated("p2", "kind: Agent\nid: a\ncapabilities: []\n"),
		"first revision 0":             written("kid", "note.a", "private", "preference", 0, ""),
		"first revision 2":             written("kid", "note.a", "private", "preference", 2, ""),
		"revision the same":            written("root", "rule.a", "descendants", "mandatory", 1, "true"),
		"revision from 1 after death":  written("root", "note.a", "private", "preference", 1, ""),
		"revision reset after death":   written("root", "note.a", "private", "preference", 2, ""),
		"record of nobody":             written("nobody", "note.a", "private", "preference", 1, ""),
		"record of a principal":        written("tools", "note.a", "private", "preference", 1, ""),
		"record of a revoked agent":    written("gone", "note.a", "private", "preference", 1, ""),
		"record of no class":           written("kid", "note.a", "private", "public", 1, ""),
		"record of no visibility":      written("kid", "note.a", "world", "preference", 1, ""),
		"mandatory without value":      written("kid", "rule.a", "private", "mandatory", 1, ""),
		"preference with open value":   written("kid", "note.a", "private", "preference", 1, "true"),
		"secret with open value":       written("kid", "secret.b", "private", "secret", 1, "true"),
		"secret made a preference":     written("kid", "secret.a", "private", "preference", 2, ""),
		"deletion of nothing":          of(&events.MemoryDeleted{Record: record("kid", "note.a", "private", "preference", 1)}),
		"deletion twice":               of(&events.MemoryDeleted{Record: record("root", "note.a", "children", "preference", 3)}),
		"deletion at a wrong revision": of(&events.MemoryDeleted{Record: record("kid", "secret.a", "private", "secret", 3)}),
		"deletion by another class":    of(&events.MemoryDeleted{Record: record("kid", "secret.a", "private", "preference", 2)}),
		"deletion by another view":     of(&events.MemoryDeleted{Record: record("kid", "secret.a", "children", "secret", 2)}),
		"decision with open payload":   {body: &events.Decision{Subject: "root"}, open: "true"},
		"deletion with open payload":   {body: &events.MemoryDeleted{Record: record("kid", "secret.a", "private", "secret", 2)}, open: "true"},
	} {
		s := folded(t, start()...)
		if err := s.apply(e); err == nil || !errors.Is(err, ErrInconsistent) && !strings.HasPrefix(name, "policy") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, e := range map[string]entry{ // and their neighbours fit
		"agent":             of(&events.AgentRegistered{AgentID: "new", ParentID: "kid", PublicKey: "UNEW"}),
		"update":            of(&events.AgentUpdated{AgentID: "kid"}),
		"revocation":        of(&events.AgentRevoked{AgentID: "kid"}),
		"principal":         of(&events.PrincipalRegistered{ID: "new", Role: "auditor", PublicKey: "UNEW"}),
		"rekey":             of(&events.PrincipalRekeyed{ID: "tools", PublicKey: "UNEW"}),
		"another policy":    activated("p2", strings.Replace(document, "p1", "p2", 1)),
		"the same policy":   activated("p1", document),
		"record":            written("kid", "note.a", "private", "preference", 1, ""),
		"record after one":  written("root", "note.a", "private", "preference", 3, ""),
		"mandatory record":  written("root", "rule.a", "private", "mandatory", 2, "false"),
		"secret":            written("kid", "secret.a", "children", "secret", 2, ""),
		"deletion":          of(&events.MemoryDeleted{Record: record("kid", "secret.a", "private", "secret", 2)}),
		"principal revoked": of(&events.PrincipalRevoked{ID: "tools"}),
	} {
		if err := folded(t, start()...).apply(e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestR60_FirstEventsStopTheFold(t *testing.T) {
	format := created()
	format.body.(*events.LedgerCreated).Format = "ledgerd/2"
	for name, entries := range map[string][]entry{
		"not created":         {of(&events.LedgerOpened{Rules: 1})},
		"of another format":   {format},
		"narrowed, no policy": {created(), of(&events.EnvironmentChanged{Capabilities: []string{"memory.read"}})},
		"admin's key used":    {created(), of(&events.AgentRegistered{AgentID: "a", PublicKey: "UADMIN"})},
		"admin's id used":     {created(), of(&events.AgentRegistered{AgentID: "admin", PublicKey: "U"})},
		"policy, no document": {created(), of(activated("p1", document).body)},
	} {
		s := New()
		var err error
		for _, e := range entries {
			if err = s.apply(e); err != nil {
				break
			}
		}
		if err == nil {
			t.Errorf("%s: applied", name)
		}
	}
}

// foreign is a body of a type that nobody knows.
type foreign struct{ events.Body }

func (foreign) Type() events.Type { return "agent.cloned" }

func TestR78_UnknownTypeStopsTheFold(t *testing.T) {
	s := folded(t, start()...)
	if err := s.apply(of(foreign{})); !errors.Is(err, ErrInconsistent) {
		t.Fatalf("an unknown type: %v", err)
	}
}

func TestApplyRefusesAnotherPlaceOrTime(t *testing.T) {
	noted := &events.RequestsRefused{Refusals: events.Refusals{Code: "overloaded", Count: 1}}
	for name, bend := range map[string]func(*events.Event){
		"the same seq":   func(e *events.Event) { e.Seq-- },
		"a gap":          func(e *events.Event) { e.Seq++ },
		"seq 1 again":    func(e *events.Event) { e.Seq = 1 },
		"time goes back": func(e *events.Event) { e.Time -= tick + 1 },
	} {
		s := folded(t, start()...)
		e := s.next(of(noted))
		bend(e)
		if err := s.Apply(e, nil); !errors.Is(err, ErrInconsistent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := folded(t, start()...)
	e := s.next(of(noted))
	e.Time = s.Time // one moment may hold many events
	if err := s.Apply(e, nil); err != nil {
		t.Error(err)
	}
}

// R14: Holds names the level nearest the environment that lacks a capability.
func TestR14_HoldsNamesTheLevel(t *testing.T) {
	s := folded(t, append(start(),
		of(&events.AgentRegistered{AgentID: "leaf", ParentID: "kid", Capabilities: []string{"memory.read", "memory.write", "x.one"}, PublicKey: "ULEAF"}),
		of(&events.AgentRegistered{AgentID: "orphan", ParentID: "kid", Capabilities: []string{"memory.read"}, PublicKey: "UORPHAN"}),
		of(&events.AgentRegistered{AgentID: "wide", Capabilities: []string{"memory.read", "memory.write", "x.two"}, PublicKey: "UWIDE"}),
	)...)
	for _, c := range []struct{ agent, capability, by string }{
		{"leaf", "memory.read", ""},
		{"leaf", "memory.write", EnvironmentLevel}, // narrowed away
		{"leaf", "x.two", EnvironmentLevel},
		{"wide", "memory.read", ""},
		{"wide", "memory.write", EnvironmentLevel},
		{"wide", "x.two", EnvironmentLevel},
		{"leaf", "x.one", "kid"},
		{"root", "x.one", ""},
		{"gone", "memory.read", "gone"},
	} {
		ok, by := s.Holds(s.Agent(c.agent), c.capability)
		if by != c.by || ok != (by == "") || ok != s.Effective(s.Agent(c.agent)).Has(c.capability) {
			t.Errorf("%s %s: %v by %q, want %q", c.agent, c.capability, ok, by, c.by)
		}
	}
	if err := s.apply(of(&events.AgentRevoked{AgentID: "root"})); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"root", "kid", "leaf", "orphan"} {
		if ok, by := s.Holds(s.Agent(id), "memory.read"); ok || by != "root" || len(s.Effective(s.Agent(id))) > 0 {
			t.Errorf("%s below a revoked root: %v by %q", id, ok, by)
		}
	}
}

// R22: who sees a record, by its class, its visibility and how far above the
// reader its owner stands.
func TestR22_Visible(t *testing.T) {
	s := folded(t, start()...)
	for _, c := range []struct {
		class, name, visibility string
		sees                    string // levels 0, 1, 2: y or n
	}{
		{"preference", "note.a", "private", "ynn"},
		{"preference", "note.a", "children", "yyn"},
		{"preference", "note.a", "descendants", "yyy"},
		{"preference", "note.a", "", "ynn"},
		{"mandatory", "rule.a", "private", "ynn"},
		{"mandatory", "rule.a", "children", "yyn"},
		{"mandatory", "rule.a", "descendants", "yyy"},
		{"secret", "secret.a", "descendants", "ynn"},
		{"secret", "note.a", "descendants", "ynn"},       // written as one
		{"preference", "secret.a", "descendants", "ynn"}, // called one now
		{"mandatory", "note.a", "descendants", "yyy"},
	} {
		namespace, key, _ := strings.Cut(c.name, ".")
		r := &Record{Owner: "root", Kind: &Kind{namespace, c.visibility, policy.Class(c.class)}, Key: key, Extra: noExtra}
		got := ""
		for levels := range 3 {
			got += map[bool]string{true: "y", false: "n"}[s.Visible(r, levels)]
		}
		if got != c.sees {
			t.Errorf("%+v: %s", c, got)
		}
	}
	s.Policy = nil
	if s.Visible(&Record{Kind: &Kind{Visibility: "descendants", Class: policy.Preference}, Extra: noExtra}, 1) {
		t.Error("without a policy a record is seen by another")
	}
}

func TestRecordsListsTheLiving(t *testing.T) {
	s := folded(t, start()...)
	var names []string
	s.Records(s.Time, func(r *Record) bool {
		names = append(names, fmt.Sprintf("%s:%s.%s", r.Owner, r.Namespace, r.Key))
		return true
	})
	if len(names) != 2 {
		t.Errorf("%v", names)
	}
	n := 0
	s.Records(s.Time, func(*Record) bool { n++; return false })
	if n != 1 {
		t.Errorf("%d records after the first was enough", n)
	}
	holders := map[string]string{}
	s.Keys(func(key, id string) { holders[key] = id })
	if len(holders) != 7 || holders["UTOOLS"] != "tools" || holders["UTOOLS2"] != "tools" || holders["UGONE"] != "gone" {
		t.Errorf("keys: %v", holders)
	}
	if got := strings.Join(s.AgentIDs(), " ") + "|" + strings.Join(s.PrincipalIDs(), " "); got != "gone kid root|admin eyes tools" {
		t.Error(got)
	}
}

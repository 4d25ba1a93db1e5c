package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// served is a real ledger behind a real server, with keys of its own.
type served struct {
	t      *testing.T
	dir    string
	listen string
	seeds  map[string]string

	ledger *ledger.Ledger
	node   *natsapi.Node
	cancel context.CancelFunc
	ended  chan error
}

// serveFamily serves a ledger with boss, its children alice and bob, and watcher.
func serveFamily(t *testing.T) *served {
	t.Helper()
	s := &served{t: t, dir: filepath.Join(t.TempDir(), "data"), listen: "127.0.0.1:0", seeds: map[string]string{}}
	if err := ledger.Init(s.dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.listen = strings.TrimPrefix(s.node.URL(), "nats://")
	t.Cleanup(s.stop)
	documents := []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-1\nenvironment: [memory.read, memory.write]\n"}
	for _, id := range []string{"boss", "alice", "bob"} {
		parent := "parent: boss\n"
		if id == "boss" {
			parent = ""
		}
		documents = append(documents, "kind: Agent\nid: "+id+"\n"+parent+"capabilities: [memory.read, memory.write]\npublic_key: "+s.newKey(id)+"\n")
	}
	documents = append(documents, "kind: Principal\nid: watcher\nrole: auditor\npublic_key: "+s.newKey("watcher")+"\n")
	admin, err := client.Connect(deadline(t), client.Options{Server: s.node.URL(), ID: "admin", SeedFile: filepath.Join(s.dir, "keys", "admin.nk")})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	reply, err := admin.Control(deadline(t), "apply", map[string]any{"documents": documents})
	if err != nil || !reply.Allowed {
		t.Fatalf("apply: %+v, %v", reply, err)
	}
	return s
}

func (s *served) newKey(id string) string {
	key, err := nkeys.CreateUser()
	if err != nil {
		s.t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		s.t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		s.t.Fatal(err)
	}
	s.seeds[id] = string(seed)
	return public
}

func (s *served) start() {
	s.t.Helper()
	var err error
	s.ledger, err = ledger.Open(ledger.Options{Dir: s.dir})
	if err != nil {
		s.t.Fatal(err)
	}
	s.node, err = natsapi.Start(s.ledger, natsapi.Config{StoreDir: filepath.Join(s.dir, "stream"), Listen: s.listen, Version: "0.0.0"})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.ended = cancel, make(chan error, 1)
	go func(l *ledger.Ledger, ended chan error) { ended <- l.Run(ctx) }(s.ledger, s.ended)
}

// stop ends the service and checks the log it leaves.
func (s *served) stop() {
	s.t.Helper()
	s.node.Drain()
	s.cancel()
	if err := <-s.ended; err != nil {
		s.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := s.node.Close(ctx); err != nil {
		s.t.Error(err)
	}
	replaytest.CheckLedger(s.t, ledger.Options{Dir: s.dir})
}

func (s *served) as(id string) *client.Client {
	s.t.Helper()
	c, err := client.Connect(deadline(s.t), client.Options{Server: s.node.URL(), ID: id, Seed: s.seeds[id], Retries: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// R51, R90: an operation id is its agent's, forever; repeated, it brings the
// recorded decision and no second effect, also after a restart.
func TestR51_RecordedOutcomeThroughTheClient(t *testing.T) {
	s := serveFamily(t)
	write := client.WriteRequest{Meta: client.Meta{OperationID: "op-1"}, Namespace: "notes", Key: "a", Value: map[string]int{"n": 1}}
	first, err := s.as("alice").Write(deadline(t), write)
	if err != nil || !first.Allowed || first.Record == nil || first.Record.Revision != 1 || string(first.Record.Value) != `{"n":1}` {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, when := range []string{"before", "after"} {
		if when == "after" {
			s.stop()
			s.start()
		}
		alice, bob := s.as("alice"), s.as("bob")
		again, err := alice.Write(deadline(t), write)
		if err != nil || again.Seq != first.Seq || again.Hash != first.Hash || again.EventID != first.EventID {
			t.Errorf("%s a restart: %s, %v, want seq %d", when, again.Raw, err, first.Seq)
		}
		if again.Record != nil && again.Record.Value != nil {
			t.Errorf("%s a restart: a retry tells the value", when)
		}
		other := write
		other.Value = 2
		if r, err := alice.Write(deadline(t), other); err != nil || r.ReasonCode != reason.OperationIDConflict {
			t.Errorf("%s a restart: other content: %+v, %v", when, r, err)
		}
		mine := write
		mine.Key = when
		if r, err := bob.Write(deadline(t), mine); err != nil || r.Seq == first.Seq || (when == "before") != r.Allowed {
			t.Errorf("%s a restart: bob's own op-1: %+v, %v", when, r, err)
		}
		r, err := alice.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"})
		if err != nil || r.Record == nil || r.Record.Revision != 1 {
			t.Errorf("%s a restart: the record is %+v, %v", when, r, err)
		}
		recorded, err := alice.DecisionOf(deadline(t), "", "op-1")
		if err != nil || recorded.Seq != first.Seq || recorded.Hash != first.Hash {
			t.Errorf("%s a restart: decision of op-1: %+v, %v", when, recorded, err)
		}
	}
}

// A request sent while the ledger is down is answered when it is back, and is
// judged once.
func TestClientOutlastsARestart(t *testing.T) {
	s := serveFamily(t)
	alice := s.as("alice")
	s.stop()
	done := make(chan error, 1)
	ctx := deadline(t)
	go func() {
		r, err := alice.Write(ctx, client.WriteRequest{Namespace: "notes", Key: "a", Value: 1})
		if err == nil && !r.Allowed {
			err = fmt.Errorf("denied: %s", r.Raw)
		}
		done <- err
	}()
	s.start()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r, err := alice.Read(ctx, client.ReadRequest{Namespace: "notes", Key: "a"})
	if err != nil || r.Record == nil || r.Record.Revision != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// CASES 103 through the whole ledger: equal operation ids of two agents, sent
// at the same time, each write and read their own.
func TestEqualOperationIDsNeverCrossInTheLedger(t *testing.T) {
	s := serveFamily(t)
	const each = 300
	ctx := deadline(t)
	var wg sync.WaitGroup
	for _, id := range []string{"alice", "bob"} {
		c := s.as(id)
		for i := range each {
			wg.Go(func() {
				key := fmt.Sprintf("k%d", i)
				meta := client.Meta{OperationID: fmt.Sprintf("op-%d", i)}
				w, err := c.Write(ctx, client.WriteRequest{Meta: meta, Namespace: "notes", Key: key, Value: id})
				if err != nil || !w.Allowed || w.Subject != id || w.Resource != id+":notes."+key {
					t.Errorf("%s writes %s: %+v, %v", id, key, w, err)
					return
				}
				r, err := c.Read(ctx, client.ReadRequest{Meta: meta, Namespace: "notes", Key: key})
				if err != nil || r.Owner != id || r.Record == nil || string(r.Record.Value) != `"`+id+`"` {
					t.Errorf("%s reads %s: %+v, %v", id, key, r, err)
				}
			})
		}
	}
	wg.Wait()
}

// R71, R74: what an observer follows is what the log holds, also across a
// restart of the ledger.
func TestR74_WatchSeesTheLogItself(t *testing.T) {
	s := serveFamily(t)
	watcher, alice := s.as("watcher"), s.as("alice")
	for i := range 50 {
		if _, err := alice.Write(deadline(t), client.WriteRequest{Namespace: "notes", Key: fmt.Sprintf("k%d", i), Value: i}); err != nil {
			t.Fatal(err)
		}
	}
	var seen [][]byte
	restarted := false
	head := s.ledger.Durable()
	err := watcher.Watch(deadline(t), 1, func(e client.Event) error {
		seen = append(seen, bytes.Clone(e.Bytes))
		if e.Seq == head && !restarted {
			restarted = true
			s.stop()
			s.start()
			head = s.ledger.Durable()
		}
		if e.Seq == head && restarted {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	i := 0
	err = s.ledger.Events(1, head, func(seq uint64, b []byte) error {
		if i >= len(seen) || !bytes.Equal(seen[i], b) {
			return fmt.Errorf("event %d differs", seq)
		}
		i++
		return nil
	})
	if err != nil || i != len(seen) {
		t.Errorf("%d events seen, %d compared: %v", len(seen), i, err)
	}
}

// CASES 215: what is too large is refused clearly, in the log where it could be
// sent at all, and nothing of it is stored.
func TestTooLargeIsToldAndStoresNothing(t *testing.T) {
	s := serveFamily(t)
	alice := s.as("alice")
	ctx := deadline(t)
	write := func(n int) (*client.Reply, error) {
		return alice.Write(ctx, client.WriteRequest{Namespace: "notes", Key: fmt.Sprintf("k%d", n), Value: strings.Repeat("x", n-2)})
	}
	if r, err := write(events.ValueBytesMax); err != nil || !r.Allowed {
		t.Errorf("the largest value: %+v, %v", r, err)
	}
	for _, n := range []int{events.ValueBytesMax + 1, events.RequestBytesMax, events.PayloadBytesMax - 1000} {
		if r, err := write(n); err != nil || r.Allowed || r.ReasonCode != reason.RequestTooLarge || r.Seq == 0 {
			t.Errorf("a value of %d: %+v, %v", n, r, err)
		}
	}
	if _, err := write(events.PayloadBytesMax + 1); !errors.Is(err, client.ErrRequestTooLarge) {
		t.Errorf("more than the server takes: %v", err)
	}
	for _, n := range []int{events.ValueBytesMax + 1, events.RequestBytesMax, events.PayloadBytesMax - 1000, events.PayloadBytesMax + 1} {
		r, err := alice.Read(ctx, client.ReadRequest{Namespace: "notes", Key: fmt.Sprintf("k%d", n)})
		if err != nil || r.ReasonCode != reason.RecordUnavailable {
			t.Errorf("the record of %d: %+v, %v", n, r, err)
		}
	}
}

func TestQueriesThroughTheClient(t *testing.T) {
	s := serveFamily(t)
	watcher, alice := s.as("watcher"), s.as("alice")
	ctx := deadline(t)
	denied, err := alice.Write(ctx, client.WriteRequest{Owner: "boss", Namespace: "notes", Key: "a", Value: 1})
	if err != nil || denied.ReasonCode != reason.ActorIsNotOwner || denied.Owner != "boss" {
		t.Fatalf("%+v, %v", denied, err)
	}
	agents, seq, err := watcher.Agents(ctx, "")
	if err != nil || len(agents) != 3 || agents[0].AgentID != "alice" || agents[0].ParentID != "boss" || seq == 0 {
		t.Errorf("agents: %+v, %d, %v", agents, seq, err)
	}
	own, err := alice.Capabilities(ctx, "")
	if err != nil || own.AgentID != "alice" || len(own.Effective) != 2 {
		t.Errorf("capabilities: %+v, %v", own, err)
	}
	e, err := alice.ExplainSeq(ctx, denied.Seq)
	if err != nil || e.Allowed || e.ReasonCode != reason.ActorIsNotOwner || len(e.Guards) == 0 {
		t.Errorf("explain: %+v, %v", e, err)
	}
	would, err := alice.Explain(ctx, "", "memory.write", map[string]any{"owner_agent_id": "alice", "namespace": "notes", "key": "a", "value": 1})
	if err != nil || !would.Allowed {
		t.Errorf("explain: %+v, %v", would, err)
	}
	d, err := watcher.Decision(ctx, denied.Seq)
	if err != nil || d.Hash != denied.Hash || d.ReasonCode != denied.ReasonCode {
		t.Errorf("decision: %+v, %v", d, err)
	}
	for size := uint64(0); size < denied.Seq; time.Sleep(10 * time.Millisecond) {
		note, err := watcher.Checkpoint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(note, "%s\n%d\n", new(string), &size); err != nil {
			t.Fatalf("checkpoint %q: %v", note, err)
		}
	}
	p, err := watcher.Proof(ctx, denied.Seq)
	if err != nil || p.Leaf != denied.Hash || p.Index != denied.Seq-1 {
		t.Errorf("proof: %+v, %v", p, err)
	}
	page, err := watcher.Events(ctx, client.EventsQuery{From: denied.Seq, Limit: 1})
	if err != nil || len(page.Events) != 1 || page.Next != denied.Seq+1 {
		t.Errorf("events: %+v, %v", page, err)
	}
	var refusal *client.Refusal
	if _, err := alice.Events(ctx, client.EventsQuery{From: 1}); !errors.As(err, &refusal) || refusal.Reason != reason.NotPermittedForRole {
		t.Errorf("an agent reads events: %v", err)
	}
	if _, err := alice.Capabilities(ctx, "bob"); !errors.As(err, &refusal) {
		t.Errorf("a sibling's capabilities: %v", err)
	}
}

func TestRulesThroughTheClient(t *testing.T) {
	s := serveFamily(t)
	alice := s.as("alice")
	ctx := deadline(t)
	admin, err := client.Connect(ctx, client.Options{Server: s.node.URL(), ID: "admin", SeedFile: filepath.Join(s.dir, "keys", "admin.nk")})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, id := range []string{"doc/2", "doc/1"} {
		if r, err := admin.SetResource(ctx, client.ResourceRequest{ID: id, Classification: "internal", Tags: []string{"b", "a"}}); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	list, seq, err := admin.Resources(ctx)
	if err != nil || seq == 0 || len(list) != 2 || list[0].ID != "doc/1" || len(list[0].Tags) != 2 || list[0].Tags[0] != "a" {
		t.Errorf("resources: %+v, %v", list, err)
	}
	if r, err := admin.Resource(ctx, "doc/2"); err != nil || r.Classification != "internal" {
		t.Errorf("resource: %+v, %v", r, err)
	}
	var refusal *client.Refusal
	if _, err := admin.Resource(ctx, "doc/3"); !errors.As(err, &refusal) || refusal.Reason != reason.NotFound {
		t.Errorf("no resource: %v", err)
	}
	if _, _, err := alice.Resources(ctx); !errors.As(err, &refusal) || refusal.Reason != reason.NotPermittedForRole {
		t.Errorf("an agent lists resources: %v", err)
	}
	if r, err := alice.Restrict(ctx, client.RestrictionRequest{ID: "r", Action: "x.none", Require: "true"}); err != nil || r.ReasonCode != reason.PolicyInvalid {
		t.Errorf("a restriction on nothing: %+v, %v", r, err)
	}
	if r, err := admin.RemoveRestriction(ctx, client.RemoveRestrictionRequest{AgentID: "alice", ID: "r"}); err != nil || r.ReasonCode != reason.NotFound {
		t.Errorf("no restriction: %+v, %v", r, err)
	}
}

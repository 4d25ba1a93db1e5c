package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// within is how long a test waits for what must happen; nothing is timed.
const within = 30 * time.Second

// door is a real server with a registry of its own; what answers requests is
// up to the test.
type door struct {
	*natsapi.Server
	mu    sync.Mutex
	byKey map[string]natsapi.Identity
	seeds map[string]string
}

func openDoor(t *testing.T, roles map[string]string) *door {
	t.Helper()
	d := &door{byKey: map[string]natsapi.Identity{}, seeds: map[string]string{}}
	for id, role := range roles {
		key, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := key.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := key.Seed()
		if err != nil {
			t.Fatal(err)
		}
		d.byKey[public] = natsapi.Identity{ID: id, Role: role}
		d.seeds[id] = string(seed)
	}
	var err error
	d.Server, err = natsapi.StartServer(natsapi.ServerOptions{Ledger: "main", StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Lookup: d.lookup})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *door) lookup(key string) (natsapi.Identity, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	who, ok := d.byKey[key]
	return who, ok
}

func (d *door) revoke(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, who := range d.byKey {
		if who.ID == id {
			who.Revoked = true
			d.byKey[key] = who
		}
	}
}

// answer responds to requests of a lane as the test says; nil is silence.
func (d *door) answer(t *testing.T, lane string, f func(*nats.Msg) []byte) {
	t.Helper()
	part := natsapi.WorkResponder
	if lane == "control" || lane == "effect" {
		part = natsapi.ControlResponder
	}
	nc, err := d.Connect(part)
	if err != nil {
		t.Fatal(err)
	}
	_, err = nc.Subscribe("gov.main."+lane+".>", func(m *nats.Msg) {
		if b := f(m); b != nil {
			_ = m.Respond(b)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (d *door) connect(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	o.Server = d.URL()
	if o.Seed == "" {
		o.Seed = d.seeds[o.ID]
	}
	c, err := client.Connect(deadline(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

// decision is the reply to m that allows it.
func decision(t *testing.T, m *nats.Msg, code reason.Code) []byte {
	s, ok := wire.ParseSubject(m.Subject)
	if !ok {
		t.Errorf("subject %q", m.Subject)
	}
	r := wire.Reply{Decision: &events.Decision{
		Subject: s.ID, Operation: s.Name, Allowed: code.Allowed(), Reason: string(code), OperationID: operationID(t, m.Data),
	}, Seq: 7}
	return r.Encode()
}

func operationID(t *testing.T, b []byte) string {
	v, err := events.ParseJSON(b)
	if err != nil {
		t.Error(err)
	}
	id, _ := v.Get("operation_id")
	return id.Text
}

func TestR51_RetriesRepeatTheSameBytes(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	var mu sync.Mutex
	var seen [][]byte
	d.answer(t, "propose", func(m *nats.Msg) []byte {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, m.Data)
		switch len(seen) {
		case 1:
			return wire.Error(reason.Overloaded)
		case 2:
			return nil // lost: the client cannot know whether it was judged
		case 3:
			return wire.Error(reason.NotKnownCommitted)
		}
		return decision(t, m, reason.OwnerWrite)
	})
	c := d.connect(t, client.Options{ID: "alice", Timeout: 200 * time.Millisecond})
	reply, err := c.Write(deadline(t), client.WriteRequest{Namespace: "notes", Key: "a", Value: "x"})
	if err != nil || !reply.Allowed || reply.Seq != 7 {
		t.Fatalf("reply %+v, error %v", reply, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 4 || len(operationID(t, seen[0])) != 36 {
		t.Fatalf("%d attempts, operation id %q", len(seen), operationID(t, seen[0]))
	}
	for _, b := range seen[1:] {
		if !bytes.Equal(b, seen[0]) {
			t.Errorf("a retry sent other bytes:\n%s\n%s", seen[0], b)
		}
	}
}

func TestBudgetEndsInWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(int) []byte // by attempt; nil is silence
		none   bool             // nobody listens at all
		reason client.Reason
		err    error
	}{
		{name: "refused at the door", answer: func(int) []byte { return wire.Error(reason.RateLimited) }, reason: reason.RateLimited},
		{name: "silence", answer: func(int) []byte { return nil }, err: client.ErrOutcomeUnknown},
		{name: "store failed", answer: func(int) []byte { return wire.Error(reason.NotKnownCommitted) }, err: client.ErrOutcomeUnknown},
		{name: "refused after silence", answer: func(n int) []byte {
			if n == 1 {
				return nil
			}
			return wire.Error(reason.Overloaded)
		}, err: client.ErrOutcomeUnknown},
		{name: "no ledger", none: true, err: client.ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
			var n atomic.Int64
			if !c.none {
				d.answer(t, "propose", func(*nats.Msg) []byte { return c.answer(int(n.Add(1))) })
			}
			cl := d.connect(t, client.Options{ID: "alice", Timeout: 100 * time.Millisecond, Retries: 2})
			reply, err := cl.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"})
			switch {
			case c.err != nil:
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "operation id ") {
					t.Fatalf("error %v, want %v with the operation id", err, c.err)
				}
			case err != nil || reply.Allowed || reply.ReasonCode != c.reason || reply.Seq != 0:
				t.Fatalf("reply %+v, error %v", reply, err)
			}
			if !c.none && n.Load() != 3 {
				t.Errorf("%d attempts, want 3", n.Load())
			}
		})
	}
}

func TestContextBoundsRetries(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	ctx, cancel := context.WithCancel(context.Background())
	d.answer(t, "propose", func(*nats.Msg) []byte { cancel(); return nil })
	c := d.connect(t, client.Options{ID: "alice", Timeout: time.Hour, Retries: 1000})
	_, err := c.Read(ctx, client.ReadRequest{Namespace: "notes", Key: "a"})
	if !errors.Is(err, client.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// CASES 211: a forbidden publish must not look like a slow one. The timeout of
// an hour would outlast the test.
func TestForbiddenPublishFailsAtOnce(t *testing.T) {
	d := openDoor(t, map[string]string{"watcher": natsapi.RoleObserver, "alice": natsapi.RoleAgent, "bob": natsapi.RoleAgent})
	watcher := d.connect(t, client.Options{ID: "watcher", Timeout: time.Hour})
	if _, err := watcher.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"}); !errors.Is(err, client.ErrPermissionViolation) {
		t.Errorf("an observer proposes: %v", err)
	}
	alice := d.connect(t, client.Options{ID: "alice", Timeout: time.Hour})
	if _, err := alice.Control(deadline(t), "agent.revoke", map[string]string{"agent_id": "bob"}); !errors.Is(err, client.ErrPermissionViolation) {
		t.Errorf("an agent controls: %v", err)
	}
	if err := alice.Watch(deadline(t), 1, func(client.Event) error { return nil }); !errors.Is(err, client.ErrPermissionViolation) {
		t.Errorf("an agent follows the stream: %v", err)
	}
	posing := d.connect(t, client.Options{ID: "bob", Seed: d.seeds["alice"], Timeout: time.Hour})
	if _, err := posing.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"}); !errors.Is(err, client.ErrPermissionViolation) {
		t.Errorf("alice's key under bob's name: %v", err)
	}
}

func TestOneRefusedCallLeavesOthersAlone(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	asked, release := make(chan struct{}), make(chan struct{})
	d.answer(t, "propose", func(m *nats.Msg) []byte {
		close(asked)
		<-release
		return decision(t, m, reason.VisibleFrom)
	})
	c := d.connect(t, client.Options{ID: "alice", Timeout: within})
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"})
		done <- err
	}()
	<-asked
	if _, err := c.Control(deadline(t), "clock.accept", struct{}{}); !errors.Is(err, client.ErrPermissionViolation) {
		t.Errorf("control by an agent: %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the allowed call beside it: %v", err)
	}
}

func TestRevokedClientLearnsWhy(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	d.answer(t, "propose", func(m *nats.Msg) []byte { return decision(t, m, reason.VisibleFrom) })
	c := d.connect(t, client.Options{ID: "alice"})
	if _, err := c.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"}); err != nil {
		t.Fatal(err)
	}
	d.revoke("alice")
	d.Disconnect("alice")
	for ctx := deadline(t); ; {
		_, err := c.Read(ctx, client.ReadRequest{Namespace: "notes", Key: "a"})
		if errors.Is(err, client.ErrUnauthorized) {
			break
		}
		if err == nil || ctx.Err() != nil {
			t.Fatalf("a revoked agent is told %v", err)
		}
	}
	_, err := client.Connect(deadline(t), client.Options{Server: d.URL(), ID: "alice", Seed: d.seeds["alice"]})
	if !errors.Is(err, client.ErrUnauthorized) {
		t.Errorf("connect again: %v", err)
	}
}

func TestConnectErrors(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	dir := t.TempDir()
	seedFile := filepath.Join(dir, "alice.nk")
	if err := os.WriteFile(seedFile, []byte(d.seeds["alice"]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := client.Connect(deadline(t), client.Options{Server: d.URL(), ID: "alice", SeedFile: seedFile})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	accountSeed, err := account.Seed()
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]client.Options{
		"no file":         {ID: "alice", SeedFile: filepath.Join(dir, "none.nk")},
		"no seed":         {ID: "alice", Seed: "SUNOTASEED"},
		"an account seed": {ID: "alice", Seed: string(accountSeed)},
		"bad id":          {ID: "alice.bob", Seed: d.seeds["alice"]},
		"wildcard id":     {ID: "*", Seed: d.seeds["alice"]},
		"bad ledger":      {ID: "alice", Ledger: "main.>", Seed: d.seeds["alice"]},
	} {
		o.Server = d.URL()
		if c, err := client.Connect(deadline(t), o); err == nil {
			c.Close()
			t.Errorf("%s: connected", name)
		} else if strings.Contains(err.Error(), d.seeds["alice"]) {
			t.Errorf("%s: the error holds the seed", name)
		}
	}
	if _, err := client.Connect(deadline(t), client.Options{Server: "nats://127.0.0.1:1", ID: "alice", Seed: d.seeds["alice"]}); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("nothing listens: %v", err)
	}
}

func TestRepliesThatMakeNoSense(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	var reply atomic.Value
	d.answer(t, "propose", func(*nats.Msg) []byte { return []byte(reply.Load().(string)) })
	c := d.connect(t, client.Options{ID: "alice"})
	for _, bad := range []string{
		`{`, `[]`, `{}`, `{"allowed":true}`,
		`{"allowed":true,"reason_code":"actor_is_not_owner"}`,
		`{"allowed":false,"reason_code":"owner_write"}`,
		`{"allowed":true,"reason_code":"a_code_of_tomorrow"}`,
		`{"allowed":true,"reason_code":"owner_write","operation_id":"another"}`,
		`{"allowed":true,"reason_code":"owner_write","subject":"bob"}`,
	} {
		reply.Store(bad)
		if r, err := c.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"}); !errors.Is(err, client.ErrBadReply) {
			t.Errorf("%s: reply %+v, error %v", bad, r, err)
		}
	}
	reply.Store(`{"allowed":false,"reason_code":"a_code_of_tomorrow"}`)
	if r, err := c.Read(deadline(t), client.ReadRequest{Namespace: "notes", Key: "a"}); err != nil || r.Allowed {
		t.Errorf("an unknown denial is a denial: %+v, %v", r, err)
	}
}

// CASES 103: two agents use equal operation ids at the same time; every reply
// is the answer to its own request.
func TestEqualOperationIDsNeverCross(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent, "bob": natsapi.RoleAgent})
	d.answer(t, "propose", func(m *nats.Msg) []byte {
		s, _ := wire.ParseSubject(m.Subject)
		r := wire.Reply{Decision: &events.Decision{Subject: s.ID, Operation: s.Name, Allowed: true, Reason: string(reason.VisibleFrom),
			OperationID: operationID(t, m.Data)}, Record: &wire.Record{Value: []byte(`"` + s.ID + `"`)}}
		return r.Encode()
	})
	const each, workers = 5_000, 8
	var wg sync.WaitGroup
	ctx := deadline(t)
	for _, id := range []string{"alice", "bob"} {
		c := d.connect(t, client.Options{ID: id, Timeout: within})
		var next atomic.Int64
		for range workers {
			wg.Go(func() {
				for i := next.Add(1); i <= each && !t.Failed(); i = next.Add(1) {
					op := fmt.Sprintf("op-%d", i)
					r, err := c.Read(ctx, client.ReadRequest{Meta: client.Meta{OperationID: op}, Namespace: "notes", Key: "a"})
					if err != nil || r.OperationID != op || string(r.Record.Value) != `"`+id+`"` {
						t.Errorf("%s %s: %+v, %v", id, op, r, err)
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestRequestsAreJSONTheLedgerTakes(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	var got atomic.Value
	d.answer(t, "propose", func(m *nats.Msg) []byte { got.Store(m.Data); return decision(t, m, reason.ActionAllowed) })
	c := d.connect(t, client.Options{ID: "alice"})
	for _, bad := range []any{nil, "text", []int{1}, func() {}, map[string]any{"n": uint64(1) << 60}} {
		if _, err := c.Propose(deadline(t), "action.authorize", bad); err == nil || got.Load() != nil {
			t.Errorf("%v: sent %v, error %v", bad, got.Load(), err)
		}
	}
	sop := client.SOP{ID: "s", Version: 1, Steps: []client.Step{{ID: "a", Action: "x"}}}
	if _, err := c.ValidateSOP(deadline(t), client.SOPRequest{Meta: client.Meta{OperationID: "1"}, SOP: sop}); err != nil {
		t.Fatal(err)
	}
	want := `{"operation_id":"1","sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"x","arguments":{}}]}}`
	if b := got.Load().([]byte); string(b) != want {
		t.Errorf("sent %s, want %s", b, want)
	}
}

func TestRefusedQueryIsARefusal(t *testing.T) {
	d := openDoor(t, map[string]string{"alice": natsapi.RoleAgent})
	d.answer(t, "query", func(m *nats.Msg) []byte { return wire.Error(reason.NotPermittedForRole) })
	c := d.connect(t, client.Options{ID: "alice"})
	_, err := c.Events(deadline(t), client.EventsQuery{From: 1})
	var refusal *client.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != reason.NotPermittedForRole {
		t.Fatal(err)
	}
}

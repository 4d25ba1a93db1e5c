// Package ledgerdtest runs a real ledger in your tests: the single writer on
// disk, behind its NATS server on a port of its own, in this process and in a
// temporary directory. Give it a policy, take clients as its agents, and put a
// Spy in the place of your handlers to see which effects were asked for.
//
//	l := ledgerdtest.Start(t, policy)
//	tools := l.Spy("tools")
//	reply, err := l.As("researcher").SubmitSOP(ctx, request, time.Minute)
//	if n := tools.Calls("external.upload"); n != 0 { … }
//
// When the test ends the ledger is stopped, and its log verified and judged
// again: a test that leaves a log the rules would not give fails.
package ledgerdtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// Deadline is how long anything here is waited for before the test fails.
const Deadline = time.Minute

// Ledger is a ledger being served for one test. Its methods may be called from
// the test's goroutine only; they fail the test rather than return an error.
type Ledger struct {
	t       testing.TB
	dir     string
	listen  string
	seeds   map[string]string   // by id
	actions map[string][]string // by handler
	admin   *client.Client

	ledger *ledger.Ledger
	node   *natsapi.Node
	cancel context.CancelFunc
	ended  chan error
	down   bool
}

// Start starts a ledger with the documents of policy in force (YAML, as for
// "ledgerd apply"); agents and principals without a public_key get keys. The
// admin is called admin.
func Start(t testing.TB, policy string) *Ledger {
	t.Helper()
	l := &Ledger{t: t, dir: filepath.Join(t.TempDir(), "data"), listen: "127.0.0.1:0", seeds: map[string]string{}, actions: map[string][]string{}}
	if err := ledger.Init(l.dir, ledger.InitOptions{}); err != nil {
		t.Fatalf("make a ledger: %v", err)
	}
	seed, err := os.ReadFile(filepath.Join(l.dir, "keys", "admin.nk"))
	if err != nil {
		t.Fatalf("the admin's key: %v", err)
	}
	l.seeds["admin"] = strings.TrimSpace(string(seed))
	l.serve()
	l.listen = strings.TrimPrefix(l.node.URL(), "nats://")
	t.Cleanup(func() { l.Stop() })
	l.admin = l.As("admin")
	if reply := l.Apply(policy); !reply.Allowed {
		t.Fatalf("the policy is not taken: %s: %s", reply.ReasonCode, strings.Join(reply.Failed, "; "))
	}
	return l
}

// Apply puts documents in force, as Start does, and returns the decision.
func (l *Ledger) Apply(documents string) *client.Reply {
	l.t.Helper()
	if _, faults := policy.ParseFile("policy", documents); len(faults) > 0 {
		l.t.Fatalf("the documents: %v", faults)
	}
	var texts []string
	for _, part := range policy.SplitFile("policy", documents) {
		texts = append(texts, l.withKey(part.Text))
	}
	reply, err := l.admin.Control(l.Context(), "apply", map[string]any{"documents": texts})
	if err != nil {
		l.t.Fatalf("apply: %v", err)
	}
	return reply
}

// withKey adds a key to an agent or principal that is new and has none.
func (l *Ledger) withKey(text string) string {
	l.t.Helper()
	doc, _ := policy.ParseDocument(text)
	id, has := "", false
	switch {
	case doc.Agent != nil:
		id, has = doc.Agent.ID, doc.Agent.PublicKey != ""
	case doc.Principal != nil:
		id, has = doc.Principal.ID, doc.Principal.PublicKey != ""
		l.actions[id] = doc.Principal.Actions
	}
	if id == "" || has || l.seeds[id] != "" {
		return text
	}
	return text + "public_key: " + l.newKey(id) + "\n"
}

func (l *Ledger) newKey(id string) string {
	l.t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		l.t.Fatalf("make a key: %v", err)
	}
	seed, err := key.Seed()
	if err != nil {
		l.t.Fatalf("make a key: %v", err)
	}
	public, err := key.PublicKey()
	if err != nil {
		l.t.Fatalf("make a key: %v", err)
	}
	l.seeds[id] = string(seed)
	return public
}

// Register makes an agent below parent, or a root where that is empty.
func (l *Ledger) Register(parent, id string, capabilities ...string) {
	l.t.Helper()
	if capabilities == nil {
		capabilities = []string{}
	}
	reply, err := l.admin.Control(l.Context(), "agent.register",
		client.RegisterRequest{AgentID: id, ParentID: parent, Capabilities: capabilities, PublicKey: l.newKey(id)})
	if err != nil || !reply.Allowed {
		l.t.Fatalf("register %s: %+v, %v", id, reply, err)
	}
}

// As returns a client with the identity id, closed when the test ends.
func (l *Ledger) As(id string) *client.Client {
	l.t.Helper()
	c, err := client.Connect(l.Context(), client.Options{Server: l.URL(), ID: id, Seed: l.Seed(id), Retries: 1000})
	if err != nil {
		l.t.Fatalf("connect as %s: %v", id, err)
	}
	l.t.Cleanup(c.Close)
	return c
}

// Admin returns the admin's client.
func (l *Ledger) Admin() *client.Client { return l.admin }

// URL is the server's address.
func (l *Ledger) URL() string { return "nats://" + strings.TrimPrefix(l.node.URL(), "nats://") }

// Seed is the NATS user seed of id.
func (l *Ledger) Seed(id string) string {
	l.t.Helper()
	if l.seeds[id] == "" {
		l.t.Fatalf("%s is not registered here", id)
	}
	return l.seeds[id]
}

// Context returns one that ends after Deadline, or with the test.
func (l *Ledger) Context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Deadline)
	l.t.Cleanup(cancel)
	return ctx
}

// Events returns all events of the log, in order.
func (l *Ledger) Events() []client.Event {
	l.t.Helper()
	var list []client.Event
	for q := (client.EventsQuery{From: 1}); ; {
		page, err := l.admin.Events(l.Context(), q)
		if err != nil {
			l.t.Fatalf("read the log: %v", err)
		}
		for _, b := range page.Events {
			e, err := client.ParseEvent([]byte(b))
			if err != nil {
				l.t.Fatalf("read the log: %v", err)
			}
			list = append(list, e)
		}
		if q.From = page.Next; page.Next > page.Head {
			return list
		}
	}
}

// Restart stops the ledger and starts it again on the same directory and port;
// clients reconnect. An effect that was under way leaves its run in doubt.
func (l *Ledger) Restart() {
	l.t.Helper()
	l.Stop()
	l.serve()
}

// Stop stops the ledger, and verifies and judges its log again.
func (l *Ledger) Stop() {
	l.t.Helper()
	if l.down {
		return
	}
	l.down = true
	l.node.Drain()
	l.cancel()
	if err := <-l.ended; err != nil {
		l.t.Errorf("the ledger: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Deadline)
	defer cancel()
	if err := l.node.Close(ctx); err != nil {
		l.t.Errorf("the server: %v", err)
	}
	replaytest.CheckLedger(l.t, ledger.Options{Dir: l.dir})
}

func (l *Ledger) serve() {
	l.t.Helper()
	var err error
	if l.ledger, err = ledger.Open(ledger.Options{Dir: l.dir}); err != nil {
		l.t.Fatalf("open the ledger: %v", err)
	}
	l.node, err = natsapi.Start(l.ledger, natsapi.Config{StoreDir: filepath.Join(l.dir, "stream"), Listen: l.listen, Version: "0.0.0"})
	if err != nil {
		l.t.Fatalf("serve the ledger: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel, l.ended, l.down = cancel, make(chan error, 1), false
	go func(run func(context.Context) error, ended chan error) { ended <- run(ctx) }(l.ledger.Run, l.ended)
}

// wait fails the test unless ok reports true before the deadline.
func (l *Ledger) wait(what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(Deadline); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("after %s still not: %s", Deadline, what)
		}
	}
}

// WaitRun waits until a run is at rest (finished, failed, cancelled or in
// doubt) and returns it, as the agent that c speaks for sees it.
func (l *Ledger) WaitRun(c *client.Client, runID string) *client.Run {
	l.t.Helper()
	var run *client.Run
	l.wait(fmt.Sprintf("run %s at rest", runID), func() bool {
		var err error
		if run, err = c.Run(l.Context(), runID, ""); err != nil {
			l.t.Fatalf("run %s: %v", runID, err)
		}
		return run.AtRest()
	})
	return run
}

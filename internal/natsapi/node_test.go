package natsapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// front is a whole ledger behind its front door, on disk and over TCP.
type front struct {
	t       testing.TB
	options ledger.Options
	config  natsapi.Config
	ledger  *ledger.Ledger
	node    *natsapi.Node
	log     *syncBuffer
	keys    map[string]nkeys.KeyPair
	conns   map[string]*nats.Conn
	cancel  context.CancelFunc
	ended   chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// openFront makes a ledger, serves it, and applies the worked case.
func openFront(t testing.TB, change ...func(*natsapi.Config)) *front {
	t.Helper()
	f := openFrontWithout(t, change...)
	f.family()
	return f
}

// openFrontWithout applies nothing.
func openFrontWithout(t testing.TB, change ...func(*natsapi.Config)) *front {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := ledger.Init(dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	f := &front{
		t: t, log: &syncBuffer{}, keys: map[string]nkeys.KeyPair{}, conns: map[string]*nats.Conn{},
	}
	logger := slog.New(slog.NewTextHandler(f.log, nil))
	f.options = ledger.Options{Dir: dir, Log: logger, Look: natsapi.Look(filepath.Join(dir, "stream"), logger)}
	f.config = natsapi.Config{StoreDir: filepath.Join(dir, "stream"), Listen: "127.0.0.1:0", Version: "0.0.1", Log: logger}
	for _, c := range change {
		c(&f.config)
	}
	seed, err := os.ReadFile(filepath.Join(dir, "keys", "admin.nk"))
	if err != nil {
		t.Fatal(err)
	}
	if f.keys["admin"], err = nkeys.FromSeed(bytes.TrimSpace(seed)); err != nil {
		t.Fatal(err)
	}
	f.start()
	t.Cleanup(f.close)
	return f
}

func (f *front) start() {
	f.t.Helper()
	var err error
	if f.ledger, err = ledger.Open(f.options); err != nil {
		f.t.Fatal(err)
	}
	if f.node, err = natsapi.Start(f.ledger, f.config); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel, f.ended = cancel, make(chan error, 1)
	go func() { f.ended <- f.ledger.Run(ctx) }()
}

// stop ends everything and checks the log that is left.
func (f *front) stop() replaytestReport {
	f.t.Helper()
	for id, nc := range f.conns {
		nc.Close()
		delete(f.conns, id)
	}
	f.node.Drain()
	f.cancel()
	if err := <-f.ended; err != nil {
		f.t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := f.node.Close(ctx); err != nil {
		f.t.Error(err)
	}
	f.node = nil
	report := replaytest.CheckLedger(f.t, f.options)
	return replaytestReport{report.Events, report.Decisions}
}

type replaytestReport struct{ events, decisions uint64 }

func (f *front) close() {
	if f.node != nil {
		f.stop()
	}
}

// key makes an identity's key and returns its public half.
func (f *front) key(id string) string {
	f.t.Helper()
	if f.keys[id] == nil {
		pair, err := nkeys.CreateUser()
		if err != nil {
			f.t.Fatal(err)
		}
		f.keys[id] = pair
	}
	public, err := f.keys[id].PublicKey()
	if err != nil {
		f.t.Fatal(err)
	}
	return public
}

func (f *front) agent(id, parent string, capabilities ...string) string {
	text := "kind: Agent\nid: " + id + "\n"
	if parent != "" {
		text += "parent: " + parent + "\n"
	}
	return text + "capabilities: [" + strings.Join(capabilities, ", ") + "]\npublic_key: " + f.key(id) + "\n"
}

func (f *front) family() {
	f.t.Helper()
	all := []string{"memory.read", "memory.write", "document.summarize", "artifact.save", "agent.register"}
	r := f.ask("admin", "control", "apply", replaytest.ApplyRequest(
		replaytest.PolicyDocument("lab-1"),
		f.agent("report_manager", "", append(all, "external.upload")...),
		f.agent("researcher", "report_manager", all...),
		f.agent("formatter", "researcher", "memory.read", "artifact.save"),
		"kind: Principal\nid: auditor\nrole: auditor\npublic_key: "+f.key("auditor")+"\n",
		"kind: Principal\nid: watcher\nrole: observer\npublic_key: "+f.key("watcher")+"\n",
		"kind: Principal\nid: clerk\nrole: registrar\npublic_key: "+f.key("clerk")+"\n",
		"kind: Principal\nid: tools\nrole: handler\nactions: [artifact.save]\npublic_key: "+f.key("tools")+"\n",
		replaytest.MemoryDocument("report_manager", "project", "client_region", "EU", "descendants"),
		replaytest.MemoryDocument("report_manager", "policy", "external_upload", "false", "descendants"),
		replaytest.MemoryDocument("report_manager", "report", "retention_days", "30", "descendants"),
		replaytest.MemoryDocument("report_manager", "credentials", "storage_token", "token-placeholder", "private"),
	))
	if !r.Allowed {
		f.t.Fatalf("apply: %s", r.Text)
	}
}

// conn is id's connection over TCP.
func (f *front) conn(id string) *nats.Conn {
	f.t.Helper()
	if nc := f.conns[id]; nc != nil {
		return nc
	}
	nc, err := f.dial(id)
	if err != nil {
		f.t.Fatalf("connect %s: %v", id, err)
	}
	f.conns[id] = nc
	return nc
}

func (f *front) dial(id string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(f.node.URL(), append([]nats.Option{
		nats.Nkey(f.key(id), f.keys[id].Sign), nats.CustomInboxPrefix("_INBOX." + id), nats.MaxReconnects(0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, options...)...)
}

type reply struct {
	replaytest.Reply
	header nats.Header
}

// ask sends a request as id and waits for the answer.
func (f *front) ask(id, lane, operation, body string) reply {
	f.t.Helper()
	return f.send(id, "gov.main."+lane+"."+id+"."+operation, []byte(body), nil)
}

func (f *front) send(id, subject string, body []byte, header nats.Header) reply {
	f.t.Helper()
	m, err := f.conn(id).RequestMsg(&nats.Msg{Subject: subject, Data: body, Header: header}, 10*time.Second)
	if err != nil {
		f.t.Fatalf("%s: %v\n%s", subject, err, f.log)
	}
	r := reply{header: m.Header}
	r.Text = string(m.Data)
	if err := json.Unmarshal(m.Data, &r); err != nil {
		f.t.Fatalf("%s: reply %q: %v", subject, m.Data, err)
	}
	return r
}

func (f *front) propose(id, operation, body string) reply {
	f.t.Helper()
	return f.ask(id, "propose", operation, body)
}

// head is the last durable seq.
func (f *front) head() uint64 { return f.ledger.Durable() }

// since returns the events after seq.
func (f *front) since(seq uint64) []events.Event {
	f.t.Helper()
	var list []events.Event
	head := f.head()
	if head == seq {
		return nil
	}
	err := f.ledger.Events(seq+1, head, func(_ uint64, b []byte) error {
		e, err := events.Parse(b)
		list = append(list, e)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

// eventually waits for ok, with a generous deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// caughtUp waits until the stream holds the whole log.
func (f *front) caughtUp() {
	f.t.Helper()
	eventually(f.t, "the feed catches up", func() bool {
		s := f.node.Feed()
		if s.Halted != nil {
			f.t.Fatal(s.Halted)
		}
		return s.Published == f.head()
	})
}

// stream reads the whole stream as the auditor.
func (f *front) stream() [][]byte {
	f.t.Helper()
	f.caughtUp()
	js, err := jetstream.NewWithAPIPrefix(f.conn("auditor"), "LJS.API")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	consumer, err := js.OrderedConsumer(ctx, "LEDGER_main", jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		f.t.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		f.t.Fatal(err)
	}
	defer messages.Stop()
	var list [][]byte
	for uint64(len(list)) < f.head() {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			f.t.Fatal(err)
		}
		list = append(list, append([]byte(m.Subject()+"\n"+fmt.Sprint(m.Headers())+"\n"), m.Data()...))
	}
	return list
}

// files returns the content of every file under the data directory but keys.
func (f *front) files() map[string][]byte {
	f.t.Helper()
	content := map[string][]byte{}
	err := filepath.WalkDir(f.options.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		content[path] = b
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return content
}

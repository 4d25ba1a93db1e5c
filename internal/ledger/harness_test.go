package ledger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// ended is a context for a ledger that is to stop at once.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newDir makes a ledger in a temporary directory.
func newDir(t testing.TB) ledger.Options {
	t.Helper()
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	must(t, ledger.Init(o.Dir, ledger.InitOptions{}))
	return o
}

// newMem makes a ledger whose log is in memory, on a file system that can show
// what a crash would leave of it; keys and anchor are on disk.
func newMem(t testing.TB) (ledger.Options, *vfs.MemFS) {
	t.Helper()
	return inMem(t, newDir(t))
}

// inMem copies a ledger's database into memory.
func inMem(t testing.TB, o ledger.Options) (ledger.Options, *vfs.MemFS) {
	t.Helper()
	sys := vfs.NewCrashableMem()
	sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
	found, err := vfs.Clone(vfs.Default, sys, filepath.Join(o.Dir, "db"), filepath.Join(o.Dir, "db"), vfs.CloneSync)
	if err != nil || !found {
		t.Fatalf("clone: %v %v", found, err)
	}
	for dir := filepath.Join(o.Dir, "db"); ; dir = filepath.Dir(dir) { // the clone leaves the way there unsynced
		f, err := sys.OpenDir(dir)
		must(t, err)
		must(t, errors.Join(f.Sync(), f.Close()))
		if dir == filepath.Dir(dir) {
			break
		}
	}
	o.Store.FS = sys
	return o, sys
}

// start runs the ledger and has the family in it.
func start(t testing.TB, o ledger.Options) *replaytest.Session {
	t.Helper()
	s := replaytest.Start(t, o)
	s.Family()
	return s
}

func write(key, value string, revision int, id string) string {
	b := fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"notes","key":%q,"value":%s`, key, value)
	if revision > 0 {
		b += fmt.Sprintf(`,"expected_revision":%d`, revision)
	}
	if id != "" {
		b += fmt.Sprintf(`,"operation_id":%q`, id)
	}
	return b + "}"
}

func readBody(name string) string {
	dot := strings.LastIndexByte(name, '.')
	return fmt.Sprintf(`{"namespace":%q,"key":%q}`, name[:dot], name[dot+1:])
}

func proposeWrite(key, value string, revision int, id string) *ledger.Proposal {
	return replaytest.Proposal(wire.Propose, "researcher", "memory.write", write(key, value, revision, id))
}

// expect fails unless a reply has the reason.
func expect(t testing.TB, r replaytest.Reply, code reason.Code) {
	t.Helper()
	if r.Reason != string(code) {
		t.Fatalf("reply %s, want %s", r.Text, code)
	}
}

// look runs fn on the writer's state and returns what it says, once durable.
func look[T any](t testing.TB, l *ledger.Ledger, fn func(*projection.State) T) T {
	t.Helper()
	var seen T
	answers := make(chan ledger.Answer, 1)
	code := l.Ask("admin", func(s *projection.State) func() []byte {
		seen = fn(s)
		return func() []byte { return []byte("{}") }
	}, func(a ledger.Answer) { answers <- a })
	if code != "" {
		t.Fatalf("ask: %s", code)
	}
	if a := <-answers; a.Reason != "" {
		t.Fatalf("ask: %s", a.Reply)
	}
	return seen
}

func revision(t testing.TB, l *ledger.Ledger, owner, namespace, key string) uint64 {
	t.Helper()
	return look(t, l, func(s *projection.State) uint64 {
		if r := s.Live(owner, namespace, key, s.Time); r != nil {
			return r.Revision
		}
		return 0
	})
}

// logged reads the event of a reply's receipt and compares it with the receipt.
func logged(t testing.TB, l *ledger.Ledger, r replaytest.Reply) *events.Event {
	t.Helper()
	b, err := l.Event(r.Seq)
	must(t, err)
	e, err := events.Parse(b)
	must(t, err)
	if events.LeafHash(b).String() != r.Hash || events.UUIDString(e.ID) != r.EventID {
		t.Fatalf("receipt %s is not of event %d", r.Text, r.Seq)
	}
	return &e
}

// decisions counts the durable decisions that fit.
func decisions(t testing.TB, l *ledger.Ledger, fits func(*events.Decision) bool) int {
	t.Helper()
	n := 0
	must(t, l.Events(1, l.Durable(), func(_ uint64, b []byte) error {
		e, err := events.Parse(b)
		if d, ok := e.Body.(*events.Decision); ok && fits(d) {
			n++
		}
		return err
	}))
	return n
}

// gate holds back the syncs of the write-ahead log while it is shut.
type gate struct {
	mu      sync.Mutex
	hold    chan struct{} // syncs wait for it; nil when open
	waiting chan struct{} // told when one waits
}

func newGate() *gate { return &gate{waiting: make(chan struct{}, 1000)} }

func (g *gate) fs(sys vfs.FS) vfs.FS { return errorfs.Wrap(sys, errorfs.InjectorFunc(g.maybe)) }

func (g *gate) maybe(op errorfs.Op) error {
	if !isSync(op) || !strings.HasSuffix(op.Path, ".log") {
		return nil
	}
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		g.waiting <- struct{}{}
		<-hold
	}
	return nil
}

func isSync(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.hold)
	g.hold = nil
}

// contents is every file under dir with its bytes.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	}))
	return files
}

// silent is a logger for Pebble.
type silent struct{}

func (silent) Infof(string, ...any)        {}
func (silent) Errorf(string, ...any)       {}
func (silent) Fatalf(f string, arg ...any) { panic(fmt.Sprintf(f, arg...)) }

// overwritePayload exchanges a payload record behind the ledger's back.
func overwritePayload(t testing.TB, o ledger.Options, seq uint64, record []byte) {
	t.Helper()
	overwrite(t, o, binary.BigEndian.AppendUint64([]byte{'p'}, seq), record)
}

// overwrite puts a value into a closed log's database.
func overwrite(t testing.TB, o ledger.Options, key, value []byte) {
	t.Helper()
	db, err := pebble.Open(filepath.Join(o.Dir, "db"), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	must(t, err)
	must(t, db.Set(key, value, pebble.Sync))
	must(t, db.Close())
}

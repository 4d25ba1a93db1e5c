package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// station is a door at which a handler works; reports are answered as the test
// says.
type station struct {
	*door
	t        *testing.T
	dispatch *nats.Conn

	mu      sync.Mutex
	hellos  [][]string
	reports []wire.Report
	answer  func(wire.Report) []byte
	faults  []string
}

func openStation(t *testing.T) *station {
	t.Helper()
	s := &station{door: openDoor(t, map[string]string{"tools": natsapi.RoleHandler}), t: t}
	for key, who := range s.byKey {
		who.Actions = []string{"artifact.save", "document.summarize"}
		s.byKey[key] = who
	}
	s.door.answer(t, "effect", func(m *nats.Msg) []byte {
		s.mu.Lock()
		defer s.mu.Unlock()
		if strings.HasSuffix(m.Subject, ".hello") {
			actions, code := wire.DecodeHello(m.Data)
			if code != "" {
				t.Errorf("hello %s: %s", m.Data, code)
			}
			s.hellos = append(s.hellos, actions)
			return wire.Ack()
		}
		r, code := wire.DecodeReport(m.Data)
		if code != "" {
			t.Errorf("report %.200s: %s", m.Data, code)
			return wire.Error(code)
		}
		s.reports = append(s.reports, *r)
		if s.answer != nil {
			return s.answer(*r)
		}
		return wire.Ack()
	})
	var err error
	if s.dispatch, err = s.Connect(natsapi.WorkDispatcher); err != nil {
		t.Fatal(err)
	}
	return s
}

// order publishes an exec as the ledger does.
func (s *station) order(action, operationID, arguments string) {
	s.t.Helper()
	run, step, _ := strings.Cut(operationID, "/")
	e := wire.Exec{OperationID: operationID, RunID: run, SOPID: "sop", StepID: step, Agent: "alice", Action: action, Arguments: []byte(arguments)}
	if err := s.dispatch.Publish("gov.main.exec."+action, e.Encode()); err != nil {
		s.t.Fatal(err)
	}
	if err := s.dispatch.Flush(); err != nil {
		s.t.Fatal(err)
	}
}

// reported waits until n reports came, and returns them as JSON.
func (s *station) reported(n int) []string {
	s.t.Helper()
	var list []string
	eventually(s.t, fmt.Sprintf("%d reports", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		list = nil
		for _, r := range s.reports {
			list = append(list, string(r.Encode()))
		}
		return len(list) >= n
	})
	return list
}

func (s *station) fault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, err.Error())
}

func (s *station) faultLike(text string) {
	s.t.Helper()
	eventually(s.t, "fault "+text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(strings.Join(s.faults, "\n"), text)
	})
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// handle runs the handler tools until the returned function is called.
func (s *station) handle(dir string, actions client.Actions, change ...func(*client.HandleOptions)) (stop func() error, store *client.EffectStore) {
	s.t.Helper()
	store, err := client.OpenEffects(dir, client.Retention{})
	if err != nil {
		s.t.Fatal(err)
	}
	c := s.connect(s.t, client.Options{ID: "tools"})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	o := client.HandleOptions{OnReady: func() { close(ready) }, OnError: s.fault}
	for _, f := range change {
		f(&o)
	}
	go func() { ended <- c.Handle(ctx, store, actions, o) }()
	select {
	case <-ready:
	case err := <-ended:
		s.t.Fatalf("the handler ended: %v", err)
	case <-time.After(within):
		s.t.Fatal("the handler is never ready")
	}
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() {
			cancel()
			err = errors.Join(<-ended, store.Close())
			c.Close()
		})
		return err
	}
	s.t.Cleanup(func() { stop() })
	return stop, store
}

// calls counts what a handler's functions were called for.
type calls struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *calls) note(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[id]++
}

func (c *calls) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[id]
}

// An order is done and reported: with its result, or with why it is not done.
func TestHandlerDoesAndReports(t *testing.T) {
	s := openStation(t)
	stop, store := s.handle(t.TempDir(), client.Actions{
		"artifact.save": func(ctx context.Context, e client.Effect) (any, error) {
			var args struct{ Path string }
			if err := e.Bind(&args); err != nil {
				return nil, err
			}
			if _, ok := ctx.Deadline(); !ok {
				t.Error("no deadline")
			}
			switch args.Path {
			case "panic":
				panic("at the disk")
			case "full":
				return nil, errors.New("the disk is full\x00\xff")
			case "large":
				return strings.Repeat("x", wire.ReportMax), nil
			case "odd":
				return json.RawMessage(`{"a":1,"a":2}`), nil
			case "none":
				return nil, nil
			}
			return map[string]any{"saved": args.Path, "by": e.Agent, "run": e.RunID + e.StepID + e.SOPID + e.Action}, nil
		},
	})
	for i, path := range []string{"draft/<a>", "panic", "full", "large", "odd", "none"} {
		s.order("artifact.save", "r1/"+fmt.Sprint(i), `{"path":"`+path+`"}`)
		got := s.reported(i + 1)[i]
		want := map[string]string{
			"draft/<a>": `{"operation_id":"r1/0","ok":true,"result":{"by":"alice","run":"r10sopartifact.save","saved":"draft/<a>"}}`,
			"panic":     `{"operation_id":"r1/1","ok":false,"error":"panic: at the disk"}`,
			"full":      `{"operation_id":"r1/2","ok":false,"error":"the disk is full��"}`,
			"large":     `{"operation_id":"r1/3","ok":false,"error":"done, but its result of 262146 bytes is too large to be reported: at most 262144"}`,
			"odd":       `{"operation_id":"r1/4","ok":false,"error":"done, but its result cannot be reported: `,
			"none":      `{"operation_id":"r1/5","ok":true}`,
		}[path]
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if d := store.Doubts(); len(d) > 0 {
		t.Errorf("doubts: %+v", d)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hellos) == 0 || strings.Join(s.hellos[0], " ") != "artifact.save" {
		t.Errorf("hellos: %q", s.hellos)
	}
}

// R52, CASES 154, 162: what is ordered twice is done once, before and after a
// restart, and the old report is sent again; an id does not stand for another
// order.
func TestR52_AnOrderSeenTwiceIsDoneOnce(t *testing.T) {
	s := openStation(t)
	dir := t.TempDir()
	var seen calls
	actions := client.Actions{"artifact.save": func(_ context.Context, e client.Effect) (any, error) {
		seen.note(e.OperationID)
		return e.StepID, nil
	}}
	stop, _ := s.handle(dir, actions)
	s.order("artifact.save", "r1/a", `{"path":"x"}`)
	first := s.reported(1)[0]
	const others = 300
	for i := range others {
		s.order("artifact.save", fmt.Sprintf("r2/%d", i), `{}`)
	}
	s.reported(1 + others)
	s.order("artifact.save", "r1/a", `{"path":"x"}`)
	if again := s.reported(2 + others)[1+others]; again != first {
		t.Errorf("again: %s, first %s", again, first)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s.handle(dir, actions)
	s.order("artifact.save", "r1/a", `{"path":"x"}`)
	if again := s.reported(3 + others)[2+others]; again != first {
		t.Errorf("after a restart: %s, first %s", again, first)
	}
	s.order("artifact.save", "r1/a", `{"path":"y"}`)
	s.faultLike("order r1/a: the operation id of another effect")
	s.order("artifact.save", "r3/a", `{}`)
	if next := s.reported(4 + others)[3+others]; !strings.Contains(next, "r3/a") {
		t.Errorf("the order that is not that of its id was reported: %s", next)
	}
	if n := seen.of("r1/a"); n != 1 {
		t.Errorf("done %d times", n)
	}
}

// A report is repeated until it is acknowledged, by the next process too; one
// that the ledger refuses for good is a doubt that a person resolves.
func TestReportsUntilAcknowledged(t *testing.T) {
	s := openStation(t)
	dir := t.TempDir()
	actions := client.Actions{"artifact.save": func(context.Context, client.Effect) (any, error) { return 1, nil }}
	s.answer = func(wire.Report) []byte { return wire.Error(reason.StorageLow) }
	stop, _ := s.handle(dir, actions, func(o *client.HandleOptions) { o.Grace = 50 * time.Millisecond })
	s.order("artifact.save", "r1/a", `{}`)
	s.reported(3)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.reports, s.answer = nil, nil
	s.mu.Unlock()
	stop, _ = s.handle(dir, actions)
	s.reported(1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.reports = nil
	s.answer = func(r wire.Report) []byte {
		if r.OperationID == "r1/a" {
			return wire.Ack()
		}
		return wire.Error(reason.NotFound)
	}
	s.mu.Unlock()
	_, store := s.handle(dir, actions)
	s.order("artifact.save", "r2/a", `{}`)
	eventually(t, "a doubt", func() bool { return len(store.Doubts()) == 1 })
	if d := store.Doubts()[0]; d.OperationID != "r2/a" || d.Refused != reason.NotFound || d.RunID != "r2" || d.StepID != "a" || d.Action != "artifact.save" {
		t.Errorf("%+v", d)
	}
	if r := s.reported(1); len(r) != 1 || !strings.Contains(r[0], "r2/a") {
		t.Errorf("an acknowledged report was sent again: %s", r)
	}
	if err := store.Resolve("r2/a", true); err != nil {
		t.Fatal(err)
	}
	if err := store.Resolve("r2/a", true); err == nil || len(store.Doubts()) != 0 {
		t.Errorf("resolved twice; doubts %+v", store.Doubts())
	}
}

// Stopped, a handler ends what it began, declines what waits, reports both, and
// leaves no doubt.
func TestHandlerStopsInOrder(t *testing.T) {
	s := openStation(t)
	begun, release := make(chan bool), make(chan bool)
	var seen calls
	stop, store := s.handle(t.TempDir(), client.Actions{"artifact.save": func(ctx context.Context, e client.Effect) (any, error) {
		seen.note(e.OperationID)
		begun <- true
		<-release
		return nil, ctx.Err()
	}}, func(o *client.HandleOptions) { o.Concurrency, o.Grace = 1, within })
	for i := range 4 {
		s.order("artifact.save", fmt.Sprintf("r1/%d", i), `{}`)
	}
	<-begun
	stopped := make(chan error)
	go func() { stopped <- stop() }()
	for i := 1; i < 4; i++ {
		s.faultLike(fmt.Sprintf("r1/%d: not begun", i))
	}
	release <- true
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	got := s.reported(4)
	slices.Sort(got)
	want := []string{`{"operation_id":"r1/0","ok":true}`}
	for i := 1; i < 4; i++ {
		want = append(want, fmt.Sprintf(`{"operation_id":"r1/%d","ok":false,"error":"not begun: the handler is stopping"}`, i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("reported %s", got)
	}
	if seen.of("r1/0") != 1 || len(seen.seen) != 1 {
		t.Errorf("done: %v", seen.seen)
	}
	if d := store.Doubts(); len(d) > 0 {
		t.Errorf("doubts: %+v", d)
	}
}

// What does not end within the grace period is named, its context is over, and
// for the next process it is in doubt and not to be done again.
func TestHandlerGraceEnds(t *testing.T) {
	s := openStation(t)
	dir := t.TempDir()
	begun, over, release := make(chan bool), make(chan error, 1), make(chan bool)
	stop, _ := s.handle(dir, client.Actions{"artifact.save": func(ctx context.Context, _ client.Effect) (any, error) {
		begun <- true
		<-ctx.Done()
		over <- ctx.Err()
		<-release
		return nil, nil
	}}, func(o *client.HandleOptions) { o.Grace = 20 * time.Millisecond })
	s.order("artifact.save", "r1/a", `{}`)
	<-begun
	if err := stop(); err == nil || !strings.Contains(err.Error(), "still running: r1/a") {
		t.Errorf("stopped: %v", err)
	}
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("its context: %v", err)
	}
	close(release)
	var seen calls
	_, store := s.handle(dir, client.Actions{"artifact.save": func(_ context.Context, e client.Effect) (any, error) {
		seen.note(e.OperationID)
		return nil, nil
	}})
	if d := store.Doubts(); len(d) != 1 || d[0].OperationID != "r1/a" {
		t.Fatalf("doubts: %+v", d)
	}
	s.order("artifact.save", "r1/a", `{}`)
	s.faultLike("running or in doubt: not done again")
	s.order("artifact.save", "r2/a", `{}`)
	if got := s.reported(1); len(got) != 1 || !strings.Contains(got[0], "r2/a") || seen.of("r1/a") != 0 {
		t.Errorf("reported %s, done %v", got, seen.seen)
	}
}

// An order whose turn does not come in time, or that there is no room for, is
// not begun, and the ledger is told so.
func TestHandlerDeclinesWhatItCannotDo(t *testing.T) {
	s := openStation(t)
	begun, release := make(chan bool), make(chan bool)
	s.handle(t.TempDir(), client.Actions{"artifact.save": func(ctx context.Context, e client.Effect) (any, error) {
		if e.OperationID == "r1/first" {
			begun <- true
			<-release
		}
		return nil, nil
	}}, func(o *client.HandleOptions) { o.Concurrency, o.Timeout = 1, 200*time.Millisecond })
	s.order("artifact.save", "r1/first", `{}`)
	<-begun
	for i := range 1026 {
		s.order("artifact.save", fmt.Sprintf("r2/%d", i), `{}`)
	}
	for i, r := range s.reported(2) {
		if !strings.HasSuffix(r, `"ok":false,"error":"not begun: 1024 effects wait for their turn already"}`) {
			t.Errorf("order %d beyond the room: %s", i, r)
		}
	}
	time.Sleep(200 * time.Millisecond)
	release <- true
	late := 0
	for _, r := range s.reported(1027) {
		if strings.HasSuffix(r, `"ok":false,"error":"not begun: its turn did not come within 200ms"}`) {
			late++
		}
	}
	if late == 0 {
		t.Error("no order was too late")
	}
}

// What a handler may not do, it is told at once.
func TestHandlerIsRefused(t *testing.T) {
	s := openStation(t)
	store, err := client.OpenEffects(t.TempDir(), client.Retention{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	nothing := func(context.Context, client.Effect) (any, error) { return nil, nil }
	c := s.connect(t, client.Options{ID: "tools"})
	for name, c2 := range map[string]struct {
		actions client.Actions
		want    error
	}{
		"another's action": {client.Actions{"external.upload": nothing}, client.ErrPermissionViolation},
	} {
		if err := c.Handle(deadline(t), store, c2.actions, client.HandleOptions{}); !errors.Is(err, c2.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, actions := range map[string]client.Actions{"none": nil, "no function": {"artifact.save": nil}, "a wildcard": {"artifact.*": nothing}} {
		if err := c.Handle(deadline(t), store, actions, client.HandleOptions{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := s.connect(t, client.Options{ID: "tools"}).Query(deadline(t), "checkpoint", nil); err == nil {
		t.Error("nobody answers queries here")
	}
}

// Without its store a handler does nothing: what cannot be noted is not done.
func TestHandlerWithoutItsStore(t *testing.T) {
	s := openStation(t)
	store, err := client.OpenEffects(t.TempDir(), client.Retention{})
	if err != nil {
		t.Fatal(err)
	}
	var seen calls
	ready, ended := make(chan bool), make(chan error)
	go func() {
		ended <- s.connect(t, client.Options{ID: "tools"}).Handle(deadline(t), store, client.Actions{
			"artifact.save": func(_ context.Context, e client.Effect) (any, error) { seen.note(e.OperationID); return nil, nil },
		}, client.HandleOptions{OnReady: func() { close(ready) }})
	}()
	<-ready
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	s.order("artifact.save", "r1/a", `{}`)
	if err := <-ended; !errors.Is(err, client.ErrStoreFailed) {
		t.Errorf("handle: %v", err)
	}
	if seen.of("r1/a") != 0 {
		t.Error("it was done")
	}
}

// What is no order is not taken for one.
func TestHandlerTakesOrdersOnly(t *testing.T) {
	s := openStation(t)
	var seen calls
	act := func(_ context.Context, e client.Effect) (any, error) { seen.note(e.OperationID); return nil, nil }
	s.handle(t.TempDir(), client.Actions{"artifact.save": act, "document.summarize": act})
	good := wire.Exec{OperationID: "r1/a", RunID: "r1", SOPID: "p", StepID: "a", Agent: "alice", Action: "document.summarize", Arguments: []byte(`{}`)}
	for _, junk := range []string{"", "{}", "null", string(good.Encode()), strings.Replace(string(good.Encode()), "document.summarize", "artifact.save", 1) + "x",
		strings.Replace(string(good.Encode()), "exec.v1", "exec.v2", 1)} {
		if err := s.dispatch.Publish("gov.main.exec.artifact.save", []byte(junk)); err != nil {
			t.Fatal(err)
		}
	}
	s.order("artifact.save", "r2/a", `{}`)
	if got := s.reported(1); len(got) != 1 || !strings.Contains(got[0], "r2/a") || len(seen.seen) != 1 {
		t.Errorf("reported %s, done %v", got, seen.seen)
	}
	s.faultLike("no order")
}

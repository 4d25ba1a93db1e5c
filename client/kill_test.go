package client_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// sweep is how many kills at random moments follow those at every point;
// .ci/long has more.
var sweep = flag.Int("sweep", 12, "how often ledger, handler or both are killed at random")

// stopPoints are the points between an order's arrival and the record of its
// acknowledgement. At before and after the effect itself happens.
var stopPoints = []string{"received", "started", "before", "after", "returned", "done", "reported", "acknowledged"}

// TestHandlerProcess is no test but the handler that TestR52_KilledAnywhere
// starts as a process. Its one action appends the effect's id to a file and
// syncs it: that is the effect, and the file the handler's own account.
func TestHandlerProcess(t *testing.T) {
	work := os.Getenv("LEDGERD_TEST_HANDLER")
	if work == "" {
		return
	}
	stop, how, _ := strings.Cut(os.Getenv("LEDGERD_TEST_STOP"), " ")
	ctx, end := context.WithCancel(context.Background())
	released := make(chan bool)
	go func() { // a line lets a held point go on; the end of input ends the process
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			released <- true
		}
		end()
	}()
	var once sync.Once
	at := func(point, operationID string) {
		if point == stop {
			once.Do(func() {
				fmt.Printf("at %s\n", operationID)
				if how == "die" {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
				<-released
			})
		}
	}
	client.SetStopPoint(at)
	store, err := client.OpenEffects(filepath.Join(work, "store"), client.Retention{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Connect(ctx, client.Options{Server: os.Getenv("LEDGERD_TEST_URL"), ID: "tools", SeedFile: filepath.Join(work, "tools.nk")})
	if err != nil {
		t.Fatal(err)
	}
	account, err := os.OpenFile(filepath.Join(work, "account"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	act := func(_ context.Context, e client.Effect) (any, error) {
		at("before", e.OperationID)
		if _, err := account.WriteString(e.OperationID + "\n"); err != nil {
			return nil, err
		}
		err := account.Sync()
		at("after", e.OperationID)
		return e.StepID, err
	}
	err = c.Handle(ctx, store, client.Actions{"tool.do": act}, client.HandleOptions{OnReady: func() { fmt.Println("ready") }})
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
}

// rig is the real ledgerd and a handler, each a process of its own.
type rig struct {
	t           *testing.T
	work        string
	binary      string
	listen, url string
	ledger      *exec.Cmd
	ledgerText  bytes.Buffer

	handler *exec.Cmd
	input   io.WriteCloser
	output  chan string
	ended   chan error

	alice, admin *client.Client
	runs         map[string]bool // those not known to have ended
}

func openRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, work: t.TempDir(), listen: "127.0.0.1:0", runs: map[string]bool{}}
	r.binary = filepath.Join(r.work, "ledgerd")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", r.binary, "../cmd/ledgerd").CombinedOutput(); err != nil {
		t.Fatalf("build ledgerd: %v\n%s", err, out)
	}
	if err := ledger.Init(r.data(), ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	r.startLedger()
	t.Cleanup(func() {
		for _, cmd := range []*exec.Cmd{r.ledger, r.handler} {
			if cmd != nil {
				_ = cmd.Process.Kill()
			}
		}
	})
	documents := []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: v1\nenvironment: [memory.read, tool.do]\nactions:\n  tool.do: {timeout: 1s}\n"}
	seeds := map[string]string{}
	for id, text := range map[string]string{
		"alice": "kind: Agent\nid: alice\ncapabilities: [tool.do]\n",
		"tools": "kind: Principal\nid: tools\nrole: handler\nactions: [tool.do]\n",
	} {
		key, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, _ := key.Seed()
		public, _ := key.PublicKey()
		seeds[id] = string(seed)
		documents = append(documents, text+"public_key: "+public+"\n")
	}
	if err := os.WriteFile(filepath.Join(r.work, "tools.nk"), []byte(seeds["tools"]), 0o600); err != nil {
		t.Fatal(err)
	}
	r.admin = r.connect(client.Options{ID: "admin", SeedFile: filepath.Join(r.data(), "keys", "admin.nk")})
	if reply, err := r.admin.Control(t.Context(), "apply", map[string]any{"documents": documents}); err != nil || !reply.Allowed {
		t.Fatalf("apply: %+v, %v", reply, err)
	}
	r.alice = r.connect(client.Options{ID: "alice", Seed: seeds["alice"]})
	return r
}

func (r *rig) data() string { return filepath.Join(r.work, "data") }

func (r *rig) connect(o client.Options) *client.Client {
	r.t.Helper()
	o.Server, o.Retries = r.url, 1000
	c, err := client.Connect(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

func (r *rig) startLedger() {
	r.t.Helper()
	ready := filepath.Join(r.work, "ready.json")
	r.ledgerText.Reset()
	r.ledger = exec.Command(r.binary, "serve", "--data", r.data(), "--listen", r.listen, "--ready-file", ready, "--rate", "0", "--min-free", "1MiB")
	r.ledger.Stderr = &r.ledgerText
	if err := r.ledger.Start(); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "ledgerd serves", func() bool {
		var content struct {
			URL string `json:"nats_url"`
			PID int    `json:"pid"`
		}
		b, err := os.ReadFile(ready)
		if err != nil || json.Unmarshal(b, &content) != nil || content.PID != r.ledger.Process.Pid {
			return false
		}
		r.url = content.URL
		r.listen = strings.TrimPrefix(r.url, "nats://")
		return true
	})
}

func (r *rig) killLedger() {
	r.t.Helper()
	if err := r.ledger.Process.Kill(); err != nil {
		r.t.Fatalf("ledgerd ended before it was killed: %v\n%s", err, &r.ledgerText)
	}
	_ = r.ledger.Wait()
	r.ledger = nil
}

// startHandler starts the handler, which stops as told ("point die" or "point
// hold"), and waits until the ledger knows of it.
func (r *rig) startHandler(stop string) {
	r.t.Helper()
	r.handler = exec.Command(os.Args[0], "-test.run=^TestHandlerProcess$", "-test.timeout=0")
	r.handler.Env = append(os.Environ(), "LEDGERD_TEST_HANDLER="+r.work, "LEDGERD_TEST_STOP="+stop, "LEDGERD_TEST_URL="+r.url)
	r.handler.Stderr = os.Stderr
	var err error
	if r.input, err = r.handler.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	output, err := r.handler.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.handler.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.output, r.ended = make(chan string, 100), make(chan error, 1)
	go func(cmd *exec.Cmd, lines chan string, ended chan error) {
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- scanner.Text()
		}
		ended <- cmd.Wait()
	}(r.handler, r.output, r.ended)
	r.await("ready")
}

// await waits for a line of the handler that begins with word.
func (r *rig) await(word string) {
	r.t.Helper()
	timeout := time.After(within)
	for {
		select {
		case line := <-r.output:
			if strings.HasPrefix(line, word) {
				return
			}
		case err := <-r.ended:
			r.ended <- err
			if word == "at" { // it may have died before we read
				for len(r.output) > 0 {
					if strings.HasPrefix(<-r.output, word) {
						return
					}
				}
			}
			r.t.Fatalf("the handler ended before it said %q: %v", word, err)
		case <-timeout:
			r.t.Fatalf("the handler never says %q", word)
		}
	}
}

func (r *rig) killHandler() {
	r.t.Helper()
	_ = r.handler.Process.Kill() // or it has done so itself
	<-r.ended
	r.handler = nil
}

// stopHandler has the handler end what it does, report it, and exit.
func (r *rig) stopHandler() {
	r.t.Helper()
	r.input.Close()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Errorf("the handler: %v", err)
		}
	case <-time.After(within):
		r.t.Fatal("the handler does not stop")
	}
	r.handler = nil
}

func (r *rig) submit(n int) {
	r.t.Helper()
	for range n {
		sop := client.SOP{ID: "p", Version: 1, Steps: []client.Step{{ID: "a", Action: "tool.do"}, {ID: "b", Action: "tool.do"}}}
		reply, err := r.alice.SubmitSOP(r.t.Context(), client.SOPRequest{SOP: sop}, 0)
		if err != nil || reply.Run == nil {
			r.t.Fatalf("submit: %+v, %v", reply, err)
		}
		r.runs[reply.Run.RunID] = true
	}
}

// kill ends the victims (ledger, handler or both), which held stand at a point,
// and starts them again.
func (r *rig) kill(victims string, held bool) {
	r.t.Helper()
	if victims != "handler" {
		r.killLedger()
	}
	if victims != "ledger" {
		r.killHandler()
	} else if held {
		if _, err := io.WriteString(r.input, "\n"); err != nil {
			r.t.Fatal(err)
		}
	}
	if r.ledger == nil {
		r.startLedger()
	}
	if r.handler == nil {
		r.startHandler("")
	}
}

// settle waits until every run is at rest, compares what the log says with what
// the handler did, and resolves what is in doubt by the handler's own account,
// until no run is open. It returns how many effects were in doubt.
func (r *rig) settle() (doubts int) {
	r.t.Helper()
	for {
		for id := range r.runs {
			eventually(r.t, "run "+id+" at rest", func() bool { return r.run(id).AtRest() })
		}
		r.stopHandler() // so that all is said that will be said
		account := r.compare()
		r.startHandler("")
		for id := range r.runs {
			run := r.run(id)
			if run.State != client.RunInDoubt {
				delete(r.runs, id)
				continue
			}
			step := run.Results[0].StepID
			if run.Results[1].State != "waiting" {
				step = run.Results[1].StepID
			}
			doubts++
			done := account[id+"/"+step] == 1
			if reply, err := r.admin.ResolveRun(r.t.Context(), client.ResolveRequest{RunID: id, StepID: step, Done: done}); err != nil || !reply.Allowed {
				r.t.Fatalf("resolve %s of %s, %s: %+v, %v", step, id, run.Raw, reply, err)
			}
		}
		if len(r.runs) == 0 {
			return doubts
		}
	}
}

func (r *rig) run(id string) *client.Run {
	r.t.Helper()
	run, err := r.alice.Run(r.t.Context(), id, "")
	if err != nil {
		r.t.Fatalf("run %s: %v", id, err)
	}
	return run
}

// compare holds the log against the handler's account, while no handler runs:
// each effect once or in doubt, never twice, never lost.
func (r *rig) compare() map[string]int {
	r.t.Helper()
	account := map[string]int{}
	b, err := os.ReadFile(filepath.Join(r.work, "account"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	for _, id := range strings.Fields(string(b)) {
		account[id]++
	}
	store, err := client.OpenEffects(filepath.Join(r.work, "store"), client.Retention{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer store.Close()
	if u := store.Unreported(); len(u) > 0 {
		r.t.Errorf("not reported: %v", u)
	}
	doubted := map[string]bool{}
	for _, d := range store.Doubts() {
		doubted[d.OperationID] = true
		if d.Refused != "" {
			r.t.Errorf("the ledger refused a report: %+v", d)
		}
	}
	started, finished := r.effects()
	for id, n := range account {
		switch {
		case n > 1:
			r.t.Errorf("%s was done %d times", id, n)
		case !started[id]:
			r.t.Errorf("%s was done, and the log has no start of it", id)
		case !finished[id] && !doubted[id]:
			r.t.Errorf("%s was done, and neither log nor store know whether", id)
		}
	}
	for id := range finished {
		if account[id] != 1 || doubted[id] {
			r.t.Errorf("the log says that %s is done; it was done %d times, in doubt: %t", id, account[id], doubted[id])
		}
	}
	return account
}

// effects reads from the log which effects started and which the handler
// reported done.
func (r *rig) effects() (started, finished map[string]bool) {
	r.t.Helper()
	started, finished = map[string]bool{}, map[string]bool{}
	for q := (client.EventsQuery{From: 1}); ; {
		page, err := r.admin.Events(r.t.Context(), q)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, b := range page.Events {
			e, err := client.ParseEvent([]byte(b))
			if err != nil {
				r.t.Fatal(err)
			}
			switch b := e.Body.(type) {
			case *events.EffectStarted:
				if started[b.OperationID] {
					r.t.Errorf("%s started twice", b.OperationID)
				}
				started[b.OperationID] = true
			case *events.EffectFinished:
				finished[b.OperationID] = finished[b.OperationID] || b.Handler == "tools"
			case *events.EffectFailed:
				if b.Handler != "" {
					r.t.Errorf("an effect failed: %+v", b)
				}
			}
		}
		if q.From = page.Next; page.Next > page.Head {
			for id, byHandler := range finished {
				if !byHandler {
					delete(finished, id)
				}
			}
			return started, finished
		}
	}
}

// R52, CASES 154: ledger, handler or both are killed with SIGKILL at every point
// between an order and the record of its acknowledgement, and then at random
// moments. Counted in the handler's own account every effect is done once or is
// in doubt, never twice, never lost; what a person resolves goes on from there.
func TestR52_KilledAnywhereOnceOrInDoubt(t *testing.T) {
	r := openRig(t)
	kills, doubts := 0, 0
	everyone := []string{"handler", "ledger", "both"}
	if testing.Short() {
		everyone, *sweep = everyone[:2], 2
	}
	for _, point := range stopPoints {
		for _, victims := range everyone {
			how := " hold"
			if victims == "handler" {
				how = " die"
			}
			r.startHandler(point + how)
			r.submit(1)
			r.await("at")
			r.kill(victims, true)
			n := r.settle()
			if certain := slices.Contains([]string{"received", "started", "before", "after", "returned"}, point); certain && n == 0 {
				t.Errorf("%s killed at %s: no doubt", victims, point)
			}
			r.stopHandler()
			kills, doubts = kills+1, doubts+n
		}
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for range *sweep {
		r.startHandler("")
		r.submit(1 + random.IntN(8))
		time.Sleep(time.Duration(random.IntN(30_000)) * time.Microsecond)
		r.kill([]string{"handler", "ledger", "both"}[random.IntN(3)], false)
		doubts += r.settle()
		r.stopHandler()
		kills++
	}
	account := r.compare()
	r.killLedger()
	report := replaytest.CheckLedger(t, ledger.Options{Dir: r.data()})
	t.Logf("seed %d: %d kills, %d effects done once, %d in doubt, none twice or lost; %d events, %d decisions judged again",
		seed, kills, len(account), doubts, report.Events, report.Judged)
}

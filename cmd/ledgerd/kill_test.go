package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
)

// kills is how often the storm kills; .ci/long has more.
var kills = flag.Int("kills", 30, "how often the ledger is killed under load")

const (
	killWorkers = 6
	within      = time.Minute // for what must happen; nothing is timed
)

// victim is the real binary, serving one directory, killed again and again.
type victim struct {
	t      *testing.T
	dir    string
	ready  string
	listen string
	anchor string // where it is not in dir
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

// start starts the binary and waits until it serves. That it does is part of
// the test: it refuses a log that is behind its anchor or behind its stream.
func (v *victim) start() readyFile {
	v.t.Helper()
	v.stderr.Reset()
	v.cmd = exec.Command("ledgerd", "serve", "--data", v.dir, "--listen", v.listen, "--ready-file", v.ready, "--rate", "0")
	if v.anchor != "" {
		v.cmd.Args = append(v.cmd.Args, "--anchor", v.anchor)
	}
	v.cmd.Stderr = &v.stderr
	if err := v.cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var r readyFile
		if b, err := os.ReadFile(v.ready); err == nil && json.Unmarshal(b, &r) == nil && r.PID == v.cmd.Process.Pid {
			return r
		}
	}
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
	v.t.Fatalf("the ledger does not serve:\n%s", &v.stderr)
	return readyFile{}
}

func (v *victim) kill() {
	v.t.Helper()
	if err := v.cmd.Process.Kill(); err != nil {
		v.t.Fatalf("the ledger ended before it was killed: %v\n%s", err, &v.stderr)
	}
	_ = v.cmd.Wait() // "signal: killed"
}

// answered is a receipt that a caller holds.
type answered struct {
	agent, operation, operationID string
	seq                           uint64
	hash                          string
}

// R75: the binary is killed with SIGKILL at random moments under load. No
// answered event is lost, no operation happens twice, the stream is never ahead
// of the log, and the log verifies and judges again.
func TestR75_KillNineLosesNothingAnswered(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d: %d kills", seed, *kills+1)
	underLoad(t, *kills*killWorkers, func(v *victim, answers func(n int64)) {
		for range *kills {
			answers(5 * killWorkers)
			time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
			v.kill()
			v.start()
		}
	})
}

// killWorker sends one request after the other, each until it is answered, over
// as many connections as that takes, and returns the receipts.
func killWorker(ctx context.Context, url, agent, seedFile string, count *atomic.Int64) (receipts []answered) {
	var c *client.Client
	for n := 0; ctx.Err() == nil; {
		if c == nil {
			var err error
			o := client.Options{Server: url, ID: agent, SeedFile: seedFile, Timeout: 500 * time.Millisecond, Retries: -1}
			if c, err = client.Connect(ctx, o); err != nil {
				pause(ctx, 5*time.Millisecond)
				continue
			}
		}
		r, err := killRequest(ctx, c, n)
		if err != nil || r.Seq == 0 {
			c.Close()
			c = nil
			continue
		}
		receipts = append(receipts, answered{agent, r.Operation, r.OperationID, r.Seq, r.Hash})
		count.Add(1)
		n++
	}
	if c != nil {
		c.Close()
	}
	return receipts
}

// killFamily applies a policy with an agent for each worker and an auditor, and
// returns the directory of their keys.
func killFamily(t *testing.T, dir, url string) (creds string) {
	t.Helper()
	creds = filepath.Join(t.TempDir(), "creds")
	documents := []string{"apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-1\nenvironment: [memory.read, memory.write]\n"}
	add := func(id, text string) {
		public, err := (&keyring{dir: creds}).key(id)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, text+"public_key: "+public+"\n")
	}
	for i := range killWorkers {
		id := fmt.Sprintf("agent%d", i)
		add(id, "kind: Agent\nid: "+id+"\ncapabilities: [memory.read, memory.write]\n")
	}
	add("watcher", "kind: Principal\nid: watcher\nrole: auditor\n")
	admin := connectAs(t, url, "admin", filepath.Join(dir, "keys", "admin.nk"))
	reply, err := admin.Control(t.Context(), "apply", applyRequest{Documents: documents})
	if err != nil || !reply.Allowed {
		t.Fatalf("apply: %+v, %v", reply, err)
	}
	return creds
}

func connectAs(t *testing.T, url, id, seedFile string) *client.Client {
	t.Helper()
	c, err := client.Connect(t.Context(), client.Options{Server: url, ID: id, SeedFile: seedFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// killRequest makes the n-th request of a worker: mostly new records, some
// denials, some reads.
func killRequest(ctx context.Context, c *client.Client, n int) (*client.Reply, error) {
	meta := client.Meta{OperationID: fmt.Sprintf("op-%d", n)}
	switch n % 8 {
	case 3:
		return c.Write(ctx, client.WriteRequest{Meta: meta, Owner: "agent0", Namespace: "notes", Key: "of-another", Value: n})
	case 5:
		return c.Read(ctx, client.ReadRequest{Meta: meta, Namespace: "notes", Key: "k0"})
	}
	return c.Write(ctx, client.WriteRequest{Meta: meta, Namespace: "notes", Key: fmt.Sprintf("k%d", n), Value: n})
}

// readLog starts the binary once more and returns the log as its stream shows
// it, having compared the two byte for byte.
func readLog(t *testing.T, v *victim, url, creds string) (log [][]byte) {
	t.Helper()
	v.start()
	defer v.kill()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	watcher := connectAs(t, url, "watcher", filepath.Join(creds, "watcher.nk"))
	for q := (client.EventsQuery{From: 1}); ; {
		page, err := watcher.Events(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range page.Events {
			log = append(log, []byte(b))
		}
		if q.From = page.Next; page.Next > page.Head {
			break
		}
	}
	done := errors.New("done")
	err := watcher.Watch(ctx, 1, func(e client.Event) error {
		switch {
		case !bytes.Equal(e.Bytes, log[e.Seq-1]):
			return fmt.Errorf("event %d of the stream is not the log's", e.Seq)
		case e.Seq == uint64(len(log)):
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	return log
}

// checkReceipts looks up every receipt in the log, and that no operation of
// those that have one outcome has two.
func checkReceipts(t *testing.T, receipts []answered, log [][]byte, atLeast int) {
	t.Helper()
	if len(receipts) < atLeast {
		t.Fatalf("%d answers are too few to have been under load", len(receipts))
	}
	seen := map[string]uint64{}
	for i, b := range log {
		e, err := events.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := e.Body.(*events.Decision); ok && d.Operation == "memory.write" {
			key := d.Subject + " " + d.OperationID
			if first := seen[key]; first != 0 {
				t.Errorf("%s was decided at %d and again at %d", key, first, i+1)
			}
			seen[key] = e.Seq
		}
	}
	for _, r := range receipts {
		if r.seq == 0 || r.seq > uint64(len(log)) {
			t.Errorf("%+v: the log ends at %d", r, len(log))
			continue
		}
		b := log[r.seq-1]
		e, err := events.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		d, ok := e.Body.(*events.Decision)
		if !ok || d.Subject != r.agent || d.Operation != r.operation || d.OperationID != r.operationID || events.LeafHash(b).String() != r.hash {
			t.Errorf("%+v: the log has %s", r, b)
		}
	}
}

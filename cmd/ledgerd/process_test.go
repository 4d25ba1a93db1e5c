package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// stops is how often a process is stopped and let go on; .ci/long has more.
var stops = flag.Int("stops", 4, "how often the ledger is stopped under load")

// underLoad runs the real binary under load while act does what it does, then
// kills it, checks the log, and looks up every receipt, of which there must be
// at least so many.
func underLoad(t *testing.T, least int, act func(v *victim, answers func(n int64))) {
	t.Helper()
	work := t.TempDir()
	v := &victim{t: t, dir: filepath.Join(work, "data"), ready: filepath.Join(work, "ready.json"), listen: "127.0.0.1:0"}
	if err := ledger.Init(v.dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	url := v.start().NATS
	v.listen = strings.TrimPrefix(url, "nats://")
	creds := killFamily(t, v.dir, url)
	ctx, cancel := context.WithCancel(context.Background())
	receipts := make([][]answered, killWorkers)
	var count atomic.Int64
	var wg sync.WaitGroup
	for i := range killWorkers {
		wg.Go(func() {
			agent := fmt.Sprintf("agent%d", i)
			receipts[i] = killWorker(ctx, url, agent, filepath.Join(creds, agent+".nk"), &count)
		})
	}
	act(v, func(n int64) {
		t.Helper()
		before := count.Load()
		for end := time.Now().Add(within); count.Load() < before+n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no answers any more")
			}
		}
	})
	cancel()
	wg.Wait()
	v.kill()
	report := replaytest.CheckLedger(t, ledger.Options{Dir: v.dir})
	log := readLog(t, v, url, creds)
	t.Logf("%d answers, %d events, %d decisions judged again", count.Load(), report.Events, report.Judged)
	checkReceipts(t, slices.Concat(receipts...), log, least)
}

func (v *victim) signal(s os.Signal) {
	v.t.Helper()
	if err := v.cmd.Process.Signal(s); err != nil {
		v.t.Fatalf("%v: %v\n%s", s, err, &v.stderr)
	}
}

// second starts the binary on the same directory, which must be refused with
// the directory as it was, and returns what it said.
func (v *victim) second() string {
	v.t.Helper()
	before := treeOf(v.t, filepath.Join(v.dir, "db"))
	cmd := exec.Command("ledgerd", "serve", "--data", v.dir, "--listen", "127.0.0.1:0", "--ready-file", v.ready+".second")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 {
		v.t.Fatalf("a second ledger on the same directory: %v\n%s", err, out)
	}
	if _, err := os.Stat(v.ready + ".second"); err == nil {
		v.t.Error("it said that it serves")
	}
	if after := treeOf(v.t, filepath.Join(v.dir, "db")); !slices.Equal(before, after) {
		v.t.Errorf("it changed the directory from %v to %v", before, after)
	}
	return string(out)
}

// treeOf lists the files below a directory with their contents' lengths and
// sums. Of a process that runs on it is of no use.
func treeOf(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rest, _ := strings.CutPrefix(path, dir)
		list = append(list, fmt.Sprintf("%s %x", rest, sha256.Sum256(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// R72, INT-08: the writer is stopped at random moments under load; a second
// process is refused meanwhile, also where Pebble's own lock file is gone; the
// first goes on, and no answered event is lost.
func TestR72_AStoppedWriterKeepsItsLog(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	underLoad(t, killWorkers, func(v *victim, answers func(int64)) {
		for i := range *stops {
			answers(5 * killWorkers)
			time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
			v.signal(syscall.SIGSTOP)
			v.stopped()
			if i%2 == 1 {
				if err := os.Remove(filepath.Join(v.dir, "db", "LOCK")); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			v.second()
			v.signal(syscall.SIGCONT)
		}
		answers(5 * killWorkers)
	})
}

// stopped waits until the process is.
func (v *victim) stopped() {
	v.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.cmd.Process.Pid))
		if err != nil {
			v.t.Fatal(err)
		}
		if _, state, _ := strings.Cut(string(b), ") "); strings.HasPrefix(state, "T") {
			return
		}
	}
	v.t.Fatal("it does not stop")
}

// R81, INT-07: an older copy of the log under a newer anchor, an older copy of
// the log and the anchor under a newer stream, and an older copy of all of it
// under an anchor kept elsewhere: the binary refuses each with the exit code of
// damage and leaves every file as it was.
func TestR81_AnOldCopyIsRefused(t *testing.T) {
	work := t.TempDir()
	anchor := filepath.Join(work, "anchor")
	v := &victim{t: t, dir: filepath.Join(work, "data"), ready: filepath.Join(work, "ready.json"), listen: "127.0.0.1:0"}
	if err := ledger.Init(v.dir, ledger.InitOptions{Anchor: anchor}); err != nil {
		t.Fatal(err)
	}
	v.anchor = anchor
	url := v.start().NATS
	v.listen = strings.TrimPrefix(url, "nats://")
	creds := killFamily(t, v.dir, url)
	work1 := func(from int) {
		c := connectAs(t, url, "agent0", filepath.Join(creds, "agent0.nk"))
		defer c.Close()
		for n := from; n < from+40; n++ {
			if r, err := killRequest(t.Context(), c, n); err != nil || r.Seq == 0 {
				t.Fatalf("%+v %v", r, err)
			}
		}
	}
	work1(0)
	v.end()
	oldDir, oldAnchor := filepath.Join(work, "old"), anchor+".old"
	copyTree(t, v.dir, oldDir)
	copyTree(t, anchor, oldAnchor)
	v.start()
	work1(40)
	v.end()
	newDir, newAnchor := filepath.Join(work, "new"), anchor+".new"
	copyTree(t, v.dir, newDir)
	copyTree(t, anchor, newAnchor)

	for _, c := range []struct {
		name, log, stream, anchor string
		serves                    bool
	}{
		{"all of it new", newDir, newDir, newAnchor, true},
		{"an old log under a new anchor", oldDir, newDir, newAnchor, false},
		{"an old log and anchor under a new stream", oldDir, newDir, oldAnchor, false},
		{"an old log and stream under a new anchor", oldDir, oldDir, newAnchor, false},
		{"a new log and anchor over an old stream, which is filled", newDir, oldDir, newAnchor, true},
		{"a new log over an old anchor, which is behind", newDir, newDir, oldAnchor, true},
	} {
		for _, path := range []string{v.dir, anchor} {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		copyTree(t, c.log, v.dir)
		if err := os.RemoveAll(filepath.Join(v.dir, "stream")); err != nil {
			t.Fatal(err)
		}
		copyTree(t, filepath.Join(c.stream, "stream"), filepath.Join(v.dir, "stream"))
		copyTree(t, c.anchor, anchor)
		if c.serves {
			v.start()
			v.end()
			continue
		}
		before := append(treeOf(t, v.dir), treeOf(t, anchor)...)
		out, err := exec.Command("ledgerd", "serve", "--data", v.dir, "--anchor", anchor, "--listen", "127.0.0.1:0").CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 6 {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
		if after := append(treeOf(t, v.dir), treeOf(t, anchor)...); !slices.Equal(before, after) {
			t.Errorf("%s: the refusal changed %v into %v", c.name, before, after)
		}
	}
}

// end asks the process to stop and waits until it has.
func (v *victim) end() {
	v.t.Helper()
	v.signal(syscall.SIGTERM)
	if err := v.cmd.Wait(); err != nil {
		v.t.Fatalf("stopped: %v\n%s", err, &v.stderr)
	}
}

// copyTree copies a file or a directory.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err == nil && info.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else if err == nil {
		var b []byte
		if b, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/wire"
)

var (
	scaleEvents = flag.Int("events", 2000, "how many events TestScale has verified")
	scaleKept   = flag.String("kept", "", "directory where TestScale makes its log and leaves it, or finds it")
)

const residentMax = 512 << 20 // bytes that verify may hold, however long the log

// TestScale makes a log of -events events as agents leave it, three reads, a
// write and an authorisation at a time, half of them under an operation id, and
// has the command verify and judge it, and an export of it, each in a process of
// its own whose memory is bounded.
func TestScale(t *testing.T) {
	at := *scaleKept
	if at == "" {
		at = t.TempDir()
	}
	dir, out := filepath.Join(at, "data"), filepath.Join(at, "export")
	if _, err := os.Stat(out); err != nil {
		began := time.Now()
		size := grow(t, dir, *scaleEvents)
		t.Logf("a log of %d events made in %.1fs", size, time.Since(began).Seconds())
	}
	d, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	size := d.Source().Size
	if _, err := os.Stat(out); err != nil {
		began := time.Now()
		if err := audit.WriteExport(out, d.Source()); err != nil {
			t.Fatal(err)
		}
		t.Logf("exported in %.1fs", time.Since(began).Seconds())
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--data", dir}, {"--data", dir, "--replay"}, {"--export", out}, {"--export", out, "--replay"}} {
		measure(t, size, args...)
	}
}

// measure runs verify in a process of its own and looks at its time and memory.
func measure(t *testing.T, size uint64, args ...string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append(args, "-o", "json")...)
	status := filepath.Join(t.TempDir(), "status")
	cmd.Env = append(os.Environ(), "VERIFY_STATUS="+status)
	began := time.Now()
	text, err := cmd.Output()
	took := time.Since(began)
	var r audit.Report
	if bad := json.Unmarshal(text, &r); bad != nil {
		t.Fatalf("%v: %v: %v %s", args, err, bad, text)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	resident := highWater(t, status)
	t.Logf("%s %v: exit %d, %.0f events/s, %.1fs of CPU, %d MiB resident", args[0], args[2:], r.Exit, float64(size)/took.Seconds(), (time.Duration(usage.Utime.Nano() + usage.Stime.Nano())).Seconds(), resident>>20)
	switch {
	case r.Events != size, r.Exit == audit.ExitFail:
		t.Errorf("%v: %+v", args, r)
	case resident > residentMax:
		t.Errorf("%v: %d MiB resident, at most %d", args, resident>>20, residentMax>>20)
	}
}

// highWater reads the most that a process ever held, in bytes. (What wait says
// counts its parent's memory too.)
func highWater(t *testing.T, status string) uint64 {
	t.Helper()
	b, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	var kib uint64
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			if _, err := fmt.Sscanf(text, "%d kB", &kib); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kib << 10
}

// grow makes a log of at least n events in dir.
func grow(t *testing.T, dir string, n int) uint64 {
	t.Helper()
	if err := ledger.Init(dir, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s := replaytest.Start(t, ledger.Options{Dir: dir, QueueMax: 1 << 16})
	s.Family()
	room := make(chan struct{}, 400)
	for i := 0; i < n*5/6; i++ { // five requests leave six events
		operation, body := "memory.read", `{"namespace":"project","key":"client_region"}`
		switch i % 5 {
		case 3:
			operation, body = "memory.write", fmt.Sprintf(`{"owner_agent_id":"researcher","namespace":"notes","key":"k%d","value":{"text":"some words"},"operation_id":"write-%d"}`, i, i)
			if i > 5*20_000 { // from some size on records change, and no new ones come
				operation, body = "action.authorize", fmt.Sprintf(`{"action":"artifact.save","arguments":{"path":"draft/%d.md"},"operation_id":"again-%d"}`, i, i)
			}
		case 4:
			operation, body = "action.authorize", fmt.Sprintf(`{"action":"artifact.save","arguments":{"path":"draft/a.md","size":100},"operation_id":"save-%d"}`, i)
		}
		room <- struct{}{}
		if code := s.Submit(replaytest.Proposal(wire.Propose, "researcher", operation, body), func(ledger.Answer) { <-room }); code != "" {
			t.Fatal(code)
		}
	}
	for range cap(room) {
		room <- struct{}{}
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	d, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	return d.Source().Size
}

package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// inProcess measures the judgement itself, without log or network.
func (b *bench) inProcess() error {
	b.say("decisions alone, in process")
	s, err := threeLevels()
	if err != nil {
		return err
	}
	requests := []struct{ key, operation, body string }{
		{"decision", "memory.read", `{"namespace":"notes","key":"seen"}`},
		{"decision", "memory.write", `{"owner_agent_id":"low","namespace":"notes","key":"own","value":"x"}`},
		{"decision", "action.authorize", `{"action":"bench.act","arguments":{"path":"a"}}`},
		{"sop", "sop.validate", "{" + procedure("bench.act", "bench.act") + "}"},
		{"ruled", "action.authorize", `{"action":"bench.ruled","arguments":{"path":"draft/report.md","size":4096}}`},
	}
	var slowest, allocations float64
	var each []string
	for _, r := range requests {
		decoded, code := wire.Decode(wire.Propose, r.operation, []byte(r.body))
		if code != "" {
			return fmt.Errorf("%s: %s", r.operation, code)
		}
		p := &ledger.Proposal{Lane: wire.Propose, Subject: "low", Operation: r.operation, Request: decoded}
		if o := ledger.Decide(s, p); !o.Decision.Allowed {
			return fmt.Errorf("%s alone is denied: %s", r.operation, o.Decision.Reason)
		}
		var outcome ledger.Outcome
		ns, allocs := b.timed(func() { outcome.Decide(s, p) })
		if r.key == "ruled" {
			b.report.set("ruled", true, fmt.Sprintf("%.0f allocations; the arguments are parsed, held to a schema and to a clause of each level", allocs), ns)
			continue
		}
		if r.key == "sop" {
			b.report.set("sop", true, fmt.Sprintf("%.1f µs each, %.0f allocations; the request is decoded", ns/1e3, allocs), 1e9/ns)
			continue
		}
		slowest, allocations = max(slowest, ns), max(allocations, allocs)
		each = append(each, fmt.Sprintf("%s %.0f ns, %.0f allocations", r.operation, ns, allocs))
	}
	b.report.set("decision", true, strings.Join(each, "; ")+"; the slowest counts", slowest)
	if row := &b.report.Rows[b.report.at["decision"]]; allocations >= 0.5 { // less is the runtime's own
		*row.Met = false
	}
	return nil
}

// timed returns how long one call of f takes, in nanoseconds, and how often it
// allocates. It is the median over short batches, most of which fit between two
// turns of whatever else the machine does.
func (b *bench) timed(f func()) (ns, allocs float64) {
	const batch = time.Millisecond
	n := 1
	for took := time.Duration(0); took < batch; n *= 2 {
		start := time.Now()
		for range n {
			f()
		}
		took = time.Since(start)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var each []float64
	for end := time.Now().Add(min(b.Duration, 500*time.Millisecond)); time.Now().Before(end) || len(each) < 10; {
		start := time.Now()
		for range n {
			f()
		}
		each = append(each, float64(time.Since(start).Nanoseconds())/float64(n))
	}
	runtime.ReadMemStats(&after)
	return median(each), float64(after.Mallocs-before.Mallocs) / float64(n*len(each))
}

// threeLevels is a state with three agents one below the other, and a record of
// the topmost that the lowest can see.
func threeLevels() (*projection.State, error) {
	const origin = "bench.example/1"
	policy := []byte(benchPolicy)
	register := func(id, parent string) *events.AgentRegistered {
		return &events.AgentRegistered{AgentID: id, ParentID: parent, PublicKey: id, Capabilities: []string{"bench.act", "bench.ruled", "memory.read", "memory.write"}}
	}
	restriction := func(id string, i int) *events.RestrictionAdded {
		return &events.RestrictionAdded{AgentID: id, ID: "r", Action: "bench.ruled", Require: benchRestrictions[i]}
	}
	s := projection.New()
	for i, step := range []struct {
		body events.Body
		open []byte
	}{
		{&events.LedgerCreated{Format: events.Format, Origin: origin, Ledger: "main", AdminID: ledger.AdminID, AdminPublicKey: "admin"}, nil},
		{&events.LedgerOpened{Rules: ledger.Rules, Build: "bench"}, nil},
		{&events.PolicyActivated{Version: "bench-1", Digest: sha256.Sum256(policy)}, policy},
		{register("top", ""), nil},
		{register("middle", "top"), nil},
		{register("low", "middle"), nil},
		{restriction("top", 0), nil},
		{restriction("middle", 1), nil},
		{restriction("low", 2), nil},
		{&events.MemoryWritten{Record: events.Record{Owner: "top", Namespace: "notes", Key: "seen", Visibility: "descendants", Class: "preference", Revision: 1}}, nil},
	} {
		if err := s.Apply(&events.Event{Seq: uint64(i + 1), Time: 1, Agent: events.System, Body: step.body}, step.open); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// atRest measures what is done with a log that nobody writes: verifying,
// judging again, keeping.
func (b *bench) atRest(n *node) error {
	l, err := ledger.Open(ledger.Options{Dir: n.dir, Build: b.Build}) // leaves nothing in the write-ahead log
	if err == nil {
		done, cancel := context.WithCancel(b.ctx)
		cancel()
		err = l.Run(done)
	}
	if err != nil {
		return err
	}
	d, err := datadir.Open(n.dir)
	if err != nil {
		return err
	}
	size, err := b.verify(d)
	if err == nil && b.wants("replay") {
		err = b.replay(n.dir, d.Store)
	}
	if err == nil {
		err = b.disk(size, filepath.Join(n.dir, "db"), filepath.Join(n.dir, "state"))
	}
	return errors.Join(err, d.Close())
}

// verify compares verification with the least it takes: hashing the same bytes.
// It returns how many bytes the events have.
func (b *bench) verify(d *datadir.Dir) (eventBytes int, err error) {
	var log [][]byte
	err = d.Store.Events(1, d.Store.Durable(), func(_ uint64, event []byte) error {
		if eventBytes += len(event); eventBytes <= sampleMax {
			log = append(log, bytes.Clone(event))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, kind := range []struct {
		key  string
		opts audit.Options
		exit int
	}{{"links", audit.Options{LinksOnly: true}, audit.ExitImpossible}, {"verify", audit.Options{}, audit.ExitPass}} {
		if err := b.verifyAs(kind.key, d, kind.opts, kind.exit, log, eventBytes); err != nil {
			return 0, err
		}
	}
	return eventBytes, nil
}

func (b *bench) verifyAs(key string, d *datadir.Dir, opts audit.Options, exit int, log [][]byte, eventBytes int) error {
	size := float64(d.Store.Durable())
	var rates, bares, ratios []float64
	for run := range b.Runs {
		b.say("%s: %d of %d", b.report.figure(key), run+1, b.Runs)
		stop, err := startProfile(b.profileOf(key, run))
		if err != nil {
			return err
		}
		start := time.Now()
		report, err := audit.VerifyLog(d.Source(), opts)
		took := time.Since(start)
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		if report.Exit != exit || len(report.Faults) > 0 {
			return fmt.Errorf("the log does not verify: %+v", report)
		}
		rate, bare := size/took.Seconds(), chainHash(log)
		rates, bares, ratios = append(rates, rate), append(bares, bare), append(ratios, rate/bare)
	}
	b.report.set(key, true, fmt.Sprintf("%s/s ÷ %s/s; %s events of %.0f bytes", count(median(rates)), count(median(bares)), count(size), float64(eventBytes)/size), ratios...)
	return nil
}

// profileOf is where the profile of a figure's run goes, if it is the one asked
// for.
func (b *bench) profileOf(key string, run int) string {
	if b.Only == "" || run > 0 || !b.wants(key) {
		return ""
	}
	return b.CPUProfile
}

const sampleMax = 256 << 20 // bytes of events hashed for comparison

// chainHash returns how many events a second the links take, and nothing else.
func chainHash(log [][]byte) float64 {
	var leaf [sha256.Size]byte
	buf := make([]byte, 1, 1+events.EventBytesMax)
	start := time.Now()
	for _, event := range log {
		leaf = sha256.Sum256(append(buf[:1], event...))
	}
	runtime.KeepAlive(leaf)
	return float64(len(log)) / time.Since(start).Seconds()
}

func (b *bench) replay(dir string, st *store.Store) error {
	b.say("judging every decision again")
	src, err := replay.Stored(dir, st)
	if err != nil {
		return err
	}
	stop, err := startProfile(b.profileOf("replay", 0))
	if err != nil {
		return err
	}
	start := time.Now()
	r := replay.Run(src)
	took := time.Since(start)
	if err := stop(); err != nil {
		return err
	}
	if r.Err != nil || r.Found > 0 || r.Unjudged() > 0 {
		return fmt.Errorf("the log does not judge again as it is: %+v", r)
	}
	b.report.set("replay", true, fmt.Sprintf("%s events, %s decisions, in %.1f s", count(float64(r.Events)), count(float64(r.Decisions)), took.Seconds()),
		float64(r.Events)/took.Seconds())
	return nil
}

// disk compares what lies on disk with the events' own bytes.
func (b *bench) disk(eventBytes int, dirs ...string) error {
	stored := int64(0)
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			info, err := entry.Info()
			if err == nil {
				stored += info.Size()
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	b.report.set("disk", true, fmt.Sprintf("%.0f MB ÷ %.0f MB; with payloads, tree and state, after a clean close; no compaction is forced", float64(stored)/1e6, float64(eventBytes)/1e6),
		float64(stored)/float64(eventBytes))
	return nil
}

// syncP50 is how long it takes to append 4 KiB to a file and have it on disk.
func syncP50(dir string, quick bool) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	took := make([]time.Duration, 300)
	if quick {
		took = took[:30]
	}
	page := make([]byte, 4096)
	for i := range took {
		start := time.Now()
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := syncData(f); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// cpuTime is what the process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentMiB is the memory that the process holds; where the system does not
// say, what the runtime has taken of it.
func residentMiB() float64 {
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(b)); len(fields) > 1 {
			if pages, err := strconv.Atoi(fields[1]); err == nil {
				return float64(pages) * float64(os.Getpagesize()) / (1 << 20)
			}
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Sys) / (1 << 20)
}

func cpuName() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}

// startProfile begins a CPU profile in file, if one is named, and returns what
// ends it.
func startProfile(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// Package bench measures a ledger beside the bare parts it is made of, in one
// process and one run: on a shared machine absolute numbers move by a factor of
// three within a minute, and only ratios of things measured in turn hold.
//
// First call: Run. It makes ledgers of its own in a temporary directory, serves
// them over TCP on the loopback interface, loads them from two connections, and
// beside them a bare echo: the same server and connections, with a subscription
// that answers 300 bytes and does nothing else. Measured and bare runs take
// turns, A B A B, and the figure is the median of the pairs.
//
// What holds: every answer is looked at, and one that is not the decision the
// request must get ends the run with an error; so does a log that does not
// verify and re-judge afterwards. What was not measured has a row that says why.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Options say what is measured and for how long.
type Options struct {
	Quick      bool          // a look at whether it works: little data, one short pair of each
	Runs       int           // pairs of each comparison; 0 is 5
	Duration   time.Duration // of one run; 0 is a second
	Mix        string        // a name of Mixes; empty is standard
	Dir        string        // on the disk to measure; empty is the directory for temporary files
	Overload   bool          // measure more than the ledger can do, instead
	Only       string        // part of the names of the figures to measure; empty is all
	CPUProfile string        // file for a CPU profile of the ledger at 256 outstanding; empty is none
	Build      string        // recorded in the log
	Version    string        // semantic, for the micro service
	Progress   io.Writer     // told what is being measured; nil is nobody

	// Peer, if set, answers in a ledger's place what a plain subscription on nc
	// brings it, from a store in dir, until stop. It is SQLite's row.
	Peer func(nc *nats.Conn, dir string) (stop func() error, err error)

	// Grow, if not 0, measures what a log of so many events costs, and nothing else.
	Grow uint64

	// Self, if set, is this program again, to call RunSelf with job; without it
	// restarts are of this process, and none is measured after a kill.
	Self func(ctx context.Context, job string) *exec.Cmd
}

// bench is one run of everything.
type bench struct {
	Options
	ctx    context.Context
	dir    string // temporary
	agents int
	values int // records loaded
	serial uint64
	syncs  []float64 // fdatasync p50 of each look, ms
	total  tally     // of all overload runs
	report *Report
}

// Run measures everything and returns the report. With an error the report
// holds what was measured before it.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := &bench{Options: o, ctx: ctx, agents: 1000, values: 100_000}
	if b.Mix == "" {
		b.Mix = "standard"
	}
	if _, ok := mixes[b.Mix]; !ok {
		return nil, fmt.Errorf("no mix is called %q", b.Mix)
	}
	if b.Quick {
		b.agents, b.values = 120, 1200
		b.Runs, b.Duration = 1, 100*time.Millisecond
	}
	if b.Runs == 0 {
		b.Runs = 5
	}
	if b.Duration == 0 {
		b.Duration = time.Second
	}
	if b.Progress == nil {
		b.Progress = io.Discard
	}
	var err error
	if b.dir, err = os.MkdirTemp(o.Dir, "ledgerd-bench-"); err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	measure := b.all
	b.report = newReport(b.machine(), figures)
	if b.Overload {
		measure, b.report = b.overload, newReport(b.machine(), overloadFigures)
	}
	if inMemory(b.dir) {
		b.say("%s is in memory, where a sync costs nothing: name a directory on a disk", b.dir)
	}
	err = measure()
	return b.report, errors.Join(err, os.RemoveAll(b.dir))
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.Progress, format+"\n", args...) }

func (b *bench) machine() Machine {
	return Machine{
		CPU: cpuName(), Cores: runtime.NumCPU(), GoMaxProcs: runtime.GOMAXPROCS(0),
		OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Build: b.Build,
		Dir: filepath.Dir(b.dir), Mix: b.Mix, Runs: b.Runs, Duration: b.Duration.String(), Quick: b.Quick,
	}
}

// wants reports whether one of the figures is to be measured.
func (b *bench) wants(keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(b.report.figure(key), b.Only) })
}

func (b *bench) all() error {
	if b.Grow > 0 {
		return b.grown()
	}
	for i := range b.report.Rows {
		if row := &b.report.Rows[i]; !strings.Contains(row.Figure, b.Only) {
			row.Base = "not measured: not asked for"
		}
	}
	if b.wants("decision", "sop", "ruled") {
		if err := b.inProcess(); err != nil {
			return err
		}
	}
	echo, err := b.startEcho()
	if err != nil {
		return err
	}
	if b.wants("rate-256", "rate-1024", "sqlite", "one", "clock-20000", "clock-50000", "ids", "ids-restart", "depth", "rules", "restart", "memory",
		"only-read", "only-write", "only-authorize", "only-sop") {
		err = b.withoutFeed(echo)
	}
	if err == nil && b.wants("feed-256", "feed-1024", "lag", "links", "verify", "replay", "disk") {
		err = b.withFeed(echo)
	}
	b.report.Machine.SyncP50 = median(b.syncs)
	return errors.Join(err, echo.stop())
}

// withoutFeed measures the ledger alone, then again right after a restart.
func (b *bench) withoutFeed(echo *echo) error {
	n, err := b.newNode("alone", false)
	if err != nil {
		return err
	}
	err = b.alone(n, echo)
	if err := errors.Join(err, n.stop()); err != nil {
		return err
	}
	if !b.wants("restart", "ids-restart") {
		return nil
	}
	if err := b.restarted("restart", n, false); err != nil {
		return err
	}
	return b.idsRestarted(n)
}

func (b *bench) alone(n *node, echo *echo) error {
	for _, outstanding := range []int{256, 1024} {
		key := fmt.Sprintf("rate-%d", outstanding)
		if err := b.perEcho(key, n, echo, drive{outstanding: outstanding, mix: b.Mix}); err != nil {
			return err
		}
	}
	if err := b.beside(n); err != nil {
		return err
	}
	if err := b.oneAtATime(n, echo); err != nil {
		return err
	}
	for _, rate := range []float64{20_000, 50_000} {
		if err := b.clocked(n, echo, rate); err != nil {
			return err
		}
	}
	if err := b.operationIDs(n); err != nil {
		return err
	}
	if err := b.depths(n); err != nil {
		return err
	}
	if err := b.argumentRules(n); err != nil {
		return err
	}
	for _, mix := range []string{"read", "write", "authorize", "sop"} {
		if err := b.perEcho("only-"+mix, n, echo, drive{outstanding: 256, mix: mix}); err != nil {
			return err
		}
	}
	b.report.set("memory", false, fmt.Sprintf("the whole process, load generator included: %s agents, %s records loaded, %s events since",
		count(float64(b.agents)), count(float64(b.values)), count(float64(n.ledger.Durable()-n.loaded))), residentMiB())
	return nil
}

// withFeed measures the ledger with its stream, and then its log at rest.
func (b *bench) withFeed(echo *echo) error {
	n, err := b.newNode("feed", true)
	if err != nil {
		return err
	}
	for _, outstanding := range []int{256, 1024} {
		if err = b.perEcho(fmt.Sprintf("feed-%d", outstanding), n, echo, drive{outstanding: outstanding, mix: b.Mix}); err != nil {
			break
		}
	}
	if err == nil {
		b.report.set("lag", true, "to the end of what was answered, once the load ends; of all runs", n.lags...)
	}
	if err := errors.Join(err, n.stop()); err != nil || !b.wants("links", "verify", "replay", "disk") {
		return err
	}
	return b.atRest(n)
}

// turns makes the measured run and the bare one in turn.
func (b *bench) turns(label string, measured, bare func(run int) (result, error)) (ms, bs []result, err error) {
	for run := range b.Runs {
		b.say("%s: %d of %d", label, run+1, b.Runs)
		m, err := measured(run)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", label, err)
		}
		base, err := bare(run)
		if err != nil {
			return nil, nil, fmt.Errorf("%s, bare: %w", label, err)
		}
		ms, bs = append(ms, m), append(bs, base)
	}
	return ms, bs, nil
}

// perEcho compares decisions a second with echoes a second.
func (b *bench) perEcho(key string, n *node, echo *echo, d drive) error {
	if !b.wants(key) && !n.feed {
		return nil
	}
	profile := func() error { return nil }
	measured := func(run int) (result, error) {
		if run == 0 && (key == "rate-256" || b.Only != "") {
			stop, err := startProfile(b.CPUProfile)
			if err != nil {
				return result{}, err
			}
			profile = stop
		}
		r, err := b.onNode(n, d, run)
		if run == 0 {
			err = errors.Join(err, profile())
		}
		return r, err
	}
	ms, bs, err := b.turns(b.report.figure(key), measured, func(run int) (result, error) { return b.onEcho(echo, n, d, run) })
	if err != nil {
		return err
	}
	b.report.set(key, true, perSecond(ms, bs, "echo"), each(ms, bs, func(m, e result) float64 { return m.rate / e.rate })...)
	return nil
}

// beside compares the ledger with the peer behind a front like its own.
func (b *bench) beside(n *node) error {
	if b.Peer == nil || !b.wants("sqlite") {
		return nil
	}
	var stop func() error
	front, err := b.startFront("peer", func(nc *nats.Conn) (err error) {
		stop, err = b.Peer(nc, b.dir)
		return err
	})
	if err != nil {
		return err
	}
	d := drive{outstanding: 256, mix: b.Mix}
	ms, bs, err := b.turns(b.report.figure("sqlite"), func(run int) (result, error) { return b.onNode(n, d, run) },
		func(run int) (result, error) { return b.onEcho(front, n, d, run) })
	if err = errors.Join(err, stop(), front.stop()); err != nil {
		return err
	}
	b.report.set("sqlite", true, perSecond(ms, bs, "the peer"), each(ms, bs, func(m, e result) float64 { return m.rate / e.rate })...)
	return nil
}

// oneAtATime compares the time of one decision with that of the least it takes:
// one sync and one echo.
func (b *bench) oneAtATime(n *node, echo *echo) error {
	if !b.wants("one") {
		return nil
	}
	d := drive{outstanding: 1, mix: b.Mix}
	var syncs []float64
	ms, bs, err := b.turns(b.report.figure("one"), func(run int) (result, error) { return b.onNode(n, d, run) }, func(run int) (result, error) {
		p50, err := syncP50(b.dir, b.Quick)
		if err != nil {
			return result{}, err
		}
		syncs = append(syncs, millis(p50))
		return b.onEcho(echo, n, d, run)
	})
	if err != nil {
		return err
	}
	b.syncs = append(b.syncs, syncs...)
	runs := make([]float64, len(ms))
	for i := range ms {
		runs[i] = millis(ms[i].p50) / (syncs[i] + millis(bs[i].p50))
	}
	b.report.set("one", true, fmt.Sprintf("%.3f ms ÷ (fdatasync %.3f ms + echo %.3f ms)",
		median(each(ms, bs, func(m, _ result) float64 { return millis(m.p50) })), median(syncs),
		median(each(ms, bs, func(_, e result) float64 { return millis(e.p50) }))), runs...)
	return nil
}

// clocked compares the slowest answers where requests come on a clock, whether
// the ones before are answered or not. A request's time counts from when it was
// due.
func (b *bench) clocked(n *node, echo *echo, rate float64) error {
	key := fmt.Sprintf("clock-%.0f", rate)
	if !b.wants(key) {
		return nil
	}
	d := drive{outstanding: 2048, mix: b.Mix, clock: rate}
	ms, bs, err := b.turns(b.report.figure(key), func(run int) (result, error) { return b.onNode(n, d, run) },
		func(run int) (result, error) { return b.onEcho(echo, n, d, run) })
	if err != nil {
		return err
	}
	p99 := func(m, _ result) float64 { return millis(m.p99) }
	reached := median(each(ms, bs, func(m, _ result) float64 { return m.rate }))
	b.report.set(key, true, fmt.Sprintf("p99 %.2f ms ÷ %.2f ms of the echo; %s/s were answered", median(each(ms, bs, p99)), median(each(bs, ms, p99)), count(reached)),
		each(ms, bs, func(m, e result) float64 { return millis(m.p99) / millis(e.p99) })...)
	return nil
}

// operationIDs compares proposals that carry an operation id with ones that do
// not.
func (b *bench) operationIDs(n *node) error {
	run := func(d drive) func(int) (result, error) {
		return func(run int) (result, error) { return b.onNode(n, d, run) }
	}
	return b.compareIDs("ids", run, n.ledger.Durable)
}

// idsRestarted is operationIDs, each time right after a restart of the ledger
// that n was.
func (b *bench) idsRestarted(n *node) error {
	size := uint64(0)
	run := func(d drive) func(int) (result, error) {
		return func(run int) (result, error) {
			again, err := b.openNode(n.dir, false)
			if err != nil {
				return result{}, err
			}
			again.agents, size = n.agents, again.ledger.Durable()
			r, err := b.onNode(again, d, run)
			return r, errors.Join(err, again.stop())
		}
	}
	return b.compareIDs("ids-restart", run, func() uint64 { return size })
}

func (b *bench) compareIDs(key string, run func(drive) func(int) (result, error), size func() uint64) error {
	if !b.wants(key) {
		return nil
	}
	with, without := drive{outstanding: 256, mix: b.Mix}, drive{outstanding: 256, mix: b.Mix, noIDs: true}
	ms, bs, err := b.turns(b.report.figure(key), run(with), run(without))
	if err != nil {
		return err
	}
	b.report.set(key, true, perSecond(ms, bs, "those without an id")+fmt.Sprintf("; after %s events", count(float64(size()))),
		each(ms, bs, func(m, e result) float64 { return m.rate / e.rate })...)
	return nil
}

// depths compares agents far from their root with agents near it.
func (b *bench) depths(n *node) error {
	if !b.wants("depth") {
		return nil
	}
	d := drive{outstanding: 256, mix: b.Mix}
	at := func(depth int) func(int) (result, error) {
		return func(run int) (result, error) {
			d.agents = n.chains(depth)
			return b.onNode(n, d, run)
		}
	}
	ms, bs, err := b.turns(b.report.figure("depth"), at(16), at(2))
	if err != nil {
		return err
	}
	b.report.set("depth", true, perSecond(ms, bs, "depth 2"), each(ms, bs, func(m, e result) float64 { return m.rate / e.rate })...)
	return nil
}

// argumentRules compares actions whose arguments have to fit a schema and three
// inherited requirements with the same of which nothing is asked.
func (b *bench) argumentRules(n *node) error {
	if !b.wants("rules") {
		return nil
	}
	with, without := drive{outstanding: 256, mix: b.Mix, ruled: true}, drive{outstanding: 256, mix: b.Mix}
	ms, bs, err := b.turns(b.report.figure("rules"), func(run int) (result, error) { return b.onNode(n, with, run) },
		func(run int) (result, error) { return b.onNode(n, without, run) })
	if err != nil {
		return err
	}
	b.report.set("rules", true, perSecond(ms, bs, "those without"), each(ms, bs, func(m, e result) float64 { return m.rate / e.rate })...)
	return nil
}

// perSecond says what was divided.
func perSecond(ms, bs []result, base string) string {
	return fmt.Sprintf("%s/s ÷ %s/s of %s; p50 %.2f ms, p99 %.2f ms; CPU %.1f ÷ %.1f µs",
		count(median(each(ms, bs, func(m, _ result) float64 { return m.rate }))),
		count(median(each(ms, bs, func(_, e result) float64 { return e.rate }))), base,
		median(each(ms, bs, func(m, _ result) float64 { return millis(m.p50) })),
		median(each(ms, bs, func(m, _ result) float64 { return millis(m.p99) })),
		median(each(ms, bs, func(m, _ result) float64 { return 1000 * millis(m.cpu) })),
		median(each(ms, bs, func(_, e result) float64 { return 1000 * millis(e.cpu) })))
}

func each(ms, bs []result, f func(m, base result) float64) []float64 {
	list := make([]float64, len(ms))
	for i := range ms {
		list[i] = f(ms[i], bs[i])
	}
	return list
}

// millis is a duration in milliseconds.
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

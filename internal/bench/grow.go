package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	largeEvents  = 10_000_000
	largeAgents  = 100_000
	largeRecords = 1_000_000

	tailEvents = 200_000 // written by a process that is then killed
	growSlots  = 1024    // requests not yet answered
	growLoad   = 32      // agents that send them
)

// grown measures what a long log costs: it writes one through a ledger in this
// process as fast as that goes, and then measures the ledger that has it, its
// restarts, clean and after its process was killed, and the log at rest.
func (b *bench) grown() error {
	share := min(1, float64(b.Grow)/largeEvents)
	b.agents, b.values = max(40, int(share*largeAgents)), max(400, int(share*largeRecords))
	n, err := b.newNode("grown", false)
	if err != nil {
		return err
	}
	err = b.grow(n)
	size, large := n.ledger.Durable(), b.Grow >= largeEvents
	b.report.set("memory", large, fmt.Sprintf("the whole process, load generator included: %s agents, %s records, %s events",
		count(float64(b.agents)), count(float64(b.values)), count(float64(size))), residentMiB())
	if err == nil {
		err = b.growth(n, large)
	}
	if err = errors.Join(err, n.stop()); err != nil {
		return err
	}
	if err := b.restarted("restart", n, large); err != nil {
		return err
	}
	if b.Self != nil {
		if err := b.killed(n.dir); err != nil {
			return fmt.Errorf("a ledger to be killed: %w", err)
		}
		if err := b.restarted("restart-killed", n, large); err != nil {
			return err
		}
	}
	if err := b.idsRestarted(n); err != nil {
		return err
	}
	return b.atRest(n)
}

// growth compares the ledger that has a long log with a new one.
func (b *bench) growth(n *node, large bool) error {
	d := drive{outstanding: 256, mix: b.Mix}
	agents, values := b.agents, b.values
	defer func() { b.agents, b.values = agents, values }()
	small := 0
	ms, bs, err := b.turns(b.report.figure("growth"), func(run int) (result, error) { return b.onNode(n, d, run) },
		func(run int) (result, error) {
			b.agents, b.values = 1000, 4000
			small++
			s, err := b.newNode(fmt.Sprintf("small-%d", small), false)
			if err != nil {
				return result{}, err
			}
			r, err := b.onNode(s, d, run)
			return r, errors.Join(err, s.stop())
		})
	if err != nil {
		return err
	}
	b.report.set("growth", large, perSecond(ms, bs, "a new ledger")+fmt.Sprintf("; %s events and %s records", count(float64(n.ledger.Durable())), count(float64(values))),
		each(ms, bs, func(m, s result) float64 { return m.rate / s.rate })...)
	return nil
}

// grow sends what the mix says until the log has as many events as asked.
func (b *bench) grow(n *node) error {
	began, from := time.Now(), n.ledger.Durable()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- b.load(ctx, n.ledger, n.agents) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for told := began; n.ledger.Durable() < b.Grow; {
		select {
		case err := <-failed:
			return errors.Join(err, b.ctx.Err())
		case now := <-tick.C:
			if now.Sub(told) < 5*time.Second {
				continue
			}
			told = now
			size := n.ledger.Durable()
			rate := float64(size-from) / now.Sub(began).Seconds()
			b.say("%s of %s events, %s/s, %s to go", count(float64(size)), count(float64(b.Grow)), count(rate),
				time.Duration(float64(b.Grow-min(size, b.Grow))/rate*float64(time.Second)).Round(time.Second))
		}
	}
	cancel()
	return <-failed
}

// load sends what the mix says, in process, until ctx ends. Every answer is
// looked at.
func (b *bench) load(ctx context.Context, l *ledger.Ledger, agents []*agent) error {
	var wrong atomic.Pointer[error]
	var all sync.WaitGroup
	b.serial++
	var bottom []*agent
	for _, a := range agents {
		if a.leaf {
			bottom = append(bottom, a)
		}
	}
	for i := range min(growLoad, len(bottom)) {
		as := bottom[i*len(bottom)/min(growLoad, len(bottom))]
		s := newSender(&drive{mix: b.Mix, serial: b.serial}, as, growSlots/growLoad, uint64(i))
		all.Go(func() {
			for ctx.Err() == nil && wrong.Load() == nil {
				k := <-s.free
				s.next(k)
				operation := operations[k.op]
				request, code := wire.Decode(wire.Propose, operation, k.body)
				done := func(a ledger.Answer) {
					if a.Reason.Allowed() != k.allowed {
						err := fmt.Errorf("%s as %s was answered %s", k.body, as.id, a.Reply)
						wrong.Store(&err)
					} else if k.op == write && k.allowed {
						k.revision++
					}
					s.free <- k
				}
				if code == "" {
					code = l.Submit(&ledger.Proposal{Lane: wire.Propose, Subject: as.id, Operation: operation, Request: request}, done)
				}
				if code != "" {
					err := fmt.Errorf("%s as %s: %s", operation, as.id, code)
					wrong.Store(&err)
					s.free <- k
				}
			}
			for range cap(s.free) {
				<-s.free
			}
		})
	}
	all.Wait()
	if err := wrong.Load(); err != nil {
		return *err
	}
	return nil
}

// restarted measures how long a process takes, from its start, to serve the
// ledger that n was.
func (b *bench) restarted(key string, n *node, large bool) error {
	if !b.wants(key) {
		return nil
	}
	b.say("%s", b.report.figure(key))
	var took []float64
	for range max(1, b.Runs) {
		seconds, err := b.reopen(n.dir)
		if err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		if took = append(took, seconds); key == "restart-killed" {
			break // it is killed once
		}
	}
	size, err := logSize(n.dir)
	b.report.set(key, large, fmt.Sprintf("with %s events, from the start of the process", count(float64(size))), took...)
	return err
}

func (b *bench) reopen(dir string) (seconds float64, err error) {
	started := time.Now()
	if b.Self == nil {
		n, err := b.openNode(dir, false)
		if err != nil {
			return 0, err
		}
		return time.Since(started).Seconds(), n.stop()
	}
	cmd := b.Self(b.ctx, jobReopen+" "+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := startSaying(cmd, saysReady)
	seconds = time.Since(started).Seconds()
	if err = errors.Join(err, in.Close()); err != nil && out == nil {
		return 0, err
	}
	return seconds, errors.Join(err, cmd.Wait())
}

// startSaying starts cmd and returns once it has said so; what it says further
// is read from out.
func startSaying(cmd *exec.Cmd, what string) (out io.Reader, err error) {
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err == nil && line != what+"\n" {
		err = fmt.Errorf("it says %q", line)
	}
	return pipe, err
}

func logSize(dir string) (uint64, error) {
	st, err := store.OpenReadOnly(dir, store.Options{})
	if err != nil {
		return 0, err
	}
	return st.Durable(), st.Close()
}

// killed has another process go on with the ledger in dir, and kills it while it
// writes.
func (b *bench) killed(dir string) error {
	b.say("another process goes on with it, to be killed")
	cmd := b.Self(b.ctx, fmt.Sprintf("%s %d %d %s", jobTail, b.agents, b.values, dir))
	out, err := startSaying(cmd, saysGrown)
	if out == nil {
		return err
	}
	err = errors.Join(err, cmd.Process.Kill())
	var exit *exec.ExitError
	if e := cmd.Wait(); !errors.As(e, &exit) {
		err = errors.Join(err, e)
	}
	return err
}

// What Self is asked for, each followed by its arguments, the directory last,
// and what it says once it has come so far.
const (
	jobReopen = "reopen"
	jobTail   = "tail"
	saysReady = "ready"
	saysGrown = "grown"
)

// RunSelf does the job that another process of Run, with o, has for this one.
func RunSelf(ctx context.Context, o Options, job string, in io.Reader, out io.Writer) error {
	name, rest, _ := strings.Cut(job, " ")
	switch name {
	case jobReopen:
		return runReopen(o, rest, in, out)
	case jobTail:
		parts := strings.SplitN(rest, " ", 3)
		if len(parts) == 3 {
			agents, err1 := strconv.Atoi(parts[0])
			values, err2 := strconv.Atoi(parts[1])
			if err1 == nil && err2 == nil {
				return runTail(ctx, parts[2], agents, values, out)
			}
		}
	}
	return fmt.Errorf("no job is called %q", job)
}

// runReopen serves the ledger in dir, says so, and stops at the end of in.
func runReopen(o Options, dir string, in io.Reader, out io.Writer) error {
	b := &bench{Options: o}
	n, err := b.openNode(dir, false)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, saysReady)
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, n.stop())
}

// runTail opens the ledger in dir, which Run has filled, says so on out once it
// has written a while, and writes on until it is killed.
func runTail(ctx context.Context, dir string, agents, values int, out io.Writer) error {
	l, err := ledger.Open(ledger.Options{Dir: dir, Build: "bench"})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	b := &bench{Options: Options{Mix: "standard"}, ctx: ctx, serial: 1 << 20}
	go func() {
		for target := l.Durable() + tailEvents; l.Durable() < target; {
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Fprintln(out, saysGrown)
	}()
	list := namedAgents(agents)
	for _, a := range list {
		a.values = max(1, values/len(list))
	}
	err = b.load(ctx, l, list)
	return errors.Join(err, <-ended)
}

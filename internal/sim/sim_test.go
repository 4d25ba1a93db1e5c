// Package sim runs whole lives of a ledger, each from one seed: agents honest,
// buggy and hostile, a bus that loses, doubles, delays and reorders, a clock that
// jumps, a ledger that dies at any point. What is run is the real judging, sealing,
// folding and answering, moved by hand (ledger.Stepper) on a log in memory; every
// history is followed by a second implementation and ends in chain verification and
// judging again.
//
// A history that fails prints the command that repeats it.
package sim

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the history of this seed only")
	stepsFlag = flag.String("steps", "", "only these of its steps: 0-9,12,40-41")
	histories = flag.Int("histories", 0, "how many histories; 0 is what a change is tested with")
	whole     = flag.Bool("whole", false, "the whole of the small scope")
	firstFlag = flag.Uint64("first", 1, "seed of the first history")
)

const (
	historiesDefault = 400
	historiesShort   = 60
	twiceEvery       = 10 // of so many histories one is run twice
)

// volumes are what histories covered.
type volumes struct {
	histories, steps, batches, answers, crashes, closes, lost, jumps             int
	dropped, doubled, retried, abuses, events, judged, twice, refused            int
	runs, effects, doubts, cancels, denies, unperformed, handlerCrashes, expired int
	erasures, destroyed, holds, unjudged                                         int
	simulated                                                                    time.Duration
	sent                                                                         map[string]int
	decisions                                                                    map[string]int
}

func newVolumes() volumes { return volumes{sent: map[string]int{}, decisions: map[string]int{}} }

func (v *volumes) add(o volumes) {
	v.histories++
	for _, n := range []struct{ to, from *int }{
		{&v.steps, &o.steps}, {&v.batches, &o.batches}, {&v.answers, &o.answers}, {&v.crashes, &o.crashes}, {&v.closes, &o.closes},
		{&v.lost, &o.lost}, {&v.jumps, &o.jumps}, {&v.dropped, &o.dropped}, {&v.doubled, &o.doubled}, {&v.retried, &o.retried},
		{&v.abuses, &o.abuses}, {&v.events, &o.events}, {&v.judged, &o.judged}, {&v.refused, &o.refused},
		{&v.runs, &o.runs}, {&v.effects, &o.effects}, {&v.doubts, &o.doubts}, {&v.cancels, &o.cancels}, {&v.denies, &o.denies}, {&v.expired, &o.expired},
		{&v.unperformed, &o.unperformed}, {&v.handlerCrashes, &o.handlerCrashes},
		{&v.erasures, &o.erasures}, {&v.destroyed, &o.destroyed}, {&v.holds, &o.holds}, {&v.unjudged, &o.unjudged},
	} {
		*n.to += *n.from
	}
	v.simulated += o.simulated
	for name, n := range o.sent {
		v.sent[name] += n
	}
	for name, n := range o.decisions {
		v.decisions[name] += n
	}
}

func (v *volumes) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d histories (%d twice), %d steps, %d crashes, %d clean closes, %.1f days simulated, %d clock jumps\n",
		v.histories, v.twice, v.steps, v.crashes, v.closes, v.simulated.Hours()/24, v.jumps)
	fmt.Fprintf(&b, "messages: %v sent, %d retried, %d refused at the connection, %d of abuse cases, %d dropped, %d doubled, %d lost in crashes; %d batches, %d answers\n",
		v.sent, v.retried, v.refused, v.abuses, v.dropped, v.doubled, v.lost, v.batches, v.answers)
	fmt.Fprintf(&b, "%d runs, %d effects done once, %d started and never done, %d doubts, %d cancelled, %d emergency denies, %d crashes of handlers, %d records gone\n",
		v.runs, v.effects, v.unperformed, v.doubts, v.cancels, v.denies, v.handlerCrashes, v.expired)
	fmt.Fprintf(&b, "%d erasures of %d payloads, by which %d decisions could not be judged again; %d holds\n", v.erasures, v.destroyed, v.unjudged, v.holds)
	fmt.Fprintf(&b, "%d events verified, %d decisions judged again; decisions by reason:", v.events, v.judged)
	names := make([]string, 0, len(v.decisions))
	for name := range v.decisions {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return v.decisions[names[i]] > v.decisions[names[j]] })
	for _, name := range names {
		fmt.Fprintf(&b, " %s %d", name, v.decisions[name])
	}
	return b.String()
}

// run runs the history of a seed, all of it where steps is nil.
func run(seed uint64, steps []int) (w *world, err error) {
	defer func() {
		if p := recover(); p != nil {
			stack := make([]byte, 8<<10)
			err = fmt.Errorf("panic: %v\n%s", p, stack[:runtime.Stack(stack, false)])
		}
	}()
	if w, err = newWorld(seed); err != nil {
		return w, err
	}
	if steps == nil {
		steps = all(w.options.Steps)
	}
	for _, n := range steps {
		if err := w.step(n + 1); err != nil {
			return w, fmt.Errorf("step %d: %w", n, err)
		}
	}
	w.volumes.simulated = time.Duration(w.times-w.first()) * time.Microsecond
	if err := w.heal(w.options.Steps + 1); err != nil {
		return w, fmt.Errorf("after all faults have ended: %w", err)
	}
	if err := w.finish(); err != nil {
		return w, fmt.Errorf("at the end: %w", err)
	}
	return w, nil
}

func all(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// TestSim runs histories and shrinks the first that fails.
func TestSim(t *testing.T) {
	if *seedFlag != 0 {
		w, err := run(*seedFlag, parseSteps(t, *stepsFlag))
		t.Logf("seed %d expands to %+v", *seedFlag, w.options)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("trace %s\n%s", w.digest(), &w.volumes)
		return
	}
	n := *histories
	switch {
	case n == 0 && testing.Short():
		n = historiesShort
	case n == 0:
		n = historiesDefault
	}
	total := newVolumes()
	var mu sync.Mutex
	var next, failed atomic.Uint64
	next.Store(*firstFlag)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < *firstFlag+uint64(n) && failed.Load() == 0; seed = next.Add(1) - 1 {
				v, err := history(seed)
				mu.Lock()
				if err != nil {
					if failed.CompareAndSwap(0, seed) {
						complain(t, seed, err)
					}
				} else {
					total.add(v)
					total.twice += v.twice
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%s", &total)
	if failed.Load() == 0 && (total.crashes < total.histories/2 || len(total.decisions) < 25) {
		t.Errorf("too little happened to mean anything")
	}
}

// TestFixedSeeds runs the same few histories every time: what notices a fault at
// once, and those that have found one.
func TestFixedSeeds(t *testing.T) {
	for _, seed := range append(seeds(1, 40), 64) {
		if _, err := run(seed, nil); err != nil {
			t.Fatalf("go test ./internal/sim -run TestSim -seed=%d: %v", seed, err)
		}
	}
}

func seeds(from, to uint64) (list []uint64) {
	for ; from <= to; from++ {
		list = append(list, from)
	}
	return list
}

// history runs one seed, some of them twice, which must come to the same.
func history(seed uint64) (volumes, error) {
	w, err := run(seed, nil)
	if err != nil {
		return volumes{}, err
	}
	if seed%twiceEvery == 0 {
		again, err := run(seed, nil)
		if err != nil {
			return volumes{}, err
		}
		if again.digest() != w.digest() {
			return volumes{}, fmt.Errorf("two runs differ: %s and %s", w.digest(), again.digest())
		}
		w.volumes.twice = 1
	}
	return w.volumes, nil
}

// complain shrinks a history that failed and says how to run it again.
func complain(t *testing.T, seed uint64, err error) {
	steps := shrink(seed)
	_, again := run(seed, steps)
	if again == nil {
		steps, again = nil, err
	}
	command := fmt.Sprintf("go test ./internal/sim -run TestSim -seed=%d", seed)
	t.Errorf("%v\n\nseed %d expands to %+v\nrepeat: %s\nshrunk: %s -steps=%s\n%v", err, seed, expand(seed), command, command, formatSteps(steps), again)
}

// shrink leaves out steps, ever fewer at a time, as long as the history fails.
func shrink(seed uint64) []int {
	steps := all(expand(seed).Steps)
	deadline := time.Now().Add(30 * time.Second)
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps) && time.Now().Before(deadline); {
			fewer := slices.Delete(slices.Clone(steps), at, at+size)
			if _, err := run(seed, fewer); err != nil && len(fewer) > 0 {
				steps = fewer
			} else {
				at += size
			}
		}
	}
	return steps
}

func formatSteps(steps []int) string {
	var parts []string
	for i := 0; i < len(steps); {
		j := i
		for j+1 < len(steps) && steps[j+1] == steps[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(steps[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", steps[i], steps[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

func parseSteps(t *testing.T, text string) (steps []int) {
	if text == "" {
		return nil
	}
	for _, part := range strings.Split(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil {
			t.Fatalf("-steps=%s", text)
		}
		for ; a <= b; a++ {
			steps = append(steps, a)
		}
	}
	return steps
}

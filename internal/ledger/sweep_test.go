package ledger_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

var (
	imagesFlag = flag.Int("images", 200, "how many crash images of loads by chance are opened and judged again")
	sweepFlag  = flag.Int("sweep", 9, "of so many file operations one is made to fail; 1 is all")
)

// R75: loads by chance, crash images at moments by chance, with by chance much
// of what was not synced. Each opens, holds every answered event, and is judged
// clean.
func TestR75_CrashImagesByChance(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	covered, answered, loads := 0, 0, 0
	for covered < *imagesFlag && !t.Failed() {
		n, a := crashImages(t, seed+uint64(loads), *imagesFlag-covered)
		covered, answered, loads = covered+n, answered+a, loads+1
	}
	t.Logf("seed %d: %d loads, %d crash images open, verify and are judged clean; %d answered events looked for, lost 0", seed, loads, covered, answered)
}

// crashImages runs one load and checks at most limit of its images.
func crashImages(t *testing.T, seed uint64, limit int) (covered, answered int) {
	o, sys := newMem(t)
	var got receipts
	var mu sync.Mutex
	var images []image
	rng := rand.New(rand.NewPCG(seed, 75))
	anchor := filepath.Join(o.Dir, "anchor")
	plain := o
	o.Store.FS = errorfs.Wrap(sys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if len(images) >= 400 || rng.IntN(2) == 0 {
			return nil
		}
		img := image{answered: got.sofar(), at: fmt.Sprintf("seed %d, kind %d on %s", seed, op.Kind, filepath.Base(op.Path))}
		var err error
		if img.anchor, err = os.ReadFile(anchor); err != nil {
			return err
		}
		img.sys = sys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, rng.IntN(101), 100}[rng.IntN(3)], RNG: rng})
		images = append(images, img)
		return nil
	}))
	for i := range 2 + rng.IntN(2) {
		chanceSitting(t, o, i, rng.Uint64(), &got)
	}
	replaytest.CheckLedger(t, plain)
	images = images[:min(limit, len(images))]
	var count, looked, next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(images)); i = next.Add(1) - 1 {
				img := images[i]
				if err := img.check(plain, filepath.Join(t.TempDir(), "anchor")); err != nil {
					t.Errorf("crash before %s: %v", img.at, err)
					return
				}
				images[i].sys = nil
				count.Add(1)
				looked.Add(int64(len(img.answered)))
			}
		})
	}
	wg.Wait()
	return int(count.Load()), int(looked.Load())
}

// chanceSitting opens the ledger, has some of everything asked at once, and
// stops.
func chanceSitting(t *testing.T, o ledger.Options, n int, seed uint64, got *receipts) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	s := replaytest.Start(t, o)
	if n == 0 {
		got.add(s.Family())
	}
	for round := range 4 + rng.IntN(8) {
		var answers []<-chan replaytest.Reply
		for i := range 1 + rng.IntN(6) {
			key := fmt.Sprintf("k%d", rng.IntN(12))
			var p *ledger.Proposal
			switch rng.IntN(6) {
			case 0:
				p = replaytest.Proposal(wire.Propose, "formatter", "memory.read", readBody("notes."+key))
			case 1:
				p = replaytest.Proposal(wire.Propose, "researcher", "sop.validate", replaytest.SOP(fmt.Sprintf("s-%d-%d-%d", n, round, i), `{"step_id":"one","action":"artifact.save"}`, `{"step_id":"two","action":"no.such"}`))
			case 2:
				p = replaytest.Proposal(wire.Control, "admin", "environment.set", []string{`{"capabilities":["memory.read","memory.write","artifact.save"]}`, `{"capabilities":["memory.read","memory.write"]}`}[rng.IntN(2)])
			default:
				p = proposeWrite(key, fmt.Sprintf(`"%s"`, strings.Repeat("v", rng.IntN(3000))), rng.IntN(4), fmt.Sprintf("op-%d", rng.IntN(200)))
			}
			answers = append(answers, ask(s, p, got))
		}
		for _, answer := range answers {
			<-answer
		}
	}
	must(t, s.End())
}

// The child of TestEveryFailedOperation: a ledger on whose file system the
// operation with the number in $LEDGER_FAIL_AT fails, and if it is to fail for
// good, all that change something from there on. What it is answered it says.
const childFailAt = "LEDGER_FAIL_AT"

func TestFailingChild(t *testing.T) {
	at, err := strconv.ParseInt(os.Getenv(childFailAt), 10, 64)
	if err != nil {
		return // nobody's child
	}
	o := ledger.Options{Dir: os.Getenv("LEDGER_DIR")}
	var ops atomic.Int64
	o.Store.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		n := ops.Add(1)
		if n == at || n > at && os.Getenv("LEDGER_FAIL_EVER") != "" && op.Kind.ReadOrWrite() != errorfs.OpIsRead {
			return errorfs.ErrInjected
		}
		return nil
	}))
	say := func(r replaytest.Reply) {
		switch {
		case r.Seq > 0:
			fmt.Printf("answered %d %s\n", r.Seq, r.Hash)
		case r.Reason == string(reason.StorageLow): // the look at the free space has failed: unknown is none
			fmt.Println("gated")
		}
	}
	l, err := ledger.Open(o)
	if err != nil {
		fmt.Println("end refused")
		return
	}
	s := replaytest.Run(t, l, o)
	say(s.Control(ledger.AdminID, "apply", replaytest.ApplyRequest(
		replaytest.PolicyDocument("lab-1"), replaytest.AgentDocument("researcher", "", "memory.read", "memory.write"))))
	for i := range 8 {
		say(s.Propose("researcher", "memory.write", write(fmt.Sprintf("k%d", i), `1`, 0, fmt.Sprintf("op-%d", i))))
		say(s.Propose("researcher", "memory.read", readBody(fmt.Sprintf("notes.k%d", i))))
	}
	switch err := s.End(); {
	case err != nil:
		fmt.Println("end stopped")
	case ops.Load() < at:
		fmt.Println("end never")
	default:
		fmt.Println("end unharmed")
	}
}

// F3: each file operation of a ledger's life fails in turn, reads too, once and
// for good, on a real disk. Whatever the ledger then does, it has answered
// nothing that is not there when it opens again on a good disk.
func TestEveryFailedOperation(t *testing.T) {
	base := newDir(t)
	for _, ever := range []string{"", "yes"} {
		ends := map[string]int{}
		looked := 0
		for n := 1; ends["never"] == 0; n += *sweepFlag {
			o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
			must(t, os.CopyFS(o.Dir, os.DirFS(base.Dir)))
			cmd := exec.Command(os.Args[0], "-test.run=^TestFailingChild$")
			cmd.Env = append(os.Environ(), childFailAt+"="+strconv.Itoa(n), "LEDGER_FAIL_EVER="+ever, "LEDGER_DIR="+o.Dir)
			out, err := cmd.CombinedOutput()
			end, answered, gated := "died", []replaytest.Reply(nil), strings.Count(string(out), "gated\n")
			for line := range strings.Lines(string(out)) {
				var r replaytest.Reply
				if _, err := fmt.Sscanf(line, "answered %d %s", &r.Seq, &r.Hash); err == nil {
					answered = append(answered, r)
				}
				fmt.Sscanf(line, "end %s", &end)
			}
			byItself := strings.Contains(string(out), "(*DB).rotateWAL(") || strings.Contains(string(out), "atomicfs.(*Marker).Move(")
			if end == "died" && (err == nil || !byItself) {
				t.Fatalf("operation %d: %v\n%s", n, err, out)
			}
			ends[end]++
			l, err := ledger.Open(o)
			if err != nil {
				t.Fatalf("operation %d (%s): %v", n, end, err)
			}
			if err := owed(l, answered); err != nil {
				t.Fatalf("operation %d (%s): %v", n, end, err)
			}
			if (end == "never" || end == "unharmed") && len(answered)+gated != 17 {
				t.Errorf("operation %d (%s): %d answers, %d refused for want of space", n, end, len(answered), gated)
			}
			looked += len(answered)
			must(t, l.Run(ended))
			replaytest.CheckLedger(t, o)
			must(t, os.RemoveAll(o.Dir))
		}
		t.Logf("operations failed one by one, for good %q: %v; %d answered events looked for, lost 0", ever, ends, looked)
		if ends["stopped"]+ends["died"] == 0 || ends["refused"] == 0 {
			t.Error("too few failures to mean anything")
		}
	}
}

// smallDisk is a file system that can be filled: a real one of 512 MiB where
// this process may mount one, and one in memory.
type smallDisk struct {
	name string
	o    ledger.Options
	fill func(free int64) // leaves so many bytes free
}

func smallDisks(t *testing.T) (disks []smallDisk) {
	o, sys := newMem(t)
	var full atomic.Bool
	o.Store.FS = errorfs.Wrap(sys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFilePreallocate) {
			return syscall.ENOSPC
		}
		return nil
	}))
	disks = append(disks, smallDisk{"in memory", o, func(free int64) {
		full.Store(free == 0)
		sys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: uint64(free), TotalBytes: 512 << 20})
	}})
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=512m"); err != nil {
		t.Logf("no real file system to fill: %v", err)
		return disks
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil { // a Pebble that never closes has files there
			t.Error(err)
		}
	})
	real := ledger.Options{Dir: filepath.Join(mount, "data")}
	must(t, ledger.Init(real.Dir, ledger.InitOptions{}))
	ballast, err := os.Create(filepath.Join(mount, "ballast"))
	must(t, err)
	t.Cleanup(func() { ballast.Close() })
	return append(disks, smallDisk{"tmpfs", real, func(free int64) {
		must(t, ballast.Truncate(0))
		var st syscall.Statfs_t
		must(t, syscall.Statfs(mount, &st))
		size := max(0, int64(st.Bavail)*st.Bsize-free)
		if err := syscall.Fallocate(int(ballast.Fd()), 0, 0, max(size, 1)); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}})
}

// LOAD-06, CASES 49, 51: a disk that fills while the ledger runs. It refuses
// proposals first and everything later, does not spin, does not open on the full
// disk and changes nothing there, and opens again after growth with every answered
// event.
func TestLOAD06_AFullDiskLosesNothing(t *testing.T) {
	const plenty = 300 << 20
	for _, d := range smallDisks(t) {
		t.Run(d.name, func(t *testing.T) {
			d.fill(plenty)
			var got receipts
			s := replaytest.Start(t, d.o)
			got.add(s.Family())
			for i := range 50 {
				<-ask(s, proposeWrite(fmt.Sprintf("a%d", i), `"`+strings.Repeat("x", 2000)+`"`, 0, ""), &got)
			}
			d.fill(100 << 20)
			for s.Stats().Gate == 0 {
				time.Sleep(time.Millisecond) // writing on meanwhile, it may open a new log file, and allocate that ahead
			}
			refusedWith(t, s, func() *ledger.Proposal { return proposeWrite("b", `1`, 0, "") })
			<-ask(s, replaytest.Proposal(wire.Control, "admin", "clock.accept", `{}`), &got)
			if len(got.sofar()) < 52 {
				t.Errorf("%d receipts: an admin can act on down to 64 MiB", len(got.sofar()))
			}
			d.fill(40 << 20)
			refusedWith(t, s, func() *ledger.Proposal {
				return replaytest.Proposal(wire.Control, "admin", "clock.accept", `{}`)
			})
			for size := fmt.Sprintf("\n%d\n", s.Durable()); !strings.Contains(string(s.Checkpoint()), size); {
				time.Sleep(time.Millisecond) // what is there is signed; then there is nothing left to write
			}
			d.fill(0)
			if used := cpuDuring(time.Second); used > time.Second/2 {
				t.Errorf("on a full disk it used %v of a second's CPU", used)
			}
			look(t, s.Ledger, func(*projection.State) int { return 0 })
			err := s.End()
			t.Logf("stopped on the full disk: %v", err) // not even a snapshot can be written
			before := contents(t, d.o.Dir)
			if _, err := ledger.Open(d.o); !errors.Is(err, store.ErrStorageLow) {
				t.Fatalf("opened on a full disk: %v", err)
			}
			sameContents(t, before, contents(t, d.o.Dir))
			d.fill(plenty)
			grown(t, d.o, got.sofar())
		})
	}
}

// The disk fills at once, faster than anyone looks at it: commits fail in the
// middle. Callers hear that it is not known, and what was answered is there after
// growth.
func TestLOAD06_ADiskThatFillsAtOnce(t *testing.T) {
	for i, d := range smallDisks(t) {
		t.Run(d.name, func(t *testing.T) {
			for range 5 {
				if fillsAtOnce(t, d) {
					return
				}
				d = smallDisks(t)[i]
			}
			t.Error("Pebble has not once closed after the failure")
		})
	}
}

// fillsAtOnce tells whether the failed ledger could be opened again in this
// process: Pebble may stay in a write that failed for good, which only the end of
// its process ends, as ledgerd's ends then.
func fillsAtOnce(t *testing.T, d smallDisk) bool {
	d.fill(300 << 20)
	var got receipts
	s := replaytest.Start(t, d.o)
	got.add(s.Family())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				r := <-ask(s, proposeWrite(fmt.Sprintf("w%d-%d", w, i), `"`+strings.Repeat("y", 8000)+`"`, 0, ""), &got)
				if r.Seq == 0 {
					return
				}
			}
		})
	}
	for len(got.sofar()) < 200 {
		time.Sleep(time.Millisecond)
	}
	d.fill(0)
	for code := reason.Code(""); code == ""; code = s.Submit(proposeWrite("z", `1`, 0, ""), nil) {
		time.Sleep(time.Millisecond) // until the gate or the failure refuses
	}
	cancel()
	wg.Wait()
	err := s.End()
	if got.late > 0 {
		t.Errorf("%d receipts after a failure", got.late)
	}
	d.fill(300 << 20)
	for patience := time.Now().Add(3 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		l, err := ledger.Open(d.o)
		if err == nil {
			must(t, l.Run(ended))
			break
		}
		if !errors.Is(err, store.ErrLocked) {
			t.Fatal(err)
		}
		if time.Now().After(patience) {
			return false
		}
	}
	grown(t, d.o, got.sofar())
	t.Logf("%d receipts, %d not known; Run returned %v", len(got.list), got.unknown, err)
	return true
}

// refusedWith waits until the storage gate refuses p.
func refusedWith(t *testing.T, s *replaytest.Session, p func() *ledger.Proposal) {
	t.Helper()
	for {
		answers := make(chan ledger.Answer, 1)
		switch code := s.Submit(p(), func(a ledger.Answer) { answers <- a }); code {
		case reason.StorageLow:
			return
		case "":
			<-answers
		default:
			t.Fatalf("refused as %s", code)
		}
	}
}

// grown opens the ledger on a disk with room again.
func grown(t *testing.T, o ledger.Options, answered []replaytest.Reply) {
	t.Helper()
	l, err := ledger.Open(o)
	must(t, err)
	must(t, owed(l, answered))
	s := replaytest.Run(t, l, o)
	expect(t, s.Propose("researcher", "memory.write", write("after", `1`, 0, "")), reason.OwnerWrite)
	s.Stop()
}

// cpuDuring is the CPU time this process uses within d.
func cpuDuring(d time.Duration) time.Duration {
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			panic(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := used()
	time.Sleep(d)
	return used() - before
}

func sameContents(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name := range before {
		if before[name] != after[name] {
			t.Errorf("%s has changed", name)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d files, before %d", len(after), len(before))
	}
}

// F5: on a file system that cannot be written the ledger does not open and
// leaves everything as it was; whoever only reads can.
func TestAReadOnlyDirectoryIsRefused(t *testing.T) {
	o := newDir(t)
	start(t, o).Stop()
	before := contents(t, o.Dir)
	readOnly := o
	readOnly.Store.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
			return syscall.EROFS
		}
		return nil
	}))
	if _, err := ledger.Open(readOnly); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		t.Errorf("opened: %v", err)
	}
	sameContents(t, before, contents(t, o.Dir))
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=64m"); err != nil {
		t.Logf("no real file system to make read-only: %v", err)
	} else {
		t.Cleanup(func() { must(t, syscall.Unmount(mount, 0)) })
		must(t, os.CopyFS(filepath.Join(mount, "data"), os.DirFS(o.Dir)))
		must(t, syscall.Mount("", mount, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		real := ledger.Options{Dir: filepath.Join(mount, "data")}
		if _, err := ledger.Open(real); !errors.Is(err, syscall.EROFS) {
			t.Errorf("opened on a read-only file system: %v", err)
		}
		replaytest.CheckLedger(t, real)
	}
	replaytest.Start(t, o).Stop()
}

// F21: every file operation takes its time. Everything asked is answered once,
// a caller that gave up waiting finds its answer by operation id, and nothing is
// lost.
func TestASlowDiskLosesNothing(t *testing.T) {
	o, sys := newMem(t)
	start(t, o).Stop()
	o.Store.FS = errorfs.Wrap(sys, errorfs.RandomLatency(nil, 2*time.Millisecond, 1, 20*time.Millisecond))
	s := replaytest.Start(t, o)
	var got receipts
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for i := range 12 {
				p := func() *ledger.Proposal {
					return proposeWrite(fmt.Sprintf("s%d-%d", w, i), `1`, 0, fmt.Sprintf("slow-%d-%d", w, i))
				}
				impatient, again := ask(s, p(), &got), ask(s, p(), &got)
				if first, second := <-impatient, <-again; first.Seq == 0 || first.Seq != second.Seq || first.Hash != second.Hash {
					t.Errorf("%s and %s", first.Text, second.Text)
				}
			}
		})
	}
	wg.Wait()
	if len(got.list) != 144 || got.unknown > 0 {
		t.Errorf("%d receipts, %d not known", len(got.list), got.unknown)
	}
	must(t, s.End())
	left := image{sys: sys.CrashClone(vfs.CrashCloneCfg{}), answered: got.sofar()}
	anchor, err := os.ReadFile(filepath.Join(o.Dir, "anchor"))
	must(t, err)
	left.anchor = anchor
	must(t, left.check(o, filepath.Join(t.TempDir(), "anchor")))
}

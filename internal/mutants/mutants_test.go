// Package mutants is a test that removes guards. It takes each guard out of the
// source, or puts a well-known mistake in, and runs the one test that exists to
// notice: were the test to pass, it would show nothing.
//
// A fault is a patch of a few lines. The source itself is never touched: the go
// command reads the patched file in its place. A patch that no longer fits the
// source fails here, so that the list keeps up with the code.
package mutants

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is one mistake and the test that must fail because of it.
type fault struct {
	name    string
	pkg     string // of the test, from the root
	test    string
	patches []patch
	short   bool // among the few that run where nothing else is asked
}

// patch replaces old, which stands exactly once in file, by new.
type patch struct{ file, old, new string }

// only is for whoever works on a guard or its test; whole is what .ci/run asks.
var (
	only  = flag.String("fault", "", "run only the faults whose names match this regular expression")
	whole = flag.Bool("whole", false, "run every fault: some three minutes on two cores, where a few else have to do")
)

const (
	workers     = 4                // at a time: many a fault is noticed by waiting in vain
	passTimeout = 10 * time.Minute // of all tests of a package
	failTimeout = 2 * time.Minute
)

// TestEveryRemovedGuardIsNoticed runs every named test on the source as it is,
// where it must pass, and on the source with its fault, where it must fail: by
// its own word, not for want of compiling or of time.
func TestEveryRemovedGuardIsNoticed(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	list, atLeast := chosen(func(f fault) bool { return f.short }), 3
	switch {
	case *only != "":
		pattern := regexp.MustCompile(*only)
		list, atLeast = chosen(func(f fault) bool { return pattern.MatchString(f.name) }), 1
	case *whole:
		list, atLeast = faults, 20
	}
	overlays := map[string]string{} // of every fault: whatever is run, each has to fit the source
	for _, f := range faults {
		if overlays[f.name], err = overlay(root, t.TempDir(), f.patches); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	if t.Failed() || len(list) < atLeast || len(overlays) != len(faults) {
		t.Fatalf("nothing was run: %d faults, want at least %d, each to fit the source and have a name of its own", len(list), atLeast)
	}

	began := time.Now()
	all, held, err := allInOne(root, t.TempDir(), list)
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	tests := map[string][]string{}
	for _, f := range list {
		tests[f.pkg] = append(tests[f.pkg], f.test)
	}
	packages := slices.Sorted(maps.Keys(tests))
	binary := func(pkg string) string { return filepath.Join(bin, strings.ReplaceAll(pkg, "/", "_")+".test") }
	each(len(packages), func(i int) {
		if err := build(root, all, packages[i], binary(packages[i])); err != nil {
			t.Error(err)
		} else if err := passes(root, packages[i], binary(packages[i]), tests[packages[i]]); err != nil {
			t.Errorf("without any fault: %v", err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d tests of %d packages pass with no fault chosen (%.0fs)", len(list), len(packages), time.Since(began).Seconds())

	lines := make([]string, len(list))
	killed := make([]bool, len(list))
	each(len(list), func(i int) {
		f := list[i]
		start := time.Now()
		said, err := "", errNoSwitch
		if held[i] {
			said, err = fails(root, binary(f.pkg), f, i+1)
		}
		if err != nil { // a process of the test's may not have the environment
			said, err = alone(root, t.TempDir(), f, overlays[f.name])
			said += " (in a build of its own)"
		}
		if killed[i] = err == nil; err != nil {
			t.Errorf("%s: %s %s: %v", f.name, f.pkg, f.test, err)
			said = "NOT KILLED"
		}
		lines[i] = fmt.Sprintf("%s\n\t%s %s (%.1fs): %s", f.name, f.pkg, f.test, time.Since(start).Seconds(), said)
	})
	n := 0
	for i := range list {
		t.Log(lines[i])
		if killed[i] {
			n++
		}
	}
	t.Logf("%d of %d killed (%.0fs)", n, len(list), time.Since(began).Seconds())
}

func chosen(is func(fault) bool) (list []fault) {
	for _, f := range faults {
		if is(f) {
			list = append(list, f)
		}
	}
	return list
}

// each calls do for 0 … n-1, as many at a time as there are workers.
func each(n int, do func(i int)) {
	next := make(chan int)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	running.Wait()
}

// overlay writes the patched files into dir and returns the file that tells the
// go command to read them instead of those under root.
func overlay(root, dir string, patches []patch) (string, error) {
	texts, err := patched(root, patches)
	if err != nil {
		return "", err
	}
	return writeOverlay(root, dir, texts)
}

// flags of every build: compiling and linking is most of the time, so our
// packages are not optimised, and nothing is linked with C or has symbols.
var flags = []string{"-vet=off", "-ldflags=-s -w", "-gcflags=github.com/ledgerd/ledgerd/...=-N -l"}

// run runs a command without C and returns its output and its exit code.
func run(dir string, env []string, name string, args ...string) (string, int, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", 0, err
	}
	return out.String(), cmd.ProcessState.ExitCode(), nil
}

// build builds a package's test with an overlay.
func build(root, overlay, pkg, to string) error {
	args := append(append([]string{"test", "-c", "-o", to}, flags...), "-overlay", overlay, "./"+pkg)
	out, exit, err := run(root, nil, "go", args...)
	if err == nil && exit != 0 {
		err = fmt.Errorf("%s does not build with its faults:\n%s", pkg, tail(out))
	}
	return err
}

// tried runs tests of a package that was built, with a fault of the list by
// number, 0 for none.
func tried(root, pkg, binary, tests string, number int, timeout time.Duration, more ...string) (string, int, error) {
	args := append([]string{"-test.failfast", "-test.timeout=" + timeout.String(), "-test.run", tests}, more...)
	dir := filepath.Join(root, pkg)
	if usesRapid(dir) {
		args = append(args, "-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=0s")
	}
	return run(dir, []string{faultVariable + "=" + strconv.Itoa(number)}, binary, args...)
}

// usesRapid tells the packages whose tests must be kept from drawing by chance,
// and from leaving what they failed on in the source tree.
func usesRapid(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(files, func(file string) bool {
		b, err := os.ReadFile(file)
		return err == nil && bytes.Contains(b, []byte(`"pgregory.net/rapid"`))
	})
}

// passes reports how the tests do with no fault chosen.
func passes(root, pkg, binary string, tests []string) error {
	out, exit, err := tried(root, pkg, binary, "^("+strings.Join(tests, "|")+")$", 0, passTimeout, "-test.v")
	if err != nil {
		return err
	}
	for _, test := range tests {
		if !verdict("PASS", test, out) {
			return fmt.Errorf("%s: %s did not run and pass:\n%s", pkg, test, tail(out))
		}
	}
	if exit != 0 {
		return fmt.Errorf("%s: exit code %d:\n%s", pkg, exit, tail(out))
	}
	return nil
}

// fails runs a fault's test on it and returns what it complained of. The error
// says that the fault is not killed.
func fails(root, binary string, f fault, number int) (said string, err error) {
	out, exit, err := tried(root, f.pkg, binary, "^"+f.test+"$", number, failTimeout)
	switch {
	case err != nil:
		return "", err
	case exit == 0:
		return "", errors.New("survived: the test passes all the same")
	case strings.Contains(out, "panic: test timed out"):
		return "", errors.New("the test found no end, which shows nothing")
	case exit != 1 && exit != 2 || !verdict("FAIL", f.test, out):
		return "", fmt.Errorf("the test did not run (exit code %d):\n%s", exit, tail(out))
	}
	return complaint(out), nil
}

// alone is fails in a build of its own.
func alone(root, dir string, f fault, overlay string) (said string, err error) {
	binary := filepath.Join(dir, "alone.test")
	if err := build(root, overlay, f.pkg, binary); err != nil {
		return "", err
	}
	defer os.Remove(binary)
	return fails(root, binary, f, 0)
}

func verdict(result, test, out string) bool {
	return regexp.MustCompile(`(?m)^--- ` + result + `: ` + test + ` \(`).MatchString(out)
}

var failure = regexp.MustCompile(`(?m)^\s+(\w+_test\.go:\d+: .*)$|^(panic: .*)$`)

// complaint is the first line of the output that says what is wrong.
func complaint(out string) string {
	line := []rune(strings.TrimSpace(failure.FindString(out)))
	if len(line) > 160 {
		line = append(line[:160], '…')
	}
	return string(line)
}

func tail(out string) string {
	const max = 4000
	if len(out) > max {
		return "…" + out[len(out)-max:]
	}
	return out
}

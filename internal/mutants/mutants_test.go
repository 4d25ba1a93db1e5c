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
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	whole = flag.Bool("whole", false, "run every fault: some ten minutes on two cores, where a few else have to do")
)

const (
	workers    = 2 // go commands at a time
	runTimeout = 2 * time.Minute
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
	tests := map[string][]string{}
	for _, f := range list {
		tests[f.pkg] = append(tests[f.pkg], f.test)
	}
	packages := slices.Sorted(maps.Keys(tests))
	each(len(packages), func(i int) {
		if err := passes(root, packages[i], tests[packages[i]]); err != nil {
			t.Errorf("without any fault: %v", err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d tests of %d packages pass on the source as it is (%.0fs)", len(list), len(packages), time.Since(began).Seconds())

	lines := make([]string, len(list))
	killed := make([]bool, len(list))
	each(len(list), func(i int) {
		f := list[i]
		start := time.Now()
		said, err := fails(root, overlays[f.name], f.pkg, f.test)
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
	texts := map[string]string{}
	for _, p := range patches {
		text, patched := texts[p.file]
		if !patched {
			b, err := os.ReadFile(filepath.Join(root, p.file))
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if n := strings.Count(text, p.old); n != 1 {
			return "", fmt.Errorf("the text to replace stands %d times in %s, want once:\n%s", n, p.file, p.old)
		}
		texts[p.file] = strings.Replace(text, p.old, p.new, 1)
	}
	replace := map[string]string{}
	for file, text := range texts {
		to := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(file)))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, b, 0o600)
}

// goTest runs tests of a package and returns the output and the exit code.
func goTest(root, pkg, run string, flags ...string) (string, int, error) {
	// Compiling and linking is most of the time, and there are a hundred to link:
	// our packages are not optimised, and nothing is linked with C or has symbols.
	args := append([]string{"test", "-vet=off", "-ldflags=-s -w", "-gcflags=github.com/ledgerd/ledgerd/...=-N -l", "-count=1", "-failfast", "-timeout=" + runTimeout.String(), "-run", run}, flags...)
	args = append(args, "./"+pkg)
	if usesRapid(filepath.Join(root, pkg)) {
		args = append(args, "-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=0s")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", 0, err
	}
	return out.String(), cmd.ProcessState.ExitCode(), nil
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

// passes reports how the tests do on the source as it is.
func passes(root, pkg string, tests []string) error {
	out, exit, err := goTest(root, pkg, "^("+strings.Join(tests, "|")+")$", "-v")
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

// fails runs one test on the patched source and returns what it complained of.
// The error says that the fault is not killed.
func fails(root, overlay, pkg, test string) (said string, err error) {
	out, exit, err := goTest(root, pkg, "^"+test+"$", "-overlay", overlay)
	switch {
	case err != nil:
		return "", err
	case exit == 0:
		return "", errors.New("survived: the test passes all the same")
	case strings.Contains(out, "panic: test timed out"):
		return "", errors.New("the test found no end, which shows nothing")
	case exit != 1 || !verdict("FAIL", test, out):
		return "", fmt.Errorf("the test did not run (exit code %d):\n%s", exit, tail(out))
	}
	return complaint(out), nil
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

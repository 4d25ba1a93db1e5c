package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// TestMain lets the test binary stand in for verify itself, so that exit codes
// are seen as a shell sees them.
func TestMain(m *testing.M) {
	if path := os.Getenv("VERIFY_STATUS"); path != "" { // what the kernel says of this process goes there
		boundMemory()
		exit := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		if b, err := os.ReadFile("/proc/self/status"); err != nil || os.WriteFile(path, b, 0o600) != nil {
			exit = audit.ExitImpossible
		}
		os.Exit(exit)
	}
	if os.Getenv("BE_VERIFY") != "" {
		main()
	}
	os.Exit(m.Run())
}

const (
	vectors = "../../internal/events/testdata/v1"
	golden  = vectors + "/export"
	program = "../../docs/format/verify.py"
)

func export(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "export")
	if err := logtest.Write(dir, files); err != nil {
		t.Fatal(err)
	}
	return dir
}

// verifyJSON runs the command and returns its exit code and report.
func verifyJSON(t testing.TB, args ...string) (int, audit.Report) {
	t.Helper()
	var out, errs bytes.Buffer
	exit := run(append(args, "-o", "json"), nil, &out, &errs)
	var r audit.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: exit %d, %v\n%s%s", args, exit, err, out.String(), errs.String())
	}
	if r.Exit != exit {
		t.Errorf("exit %d, the report says %d", exit, r.Exit)
	}
	return exit, r
}

// second is the second implementation at work: one process for all tests.
var second struct {
	sync.Mutex
	in  io.Writer
	out *bufio.Scanner
}

// python runs the second implementation. Without python3 the test fails.
func python(t testing.TB, args ...string) (int, string) {
	t.Helper()
	second.Lock()
	defer second.Unlock()
	if second.in == nil {
		cmd := exec.Command("python3", "testdata/serve.py", program)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatalf("the second implementation needs python3: %v", err)
		}
		second.in, second.out = in, bufio.NewScanner(out) // it ends with this process, at the end of its input
	}
	if err := json.NewEncoder(second.in).Encode(args); err != nil {
		t.Fatal(err)
	}
	if !second.out.Scan() {
		t.Fatalf("python3 %v ended: %v", args, second.out.Err())
	}
	answer := [2]any{}
	if err := json.Unmarshal(second.out.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return int(answer[0].(float64)), answer[1].(string)
}

func failed(r audit.Report, name string) bool {
	for _, v := range []audit.Verdict{r.Integrity, r.Completeness, r.Semantics} {
		for _, c := range v.Checks {
			if c.Name == name && c.Status == audit.Fail {
				return true
			}
		}
	}
	return false
}

func open(r audit.Report) string {
	var b strings.Builder
	for _, v := range []audit.Verdict{r.Integrity, r.Completeness, r.Semantics} {
		for _, c := range v.Checks {
			b.WriteString(c.Open + "\n")
		}
	}
	return b.String()
}

func goldenFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(golden), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(golden, name))
		files[name] = b
		return err
	})
	if err != nil || len(files) < 5 {
		t.Fatal(err, len(files))
	}
	return files
}

// entryAt tells which entry of a bundle a byte belongs to, its length included.
func entryAt(t testing.TB, bundle []byte, at int) uint64 {
	t.Helper()
	for seq, i := uint64(1), 0; i < len(bundle); seq++ {
		i += 2 + int(bundle[i])<<8 + int(bundle[i+1])
		if at < i {
			return seq
		}
	}
	t.Fatal("no such entry")
	return 0
}

// TestR80_EveryBitOfAnExport: every change of one bit of every file of an
// export is a failed check; in an entry, the first fault names that entry.
func TestR80_EveryBitOfAnExport(t *testing.T) {
	files := goldenFiles(t)
	fsys := fstest.MapFS{}
	for name, b := range files {
		fsys[name] = &fstest.MapFile{Data: b}
	}
	if r, err := audit.VerifyExport(fsys, audit.Options{}); err != nil || r.Exit != audit.ExitPass {
		t.Fatalf("unchanged: %v %+v", err, r)
	}
	changes := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		original := files[name]
		for i := range original {
			for bit := range 8 {
				b := bytes.Clone(original)
				b[i] ^= 1 << bit
				fsys[name] = &fstest.MapFile{Data: b}
				r, err := audit.VerifyExport(fsys, audit.Options{})
				if err != nil {
					t.Fatal(err)
				}
				where := fmt.Sprintf("%s, byte %d, bit %d", name, i, bit)
				if r.Exit != audit.ExitFail || len(r.Faults) == 0 || r.Faults[0].Expected == "" || r.Faults[0].Found == "" {
					t.Fatalf("%s: exit %d, %+v", where, r.Exit, r.Faults)
				}
				if strings.HasPrefix(name, "tile/entries/") {
					if want := entryAt(t, original, i); r.Faults[0].Seq != want {
						t.Fatalf("%s: first fault %+v, want seq %d", where, r.Faults[0], want)
					}
				}
				changes++
			}
		}
		fsys[name] = &fstest.MapFile{Data: original}
	}
	t.Logf("%d changes found", changes)
	if changes < 40_000 {
		t.Errorf("only %d changes tried", changes)
	}
}

// TestR80_ThroughTheCommand: the same through the command and its exit code:
// bytes all over the files changed, removed, and put in.
func TestR80_ThroughTheCommand(t *testing.T) {
	files := goldenFiles(t)
	dir := export(t, files)
	if exit, r := verifyJSON(t, "--export", dir); exit != audit.ExitPass {
		t.Fatalf("unchanged: %+v", r)
	}
	for name, original := range files {
		path := filepath.Join(dir, name)
		try := func(i int, b []byte) {
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			if exit := run([]string{"--export", dir}, nil, &out, &errs); exit != audit.ExitFail || !strings.Contains(out.String(), "FAULT") || strings.Contains(out.String(), "\nconsistent") {
				t.Fatalf("%s, byte %d: exit %d\n%s%s", name, i, exit, out.String(), errs.String())
			}
		}
		for i := range original {
			if i%4 == 0 || name == "checkpoint" {
				b := bytes.Clone(original)
				b[i] += byte(1 + i%255)
				try(i, b)
			}
			if i%16 == 0 {
				try(i, slices.Delete(bytes.Clone(original), i, i+1))
				if i > 0 && original[i-1] != original[i] {
					try(i, slices.Insert(bytes.Clone(original), i, original[i-1]))
				}
			}
		}
		if err := os.WriteFile(path, original, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestR80_EveryByteInPython: the second implementation finds every change too,
// and names the entry.
func TestR80_EveryByteInPython(t *testing.T) {
	out, err := exec.Command("python3", "testdata/mutate.py", program, golden).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestR84_SecondImplementation: the Python program, written from docs/FORMAT.md
// alone, agrees on every vector, and on an export as the command does.
func TestR84_SecondImplementation(t *testing.T) {
	b, err := exec.Command("python3", program, "--vectors", vectors).Output() // as people run it
	out := string(b)
	if err != nil || !strings.HasPrefix(out, "vectors agree: 11 golden events, ") {
		t.Fatalf("%v: %s", err, out)
	}
	t.Log(out)
	// It can disagree: one changed expectation of each kind is noticed.
	for name, change := range map[string][2]string{
		"log.json":       {`"leaves": [` + "\n  \"", `"leaves": [` + "\n  \"0"},
		"types.json":     {`"leaf": "`, `"leaf": "0`},
		"rejected.jsonl": {`"base64":"`, `"base64":"eyJ2IjoxLCJzZXEiOjEsInByZXYiOiIwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwIiwidGltZSI6IjE5NzAtMDEtMDFUMDA6MDA6MDAuMDAwMDAwWiIsImlkIjoiMDE5MzdhMWItMmMwMC03MDAwLTgwMDAtMDAwMDAwMDAwMDAwIiwidHlwZSI6ImxlZGdlci5vcGVuZWQiLCJhZ2VudCI6InN5cyIsImJvZHkiOnsicnVsZXMiOjAsImJ1aWxkIjoiIn19","was":"`},
		"json.jsonl":     {`"canonical":"{}"`, `"canonical":"{ }"`},
	} {
		dir := filepath.Join(t.TempDir(), "v1")
		if err := os.CopyFS(dir, os.DirFS(vectors)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(b), change[0], change[1], 1)
		if changed == string(b) {
			t.Fatalf("%s: nothing to change", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		if exit, out := python(t, "--vectors", dir); exit != audit.ExitFail {
			t.Errorf("%s changed: exit %d: %s", name, exit, out)
		}
	}
	for _, size := range []int{6, 256, 300} {
		l := logtest.Sample(testOrigin, 1, size)
		dir := export(t, l.Files())
		_, r := verifyJSON(t, "--export", dir, "--vkey", l.VKey)
		exit, out := python(t, dir, "--vkey", l.VKey)
		if exit != 0 || r.Exit != 0 || !strings.Contains(out, r.Root) || !strings.Contains(out, "authentic") {
			t.Errorf("size %d: python %d %s, verify %d %s", size, exit, out, r.Exit, r.Root)
		}
	}
}

// TestR81_RememberedCheckpoint: truncation, a rewritten tail and a replaced log
// are each found with a remembered checkpoint, at sizes before, at and after
// it; without one the output says that this was not checked, and never "ok".
func TestR81_RememberedCheckpoint(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 20)
	write := func(name string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	at := func(size int) *logtest.Log {
		c := l.Clone()
		c.Entries = c.Entries[:size]
		return c
	}
	rewritten := func(from, size int) *logtest.Log {
		c := at(size)
		c.Edit(from, func(e *events.Event) { e.Agent = "other" })
		c.Relink(from + 1)
		return c
	}
	// Every honest later copy passes, every shorter one fails.
	for _, size := range []int{6, 10, 11, 12, 20} {
		dir := export(t, at(size).Files())
		for _, kept := range []int{1, 5, 10, 11, 12, 20} {
			exit, r := verifyJSON(t, "--export", dir, "--checkpoint", write("kept", l.Note(kept)))
			if want := map[bool]int{true: audit.ExitPass, false: audit.ExitFail}[kept <= size]; exit != want {
				t.Errorf("%d events against a checkpoint of %d: exit %d, want %d", size, kept, exit, want)
			}
			if kept > size && (r.Faults[0].Seq != uint64(size+1) || r.Faults[0].To != uint64(kept) && kept != size+1) {
				t.Errorf("%d events against a checkpoint of %d: %+v", size, kept, r.Faults[0])
			}
		}
	}
	// A rewritten tail is found exactly where the checkpoint covers it.
	for _, from := range []int{6, 9, 10, 12} {
		dir := export(t, rewritten(from, 16).Files())
		for _, kept := range []int{6, 10, 11, 16, 20} {
			exit, _ := verifyJSON(t, "--export", dir, "--checkpoint", write("kept", l.Note(kept)))
			want := audit.ExitPass
			if kept > from || kept > 16 {
				want = audit.ExitFail
			}
			if exit != want {
				t.Errorf("rewritten from seq %d, checkpoint of %d: exit %d, want %d", from+1, kept, exit, want)
			}
		}
	}
	// Without a checkpoint each passes, and says what that leaves open.
	for name, files := range map[string]map[string][]byte{
		"whole": l.Files(), "cut": at(9).Files(), "rewritten": rewritten(7, 20).Files(), "replaced": logtest.Sample("ledgerd.example/new/1", 3, 9).Files(),
	} {
		var out bytes.Buffer
		exit := run([]string{"--export", export(t, files)}, nil, &out, &out)
		if exit != audit.ExitPass || !strings.Contains(out.String(), "completeness  not_run") || !strings.Contains(out.String(), "cannot be ruled out") {
			t.Errorf("%s: exit %d\n%s", name, exit, out.String())
		}
		if strings.Contains(out.String(), "authentic:") || strings.Contains(strings.ToLower(out.String()), "verified") {
			t.Errorf("%s: says too much:\n%s", name, out.String())
		}
	}
	// A checkpoint that cannot be used is "could not check", never a pass.
	whole := export(t, l.Files())
	for name, c := range map[string][]byte{
		"empty": {}, "no note": []byte("hello\n"), "unsigned": []byte(l.Text(10)), "of size 0": l.Note(0),
		"binary": {0xff, 0}, "too long": bytes.Repeat([]byte("x"), 60_000), "cut": l.Note(10)[:100],
	} {
		if exit, r := verifyJSON(t, "--export", whole, "--checkpoint", write("kept", c)); exit != audit.ExitImpossible || r.Completeness.Status != audit.Impossible {
			t.Errorf("%s: exit %d: %+v", name, exit, r.Completeness)
		}
		if exit, out := python(t, whole, "--checkpoint", write("kept", c)); exit != audit.ExitImpossible {
			t.Errorf("%s: python: exit %d: %s", name, exit, out)
		}
	}
	forged := logtest.New(testOrigin, 7).Sign(l.Text(10))
	if exit, _ := verifyJSON(t, "--export", whole, "--vkey", l.VKey, "--checkpoint", write("kept", forged)); exit != audit.ExitImpossible {
		t.Errorf("a remembered checkpoint that the pinned key did not sign: exit %d", exit)
	}
}

// TestExitCodes is the whole contract of exit codes and outputs.
func TestExitCodes(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 12)
	good := export(t, l.Files())
	bad := l.Files()
	bad["payloads/6"] = []byte("x")
	keyFile := filepath.Join(t.TempDir(), "vkey")
	if err := os.WriteFile(keyFile, []byte(l.VKey+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	none := l.Files()
	delete(none, "tile/entries/000.p/12")
	unsigned := l.Files()
	delete(unsigned, "checkpoint")
	other := logtest.New(testOrigin, 5)
	file := filepath.Join(good, "checkpoint")
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "db"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		exit int
		says string
	}{
		{"consistent", []string{"--export", good}, 0, "consistent: "},
		{"authentic", []string{"--export", good, "--vkey", l.VKey}, 0, "authentic: "},
		{"key from a file", []string{"--export", good, "--vkey", "@" + keyFile}, 0, "authentic: "},
		{"everything but replay", []string{"--export", good, "--vkey", l.VKey, "--checkpoint", file}, 0, "remembered checkpoint of size 12"},
		{"help", []string{"--help"}, 0, "usage: verify"},
		{"damaged", []string{"--export", export(t, bad)}, 1, "FAILED"},
		{"other key", []string{"--export", good, "--vkey", other.VKey}, 1, "FAILED"},
		{"zero events", []string{"--export", export(t, none)}, 2, "no event"},
		{"empty directory", []string{"--export", t.TempDir()}, 2, "no event"},
		{"no checkpoint", []string{"--export", export(t, unsigned)}, 2, "no signed checkpoint"},
		{"no such directory", []string{"--export", filepath.Join(good, "nothing")}, 2, "could not check"},
		{"a file", []string{"--export", file}, 2, "is no file of ledgerd export --format jsonl or cloudevents"},
		{"no such data", []string{"--data", filepath.Join(good, "nothing")}, 2, "could not check"},
		{"an export as data", []string{"--data", good}, 2, "looks like an export; use --export"},
		{"data as an export", []string{"--export", data}, 2, "looks like a data directory; use --data"},
		{"no such checkpoint", []string{"--export", good, "--checkpoint", filepath.Join(good, "nothing")}, 2, "could not check"},
		{"no key", []string{"--export", good, "--vkey", "nonsense"}, 2, "verifier key"},
		{"no such key file", []string{"--export", good, "--vkey", "@/no/such/file"}, 2, "could not check"},
		{"empty key", []string{"--export", good, "--vkey", ""}, 2, "--vkey is empty"},
		{"replay of a log it cannot judge", []string{"--export", export(t, unsigned), "--replay"}, 2, "replay"},
		{"nothing named", nil, 2, "--data, --export"},
		{"both named", []string{"--export", good, "--data", good}, 2, "--data and --export"},
		{"empty name", []string{"--export", ""}, 2, "names no directory"},
		{"empty checkpoint name", []string{"--export", good, "--checkpoint", ""}, 2, "names no file"},
		{"unknown flag", []string{"--export", good, "--force"}, 2, "not defined"},
		{"argument", []string{"--export", good, "more"}, 2, "no flag"},
		{"unknown format", []string{"--export", good, "-o", "xml"}, 2, "text or json"},
		{"no faults", []string{"--export", good, "--faults", "0"}, 2, "at least 1"},
		{"server", []string{"--server", "nats://x"}, 2, "is no server"},
		{"quorum", []string{"--export", good, "--require-quorum", "2"}, 2, "go together"},
	} {
		var out, errs bytes.Buffer
		if exit := run(c.args, nil, &out, &errs); exit != c.exit || !strings.Contains(out.String()+errs.String(), c.says) {
			t.Errorf("%s: exit %d, want %d; want %q in\n%s%s", c.name, exit, c.exit, c.says, out.String(), errs.String())
		}
	}
}

// TestInAScript: case kind 23. A shell sees a failed check: under set -e, at
// the end of a pipe, and with output that nobody reads.
func TestInAScript(t *testing.T) {
	files := goldenFiles(t)
	good := export(t, files)
	files["payloads/4"][70] ^= 1
	bad := export(t, files)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sh := func(script string) int {
		cmd := exec.Command("bash", "-c", script)
		cmd.Env = append(os.Environ(), "BE_VERIFY=1", "VERIFY="+exe, "GOOD="+good, "BAD="+bad, "NONE="+t.TempDir())
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode()
	}
	for script, want := range map[string]int{
		`"$VERIFY" --export "$GOOD"`:                                      0,
		`"$VERIFY" --export "$BAD"`:                                       1,
		`"$VERIFY" --export "$NONE"`:                                      2,
		`set -e; "$VERIFY" --export "$BAD"; exit 0`:                       1,
		`set -e; "$VERIFY" --export "$GOOD" && "$VERIFY" --export "$BAD"`: 1,
		`set -o pipefail; "$VERIFY" --export "$BAD" | cat >/dev/null`:     1,
		`set -o pipefail; "$VERIFY" --export "$GOOD" | cat >/dev/null`:    0,
		`if "$VERIFY" --export "$BAD"; then exit 9; else exit $?; fi`:     1,
		`"$VERIFY" --export "$BAD" >/dev/null 2>&1`:                       1,
		`"$VERIFY" --export "$GOOD" >/dev/full`:                           2,
	} {
		if got := sh(script); got != want {
			t.Errorf("%s: exit %d, want %d", script, got, want)
		}
	}
}

// TestListsAllDamage: case kind 23. Damage in three places of a long log is
// named in all three; past the cap it is counted.
func TestListsAllDamage(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 2000)
	f := l.Files()
	damaged := []int{10, 500, 1900}
	for _, seq := range damaged {
		l.Entries[seq-1] = bytes.Replace(l.Entries[seq-1], []byte(`"type"`), []byte(`"tipe"`), 1)
	}
	for name, b := range l.Files() {
		if strings.HasPrefix(name, "tile/entries/") {
			f[name] = b
		}
	}
	exit, r := verifyJSON(t, "--export", export(t, f))
	if exit != audit.ExitFail {
		t.Fatalf("exit %d", exit)
	}
	named := map[uint64]bool{}
	for _, fault := range r.Faults {
		named[fault.Seq] = true
	}
	for _, seq := range damaged {
		if !named[uint64(seq)] {
			t.Errorf("seq %d is not named: %+v", seq, r.Faults)
		}
	}
	if len(r.Faults) > audit.FaultsMax || r.FaultsMore != 0 {
		t.Errorf("%d faults and %d more for three changes", len(r.Faults), r.FaultsMore)
	}
	for seq := 100; seq < 1000; seq += 2 {
		l.Entries[seq] = bytes.Replace(l.Entries[seq], []byte(`"type"`), []byte(`"tipe"`), 1)
	}
	for name, b := range l.Files() {
		if strings.HasPrefix(name, "tile/entries/") {
			f[name] = b
		}
	}
	dir := export(t, f)
	for _, args := range [][]string{nil, {"--faults", "3"}} {
		_, r := verifyJSON(t, append([]string{"--export", dir}, args...)...)
		want := audit.FaultsMax
		if args != nil {
			want = 3
		}
		if len(r.Faults) != want || r.FaultsMore < 450 {
			t.Errorf("%v: %d faults listed, %d more", args, len(r.Faults), r.FaultsMore)
		}
	}
	if _, r := verifyJSON(t, "--export", dir, "--all"); len(r.Faults) < 450 || r.FaultsMore != 0 {
		t.Errorf("--all: %d faults listed, %d more", len(r.Faults), r.FaultsMore)
	}
	if _, r := verifyJSON(t, "--export", dir, "--first"); len(r.Faults) != 1 || r.Faults[0].Seq != 10 || r.FaultsMore > 2 || r.Events != 10 || r.Exit != audit.ExitFail || r.Root != "" {
		t.Errorf("--first: %d faults listed, %d more", len(r.Faults), r.FaultsMore)
	}
	says(t, audit.ExitImpossible, "give one of them", "--export", dir, "--first", "--all")
	var out bytes.Buffer
	run([]string{"--export", dir}, nil, &out, &out)
	if !strings.Contains(out.String(), " more\n") {
		t.Errorf("the output does not say how many are left out:\n%s", out.String())
	}
}

// TestMeter: progress has rate and estimate, and goes away at the end.
func TestMeter(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	m := meter(&out, func() time.Time { return now })
	m(4096, 100_000)
	if out.Len() != 0 {
		t.Errorf("too early: %q", out.String())
	}
	now = now.Add(2 * time.Second)
	m(20_000, 100_000)
	if want := "20000 of 100000 events, 10000/s, 8s left"; !strings.Contains(out.String(), want) {
		t.Errorf("%q, want %q", out.String(), want)
	}
	m(100_000, 100_000)
	if !strings.HasSuffix(out.String(), "\r\x1b[K") {
		t.Errorf("the line stays: %q", out.String())
	}
	if progress(&out) != nil {
		t.Error("progress in a pipe")
	}
}

// TestOutputIsSafe: text from the log cannot draw on a terminal.
func TestOutputIsSafe(t *testing.T) {
	files := goldenFiles(t)
	files["evil\x1b[2J\u202e"] = []byte("x")
	var out bytes.Buffer
	if exit := run([]string{"--export", export(t, files)}, nil, &out, &out); exit != audit.ExitFail {
		t.Errorf("exit %d", exit)
	}
	if strings.ContainsAny(out.String(), "\x1b\u202e\r") {
		t.Errorf("%q", out.String())
	}
	if got := printable("a\x1b\n\u009b\u2066é"); got != "a����é" {
		t.Errorf("%q", got)
	}
}

// What the storage engine adds to its errors for machines is told to nobody.
func TestErrorsAreForPeople(t *testing.T) {
	if got := plain("checksum mismatch\n<corruption detail carrier> (nothing was changed)"); got != "checksum mismatch (nothing was changed)" {
		t.Errorf("%q", got)
	}
}

// TestDamageNeverHangs: whatever becomes of an export's files, the command ends,
// soon, without a panic, and does not pass: with everything asked for.
func TestDamageNeverHangs(t *testing.T) {
	original := map[string][]byte{}
	root := filepath.Join(corpus, "honest")
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		original[name], err = os.ReadFile(filepath.Join(root, name))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Sorted(maps.Keys(original))
	source, err := audit.OpenExport(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	var lines []byte
	err = source.Events(1, source.Size, func(_ uint64, b []byte) error {
		lines = append(append(lines, b...), '\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	mirror := put(t, "mirror", lines)
	says(t, audit.ExitPass, "consistent", "--export", root, "--replay", "--mirror", mirror)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 150 {
		files := maps.Clone(original)
		for range 1 + r.IntN(3) {
			name := names[r.IntN(len(names))]
			b := bytes.Clone(files[name])
			at := r.IntN(len(b) + 1)
			switch r.IntN(6) {
			case 0:
				b = b[:at]
			case 1:
				b = append(b, b[:at]...)
			case 2:
				b = slices.Insert(b, at, byte(r.IntN(256)))
			case 3:
				files[names[r.IntN(len(names))]] = b
			case 4:
				b = bytes.Repeat([]byte{0xff}, r.IntN(1<<17))
			default:
				if at < len(b) {
					b[at] ^= byte(1 << r.IntN(8))
				}
			}
			files[name] = b
		}
		if maps.EqualFunc(files, original, bytes.Equal) {
			continue
		}
		dir := export(t, files)
		ended := make(chan int, 1)
		go func() {
			var out bytes.Buffer
			ended <- run([]string{"--export", dir, "--replay", "--mirror", mirror, "--evidence", filepath.Join(t.TempDir(), "evidence"), "--resume", filepath.Join(t.TempDir(), "state")}, nil, &out, &out)
		}()
		select {
		case exit := <-ended:
			if exit == audit.ExitPass {
				t.Errorf("damage %d passes", i)
			}
		case <-time.After(time.Minute):
			t.Fatalf("damage %d: it hangs", i)
		}
	}
}

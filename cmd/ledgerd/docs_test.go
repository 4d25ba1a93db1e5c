package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestReadmeCommands(t *testing.T) { runDocument(t, "README.md", t.TempDir()) }

func TestPolicyCommands(t *testing.T) { runDocument(t, "docs/POLICY.md", t.TempDir()) }

// In OPERATIONS.md there are a certificate and its key to begin with.
func TestOperationsCommands(t *testing.T) {
	work := t.TempDir()
	cert, key, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(work, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runDocument(t, "docs/OPERATIONS.md", work)
}

// runDocument runs a document: every line of its sh blocks, in order, in the
// directory work. A yaml block that the text before it calls `NAME` is the file
// NAME. A line ending in "# exit N" must exit with N, every other with 0. "go
// test" is not run again. A server listens on ports of its own, and is waited
// for.
func runDocument(t *testing.T, document, work string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	script, commands, err := readmeScript(string(text), work)
	if err != nil {
		t.Fatal(err)
	}
	if commands == 0 {
		t.Fatalf("%s has no command in a sh block", document)
	}
	sh := exec.Command("bash", "-c", script)
	sh.Dir = work
	sh.Env = append(os.Environ(), "ROOT="+root, "TMPDIR="+t.TempDir())
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

var (
	fence     = regexp.MustCompile("(?ms)(?:`([a-z]+\\.yaml)`[^\n`]*\n\n)?^```(sh|yaml)\n(.*?)^```$")
	exitCheck = regexp.MustCompile(`\s+# exit ([0-9]+)$`)
)

// readmeScript turns a README into one shell script, and writes the files it
// shows to dir.
func readmeScript(readme, dir string) (script string, commands int, err error) {
	lines := []string{"set -emux", `trap 'kill $(jobs -p) 2>/dev/null || true' EXIT`}
	for _, block := range fence.FindAllStringSubmatch(readme, -1) {
		name, language, text := block[1], block[2], block[3]
		if language == "yaml" {
			if name == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				return "", 0, err
			}
			continue
		}
		for _, line := range strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n") {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "go test") {
				continue
			}
			commands++
			lines = append(lines, runnable(line))
		}
	}
	return strings.Join(lines, "\n") + "\n", commands, nil
}

// runnable is a README's line as the test runs it.
func runnable(line string) string {
	line = strings.ReplaceAll(line, "go run ./cmd/ledgerd", "ledgerd")
	line = strings.ReplaceAll(line, " docs/", ` "$ROOT"/docs/`)
	line = strings.ReplaceAll(line, " examples/", ` "$ROOT"/examples/`)
	if build, ok := strings.CutPrefix(line, "go build -o "); ok {
		return `go -C "$ROOT" build -o "$PWD"/` + build
	}
	if !strings.Contains(line, "ledgerd serve") {
		line = strings.ReplaceAll(line, "http://127.0.0.1:9222", `"$(sed 's/.*"http_url":"\([^"]*\)".*/\1/' ready.json)"`)
	}
	if server, ok := strings.CutSuffix(line, "&"); ok && strings.Contains(line, "ledgerd serve") {
		server = strings.ReplaceAll(server, "--http 127.0.0.1:9222", "--http 127.0.0.1:0")
		return server + ` --listen 127.0.0.1:0 --ready-file ready.json &
while [ ! -f ready.json ]; do kill -0 $!; sleep 0.05; done
export LEDGERD_SERVER="$(sed 's/.*"nats_url":"\([^"]*\)".*/\1/' ready.json)"`
	}
	if m := exitCheck.FindStringSubmatch(line); m != nil {
		command := strings.TrimSuffix(line, m[0])
		return fmt.Sprintf("code=0; %s || code=$?; [ $code = %s ]", command, m[1])
	}
	return line
}

// What a root shell is told to run is of few programs, and their flags of
// ledgerd's exist.
func TestOperationsRootCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			lines++
			if !regexp.MustCompile(`^# (install|systemctl|systemd-run|journalctl) `).MatchString(line) {
				t.Errorf("no command of a root shell: %s", line)
			}
			if _, command, ok := strings.Cut(line, "/usr/local/bin/ledgerd "); ok {
				if code, _, errs := ledgerd(t, append(strings.Fields(command), "--help")...); code != 0 {
					t.Errorf("%s: %s", line, errs)
				}
			}
		}
	}
	if lines < 8 {
		t.Errorf("only %d lines found", lines)
	}
}

// Every metric that OPERATIONS.md speaks of exists, in the source that makes it.
func TestOperationsMetricsExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../../internal/web/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`ledgerd_([a-z_]+)`).FindAllStringSubmatch(string(text), -1)
	for _, m := range named {
		if !strings.Contains(string(source), `desc("`+m[1]+`"`) {
			t.Errorf("there is no metric %s", m[0])
		}
	}
	if len(named) < 15 {
		t.Errorf("only %d metrics found", len(named))
	}
}

// The unit that is shipped loads, its command line is one that serve takes, and
// it gives away little: 2.0 of 10 at most, where a bare unit has 9.6. Without
// systemd its lines are at least of the form that a unit has.
func TestTheUnit(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/ledgerd.service")
	if err != nil {
		t.Fatal(err)
	}
	command, sections := "", 0
	for i, line := range strings.Split(string(unit), "\n") {
		if _, value, ok := strings.Cut(line, "ExecStart="); ok {
			command = value
		}
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "[Unit]" || line == "[Service]" || line == "[Install]":
			sections++
		case !regexp.MustCompile(`^[A-Z][A-Za-z]+=`).MatchString(line):
			t.Errorf("line %d is no line of a unit: %s", i+1, line)
		}
	}
	words := strings.Fields(command)
	if sections != 3 || len(words) < 2 || words[0] != "/usr/local/bin/ledgerd" {
		t.Fatalf("%d sections, command %q", sections, command)
	}
	if code, _, errs := ledgerd(t, append(words[1:], "--help")...); code != 0 {
		t.Errorf("%s: %s", command, errs)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd-analyze here")
		return
	}
	installed := filepath.Join(t.TempDir(), "ledgerd.service")
	program, err := exec.LookPath("ledgerd")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.ReplaceAll(string(unit), "/usr/local/bin/ledgerd", program)
	if err := os.WriteFile(installed, []byte(here), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", "--man=no", installed}, {"security", "--offline=true", "--threshold=20", installed}} {
		if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

func TestReadmeScript(t *testing.T) {
	dir := t.TempDir()
	script, commands, err := readmeScript("```sh\ngo run ./cmd/ledgerd demo\ngo test ./...\ngo build -o verify ./tools/verify\nledgerd a \\\n  b\nledgerd c   # exit 3\nuntil test -s ready.json; do sleep 0.1; done\n```\n"+
		"Save this as `lab.yaml`:\n\n```yaml\nkind: Policy\n```\n```console\n$ not run\n```\n", dir)
	if err != nil || commands != 5 {
		t.Fatalf("%d commands, %v:\n%s", commands, err, script)
	}
	for _, want := range []string{
		"\nuntil test -s ready.json; do sleep 0.1; done\n", "\nledgerd demo\n", "\nledgerd a    b\n", "\ncode=0; ledgerd c || code=$?; [ $code = 3 ]\n",
		"\ngo -C \"$ROOT\" build -o \"$PWD\"/verify ./tools/verify\n",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("no %q in\n%s", want, script)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "lab.yaml")); err != nil || string(b) != "kind: Policy\n" {
		t.Errorf("lab.yaml: %q, %v", b, err)
	}
}

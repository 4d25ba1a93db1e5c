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

// TestReadmeCommands runs the README: every line of its sh blocks, in order, in
// one empty directory. A yaml block that the text before it calls `NAME` is the
// file NAME. A line ending in "# exit N" must exit with N, every other with 0.
// "go test" is not run again. A server listens on a port of its own, and is
// waited for.
func TestReadmeCommands(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	script, commands, err := readmeScript(string(readme), work)
	if err != nil {
		t.Fatal(err)
	}
	if commands == 0 {
		t.Fatal("README.md has no command in a sh block")
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
	if build, ok := strings.CutPrefix(line, "go build -o "); ok {
		return `go -C "$ROOT" build -o "$PWD"/` + build
	}
	if server, ok := strings.CutSuffix(line, "&"); ok && strings.Contains(line, "ledgerd serve") {
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

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

// heard collects what is written, from any goroutine.
type heard struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.Write(b)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

// served is a ledger served by the command, in this process, that logs
// everything it logs at all.
type served struct {
	ready   readyContent
	stderr  heard
	stopped chan int
	cancel  context.CancelFunc
}

func serveAll(t *testing.T, data string, args ...string) *served {
	t.Helper()
	s := &served{stopped: make(chan int, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	file := filepath.Join(t.TempDir(), "ready.json")
	command := append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", file, "--log-level", "debug"}, args...)
	go func() {
		s.stopped <- run(ctx, command, func(string) string { return "" }, strings.NewReader(""), io.Discard, &s.stderr)
	}()
	t.Cleanup(cancel)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			if err := json.Unmarshal(b, &s.ready); err != nil {
				t.Fatal(err)
			}
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("not served: %s", s.stderr.String())
		}
	}
}

func (s *served) stop(t *testing.T) {
	t.Helper()
	s.cancel()
	if code := <-s.stopped; code != 0 {
		t.Errorf("serve: exit %d: %s", code, s.stderr.String())
	}
}

func (s *served) get(t *testing.T, path string) string {
	t.Helper()
	r, err := http.Get(s.ready.HTTP + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tapped keeps the connection that it made, so that a client can be made to say
// what no client library says.
type tapped struct{ conn net.Conn }

func (d *tapped) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	d.conn = conn
	return conn, err
}

// tapAs connects with a seed from a file, under a name that is an attack on
// the reader of a log.
func tapAs(t *testing.T, url, id, seedFile, name string) (*nats.Conn, net.Conn) {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(seedFile)
	if err != nil {
		t.Fatal(err)
	}
	tap := &tapped{}
	nc, err := nats.Connect(url, key, nats.Name(name), nats.NoReconnect(), nats.SetCustomDialer(tap), nats.CustomInboxPrefix("_INBOX."+id),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, tap.conn
}

// R3: whatever is sent, how wrong it may be, no value, argument, payload or seed
// of it is in a log line, a metric, a health answer, or an answer to anyone but
// its owner; and no line of the log is broken or obeyed by a terminal.
func TestR3_NoCanaryInLogsMetricsHealthAndAnswers(t *testing.T) {
	dir := t.TempDir()
	data, creds := filepath.Join(dir, "data"), filepath.Join(dir, "creds")
	if code, _, errs := ledgerd(t, "init", "--data", data); code != 0 {
		t.Fatal(errs)
	}
	for _, format := range []string{"text", "json"} {
		s := serveAll(t, data, "--log-format", format)
		admin := []string{"--server", s.ready.NATS, "--as", "admin", "--creds", filepath.Join(data, "keys", "admin.nk")}
		if code, out, errs := ledgerd(t, append([]string{"apply", "-f", "demo.yaml", "--creds-dir", creds}, admin...)...); code != 0 {
			t.Fatalf("apply: %d\n%s%s", code, out, errs)
		}
		answers := misbehave(t, s, creds, format)
		if owner := answers["report_manager memory.write"]; !strings.Contains(owner, canary) {
			t.Errorf("the owner's own answer lacks its value, so nothing was shown: %s", owner)
		}
		seeds := seedsIn(t, creds, filepath.Join(data, "keys"))
		delete(answers, "report_manager memory.write")
		answers["/metrics"], answers["/readyz"], answers["/version"] = s.get(t, "/metrics"), s.get(t, "/readyz?verbose"), s.get(t, "/version")
		if !strings.Contains(answers["/metrics"], `ledgerd_transport_denied_total{kind="publish_denied"}`) {
			t.Errorf("no refusal by the server is counted:\n%s", answers["/metrics"])
		}
		s.stop(t)
		log := s.stderr.String()
		answers["standard error"] = log
		if !strings.Contains(log, "Client parser ERROR") {
			t.Errorf("what the NATS server says of a client does not reach the log, so nothing was shown:\n%s", log)
		}
		for where, text := range answers {
			if strings.Contains(text, canary) {
				t.Errorf("%s holds the canary: %s", where, text)
			}
			for name, seed := range seeds {
				if strings.Contains(text, seed) {
					t.Errorf("%s holds %s", where, name)
				}
			}
		}
		wholeLines(t, format, log)
	}
	replaytest.CheckLedger(t, ledger.Options{Dir: data})
}

const canary = "canary-5be1"

// misbehave sends allowed, denied, malformed and forbidden things with the
// canary in values and arguments, and returns the answers.
func misbehave(t *testing.T, s *served, creds, format string) map[string]string {
	t.Helper()
	const name = "evil\nlevel=ERROR msg=\"forged\"\x1b[2J\u202e" + canary
	answers := map[string]string{}
	for _, c := range []struct{ who, operation, request string }{
		{"report_manager", "memory.write", `{"owner_agent_id":"report_manager","namespace":"credentials","key":"` + format + `","value":"` + canary + `"}`},
		{"researcher", "memory.read", `{"namespace":"credentials","key":"` + format + `"}`},
		{"researcher", "memory.write", `{"owner_agent_id":"report_manager","namespace":"credentials","key":"canary","value":"` + canary + `"}`},
		{"researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"x","value":"` + canary},
		{"researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"x","value":null,"` + canary + `":1}`},
		{"researcher", "memory.write", canary},
		{"researcher", "no.such", `{"value":"` + canary + `"}`},
		{"researcher", "action.authorize", `{"action":"external.upload","arguments":{"x":"` + canary + `"}}`},
		{"researcher", "action.authorize", `{"action":"x y","arguments":{"x":"` + canary + `"}}`},
		{"researcher", "sop.validate", `{"sop":{"sop_id":"s","version":1,"steps":[{"step_id":"a","action":"artifact.save","arguments":{"x":"` + canary + `"}}]}}`},
		{"researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"notes","key":"x","value":"` + canary + strings.Repeat("x", 70<<10) + `"}`},
	} {
		nc, _ := tapAs(t, s.ready.NATS, c.who, filepath.Join(creds, c.who+".nk"), name)
		m, err := nc.Request("gov.main.propose."+c.who+"."+c.operation, []byte(c.request), 20*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", c.request[:min(len(c.request), 80)], err)
		}
		answers[c.who+" "+c.operation] += string(m.Data)
		nc.Close()
	}
	// Subjects that are another's, payloads that are taken for commands, and a
	// line that is too long: of these only the server tells.
	for _, line := range []string{
		"PUB gov.main.propose.report_manager.memory.write." + canary + " 5\r\nhello\r\n",
		"SUB " + canary + ".> 9\r\n",
		canary + " {\"value\":\"" + canary + "\"}\r\n",
		"PUB a.b 5\r\n" + canary + " longer than five\r\n",
		"PUB " + canary + " " + canary + " " + canary + " x\r\n",
		"PUB " + strings.Repeat(canary, 1000) + " 1\r\n",
		"HPUB a.b 5 " + canary + "\r\n",
	} {
		_, conn := tapAs(t, s.ready.NATS, "researcher", filepath.Join(creds, "researcher.nk"), name)
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, line := range []string{canary + "\r\n", `CONNECT {"user":"` + canary + `","pass":"` + canary + `","name":"` + canary + `"}` + "\r\n", "GET /" + canary + " HTTP/1.1\r\n\r\n"} {
		for _, address := range []string{strings.TrimPrefix(s.ready.NATS, "nats://"), strings.TrimPrefix(s.ready.HTTP, "http://")} {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, line); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(conn)
			if conn.Close(); address == strings.TrimPrefix(s.ready.HTTP, "http://") {
				answers["http "+line] = string(b)
			}
		}
	}
	waitFor(t, "the server's refusals are counted", func() bool {
		return strings.Contains(s.get(t, "/metrics"), "ledgerd_transport_denied_total")
	})
	return answers
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// seedsIn reads every secret key in dirs.
func seedsIn(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	seeds := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if e.Name() != "checkpoint.vkey" {
				seeds[e.Name()] = strings.TrimSpace(string(b))
			}
		}
	}
	if len(seeds) < 6 {
		t.Fatalf("only %d secrets found", len(seeds))
	}
	return seeds
}

// wholeLines checks that every line of a log is one that the logger began, and
// that nothing in it is for a terminal.
func wholeLines(t *testing.T, format, log string) {
	t.Helper()
	begins := regexp.MustCompile(`^time=\S+ level=[A-Z]+ msg=`)
	for _, line := range strings.Split(strings.TrimSuffix(log, "\n"), "\n") {
		var entry map[string]any
		if format == "text" && !begins.MatchString(line) || format == "json" && json.Unmarshal([]byte(line), &entry) != nil {
			t.Errorf("a line that is none: %q", line)
		}
		if strings.ContainsAny(line, "\x1b\u202e\r") || strings.HasPrefix(line, "level=ERROR msg=\"forged\"") {
			t.Errorf("a terminal would obey %q", line)
		}
	}
}

// What comes into a line from outside stays in it, in both formats.
func TestLogLinesAreWholeAndHarmless(t *testing.T) {
	const evil = "a\nlevel=ERROR msg=forged\x1b[31m\u202e \xff \"quoted\" \\ ok"
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		log, err := newLogger(&b, format, "debug")
		if err != nil {
			t.Fatal(err)
		}
		log.Error(evil, "reason", evil, "error", &exitError{exitUsage, errEvil(evil)}, "n", 3)
		log.WithGroup("g").With("k", evil).Warn("m", "k", evil)
		wholeLines(t, format, b.String())
		if n := strings.Count(b.String(), "\n"); n != 2 {
			t.Errorf("%s: %d lines: %q", format, n, b.String())
		}
	}
	for _, level := range []string{"error", "WARN"} {
		var b bytes.Buffer
		log, err := newLogger(&b, "text", level)
		if err != nil {
			t.Fatal(err)
		}
		if log.Info("not told"); b.Len() > 0 {
			t.Errorf("at %s: %s", level, b.String())
		}
	}
}

type errEvil string

func (e errEvil) Error() string { return string(e) }

package web_test

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/web"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen starts a server that is closed with the test.
func listen(t testing.TB) *web.Server {
	t.Helper()
	s, err := web.Listen(web.Options{Listen: "127.0.0.1:0", Version: web.Version{Build: "b", Rules: 1, Format: "f", Go: "g"}})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// start runs a new ledger that s shows.
func start(t testing.TB, s *web.Server) (*replaytest.Session, ledger.Options) {
	t.Helper()
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data")}
	must(t, ledger.Init(o.Dir, ledger.InitOptions{}))
	session := replaytest.Start(t, o)
	s.Serve(web.Source{Ledger: session.Ledger, Checks: session.Checks, Door: func() web.Door {
		return web.Door{Refused: map[string]uint64{"rate_limited": 3}, Denied: map[string]uint64{"auth_failed": 2}}
	}})
	return session, o
}

func get(t testing.TB, s *web.Server, path string) (int, string) {
	t.Helper()
	r, err := http.Get(s.URL() + path)
	must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(b)
}

// wants fails unless path answers status with text in it.
func wants(t testing.TB, s *web.Server, path string, status int, parts ...string) {
	t.Helper()
	got, body := get(t, s, path)
	if got != status {
		t.Errorf("%s: %d, want %d: %s", path, got, status, body)
	}
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("%s: no %q in %s", path, part, body)
		}
	}
}

func TestProbes(t *testing.T) {
	s := listen(t)
	wants(t, s, "/livez", 200, "ok\n")
	wants(t, s, "/readyz", 503, "[fail] serving: the ledger is being opened\n", "not ready\n")
	wants(t, s, "/metrics", 200, "\nledgerd_ready 0\n", "go_goroutines", "process_open_fds")
	wants(t, s, "/version", 200, `{"build":"b","rules":1,"format":"f","go":"g"}`)
	wants(t, s, "/", 404)
	wants(t, s, "/debug/pprof/", 404)
	if r, err := http.Post(s.URL()+"/readyz", "text/plain", strings.NewReader("x")); err != nil || r.StatusCode != 405 {
		t.Errorf("POST: %v %v", r, err)
	}

	session, o := start(t, s)
	wants(t, s, "/readyz", 503, "[fail] policy: no policy is in force", "not ready\n")
	session.Family()
	wants(t, s, "/readyz", 200, "ready\n")
	if _, body := get(t, s, "/readyz"); body != "ready\n" {
		t.Errorf("a healthy ledger says %q", body)
	}
	wants(t, s, "/readyz?verbose", 200, "[ok] serving\n[ok] store\n[ok] storage\n[ok] clock\n[ok] policy\n[ok] writer\n[ok] anchor\n[ok] payloads\nready\n")
	wants(t, s, "/metrics", 200, "\nledgerd_ready 1\n", `ledgerd_check{check="writer"} 0`)

	s.Withdraw("it\x1b[2J ends\nnow")
	wants(t, s, "/livez", 200)
	wants(t, s, "/readyz", 503, `[fail] serving: it\x1b[2J ends\nnow`)
	session.Stop()
	replaytest.CheckLedger(t, o)
}

// Every decision in the log is counted once, under its operation and reason.
func TestMetricsCountWhatTheLogHolds(t *testing.T) {
	s := listen(t)
	session, o := start(t, s)
	session.Scenario()
	want := map[string]float64{}
	must(t, session.Events(1, session.Durable(), func(_ uint64, b []byte) error {
		e, err := events.Parse(b)
		if d, ok := e.Body.(*events.Decision); ok && !ledger.IsStep(d) {
			allowed := "false"
			if d.Allowed {
				allowed = "true"
			}
			want[`ledgerd_decisions_total{allowed="`+allowed+`",operation="`+d.Operation+`",reason="`+d.Reason+`"}`]++
		}
		return err
	}))
	got := scrape(t, s)
	decided := 0.0
	for name, n := range got {
		if strings.HasPrefix(name, "ledgerd_decisions_total") {
			decided += n
			if want[name] != n {
				t.Errorf("%s is %v, the log holds %v", name, n, want[name])
			}
		}
	}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %v, the log holds %v", name, got[name], n)
		}
	}
	steps := 0.0 // of runs: nobody asked for these
	for name, n := range want {
		if strings.Contains(name, ledger.StepOperation) {
			steps += n
		}
	}
	if answered := got["ledgerd_decision_latency_seconds_count"]; answered != decided-steps+got["ledgerd_retries_total"] {
		t.Errorf("%v latencies, %v decisions, %v of them on steps, %v retries", answered, decided, steps, got["ledgerd_retries_total"])
	}
	if got["ledgerd_durable_seq"] != float64(session.Durable()) || got[`ledgerd_state_size{of="agents"}`] == 0 || got[`ledgerd_state_size{of="records"}`] == 0 ||
		got["ledgerd_sync_duration_seconds_count"] == 0 || got["ledgerd_store_free_bytes"] == 0 || got[`ledgerd_store_bytes{of="disk"}`] == 0 ||
		got["ledgerd_checkpoints_total"] == 0 || got[`ledgerd_requests_refused_total{reason="rate_limited"}`] != 3 || got[`ledgerd_transport_denied_total{kind="auth_failed"}`] != 2 {
		t.Errorf("metrics %v", got)
	}
	session.Stop()
	replaytest.CheckLedger(t, o)
}

var (
	sample = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? (\S+)$`)
	label  = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// scrape reads /metrics into series and values.
func scrape(t testing.TB, s *web.Server) map[string]float64 {
	t.Helper()
	_, body := get(t, s, "/metrics")
	out := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		m := sample.FindStringSubmatch(lines.Text())
		if m == nil {
			t.Fatalf("no sample: %q", lines.Text())
		}
		v, err := strconv.ParseFloat(m[3], 64)
		must(t, err)
		out[strings.TrimSuffix(lines.Text(), " "+m[3])] = v
	}
	return out
}

// R3: no label takes a value that came from outside, whatever agents send, so
// that neither a name nor a value is in a metric and their number is bounded.
func TestR3_MetricLabelsAreClosedLists(t *testing.T) {
	s := listen(t)
	session, o := start(t, s)
	session.Family()
	const canary = "canary-7f3a"
	session.Propose("researcher", "memory.write", `{"owner_agent_id":"researcher","namespace":"`+canary+`","key":"`+canary+`","value":"`+canary+`","operation_id":"`+canary+`"}`)
	session.Propose("researcher", "memory.read", `{"namespace":"notes","key":"`+canary+`"}`)
	session.Propose("researcher", canary, `{"x":"`+canary+`"}`)
	session.Propose("researcher", "action.authorize", `{"action":"`+canary+`","arguments":{}}`)
	session.Control("admin", canary, `{}`)
	session.Propose(canary, "memory.read", `{"namespace":"notes","key":"x"}`)

	var operations, reasons []string
	operations = append(append(wire.Operations(wire.Propose), wire.Operations(wire.Control)...), events.Unsupported, ledger.StepOperation)
	for _, info := range reason.All() {
		reasons = append(reasons, string(info.Code))
	}
	allowed := map[string][]string{
		"operation": operations, "reason": reasons, "allowed": {"true", "false"},
		"lane":  {"control", "report", "propose", "query", "render", "commit"},
		"check": {"serving", "store", "storage", "clock", "policy", "writer", "anchor", "payloads"},
		"kind":  {"auth_failed", "publish_denied", "subscribe_denied"},
		"of":    {"agents", "principals", "records", "operation_ids", "open_runs", "runs_in_doubt", "emergency_denies", "disk", "wal", "tables", "memtables", "cache", "compaction_debt"},
	}
	series := scrape(t, s)
	seen := map[string]bool{}
	for name := range series {
		if strings.Contains(name, canary) || strings.Contains(name, "researcher") {
			t.Errorf("%s names what was sent", name)
		}
		if !strings.HasPrefix(name, "ledgerd_") || strings.HasPrefix(name, "ledgerd_build_info") {
			continue
		}
		for _, m := range label.FindAllStringSubmatch(name, -1) {
			if m[1] != "le" && !slices.Contains(allowed[m[1]], m[2]) {
				t.Errorf("%s: %s=%q is of no closed list", name, m[1], m[2])
			}
			seen[m[1]] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		if !seen[name] {
			t.Errorf("no series has the label %s: nothing was shown", name)
		}
	}
	if series[`ledgerd_decisions_total{allowed="false",operation="unsupported",reason="unsupported_operation"}`] != 2 {
		t.Errorf("what is not supported is not counted as such: %v", series)
	}
	session.Stop()
	replaytest.CheckLedger(t, o)
}

func TestListenRefusesWhatOthersCouldRead(t *testing.T) {
	for _, c := range []struct {
		listen        string
		secure, plain bool
		ok            bool
	}{
		{"127.0.0.1:0", false, false, true}, {"localhost:0", false, false, true}, {"[::1]:0", false, false, true},
		{"0.0.0.0:0", false, false, false}, {":0", false, false, false}, {"192.0.2.1:80", false, false, false}, {"example.org:80", false, false, false},
		{"0.0.0.0:0", true, false, true}, {"0.0.0.0:0", false, true, true}, {"no port", true, true, false},
	} {
		if err := web.CheckListen(c.listen, c.secure, c.plain); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := web.Listen(web.Options{Listen: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "--http-plain") {
		t.Errorf("listen everywhere in the clear: %v", err)
	}
}

// Whoever holds all connections and says nothing holds them for as long as a
// request may take to come, and then the probes are answered again.
func TestConnectionsThatSayNothingDoNotHoldTheProbes(t *testing.T) {
	s := listen(t)
	address := strings.TrimPrefix(s.URL(), "http://")
	for range 128 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	wants(t, s, "/livez", 200, "ok\n")
}

package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// A served ledger is cosigned, shows it, and goes on loudly where a witness
// refuses.
func TestServeWithAWitness(t *testing.T) {
	dir := t.TempDir()
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "policy")
	if err := ledger.Init(data, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	seed := sha256.Sum256([]byte("w"))
	key := ed25519.NewKeyFromSeed(seed[:])
	var refuses atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, note, _ := bytes.Cut(body, []byte("\n\n"))
		if refuses.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		line, _ := audit.Cosign("w", key, time.Now(), note)
		_, _ = io.WriteString(w, line)
	}))
	defer other.Close()
	_, vkey := audit.Cosign("w", key, time.Now(), nil)
	if err := os.WriteFile(file, []byte("witness one "+vkey+" "+other.URL+"\nquorum one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := ledgerd(t, "witness", "status", "--data", data, "--witness-policy", file); code != exitNotFound {
		t.Errorf("before: exit %d", code)
	}
	o := nodeOptions{data: data, listen: "127.0.0.1:0", http: "127.0.0.1:0", minFree: "1", anchorSync: "lazy", rate: 500, burst: 1000, maxWait: time.Second, witnessPolicy: file, witnessEvery: time.Second}
	n, err := startNode(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(path string) string {
		r, err := http.Get(n.httpURL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return string(b)
	}
	await := func(path string, parts ...string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			got, missing := fetch(path), ""
			for _, part := range parts {
				if !strings.Contains(got, part) {
					missing = part
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: no %q in\n%s", path, missing, got)
			}
		}
	}
	await("/checkpoint", "\n— w ")
	await("/metrics", "\nledgerd_witness_quorum_seq 2\n", `ledgerd_witness_refused{witness="1"} 0`, `ledgerd_witness_answers_total{outcome="cosigned"} 1`)
	await("/readyz?verbose", "[ok] witnesses\n")
	if code, out, _ := ledgerd(t, "witness", "status", "--data", data, "--witness-policy", file); code != 0 || !strings.Contains(out, "cosigned") {
		t.Errorf("exit %d: %s", code, out)
	}
	refuses.Store(true)
	if code, _, errs := ledgerd(t, "apply", "-f", "demo.yaml", "--creds-dir", filepath.Join(dir, "creds"), "--server", n.front.URL(), "--as", "admin", "--creds", filepath.Join(data, "keys", "admin.nk")); code != 0 {
		t.Fatalf("apply: %s", errs)
	}
	await("/readyz", "[warn] witnesses: witness one: refused: 403", "\nready\n")
	await("/metrics", `ledgerd_witness_refused{witness="1"} 1`, "\nledgerd_witness_quorum_seq 2\n")
	if got := fetch("/checkpoint"); strings.Contains(got, "— w ") {
		t.Errorf("a cosignature of another checkpoint: %s", got)
	}
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{
		{"witness", "list"}, {"witness", "list", "--witness-policy", "none"}, {"witness", "list", "--witness-policy", "demo.yaml"}, {"witness", "status", "--data", data},
		{"serve", "--data", data, "--witness-policy", "none"}, {"serve", "--data", data, "--witness-policy", file, "--witness-every", "1ms"},
	} {
		if code, _, errs := ledgerd(t, args...); code != exitUsage {
			t.Errorf("%v: exit %d %s", args, code, errs)
		}
	}
	if code, out, _ := ledgerd(t, "witness", "list", "--witness-policy", file, "-o", "json"); code != 0 || !strings.Contains(out, vkey) {
		t.Errorf("list: exit %d %s", code, out)
	}
}

// Package witness has transparency-dev's witness, unmodified, cosign a ledger
// that serves.
package witness

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	fnote "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/witness/persistence/inmemory"
	their "github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/witness"
)

const policy = `apiVersion: ledgerd/v1
kind: Policy
version: lab-1
environment: [memory.read, memory.write]
---
kind: Agent
id: boss
capabilities: [memory.read, memory.write]
`

// newWitness serves their witness for one log, and returns its verifier key of
// kind cosignature/v1.
func newWitness(t *testing.T, log note.Verifier) (url, vkey string) {
	t.Helper()
	skey, plain, err := note.GenerateKey(rand.Reader, "witness.example/one")
	if err != nil {
		t.Fatal(err)
	}
	if vkey, err = fnote.VKeyToCosignatureV1(plain); err != nil {
		t.Fatal(err)
	}
	signer, err := fnote.NewSignerForCosignatureV1(skey)
	if err != nil {
		t.Fatal(err)
	}
	w, err := their.New(t.Context(), their.Opts{
		Persistence: inmemory.New(), Signers: []note.Signer{signer},
		VerifierForLog: func(_ context.Context, origin string) (note.Verifier, bool, error) {
			return log, origin == log.Name(), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", their.NewHTTPHandler(w).AddCheckpoint)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, vkey
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestTheirWitnessCosignsOurLog(t *testing.T) {
	dir := t.TempDir()
	bin, verify := filepath.Join(dir, "ledgerd"), filepath.Join(dir, "verify")
	run(t, "../..", "go", "build", "-o", bin, "./cmd/ledgerd")
	run(t, "../..", "go", "build", "-o", verify, "./tools/verify")
	run(t, dir, bin, "init", "--data", "data")
	logKey, err := os.ReadFile(filepath.Join(dir, "data", "keys", "checkpoint.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := note.NewVerifier(strings.TrimSpace(string(logKey)))
	if err != nil {
		t.Fatal(err)
	}
	url, vkey := newWitness(t, log)
	for name, text := range map[string]string{"lab.yaml": policy, "witnesses": "log " + strings.TrimSpace(string(logKey)) + "\nwitness one " + vkey + " " + url + "\nquorum one\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := exec.Command(bin, "serve", "--data", "data", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", "ready.json", "--witness-policy", "witnesses", "--witness-every", "1s")
	server.Dir, server.Stderr = dir, os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Signal(syscall.SIGTERM); _ = server.Wait() }()
	var ready struct {
		NATS string `json:"nats_url"`
		HTTP string `json:"http_url"`
	}
	for end := time.Now().Add(20 * time.Second); ready.NATS == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if b, err := os.ReadFile(filepath.Join(dir, "ready.json")); err == nil {
			_ = json.Unmarshal(b, &ready)
		}
	}
	cosig, err := fnote.NewVerifierForCosignatureV1(vkey)
	if err != nil {
		t.Fatal(err)
	}
	first := cosigned(t, ready.HTTP, log, cosig, 0)
	run(t, dir, bin, "apply", "-f", "lab.yaml", "--as", "admin", "--creds", "data/keys/admin.nk", "--creds-dir", "creds", "--server", ready.NATS)
	second := cosigned(t, ready.HTTP, log, cosig, audit.SizeOf(first))
	t.Logf("cosigned at %d and %d", audit.SizeOf(first), audit.SizeOf(second))
	out := run(t, dir, verify, "--data", "data", "--vkey", strings.TrimSpace(string(logKey)), "--require-quorum", "1", "--witness", vkey, "--max-age", "1m")
	if !strings.Contains(out, "1 of 1 witnesses") {
		t.Errorf("verify says\n%s", out)
	}
	run(t, dir, bin, "witness", "status", "--data", "data", "--witness-policy", "witnesses")

	// Somebody who puts the log back gets nothing, and an alarm.
	p, err := audit.Quorum(1, []string{vkey})
	if err != nil {
		t.Fatal(err)
	}
	p.Witnesses[0].URL = url
	again, err := witness.New(witness.Options{Policy: p, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(first), "\n\n")
	own, _ := note.Open(first, note.VerifierList(log))
	old := text + "\n\n— " + own.Sigs[0].Name + " " + own.Sigs[0].Base64 + "\n"
	again.Submit(t.Context(), []byte(old))
	if st := again.Stats(); st.Refused != 1 || again.Checkpoint() != nil {
		t.Errorf("put back: %+v", st)
	}
}

// cosigned waits for a checkpoint over more than size events that the witness
// cosigned, by their own code and by ours.
func cosigned(t *testing.T, at string, log, cosig note.Verifier, size uint64) []byte {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		b := get(t, at+"/checkpoint")
		n, err := note.Open(b, note.VerifierList(log, cosig))
		if err == nil && len(n.Sigs) == 2 && audit.SizeOf(b) > size {
			when, err := fnote.CoSigV1Timestamp(n.Sigs[1])
			if err != nil || time.Since(when) > time.Minute {
				t.Errorf("cosigned at %s: %v", when, err)
			}
			return b
		}
	}
	t.Fatal("no cosignature")
	return nil
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

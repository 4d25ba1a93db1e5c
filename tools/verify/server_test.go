package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// verify --server reads a log as an auditor does, with a token made for the
// origin that the auditor knows.
func TestVerifyAServer(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 700)
	files := log.Files()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	seed, _ := key.Seed()
	dir := t.TempDir()
	creds, remembered := filepath.Join(dir, "checker.nk"), filepath.Join(dir, "note")
	for name, b := range map[string][]byte{creds: append(seed, '\n'), remembered: log.Note(300)} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		if strings.HasPrefix(name, "tile/entries/") || strings.HasPrefix(name, "payloads/") {
			token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if _, err := wire.CheckToken(token, log.Origin, time.Now(), func(id string) (string, bool) { return public, id == "checker" }); err != nil {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
		} else if r.Header.Get("Authorization") != "" {
			t.Errorf("%s: a token where none is needed", name)
		}
		if b, ok := files[name]; ok {
			_, _ = w.Write(b)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	for name, c := range map[string]struct {
		args []string
		exit int
	}{
		"whole":          {[]string{"--token-creds", creds, "--as", "checker", "--vkey", log.VKey, "--checkpoint", remembered}, 0},
		"by its note":    {[]string{"--token-creds", creds, "--as", "checker", "--checkpoint", remembered}, 0},
		"no token":       {[]string{"--vkey", log.VKey}, 2},
		"another id":     {[]string{"--token-creds", creds, "--as", "other", "--vkey", log.VKey}, 2},
		"another log":    {[]string{"--token-creds", creds, "--as", "checker", "--vkey", logtest.New("example.org/lab/2", 1).VKey}, 2},
		"replay, at all": {[]string{"--token-creds", creds, "--as", "checker", "--vkey", log.VKey, "--replay"}, 1},
	} {
		exit, r := verifyJSON(t, append(c.args, "--server", server.URL)...)
		if exit != c.exit {
			t.Errorf("%s: exit %d, want %d: %+v", name, exit, c.exit, r)
		}
		if c.exit == 0 && (r.Events != 700 || r.Completeness.Status != audit.Pass) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	files["tile/entries/001"] = bytes.Replace(files["tile/entries/001"], []byte("op-150"), []byte("op-151"), 1)
	if exit, r := verifyJSON(t, "--server", server.URL, "--token-creds", creds, "--as", "checker", "--vkey", log.VKey); exit != 1 || len(r.Faults) == 0 || r.Faults[0].Seq == 0 {
		t.Errorf("a changed entry: exit %d, %+v", exit, r.Faults)
	}
	for _, args := range [][]string{
		{"--server", ""}, {"--server", server.URL, "--as", "checker"}, {"--server", server.URL, "--token-creds", creds}, {"--token-creds", creds, "--as", "checker", "--export", golden},
		{"--server", server.URL, "--token-creds", creds, "--as", "checker"}, {"--server", server.URL, "--timeout", "0s"}, {"--server", server.URL, "--tls-ca", creds},
		{"--server", server.URL, "--export", golden}, {"--server", server.URL, "--as", "A B", "--token-creds", creds, "--vkey", log.VKey},
		{"--server", "http://127.0.0.1:1", "--vkey", log.VKey}, {"--server", server.URL, "--token-creds", remembered, "--as", "checker", "--vkey", log.VKey},
	} {
		var out, errs bytes.Buffer
		if exit := run(args, nil, &out, &errs); exit != 2 || errs.Len() == 0 {
			t.Errorf("%v: exit %d: %s", args, exit, errs.String())
		}
	}
}

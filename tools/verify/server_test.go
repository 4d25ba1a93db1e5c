package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// serving is a server of a log's files, and the creds of one who may read them.
func serving(t *testing.T, origin string, files map[string][]byte) (server *httptest.Server, creds string) {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	seed, _ := key.Seed()
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		if strings.HasPrefix(name, "tile/entries/") || strings.HasPrefix(name, "payloads/") {
			token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if _, err := wire.CheckToken(token, origin, time.Now(), func(id string) (string, bool) { return public, id == "checker" }); err != nil {
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
	t.Cleanup(server.Close)
	return server, put(t, "checker.nk", append(seed, '\n'))
}

// TestR81_AServerOfANewEpoch: a served log is held against what was remembered of
// the epoch before, whose key was rotated, as any other is.
func TestR81_AServerOfANewEpoch(t *testing.T) {
	old := logtest.Sample(oldOrigin, 1, 14)
	old.Rotate(2)
	old.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"})
	old.Retire()
	old.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"})
	l := next(newOrigin, named(old, noteBy(old, 18, 2)))
	server, creds := serving(t, l.Origin, l.Files())
	args := []string{"--server", server.URL, "--token-creds", creds, "--as", "checker", "--vkey", l.VKey, "--previous", put(t, "kept", noteBy(old, 12, 1)), "--previous-vkey", old.VKey}
	says(t, audit.ExitPass, "holds every event of the remembered size 12", append(args, "--previous-export", export(t, old.Files()))...)
	says(t, audit.ExitFail, "was rotated, only the log shows it", args...)
	args[9] = put(t, "kept", noteBy(old, 18, 2))
	says(t, audit.ExitPass, "continues", append(args[:10:10], "--previous-vkey", old.Next[0])...)
	other := old.Clone()
	other.Edit(8, func(e *events.Event) { e.Time++ })
	other.Relink(9)
	args[9] = put(t, "kept", noteBy(other, 18, 2))
	says(t, audit.ExitFail, "two histories under one key", append(args[:10:10], "--previous-vkey", old.Next[0])...)
}

// verify --server reads a log as an auditor does, with a token made for the
// origin that the auditor knows.
func TestVerifyAServer(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 700)
	files := log.Files()
	server, creds := serving(t, log.Origin, files)
	remembered := put(t, "note", log.Note(300))
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

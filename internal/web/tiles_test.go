package web_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
	"github.com/ledgerd/ledgerd/internal/web"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// principal registers a principal and returns its key.
func principal(t testing.TB, s *replaytest.Session, id, rest string) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.CreateUser()
	must(t, err)
	public, err := key.PublicKey()
	must(t, err)
	if r := s.Control("admin", "principal.register", fmt.Sprintf(`{"id":%q,"public_key":%q,%s}`, id, public, rest)); !r.Allowed {
		t.Fatalf("%s: %s", id, r.Text)
	}
	return key
}

func token(t testing.TB, key nkeys.KeyPair, origin, id string, life time.Duration) string {
	t.Helper()
	made, err := wire.NewToken(key, origin, id, time.Now().Add(life))
	must(t, err)
	return made
}

// ask sends one request as it stands; Go's client would tidy the path up.
func ask(t testing.TB, s *web.Server, method, path, token string) (int, http.Header, []byte) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL(), nil)
	must(t, err)
	r.URL.Opaque = path
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	must(t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, answer.Header, b
}

// fill has the log reach n events.
func fill(s *replaytest.Session, n uint64) {
	for s.Durable() < n {
		s.Propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`)
	}
}

// caughtUp waits until the checkpoint covers the log.
func caughtUp(t testing.TB, s *replaytest.Session) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); audit.SizeOf(s.Checkpoint()) != s.Durable(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no checkpoint")
		}
	}
}

func export(t testing.TB, o ledger.Options) fs.FS {
	t.Helper()
	d, err := datadir.Open(o.Dir)
	must(t, err)
	defer d.Close()
	out := filepath.Join(t.TempDir(), "export")
	must(t, audit.WriteExport(out, d.Source()))
	return os.DirFS(out)
}

// Every file of an export is served byte for byte, and those of the export of
// an earlier size too.
func TestR92_TilesAreTheExportsFiles(t *testing.T) {
	s := listen(t)
	session, o := start(t, s)
	session.Family()
	session.Apply(replaytest.PolicyDocument("lab-2"))
	good := token(t, principal(t, session, "checker", `"role":"auditor"`), session.Origin(), "checker", time.Minute)
	for _, size := range []uint64{200, 600} {
		fill(session, size)
		caughtUp(t, session)
		exported, files := export(t, o), 0
		must(t, fs.WalkDir(exported, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files++
			want, err := fs.ReadFile(exported, name)
			must(t, err)
			status, header, got := ask(t, s, "GET", "/"+name, good)
			if status != 200 || !bytes.Equal(got, want) {
				t.Errorf("%s: %d, %d bytes, want %d", name, status, len(got), len(want))
			}
			kind, cache := header.Get("Content-Type"), header.Get("Cache-Control")
			switch {
			case name == "checkpoint" && (kind != "text/plain; charset=utf-8" || cache != "no-cache"),
				strings.HasPrefix(name, "tile/") && (kind != "application/octet-stream" || !strings.HasSuffix(cache, "immutable")),
				strings.HasPrefix(name, "tile/entries/") && !strings.HasPrefix(cache, "private"),
				strings.HasPrefix(name, "payloads/") && cache != "no-store":
				t.Errorf("%s: %s, %s", name, kind, cache)
			}
			if status, head, body := ask(t, s, "HEAD", "/"+name, good); status != 200 || len(body) != 0 || head.Get("Content-Length") != fmt.Sprint(len(want)) {
				t.Errorf("HEAD %s: %d %v", name, status, head)
			}
			return nil
		}))
		if files < 5 {
			t.Errorf("only %d files", files)
		}
	}
	for _, path := range []string{"/tile/0/000.p/1", "/tile/0/000.p/200", "/tile/entries/000.p/200"} {
		if status, _, _ := ask(t, s, "GET", path, good); status != 200 {
			t.Errorf("%s, which an earlier checkpoint asked for: %d", path, status)
		}
	}
	for path, want := range map[string]int{
		"/tile/0/004": 404, "/tile/0/002": 404, "/tile/1/000.p/3": 404, "/tile/2/000.p/1": 404, "/tile/entries/999": 404, "/payloads/5000": 404, "/payloads/20": 404,
		"/tile/": 400, "/tile/0/": 400, "/tile/entries/": 400, "/payloads/": 400, "/tile/0/000.p/256": 400, "/tile/0/000?x=1": 400, "/tile/0/%30%30%30": 400,
		"/tile/../tile/0/000": 400, "/tile//0/000": 400, "/tile/entries/../../checkpoint": 400, "/checkpoint?": 400, "/checkpoint/": 404,
	} {
		if status, _, body := ask(t, s, "GET", path, good); status != want {
			t.Errorf("%s: %d, want %d: %s", path, status, want, body)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		if status, _, _ := ask(t, s, method, "/tile/0/000", good); status != 405 {
			t.Errorf("%s: %d", method, status)
		}
	}
	session.Stop()
}

// R91: without a good token of somebody who may read the whole log, no entry
// and no payload is told, nor whether there is one.
func TestR91_EntriesTakeAnAuditorsToken(t *testing.T) {
	s := listen(t)
	session, o := start(t, s)
	session.Family()
	checker := principal(t, session, "checker", `"role":"auditor"`)
	lookout := principal(t, session, "lookout", `"role":"observer"`)
	nook := principal(t, session, "nook", `"role":"observer","root":"formatter"`)
	clerk := principal(t, session, "clerk", `"role":"registrar"`)
	gone := principal(t, session, "gone", `"role":"auditor"`)
	origin := session.Origin()
	revoked := token(t, gone, origin, "gone", time.Hour)
	if status, _, _ := ask(t, s, "GET", "/tile/entries/000.p/1", revoked); status != 200 {
		t.Fatalf("a good token: %d", status)
	}
	session.Control("admin", "principal.revoke", `{"id":"gone"}`)
	caughtUp(t, session)
	good := token(t, checker, origin, "checker", time.Hour)
	cut := func(n int) string { return strings.Join(append(strings.Split(good, ".")[:n:n], "x"), ".") }
	bad := map[string]struct {
		token  string
		status int
	}{
		"none": {"", 401}, "revoked": {revoked, 401}, "expired": {token(t, checker, origin, "checker", -time.Second), 401},
		"too long": {token(t, checker, origin, "checker", 2*time.Hour), 401}, "another ledger's": {token(t, checker, origin+"x", "checker", time.Hour), 401},
		"another's key": {token(t, lookout, origin, "checker", time.Hour), 401}, "another's id": {strings.Replace(good, "checker", "lookout", 1), 401},
		"nobody's": {token(t, checker, origin, "nobody", time.Hour), 401}, "subtree": {token(t, nook, origin, "nook", time.Hour), 403},
		"registrar": {token(t, clerk, origin, "clerk", time.Hour), 403}, "admin without key": {token(t, checker, origin, "admin", time.Hour), 401},
		"long": {strings.Repeat("a", 1<<12), 401}, "cut": {cut(3), 401}, "no signature": {cut(2), 401}, "empty": {"....", 401}, "padded": {good + "=", 401}, "version": {"2" + good[1:], 401},
	}
	for _, path := range []string{"/tile/entries/000.p/1", "/tile/entries/999", "/payloads/6", "/payloads/99999"} {
		for name, c := range bad {
			status, header, body := ask(t, s, "GET", path, c.token)
			if status != c.status || bytes.Contains(body, []byte("ledger.created")) || len(body) > 200 || header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %s: %d %s", path, name, status, body)
			}
		}
	}
	for _, scheme := range []string{"Basic ", "bearer ", "Bearer  ", ""} {
		r, err := http.NewRequest("GET", s.URL()+"/tile/entries/000.p/1", nil)
		must(t, err)
		r.Header.Set("Authorization", scheme+good)
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		answer.Body.Close()
		if answer.StatusCode != 401 || answer.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q: %d", scheme, answer.StatusCode)
		}
	}
	for name, c := range map[string]string{"checker": good, "lookout": token(t, lookout, origin, "lookout", time.Minute)} {
		if status, _, body := ask(t, s, "GET", "/tile/entries/000.p/1", c); status != 200 || !bytes.Contains(body, []byte("ledger.created")) {
			t.Errorf("%s: %d", name, status)
		}
	}
	fresh, err := nkeys.CreateUser()
	must(t, err)
	public, err := fresh.PublicKey()
	must(t, err)
	session.Control("admin", "principal.rekey", fmt.Sprintf(`{"id":"checker","public_key":%q}`, public))
	if status, _, _ := ask(t, s, "GET", "/tile/entries/000.p/1", good); status != 401 {
		t.Errorf("a token of the key before: %d", status)
	}
	if status, _, _ := ask(t, s, "GET", "/tile/0/000.p/1", ""); status != 200 {
		t.Error("tiles are open")
	}
	s.Withdraw("it stops")
	if status, _, _ := ask(t, s, "GET", "/checkpoint", ""); status != 503 {
		t.Errorf("without a ledger: %d", status)
	}
	session.Stop()
	replaytest.CheckLedger(t, o)
}

// Kind 2: who reads while the log grows never sees a hash, an entry and a
// checkpoint that do not belong together.
func TestTilesWhileTheLogGrows(t *testing.T) {
	s := listen(t)
	session, _ := start(t, s)
	session.Family()
	good := token(t, principal(t, session, "checker", `"role":"auditor"`), session.Origin(), "checker", time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	for range 4 {
		writing.Go(func() {
			for ctx.Err() == nil {
				session.Propose("researcher", "memory.read", `{"namespace":"project","key":"client_region"}`)
			}
		})
	}
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			for round := range 6 {
				dir := t.TempDir()
				if err := mirror(s, good, dir); err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				r, err := audit.VerifyExport(os.DirFS(dir), audit.Options{})
				if err != nil || len(r.Faults) > 0 {
					t.Errorf("round %d: %v %+v", round, err, r)
				}
			}
		})
	}
	reading.Wait()
	cancel()
	writing.Wait()
	session.Stop()
}

// mirror copies what the checkpoint of the moment covers, as anybody would.
func mirror(s *web.Server, token, dir string) error {
	fetch := func(name string) ([]byte, error) {
		r, _ := http.NewRequest("GET", s.URL()+"/"+name, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if answer.StatusCode != 200 {
			err = errors.Join(err, fmt.Errorf("%s: %s", name, answer.Status))
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		return b, errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644))
	}
	note, err := fetch("checkpoint")
	if err != nil {
		return err
	}
	size := audit.SizeOf(note)
	for level, hashes := 0, size; hashes > 0; level, hashes = level+1, hashes>>8 {
		for n := uint64(0); n*256 < hashes; n++ {
			p := audit.Path{Kind: audit.PathTile, Level: level, N: n, Width: int(min(256, hashes-n*256))}
			if _, err := fetch(p.String()); err != nil {
				return err
			}
			if p.Kind = audit.PathBundle; level == 0 {
				if _, err := fetch(p.String()); err != nil {
					return err
				}
			}
		}
	}
	for seq := uint64(1); seq <= min(size, 40); seq++ { // the family's policy and records
		name := audit.Path{Kind: audit.PathPayload, N: seq}.String()
		if _, err := fetch(name); err != nil {
			os.Remove(filepath.Join(dir, name))
		}
	}
	return nil
}

// A client that does not read its tile is let go, and keeps nobody from theirs.
func TestSlowReadersOfTilesAreBounded(t *testing.T) {
	s := listen(t)
	session, _ := start(t, s)
	session.Family()
	caughtUp(t, session)
	for range 40 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
		must(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "GET /tile/0/000.p/1 HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
	}
	if status, _, _ := ask(t, s, "GET", "/tile/0/000.p/1", ""); status != 200 {
		t.Errorf("status %d", status)
	}
	session.Stop()
}

// What answers over HTTP is what API.md lists, and nothing else does.
func TestR92_TheHTTPPathsAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/API.md")
	must(t, err)
	_, table, _ := strings.Cut(string(document), "<!-- http -->")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	var listed []string
	for row := range strings.Lines(table) {
		if cells := strings.Split(row, "|"); len(cells) > 2 {
			for i, part := range strings.Split(cells[1], "`") {
				if i%2 == 1 {
					listed = append(listed, strings.NewReplacer("<L>", "0", "<N>", "000", "<W>", "1", "<seq>", "1").Replace(part))
				}
			}
		}
	}
	if len(listed) != 10 {
		t.Errorf("listed: %q", listed)
	}
	s := listen(t)
	session, _ := start(t, s)
	session.Family()
	caughtUp(t, session)
	for _, path := range listed {
		full := strings.HasSuffix(path, "/000")
		want := map[bool]int{true: 401, false: 200}[strings.HasPrefix(path, "/tile/entries/") || strings.HasPrefix(path, "/payloads/")]
		if full && want == 200 {
			want = 404 // there are not so many events
		}
		if status, _, _ := ask(t, s, "GET", path, ""); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	for _, path := range []string{"/", "/index.html", "/tile", "/tiles/0/000", "/entries/000", "/debug/pprof/", "/debug/vars", "/payloads", "/add-checkpoint", "/livez/", "/token", "/.well-known/x"} {
		if status, _, _ := ask(t, s, "GET", path, ""); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
	session.Stop()
}

package remote_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/remote"
)

// files serves an export as any static file server would.
type files map[string][]byte

func (f files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, ok := f[strings.TrimPrefix(r.URL.Path, "/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(b)
}

func verify(t testing.TB, h http.Handler, o remote.Options, opts audit.Options) (*audit.Report, error) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	defer server.CloseClientConnections()
	o.URL = server.URL
	log, err := remote.Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return log.Verify(opts)
}

func asJSON(t testing.TB, r *audit.Report) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A server's log gets the very report that its export gets, whatever is wrong
// with it.
func TestAServerIsVerifiedLikeItsExport(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 1500)
	for name, change := range map[string]func(files){
		"good":              func(files) {},
		"changed entry":     func(f files) { f["tile/entries/002"][300] ^= 1 },
		"changed tile":      func(f files) { f["tile/0/003"][77] ^= 1 },
		"upper tile":        func(f files) { f["tile/1/000.p/5"][0] ^= 1 },
		"short bundle":      func(f files) { f["tile/entries/001"] = f["tile/entries/001"][:1000] },
		"long tile":         func(f files) { f["tile/0/001"] = append(f["tile/0/001"], 0) },
		"no bundle":         func(f files) { delete(f, "tile/entries/003") },
		"no tile":           func(f files) { delete(f, "tile/0/002") },
		"no last bundle":    func(f files) { delete(f, "tile/entries/005.p/220") },
		"no payload":        func(f files) { delete(f, "payloads/4") },
		"changed payload":   func(f files) { f["payloads/4"][70] ^= 1 },
		"unsigned":          func(f files) { f["checkpoint"] = bytes.Replace(f["checkpoint"], []byte("1500"), []byte("1499"), 1) },
		"no checkpoint":     func(f files) { f["checkpoint"] = []byte("none\n") },
		"checkpoint beyond": func(f files) { f["checkpoint"] = logtest.Sample("example.org/lab/1", 1, 1600).Note(1600) },
	} {
		t.Run(name, func(t *testing.T) {
			f := files{}
			for path, b := range log.Files() {
				f[path] = bytes.Clone(b)
			}
			change(f)
			onDisk := fstest.MapFS{}
			for path, b := range f {
				onDisk[path] = &fstest.MapFile{Data: b}
			}
			opts := audit.Options{VKey: log.VKey, Remembered: log.Note(700)}
			want, err := audit.VerifyExport(onDisk, opts)
			if err != nil {
				t.Fatal(err)
			}
			got, err := verify(t, f, remote.Options{Timeout: time.Minute}, opts)
			if err != nil {
				t.Fatal(err)
			}
			// What a directory lists beside what its checkpoint covers, a server does not tell.
			unlisted := name == "unsigned" || name == "no checkpoint" || name == "no last bundle"
			if asJSON(t, got) != asJSON(t, want) && !unlisted || (name == "good") != (got.Exit == audit.ExitPass) {
				t.Errorf("on a server\n%s\nas an export\n%s", asJSON(t, got), asJSON(t, want))
			}
		})
	}
}

// What a server does not give cannot be checked: that is neither a pass nor a
// fault, and it never takes longer than it may.
func TestHostileServers(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 1500)
	good := files(log.Files())
	packed := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(b)
		w.Close()
		return out.Bytes()
	}
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		good.ServeHTTP(w, r)
	}))
	defer other.Close()
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	endless := func(w http.ResponseWriter, r *http.Request) {
		for block := make([]byte, 1<<16); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}
	drip := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte{0})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		at   string // the path, and those that begin with it
		does http.HandlerFunc
		exit int
	}{
		"hangs":           {"/tile/entries/002", hang, 2},
		"hangs at a tile": {"/tile/0/001", hang, 2},
		"drips":           {"/tile/entries/002", drip, 2},
		"endless bundle":  {"/tile/entries/002", endless, 1},
		"endless tile":    {"/tile/0/001", endless, 1},
		"500":             {"/tile/entries/002", status(500), 2},
		"401":             {"/tile/entries/", status(401), 2},
		"403":             {"/tile/entries/", status(403), 2},
		"204":             {"/tile/entries/", status(204), 2},
		"always busy":     {"/tile/entries/004", status(503), 2},
		"404 for a tile":  {"/tile/0/001", status(404), 1},
		"partial content": {"/tile/entries/002", status(206), 2},
		"elsewhere": {"/tile/entries/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusFound)
		}, 2},
		"round in circles": {"/tile/0/", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusMovedPermanently)
		}, 2},
		"gzip": {"/tile/entries/002", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed(good[r.URL.Path[1:]]))
		}, 2},
		"gzip bomb": {"/tile/0/001", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed(make([]byte, 8<<20)))
		}, 2},
		"gzip unannounced": {"/tile/entries/002", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(packed(good[r.URL.Path[1:]])) }, 1},
		"length too long": {"/tile/entries/002", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "9999999")
			_, _ = w.Write(good[r.URL.Path[1:]])
		}, 2},
		"length too short": {"/tile/entries/002", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write(good[r.URL.Path[1:]])
		}, 2},
		"hangs up":    {"/tile/entries/002", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 2},
		"header bomb": {"/tile/entries/002", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, 2},
		"empty":       {"/tile/entries/002", func(http.ResponseWriter, *http.Request) {}, 1},
		"web page":    {"/tile/entries/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>hello</html>") }, 1},
		"a fault and hangs": {"/tile/entries/001", func(w http.ResponseWriter, r *http.Request) {
			b := bytes.Clone(good[r.URL.Path[1:]])
			b[400] ^= 1
			_, _ = w.Write(b)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasPrefix(r.URL.Path, c.at):
					c.does(w, r)
				case strings.HasSuffix(name, "and hangs") && r.URL.Path == "/tile/entries/003":
					hang(w, r)
				default:
					good.ServeHTTP(w, r)
				}
			})
			timeout := time.Minute // where the server itself comes to an end
			if strings.Contains(name, "hangs") || name == "drips" || name == "always busy" {
				timeout = 2 * time.Second
			}
			start := time.Now()
			r, err := verify(t, h, remote.Options{Timeout: timeout}, audit.Options{VKey: log.VKey, Remembered: log.Note(700)})
			if err != nil {
				t.Fatal(err)
			}
			if r.Exit != c.exit || time.Since(start) > timeout+20*time.Second {
				t.Errorf("exit %d, want %d, after %s: %s", r.Exit, c.exit, time.Since(start), asJSON(t, r))
			}
			if c.exit == 2 && (r.Integrity.Status != audit.Impossible || len(r.Faults) > 0 || !strings.Contains(asJSON(t, r), "the server: ")) {
				t.Errorf("it is said to be %s: %s", r.Integrity.Status, asJSON(t, r))
			}
			if c.exit == 1 && len(r.Faults) == 0 {
				t.Error("a fault without a word")
			}
		})
	}
	t.Cleanup(func() {
		if elsewhere.Load() > 0 {
			t.Error("a redirect was followed")
		}
	})
}

// A server that claims any size and sends any bytes is given up.
func TestAServerThatClaimsTheWorld(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 300)
	note := bytes.Replace(log.Note(300), []byte("\n300\n"), []byte("\n9007199254740991\n"), 1)
	var asked atomic.Int64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := verify(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/checkpoint" {
			_, _ = w.Write(note)
			return
		}
		asked.Add(1)
		_, _ = io.CopyN(w, zeros{}, 8192)
	}), remote.Options{Timeout: 20 * time.Second}, audit.Options{})
	runtime.ReadMemStats(&after)
	if err != nil || r.Exit == audit.ExitPass {
		t.Errorf("%v %+v", err, r)
	}
	if asked.Load() > 1000 {
		t.Errorf("%d requests", asked.Load())
	}
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 256<<20 {
		t.Errorf("%d MiB more in use", grown>>20)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestServersThatCannotBeAsked(t *testing.T) {
	token := func() (string, error) { return "t", nil }
	for _, o := range []remote.Options{
		{URL: ""}, {URL: "nats://127.0.0.1:4222"}, {URL: "http://"}, {URL: "http://u:p@127.0.0.1/"}, {URL: "http://127.0.0.1/?x"}, {URL: "file:///etc/passwd"},
		{URL: "http://127.0.0.1:1"}, {URL: "http://192.0.2.1/", Token: token}, {URL: "http://example.org", Token: token},
	} {
		if log, err := remote.Open(context.Background(), o); err == nil {
			log.Close()
			t.Errorf("%+v is asked", o)
		}
	}
	secure := httptest.NewTLSServer(files(logtest.Sample("example.org/lab/1", 1, 10).Files()))
	defer secure.Close()
	secure.Config.ErrorLog = nil
	if _, err := remote.Open(context.Background(), remote.Options{URL: secure.URL}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
	log, err := remote.Open(context.Background(), remote.Options{URL: secure.URL, TLS: secure.Client().Transport.(*http.Transport).TLSClientConfig})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if r, err := log.Verify(audit.Options{}); err != nil || r.Exit != 0 {
		t.Errorf("over TLS: %v %+v", err, r)
	}
	failed := remote.Options{URL: secure.URL, TLS: secure.Client().Transport.(*http.Transport).TLSClientConfig, Token: func() (string, error) { return "", os.ErrNotExist }}
	unsigned, err := remote.Open(context.Background(), failed)
	if err != nil {
		t.Fatal(err)
	}
	defer unsigned.Close()
	if r, err := unsigned.Verify(audit.Options{}); err != nil || r.Exit != audit.ExitImpossible {
		t.Errorf("without a token: %v %+v", err, r)
	}
}

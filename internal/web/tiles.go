package web

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	tilesMax    = 16               // answered at once; more get 503
	tileTimeout = 60 * time.Second // to write one; the longest bundle has 16 MiB
)

// The headers of what never changes. What takes a token is for no shared cache.
const (
	forEver        = "public, max-age=31536000, immutable"
	forEverPrivate = "private, max-age=31536000, immutable"
)

// tiles serves the log in the layout of C2SP tlog-tiles: checkpoint and tiles
// to everyone, entries and open payloads to whoever may read the whole log.
type tiles struct {
	server *Server
	now    func() time.Time
	room   chan struct{}
}

// layout reports whether a request is for a file of the layout, so that no
// other handler cleans up or redirects its path.
func layout(r *http.Request) bool {
	path := r.URL.Path
	return path == "/checkpoint" || strings.HasPrefix(path, "/tile/") || strings.HasPrefix(path, "/payloads/")
}

// ServeHTTP implements http.Handler.
func (t *tiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		text(w, http.StatusMethodNotAllowed, "only GET and HEAD\n")
		return
	}
	path, ok := audit.ParsePath(strings.TrimPrefix(r.RequestURI, "/"))
	if !ok || r.RequestURI != "/"+path.String() {
		text(w, http.StatusBadRequest, "not a path of C2SP tlog-tiles\n")
		return
	}
	source := t.server.state.Load().source
	if source == nil {
		text(w, http.StatusServiceUnavailable, "the ledger does not serve\n")
		return
	}
	if path.Kind == audit.PathBundle || path.Kind == audit.PathPayload {
		if status, why := t.admit(source.Ledger, r); status != 0 {
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="ledgerd"`)
			}
			text(w, status, why)
			return
		}
	}
	select {
	case t.room <- struct{}{}:
		defer func() { <-t.room }()
	default:
		w.Header().Set("Retry-After", "1")
		text(w, http.StatusServiceUnavailable, "too much is being read\n")
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(tileTimeout)) // else the server's own holds
	t.send(w, source, path)
}

// admit looks at the token: 0 where its holder may read every entry.
func (t *tiles) admit(l *ledger.Ledger, r *http.Request) (status int, why string) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return http.StatusUnauthorized, "it takes a token: see \"ledgerd token\"\n"
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	if !ok {
		return http.StatusUnauthorized, "it takes a token: see \"ledgerd token\"\n"
	}
	var who ledger.Identity
	_, err := wire.CheckToken(token, l.Origin(), t.now(), func(id string) (string, bool) {
		who, ok = l.Registered(id)
		return who.PublicKey, ok && !who.Revoked
	})
	switch {
	case err != nil:
		return http.StatusUnauthorized, err.Error() + "\n"
	case who.Role == "auditor", who.Role == "observer" && who.Root == "":
		return 0, ""
	}
	return http.StatusForbidden, "entries are for auditors, and observers of the whole log\n"
}

// send writes what is asked for, of the log as far as its checkpoint reaches.
func (t *tiles) send(w http.ResponseWriter, source *Source, path audit.Path) {
	signed := source.Ledger.Checkpoint()
	if path.Kind == audit.PathCheckpoint {
		if signed == nil {
			text(w, http.StatusNotFound, "there is no checkpoint yet\n")
			return
		}
		reply(w, "text/plain; charset=utf-8", "no-cache", cosigned(source, signed))
		return
	}
	if !path.Within(audit.SizeOf(signed)) {
		text(w, http.StatusNotFound, "not in the log as its checkpoint has it\n")
		return
	}
	var b []byte
	var err error
	cache := forEverPrivate
	switch path.Kind {
	case audit.PathTile:
		cache = forEver
		b, err = path.Tile(source.Ledger.Hashes)
	case audit.PathBundle:
		b, err = path.Bundle(source.Ledger.Events)
	case audit.PathPayload:
		b, err = openPayload(source.Ledger, path.N)
		cache = "no-store"
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		text(w, http.StatusNotFound, "there is none\n")
	case err != nil:
		t.server.log.Error("a tile cannot be read", "path", path.String(), "error", err)
		text(w, http.StatusInternalServerError, "it cannot be read\n")
	default:
		reply(w, "application/octet-stream", cache, b)
	}
}

// cosigned is the checkpoint with its cosignatures where there are some of this
// very one, which lie on disk then.
func cosigned(source *Source, signed []byte) []byte {
	if source.Witness == nil {
		return signed
	}
	text, _, _ := bytes.Cut(signed, []byte("\n\n"))
	if c := source.Witness.Checkpoint(); bytes.HasPrefix(c, append(text[:len(text):len(text)], "\n\n"...)) {
		return c
	}
	return signed
}

func openPayload(l *ledger.Ledger, seq uint64) ([]byte, error) {
	salt, b, ok, err := l.OpenPayload(seq)
	if err == nil && !ok {
		err = store.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return audit.PayloadText(salt, b), nil
}

// reply writes a body of known length; net/http leaves it out for HEAD.
func reply(w http.ResponseWriter, kind, cache string, b []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", cache)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // whoever asked may be gone
}

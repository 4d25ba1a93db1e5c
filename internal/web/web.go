// Package web is a ledger's side door: for operators probes, metrics and the
// version over HTTP, for auditors the log as C2SP tlog-tiles, its entries to
// those alone who may read all of them. It shows nothing else that an agent
// sent, and answers even while the ledger is being opened or has failed.
//
// First call: Listen; then Serve once there is something to show.
package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/witness"
)

// Limits of the HTTP side. Every answer is small and made at once.
const (
	headerBytesMax = 16 << 10
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 10 * time.Second
	connectionsMax = 128 // at once; more wait to be taken, at most as long as these may idle
	scrapesMax     = 4   // at once; more get 503
)

// Options configure Listen.
type Options struct {
	Listen  string // host:port, port 0 for any free one
	TLS     *tls.Config
	Plain   bool    // in the clear also off the loopback interface
	Version Version // shown at /version
	Log     *slog.Logger
}

// Version is what /version shows.
type Version struct {
	Build  string `json:"build"`
	Rules  uint64 `json:"rules"`
	Format string `json:"format"`
	Go     string `json:"go"`
}

// Source is what is shown of a ledger that serves. Both functions are called
// from many goroutines.
type Source struct {
	Ledger *ledger.Ledger
	Checks func() []ledger.Check // of ledger and front door
	Door   func() Door

	Witness *witness.Submitter // nil without witnesses
}

// Server answers HTTP.
type Server struct {
	listener net.Listener
	host     string // as asked for
	http     *http.Server
	secure   bool
	version  Version
	log      *slog.Logger
	state    atomic.Pointer[state]
	failed   chan error
}

// state is what the server shows: a source, or why there is none.
type state struct {
	source  *Source
	missing string
}

// CheckListen refuses an address on which others could read along, unless
// there is TLS or plain says that this is meant.
func CheckListen(listen string, secure, plain bool) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("--http %s: it is host:port", listen)
	}
	if ip := net.ParseIP(host); !secure && !plain && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--http %s: off the loopback interface it takes --tls-cert and --tls-key, or --http-plain if whoever can reach it may read it", listen)
	}
	return nil
}

// Listen starts to answer: /livez with 200, /readyz with 503 until Serve.
func Listen(o Options) (*Server, error) {
	if err := CheckListen(o.Listen, o.TLS != nil, o.Plain); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("--http: %w; give another host:port, port 0 for any free one", err)
	}
	host, _, _ := net.SplitHostPort(o.Listen)
	s := &Server{listener: listener, host: cmp.Or(host, "0.0.0.0"), secure: o.TLS != nil, version: o.Version, log: o.Log, failed: make(chan error, 1)}
	s.state.Store(&state{missing: "the ledger is being opened"})
	if s.secure {
		config := o.TLS.Clone()
		config.NextProtos = []string{"h2", "http/1.1"}
		listener = tls.NewListener(listener, config)
	}
	listener = netutil.LimitListener(listener, connectionsMax)
	s.http = &http.Server{
		Handler:     s.routes(o.Log),
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytesMax,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // whoever can connect can cause lines,
	}
	go func() {
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("http: %w", err)
		}
	}()
	return s, nil
}

// Serve shows source from now on.
func (s *Server) Serve(source Source) { s.state.Store(&state{source: &source}) }

// Withdraw makes the ledger not ready for reason, with nothing to show.
func (s *Server) Withdraw(reason string) { s.state.Store(&state{missing: reason}) }

// URL is where the server answers.
func (s *Server) URL() string {
	scheme := "http"
	if s.secure {
		scheme = "https"
	}
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	return scheme + "://" + net.JoinHostPort(s.host, port)
}

// Failed receives the fault after which the server answers no more.
func (s *Server) Failed() <-chan error { return s.failed }

// Close ends the server; what is being answered may take until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

func (s *Server) routes(log *slog.Logger) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		&collector{state: &s.state, version: s.version},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.version)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesMax, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError,
	}))
	files := &tiles{server: s, now: time.Now, room: make(chan struct{}, tilesMax)}
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if layout(r) {
			files.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
	return http.MaxBytesHandler(all, 0)
}

// ready answers 200 when every check passes or only warns, else 503. The body
// names what is not well; with ?verbose it has a line for every check.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	checks := s.checks()
	status := http.StatusOK
	var b strings.Builder
	_, verbose := r.URL.Query()["verbose"]
	for _, c := range checks {
		if c.Status == ledger.CheckFail {
			status = http.StatusServiceUnavailable
		}
		if verbose || c.Status != ledger.CheckOK {
			b.WriteString(line(c))
		}
	}
	if status == http.StatusOK {
		b.WriteString("ready\n")
	} else {
		b.WriteString("not ready\n")
	}
	text(w, status, b.String())
}

// checks are those of the source, or the one that there is none.
func (s *Server) checks() []ledger.Check {
	at := s.state.Load()
	if at.source == nil {
		return []ledger.Check{{Name: "serving", Status: ledger.CheckFail, Detail: at.missing}}
	}
	return append([]ledger.Check{{Name: "serving", Status: ledger.CheckOK}}, at.source.Checks()...)
}

// line is one check as "[ok] name: detail", with nothing in it that a terminal
// would obey.
func line(c ledger.Check) string {
	detail := ""
	if c.Detail != "" {
		q := fmt.Sprintf("%q", c.Detail)
		detail = ": " + strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
	}
	return fmt.Sprintf("[%s] %s%s\n", c.Status, c.Name, detail)
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // whoever asked may be gone
}

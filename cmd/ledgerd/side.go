package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/web"
)

// newLogger writes one line an entry to w. Whatever text comes in, the line
// stays one, and nothing in it is obeyed by a terminal.
func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	o := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch v := a.Value.Any().(type) {
		case string:
			a.Value = slog.StringValue(logText(v))
		case error:
			a.Value = slog.StringValue(logText(plain(v)))
		}
		return a
	}}
	var at slog.Level
	if err := at.UnmarshalText([]byte(level)); err != nil || strings.ContainsAny(level, "+-") {
		return nil, usagef("--log-level %s: it is debug, info, warn or error", level)
	}
	o.Level = at
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usagef("--log-format %s: it is text or json", format)
}

// logText is clean, but leaves text as it is where nothing in it needs care.
func logText(s string) string {
	if c := clean(s); c != strings.ReplaceAll(s, `\`, `\\`) {
		return c
	}
	return s
}

// listenHTTP starts the side door that --http asks for, nil without it: before
// the ledger is opened, so that a long opening can be watched.
func listenHTTP(o nodeOptions, config *tls.Config, log *slog.Logger) (*web.Server, error) {
	if o.http == "" {
		if o.httpPlain {
			return nil, usagef("--http-plain goes with --http")
		}
		return nil, nil
	}
	if o.httpPlain {
		config = nil
	}
	s, err := web.Listen(web.Options{Listen: o.http, TLS: config, Plain: o.httpPlain, Version: versionInfo(), Log: log})
	if err != nil {
		return nil, usagef("%w", err)
	}
	return s, nil
}

func closeHTTP(s *web.Server) error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("close http: %w", err)
	}
	return nil
}

// show lets the side door tell of the node.
func (n *node) show() {
	if n.web == nil {
		return
	}
	n.web.Serve(web.Source{Ledger: n.ledger, Checks: n.checks, Witness: n.seen.submitter(), Door: func() web.Door {
		s := n.front.Stats()
		return web.Door{
			Connections: s.Connections, Refused: s.Refused, Denied: s.Denied, SlowConsumers: s.SlowConsumers, Dropped: s.Dropped,
			FeedSeq: s.Feed.Published, FeedLag: s.FeedLag, FeedAge: s.FeedAge, FeedHalted: s.Feed.Halted != nil, FeedFault: s.Feed.Fault != nil,
		}
	}})
}

// webFailed receives the side door's failure; never without one.
func (n *node) webFailed() <-chan error {
	if n.web == nil {
		return nil
	}
	return n.web.Failed()
}

// httpURL is where the side door answers, empty without one.
func (n *node) httpURL() string {
	if n.web == nil {
		return ""
	}
	return usable(n.web.URL())
}

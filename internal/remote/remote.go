// Package remote reads a log from a server of C2SP tlog-tiles, so that package
// audit verifies it as it does an export directory. Nothing that the server
// says is trusted: lengths, time and memory are bounded, nothing is unpacked,
// no redirect is followed, and what cannot be had is never called good.
//
// First call: Open; then Verify.
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
)

const (
	requestTimeout = 30 * time.Second
	requestsMax    = 4 // at once, of the 16 that a ledger answers
	triesMax       = 6 // of one file while the server says that it is busy
	headerBytesMax = 64 << 10
	brokenMax      = 64 // bundles that are none, before the server is given up
)

// Options say where the log is, and as whom it is read.
type Options struct {
	URL     string
	Token   func() (string, error) // for entries and open payloads, asked again now and then; nil for none
	TLS     *tls.Config            // nil for the system's roots
	Timeout time.Duration          // for all of it; 0 for none
}

// Log is a log on a server, as the fs.FS of an export: it has what its
// checkpoint covers, and the checkpoint stays the first one read. Safe for
// concurrent use.
type Log struct {
	base    string
	token   func() (string, error)
	client  *http.Client
	ctx     context.Context
	cancel  context.CancelCauseFunc
	stop    context.CancelFunc
	room    chan struct{}
	signed  []byte // nil if there is none
	size    uint64
	cache   cache
	mu      sync.Mutex
	broken  int
	failure error  // why nothing more is asked
	reached uint64 // events before the first one that could not be had for it
	made    time.Time
	bearer  string
}

// ErrUnreachable says that the server did not give what was asked of it, so that
// nothing can be said of it.
var ErrUnreachable = errors.New("the server")

// Open reads the server's checkpoint.
func Open(ctx context.Context, o Options) (*Log, error) {
	base, err := checkURL(o.URL, o.Token != nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.CancelFunc(func() {})
	if o.Timeout > 0 {
		ctx, stop = context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("not done within %s", o.Timeout))
	}
	l := &Log{base: base, token: o.Token, ctx: ctx, cancel: cancel, stop: stop, room: make(chan struct{}, requestsMax)}
	l.cache.init()
	l.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, DisableCompression: true, ForceAttemptHTTP2: true,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: requestTimeout,
			MaxResponseHeaderBytes: headerBytesMax, MaxConnsPerHost: requestsMax, IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	l.signed, err = l.fetch(audit.Path{Kind: audit.PathCheckpoint})
	if err != nil {
		l.Close()
		return nil, err
	}
	l.size = audit.SizeOf(l.signed)
	return l, nil
}

// checkURL refuses what is no server's base, and a token in the clear.
func checkURL(text string, token bool) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is no server: http://HOST:PORT or https://HOST:PORT", text)
	}
	ip := net.ParseIP(u.Hostname())
	if token && u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", fmt.Errorf("%s: a token goes over https, off the loopback interface", text)
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// Close ends what is being asked.
func (l *Log) Close() error {
	l.cancel(errors.New("closed"))
	l.stop()
	l.client.CloseIdleConnections()
	return nil
}

// Err is why the server is asked nothing more, nil while it is.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// fail ends it all for err, and returns why it ended.
func (l *Log) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		if cause := context.Cause(l.ctx); cause != nil {
			err = cause
		}
		l.failure = fmt.Errorf("%w: %w", ErrUnreachable, err)
		l.cancel(l.failure)
	}
	return l.failure
}

// fetch reads one file. Its error is fs.ErrNotExist where the server says that
// there is none; any other ends everything. A file that is longer than it may
// be comes cut off, one byte too long.
func (l *Log) fetch(p audit.Path) ([]byte, error) {
	select {
	case l.room <- struct{}{}:
		defer func() { <-l.room }()
	case <-l.ctx.Done():
		return nil, l.fail(l.ctx.Err())
	}
	for try := 1; ; try++ {
		b, busy, err := l.ask(p)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return b, err
		case !busy || try == triesMax:
			return nil, l.fail(err)
		}
		select {
		case <-time.After(time.Duration(1<<try) * 100 * time.Millisecond):
		case <-l.ctx.Done():
			return nil, l.fail(l.ctx.Err())
		}
	}
}

// ask sends one request. busy says that the same may be answered later.
func (l *Log) ask(p audit.Path) (b []byte, busy bool, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base+"/"+p.String(), nil)
	if err != nil {
		return nil, false, err
	}
	r.Header.Set("Accept-Encoding", "identity")
	if p.Kind == audit.PathBundle || p.Kind == audit.PathPayload {
		if err := l.authorize(r); err != nil {
			return nil, false, err
		}
	}
	answer, err := l.client.Do(r)
	if err != nil {
		return nil, false, err
	}
	defer answer.Body.Close()
	if err := refused(p, answer); err != nil {
		return nil, answer.StatusCode == http.StatusServiceUnavailable || answer.StatusCode == http.StatusTooManyRequests, err
	}
	most := int64(p.BytesMax()) + 1
	var body bytes.Buffer
	if n := answer.ContentLength; n > 0 {
		body.Grow(int(min(n, most)) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(io.LimitReader(answer.Body, most)); err != nil {
		return nil, false, fmt.Errorf("%s: %w", p, err)
	}
	return body.Bytes(), false, nil
}

// refused is why an answer is not the file, nil if it is.
func refused(p audit.Path, answer *http.Response) error {
	switch code := answer.StatusCode; {
	case code == http.StatusNotFound:
		return fs.ErrNotExist
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fmt.Errorf("%s: %d: it takes the token of an auditor, or of an observer without a root: --token-creds FILE --as ID", p, code)
	case code >= 300 && code < 400:
		return fmt.Errorf("%s: %d: it sends us elsewhere, and we do not go", p, code)
	case code != http.StatusOK:
		return fmt.Errorf("%s: %d", p, code)
	}
	if encoding := answer.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return fmt.Errorf("%s: it is packed as %s, which was not asked for", p, strconv.Quote(encoding))
	}
	return nil
}

const tokenAge = 5 * time.Minute // then a new one is made

func (l *Log) authorize(r *http.Request) error {
	if l.token == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bearer == "" || time.Since(l.made) > tokenAge {
		token, err := l.token()
		if err != nil {
			return err
		}
		l.bearer, l.made = token, time.Now()
	}
	r.Header.Set("Authorization", "Bearer "+l.bearer)
	return nil
}

package natsapi

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// What the server turned away, as it stands in transport.denied events.
const (
	DeniedAuth      = "auth_failed"
	DeniedPublish   = "publish_denied"
	DeniedSubscribe = "subscribe_denied"
)

// Denied is one refusal by the server itself, which never reaches a handler. ID
// is empty where the key is unknown. With auth_failed it is the holder of the
// key that was named, whoever named it.
type Denied struct {
	ID   string
	Code string
}

// logHook is the server's logger. The server tells of refusals only here.
//
// A line is largely written by whoever is refused: the client's name, the
// subject, the subscription id. So only the format is read, before anything is
// filled in, and in it only the connection id that the server puts first and
// the fixed words behind the two quoted parts that may follow it.
type logHook struct {
	door  *door
	log   *slog.Logger
	fatal chan error // takes the first fatal line

	mu     sync.Mutex
	second int64 // of the lines counted
	lines  int
}

const logLinesMax = 20 // lines passed on per second; clients can cause them at will

// Errorf implements server.Logger.
func (h *logHook) Errorf(format string, v ...any) {
	if cid, code, ok := parseRefusal(format, v); ok {
		h.door.refused(cid, code)
		return
	}
	h.pass(slog.LevelError, format, v)
}

// Warnf implements server.Logger.
func (h *logHook) Warnf(format string, v ...any) { h.pass(slog.LevelWarn, format, v) }

// Fatalf implements server.Logger. The server goes on, in a state of no use.
func (h *logHook) Fatalf(format string, v ...any) {
	err := fmt.Errorf("nats server: "+format, v...)
	select {
	case h.fatal <- err:
	default:
	}
	h.log.Error(err.Error())
}

// Noticef implements server.Logger.
func (h *logHook) Noticef(string, ...any) {}

// Debugf implements server.Logger.
func (h *logHook) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (h *logHook) Tracef(string, ...any) {}

func (h *logHook) pass(level slog.Level, format string, v []any) {
	now := time.Now().Unix()
	h.mu.Lock()
	if h.second != now {
		h.second, h.lines = now, 0
	}
	h.lines++
	lines := h.lines
	h.mu.Unlock()
	switch {
	case lines < logLinesMax:
		if cid, what, ok := clientLine(format, v); ok {
			h.log.Log(context.Background(), level, "nats server", "cid", cid, "id", h.door.idOf(cid), "line", what)
			return
		}
		h.log.Log(context.Background(), level, "nats server", "line", fmt.Sprintf(format, v...))
	case lines == logLinesMax:
		h.log.Warn("nats server: more lines left out this second")
	}
}

// clientWords begin the server's lines about a client that are passed on. Of
// such a line nothing else is: behind these words it quotes what the client
// sent, a payload that was taken for a command among it.
var clientWords = []string{
	"Client parser ERROR", "Client Error", "Readloop processing time", "Producer was stalled", "read error", "TLS client handshake error", "TLS handshake timeout",
	"Problem registering with account", server.ErrTooManyConnections.Error(), server.ErrTooManyAccountConnections.Error(),
	server.ErrMaxControlLine.Error(), server.ErrMaxPayload.Error(), "processPub Parse Error", "processHeaderPub Parse Error",
	"processSub Parse Error", "processUnsub Parse Error", "Invalid JetStream request",
}

// clientLine recognises a line about a client and returns the fixed words it
// begins with.
func clientLine(format string, v []any) (cid uint64, what string, ok bool) {
	if format == "%s - %s%s" && len(v) > 1 { // of the lines that the server limits itself
		format = first(v) + " - " + fmt.Sprint(v[1])
	}
	cid, rest, ok := cutClient(format)
	if !ok {
		return 0, "", strings.Contains(format, " - cid:")
	}
	for _, words := range clientWords {
		if strings.HasPrefix(rest, words) {
			return cid, words, true
		}
	}
	return cid, "of another kind", true
}

// cutClient takes the front off a line about a client: "<address> - cid:<id> - ",
// then up to two parts quoted by the server, each followed by " - ". What
// remains begins with the server's own words.
func cutClient(format string) (cid uint64, rest string, ok bool) {
	_, rest, ok = strings.Cut(format, " - cid:")
	if !ok {
		return 0, "", false
	}
	digits, rest, ok := strings.Cut(rest, " - ")
	if !ok {
		return 0, "", false
	}
	cid, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, "", false
	}
	for range 2 {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		if rest, ok = strings.CutPrefix(rest[len(quoted):], " - "); !ok {
			return 0, "", false
		}
	}
	return cid, rest, true
}

// parseRefusal recognises the server's lines about what it refused a client.
func parseRefusal(format string, v []any) (cid uint64, code string, ok bool) {
	cid, rest, ok := cutClient(format)
	if !ok {
		return 0, "", false
	}
	authError := server.ErrAuthentication.Error()
	switch {
	case strings.HasPrefix(rest, "Publish Violation"), strings.HasPrefix(rest, "%s: %d vs %d") && first(v) == server.ErrMaxPayload.Error():
		code = DeniedPublish
	case strings.HasPrefix(rest, "Subscription Violation"), rest == server.ErrTooManySubs.Error():
		code = DeniedSubscribe
	case rest == authError, rest == "%v - %s" && first(v) == authError:
		code = DeniedAuth
	default:
		return 0, "", false
	}
	return cid, code, true
}

func first(v []any) string {
	if len(v) == 0 {
		return ""
	}
	return fmt.Sprint(v[0])
}

// idOf is whose connection cid is or claims to be; empty where that is not known.
func (d *door) idOf(cid uint64) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.conns[cid]; c != nil {
		return c.id
	}
	return ""
}

// refused hands a refusal on under the name of the connection it befell.
func (d *door) refused(cid uint64, code string) {
	d.mu.Lock()
	var c conn
	if known := d.conns[cid]; known != nil {
		c = *known
	}
	d.mu.Unlock()
	switch {
	case c.probe:
	case c.part != "":
		d.fault("own connection refused", "part", string(c.part), "code", code)
	default:
		d.denied(Denied{ID: c.id, Code: code})
	}
}

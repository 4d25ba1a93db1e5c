package natsapi

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Only a registered key that signs this connection's nonce gets in; every other
// attempt is refused and recorded, under the id of the key it names if that is
// known.
func TestR10_R76_OnlyASignedNonceOpens(t *testing.T) {
	b := startBench(t)
	bot := b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	odd := b.reg.add(t, Identity{ID: "odd", Role: "emperor"})
	gone := b.reg.add(t, Identity{ID: "gone", Role: RoleAgent})
	b.reg.revoke(t, "gone")
	stranger, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	old := dial(t, b.URL())
	replayed := old.sign(bot)

	for _, c := range []struct {
		name  string
		hello func(w *raw)
		id    string // it is recorded under; "-" for let in
	}{
		{"right", func(w *raw) { w.hello(public(t, bot), w.sign(bot), "") }, "-"},
		{"right, padded base64", func(w *raw) {
			raw, err := bot.Sign([]byte(w.info.Nonce))
			if err != nil {
				t.Fatal(err)
			}
			w.hello(public(t, bot), base64.StdEncoding.EncodeToString(raw), "")
		}, "-"},
		{"nothing", func(w *raw) { w.send("CONNECT {}\r\n") }, ""},
		{"user and password", func(w *raw) { w.send(`CONNECT {"user":"bot","pass":"bot"}` + "\r\n") }, ""},
		{"token", func(w *raw) { w.send(`CONNECT {"auth_token":"bot"}` + "\r\n") }, ""},
		{"unknown key", func(w *raw) { w.hello(public(t, stranger), w.sign(stranger), "") }, ""},
		{"account key", func(w *raw) { w.hello(public(t, account), w.sign(account), "") }, ""},
		{"no signature", func(w *raw) { w.hello(public(t, bot), "", "") }, "bot"},
		{"no base64", func(w *raw) { w.hello(public(t, bot), "!!", "") }, "bot"},
		{"another's signature", func(w *raw) { w.hello(public(t, bot), w.sign(stranger), "") }, "bot"},
		{"replayed signature", func(w *raw) { w.hello(public(t, bot), replayed, "") }, "bot"},
		{"revoked", func(w *raw) { w.hello(public(t, gone), w.sign(gone), "") }, "gone"},
		{"unknown role", func(w *raw) { w.hello(public(t, odd), w.sign(odd), "") }, "odd"},
		{"choosing an account", func(w *raw) { w.hello(public(t, bot), w.sign(bot), `,"account":"LOG"`) }, "bot"},
		{"a part's key from outside", func(w *raw) {
			key := b.keys[FeedWriter]
			w.hello(public(t, key), w.sign(key), "")
		}, ""},
		{"lower-case key", func(w *raw) { w.hello(strings.ToLower(public(t, bot)), w.sign(bot), "") }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := dial(t, b.URL())
			c.hello(w)
			errs := w.errors()
			if c.id == "-" {
				if len(errs) > 0 || len(b.refusals()) > 0 {
					t.Fatalf("refused: %q", errs)
				}
				return
			}
			if !slices.Equal(errs, []string{"Authorization Violation", "EOF"}) {
				t.Errorf("answered %q", errs)
			}
			if got := b.refusals(); !slices.Equal(got, []Denied{{c.id, DeniedAuth}}) {
				t.Errorf("recorded %+v, want one of %q", got, c.id)
			}
		})
	}
}

// Nothing is heard from a connection before it has presented itself, and none
// can become someone else.
func TestR10_NoSecondIdentity(t *testing.T) {
	b := startBench(t)
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	admin := b.reg.add(t, Identity{ID: "admin", Role: RoleAdmin})
	sub, err := b.own(t, WorkResponder).SubscribeSync("gov.main.propose.>")
	if err != nil {
		t.Fatal(err)
	}

	w := dial(t, b.URL())
	w.send("PUB gov.main.propose.bot.x 0\r\n\r\n")
	if errs := w.errors(); len(errs) == 0 {
		t.Error("published before CONNECT")
	}
	w = b.enter(t, "bot")
	w.hello(public(t, admin), w.sign(admin), "")
	if errs := w.errors(); !slices.Contains(errs, "EOF") {
		t.Errorf("presented itself twice: %q", errs)
	}
	if n, _, err := sub.Pending(); err != nil || n > 0 {
		t.Errorf("%d messages heard, %v", n, err)
	}
	got := b.refusals()
	if len(got) == 0 || got[len(got)-1] != (Denied{"bot", DeniedAuth}) {
		t.Errorf("recorded %+v", got)
	}
}

// A revoked id's connections are cut at once and it cannot come back; others
// stay.
func TestR13_RevocationCutsLiveConnections(t *testing.T) {
	b := startBench(t)
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	b.reg.add(t, Identity{ID: "bot2", Role: RoleAgent})
	one, two, other := b.enter(t, "bot"), b.enter(t, "bot"), b.enter(t, "bot2")
	library := b.client(t, "bot")
	closed := make(chan struct{})
	library.SetClosedHandler(func(*nats.Conn) { close(closed) })

	b.reg.revoke(t, "bot")
	if n := b.Disconnect("bot"); n != 3 {
		t.Errorf("%d connections cut, want 3", n)
	}
	for _, w := range []*raw{one, two} {
		if errs := w.errors(); !slices.Contains(errs, "EOF") {
			t.Errorf("still connected: %q", errs)
		}
	}
	select {
	case <-closed:
	case <-time.After(deadline):
		t.Error("the client library goes on")
	}
	if errs := other.errors(); len(errs) > 0 {
		t.Errorf("bot2 was cut too: %q", errs)
	}
	w := dial(t, b.URL())
	key := b.reg.keys["bot"]
	w.hello(public(t, key), w.sign(key), "")
	if errs := w.errors(); !slices.Contains(errs, "Authorization Violation") {
		t.Errorf("came back: %q", errs)
	}
	if n := b.Disconnect("") + b.Disconnect("nobody"); n != 0 {
		t.Errorf("%d connections of nobody cut", n)
	}
	// The one just refused may still be closing.
	eventually(t, "nothing of bot is left to cut", func() bool { return b.Disconnect("bot") == 0 })
}

// A revocation that happens while the connection is being let in cuts it.
func TestR13_RevocationDuringHandshake(t *testing.T) {
	b := startBench(t)
	key := b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	asked, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.reg.mu.Lock()
	b.reg.hook = func(string) { // the registry has answered, the door has not heard yet
		once.Do(func() { close(asked); <-answer })
	}
	b.reg.mu.Unlock()

	w := dial(t, b.URL())
	w.hello(public(t, key), w.sign(key), "")
	<-asked
	b.reg.revoke(t, "bot")
	b.Disconnect("bot")
	close(answer)
	if errs := w.errors(); !slices.Contains(errs, "EOF") {
		t.Fatalf("let in after its revocation: %q", errs)
	}
	if got := b.refusals(); !slices.Equal(got, []Denied{{"bot", DeniedAuth}}) {
		t.Errorf("recorded %+v", got)
	}
}

// A new key ends the connections of the old one and no others.
func TestR13_RekeyCutsByKey(t *testing.T) {
	b := startBench(t)
	old := b.reg.add(t, Identity{ID: "tools", Role: RoleHandler})
	was := b.enter(t, "tools")
	b.reg.add(t, Identity{ID: "tools", Role: RoleHandler})
	is := b.enter(t, "tools")
	b.reg.mu.Lock()
	delete(b.reg.byKey, public(t, old))
	b.reg.mu.Unlock()
	if n := b.DisconnectKey(public(t, old)); n != 1 {
		t.Errorf("%d connections cut, want 1", n)
	}
	if errs := was.errors(); !slices.Contains(errs, "EOF") {
		t.Errorf("the old key's connection lives: %q", errs)
	}
	if errs := is.errors(); len(errs) > 0 {
		t.Errorf("the new key's connection was cut: %q", errs)
	}
}

// ledgerd's own connections are admitted only within the process, hold only
// their part's rights, and are not cut by an id.
func TestR91_OwnConnections(t *testing.T) {
	b := startBench(t)
	for part, want := range map[Part]string{
		WorkResponder: "_INBOX.bot.x", ControlResponder: "_INBOX.bot.x",
		FeedResponder:  "_INBOX.eye.x",
		WorkDispatcher: "gov.main.checkpoint gov.main.control.state gov.main.exec.ping gov.main.notify.bot.x gov.main.pending.security.a",
		FeedDispatcher: "gov.main.checkpoint",
		FeedWriter:     "$JS.API.STREAM.INFO.LEDGER_main led.main.x",
	} {
		conn, err := b.ns.InProcessConn()
		if err != nil {
			t.Fatal(err)
		}
		w := &raw{t: t, conn: conn, in: bufio.NewReader(conn)}
		w.readInfo()
		w.hello(public(t, b.keys[part]), w.sign(b.keys[part]), "")
		if errs := w.errors(); len(errs) > 0 {
			t.Fatalf("%s: %q", part, errs)
		}
		var may []string
		for _, s := range []string{
			"_INBOX.bot.x", "_INBOX.eye.x", "gov.main.checkpoint", "gov.main.control.state", "gov.main.exec.ping",
			"gov.main.notify.bot.x", "gov.main.pending.security.a", "gov.main.propose.bot.x", "gov.main.control.admin.apply",
			"$JS.API.STREAM.INFO.LEDGER_main", "$JS.API.STREAM.DELETE.LEDGER_main", "$JS.API.STREAM.PURGE.LEDGER_main",
			"$JS.API.CONSUMER.CREATE.LEDGER_main.c", "$JS.API.STREAM.CREATE.EVIL", "$SYS.REQ.SERVER.PING", "led.main.x", "led.other.x", "x",
		} {
			if (part == WorkResponder || part == ControlResponder) && s == "_INBOX.eye.x" || part == FeedResponder && s == "_INBOX.bot.x" {
				continue // the same right
			}
			w.send("PUB %s 0\r\n\r\n", s)
			if len(w.errors()) == 0 {
				may = append(may, s)
			}
		}
		slices.Sort(may)
		if got := strings.Join(may, " "); got != want {
			t.Errorf("%s publishes on %s, want %s", part, got, want)
		}
		conn.Close()
	}
	if got := b.refusals(); len(got) > 0 {
		t.Errorf("our own faults are recorded as others': %+v", got)
	}
	nc := b.own(t, WorkResponder)
	if n := b.Disconnect(""); n != 0 || nc.Flush() != nil {
		t.Error("an own connection was cut")
	}
	if _, err := b.Connect("emperor"); err == nil {
		t.Error("a connection for a part that is none")
	}
}

// Refusals are put to the connection they befell and to what happened, whatever
// the refused one writes into its name, subjects and subscription ids.
func TestR76_ForgedLogText(t *testing.T) {
	b := startBench(t)
	b.reg.add(t, Identity{ID: "victim", Role: RoleAgent})
	b.enter(t, "victim") // its cid is among those the forger tries
	key := b.reg.add(t, Identity{ID: "forger", Role: RoleAgent})
	names := []string{
		`x" - "WORK/nkey:U" - Subscription Violation - Subject "y`,
		`%s%s%s`, `%q`, `%[1]s`, `%d%%`, `%!q(MISSING)`,
		"127.0.0.1:4 - cid:1 - Subscription Violation - Subject x",
		` - cid:1 - authentication error`, "`", `"`, `\`, `\" - Subscription Violation`, "\x00\x1b[2J\u202e", strings.Repeat("n", 500),
	}
	for cid := range 40 {
		names = append(names, fmt.Sprintf(`" - cid:%d - Subscription Violation - Subject "`, cid))
	}
	for _, name := range names {
		w := dial(t, b.URL())
		w.hello(public(t, key), w.sign(key), fmt.Sprintf(`,"name":%s`, jsonString(name)))
		if errs := w.errors(); len(errs) > 0 {
			t.Fatalf("named %q: %q", name, errs)
		}
		for _, subject := range []string{
			"gov.main.control.victim.apply", `x"-"Subscription`, "%s%d%q", "%[1]s", "-", "cid:1", `"`, "\x1b[2J", "\x00", "é\xff",
			`a"-cid:1-Subscription.Violation`,
		} {
			w.send("PUB %s 0\r\n\r\n", subject)
		}
		w.errors()
		if got := b.refusals(); len(got) != 11 || slices.ContainsFunc(got, func(d Denied) bool { return d != Denied{"forger", DeniedPublish} }) {
			t.Errorf("named %q, publishing: %+v", name, got)
		}
		for _, sub := range []string{
			"gov.> 1", `x"-"Publish 2`, "%s %d%q", "%[1]s 4", `gov.main.> Publish 5`, `y Violation-Publish`, "z cid:1", `v "`, "u %v-%s", "t \x00",
		} {
			w.send("SUB %s\r\n", sub)
		}
		w.errors()
		if got := b.refusals(); len(got) != 10 || slices.ContainsFunc(got, func(d Denied) bool { return d != Denied{"forger", DeniedSubscribe} }) {
			t.Errorf("named %q, subscribing: %+v", name, got)
		}
	}
}

// jsonString quotes any bytes so that the server's JSON reader takes them.
func jsonString(s string) string {
	var b bytes.Buffer
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// The server's other refusals count too: more subscriptions than the limit,
// longer subjects, larger payloads.
func TestR76_LimitsAreRecorded(t *testing.T) {
	b := startBench(t)
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	w := b.enter(t, "bot")
	for i := range maxSubscriptions + 1 {
		w.send("SUB _INBOX.bot.%d %d\r\n", i, i+1)
	}
	if errs := w.errors(); len(errs) != 1 {
		t.Errorf("%d subscriptions: %q", maxSubscriptions+1, errs)
	}
	if got := b.refusals(); !slices.Equal(got, []Denied{{"bot", DeniedSubscribe}}) {
		t.Errorf("recorded %+v", got)
	}
	w = b.enter(t, "bot")
	w.send("SUB _INBOX.bot%s 1\r\n", strings.Repeat(".x", maxSubjectTokens))
	if errs := w.errors(); len(errs) != 1 {
		t.Errorf("long subscription: %q", errs)
	}
	if got := b.refusals(); !slices.Equal(got, []Denied{{"bot", DeniedSubscribe}}) {
		t.Errorf("recorded %+v", got)
	}
	w.send("PUB gov.main.propose.bot.x %d\r\n", 1<<20+1)
	if errs := w.errors(); !slices.Contains(errs, "Maximum Payload Violation") {
		t.Errorf("large payload: %q", errs)
	}
	if got := b.refusals(); !slices.Equal(got, []Denied{{"bot", DeniedPublish}}) {
		t.Errorf("recorded %+v", got)
	}
	w = b.enter(t, "bot")
	w.send("PUB gov.main.propose.bot.%s 0\r\n\r\n", strings.Repeat("x", maxControlLine))
	if errs := w.errors(); !slices.Contains(errs, "EOF") {
		t.Errorf("long line: %q", errs)
	}
}

// Only lines whose fixed words stand where the server puts them are refusals.
func TestR76_ParseRefusal(t *testing.T) {
	const c = `127.0.0.1:1 - cid:7 - `
	for _, x := range []struct {
		format string
		args   []any
		code   string // empty: no refusal
	}{
		{c + `Publish Violation - Subject %q`, []any{"x"}, DeniedPublish},
		{c + `"v1:go" - "WORK/nkey:U" - Publish Violation - Subject %q`, []any{"x"}, DeniedPublish},
		{c + `"v1:go" - Subscription Violation - Subject "x", SID 1`, nil, DeniedSubscribe},
		{c + `authentication error`, nil, DeniedAuth},
		{c + `%v - %s`, []any{"authentication error", `Nkey "U"`}, DeniedAuth},
		{c + `%v - %s`, []any{"read error", "authentication error"}, ""},
		{c + `%v - %s`, nil, ""},
		{c + `%s: %d vs %d`, []any{"maximum payload exceeded", 2, 1}, DeniedPublish},
		{c + `"a" - "b" - "c" - Publish Violation`, nil, ""},
		{c + `"a" Publish Violation`, nil, ""},
		{c + `"a - Publish Violation`, nil, ""},
		{c + `"Publish Violation" - "Subscription Violation" - read error: %v`, []any{"x"}, ""},
		{`127.0.0.1:1 - cid:x - Publish Violation`, nil, ""},
		{`127.0.0.1:1 - rid:7 - Publish Violation`, nil, ""},
		{`127.0.0.1:1 - cid:99999999999999999999999 - Publish Violation`, nil, ""},
		{`Publish Violation`, nil, ""},
		{`cid:7 - Publish Violation`, nil, ""},
		{``, nil, ""},
	} {
		cid, code, ok := parseRefusal(x.format, x.args)
		if code != x.code || ok != (x.code != "") || ok && cid != 7 {
			t.Errorf("%s %v: %d %q %v, want %q", x.format, x.args, cid, code, ok, x.code)
		}
	}
}

// Closed connections are forgotten, so that coming and going costs no memory.
func TestR92_ConnectionsAreForgotten(t *testing.T) {
	b := startBench(t)
	key := b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	stay := b.enter(t, "bot")
	for i := range 5 * sweepMin {
		w := dial(t, b.URL())
		w.hello(public(t, key), w.sign(key), "")
		if i%2 == 0 {
			w.errors()
		}
		w.conn.Close()
	}
	b.door.mu.Lock()
	n := len(b.door.conns)
	b.door.mu.Unlock()
	if n > 3*sweepMin {
		t.Errorf("%d connections remembered", n)
	}
	b.reg.revoke(t, "bot")
	b.Disconnect("bot")
	if errs := stay.errors(); !slices.Contains(errs, "EOF") {
		t.Error("a live connection was forgotten")
	}
}

// Off the loopback interface there is no listener without TLS; with TLS the
// same rules hold.
func TestR10_TLSOffLoopback(t *testing.T) {
	b := &bench{reg: newRegistry()}
	for _, listen := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0"} {
		o := b.options(t)
		o.Listen = listen
		if s, err := StartServer(o); err == nil || !strings.Contains(err.Error(), "TLS") {
			if err == nil {
				shutdown(t, s)
			}
			t.Errorf("listens on %s in the clear: %v", listen, err)
		}
	}
	for _, listen := range []string{"127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:-1"} {
		o := b.options(t)
		o.Listen = listen
		if s, err := StartServer(o); err == nil {
			shutdown(t, s)
			t.Errorf("listens on %s", listen)
		}
	}
	cert, pool := selfSigned(t)
	o := b.options(t)
	o.Listen, o.TLS = "0.0.0.0:0", cert
	b.start(t, o)
	key := b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	_, port, err := net.SplitHostPort(b.ns.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("tls://127.0.0.1:"+port, nats.Nkey(public(t, key), key.Sign), nats.Secure(pool))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if nc, err := nats.Connect("nats://127.0.0.1:"+port, nats.Nkey(public(t, key), key.Sign)); err == nil {
		nc.Close()
		t.Error("connected in the clear")
	}
	b.own(t, WorkResponder) // in the process, without TLS
	if got := b.refusals(); len(got) > 0 {
		t.Errorf("recorded %+v", got)
	}
}

// What keeps the server from starting is the error, not a line in a log.
func TestStartErrors(t *testing.T) {
	b := startBench(t)
	taken := strings.TrimPrefix(b.URL(), "nats://")
	for name, change := range map[string]func(*ServerOptions){
		"address already in use": func(o *ServerOptions) { o.Listen = taken },
		"ledger name":            func(o *ServerOptions) { o.Ledger = "a.b" },
		"directory":              func(o *ServerOptions) { o.StoreDir = "" },
		"registry":               func(o *ServerOptions) { o.Lookup = nil },
		"storage directory":      func(o *ServerOptions) { o.StoreDir = filepath.Join("/dev/null", "x") },
	} {
		o := b.options(t)
		change(&o)
		s, err := StartServer(o)
		if err == nil {
			shutdown(t, s)
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error with %q, got %v", name, err)
		}
	}
}

// A server that lets strangers in does not start.
func TestStartProbesStrangers(t *testing.T) {
	b := startBench(t)
	o := b.options(t)
	o.Lookup = func(string) (Identity, bool) { return Identity{ID: "anyone", Role: RoleAdmin}, true }
	s, err := StartServer(o)
	if err == nil {
		shutdown(t, s)
	}
	if err == nil || !strings.Contains(err.Error(), "unknown key in") {
		t.Errorf("started: %v", err)
	}
	if got := b.refusals(); len(got) > 0 {
		t.Errorf("the probes were recorded: %+v", got)
	}
}

// Only the probes themselves go unrecorded: who is given their port later counts.
func TestR76_ProbesAreForgotten(t *testing.T) {
	b := startBench(t)
	b.door.mu.Lock()
	defer b.door.mu.Unlock()
	if len(b.door.probes) > 0 {
		t.Errorf("still takes %v for probes", b.door.probes)
	}
}

// One listener, and no other way in.
func TestR92_OneListener(t *testing.T) {
	b := startBench(t)
	v, err := b.ns.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := v.HTTPPort + v.HTTPSPort + v.Cluster.Port + v.Gateway.Port + v.LeafNode.Port + v.MQTT.Port + v.Websocket.Port; n != 0 {
		t.Errorf("other listeners are configured: %+v", v)
	}
	if a := b.ns.MonitorAddr(); a != nil {
		t.Errorf("monitoring on %s", a)
	}
	if b.ns.ProfilerAddr() != nil {
		t.Error("profiling port")
	}
	if !v.AuthRequired || v.MaxPayload != 1<<20 {
		t.Errorf("auth required %v, payload %d", v.AuthRequired, v.MaxPayload)
	}
}

// Shutdown ends everything, clients or not, and what follows it fails.
func TestShutdownEnds(t *testing.T) {
	b := &bench{reg: newRegistry()}
	s, err := StartServer(b.options(t))
	if err != nil {
		t.Fatal(err)
	}
	b.Server = s
	b.reg.add(t, Identity{ID: "bot", Role: RoleAgent})
	w := b.enter(t, "bot")
	nc := b.own(t, WorkResponder)
	shutdown(t, s)
	shutdown(t, s)
	if errs := w.errors(); !slices.Contains(errs, "EOF") {
		t.Error("a client is still connected")
	}
	if !nc.IsClosed() {
		t.Error("an own connection is still open")
	}
	if _, err := s.Connect(WorkResponder); err == nil {
		t.Error("connected after shutdown")
	}
}

// Lines anyone can cause do not fill the log.
func TestLogIsBounded(t *testing.T) {
	var buf bytes.Buffer
	h := &logHook{log: slog.New(slog.NewTextHandler(&buf, nil)), fatal: make(chan error, 1)}
	for range 1000 {
		h.Warnf("slow consumer %d\n", 1)
	}
	if n := strings.Count(buf.String(), "\n"); n > 2*logLinesMax {
		t.Errorf("%d lines", n)
	}
	h.Fatalf("first %d", 1)
	h.Fatalf("second")
	if err := <-h.fatal; err.Error() != "nats server: first 1" {
		t.Error(err)
	}
}

package natsapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
)

// deadline is how long a test waits for what must happen; nothing is timed.
const deadline = 30 * time.Second

// registry is the part of a ledger's state that the server asks.
type registry struct {
	mu    sync.Mutex
	byKey map[string]Identity
	keys  map[string]nkeys.KeyPair // by id
	hook  func(publicKey string)   // called before a look-up is answered
}

func newRegistry() *registry {
	return &registry{byKey: map[string]Identity{}, keys: map[string]nkeys.KeyPair{}}
}

func (r *registry) lookup(key string) (Identity, bool) {
	r.mu.Lock()
	who, ok := r.byKey[key]
	hook := r.hook
	r.mu.Unlock()
	if hook != nil {
		hook(key)
	}
	return who, ok
}

func (r *registry) add(t testing.TB, who Identity) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byKey[public(t, key)] = who
	r.keys[who.ID] = key
	return key
}

func (r *registry) revoke(t testing.TB, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := public(t, r.keys[id])
	who := r.byKey[key]
	who.Revoked = true
	r.byKey[key] = who
}

func public(t testing.TB, key nkeys.KeyPair) string {
	t.Helper()
	p, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// bench is a running server with a registry and the refusals it reported.
type bench struct {
	*Server
	reg *registry

	mu     sync.Mutex
	denied []Denied
}

func (b *bench) onDenied(d Denied) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.denied = append(b.denied, d)
}

// refusals returns what was reported since the last call.
func (b *bench) refusals() []Denied {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.denied
	b.denied = nil
	return d
}

func (b *bench) options(t testing.TB) ServerOptions {
	return ServerOptions{
		Ledger: "main", StoreDir: t.TempDir(), Listen: "127.0.0.1:0",
		Lookup: b.reg.lookup, OnDenied: b.onDenied,
	}
}

func startBench(t testing.TB, change ...func(*ServerOptions)) *bench {
	t.Helper()
	b := &bench{reg: newRegistry()}
	o := b.options(t)
	for _, f := range change {
		f(&o)
	}
	b.start(t, o)
	return b
}

func (b *bench) start(t testing.TB, o ServerOptions) {
	t.Helper()
	s, err := StartServer(o)
	if err != nil {
		t.Fatal(err)
	}
	b.Server = s
	t.Cleanup(func() { shutdown(t, s) })
}

func shutdown(t testing.TB, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// client connects as id over TCP with the official client.
func (b *bench) client(t testing.TB, id string) *nats.Conn {
	t.Helper()
	key := b.reg.keys[id]
	nc, err := nats.Connect(b.URL(), nats.Nkey(public(t, key), key.Sign), nats.CustomInboxPrefix("_INBOX."+id), nats.ReconnectWait(10*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatalf("connect as %s: %v", id, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (b *bench) own(t testing.TB, p Part) *nats.Conn {
	t.Helper()
	nc, err := b.Connect(p)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

// raw is a client that sends what it is told, byte for byte, as no library
// would.
type raw struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
	info struct {
		Nonce string `json:"nonce"`
		CID   uint64 `json:"client_id"`
	}
}

// dial opens a connection and reads the server's greeting.
func dial(t testing.TB, serverURL string) *raw {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	w := &raw{t: t, conn: conn, in: bufio.NewReader(conn)}
	w.readInfo()
	if u.Scheme == "tls" {
		w.conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		w.in = bufio.NewReader(w.conn)
	}
	return w
}

func (w *raw) readInfo() {
	w.t.Helper()
	line, err := w.in.ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &w.info); err != nil {
		w.t.Fatalf("greeting %q: %v", line, err)
	}
}

// hello presents a key with a signature; extra members go into CONNECT.
func (w *raw) hello(key, sig string, extra string) {
	w.t.Helper()
	w.send(`CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1,"lang":"test","version":"0","nkey":%q,"sig":%q%s}`+"\r\n", key, sig, extra)
}

func (w *raw) sign(key nkeys.KeyPair) string {
	sig, err := key.Sign([]byte(w.info.Nonce))
	if err != nil {
		w.t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(sig)
}

func (w *raw) send(format string, args ...any) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w.conn, format, args...); err != nil {
		w.t.Logf("send: %v", err)
	}
}

// errors sends a PING and returns the errors the server reported before its
// answer; the last is "EOF" if it hung up instead. Messages are left out.
func (w *raw) errors() []string {
	errs, _ := w.sync()
	return errs
}

type rawMsg struct{ subject, reply, data string }

func (w *raw) sync() (errs []string, msgs []rawMsg) {
	w.t.Helper()
	w.send("PING\r\n")
	for {
		line, err := w.in.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		switch {
		case errors.Is(err, io.EOF) || err != nil && strings.Contains(err.Error(), "reset"):
			return append(errs, "EOF"), msgs
		case err != nil:
			w.t.Fatal(err)
		case line == "PONG":
			return errs, msgs
		case line == "PING":
			w.send("PONG\r\n")
		case strings.HasPrefix(line, "-ERR"):
			errs = append(errs, strings.Trim(strings.TrimPrefix(line, "-ERR "), "'"))
		case strings.HasPrefix(line, "MSG "), strings.HasPrefix(line, "HMSG "):
			msgs = append(msgs, w.message(line))
		}
	}
}

func (w *raw) message(line string) rawMsg {
	w.t.Helper()
	f := strings.Fields(line)
	var size int
	if _, err := fmt.Sscan(f[len(f)-1], &size); err != nil {
		w.t.Fatalf("%q: %v", line, err)
	}
	b := make([]byte, size+2)
	if _, err := io.ReadFull(w.in, b); err != nil {
		w.t.Fatal(err)
	}
	m := rawMsg{subject: f[1], data: string(b[:size])}
	if fixed := map[string]int{"MSG": 4, "HMSG": 5}[f[0]]; len(f) == fixed+1 {
		m.reply = f[3]
	}
	return m
}

// enter connects as id and is let in.
func (b *bench) enter(t testing.TB, id string) *raw {
	t.Helper()
	key := b.reg.keys[id]
	w := dial(t, b.URL())
	w.hello(public(t, key), w.sign(key), "")
	if errs := w.errors(); len(errs) > 0 {
		t.Fatalf("connect as %s: %v", id, errs)
	}
	return w
}

// eventually waits until ok reports true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// testLog is a chained log in memory, of which a part is durable.
type testLog struct {
	mu      sync.Mutex
	origin  string
	events  [][]byte
	durable uint64
	reads   func(seq uint64) error // may fail a read
}

const testOrigin = "ledgerd.test/main/0123456789abcdef/1"

func newLog(t testing.TB, n int) *testLog {
	l := &testLog{origin: testOrigin}
	l.grow(t, n)
	return l
}

// grow appends n events and makes all durable.
func (l *testLog) grow(t testing.TB, n int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.append(t)
	}
	l.durable = uint64(len(l.events))
}

func (l *testLog) append(t testing.TB) {
	seq := uint64(len(l.events)) + 1
	prev := events.GenesisHash(l.origin)
	if seq > 1 {
		prev = events.LeafHash(l.events[seq-2])
	}
	e := events.Event{
		Seq: seq, Prev: prev, Time: events.Time(1_700_000_000_000_000 + seq), ID: [16]byte{6: 0x70, 8: 0x80, 15: byte(seq)},
		Agent: "researcher", Body: &events.AgentRevoked{AgentID: "intern"},
	}
	b, err := e.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	l.events = append(l.events, b)
}

func (l *testLog) source() FeedSource {
	return FeedSource{
		Durable: func() uint64 { l.mu.Lock(); defer l.mu.Unlock(); return l.durable },
		Events:  l.each,
		Meta: func(seq uint64, b []byte) (string, nats.Header, error) {
			e, err := events.Parse(b)
			if err != nil {
				return "", nil, err
			}
			id := fmt.Sprintf("%s/%d", l.origin, seq)
			return e.StreamSubject("main"), nats.Header{
				"ce-specversion": {"1.0"}, "ce-id": {id}, "Nats-Msg-Id": {id}, "ce-source": {"/ledgers/main"},
				"ce-type": {"io.ledgerd." + string(e.Body.Type()) + ".v1"}, "ce-time": {e.Time.String()},
				"content-type": {"application/json"},
			}, nil
		},
	}
}

func (l *testLog) each(from, to uint64, fn func(seq uint64, b []byte) error) error {
	for seq := from; seq <= to; seq++ {
		l.mu.Lock()
		b := bytes.Clone(l.events[seq-1])
		reads := l.reads
		l.mu.Unlock()
		if reads != nil {
			if err := reads(seq); err != nil {
				return err
			}
		}
		if err := fn(seq, b); err != nil {
			return err
		}
		clear(b) // the callee may not keep it
	}
	return nil
}

// selfSigned returns a server's and a client's TLS configuration.
func selfSigned(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}

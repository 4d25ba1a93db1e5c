// Package natsapi is the front door and the outlet of a ledger: an embedded
// nats-server that knows every connection by its key, and the feed that copies
// the log to a JetStream stream.
//
// The first call is StartServer; Server.Connect then gives each part of ledgerd
// its own connection, and NewFeed the follower of the log. Who may say and hear
// what is decided by Permissions alone.
//
// What holds: no one gets in without a registered key; a connection can publish
// and subscribe on what Permissions lists and on nothing else; only the feed
// reaches the stream's account; the stream never holds what the log does not.
// The server does not check the reply subject a request names, and leaves
// headers as the client wrote them: handlers must.
package natsapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
)

// ServerOptions configure StartServer.
type ServerOptions struct {
	// Ledger is the ledger's name, a token of every subject.
	Ledger string
	// ServerName is shown to clients. Default "ledgerd-" and the ledger.
	ServerName string
	// StoreDir is JetStream's directory, nobody else's.
	StoreDir string
	// Listen is host:port, port 0 for any free one. Empty: no listener.
	Listen string
	// TLS is required unless Listen names the loopback interface.
	TLS *tls.Config
	// MaxStore bounds the bytes of the stream on disk. Default 8 GiB.
	MaxStore int64
	// MaxConnections bounds the clients, ledgerd's own included. Default 4096.
	// The last 64, at most a quarter, are for admins.
	MaxConnections int
	// Lookup finds who holds a public key, revoked ones too. It is called from
	// many goroutines and must see a revocation before Disconnect is called.
	Lookup func(publicKey string) (Identity, bool)
	// OnDenied hears of every refusal by the server. It is called on the
	// refused connection's own goroutine and must not block or call the server.
	OnDenied func(Denied)
	// Log gets the server's warnings and errors, at most 20 a second. They may
	// hold subjects as clients wrote them. Default: nowhere.
	Log *slog.Logger
}

// Limits of the embedded server.
const (
	maxControlLine = 2 << 10         // a CONNECT of any client, the longest subject with the longest reply
	maxPending     = 64 << 20        // bytes a slow reader may keep waiting before it is dropped; see guard
	writeDeadline  = 2 * time.Second // for a reader to take anything at all
	// A handler subscribes once for each of its actions.
	maxSubscriptions = events.CapabilitiesMax + 64
	maxSubjectTokens = 16 // of a subscription; led.<L>.<category>.<agent>.<name>.<operation> has 11
	maxConsumers     = 1024
	defaultMaxStore  = 8 << 30
	authTimeout      = 2 // seconds from connection to CONNECT
	adminReserve     = 64
	startTimeout     = 10 * time.Second
)

// Server is the embedded nats-server.
type Server struct {
	ns     *server.Server
	door   *door
	log    *slog.Logger
	keys   map[Part]nkeys.KeyPair
	failed chan error

	mu    sync.Mutex
	conns []ownConn                     // given out by Connect
	slow  map[*nats.Subscription]uint64 // ours that dropped requests, and how many
	down  bool
}

type ownConn struct {
	part Part
	nc   *nats.Conn
}

// StartServer starts the server and returns when it accepts connections and
// has been seen to refuse one without a key and one with an unknown key.
func StartServer(o ServerOptions) (*Server, error) {
	no, err := o.config()
	if err != nil {
		return nil, err
	}
	s := &Server{log: o.Log, keys: map[Part]nkeys.KeyPair{}, failed: make(chan error, 1), slow: map[*nats.Subscription]uint64{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.door = &door{
		ledger: o.Ledger, lookup: o.Lookup, denied: o.OnDenied, fault: s.log.Error, most: o.MaxConnections - min(adminReserve, o.MaxConnections/4),
		own: map[string]Part{}, rights: ownRights(o.Ledger), accounts: map[string]*server.Account{},
		conns: map[uint64]*conn{}, probes: map[string]bool{}, sweepAt: sweepMin,
	}
	if s.door.denied == nil {
		s.door.denied = func(Denied) {}
	}
	for part := range s.door.rights {
		if err := s.makeKey(part); err != nil {
			return nil, err
		}
	}
	no.CustomClientAuthentication = s.door
	if s.ns, err = server.NewServer(no); err != nil {
		return nil, fmt.Errorf("configure nats server: %w", err)
	}
	s.door.server = s.ns
	for _, name := range []string{accountWork, accountFeed, accountLog} {
		if s.door.accounts[name], err = s.ns.LookupAccount(name); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
	}
	s.ns.SetLoggerV2(&logHook{door: s.door, log: s.log, fatal: s.failed}, false, false, false)
	if err := s.start(o); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// config turns the options into those of the server.
func (o *ServerOptions) config() (*server.Options, error) {
	switch {
	case !events.ValidID(o.Ledger):
		return nil, fmt.Errorf("%q is no ledger name", o.Ledger)
	case o.StoreDir == "":
		return nil, errors.New("no directory for JetStream")
	case o.Lookup == nil:
		return nil, errors.New("no registry to look keys up in")
	}
	if o.MaxStore == 0 {
		o.MaxStore = defaultMaxStore
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 4096
	}
	if o.ServerName == "" {
		o.ServerName = "ledgerd-" + o.Ledger
	}
	no := &server.Options{}
	if err := no.ProcessConfigString(accountsConfig(o.Ledger, o.MaxStore)); err != nil {
		return nil, fmt.Errorf("accounts: %w", err)
	}
	if err := o.listener(no); err != nil {
		return nil, err
	}
	no.ServerName = o.ServerName
	no.NoSigs = true // the server would call os.Exit
	no.AlwaysEnableNonce = true
	no.AuthTimeout = authTimeout
	no.JetStream = true
	no.StoreDir = o.StoreDir
	no.JetStreamMaxStore = o.MaxStore
	no.JetStreamMaxMemory = 64 << 20 // the stream is on disk; readers' positions are not
	no.MaxConn = o.MaxConnections
	no.MaxSubs = maxSubscriptions
	no.MaxSubTokens = maxSubjectTokens
	no.MaxControlLine = maxControlLine
	no.MaxPayload = events.PayloadBytesMax
	no.MaxPending = maxPending
	no.WriteDeadline = writeDeadline
	return no, nil
}

// listener sets where to listen and refuses to do so in the clear where others
// could read along.
func (o *ServerOptions) listener(no *server.Options) error {
	if o.Listen == "" {
		no.DontListen = true
		return nil
	}
	host, portText, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", o.Listen, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return fmt.Errorf("listen address %q: no port number", o.Listen)
	}
	if ip := net.ParseIP(host); o.TLS == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("listen address %q is not on the loopback interface: TLS is required (--tls-cert, --tls-key)", o.Listen)
	}
	no.Host, no.Port = host, int(port)
	if host == "" {
		no.Host = "0.0.0.0"
	}
	if port == 0 {
		no.Port = server.RANDOM_PORT
	}
	no.TLSConfig = o.TLS.Clone()
	return nil
}

// accountsConfig is the configuration of the accounts in the server's own
// language, because only accounts read from it can be given JetStream limits.
// LOG exports to FEED the events, and of the JetStream API what reading them
// takes. A pull answers with many messages; ten minutes is longer than any
// sensible pull stays open.
func accountsConfig(ledger string, maxStore int64) string {
	var imports, exports strings.Builder
	subject := "led." + ledger + ".>"
	fmt.Fprintf(&imports, "      {stream: {account: %s, subject: %q}}\n", accountLog, subject)
	fmt.Fprintf(&exports, "      {stream: %q, accounts: [%s]}\n", subject, accountFeed)
	theirs, ours := streamAPI(feedAPI, ledger), streamAPI("$JS.API", ledger)
	for i := range ours {
		fmt.Fprintf(&imports, "      {service: {account: %s, subject: %q}, to: %q}\n", accountLog, ours[i], theirs[i])
		fmt.Fprintf(&exports, "      {service: %q, response_type: stream, response_threshold: \"10m\", accounts: [%s]}\n", ours[i], accountFeed)
	}
	return fmt.Sprintf(`accounts {
  %s: {}
  %s: {
    imports: [
%s    ]
  }
  %s: {
    jetstream: {max_memory: 64MB, max_store: %d, max_streams: 1, max_consumers: %d}
    exports: [
%s    ]
  }
}
`, accountWork, accountFeed, imports.String(), accountLog, maxStore, maxConsumers, exports.String())
}

func (s *Server) makeKey(part Part) error {
	key, err := nkeys.CreateUser()
	if err != nil {
		return fmt.Errorf("key of the %s: %w", part, err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return fmt.Errorf("key of the %s: %w", part, err)
	}
	s.keys[part] = key
	s.door.own[public] = part
	return nil
}

// start waits until the server serves. Its start-up problems reach only the
// logger; the first is the error.
func (s *Server) start(o ServerOptions) error {
	s.ns.Start()
	ready := make(chan bool, 1)
	go func() { ready <- s.ns.ReadyForConnections(startTimeout) }()
	select {
	case err := <-s.failed:
		return err
	case ok := <-ready:
		select {
		case err := <-s.failed:
			return err
		default:
		}
		if !ok {
			return fmt.Errorf("nats server not ready after %s", startTimeout)
		}
	}
	if o.Listen == "" {
		return nil
	}
	stranger, err := nkeys.CreateUser()
	if err != nil {
		return fmt.Errorf("key of a stranger: %w", err)
	}
	public, err := stranger.PublicKey()
	if err != nil {
		return fmt.Errorf("key of a stranger: %w", err)
	}
	defer s.door.forgetProbes()
	if err := s.probe(o.TLS != nil, "no key"); err != nil {
		return err
	}
	return s.probe(o.TLS != nil, "an unknown key", nats.Nkey(public, stranger.Sign))
}

// probe knocks as a stranger would, over the listener, and fails unless the
// server says no. (A server whose configuration names no users lets everybody
// in; so would a mistake of ours.)
func (s *Server) probe(secure bool, with string, how ...nats.Option) error {
	addr, ok := s.ns.Addr().(*net.TCPAddr)
	if !ok {
		return errors.New("nats server has no listener")
	}
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	how = append(how, nats.NoReconnect(), nats.Timeout(startTimeout), nats.SetCustomDialer(probeDialer{s.door}))
	if secure {
		// To ourselves, and to be refused: the name in the certificate is no matter.
		how = append(how, nats.Secure(&tls.Config{InsecureSkipVerify: true}))
	}
	nc, err := nats.Connect("nats://"+net.JoinHostPort(host, strconv.Itoa(addr.Port)), how...)
	if err == nil {
		nc.Close()
		return fmt.Errorf("nats server let a connection with %s in", with)
	}
	if !errors.Is(err, nats.ErrAuthorization) {
		return fmt.Errorf("try a connection with %s: %w", with, err)
	}
	return nil
}

// probeDialer tells the door which connections are probes, so that they do not
// count as refusals.
type probeDialer struct{ door *door }

// Dial implements nats.CustomDialer.
func (p probeDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, startTimeout)
	if err != nil {
		return nil, err
	}
	p.door.mu.Lock()
	p.door.probes[c.LocalAddr().String()] = true
	p.door.mu.Unlock()
	return c, nil
}

// forgetProbes makes the probes' addresses those of others again.
func (d *door) forgetProbes() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.probes)
}

// URL is where clients connect; empty without a listener.
func (s *Server) URL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Failed receives the first fatal fault the server reports after its start.
func (s *Server) Failed() <-chan error { return s.failed }

// Connect opens ledgerd's own connection for part, within the process. It
// reconnects until closed, by the caller or by Shutdown; opts may change that.
func (s *Server) Connect(part Part, opts ...nats.Option) (*nats.Conn, error) {
	key := s.keys[part]
	if key == nil {
		return nil, fmt.Errorf("no connection called %q", part)
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("key of the %s: %w", part, err)
	}
	all := append([]nats.Option{
		nats.InProcessServer(s.ns),
		nats.Name("ledgerd " + string(part)),
		nats.Nkey(public, key.Sign),
		nats.CustomInboxPrefix(ownInbox),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
				s.lagging(sub)
			}
			s.log.Error("own connection", "part", string(part), "subscription", subject, "error", err)
		}),
	}, opts...)
	nc, err := nats.Connect("", all...)
	if err != nil {
		return nil, fmt.Errorf("connect the %s: %w", part, err)
	}
	s.mu.Lock()
	down := s.down
	s.conns = append(s.conns, ownConn{part, nc})
	s.mu.Unlock()
	if down {
		nc.Close()
		return nil, fmt.Errorf("connect the %s: %w", part, nats.ErrConnectionClosed)
	}
	return nc, nil
}

// Disconnect cuts every connection of id and returns how many. The registry
// must say so already: a connection being set up right now is judged anew.
func (s *Server) Disconnect(id string) int {
	return s.door.cut(func(c *conn) bool { return id != "" && c.id == id })
}

// DisconnectKey cuts every connection made with publicKey, as Disconnect does.
func (s *Server) DisconnectKey(publicKey string) int {
	return s.door.cut(func(c *conn) bool { return publicKey != "" && c.key == publicKey })
}

// Shutdown closes ledgerd's own connections, then the server, and returns when
// all of it has ended or ctx has.
func (s *Server) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.stop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("nats server still running: %w", ctx.Err())
	}
}

func (s *Server) stop() {
	s.mu.Lock()
	conns := s.conns
	s.conns, s.down = nil, true
	s.mu.Unlock()
	for _, c := range conns {
		c.nc.Close()
	}
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/natsapi"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/web"
	"github.com/ledgerd/ledgerd/internal/witness"
)

func (a *app) initCommand() *cobra.Command {
	var data string
	var o ledger.InitOptions
	cmd := &cobra.Command{
		Use:   "init --data DIR",
		Short: "Make a new ledger: keys, event 1 and the anchor",
		Long: `Make a new ledger in DIR, which must not exist or be empty. DIR/keys/admin.nk is
the first admin's key; keep a copy of DIR/keys/checkpoint.vkey where auditors
find it, for it tells this log from any other.`,
		Example: `  ledgerd init --data ./data
  ledgerd init --data /srv/lab --ledger lab --origin example.org/lab/1`,
		RunE: func(*cobra.Command, []string) error {
			if data == "" {
				return usagef("where? give --data DIR")
			}
			if !events.ValidID(a.ledger) {
				return checkID("--ledger", a.ledger)
			}
			if o.Origin != "" && !events.ValidOrigin(o.Origin) {
				return usagef("--origin %s: printable ASCII without space and plus, at most %d characters", o.Origin, events.OriginBytesMax)
			}
			if o.PolicySigners = policy.NewSet(o.PolicySigners...); !policy.ValidSigners(o.PolicySigners) {
				return usagef("--policy-signer: a public key of a NATS user, U…, at most %d", policy.SignersMax)
			}
			o.Ledger = a.ledger
			if err := ledger.Init(data, o); err != nil {
				return openFault(data, err)
			}
			vkey, err := os.ReadFile(filepath.Join(data, "keys", "checkpoint.vkey"))
			if err != nil {
				return fmt.Errorf("read the new key: %w", err)
			}
			made := struct {
				Data          string `json:"data"`
				Ledger        string `json:"ledger"`
				CheckpointKey string `json:"checkpoint_key"`
				AdminSeedFile string `json:"admin_creds"`
			}{data, o.Ledger, string(vkey[:max(len(vkey)-1, 0)]), filepath.Join(data, "keys", "admin.nk")}
			return a.showStruct(made, func() {
				fmt.Fprintf(a.stdout, "ledger %s in %s\ncheckpoint key %s\nadmin's key in %s\nnext: ledgerd serve --data %s\n",
					made.Ledger, made.Data, made.CheckpointKey, made.AdminSeedFile, made.Data)
			})
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "the directory to make")
	cmd.Flags().StringArrayVar(&o.PolicySigners, "policy-signer", nil, "a public key one of whose signatures every policy needs (\"ledgerd policy keygen\"); may be repeated")
	cmd.Flags().StringVar(&o.Origin, "origin", "", "the log's name for ever, like a host name with a path (default: ledgerd.local/<ledger>/<random>/1)")
	cmd.Flags().StringVar(&o.Anchor, "anchor", "", "file of the last signed checkpoint, best on another disk (default: DIR/anchor)")
	return cmd
}

// openFault gives the failures of making and opening a ledger their exit codes
// and says what to do about them.
func openFault(data string, err error) error {
	if fault := noDirectory(data, err); fault != nil {
		return fault
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s; nothing is wrong with the log for that, and nothing was written\nnext: run this as %s, whose the directory is", plain(err), ownerOf(data))
	case errors.Is(err, store.ErrNotEmpty):
		return &exitError{exitConflict, fmt.Errorf("%w; name a directory that is empty or does not exist", err)}
	case errors.Is(err, store.ErrLocked):
		return &exitError{exitConflict, fmt.Errorf("%w; one ledgerd serves a directory at a time", err)}
	case errors.Is(err, natsapi.ErrDisagrees):
		return &exitError{exitIntegrity, fmt.Errorf("%s; nothing was written: run verify --data %s\nnext: where verify passes it is the stream that is damaged or another's: move %s away and start again, it is filled from the log", plain(err), data, filepath.Join(data, "stream"))}
	case errors.Is(err, ledger.ErrKey):
		return &exitError{exitIntegrity, fmt.Errorf("%w; nothing was written\nnext: restore it from your copy of %s", err, filepath.Join(data, "keys"))}
	case errors.Is(err, store.ErrNoAnchor) && errors.Is(err, fs.ErrNotExist):
		return &exitError{exitIntegrity, fmt.Errorf("%w; nothing was written\nnext: copy it back from where else you keep it; or put an auditor's newest note of this log there, once verify --data %s --checkpoint NOTE passes", err, data)}
	case errors.Is(err, store.ErrNoAnchor), errors.Is(err, store.ErrBehindAnchor), errors.Is(err, store.ErrDiverged),
		errors.Is(err, store.ErrCorrupt), errors.Is(err, ledger.ErrPayload):
		return &exitError{exitIntegrity, fmt.Errorf("%s; nothing was written: run verify --data %s before anything else", plain(err), data)}
	case errors.Is(err, ledger.ErrRestored):
		return &exitError{exitIntegrity, fmt.Errorf("%w: what came after the backup may be known to others, so the log has to begin a new epoch\nnext: %s", err, nextEpoch(data))}
	case errors.Is(err, ledger.ErrContinued):
		return &exitError{exitIntegrity, fmt.Errorf("%w; serve that one. This one can be verified and exported", err)}
	case errors.Is(err, store.ErrStorageLow):
		return &exitError{exitUnavailable, fmt.Errorf("%w; free some space first", err)}
	case errors.Is(err, fs.ErrNotExist) && holdsFiles(data):
		return usagef("%w; restore it from your copy of %s", err, filepath.Join(data, "keys"))
	case errors.Is(err, fs.ErrNotExist):
		return usagef("%w; is %s a data directory? \"ledgerd init --data %s\" makes one", err, data, data)
	}
	return err
}

// noDirectory says what is wrong with a data directory that is a file, an export,
// or holds no log; nil where it is none of these.
func noDirectory(data string, err error) error {
	has := func(name string) bool { _, err := os.Lstat(filepath.Join(data, name)); return err == nil }
	info, fault := os.Stat(data)
	switch {
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
	case fault == nil && !info.IsDir():
		return usagef("%s is a file, no directory", data)
	case fault != nil || !holdsFiles(data) || has("db"):
	case has("tile") && has("checkpoint"):
		return usagef("%s is an export, for auditors (verify --export %s), and no data directory", data, data)
	default:
		return usagef("%s holds no log (no %s): it is no data directory, or not whole any more; \"ledgerd restore\" makes one of a backup", data, filepath.Join(data, "db"))
	}
	return nil
}

// plain is the text of an error without what the storage engine puts in for
// machines.
func plain(err error) string {
	return strings.ReplaceAll(err.Error(), "\n<corruption detail carrier>", "")
}

func holdsFiles(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) > 0
}

// nodeOptions are the flags of serve.
type nodeOptions struct {
	ledger                           string // must be its name; empty for any
	data, listen, readyFile, http    string
	tlsCert, tlsKey, anchor, minFree string
	anchorSync                       string
	logFormat, logLevel              string
	httpPlain                        bool
	witnessPolicy                    string
	witnessEvery                     time.Duration
	rate, burst, treeRate, treeBurst int
	maxWait                          time.Duration
}

func (a *app) serveCommand() *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "serve --data DIR",
		Short: "Serve a ledger over NATS",
		Long: `Serve a ledger over NATS until SIGTERM or SIGINT; then finish what was accepted,
sign a checkpoint and exit 0. Off the loopback interface TLS is required. With
--http, probes and metrics are served too, over TLS where there is a certificate;
they hold no names of agents and no values. The ledger's name is the one it was
made with; -o has no effect.`,
		Example: `  ledgerd serve --data ./data
  ledgerd serve --data ./data --http 127.0.0.1:9222 --log-format json
  ledgerd serve --data ./data --listen 0.0.0.0:4222 --tls-cert cert.pem --tls-key key.pem`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.data == "":
				return usagef("which ledger? give --data DIR")
			}
			if cmd.Flags().Changed("ledger") {
				o.ledger = a.ledger
			}
			if info, err := os.Stat(filepath.Dir(o.readyFile)); err != nil || !info.IsDir() {
				return usagef("--ready-file %s: there is no directory %s; make it first", o.readyFile, filepath.Dir(o.readyFile))
			}
			clearReadyFile(o.readyFile)
			return a.serve(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "", "the data directory")
	f.StringVar(&o.listen, "listen", "127.0.0.1:4222", "host:port for NATS clients; port 0 takes any free one")
	f.StringVar(&o.http, "http", "", "host:port for /livez, /readyz, /metrics and /version; port 0 takes any free one (default: off)")
	f.BoolVar(&o.httpPlain, "http-plain", false, "serve --http without TLS, off the loopback interface too")
	f.StringVar(&o.witnessPolicy, "witness-policy", "", "C2SP tlog-policy file: the witnesses that shall cosign this log's checkpoints")
	f.DurationVar(&o.witnessEvery, "witness-every", witness.Every, "how often a log that grows is submitted to them")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json, one line each on standard error")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.readyFile, "ready-file", "", "written, as JSON {nats_url,http_url,origin,pid}, when the ledger serves")
	f.StringVar(&o.tlsCert, "tls-cert", "", "certificate chain, PEM")
	f.StringVar(&o.tlsKey, "tls-key", "", "its private key, PEM")
	f.IntVar(&o.rate, "rate", 500, "events a second that an agent's requests may cause; 0 for no limit")
	f.IntVar(&o.burst, "burst", 1000, "events that an agent's requests may cause at once")
	f.IntVar(&o.treeRate, "tree-rate", 0, "the same of all agents of a tree together (ten times --rate)")
	f.IntVar(&o.treeBurst, "tree-burst", 0, "the same at once (ten times --burst)")
	f.DurationVar(&o.maxWait, "max-wait", 2*time.Second, "what waits longer to be judged is refused as overloaded")
	f.StringVar(&o.minFree, "min-free", "256MiB", "free space below which proposals are refused")
	f.StringVar(&o.anchor, "anchor", "", "file of the last signed checkpoint (default: DIR/anchor)")
	f.StringVar(&o.anchorSync, "anchor-sync", "lazy", "every: advance the anchor before each answer; lazy: within 100 ms of it")
	return cmd
}

// node is a ledger being served.
type node struct {
	ledger *ledger.Ledger
	front  *natsapi.Node
	web    *web.Server // nil without --http
	seen   *witnessing // nil without --witness-policy
	cancel context.CancelFunc
	ended  chan error // what Run returned
}

// startNode opens the ledger and serves it.
func startNode(o nodeOptions, log *slog.Logger) (*node, error) {
	minFree, err := parseBytes(o.minFree)
	if err != nil {
		return nil, usagef("--min-free: %w", err)
	}
	if o.anchorSync != "lazy" && o.anchorSync != "every" {
		return nil, usagef("--anchor-sync %s: it is lazy or every", o.anchorSync)
	}
	if o.rate < 0 || o.rate > 0 && o.burst < natsapi.DearestRequest {
		return nil, usagef("--rate is 0 for no limit or more, and --burst at least %d, which is what the dearest request costs", natsapi.DearestRequest)
	}
	if o.treeRate < 0 || o.treeBurst < 0 || o.treeBurst > 0 && o.treeBurst < o.burst {
		return nil, usagef("--tree-rate is 0 for ten times --rate or more, and --tree-burst at least --burst")
	}
	if o.maxWait <= 0 {
		return nil, usagef("--max-wait is more than 0")
	}
	tlsConfig, err := serverTLS(o.tlsCert, o.tlsKey)
	if err != nil {
		return nil, err
	}
	if err := checkListen(o.listen, tlsConfig != nil); err != nil {
		return nil, err
	}
	policy, err := readWitnessPolicy(o)
	if err != nil {
		return nil, err
	}
	side, err := listenHTTP(o, tlsConfig, log)
	if err != nil {
		return nil, err
	}
	n, err := openNode(o, minFree, tlsConfig, log)
	if err != nil {
		return nil, errors.Join(err, closeHTTP(side))
	}
	n.web = side
	if n.seen, err = n.startWitnessing(o, policy, log); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	n.show()
	return n, nil
}

// openNode opens the ledger and starts the front door.
func openNode(o nodeOptions, minFree uint64, tlsConfig *tls.Config, log *slog.Logger) (*node, error) {
	stream := filepath.Join(o.data, "stream")
	l, err := ledger.Open(ledger.Options{
		Dir: o.data, Anchor: o.anchor, AnchorSync: o.anchorSync == "every", MinFree: minFree, MaxWait: o.maxWait,
		Build: build(), Log: log, Look: func(s *store.Store) error { return errors.Join(checkLedger(s, o.ledger), natsapi.Look(stream, log)(s)) },
	})
	if err != nil {
		return nil, openFault(o.data, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{ledger: l, cancel: cancel, ended: make(chan error, 1)}
	n.front, err = natsapi.Start(l, natsapi.Config{
		StoreDir: stream, Listen: o.listen, TLS: tlsConfig, Rate: float64(o.rate), Burst: o.burst,
		TreeRate: float64(o.treeRate), TreeBurst: o.treeBurst, Version: semver(), Log: log,
	})
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("serve on %s: %w", o.listen, err), l.Run(ctx)) // Run closes the log
	}
	go func() { n.ended <- l.Run(ctx) }()
	return n, nil
}

// stop ends the service: nothing new is taken, what was accepted is answered,
// a checkpoint is signed.
func (n *node) stop() error {
	if n.web != nil {
		n.web.Withdraw("the ledger is being stopped")
	}
	n.seen.stop()
	n.front.Drain()
	n.cancel()
	return errors.Join(<-n.ended, n.close())
}

func (n *node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return errors.Join(n.front.Close(ctx), closeHTTP(n.web))
}

// checkLedger refuses a ledger of another name than want, unless that is empty.
func checkLedger(s *store.Store, want string) error {
	b, err := s.Event(1)
	if err != nil || want == "" {
		return err
	}
	e, err := events.Parse(b)
	if err != nil {
		return err
	}
	if created, ok := e.Body.(*events.LedgerCreated); !ok || created.Ledger != want {
		return usagef("--ledger %s: the ledger here has another name; leave --ledger out", want)
	}
	return nil
}

// clearReadyFile removes a ready file that a killed server left behind. That of
// a running one stays.
func clearReadyFile(path string) {
	var r readyContent
	b, err := os.ReadFile(path)
	if path == "" || err != nil || json.Unmarshal(b, &r) != nil || r.PID <= 0 {
		return
	}
	p, err := os.FindProcess(r.PID)
	if err != nil || p.Signal(syscall.Signal(0)) != nil {
		os.Remove(path)
	}
}

func serverTLS(cert, key string) (*tls.Config, error) {
	switch {
	case cert == "" && key == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, usagef("--tls-cert and --tls-key go together")
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, usagef("TLS certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// checkListen refuses an address that NATS could not be served on, before
// anything is opened.
func checkListen(listen string, secure bool) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usagef("--listen %s: it is host:port", listen)
	}
	if ip := net.ParseIP(host); !secure && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usagef("--listen %s: off the loopback interface TLS is required; give --tls-cert and --tls-key", listen)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return usagef("--listen: %w; give another host:port, port 0 for any free one", err)
	}
	return l.Close()
}

// parseBytes reads a number of bytes with an optional unit, KiB MiB GiB TiB.
func parseBytes(s string) (uint64, error) {
	number, shift := s, 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			number, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is no size; write bytes, or a whole number with KiB, MiB, GiB or TiB", s)
	}
	return n << shift, nil
}

func (a *app) serve(ctx context.Context, o nodeOptions) error {
	log, err := newLogger(a.stderr, o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	tuneRuntime()
	n, err := startNode(o, log)
	if err != nil {
		return err
	}
	if err := n.announce(o, log); err != nil {
		return errors.Join(err, n.stop())
	}
	select {
	case <-ctx.Done():
		log.Info("stopping")
		err = n.stop()
	case err = <-n.front.Failed():
		err = errors.Join(err, n.stop())
	case err = <-n.webFailed():
		err = errors.Join(err, n.stop())
	case err = <-n.ended:
		err = errors.Join(stoppedBy(err), n.close())
	}
	if o.readyFile != "" {
		os.Remove(o.readyFile)
	}
	return err
}

// stoppedBy gives the failure that ended a ledger its exit code: what is damaged
// will not be whole at the next start.
func stoppedBy(err error) error {
	if errors.Is(err, ledger.ErrPayload) || errors.Is(err, store.ErrCorrupt) {
		return &exitError{exitIntegrity, fmt.Errorf("the ledger stopped: %w; run verify --data before anything else", err)}
	}
	return fmt.Errorf("the ledger stopped: %w; start it again to see what is on disk", err)
}

// readyContent is what a ready file holds.
type readyContent struct {
	NATS   string `json:"nats_url"`
	HTTP   string `json:"http_url"`
	Origin string `json:"origin"`
	PID    int    `json:"pid"`
}

// usable is an address to connect to from this machine: a server on all
// interfaces is also on the loopback one.
func usable(url string) string {
	return strings.NewReplacer("://0.0.0.0:", "://127.0.0.1:", "://[::]:", "://[::1]:").Replace(url)
}

// announce says that the ledger serves, last of all in the ready file.
func (n *node) announce(o nodeOptions, log *slog.Logger) error {
	log.Info("serving", "url", n.front.URL(), "http", n.httpURL(), "origin", n.ledger.Origin())
	if o.readyFile == "" {
		return nil
	}
	b, err := json.Marshal(readyContent{usable(n.front.URL()), n.httpURL(), n.ledger.Origin(), os.Getpid()})
	if err == nil {
		err = writeOver(o.readyFile, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	return nil
}

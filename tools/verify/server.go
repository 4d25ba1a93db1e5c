package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/remote"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// server is a log read over HTTP, and as whom.
type server struct {
	url, creds, as, ca string
	timeout            time.Duration
}

const tokenLife = 15 * time.Minute

var serverSource = part{
	usage: `  --server URL       the HTTP address of a ledger (serve --http), or of a mirror of its C2SP tiles
      --token-creds FILE --as ID   the seed and id of an auditor, or of an observer without a root: entries take
                     a token, which is made for the origin of --vkey or --checkpoint
      --tls-ca FILE  the certificates to trust, PEM
      --timeout D    give up after this time (1h)

`,
	flags: func(a *arguments, f *flag.FlagSet) {
		f.StringVar(&a.server.url, "server", "", "")
		f.StringVar(&a.server.creds, "token-creds", "", "")
		f.StringVar(&a.server.as, "as", "", "")
		f.StringVar(&a.server.ca, "tls-ca", "", "")
		f.DurationVar(&a.server.timeout, "timeout", time.Hour, "")
	},
	source: "server",
	refuse: func(a *arguments, given map[string]bool) error {
		for _, name := range []string{"token-creds", "as", "tls-ca", "timeout"} {
			if given[name] && !given["server"] {
				return fmt.Errorf("--%s goes with --server", name)
			}
		}
		switch {
		case given["token-creds"] != given["as"]:
			return errors.New("--token-creds and --as go together")
		case given["as"] && !events.ValidID(a.server.as):
			return errors.New("--as is no id")
		case given["token-creds"] && !given["vkey"] && !given["checkpoint"]:
			return errors.New("--token-creds takes --vkey or --checkpoint: a token is made for the origin they name, not for what a server says it is")
		case a.server.timeout <= 0:
			return errors.New("--timeout is more than 0, like 10m")
		}
		return refuseEmpty(given, "server", map[string]string{"server": a.server.url})
	},
	open: (*arguments).openServer,
}

func (a *arguments) openServer() (*subject, error) {
	o := remote.Options{URL: a.server.url, Timeout: a.server.timeout}
	if a.server.ca != "" {
		pem, err := readSmall(a.server.ca)
		if err != nil {
			return nil, err
		}
		o.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", a.server.ca)
		}
	}
	if a.server.creds != "" {
		origin, err := a.origin()
		if err != nil {
			return nil, err
		}
		o.Token = func() (string, error) { return a.server.token(origin) }
		if _, err := o.Token(); err != nil {
			return nil, err
		}
	}
	log, err := remote.Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	return &subject{
		verify: log.Verify,
		log:    func() (*audit.Source, error) { return audit.OpenExport(log) },
		judged: func() (replay.Source, error) { return exported(audit.OpenExport(log)) },
		close:  log.Close,
	}, nil
}

// origin is that of the log to be verified, as the auditor knows it.
func (a *arguments) origin() (string, error) {
	var known audit.Options
	if err := errors.Join(pinning.options(a, &known), remembering.options(a, &known)); err != nil {
		return "", err
	}
	if known.VKey != "" {
		key, err := note.NewVerifier(known.VKey)
		if err != nil {
			return "", fmt.Errorf("verifier key: %w", err)
		}
		return key.Name(), nil
	}
	origin, _, _ := strings.Cut(string(known.Remembered), "\n")
	if !events.ValidOrigin(origin) {
		return "", fmt.Errorf("%s names no origin", a.checkpoint)
	}
	return origin, nil
}

// token makes a token with the seed in a file.
func (s *server) token(origin string) (string, error) {
	b, err := os.ReadFile(s.creds)
	if err != nil {
		return "", err
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(b))))
	if err != nil {
		return "", fmt.Errorf("%s holds no NATS user seed (SU… on one line)", s.creds)
	}
	defer key.Wipe()
	return wire.NewToken(key, origin, s.as, time.Now().Add(tokenLife))
}

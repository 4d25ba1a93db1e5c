package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (a *app) doctorCommand() *cobra.Command {
	d := &doctor{app: a}
	minFree := "256MiB"
	cmd := &cobra.Command{
		Use:   "doctor --data DIR",
		Short: "Look a ledger over, running or not, and say what is wrong and what to do",
		Long: `Look a ledger's data directory over, and with --server or --ready-file the server
too. Every line is ok, warn or FAIL, and says the next step. Nothing is changed,
and a ledger being served is not disturbed; to time the disk a few kilobytes are
written to a file that has no name. This does not replace verify, which reads the
whole log.

Exit codes: 0 no FAIL; 6 integrity, 7 unavailable or without room, 1 another FAIL;
2 there is nothing to look at.`,
		Example: `  ledgerd doctor --data ./data
  ledgerd doctor --data ./data --ready-file /run/ledgerd/ready.json -o json
  ledgerd doctor --data ./data --server nats://127.0.0.1:4222 --as admin --creds ./data/keys/admin.nk`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.data == "" {
				return usagef("which ledger? give --data DIR")
			}
			var err error
			if d.minFree, err = parseBytes(minFree); err != nil {
				return usagef("--min-free: %w", err)
			}
			if info, err := os.Stat(d.data); !errors.Is(err, os.ErrPermission) && (err != nil || !info.IsDir()) {
				return usagef("%s is no directory; \"ledgerd init --data %s\" makes one", clean(d.data), clean(d.data))
			}
			d.asked = cmd.Flags().Changed("server") || a.env("LEDGERD_SERVER") != ""
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			d.examine(ctx)
			return d.tell()
		},
	}
	cmd.Flags().StringVar(&d.data, "data", "", "the data directory")
	cmd.Flags().StringVar(&d.anchor, "anchor", "", "file of the last signed checkpoint (default: DIR/anchor)")
	cmd.Flags().StringVar(&d.readyFile, "ready-file", "", "of the server: its process and its probes are looked at")
	cmd.Flags().StringVar(&minFree, "min-free", minFree, "what serve is given as --min-free")
	return cmd
}

// What a look may find.
const (
	healthy = "ok"
	doubt   = "warn"
	ill     = "FAIL"
)

// finding is what one look found. Detail and next are one line each.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Next   string `json:"next,omitempty"`
	exit   int    // of a FAIL
}

// doctor looks one ledger over.
type doctor struct {
	*app
	data, anchor, readyFile string
	minFree                 uint64
	asked                   bool // for the server
	ready                   readyContent
	findings                []finding
	own                     *ledger.OwnKeys // nil where the log does not tell
}

func (d *doctor) ok(check, format string, args ...any) {
	d.findings = append(d.findings, finding{Check: check, Status: healthy, Detail: fmt.Sprintf(format, args...)})
}

func (d *doctor) warn(check, next, format string, args ...any) {
	d.findings = append(d.findings, finding{Check: check, Status: doubt, Detail: fmt.Sprintf(format, args...), Next: next})
}

func (d *doctor) fail(check string, exit int, next, format string, args ...any) {
	d.findings = append(d.findings, finding{Check: check, Status: ill, Detail: fmt.Sprintf(format, args...), Next: next, exit: exit})
}

func (d *doctor) examine(ctx context.Context) {
	d.readReady()
	if d.readable() {
		d.directory()
		d.marks()
		d.ownKeys()
		d.keyFiles()
		d.leftovers()
		d.holder()
		d.room()
		d.disk()
		d.wallClock()
		d.log()
		d.stream()
	}
	if d.asked || d.ready.NATS != "" {
		d.server(ctx)
	}
	if d.ready.HTTP != "" {
		d.probes(ctx)
	}
}

// tell prints what was found; the error carries the exit code.
func (d *doctor) tell() error {
	code, failed, doubts := 0, 0, 0
	rank := map[int]int{exitIntegrity: 3, exitUnavailable: 2, exitInternal: 1}
	for _, f := range d.findings {
		switch f.Status {
		case ill:
			failed++
			if rank[f.exit] > rank[code] {
				code = f.exit
			}
		case doubt:
			doubts++
		}
	}
	report := struct {
		Data     string    `json:"data"`
		Checks   []finding `json:"checks"`
		Failed   int       `json:"failed"`
		Warnings int       `json:"warnings"`
		Exit     int       `json:"exit_code"`
	}{d.data, d.findings, failed, doubts, code}
	err := d.showStruct(report, func() {
		w := tabwriter.NewWriter(d.stdout, 0, 8, 2, ' ', 0)
		for _, f := range d.findings {
			fmt.Fprintf(w, "%s\t%s\t%s\n", f.Status, f.Check, clean(f.Detail))
			if f.Next != "" {
				fmt.Fprintf(w, "\t\tnext: %s\n", clean(f.Next))
			}
		}
		w.Flush()
		fmt.Fprintf(d.stdout, "%d checks, %d FAIL, %d warn\n", len(d.findings), failed, doubts)
	})
	if err == nil && code != 0 {
		err = &exitError{code: code}
	}
	return err
}

// readReady reads the ready file, where there is one.
func (d *doctor) readReady() {
	if d.readyFile == "" {
		return
	}
	b, err := os.ReadFile(d.readyFile)
	if err == nil {
		err = json.Unmarshal(b, &d.ready)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		d.fail("ready-file", exitUnavailable, "is ledgerd running? See its log", "there is none: the ledger does not serve, or not yet")
	case err != nil:
		d.fail("ready-file", exitInternal, "name the file that serve was given", "%s", err)
	case !alive(d.ready.PID):
		d.fail("ready-file", exitUnavailable, "start ledgerd; it takes the old file away", "process %d that wrote it is gone", d.ready.PID)
		d.ready = readyContent{}
	default:
		d.ok("ready-file", "process %d serves %s at %s", d.ready.PID, d.ready.Origin, d.ready.NATS)
	}
}

// server asks the server over NATS: with a key as a client, else only whether
// something there speaks NATS and for which ledger.
func (d *doctor) server(ctx context.Context) {
	if !d.asked {
		d.app.server = d.ready.NATS
	}
	const next = "is \"ledgerd serve\" running there? See its log and the firewall"
	if d.as != "" && d.creds != "" {
		err := d.withClient(ctx, func(ctx context.Context, c *client.Client) error {
			start := time.Now()
			if _, err := c.Checkpoint(ctx); err != nil {
				return err
			}
			d.ok("server", "%s answers %s in %s", d.app.server, d.as, time.Since(start).Round(100*time.Microsecond))
			return nil
		})
		if err != nil {
			d.fail("server", exitCode(err), next, "%s: %s", d.app.server, err)
		}
		return
	}
	name, err := greeting(ctx, d.app.server)
	switch {
	case err != nil:
		d.fail("server", exitUnavailable, next, "%s: %s", d.app.server, err)
	case !strings.HasPrefix(name, "ledgerd-"):
		d.fail("server", exitUnavailable, "is it the right address?", "%s is a NATS server, but no ledger: it calls itself %q", d.app.server, name)
	default:
		d.ok("server", "%s is there and calls itself %s; give --as and --creds to ask it something", d.app.server, name)
	}
}

// greeting reads the first line of a NATS server, which comes before any key is
// asked for and before TLS, and returns its name.
func greeting(ctx context.Context, server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	var dial net.Dialer
	conn, err := dial.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(io.LimitReader(conn, 64<<10)).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("no greeting: %w", err)
	}
	var info struct {
		Name string `json:"server_name"`
	}
	text, ok := strings.CutPrefix(line, "INFO ")
	if !ok || json.Unmarshal([]byte(text), &info) != nil {
		return "", errors.New("what answers there does not speak NATS")
	}
	return info.Name, nil
}

// probes asks the server's own opinion.
func (d *doctor) probes(ctx context.Context) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.ready.HTTP+"/readyz", nil)
	if err != nil {
		d.fail("readyz", exitInternal, "see the ready file", "%s", err)
		return
	}
	// On this machine, by the address that its own ready file names: whose name
	// the certificate bears is no matter.
	own := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	r, err := own.Do(request)
	if err != nil {
		d.fail("readyz", exitUnavailable, "the process hangs or is overloaded: see its log", "%s", err)
		return
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	said := strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "; ")
	switch {
	case r.StatusCode != http.StatusOK:
		d.fail("readyz", exitUnavailable, "docs/OPERATIONS.md has a section for each of these", "%s", said)
	case said != "ready":
		d.warn("readyz", "docs/OPERATIONS.md has a section for each of these", "%s", said)
	default:
		d.ok("readyz", "the server calls itself ready")
	}
}

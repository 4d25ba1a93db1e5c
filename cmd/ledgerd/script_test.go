package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay/replaytest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "bench" { // a job that TestBenchQuick has for itself
		main()
	}
	testscript.Main(m, map[string]func(){"ledgerd": main})
}

// TestScript runs the real binary as testdata/script tells.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"ready":    ready,
			"signal":   signalTo,
			"digest":   digest,
			"cert":     certificate,
			"mode":     mode,
			"empty":    empty,
			"checklog": checklog,
			"chain":    chain,
			"receipt":  receipt,
			"fetch":    fetch,
			"tree":     tree,
			"nowhere":  nowhere,
			"signed":   signed,
			"somewhere": func(ts *testscript.TestScript, _ bool, args []string) {
				if len(holders(ts, args)) == 0 {
					ts.Fatalf("%s is not below %s", args[1], args[0])
				}
			},
		},
	})
}

// nowhere PATH TEXT fails where a file at or below a path has a text.
func nowhere(ts *testscript.TestScript, _ bool, args []string) {
	if in := holders(ts, args); len(in) > 0 {
		ts.Fatalf("%s is in %v", args[1], in)
	}
}

func holders(ts *testscript.TestScript, args []string) (in []string) {
	ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if strings.Contains(string(b), args[1]) {
			in = append(in, path)
		}
		return err
	}))
	return in
}

// exits CODE PROGRAM ARGS... runs a program that must exit with that code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// ready FILE waits for a server's ready file and points LEDGERD_SERVER to it,
// ADDRESS being its host:port.
func ready(ts *testscript.TestScript, _ bool, args []string) {
	r := readReady(ts, args[0])
	ts.Setenv("LEDGERD_SERVER", r.NATS)
	ts.Setenv("HTTP", r.HTTP)
	_, address, _ := strings.Cut(r.NATS, "://")
	ts.Setenv("ADDRESS", address)
	ts.Setenv("ORIGIN", r.Origin)
}

// signed DIR waits until the checkpoint of a ledger at work is of all its events:
// an export ends there, and it comes up to a tenth of a second behind an answer.
func signed(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		d, err := datadir.Open(ts.MkAbs(args[0]))
		ts.Check(err)
		s := d.Source()
		ts.Check(d.Close())
		switch {
		case audit.SizeOf(s.Checkpoint) >= s.Size:
			return
		case time.Now().After(end):
			ts.Fatalf("the checkpoint is of %d of %d events", audit.SizeOf(s.Checkpoint), s.Size)
		}
	}
}

// tree DIR FILE writes to FILE what DIR holds: path, mode and digest of every
// file in it.
func tree(ts *testscript.TestScript, _ bool, args []string) {
	var b strings.Builder
	ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&b, "%s %s %x\n", path, info.Mode(), sha256.Sum256(content))
		return nil
	}))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(b.String()), 0o600))
}

// fetch STATUS PATH FILE [TOKEN] asks the server's HTTP side, with the token in the
// file TOKEN, and keeps the answer's body in FILE.
func fetch(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 && len(args) != 4 {
		ts.Fatalf("usage: fetch STATUS PATH FILE [TOKEN]")
	}
	anyCertificate := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	request, err := http.NewRequest(http.MethodGet, ts.Getenv("HTTP")+args[1], nil)
	ts.Check(err)
	if len(args) == 4 {
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(ts.ReadFile(args[3])))
	}
	r, err := anyCertificate.Do(request)
	ts.Check(err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	ts.Check(err)
	if strconv.Itoa(r.StatusCode) != args[0] {
		ts.Fatalf("%s: %d, want %s: %s", args[1], r.StatusCode, args[0], body)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), body, 0o600))
}

type readyFile struct {
	NATS   string `json:"nats_url"`
	HTTP   string `json:"http_url"`
	Origin string `json:"origin"`
	PID    int    `json:"pid"`
}

func readReady(ts *testscript.TestScript, name string) readyFile {
	path := ts.MkAbs(name)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var r readyFile
		ts.Check(json.Unmarshal(b, &r)) // it is written whole or not at all
		if r.NATS == "" || r.Origin == "" || r.PID == 0 {
			ts.Fatalf("ready file %s", b)
		}
		return r
	}
	ts.Fatalf("%s did not appear", name)
	return readyFile{}
}

// signal TERM|KILL FILE signals the server whose ready file that is, and waits
// until it is gone.
func signalTo(ts *testscript.TestScript, _ bool, args []string) {
	signals := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	pid := readReady(ts, args[1]).PID
	ts.Check(syscall.Kill(pid, signals[args[0]]))
	if args[0] == "KILL" {
		ts.Check(os.Remove(ts.MkAbs(args[1])))
	}
}

// mode PERM FILE... checks permissions.
func mode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.ParseUint(args[0], 8, 32)
	ts.Check(err)
	for _, name := range args[1:] {
		info, err := os.Stat(ts.MkAbs(name))
		ts.Check(err)
		if got := info.Mode().Perm(); got != os.FileMode(want) {
			ts.Fatalf("%s has mode %o, want %o", name, got, want)
		}
	}
}

// cert CERT KEY makes a self-signed certificate for 127.0.0.1 and its key.
func certificate(ts *testscript.TestScript, _ bool, args []string) {
	cert, key, err := selfSigned()
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), cert, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), key, 0o600))
}

// selfSigned makes a certificate of 127.0.0.1 and its key, in PEM.
func selfSigned() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), err
}

// digest FILE sets DIGEST to the SHA-256 of the first document of a YAML file.
func digest(ts *testscript.TestScript, _ bool, args []string) {
	document, _, _ := strings.Cut(ts.ReadFile(args[0]), "---\n")
	ts.Setenv("DIGEST", fmt.Sprintf("%x", sha256.Sum256([]byte(document))))
}

// checklog DIR checks the log of a data directory: chain, tree, anchor, and
// every decision judged again.
func checklog(ts *testscript.TestScript, _ bool, args []string) {
	report, err := replaytest.Check(ledger.Options{Dir: ts.MkAbs(args[0])})
	ts.Check(err)
	if report.Events == 0 || report.Judged != report.Decisions {
		ts.Fatalf("%d events, %d of %d decisions judged", report.Events, report.Judged, report.Decisions)
	}
}

// chain FILE checks that the lines are events, each continuing the one before,
// from the first of a log.
func chain(ts *testscript.TestScript, _ bool, args []string) {
	var prev events.Hash
	lines := strings.Split(strings.TrimSuffix(ts.ReadFile(args[0]), "\n"), "\n")
	for i, line := range lines {
		e, err := events.Parse([]byte(line))
		ts.Check(err)
		if created, ok := e.Body.(*events.LedgerCreated); ok {
			prev = events.GenesisHash(created.Origin)
		}
		if e.Seq != uint64(i+1) || e.Prev != prev {
			ts.Fatalf("line %d: seq %d, prev %s, want %s", i+1, e.Seq, e.Prev, prev)
		}
		prev = events.LeafHash([]byte(line))
	}
}

// receipt A B checks that two replies are of one decision.
func receipt(ts *testscript.TestScript, _ bool, args []string) {
	var a, b client.Reply
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &a))
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &b))
	if a.Seq == 0 || a.Seq != b.Seq || a.Hash != b.Hash || a.EventID != b.EventID {
		ts.Fatalf("seq %d and %d, hash %s and %s", a.Seq, b.Seq, a.Hash, b.Hash)
	}
}

// empty DIR checks that a directory holds nothing.
func empty(ts *testscript.TestScript, _ bool, args []string) {
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	for _, e := range entries {
		ts.Fatalf("%s holds %s", args[0], e.Name())
	}
}

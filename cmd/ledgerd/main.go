// Command ledgerd runs a ledger and speaks to one: it makes and serves the data
// directory, applies policy, and proposes, asks and follows as any registered
// id. Start with "ledgerd demo".
//
// Exit codes: 0 done or allowed; 1 internal; 2 usage or bad input; 3 denied;
// 4 not found; 5 conflict; 6 integrity; 7 unavailable. A denial exits with the
// code of its reason (ledgerd errors).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ledgerd/ledgerd/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// The exit codes that no reason code gives.
const (
	exitInternal    = 1
	exitUsage       = 2
	exitDenied      = 3
	exitNotFound    = 4
	exitConflict    = 5
	exitIntegrity   = 6
	exitUnavailable = 7
)

// run is the whole program with everything it touches passed in, and returns
// the exit code.
func run(ctx context.Context, args []string, env func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{env: env, stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return a.report(root.ExecuteContext(ctx))
}

// exitError is an error that has its own exit code. Without err everything was
// said already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// report says what went wrong, once, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	code := exitCode(err)
	var known *exitError
	if errors.As(err, &known) && known.err == nil {
		return code
	}
	message := err.Error() + a.hint(err)
	if a.output == "json" || a.output == "jsonl" {
		fault := map[string]any{"exit_code": code, "message": message}
		var refused *client.Refusal
		if errors.As(err, &refused) {
			fault["reason_code"] = refused.Reason
		}
		b, _ := json.Marshal(map[string]any{"error": fault})
		fmt.Fprintf(a.stderr, "%s\n", b)
		return code
	}
	fmt.Fprintf(a.stderr, "ledgerd: %s\n", cleanLines(message))
	return code
}

// hint is the next step after an error of the connection.
func (a *app) hint(err error) string {
	switch {
	case errors.Is(err, client.ErrUnauthorized):
		return "\nnext: it is the key that was refused, no rule: does " + a.creds + " hold the key of " + a.as +
			", and is " + a.as + " registered and not revoked? An admin sees it with \"ledgerd agent list\" and \"ledgerd principal list\""
	case errors.Is(err, client.ErrPermissionViolation):
		return "\nnext: " + a.whyRefused(err.Error())
	case errors.Is(err, client.ErrOutcomeUnknown):
		return "\nnext: repeat the same command with --operation-id and the id above; it will not act twice"
	case errors.Is(err, client.ErrUnavailable) && tlsFault(err):
		if a.tlsCA == "" {
			return "\nnext: give --tls-ca FILE, the certificate (or its issuer's) that the server was started with"
		}
		return "\nnext: does " + a.tlsCA + " hold the certificate that the server at " + a.server + " was started with, for that host name, and does it speak TLS?"
	case errors.Is(err, client.ErrUnavailable):
		return "\nnext: is \"ledgerd serve\" running at " + a.server + "?"
	}
	return ""
}

// whyRefused is the likely reason why the server, which knows who may publish
// where, refused a request.
func (a *app) whyRefused(text string) string {
	rest := "does " + a.creds + " belong to " + a.as + ", and is the ledger named " + a.ledger + " (--ledger)?"
	switch {
	case strings.Contains(text, ".propose.") && strings.Contains(text, "agent.register"):
		return "only agents propose; as admin or registrar give --parent or --root. If " + a.as + " is an agent: " + rest
	case strings.Contains(text, ".propose."):
		return "only agents propose (memory get, put, delete; sop; agent register of a child). If " + a.as + " is an agent: " + rest
	case strings.Contains(text, ".control."):
		return "only admins control (and registrars register agents). If " + a.as + " is one: " + rest
	}
	return rest
}

// tlsFault reports whether a connection failed over TLS. The client library
// only quotes some of these errors.
func tlsFault(err error) bool {
	text := err.Error()
	return strings.Contains(text, "x509: ") || strings.Contains(text, "tls: ") || strings.Contains(text, "secure connection not available")
}

func exitCode(err error) int {
	var known *exitError
	var refused *client.Refusal
	switch {
	case errors.As(err, &known):
		return known.code
	case errors.As(err, &refused):
		info, _ := client.ReasonOf(refused.Reason)
		return info.Exit
	case errors.Is(err, client.ErrRequestTooLarge):
		return exitUsage
	case errors.Is(err, client.ErrPermissionViolation), errors.Is(err, client.ErrUnauthorized):
		return exitDenied
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrOutcomeUnknown):
		return exitUnavailable
	case errors.Is(err, client.ErrGap), errors.Is(err, client.ErrForked):
		return exitIntegrity
	}
	return exitInternal
}

// Package client is the Go SDK for ledgerd: agents propose, observers follow,
// admins control. The first call is Connect with an id and its NATS user seed.
//
// It promises: a denial is a Reply, never an error; an error means that no
// reply was had (ErrUnavailable, ErrOutcomeUnknown, ErrPermissionViolation) or
// that one made no sense (ErrBadReply). Every proposal and control request
// carries an operation id, and is retried under that id only, so that a retry
// never acts twice. Watch hands out events in order, none missing and none
// twice, or stops with ErrGap or ErrForked.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// Public names of internal types.
type (
	Reason     = reason.Code
	ReasonInfo = reason.Info
	Hash       = events.Hash
)

// ReasonOf returns what is known of a reason code: its text, its exit code,
// whether a retry makes sense. ok is false for an unknown code.
func ReasonOf(code Reason) (info ReasonInfo, ok bool) { return reason.Of(code) }

// Errors a caller may branch on.
var (
	// ErrUnavailable: no ledger took the request; nothing was done.
	ErrUnavailable = errors.New("the ledger cannot be reached")
	// ErrOutcomeUnknown: the request may have been judged. Send it again with
	// the same operation id to learn the outcome.
	ErrOutcomeUnknown = errors.New("the outcome is not known")
	// ErrPermissionViolation: the server refused the publish or subscribe, so
	// the ledger never saw the request.
	ErrPermissionViolation = errors.New("the server does not let this id do that")
	// ErrUnauthorized: the server does not take this id and key (any more).
	ErrUnauthorized = errors.New("the server does not accept this id's key: not registered, revoked, or another key")
	// ErrRequestTooLarge: the request is larger than anything the server takes.
	ErrRequestTooLarge = errors.New("the request is too large to be sent")
	// ErrBadReply: an answer came that is not the answer to this request.
	ErrBadReply = errors.New("the reply does not fit the request")
)

// Options say whom to connect as, and to what.
type Options struct {
	Server   string      // nats://host:port or tls://host:port
	Ledger   string      // default "main"
	ID       string      // agent or principal id
	Seed     string      // its NATS user seed, SU…
	SeedFile string      // or a file holding the seed on one line
	TLS      *tls.Config // nil: as the URL's scheme says, system roots

	Timeout time.Duration // for one attempt; default 2 s
	Retries int           // attempts after the first; default 8, negative for none
	OnError func(error)   // connection errors that no call returns; nil drops them
}

// Client is one connection under one identity. It is safe for concurrent use.
type Client struct {
	nc      *nats.Conn
	key     nkeys.KeyPair
	ledger  string
	id      string
	timeout time.Duration
	retries int
	onError func(error)

	mu      sync.Mutex
	waiting map[*waiter]struct{} // who must hear of a refused subject
}

// waiter is a call in progress that the server may refuse asynchronously.
type waiter struct {
	prefix string // of the subjects it publishes to
	fail   context.CancelCauseFunc
}

// Connect opens a connection and proves possession of the key. It fails at
// once where the server cannot be reached or does not accept the key; a
// connection lost later is taken up again by itself.
func Connect(ctx context.Context, o Options) (*Client, error) {
	key, err := loadSeed(o)
	if err != nil {
		return nil, err
	}
	c := &Client{key: key, ledger: o.Ledger, id: o.ID, timeout: o.Timeout, retries: o.Retries, onError: o.OnError,
		waiting: make(map[*waiter]struct{})}
	if c.ledger == "" {
		c.ledger = "main"
	}
	if c.timeout <= 0 {
		c.timeout = 2 * time.Second
	}
	if c.retries == 0 {
		c.retries = 8
	}
	if !events.ValidID(c.id) || !events.ValidID(c.ledger) {
		key.Wipe()
		return nil, fmt.Errorf("connect: %q on ledger %q: not a valid id", c.id, c.ledger)
	}
	if err := c.dial(ctx, o); err != nil {
		key.Wipe()
		return nil, err
	}
	return c, nil
}

func loadSeed(o Options) (nkeys.KeyPair, error) {
	seed := o.Seed
	if o.SeedFile != "" {
		b, err := os.ReadFile(o.SeedFile)
		if err != nil {
			return nil, fmt.Errorf("read the seed: %w", err)
		}
		seed = string(b)
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(seed)))
	if err != nil {
		return nil, fmt.Errorf("the seed of %s is no NATS user seed (SU…): %w", o.ID, err)
	}
	pub, err := key.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(pub) {
		return nil, fmt.Errorf("the seed of %s is not a user's (SU…)", o.ID)
	}
	return key, nil
}

func (c *Client) dial(ctx context.Context, o Options) error {
	pub, err := c.key.PublicKey()
	if err != nil {
		return fmt.Errorf("public key: %w", err)
	}
	options := []nats.Option{
		nats.Name("ledgerd-client " + c.id),
		nats.Nkey(pub, c.key.Sign),
		nats.CustomInboxPrefix(wire.InboxPrefix(c.id)),
		nats.NoEcho(),
		nats.Timeout(dialTimeout(ctx)),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(200 * time.Millisecond),
		nats.ReconnectJitter(200*time.Millisecond, 500*time.Millisecond),
		nats.ReconnectBufSize(-1), // a request never waits in a buffer to be sent unseen later
		nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.asyncError(err) }),
	}
	if o.TLS != nil {
		options = append(options, nats.Secure(o.TLS))
	}
	c.nc, err = nats.Connect(o.Server, options...)
	if err != nil {
		return fmt.Errorf("connect to %s as %s: %w", o.Server, c.id, connectCause(err))
	}
	return nil
}

func dialTimeout(ctx context.Context) time.Duration {
	const most = 5 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		return max(min(time.Until(deadline), most), time.Millisecond)
	}
	return most
}

func connectCause(err error) error {
	if isAuth(err) {
		return fmt.Errorf("%w (%w)", ErrUnauthorized, err)
	}
	return fmt.Errorf("%w (%w)", ErrUnavailable, err)
}

func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked)
}

// Close ends the connection and forgets the key.
func (c *Client) Close() {
	c.nc.Close()
	c.key.Wipe()
}

// ID is the identity of the connection.
func (c *Client) ID() string { return c.id }

// Conn is the NATS connection, for what this package has no call for.
func (c *Client) Conn() *nats.Conn { return c.nc }

// asyncError hands a refused subject to the calls that used it: the server
// answers a forbidden publish or subscribe with an error on the connection,
// and the call would otherwise wait for its timeout.
func (c *Client) asyncError(err error) {
	heard := false
	if errors.Is(err, nats.ErrPermissionViolation) {
		text := err.Error()
		refused := fmt.Errorf("%w: %s", ErrPermissionViolation, strings.TrimPrefix(text, "nats: "))
		own := strings.Contains(text, `Subscription to "`+wire.InboxPrefix(c.id)+".")
		c.mu.Lock()
		for w := range c.waiting {
			if own || strings.Contains(text, `"`+w.prefix) {
				w.fail(refused)
				heard = true
			}
		}
		c.mu.Unlock()
	}
	if !heard && c.onError != nil {
		c.onError(err)
	}
}

// guard returns a context that ends with ErrPermissionViolation as its cause
// when the server refuses a subject that begins with prefix.
func (c *Client) guard(ctx context.Context, prefix string) (context.Context, func()) {
	ctx, fail := context.WithCancelCause(ctx)
	w := &waiter{prefix, fail}
	c.mu.Lock()
	c.waiting[w] = struct{}{}
	c.mu.Unlock()
	return ctx, func() {
		c.mu.Lock()
		delete(c.waiting, w)
		c.mu.Unlock()
		fail(nil)
	}
}

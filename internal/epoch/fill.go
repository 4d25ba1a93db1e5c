package epoch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	windowMax = 64 // requests under way
	patience  = time.Minute
)

// fill makes the new ledger in tmp and states the old one's state in it.
func (o *Options) fill(tmp string, init ledger.InitOptions, requests []request, r *Report) error {
	if err := ledger.Init(tmp, init); err != nil {
		return err
	}
	if err := o.adminKey(tmp, init, r); err != nil {
		return err
	}
	l, err := ledger.Open(ledger.Options{Dir: tmp, Build: o.Build, MaxWait: patience})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	err = state(l, init.Admin, requests, r)
	stop()
	return errors.Join(err, <-ended)
}

// adminKey brings the admin's key along where it lies with the old keys.
func (o *Options) adminKey(tmp string, init ledger.InitOptions, r *Report) error {
	path := filepath.Join(tmp, "keys", "admin.nk")
	if init.AdminKey == "" {
		r.AdminKey = true
		return nil
	}
	b, err := os.ReadFile(filepath.Join(o.From, "keys", "admin.nk"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(b))))
	if err != nil {
		return nil // not a key of ours to bring
	}
	if public, err := pair.PublicKey(); err != nil || public != init.AdminKey {
		return nil
	}
	r.AdminKey = true
	return os.WriteFile(path, b, 0o600)
}

// state sends the requests as the admin, each judged as it would be from outside.
func state(l *ledger.Ledger, admin string, requests []request, r *Report) error {
	type outcome struct {
		of     request
		answer ledger.Answer
	}
	window := make(chan chan outcome, windowMax)
	failed := make(chan error, 1)
	go func() {
		var first error
		for one := range window {
			out := <-one
			if err := out.of.done(out.answer, r); err != nil && first == nil {
				first = err
			}
		}
		failed <- first
	}()
	for _, q := range requests {
		one := make(chan outcome, 1)
		window <- one
		p, err := proposal(admin, q)
		if err != nil {
			one <- outcome{q, ledger.Answer{Reply: []byte(err.Error())}}
			continue
		}
		if code := l.Submit(p, func(a ledger.Answer) { one <- outcome{q, a} }); code != "" {
			one <- outcome{q, ledger.Answer{Reason: code, Refused: true}}
		}
	}
	close(window)
	return <-failed
}

func proposal(admin string, q request) (*ledger.Proposal, error) {
	b, err := json.Marshal(q.body)
	if err != nil {
		return nil, err
	}
	decoded, code, fault := wire.Read(wire.Control, q.operation, b)
	if code != "" {
		return nil, fmt.Errorf("%s %s", code, fault)
	}
	return &ledger.Proposal{Lane: wire.Control, Subject: admin, Operation: q.operation, Request: decoded}, nil
}

// done counts what was stated, and fails for what had to be and was not.
func (q *request) done(a ledger.Answer, r *Report) error {
	switch {
	case a.Reason.Allowed() && !a.Refused:
		if q.count != nil {
			*q.count++
		}
		return nil
	case q.may:
		r.left("%s: %s", q.about, a.Reason)
		return nil
	}
	return fmt.Errorf("%s cannot be carried over: %s %s", q.about, a.Reason, a.Reply)
}

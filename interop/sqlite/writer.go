package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver
	"github.com/nats-io/nats.go"

	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	batchMax   = 256 // as ledgerd's
	waitingMax = 1 << 16
	eventBytes = 540 // what ledgerd's are on average
)

// writer takes what waits, and answers it once it is committed.
type writer struct {
	nc      *nats.Conn
	db      *sql.Conn
	insert  *sql.Stmt
	waiting chan *nats.Msg
	ended   chan error
	prev    [sha256.Size]byte
	seq     int64
	event   []byte
}

func serve(nc *nats.Conn, dir string) (stop func() error, err error) {
	path := filepath.Join(dir, "peer.sqlite")
	pool, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_synchronous=FULL")
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	w := &writer{nc: nc, waiting: make(chan *nats.Msg, waitingMax), ended: make(chan error, 1)}
	if w.db, err = pool.Conn(ctx); err == nil {
		_, err = w.db.ExecContext(ctx, `CREATE TABLE log (seq INTEGER PRIMARY KEY, event BLOB NOT NULL, hash BLOB NOT NULL, payload BLOB)`)
	}
	if err == nil {
		w.insert, err = w.db.PrepareContext(ctx, `INSERT INTO log VALUES (?, ?, ?, ?)`)
	}
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	sub, err := nc.Subscribe("gov.main.propose.>", func(m *nats.Msg) { w.waiting <- m })
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	go func() { w.ended <- w.run(ctx) }()
	return func() error {
		err := sub.Unsubscribe()
		close(w.waiting)
		return errors.Join(err, <-w.ended, w.check(ctx), w.db.Close(), pool.Close())
	}, nil
}

func (w *writer) run(ctx context.Context) error {
	answer := make([]byte, 300)
	for first := range w.waiting {
		batch := []*nats.Msg{first}
		for len(batch) < batchMax && len(w.waiting) > 0 {
			batch = append(batch, <-w.waiting)
		}
		if err := w.commit(ctx, batch); err != nil {
			return err
		}
		for _, m := range batch {
			if err := w.nc.Publish(m.Reply, answer); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *writer) commit(ctx context.Context, batch []*nats.Msg) error {
	if _, err := w.db.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	for _, m := range batch {
		subject, ok := wire.ParseSubject(m.Subject)
		if !ok {
			return fmt.Errorf("subject %q", m.Subject)
		}
		request, code := wire.Decode(subject.Lane, subject.Name, m.Data)
		if code != "" {
			return fmt.Errorf("%s: %s", m.Data, code)
		}
		for i := range eventsOf(subject.Name) {
			var payload any
			if i == 0 {
				payload = request.Canonical
			}
			if err := w.add(ctx, subject, payload); err != nil {
				return err
			}
		}
	}
	_, err := w.db.ExecContext(ctx, "COMMIT")
	return err
}

// eventsOf is how many events ledgerd leaves of an allowed request: the decision,
// one for each of ten steps, one for a write.
func eventsOf(operation string) int {
	switch operation {
	case "sop.validate":
		return 11
	case "memory.write":
		return 2
	}
	return 1
}

var filler = strings.Repeat("x", eventBytes)

func (w *writer) add(ctx context.Context, s wire.Subject, payload any) error {
	w.seq++
	b := append(w.event[:0], `{"seq":`...)
	b = strconv.AppendInt(b, w.seq, 10)
	b = append(hex.AppendEncode(append(b, `,"prev":"`...), w.prev[:]), `","time":"`...)
	b = time.Now().UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(append(append(b, `","agent":"`...), s.ID...), `","operation":"`...)
	b = append(append(append(b, s.Name...), `","more":"`...), filler...)
	b = append(b[:eventBytes-2], `"}`...)
	w.event, w.prev = b, sha256.Sum256(b)
	_, err := w.insert.ExecContext(ctx, w.seq, b, w.prev[:], payload)
	return err
}

// check counts what is in the table: a peer that wrote nothing would be fast.
func (w *writer) check(ctx context.Context) error {
	var rows, bytes int64
	err := w.db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(length(event)), 0) FROM log`).Scan(&rows, &bytes)
	if err == nil && (rows != w.seq || rows == 0 || bytes != rows*eventBytes) {
		err = fmt.Errorf("%d rows of %d bytes, %d were written", rows, bytes, w.seq)
	}
	return err
}

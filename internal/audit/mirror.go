package audit

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Lines reads lines that say they are of a log: its events as they are, or rows of
// either form.
type Lines struct {
	rows  Rows
	write rowWriter
}

// LinesOf reads lines of the log that begins with the event first.
func LinesOf(first []byte) *Lines {
	l := &Lines{rows: Rows{source: sourceOf(first)}}
	if e, err := events.Parse(first); err == nil {
		if b, ok := e.Body.(*events.LedgerCreated); ok {
			l.rows.origin = b.Origin
		}
	}
	return l
}

// Line is what one line holds: an event, or the checkpoint that ends them. Wrong is
// what it says of that which is not so.
type Line struct {
	Event      []byte
	Seq        uint64 // as the event says; 0 where there is none
	Checkpoint []byte
	Wrong      string
}

// Read reads one line. What is neither is an event of which nothing is known.
func (l *Lines) Read(b []byte) Line {
	if e, err := events.Parse(b); err == nil {
		return Line{Event: b, Seq: e.Seq}
	}
	l.rows.format = formatOf(b)
	if _, signed, err := readRow(b); err == nil && signed != nil {
		l.rows.checkpoint = signed
		out := Line{Checkpoint: signed}
		if c, err := readCheckpoint(signed); err != nil {
			out.Wrong = err.Error()
		} else if c.Origin != l.rows.origin {
			out.Wrong = "a checkpoint of " + quote(c.Origin)
		} else if !bytes.Equal(l.rows.checkpointRow(), b) {
			out.Wrong = "a checkpoint that is not written as it is exported"
		}
		return out
	}
	event, _, wrong, err := l.rows.event(0, b, &l.write)
	e, bad := events.Parse(event)
	if err != nil || bad != nil {
		return Line{Event: b}
	}
	return Line{Event: event, Seq: e.Seq, Wrong: wrong}
}

// Covers reports whether a checkpoint is that of the first size events with this
// root, whoever signed it.
func Covers(signed []byte, size uint64, root string) error {
	c, err := readCheckpoint(signed)
	switch {
	case err != nil:
		return err
	case c.Size != size:
		return fmt.Errorf("a checkpoint of %d events behind event %d", c.Size, size)
	case root != "" && c.Root.String() != root:
		return errors.New("a checkpoint with root " + c.Root.String())
	}
	return nil
}

package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
)

// RowFormat is a form in which a log is written one line an event.
type RowFormat string

// The forms of docs/FORMAT.md.
const (
	JSONLines   RowFormat = "jsonl"
	CloudEvents RowFormat = "cloudevents"
)

// checkpointType is the type of the CloudEvent that holds the checkpoint.
const checkpointType = "io.ledgerd.checkpoint.v1"

// row is a line of JSONLines: an event, or last of all the checkpoint.
type row struct {
	Seq        uint64 `json:"seq,omitempty"`
	Prev       string `json:"prev,omitempty"`
	Hash       string `json:"hash,omitempty"`
	Event      string `json:"event,omitempty"` // its exact bytes
	Checkpoint string `json:"checkpoint,omitempty"`
}

// cloudEvent is a line of CloudEvents: the structured mode of version 1.0.
type cloudEvent struct {
	Version string `json:"specversion"`
	ID      string `json:"id"`
	Source  string `json:"source"`
	Type    string `json:"type"`
	Time    string `json:"time,omitempty"`
	Kind    string `json:"datacontenttype"`
	Seq     string `json:"ledgerseq,omitempty"` // a string: CloudEvents' integers have 32 bits
	Prev    string `json:"ledgerprev,omitempty"`
	Hash    string `json:"ledgerhash,omitempty"`
	Base64  []byte `json:"data_base64,omitempty"`
	Data    string `json:"data,omitempty"` // of the checkpoint
}

// WriteRows writes the log that s.Checkpoint covers, an event a line, and the
// checkpoint as the last line. A log with a fault is not written to its end.
func WriteRows(w io.Writer, s *Source, format RowFormat) error {
	head, err := readCheckpoint(s.Checkpoint)
	if err == nil && (head.Size == 0 || head.Size > s.Size) {
		err = fmt.Errorf("the checkpoint covers %d events, the log has %d", head.Size, s.Size)
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	v, err := NewVerifier(s.Checkpoint, Options{FaultsMax: 1})
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	out := bufio.NewWriterSize(w, 1<<16)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	source := ""
	err = s.Events(1, head.Size, func(seq uint64, event []byte) error {
		v.Event(event)
		if len(v.faults) > 0 {
			return errors.New(v.faults[0].String())
		}
		if seq == 1 {
			source = sourceOf(event)
		}
		return writeRow(lines, format, head.Origin, source, seq, event)
	})
	if err == nil {
		if r := v.Finish(); r.Integrity.Status == Fail {
			err = errors.New(r.Faults[0].String())
		}
	}
	if err == nil {
		err = writeCheckpoint(lines, format, head, source, s.Checkpoint)
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// sourceOf is the CloudEvents source of a log: its ledger.
func sourceOf(first []byte) string {
	if e, err := events.Parse(first); err == nil {
		if b, ok := e.Body.(*events.LedgerCreated); ok {
			return "/ledgers/" + b.Ledger
		}
	}
	return "/ledgers/"
}

func writeRow(w *json.Encoder, format RowFormat, origin, source string, seq uint64, event []byte) error {
	e, err := events.Parse(event)
	if err != nil {
		return err
	}
	prev, hash := e.Prev.String(), events.LeafHash(event).String()
	if format == JSONLines {
		return w.Encode(row{Seq: seq, Prev: prev, Hash: hash, Event: string(event)})
	}
	n := strconv.FormatUint(seq, 10)
	return w.Encode(cloudEvent{
		Version: "1.0", ID: origin + "/" + n, Source: source, Type: "io.ledgerd." + string(e.Body.Type()) + ".v1", Time: e.Time.String(),
		Kind: "application/json", Seq: n, Prev: prev, Hash: hash, Base64: event,
	})
}

func writeCheckpoint(w *json.Encoder, format RowFormat, head Checkpoint, source string, signed []byte) error {
	if format == JSONLines {
		return w.Encode(row{Checkpoint: string(signed)})
	}
	return w.Encode(cloudEvent{Version: "1.0", ID: head.Origin + "/checkpoint/" + strconv.FormatUint(head.Size, 10), Source: source, Type: checkpointType, Kind: "text/plain", Data: string(signed)})
}

// rowBytesMax bounds a line: an event of which every byte is escaped as six.
const rowBytesMax = 6*events.EventBytesMax + 4<<10

// ReadRows reads such lines, of either form, and calls fn with each event's
// exact bytes. Every row must hold what its own event says, in the order of the
// log. It returns the checkpoint, nil where the lines end before it; nothing is
// verified beyond the rows.
func ReadRows(r io.Reader, fn func(seq uint64, event []byte) error) (checkpoint []byte, err error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 1<<16), rowBytesMax)
	n := uint64(0)
	for in.Scan() {
		if n++; checkpoint != nil {
			return nil, fmt.Errorf("row %d: a row after the checkpoint", n)
		}
		line, signed, err := readRow(in.Bytes())
		if err == nil && signed != nil {
			checkpoint = signed
			continue
		}
		if err == nil {
			err = line.holds(n)
		}
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", n, err)
		}
		if err := fn(n, []byte(line.Event)); err != nil {
			return nil, err
		}
	}
	return checkpoint, in.Err()
}

// RowBytesMax bounds a line of either form.
const RowBytesMax = rowBytesMax

func readRow(b []byte) (line row, checkpoint []byte, err error) {
	if !bytes.Contains(b[:min(len(b), 20)], []byte(`"specversion"`)) {
		err = strictly(b, &line)
		if err == nil && line.Checkpoint != "" {
			checkpoint = []byte(line.Checkpoint)
		}
		return line, checkpoint, err
	}
	var e cloudEvent
	if err := strictly(b, &e); err != nil {
		return line, nil, err
	}
	if e.Type == checkpointType {
		return line, []byte(e.Data), nil
	}
	line = row{Prev: e.Prev, Hash: e.Hash, Event: string(e.Base64)}
	line.Seq, err = parseNumber(e.Seq)
	return line, nil, err
}

func strictly(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

// holds reports what a row says of its event that is not so.
func (l row) holds(n uint64) error {
	e, err := events.Parse([]byte(l.Event))
	switch {
	case err != nil:
		return err
	case l.Seq != n || e.Seq != n:
		return fmt.Errorf("seq %d, of an event with seq %d", l.Seq, e.Seq)
	case l.Prev != e.Prev.String():
		return fmt.Errorf("prev %s, of an event with prev %s", quote(l.Prev), e.Prev)
	case l.Hash != events.LeafHash([]byte(l.Event)).String():
		return fmt.Errorf("hash %s, of an event with hash %s", quote(l.Hash), events.LeafHash([]byte(l.Event)))
	}
	return nil
}

package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Rows is a file as WriteRows writes it, to be read at any place. It has the log's
// events and, in its last line, the checkpoint; no tiles and no payloads.
type Rows struct {
	in         io.ReaderAt
	format     RowFormat
	size       uint64 // lines with events
	stretches  []rowStretch
	checkpoint []byte
	faults     []Fault // of lines that need not be read to be seen
	origin     string  // as event 1 says
	source     string  // of its CloudEvents
}

// rowStretch is where some lines begin.
type rowStretch struct {
	at    int64
	first uint64 // line, counted from 1
}

// Of a stretch, so that it is little and yet not many are to be kept.
const (
	rowStretchLines = 256
	rowStretchBytes = 1 << 20
)

// OpenRows finds the lines of a file of size bytes. An error says that it is no such
// file; what is wrong with its lines is for VerifyRows to tell.
func OpenRows(in io.ReaderAt, size int64) (*Rows, error) {
	x := &Rows{in: in}
	last, err := x.index(size)
	if err != nil {
		return nil, err
	}
	head, err := x.line(1)
	switch {
	case err != nil:
		return nil, err
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return nil, errors.New("it is compressed: unpack it first")
	case !bytes.HasPrefix(head, []byte(`{"`)):
		return nil, errors.New("its first line is none of ledgerd export --format jsonl or cloudevents")
	}
	x.format = formatOf(head)
	if row, signed, err := readRow(head); err == nil && signed == nil {
		x.source = sourceOf([]byte(row.Event))
		if e, err := events.Parse([]byte(row.Event)); err == nil {
			if b, ok := e.Body.(*events.LedgerCreated); ok {
				x.origin = b.Origin
			}
		}
	}
	if _, signed, err := readRow(last); err == nil && signed != nil {
		x.checkpoint = bytes.Clone(signed)
		if x.size--; !bytes.Equal(x.checkpointRow(), last) {
			x.fault(x.size+1, "the checkpoint in a line as it is exported", "one written otherwise")
		}
	}
	return x, nil
}

func formatOf(line []byte) RowFormat {
	if bytes.Contains(line[:min(len(line), 20)], []byte(`"specversion"`)) {
		return CloudEvents
	}
	return JSONLines
}

func (x *Rows) fault(line uint64, expected, found string) {
	x.faults = append(x.faults, Fault{Check: "rows", Seq: line, Where: fmt.Sprintf("line %d", line), Expected: expected, Found: found})
}

// index goes over the file once. A line that is too long ends it.
func (x *Rows) index(size int64) (last []byte, err error) {
	if size == 0 {
		return nil, errors.New("it is empty")
	}
	in := bufio.NewReaderSize(io.NewSectionReader(x.in, 0, size), RowBytesMax+1)
	for at := int64(0); at < size; {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			x.fault(x.size+1, fmt.Sprintf("a line of at most %d bytes", RowBytesMax), "a longer one, behind which nothing was read")
			return last, nil
		case err == io.EOF && len(line) > 0:
			x.fault(x.size+1, "a line with an end", "one that is cut off")
		case err != nil:
			return nil, err
		}
		if n := len(x.stretches); n == 0 || x.size+1-x.stretches[n-1].first == rowStretchLines || at-x.stretches[n-1].at >= rowStretchBytes {
			x.stretches = append(x.stretches, rowStretch{at, x.size + 1})
		}
		x.size++
		at += int64(len(line))
		if at == size {
			last = bytes.TrimSuffix(line, []byte("\n"))
		}
	}
	return last, nil
}

// line returns one line.
func (x *Rows) line(n uint64) (line []byte, err error) {
	err = x.lines(x.stretchOf(n), func(at uint64, b []byte) error {
		if at == n {
			line = bytes.Clone(b)
			return io.EOF
		}
		return nil
	})
	if err == io.EOF {
		err = nil
	}
	return line, err
}

// stretchOf is the stretch that a line is in.
func (x *Rows) stretchOf(n uint64) int {
	return sort.Search(len(x.stretches), func(i int) bool { return x.stretches[i].first > n }) - 1
}

// lines calls fn with each line of a stretch that has an event, until its error.
func (x *Rows) lines(i int, fn func(n uint64, line []byte) error) error {
	if i < 0 || i >= len(x.stretches) {
		return errors.New("there is no such line")
	}
	s, next := x.stretches[i], x.size+1
	room := int64(rowStretchBytes + RowBytesMax + 1)
	if i+1 < len(x.stretches) {
		next = min(next, x.stretches[i+1].first)
		room = x.stretches[i+1].at - s.at
	}
	b := make([]byte, room)
	got, err := x.in.ReadAt(b, s.at)
	if err != nil && err != io.EOF {
		return fmt.Errorf("line %d: %w", s.first, err)
	}
	b = b[:got]
	for n := s.first; n < next; n++ {
		line, rest, _ := bytes.Cut(b, []byte("\n"))
		if len(b) == 0 {
			return fmt.Errorf("line %d: the file has become shorter", n)
		}
		if err := fn(n, line); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// event is what a line says, and what of it is not so.
func (x *Rows) event(n uint64, line []byte, w *rowWriter) (event []byte, expected, found string, err error) {
	row, signed, err := readRow(line)
	switch {
	case err != nil:
		return nil, "", "", err
	case signed != nil:
		return nil, "", "", errors.New("a checkpoint, and lines after it")
	case row.Event == "":
		return nil, "", "", errors.New("no event")
	}
	event = []byte(row.Event)
	e, err := events.Parse(event)
	if err != nil {
		return event, "", "", nil // the entry's own fault
	}
	if want := w.row(x, e.Seq, event); !bytes.Equal(want, line) {
		if err := row.holds(e.Seq); err != nil {
			return event, "a line that says what its event says", err.Error(), nil
		}
		return event, "a line as it is exported", "one written otherwise, or that says something else of its event", nil
	}
	return event, "", "", nil
}

// rowWriter writes rows in room of its own.
type rowWriter struct {
	room  bytes.Buffer
	lines *json.Encoder
}

func (w *rowWriter) row(x *Rows, seq uint64, event []byte) []byte {
	w.start()
	if err := writeRow(w.lines, x.format, x.origin, x.source, seq, event); err != nil {
		return nil
	}
	return bytes.TrimSuffix(w.room.Bytes(), []byte("\n"))
}

func (w *rowWriter) start() {
	if w.lines == nil {
		w.lines = json.NewEncoder(&w.room)
		w.lines.SetEscapeHTML(false)
	}
	w.room.Reset()
}

func (x *Rows) checkpointRow() []byte {
	w := &rowWriter{}
	w.start()
	head, err := readCheckpoint(x.checkpoint)
	if err != nil {
		head = Checkpoint{}
	}
	if err := writeCheckpoint(w.lines, x.format, head, x.source, x.checkpoint); err != nil {
		return nil
	}
	return bytes.TrimSuffix(w.room.Bytes(), []byte("\n"))
}

// Source is the log as the lines have it, to be judged or looked into. Nothing of it
// is verified.
func (x *Rows) Source() *Source {
	return &Source{Size: x.size, Checkpoint: x.checkpoint, Events: x.events, Payload: func(uint64) (Payload, error) { return Payload{}, nil }}
}

func (x *Rows) events(from, to uint64, fn func(seq uint64, event []byte) error) error {
	if from == 0 {
		return errors.New("events are numbered from 1")
	}
	to = min(to, x.size)
	for i := x.stretchOf(from); from <= to; i++ {
		err := x.lines(i, func(n uint64, line []byte) error {
			if n < from || n > to {
				return nil
			}
			row, signed, err := readRow(line)
			if err == nil && (signed != nil || row.Event == "") {
				err = errors.New("no event")
			}
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			from = n + 1
			return fn(n, []byte(row.Event))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// VerifyRows verifies a file of lines: as VerifyExport, as far as it has what that
// looks at, and that every line says of its event what is so. An error says that an
// option is unusable.
func VerifyRows(x *Rows, opts Options) (*Report, error) {
	v, err := NewVerifier(x.checkpoint, opts)
	if err != nil {
		return nil, err
	}
	v.total, v.again, v.rows = x.size, x.events, true
	v.resume(x.size, x.events)
	if v.halts() {
		return v.Finish(), nil
	}
	first := max(0, x.stretchOf(v.size+1))
	failures := 0
	inOrder(uint64(len(x.stretches)-first), func(i uint64) []entry {
		return v.examineRows(x, first+int(i))
	}, func(entries []entry) bool {
		for i := range entries {
			e := &entries[i]
			if e.unreadable == "" {
				failures = 0
			} else if failures++; failures > unreadableMax {
				e.unreadable = fmt.Sprintf("%d unreadable ones in a row; the rest was given up", unreadableMax)
			}
			v.told(e.before)
			v.take(e)
			v.grow(e.leaf)
			v.told(v.tree.take())
			if failures > unreadableMax || v.halts() {
				return false
			}
		}
		return true
	})
	if !v.halts() {
		v.told(x.faults)
	}
	return v.Finish(), nil
}

// examineRows reads and examines a stretch, as far as it was not verified before.
func (v *Verifier) examineRows(x *Rows, i int) (entries []entry) {
	looks, w := examiner{links: v.links, ops: &v.ops}, &rowWriter{}
	err := x.lines(i, func(n uint64, line []byte) error {
		if n <= v.from {
			return nil
		}
		event, expected, found, err := x.event(n, line, w)
		if err != nil {
			entries = append(entries, entry{unreadable: fmt.Sprintf("line %d: %v", n, err)})
			return nil
		}
		e := looks.examine(n, event)
		if found != "" {
			e.before = []Fault{{Check: "rows", Seq: n, Where: fmt.Sprintf("line %d", n), Expected: expected, Found: found}}
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		entries = append(entries, entry{unreadable: err.Error()})
	}
	return entries
}

// rowsCheck is what is said of the lines of a file, beside their events.
func (v *Verifier) rowsCheck() Check {
	return v.check("rows", fmt.Sprintf("%d lines that say what their events say", v.looked.parse))
}

package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
)

// mirroring compares the log with what the stream brought somebody.
var mirroring = part{
	usage: `  --mirror FILE      events as ledgerd tail printed them, one a line, or an export as jsonl or cloudevents; - for the standard input:
                     byte for byte those of the log
`,
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.mirror, "mirror", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		return refuseEmpty(given, "file", map[string]string{"mirror": a.mirror})
	},
	then: func(a *arguments, s *subject, r *audit.Report) error {
		if a.mirror == "" {
			return nil
		}
		in := a.in
		if a.mirror != "-" {
			f, err := os.Open(a.mirror)
			if err != nil {
				return err
			}
			defer f.Close()
			in = f
		}
		check := audit.Check{Name: "mirror", Status: audit.Impossible, Open: "there is no log to compare with"}
		if s.log != nil {
			if source, err := s.log(); err != nil {
				check.Open = "the log cannot be read: " + err.Error()
			} else {
				check = a.compareMirror(source, in, r)
			}
		}
		r.Completeness.Checks = append(r.Completeness.Checks, check)
		return nil
	},
}

// mirror reads a file of events, a line each.
type mirror struct {
	in    *bufio.Reader
	lines *audit.Lines
	audit.Line
	last   uint64 // event before that
	rows   bool   // and it is in a row
	signed []byte // the checkpoint, which ends them
	wrong  string // with it
	err    error  // io.EOF at its end
}

func newMirror(in io.Reader, lines *audit.Lines) *mirror {
	m := &mirror{in: bufio.NewReaderSize(in, audit.RowBytesMax), lines: lines}
	m.next()
	return m
}

func (m *mirror) next() {
	b := m.read()
	if m.err != nil {
		return
	}
	if m.Line = m.lines.Read(b); m.Checkpoint == nil {
		m.last, m.rows = max(m.Seq, m.last+1), !bytes.Equal(m.Event, b)
		return
	}
	m.signed, m.wrong = bytes.Clone(m.Checkpoint), m.Wrong
	if m.read(); m.err == nil && m.wrong == "" {
		m.wrong = "a line after the checkpoint"
	}
	if m.err == nil {
		m.err = io.EOF
	}
}

func (m *mirror) read() (line []byte) {
	line, m.err = m.in.ReadSlice('\n')
	switch {
	case errors.Is(m.err, bufio.ErrBufferFull):
		m.err = fmt.Errorf("a line of over %d bytes", audit.RowBytesMax)
	case m.err == io.EOF && len(line) > 0: // the last line, cut or unended
		m.err = nil
	}
	return bytes.TrimSuffix(line, []byte("\n"))
}

// compareMirror compares the log with the mirror, from the mirror's first event.
func (a *arguments) compareMirror(source *audit.Source, in io.Reader, r *audit.Report) audit.Check {
	check := audit.Check{Name: "mirror", Status: audit.Pass}
	var created []byte
	if err := source.Events(1, 1, func(_ uint64, b []byte) error { created = bytes.Clone(b); return nil }); err != nil {
		return audit.Check{Name: "mirror", Status: audit.Impossible, Open: "event 1 cannot be read: " + err.Error()}
	}
	m := newMirror(in, audit.LinesOf(created))
	if m.err != nil {
		return audit.Check{Name: "mirror", Status: audit.Impossible, Open: "the mirror holds no event: " + m.err.Error()}
	}
	if m.Seq == 0 && !bytes.HasPrefix(m.Event, []byte(`{"`)) {
		return audit.Check{Name: "mirror", Status: audit.Impossible, Open: "this is no file of events, one a line, as ledgerd tail or ledgerd export --format jsonl or cloudevents writes them"}
	}
	fault := func(seq uint64, expected, found string) {
		check.Status = audit.Fail
		if len(r.Faults) < a.faults {
			r.Faults = append(r.Faults, audit.Fault{Check: "mirror", Seq: seq, Where: a.mirror, Expected: expected, Found: found})
		} else {
			r.FaultsMore++
		}
	}
	first, compared := max(m.Seq, 1), uint64(0)
	err := source.Events(first, source.Size, func(seq uint64, b []byte) error {
		switch {
		case m.err != nil:
			return m.err
		case bytes.Equal(m.Event, b):
			compared++
		case m.Seq > seq:
			fault(seq, "event "+events.LeafHash(b).String()+" as in the log", fmt.Sprintf("none: the mirror goes on with event %d", m.Seq))
			return nil
		default:
			fault(seq, "event "+events.LeafHash(b).String()+" as in the log", "event "+events.LeafHash(m.Event).String())
		}
		if m.Wrong != "" {
			fault(seq, "a line that says of its event what is so", m.Wrong)
		}
		m.next()
		return nil
	})
	check.Text = fmt.Sprintf("%d events from %d on are those of the log, byte for byte", compared, first)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		check.Open = "not compared to its end: " + err.Error()
		if check.Status == audit.Pass {
			check.Status = audit.Impossible
		}
	case m.err == nil: // the log has ended before it
		fault(source.Size+1, "the end of the log", "another event in the mirror: "+events.LeafHash(m.Event).String())
	default:
		if end := first + compared - 1; end < source.Size && check.Status == audit.Pass {
			check.Open = fmt.Sprintf("the mirror ends at event %d; %d–%d were not compared", end, end+1, source.Size)
		}
		if first > 1 {
			check.Open = fmt.Sprintf("the mirror begins at event %d; ", first) + check.Open
		}
	}
	if m.signed != nil {
		check.Text += "; " + m.ends(r, fault)
	} else if m.rows && errors.Is(m.err, io.EOF) {
		check.Text += "; no checkpoint ends them, as one does in an export"
	}
	return check
}

// ends holds the mirror's checkpoint against the events before it, and says what of
// it was looked at.
func (m *mirror) ends(r *audit.Report, fault func(seq uint64, expected, found string)) string {
	root, said := "", "the checkpoint behind them is of their number, its root was not compared"
	if m.last == r.Events {
		root, said = r.Root, "the checkpoint behind them has their root"
	}
	wrong := m.wrong
	if wrong == "" {
		if err := audit.Covers(m.signed, m.last, root); err != nil {
			wrong = err.Error()
		}
	}
	if wrong != "" {
		fault(0, "the checkpoint of the events before it, and nothing behind it", wrong)
		return "what ends them is not their checkpoint"
	}
	return said + "; who signed it was not looked at"
}

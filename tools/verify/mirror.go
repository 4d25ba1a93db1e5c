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
	in   *bufio.Reader
	line []byte
	seq  uint64 // as the line says
	err  error  // io.EOF at its end
}

func newMirror(in io.Reader) *mirror {
	m := &mirror{in: bufio.NewReaderSize(in, audit.RowBytesMax)}
	m.next()
	return m
}

func (m *mirror) next() {
	m.line, m.err = m.in.ReadSlice('\n')
	switch {
	case errors.Is(m.err, bufio.ErrBufferFull):
		m.err = fmt.Errorf("a line of over %d bytes", audit.RowBytesMax)
		return
	case m.err == io.EOF && len(m.line) > 0: // the last line, cut or unended
		m.err = nil
	case m.err != nil:
		return
	}
	m.line = bytes.TrimSuffix(m.line, []byte("\n"))
	m.seq = 0
	if e, err := events.Parse(m.line); err == nil {
		m.seq = e.Seq
		return
	}
	event, ok := audit.RowEvent(m.line)
	if ok && len(event) == 0 { // the checkpoint, which ends them
		m.next()
		return
	}
	if e, err := events.Parse(event); ok && err == nil {
		m.line, m.seq = event, e.Seq
	}
}

// compareMirror compares the log with the mirror, from the mirror's first event.
func (a *arguments) compareMirror(source *audit.Source, in io.Reader, r *audit.Report) audit.Check {
	check := audit.Check{Name: "mirror", Status: audit.Pass}
	m := newMirror(in)
	if m.err != nil {
		return audit.Check{Name: "mirror", Status: audit.Impossible, Open: "the mirror holds no event: " + m.err.Error()}
	}
	if m.seq == 0 && !bytes.HasPrefix(m.line, []byte(`{"`)) {
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
	first, compared := max(m.seq, 1), uint64(0)
	err := source.Events(first, source.Size, func(seq uint64, b []byte) error {
		switch {
		case m.err != nil:
			return m.err
		case bytes.Equal(m.line, b):
			compared++
		case m.seq > seq:
			fault(seq, "event "+events.LeafHash(b).String()+" as in the log", fmt.Sprintf("none: the mirror goes on with event %d", m.seq))
			return nil
		default:
			fault(seq, "event "+events.LeafHash(b).String()+" as in the log", "event "+events.LeafHash(m.line).String())
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
		fault(source.Size+1, "the end of the log", "another event in the mirror: "+events.LeafHash(m.line).String())
	default:
		if end := first + compared - 1; end < source.Size && check.Status == audit.Pass {
			check.Open = fmt.Sprintf("the mirror ends at event %d; %d–%d were not compared", end, end+1, source.Size)
		}
		if first > 1 {
			check.Open = fmt.Sprintf("the mirror begins at event %d; ", first) + check.Open
		}
	}
	return check
}

// Command verify checks a ledgerd log without trusting its keeper. Integrity is
// always checked; completeness against a remembered checkpoint, and semantics
// by judging every decision again, where asked. What was not checked is said
// as loudly as what failed.
//
// Exit codes: 0 every check asked for passed, 1 a check failed, 2 a check asked
// for could not be done.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/replay"
)

func main() {
	boundMemory()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// memoryMax is what the garbage collector keeps within, however long the log.
const memoryMax = 384 << 20

func boundMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryMax)
	}
}

// run is the whole command but for the process around it.
func run(args []string, in io.Reader, stdout, stderr io.Writer) int {
	a, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage())
		return audit.ExitPass
	}
	if err != nil {
		fmt.Fprintf(stderr, "verify: %v\nsee verify --help\n", err)
		return audit.ExitImpossible
	}
	a.in = in
	report, err := a.verify(stderr)
	if err != nil {
		fmt.Fprintf(stderr, "verify: could not check: %s\n", plain(err.Error()))
		return audit.ExitImpossible
	}
	if err := a.print(stdout, report); err != nil {
		fmt.Fprintf(stderr, "verify: %v\n", err)
		return audit.ExitImpossible
	}
	return report.Exit
}

func (a *arguments) print(w io.Writer, r *audit.Report) error {
	if a.output == "json" {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	_, err := io.WriteString(w, text(r))
	return err
}

// subject is what is verified. A part that is a source makes it.
type subject struct {
	verify func(audit.Options) (*audit.Report, error) // integrity and completeness; an error says that nothing could be checked
	log    func() (*audit.Source, error)              // its events once more, unverified; nil where there are none
	judged func() (replay.Source, error)              // what replay judges; nil where nothing can be
	close  func() error

	witnessed [][]byte // signed checkpoints beside the log, as they were before it was read
}

// verify checks what was asked for. An error says that nothing could be.
func (a *arguments) verify(stderr io.Writer) (*audit.Report, error) {
	opts := audit.Options{FaultsMax: a.faults, Progress: progress(stderr)}
	for _, p := range parts {
		if p.options == nil {
			continue
		}
		if err := p.options(a, &opts); err != nil {
			return nil, err
		}
	}
	s, err := a.source.open(a)
	if err != nil {
		return nil, err
	}
	if s.close != nil {
		defer s.close()
	}
	report, err := s.verify(opts)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.then == nil {
			continue
		}
		if err := p.then(a, s, report); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(report.Faults, func(a, b audit.Fault) int { return cmp.Compare(a.Seq-1, b.Seq-1) }) // of no event: last
	report.Settle()
	return report, nil
}

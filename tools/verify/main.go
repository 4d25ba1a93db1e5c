// Command verify checks a ledgerd log without trusting its keeper. Integrity is
// always checked; completeness against a remembered checkpoint, and semantics
// by judging every decision again, where asked. What was not checked is said
// as loudly as what failed.
//
// Exit codes: 0 every check asked for passed, 1 a check failed, 2 a check asked
// for could not be done.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/replay"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

const usage = `usage: verify (--data DIR | --export DIR) [--checkpoint FILE] [--vkey STRING|@FILE] [--replay] [--faults N] [-o text|json]

  --data DIR         a ledger's data directory; its writer may be at work
  --export DIR       a directory written by ledgerd export
  --checkpoint FILE  a signed checkpoint remembered from before: finds a truncated, rewritten or replaced log
  --vkey KEY         the verifier key the checkpoints must be signed with, or @FILE that holds it;
                     without it the key comes from the data itself, and the log is at best consistent, not authentic
  --replay           judge every decision again
  --faults N         list at most N faults (20); all are counted
  -o FORMAT          text or json

exit code: 0 every check asked for passed · 1 a check failed · 2 could not check
`

// arguments are what verify was asked.
type arguments struct {
	data, export, checkpoint, vkey, server, output string
	judged                                         bool
	quorum, faults                                 int
}

func parse(args []string) (*arguments, error) {
	a := &arguments{}
	f := flag.NewFlagSet("verify", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&a.data, "data", "", "")
	f.StringVar(&a.export, "export", "", "")
	f.StringVar(&a.checkpoint, "checkpoint", "", "")
	f.StringVar(&a.vkey, "vkey", "", "")
	f.StringVar(&a.server, "server", "", "")
	f.StringVar(&a.output, "o", "text", "")
	f.BoolVar(&a.judged, "replay", false, "")
	f.IntVar(&a.quorum, "require-quorum", 0, "")
	f.IntVar(&a.faults, "faults", audit.FaultsMax, "")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q is no flag", f.Arg(0))
	case given["server"]:
		return nil, errors.New("--server comes with a later release: verify a data directory or an export")
	case given["require-quorum"]:
		return nil, errors.New("--require-quorum comes with a later release: this one knows no witnesses; use --checkpoint")
	case given["data"] == given["export"]:
		return nil, errors.New("give one of --data and --export")
	case given["data"] && a.data == "" || given["export"] && a.export == "":
		return nil, errors.New("no directory is named")
	case given["checkpoint"] && a.checkpoint == "":
		return nil, errors.New("--checkpoint names no file")
	case given["vkey"] && strings.TrimPrefix(a.vkey, "@") == "":
		return nil, errors.New("--vkey is empty")
	case a.output != "text" && a.output != "json":
		return nil, errors.New("-o is text or json")
	case a.faults < 1:
		return nil, errors.New("--faults is at least 1")
	}
	return a, nil
}

// run is the whole command but for the process around it.
func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	a, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return audit.ExitPass
	}
	if err != nil {
		fmt.Fprintf(stderr, "verify: %v\n%s", err, usage)
		return audit.ExitImpossible
	}
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

// verify checks what was asked for. An error says that nothing could be.
func (a *arguments) verify(stderr io.Writer) (*audit.Report, error) {
	opts, err := a.options(stderr)
	if err != nil {
		return nil, err
	}
	if a.export != "" {
		return a.verifyExport(opts)
	}
	return a.verifyData(opts)
}

func (a *arguments) options(stderr io.Writer) (audit.Options, error) {
	opts := audit.Options{FaultsMax: a.faults, VKey: a.vkey, Progress: progress(stderr)}
	if name, isFile := strings.CutPrefix(a.vkey, "@"); isFile {
		b, err := readSmall(name)
		if err != nil {
			return opts, err
		}
		if opts.VKey = strings.TrimSpace(string(b)); opts.VKey == "" {
			return opts, fmt.Errorf("%s holds no key", name)
		}
	}
	if a.checkpoint != "" {
		b, err := readSmall(a.checkpoint)
		if err != nil {
			return opts, err
		}
		opts.Remembered = b
	}
	return opts, nil
}

const smallMax = 64 << 10

// readSmall reads a key or checkpoint, never nil.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, smallMax+1))
	if err == nil && len(b) > smallMax {
		err = fmt.Errorf("%s is over %d bytes", name, smallMax)
	}
	return b, err
}

func (a *arguments) verifyExport(opts audit.Options) (*audit.Report, error) {
	info, err := os.Stat(a.export)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is no directory", a.export)
	}
	if has(a.export, "db", "anchor", "keys") && !has(a.export, "tile", "checkpoint") {
		return nil, fmt.Errorf("%s looks like a data directory; use --data", a.export)
	}
	report, err := audit.VerifyExport(os.DirFS(a.export), opts)
	if err != nil {
		return nil, err
	}
	if a.judged {
		source, err := exported(audit.OpenExport(os.DirFS(a.export)))
		a.judge(report, source, err)
	}
	return report, nil
}

// has reports whether dir has something by one of the names.
func has(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

func (a *arguments) verifyData(opts audit.Options) (*audit.Report, error) {
	if has(a.data, "tile", "checkpoint") && !has(a.data, "db", "anchor", "keys") {
		return nil, fmt.Errorf("%s looks like an export; use --export", a.data)
	}
	d, err := datadir.Open(a.data)
	if damaged := datadir.Damaged(err); damaged != nil {
		for i := range damaged.Faults {
			damaged.Faults[i].Found = plain(damaged.Faults[i].Found)
		}
		return damaged, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	source := d.Source()
	if source.Checkpoint == nil {
		source.Checkpoint = opts.Remembered // an anchor kept elsewhere
	}
	report, err := audit.VerifyLog(source, opts)
	if err != nil {
		return nil, err
	}
	if a.judged {
		source, err := replay.Stored(a.data, d.Store)
		a.judge(report, source, err)
	}
	return report, nil
}

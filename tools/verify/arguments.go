package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
)

// part is one thing that verify can be asked: its flags, and what they do at
// each stage. Every function may be nil. A new one is a line in parts.
type part struct {
	usage   string
	flags   func(a *arguments, f *flag.FlagSet)
	refuse  func(a *arguments, given map[string]bool) error
	options func(a *arguments, opts *audit.Options) error         // before the log is read
	then    func(a *arguments, s *subject, r *audit.Report) error // after it; adds checks to the report

	source string // the flag that makes this part the source of what is verified
	open   func(a *arguments) (*subject, error)
}

// parts in the order of the usage, sources first. The order of then is theirs.
// (A function, since parts refer to arguments.)
var parts []*part

func init() {
	parts = []*part{
		&dataSource, &exportSource, &serverSource, &proofSource, &consistencySource, &following, &holding, &remembering, &preceding, &dating, &pinning,
		&comparing, &judging, &mirroring, &witnessing, &evidencing, &resuming, &reporting,
	}
}

// arguments are what verify was asked.
type arguments struct {
	source *part // the one that was given

	data, export     string
	checkpoint, vkey string
	receipt, proof   string
	event, rotations string
	consistency      string
	judged           bool
	faults           int
	first, all       bool
	output           string
	server           server
	quorum           quorum

	compared [2]string
	seen     string
	skew     time.Duration
	mirror   string
	resume   string
	evidence string
	previous previous
	in       io.Reader // for what is read from -
}

func usage() string {
	var b strings.Builder
	b.WriteString("usage: verify SOURCE [FLAG]...\n\n")
	for _, p := range parts {
		b.WriteString(p.usage)
	}
	b.WriteString("\nexit code: 0 every check asked for passed · 1 a check failed · 2 could not check\n")
	return b.String()
}

func parse(args []string) (*arguments, error) {
	a := &arguments{}
	f := flag.NewFlagSet("verify", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	for _, p := range parts {
		if p.flags != nil {
			p.flags(a, f)
		}
	}
	f.VisitAll(func(f *flag.Flag) {
		if f.Name != "witness" {
			f.Value = &once{Value: f.Value}
		}
	})
	err := f.Parse(args)
	if err == nil && a.compared[0] != "" && f.NArg() > 0 { // the second file stands alone
		a.compared[1] = f.Arg(0)
		err = f.Parse(f.Args()[1:])
	}
	if err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q is no flag", f.Arg(0))
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, p := range parts {
		if p.refuse == nil {
			continue
		}
		if err := p.refuse(a, given); err != nil {
			return nil, err
		}
	}
	return a, a.choose(given)
}

// once is a flag that is given at most once: of two values one would be ignored.
type once struct {
	flag.Value
	given bool
}

func (o *once) Set(s string) error {
	if o.given {
		return errors.New("given twice")
	}
	o.given = true
	return o.Value.Set(s)
}

func (o *once) IsBoolFlag() bool {
	b, ok := o.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// choose finds the one source among the flags given.
func (a *arguments) choose(given map[string]bool) error {
	var names []string
	for _, p := range parts {
		if p.source == "" {
			continue
		}
		names = append(names, "--"+p.source)
		if !given[p.source] {
			continue
		}
		if a.source != nil {
			return fmt.Errorf("give one of --%s and --%s", a.source.source, p.source)
		}
		a.source = p
	}
	if a.source == nil && a.compared[0] != "" {
		a.source = &comparedAlone
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if !slices.Contains([]string{"compare", "vkey", "evidence", "faults", "first", "all", "o"}, name) {
				return fmt.Errorf("--%s is about a log, and --compare alone comes without: give --data, --export or --server too", name)
			}
		}
	}
	if a.source == nil {
		return errors.New("give one of " + strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1])
	}
	return nil
}

// refuseEmpty refuses flags that were given without a value.
func refuseEmpty(given map[string]bool, what string, flags map[string]string) error {
	for name, value := range flags {
		if given[name] && value == "" {
			return fmt.Errorf("--%s names no %s", name, what)
		}
	}
	return nil
}

// remembering is completeness: what the auditor kept from before.
var remembering = part{
	usage: "  --checkpoint FILE  a signed checkpoint remembered from before: finds a truncated, rewritten or replaced log\n",
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.checkpoint, "checkpoint", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		return refuseEmpty(given, "file", map[string]string{"checkpoint": a.checkpoint})
	},
	options: func(a *arguments, opts *audit.Options) (err error) {
		if a.checkpoint != "" {
			opts.Remembered, err = readSmall(a.checkpoint)
		}
		return err
	},
}

// pinning is the key that the auditor knows from elsewhere.
var pinning = part{
	usage: `  --vkey KEY         the verifier key the checkpoints must be signed with, or @FILE that holds it;
                     without it the key comes from the data itself, and the log is at best consistent, not authentic
`,
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.vkey, "vkey", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		if given["vkey"] && strings.TrimPrefix(a.vkey, "@") == "" {
			return errors.New("--vkey is empty")
		}
		return nil
	},
	options: func(a *arguments, opts *audit.Options) (err error) {
		if opts.VKey, err = readKey(a.vkey); err != nil || a.vkey == "" {
			return err
		}
		if _, err := note.NewVerifier(opts.VKey); err != nil {
			if _, unfit := os.Stat(a.vkey); unfit == nil {
				return fmt.Errorf("--vkey %s is a file: give --vkey @%s", a.vkey, a.vkey)
			}
			return fmt.Errorf("--vkey %s is no verifier key, NAME+ID+KEY: %w", a.vkey, err)
		}
		return nil
	},
}

// readKey is a verifier key, or what the file has that @FILE names.
func readKey(text string) (string, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile {
		return text, nil
	}
	b, err := readSmall(name)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(b))
	if key == "" {
		return "", fmt.Errorf("%s holds no key", name)
	}
	return key, nil
}

// reporting is how the outcome is told.
var reporting = part{
	options: func(a *arguments, opts *audit.Options) error {
		opts.First = a.first
		return nil
	},
	usage: `  --faults N         list at most N faults (20); all are counted
  --first            stop at the first fault: what is behind it is not looked at
  --all              list all
  -o FORMAT          text or json
`,
	flags: func(a *arguments, f *flag.FlagSet) {
		f.StringVar(&a.output, "o", "text", "")
		f.IntVar(&a.faults, "faults", audit.FaultsMax, "")
		f.BoolVar(&a.first, "first", false, "")
		f.BoolVar(&a.all, "all", false, "")
	},
	refuse: func(a *arguments, given map[string]bool) error {
		switch {
		case a.first && a.all || given["faults"] && (a.first || a.all):
			return errors.New("--faults, --first and --all are one question: give one of them")
		case a.first:
			a.faults = 1
		case a.all:
			a.faults = math.MaxInt
		}
		switch {
		case a.output != "text" && a.output != "json":
			return errors.New("-o is text or json")
		case a.faults < 1:
			return errors.New("--faults is at least 1")
		}
		return nil
	},
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

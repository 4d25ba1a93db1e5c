package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
)

// quorum is who must have cosigned the log.
type quorum struct {
	n      int
	vkeys  vkeys
	policy string
	maxAge time.Duration
}

type vkeys []string

func (v *vkeys) String() string     { return strings.Join(*v, " ") }
func (v *vkeys) Set(s string) error { *v = append(*v, s); return nil }

// witnessing is completeness by others: who saw the log and cosigned it.
var witnessing = part{
	usage: `  --require-quorum N with --witness KEY, repeated: at least N of these witnesses cosigned the log's checkpoint, or the
                     one of --checkpoint, or with --data the one kept in DIR/witness
      --witness-policy FILE   the same, as a file of C2SP tlog-policy says
      --max-age D    the newest cosignature is no older
`,
	flags: func(a *arguments, f *flag.FlagSet) {
		f.IntVar(&a.quorum.n, "require-quorum", 0, "")
		f.Var(&a.quorum.vkeys, "witness", "")
		f.StringVar(&a.quorum.policy, "witness-policy", "", "")
		f.DurationVar(&a.quorum.maxAge, "max-age", 0, "")
	},
	refuse: func(a *arguments, given map[string]bool) error {
		asked := given["require-quorum"] || given["witness-policy"]
		switch {
		case given["require-quorum"] && given["witness-policy"]:
			return errors.New("a --witness-policy says what its quorum is: leave --require-quorum out")
		case given["require-quorum"] != given["witness"]:
			return errors.New("--require-quorum N and --witness KEY go together")
		case given["max-age"] && (!asked || a.quorum.maxAge <= 0):
			return errors.New("--max-age goes with --require-quorum or --witness-policy, and is more than 0")
		}
		return refuseEmpty(given, "file", map[string]string{"witness-policy": a.quorum.policy})
	},
	then: func(a *arguments, s *subject, r *audit.Report) error {
		check, err := a.witnesses(s, r)
		if err == nil {
			r.Completeness.Checks = append(r.Completeness.Checks, check)
		}
		return err
	},
}

// required is the policy asked for, nil for none.
func (q *quorum) required() (*audit.WitnessPolicy, error) {
	switch {
	case q.policy != "":
		b, err := readSmall(q.policy)
		if err != nil {
			return nil, err
		}
		return audit.ParseWitnessPolicy(b)
	case q.n != 0 || len(q.vkeys) > 0:
		return audit.Quorum(q.n, q.vkeys)
	}
	return nil, nil
}

// witnesses answers whether enough of them cosigned this log.
func (a *arguments) witnesses(s *subject, r *audit.Report) (audit.Check, error) {
	const name = "witnesses"
	policy, err := a.quorum.required()
	if err != nil {
		return audit.Check{}, err
	}
	if policy == nil {
		return audit.Check{Name: name, Status: audit.NotRun, Open: "no witness was asked for: that others saw the same log was not checked"}, nil
	}
	if s.log == nil || r.Events == 0 || r.Integrity.Status == audit.Impossible {
		return audit.Check{Name: name, Status: audit.Impossible, Open: "there is no log to hold cosignatures against"}, nil
	}
	log, err := s.log()
	if err != nil {
		return audit.Check{Name: name, Status: audit.Impossible, Open: err.Error()}, nil
	}
	var keys []note.Verifier // the log's, one of which signed what witnesses saw
	for _, vkey := range append([]string{r.Key}, r.Keys...) {
		if key, err := note.NewVerifier(vkey); err == nil {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return audit.Check{Name: name, Status: audit.Impossible, Open: "no key to check the log's own signature with"}, nil
	}
	if logs := policy.Logs; len(logs) > 0 && !slices.ContainsFunc(append([]string{r.Key}, r.Keys...), func(key string) bool { return slices.Contains(logs, key) }) {
		return audit.Check{Name: name, Status: audit.Impossible, Open: "the policy is for other logs: none of its log lines has a key of this one"}, nil
	}
	best := seen{}
	for _, signed := range a.cosigned(log.Checkpoint, s) {
		c, err := openedByOne(signed, keys)
		if err != nil {
			continue // of another log, or damaged: the other checks say so where it is this log's own
		}
		if x := look(policy, signed, c); x.better(best) {
			best = x
		}
	}
	return best.check(a, log, r), nil
}

func openedByOne(signed []byte, keys []note.Verifier) (c audit.Checkpoint, err error) {
	for _, key := range keys {
		if c, err = audit.OpenCheckpoint(signed, key); err == nil {
			return c, nil
		}
	}
	return c, err
}

// cosigned lists the checkpoints that may hold cosignatures.
func (a *arguments) cosigned(own []byte, s *subject) (list [][]byte) {
	if own != nil {
		list = append(list, own)
	}
	if a.checkpoint != "-" {
		list = append(list, kept(a.checkpoint)...)
	}
	return append(list, s.witnessed...)
}

// kept reads files that may be there or not.
func kept(names ...string) (list [][]byte) {
	for _, name := range names {
		if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if b, err := readSmall(name); err == nil {
			list = append(list, b)
		}
	}
	return list
}

// seen is a checkpoint and who cosigned it.
type seen struct {
	audit.Checkpoint
	who    []string
	newest time.Time
	met    bool
	all    int // witnesses
	ahead  int // of them, whose cosignature is dated ahead of the clock here, and does not count
}

func look(policy *audit.WitnessPolicy, signed []byte, c audit.Checkpoint) seen {
	x := seen{Checkpoint: c, all: len(policy.Witnesses)}
	x.met = policy.Met(func(w *audit.Witness) bool {
		at, err := w.Cosigned(signed)
		if err != nil {
			return false
		}
		if time.Until(at) > audit.Skew {
			x.ahead++
			return false
		}
		if x.who = append(x.who, w.Name); at.After(x.newest) {
			x.newest = at
		}
		return true
	})
	return x
}

func (x seen) better(than seen) bool {
	if x.met != than.met {
		return x.met
	}
	if n, m := len(x.who)+x.ahead, len(than.who)+than.ahead; n != m && !x.met {
		return n > m
	}
	return x.Size > than.Size
}

func (x seen) check(a *arguments, log *audit.Source, r *audit.Report) audit.Check {
	fault := func(seq uint64, expected, found string) audit.Check {
		r.Faults = append(r.Faults, audit.Fault{Check: "witnesses", Seq: seq, Expected: expected, Found: found})
		return audit.Check{Name: "witnesses", Status: audit.Fail}
	}
	age := time.Since(x.newest).Round(time.Second)
	said := fmt.Sprintf("%d of %d witnesses (%s) cosigned size %d", len(x.who), x.all, strings.Join(x.who, ", "), x.Size)
	if x.ahead > 0 {
		said += fmt.Sprintf("; %d more are dated ahead of the clock here and do not count", x.ahead)
	}
	switch {
	case !x.met && x.ahead > 0:
		return fault(0, "enough witnesses", said)
	case !x.met && len(x.who) == 0:
		return fault(0, "a checkpoint that enough witnesses cosigned", "none that any of the "+fmt.Sprint(x.all)+" cosigned")
	case !x.met:
		return fault(0, "enough witnesses", said)
	case x.Size > r.Events:
		return fault(r.Events+1, fmt.Sprintf("the %d events that witnesses saw", x.Size), fmt.Sprintf("%d", r.Events))
	}
	if own, err := audit.ReadCheckpoint(log.Checkpoint); err != nil || own != x.Checkpoint {
		_, root, err := log.ProveConsistency(x.Size)
		switch {
		case err != nil:
			return audit.Check{Name: "witnesses", Status: audit.Impossible, Open: said + ", which cannot be held against the log: " + err.Error()}
		case root != x.Root:
			return fault(0, fmt.Sprintf("root %s at size %d, as witnesses saw it", x.Root, x.Size), "root "+root.String())
		}
	}
	if a.quorum.maxAge > 0 && age > a.quorum.maxAge {
		return fault(0, "a cosignature no older than "+a.quorum.maxAge.String(), "the newest is "+age.String()+" old")
	}
	c := audit.Check{Name: "witnesses", Status: audit.Pass, Text: fmt.Sprintf("%s, the newest %s ago", said, age)}
	if x.Size < r.Events {
		c.Open = fmt.Sprintf("events %d–%d came after it and were seen by no witness yet", x.Size+1, r.Events)
	}
	return c
}

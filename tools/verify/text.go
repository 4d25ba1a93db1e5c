package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
)

// text is a report for people: the verdict last, where the eye ends up.
func text(r *audit.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "log           %s\n", orNone(printable(r.Origin)))
	fmt.Fprintf(&b, "events        %d\n", r.Events)
	fmt.Fprintf(&b, "head          %s\n", orNone(r.Head))
	fmt.Fprintf(&b, "root          %s\n", r.Root)
	source := "(from " + r.KeySource + ")"
	if r.KeySource == "pinned" {
		source = "(pinned)"
	}
	fmt.Fprintf(&b, "key           %s %s\n", orNone(printable(r.Key)), source)
	said := map[string]bool{} // once is enough
	for _, v := range []struct {
		name    string
		verdict audit.Verdict
	}{{"integrity", r.Integrity}, {"completeness", r.Completeness}, {"semantics", r.Semantics}} {
		fmt.Fprintf(&b, "\n%-13s %s\n", v.name, v.verdict.Status)
		for _, c := range v.verdict.Checks {
			fmt.Fprintf(&b, "  %-11s %-10s %s\n", c.Name, c.Status, printable(c.Text))
			if open := c.Open; open != "" {
				if said[open] {
					open = "as above"
				}
				said[c.Open] = true
				fmt.Fprintf(&b, "  %-11s %-10s open: %s\n", "", "", printable(open))
			}
		}
	}
	if len(r.Faults) > 0 {
		b.WriteString("\n")
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "FAULT %s\n", printable(plain(f.String())))
		if f.Derivation != nil {
			for _, line := range f.Derivation.Lines() {
				fmt.Fprintf(&b, "      %s\n", printable(line))
			}
		}
	}
	if r.FaultsMore > 0 {
		fmt.Fprintf(&b, "and %d more\n", r.FaultsMore)
	}
	for _, n := range r.Notes {
		b.WriteString("\n")
		for line := range strings.Lines(n) {
			fmt.Fprintf(&b, "  | %s\n", printable(strings.TrimSuffix(line, "\n")))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", verdict(r))
	return b.String()
}

func verdict(r *audit.Report) string {
	switch r.Verdict {
	case "authentic":
		if slices.ContainsFunc(r.Integrity.Checks, func(c audit.Check) bool { return c.Name == "reply" }) {
			return "authentic: the log of this key holds an event of this seq and hash; what the reply says beside them was not checked"
		}
		return "authentic: every check asked for passed, under the key that was given"
	case "consistent":
		return "consistent: every check asked for passed, but the key comes from the data itself; give --vkey to learn who signed it"
	case "failed":
		return condemned(r)
	}
	return "COULD NOT CHECK everything that was asked"
}

const whatNow = `; docs/OPERATIONS.md, "The verifier says no", has what to do`

// condemned says what it is that cannot be relied on.
func condemned(r *audit.Report) string {
	checked := func(names ...string) bool {
		return slices.ContainsFunc(r.Integrity.Checks, func(c audit.Check) bool { return slices.Contains(names, c.Name) })
	}
	only := func(names ...string) bool { // faults are of these checks alone
		return len(r.Faults) > 0 && r.FaultsMore == 0 && !slices.ContainsFunc(r.Faults, func(f audit.Fault) bool { return !slices.Contains(names, f.Check) })
	}
	switch {
	case checked("store"):
		return "FAILED: this log cannot be read; keep the directory as it is" + whatNow
	case checked("chain", "files"):
		if only("receipt", "reply", "event") {
			return "FAILED: the log does not hold what the file of --receipt says; the faults say where. Of the log itself nothing failed: the file may have been changed, or be of another log"
		}
		if only("remembered", "checkpoint", "consistency") {
			return "FAILED: do not rely on this log, if the checkpoint and the key that were given are of it; the faults say where it is wrong" + whatNow
		}
		return "FAILED: do not rely on this log; the faults say where it is wrong" + whatNow
	case checked("inclusion", "proof"):
		return "FAILED: what was given does not show what it was given for; the faults say where. Is it the proof of this event, under this key? The log itself was not looked at"
	}
	return "FAILED: what was given does not show what it was given for; the faults say where. Are both checkpoints of this log, under this key? The log itself was not looked at"
}

// plain is the text of an error without what the storage engine puts in for
// machines.
func plain(s string) string {
	return strings.ReplaceAll(s, "\n<corruption detail carrier>", "")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// printable shows text that may come from the log itself: control characters,
// which could draw over a terminal, become visible.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || 0x7f <= r && r < 0xa0 || 0x200b <= r && r <= 0x200f || 0x2028 <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069 {
			return '�'
		}
		return r
	}, s)
}

// progress returns a function that keeps one line on a terminal up to date, or
// nil where nobody watches.
func progress(w io.Writer) func(done, total uint64) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return meter(w, time.Now)
}

const progressPause = 500 * time.Millisecond

// meter prints rate and estimate, at most twice a second, and clears its line
// when all is done.
func meter(w io.Writer, now func() time.Time) func(done, total uint64) {
	start := now()
	last := start
	return func(done, total uint64) {
		if done >= total {
			fmt.Fprint(w, "\r\x1b[K")
			return
		}
		t := now()
		if t.Sub(last) < progressPause {
			return
		}
		last = t
		rate := float64(done) / t.Sub(start).Seconds()
		left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(w, "\r\x1b[K%d of %d events, %.0f/s, %s left", done, total, rate, left)
	}
}

package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

// Status is the outcome of one check, or of several together.
type Status string

// The outcomes. What was not asked for is NotRun, what was but could not be
// done is Impossible; neither is ever a Pass.
const (
	Pass       Status = "pass"
	Fail       Status = "fail"
	NotRun     Status = "not_run"
	Impossible Status = "impossible"
)

// Exit codes of a report.
const (
	ExitPass       = 0 // every check asked for passed
	ExitFail       = 1 // a check failed
	ExitImpossible = 2 // a check asked for could not be done
)

// Check is one check's outcome. Text says what was looked at; Open what stays
// unknown, where the check did not pass over everything.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Text   string `json:"text,omitempty"`
	Open   string `json:"open,omitempty"`
}

// Verdict is the outcome of checks that answer one question.
type Verdict struct {
	Status Status  `json:"status"`
	Checks []Check `json:"checks"`
}

// Fault is one thing that is wrong: where, what was expected, what was found.
type Fault struct {
	Check    string `json:"check"`
	Seq      uint64 `json:"seq,omitempty"` // the entry, or the first of several; 0 for none
	To       uint64 `json:"to,omitempty"`  // the last of several; 0 for one
	Where    string `json:"where,omitempty"`
	Expected string `json:"expected"`
	Found    string `json:"found"`

	Derivation *Derivation `json:"derivation,omitempty"` // of a decision that is not what the rules give
}

// String is the fault on one line.
func (f Fault) String() string {
	var b strings.Builder
	switch {
	case f.Seq != 0 && f.To > f.Seq:
		fmt.Fprintf(&b, "seq %d–%d: ", f.Seq, f.To)
	case f.Seq != 0:
		fmt.Fprintf(&b, "seq %d: ", f.Seq)
	}
	b.WriteString(f.Check)
	if f.Where != "" {
		fmt.Fprintf(&b, " (%s)", f.Where)
	}
	fmt.Fprintf(&b, ": expected %s, found %s", f.Expected, f.Found)
	return b.String()
}

// Report is the result of a verification, of three questions kept apart: is
// what is here untouched, is everything here, and is what it says right?
type Report struct {
	Verdict      string   `json:"verdict"` // authentic, consistent, failed or could not check
	Origin       string   `json:"origin"`
	Events       uint64   `json:"events"`
	Head         string   `json:"head"` // leaf hash of the last event
	Root         string   `json:"root"`
	Key          string   `json:"key"`            // verifier key that the checkpoint was checked with
	KeySource    string   `json:"key_source"`     // pinned, or the data itself
	Keys         []string `json:"keys,omitempty"` // all checkpoint keys that the log has had, where they are several
	Integrity    Verdict  `json:"integrity"`
	Completeness Verdict  `json:"completeness"`
	Semantics    Verdict  `json:"semantics"`
	Notes        []string `json:"notes,omitempty"` // signed checkpoints that contradict each other, or the log
	Faults       []Fault  `json:"faults"`          // the first, by seq
	FaultsMore   uint64   `json:"faults_more"`     // how many were found beyond these
	Exit         int      `json:"exit"`

	Known *Known `json:"-"` // to take up from the next time; nil where anything failed

	Erased   uint64    `json:"erased"` // payloads that are missing because an event says so
	Erasures []Erasure `json:"erasures"`
}

// report collects faults while a verification runs.
type report struct {
	max    int
	faults []Fault
	more   uint64
	failed map[string]bool // by check
}

func newReport(max int) *report {
	if max <= 0 {
		max = FaultsMax
	}
	return &report{max: max, failed: map[string]bool{}}
}

// fault adds one. Neighbours of one check that say the same become one, so
// that a shifted or unreadable stretch does not hide what lies behind it.
func (r *report) fault(f Fault) {
	r.failed[f.Check] = true
	f.To = max(f.Seq, f.To)
	for i := len(r.faults) - 1; i >= 0 && i >= len(r.faults)-4; i-- {
		last := &r.faults[i]
		if last.Check == f.Check && f.Check == "parse" && last.To+1 == f.Seq && last.Found == f.Found ||
			last.Check == f.Check && f.Check == "tree" && last.To+1 == f.Seq && last.Where == f.Where && f.Seq != 0 {
			last.To = f.To
			return
		}
	}
	if len(r.faults) == r.max {
		r.more++
		return
	}
	r.faults = append(r.faults, f)
}

// sorted returns the faults by seq, those of no entry last.
func (r *report) sorted() []Fault {
	list := slices.Clone(r.faults)
	slices.SortStableFunc(list, func(a, b Fault) int { return cmp.Compare(a.Seq-1, b.Seq-1) })
	for i := range list {
		if list[i].To == list[i].Seq {
			list[i].To = 0
		}
	}
	if list == nil {
		list = []Fault{}
	}
	return list
}

// Finish ends the log and returns the report. Nothing may be called after it.
func (v *Verifier) Finish() *Report {
	if v.halts() {
		return v.halted()
	}
	v.looked.payloads += v.opened
	v.looked.sealed += v.sealed
	v.settle()
	r := &Report{Origin: v.origin, Events: v.size, Root: v.root().String(), KeySource: "the data itself", Key: v.vkey}
	if v.size > 0 {
		r.Head = v.leaf.String()
	}
	if v.opts.Progress != nil {
		v.opts.Progress(v.size, v.size)
	}
	key, err := v.key(r)
	parse := v.check("parse", fmt.Sprintf("%d entries", v.looked.parse))
	parse.Open = v.gaveUp
	r.Integrity.Checks = []Check{
		parse,
		v.check("sequence", fmt.Sprintf("%d entries", v.looked.sequence)),
		v.check("chain", fmt.Sprintf("%d links", v.looked.chain)),
		v.check("time", fmt.Sprintf("%d entries", v.looked.time)),
		v.originCheck(),
		v.treeCheck(),
		v.checkpointCheck(key, err),
		v.payloadCheck(),
		v.operationsCheck(v.again),
		v.clockCheck(),
	}
	if len(v.keys) > 1 {
		r.Integrity.Checks = append(r.Integrity.Checks, v.keysCheck())
		for i := range v.keys {
			r.Keys = append(r.Keys, v.keys[i].public)
		}
	}
	if v.rows {
		r.Integrity.Checks = append(r.Integrity.Checks, v.rowsCheck())
	}
	if v.links {
		const open = "events were not parsed, only their links and tree were looked at"
		r.Integrity.Checks[0] = Check{Name: "parse", Status: Impossible, Open: open}
		r.Integrity.Checks[3] = Check{Name: "time", Status: NotRun, Open: open}
	}
	r.Completeness.Checks = []Check{v.rememberedCheck(key, err)}
	if len(v.opts.Compared) > 0 {
		r.Completeness.Checks = append(r.Completeness.Checks, v.comparedCheck(key, err))
	}
	if c, said := v.previousCheck(); said {
		r.Completeness.Checks = append(r.Completeness.Checks, c)
	}
	if v.opts.Known != nil {
		r.Integrity.Checks = append(r.Integrity.Checks, v.resumedCheck())
	}
	r.Notes = v.notes()
	r.Known = v.known(r.Key)
	r.Semantics = Verdict{NotRun, []Check{{Name: "replay", Status: NotRun, Open: "decisions were not judged again: a wrong decision that was properly sealed is not found"}}}
	r.Erasures, r.Erased = v.erasures.list()
	r.Faults, r.FaultsMore = v.sorted(), v.more
	v.nothingIsLeftOut(r)
	if v.size == 0 {
		v.nothing(r)
	}
	r.Settle()
	return r
}

// nothingIsLeftOut gives every fault its failed check, so that none is listed
// beside a verdict that does not know of it.
func (v *Verifier) nothingIsLeftOut(r *Report) {
	for _, name := range slices.Sorted(maps.Keys(v.failed)) {
		is := func(c Check) bool { return c.Name == name && c.Status == Fail }
		if !slices.ContainsFunc(r.Integrity.Checks, is) && !slices.ContainsFunc(r.Completeness.Checks, is) {
			r.Integrity.Checks = append(r.Integrity.Checks, v.check(name, ""))
		}
	}
}

// notes are the signed checkpoints behind a verdict that one of them gives:
// whoever signed both of two that cannot be states of one log is convicted by
// them alone.
func (v *Verifier) notes() (list []string) {
	var all [][]byte
	if v.failed["remembered"] || v.failed["compare"] {
		all = append([][]byte{v.signed, v.opts.Remembered}, v.opts.Compared...)
	}
	if v.failed["previous"] && v.named != nil {
		all = append(all, v.opts.Before.Note, []byte(v.named.Checkpoint))
	}
	for _, n := range all {
		if n != nil && utf8.Valid(n) && !slices.Contains(list, string(n)) {
			list = append(list, string(n))
		}
	}
	return list
}

// nothing turns every check of an empty log into one that could not be done.
func (v *Verifier) nothing(r *Report) {
	for _, verdict := range []*Verdict{&r.Integrity, &r.Completeness} {
		for i := range verdict.Checks {
			if c := &verdict.Checks[i]; c.Status != NotRun {
				*c = Check{Name: c.Name, Status: Impossible, Open: "there is no event to check"}
			}
		}
	}
}

// Settle computes the verdicts, the word for the whole and the exit code from
// the checks. It is called again when a check was added.
func (r *Report) Settle() {
	statuses := map[Status]bool{}
	for _, v := range []*Verdict{&r.Integrity, &r.Completeness, &r.Semantics} {
		v.Status = NotRun
		seen := map[Status]bool{}
		for _, c := range v.Checks {
			seen[c.Status] = true
		}
		for _, s := range []Status{Fail, Impossible, Pass} {
			if seen[s] {
				v.Status = s
				break
			}
		}
		statuses[v.Status] = true
	}
	switch {
	case statuses[Fail]:
		r.Verdict, r.Exit = "failed", ExitFail
	case statuses[Impossible], r.Integrity.Status != Pass:
		r.Verdict, r.Exit = "could not check", ExitImpossible
	case r.KeySource == "pinned":
		r.Verdict, r.Exit = "authentic", ExitPass
	default:
		r.Verdict, r.Exit = "consistent", ExitPass
	}
}

// check is the outcome of a check that looks at everything it is given.
func (v *Verifier) check(name, text string) Check {
	c := Check{Name: name, Status: Pass, Text: text}
	if v.failed[name] {
		c.Status = Fail
	}
	return c
}

// key is the verifier of checkpoints: the pinned one, or the one event 1 names.
func (v *Verifier) key(r *Report) (note.Verifier, error) {
	if v.pinned == nil {
		return newVerifier(v.vkey)
	}
	r.Key, r.KeySource = v.opts.VKey, "pinned"
	if v.vkey != "" && !slices.ContainsFunc(v.keys, func(k keyTerm) bool { return k.public == v.opts.VKey }) {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "the pinned key " + v.opts.VKey, Found: quote(v.vkey) + otherEpoch(v.pinned.Name(), v.origin)})
	}
	return v.pinned, nil
}

func (v *Verifier) originCheck() Check {
	if c, err := readCheckpoint(v.signed); err == nil && v.origin != "" && c.Origin != v.origin {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: "the checkpoint's origin " + quote(c.Origin), Found: quote(v.origin)})
	}
	c := v.check("origin", v.origin)
	if v.looked.origin == 0 && c.Status == Pass {
		c = Check{Name: "origin", Status: Impossible, Open: "event 1 could not be read: the log is bound to no origin"}
	}
	return c
}

func (v *Verifier) treeCheck() Check {
	if v.rows {
		return Check{Name: "tree", Status: NotRun, Open: "a file of lines has no tiles: the root was recomputed from the entries, and no stored hash compared"}
	}
	if v.nodes == nil {
		return Check{Name: "tree", Status: Pass, Text: "root recomputed from the entries", Open: "no stored hash was given to compare"}
	}
	return v.check("tree", fmt.Sprintf("%d stored hashes recomputed", v.tree.compared))
}

// checkpointCheck holds the log against its own checkpoint.
func (v *Verifier) checkpointCheck(key note.Verifier, keyErr error) Check {
	const name = "checkpoint"
	switch {
	case v.signed == nil && v.failed[name]: // there is one, and it cannot be read
		return v.check(name, "")
	case v.signed == nil:
		return Check{Name: name, Status: Impossible, Open: "there is no signed checkpoint: nobody answers for this log"}
	case keyErr != nil:
		return Check{Name: name, Status: Impossible, Open: "no key to check the signature with: " + keyErr.Error()}
	}
	c, err := v.open(v.signed, key)
	if err != nil {
		v.fault(Fault{Check: name, Expected: "a checkpoint signed by " + quote(key.Name()), Found: err.Error()})
		return v.check(name, "")
	}
	if err := v.vouched(c); err != nil {
		v.fault(Fault{Check: name, Expected: "a checkpoint that the pinned key answers for", Found: err.Error()})
	}
	err = v.holds(name, c)
	if c.Size == 0 && v.size > 0 && !v.failed[name] {
		return Check{Name: name, Status: Impossible, Open: "the checkpoint covers no event: nobody answers for this log"}
	}
	out := undone(v.check(name, fmt.Sprintf("size %d, signed", c.Size)), err)
	if out.Status == Fail {
		out.Text = fmt.Sprintf("size %d, signed; the log does not fit it", c.Size)
	}
	if c.Size < v.size && out.Status == Pass {
		out.Open = fmt.Sprintf("events %d–%d came after it and are signed by nobody yet", c.Size+1, v.size)
	}
	return out
}

// holds compares the log with a checkpoint at the checkpoint's size. The error
// says why that cannot be done, where the log was taken up later.
func (v *Verifier) holds(name string, c Checkpoint) error {
	if c.Size > v.size {
		v.fault(Fault{Check: name, Seq: v.size + 1, To: c.Size, Expected: fmt.Sprintf("%d events", c.Size), Found: fmt.Sprintf("%d: the last %d are missing", v.size, c.Size-v.size)})
		return nil
	}
	got := v.roots[c.Size]
	if 0 < c.Size && c.Size < v.from {
		var err error
		if _, got, err = v.before(c.Size); err != nil {
			return fmt.Errorf("the root at size %d, which was verified before, cannot be told: %w", c.Size, err)
		}
	}
	if got != c.Root {
		v.fault(Fault{Check: name, Expected: fmt.Sprintf("root %s at size %d", c.Root, c.Size), Found: "root " + got.String()})
	}
	return nil
}

// undone is a check that passes, unless it could not be done.
func undone(c Check, err error) Check {
	if err != nil && c.Status == Pass {
		return Check{Name: c.Name, Status: Impossible, Open: err.Error()}
	}
	return c
}

// rememberedCheck holds the log against what the auditor kept from before.
func (v *Verifier) rememberedCheck(key note.Verifier, keyErr error) Check {
	const name = "remembered"
	if v.opts.Remembered == nil {
		return Check{Name: name, Status: NotRun, Open: "not checked against a remembered checkpoint: a truncated, rewritten or replaced log cannot be ruled out"}
	}
	c, err := readCheckpoint(v.opts.Remembered)
	switch {
	case err != nil:
		return Check{Name: name, Status: Impossible, Open: "the remembered checkpoint cannot be used: " + err.Error()}
	case c.Size == 0:
		return Check{Name: name, Status: Impossible, Open: "the remembered checkpoint covers no event"}
	case v.origin != "" && c.Origin != v.origin:
		v.fault(Fault{Check: name, Seq: 1, Expected: "the remembered origin " + quote(c.Origin), Found: quote(v.origin) + ": another log"})
		return v.check(name, "")
	case keyErr != nil:
		return Check{Name: name, Status: Impossible, Open: "no key to check its signature with: " + keyErr.Error()}
	}
	if _, err := v.open(v.opts.Remembered, key); err != nil && v.pinned != nil {
		return Check{Name: name, Status: Impossible, Open: "the remembered checkpoint is not signed by the pinned key: " + err.Error()}
	} else if err != nil {
		v.fault(Fault{Check: name, Seq: 1, Expected: "the key that signed the remembered checkpoint", Found: "a log under another key: " + err.Error()})
		return v.check(name, "")
	}
	err = v.holds(name, c)
	out := undone(v.check(name, fmt.Sprintf("holds every event of the remembered checkpoint of size %d, unchanged", c.Size)), err)
	if out.Status == Fail {
		out.Text = fmt.Sprintf("does not hold what the remembered checkpoint of size %d covers", c.Size)
	}
	return out
}

func (v *Verifier) payloadCheck() Check {
	c := v.check("payloads", fmt.Sprintf("%d commitments recomputed", v.looked.payloads)+v.erasedText())
	switch {
	case v.rows:
		c = Check{Name: "payloads", Status: NotRun, Open: "a file of lines has no payloads: what the commitments stand for was not checked, nor that none is missing which is never erased"}
	case v.payload == nil:
		c = Check{Name: "payloads", Status: NotRun, Open: "no payloads were given: what the commitments stand for was not checked"}
	case v.looked.sealed > 0 && c.Status == Pass:
		c.Open = fmt.Sprintf("%d sealed payloads are not here or not open: their commitments are part of the log, their contents were not checked", v.looked.sealed)
	}
	for _, under := range slices.Sorted(maps.Keys(v.carried)) {
		if v.carried[under] {
			c.Text += fmt.Sprintf("; the erasure under #%d was carried out while this looked", under)
		}
	}
	return c
}

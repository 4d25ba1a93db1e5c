package audit

import (
	"fmt"

	"golang.org/x/mod/sumdb/note"
)

// CompareNotes holds two signed checkpoints against each other, as two auditors
// do who were perhaps shown two logs: of one origin and size, they must have one
// root. Of two sizes nothing can be said without the log; see Options.Compared.
// An error says that vkey is unusable.
func CompareNotes(a, b []byte, vkey string) (*Report, error) {
	r := &Report{KeySource: "none", Faults: []Fault{}, Notes: []string{string(a), string(b)}}
	signed := Check{Name: "checkpoint", Status: Impossible, Open: "no key was given: who signed the checkpoints is not known"}
	if vkey != "" {
		key, err := note.NewVerifier(vkey)
		if err != nil {
			return nil, fmt.Errorf("verifier key: %w", err)
		}
		r.Key, r.KeySource = vkey, "pinned"
		signed = Check{Name: "checkpoint", Status: Pass, Text: "both are signed by the pinned key"}
		for i, n := range [][]byte{a, b} {
			if _, err := openCheckpoint(n, key); err != nil {
				signed = Check{Name: "checkpoint", Status: Impossible, Open: fmt.Sprintf("the %s checkpoint is not one signed by the pinned key: %v", [2]string{"first", "second"}[i], err)}
				break
			}
		}
	}
	r.Integrity.Checks = []Check{signed}
	r.Semantics.Checks = []Check{{Name: "replay", Status: NotRun, Open: "there is no log to judge"}}
	r.Completeness.Checks = []Check{r.compare(a, b)}
	r.Settle()
	return r, nil
}

func (r *Report) compare(first, second []byte) Check {
	const name = "compare"
	a, err := readCheckpoint(first)
	if err != nil {
		return Check{Name: name, Status: Impossible, Open: "the first checkpoint cannot be used: " + err.Error()}
	}
	b, err := readCheckpoint(second)
	if err != nil {
		return Check{Name: name, Status: Impossible, Open: "the second checkpoint cannot be used: " + err.Error()}
	}
	r.Origin, r.Events, r.Root = a.Origin, a.Size, a.Root.String()
	switch {
	case a.Origin != b.Origin:
		return Check{Name: name, Status: Impossible, Open: fmt.Sprintf("they are of two logs, %s and %s", quote(a.Origin), quote(b.Origin))}
	case a.Size == 0 && b.Size == 0:
		return Check{Name: name, Status: Impossible, Open: "they cover no event"}
	case a.Size != b.Size:
		return Check{Name: name, Status: Impossible, Open: fmt.Sprintf("they are of sizes %d and %d: whether the one grew out of the other takes a consistency proof, or the log; give --data or --export too", a.Size, b.Size)}
	case a.Root != b.Root:
		r.Faults = append(r.Faults, Fault{Check: name, Expected: fmt.Sprintf("one root at size %d: %s", a.Size, a.Root), Found: "root " + b.Root.String() + ": two views of one log"})
		return Check{Name: name, Status: Fail, Text: "two logs of one name were shown; both checkpoints are proof of it"}
	}
	return Check{Name: name, Status: Pass, Text: fmt.Sprintf("one root at size %d", a.Size)}
}

// comparedCheck holds the log against checkpoints that others were shown.
func (v *Verifier) comparedCheck(key note.Verifier, keyErr error) Check {
	const name = "compare"
	if keyErr != nil {
		return Check{Name: name, Status: Impossible, Open: "no key to check signatures with: " + keyErr.Error()}
	}
	var list []Checkpoint
	for _, signed := range v.opts.Compared {
		c, err := v.open(signed, key)
		if err != nil {
			return Check{Name: name, Status: Impossible, Open: "a checkpoint to compare cannot be used: " + err.Error()}
		}
		if c.Size == 0 {
			return Check{Name: name, Status: Impossible, Open: "a checkpoint to compare covers no event"}
		}
		list = append(list, c)
	}
	var undecided error
	for _, c := range list {
		if err := v.holds(name, c); err != nil {
			undecided = err
		}
	}
	out := undone(v.check(name, fmt.Sprintf("%d checkpoints are states of this log", len(list))), undecided)
	if out.Status == Fail {
		out.Text = "not every checkpoint is a state of this log"
	}
	return out
}

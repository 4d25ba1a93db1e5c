package audit

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// continues checks the form of what event 1 says of the log before it: a log of
// another epoch of the same name, a checkpoint of it, and a reason.
func (v *Verifier) continues(b *events.LedgerCreated) {
	p := b.Previous
	if p == nil {
		return
	}
	fault := func(expected, found string) {
		v.fault(Fault{Check: "origin", Seq: 1, Expected: expected, Found: found})
	}
	base, epoch := events.SplitEpoch(b.Origin)
	if of, before := events.SplitEpoch(p.Origin); of != base || before >= epoch || !events.ValidOrigin(p.Origin) {
		fault("as previous an earlier epoch of "+quote(base), quote(p.Origin))
	}
	if !slices.Contains(events.EpochReasons(), p.Reason) {
		fault(fmt.Sprintf("a reason of %q", events.EpochReasons()), quote(p.Reason))
	}
	switch c, err := readCheckpoint([]byte(p.Checkpoint)); {
	case err != nil:
		fault("a signed checkpoint of the log before", quote(p.Checkpoint)+": "+err.Error())
	case c.Origin != p.Origin || c.Size == 0:
		fault("a checkpoint of "+quote(p.Origin), fmt.Sprintf("one of %s at size %d", quote(c.Origin), c.Size))
	}
}

// otherEpoch says of a key of another epoch of a log what its holder is to do;
// empty where it is none.
func otherEpoch(pinned, origin string) string {
	base, was := events.SplitEpoch(pinned)
	of, is := events.SplitEpoch(origin)
	switch {
	case base != of || was == is:
		return ""
	case was < is:
		return fmt.Sprintf(": the pinned key is of epoch %d and this log is epoch %d of that name, under a key of its own; pin the key of this epoch, given to you as the first was, and hold this log against the old one with --previous FILE --previous-vkey KEY", was, is)
	}
	return fmt.Sprintf(": the pinned key is of epoch %d and this log is epoch %d of that name, which was gone on with", was, is)
}

// Before is what an auditor knows of the epoch before a log.
type Before struct {
	Note []byte // a signed checkpoint kept of it
	VKey string // its verifier key

	Log  func(Options) (*Report, error) // verifies that log; nil where it is not at hand
	Size uint64                         // its events
}

// previousCheck holds what event 1 says of the epoch before against what the
// auditor kept of that. said is false where there is neither.
func (v *Verifier) previousCheck() (c Check, said bool) {
	const name = "previous"
	switch {
	case v.opts.Before == nil && v.named == nil:
		return c, false
	case v.opts.Before == nil:
		return Check{Name: name, Status: NotRun, Open: fmt.Sprintf("that this log continues %s was not held against a checkpoint remembered of that", quote(v.named.Origin))}, true
	case v.looked.origin == 0:
		return Check{Name: name, Status: Impossible, Open: "event 1 could not be read"}, true
	}
	impossible := func(format string, args ...any) (Check, bool) {
		return Check{Name: name, Status: Impossible, Open: fmt.Sprintf(format, args...)}, true
	}
	kept, key, err := v.opts.Before.read()
	if err != nil && !v.opts.Before.signedLater(kept, key) {
		return impossible("the checkpoint remembered of the epoch before cannot be used: %v", err)
	}
	if v.named == nil {
		v.fault(Fault{Check: name, Seq: 1, Expected: "a log that continues " + quote(kept.Origin), Found: quote(v.origin) + ", which continues none"})
		return v.check(name, ""), true
	}
	given, err := openCheckpoint([]byte(v.named.Checkpoint), key)
	if expected, found := v.succeeds(kept, given, err); expected != "" {
		v.fault(Fault{Check: name, Seq: 1, Expected: expected, Found: found})
		return v.check(name, ""), true
	}
	if err == nil && given == kept {
		return v.check(name, fmt.Sprintf("continues %s at the remembered size %d", quote(kept.Origin), kept.Size)), true
	}
	if given, err = readCheckpoint([]byte(v.named.Checkpoint)); err != nil { // a fault of event 1
		return impossible("event 1 names no checkpoint of the epoch before")
	}
	open, f := v.opts.Before.continued(kept, given, []byte(v.named.Checkpoint))
	switch {
	case open != "":
		return impossible("%s", open)
	case f != nil:
		v.fault(Fault{Check: name, Seq: 1, Expected: f.Expected, Found: f.Found})
	}
	return v.check(name, fmt.Sprintf("continues %s at size %d, which holds every event of the remembered size %d", quote(given.Origin), given.Size, kept.Size)), true
}

// read opens the remembered checkpoint.
func (b *Before) read() (kept Checkpoint, key note.Verifier, err error) {
	if key, err = note.NewVerifier(b.VKey); err != nil {
		return kept, nil, fmt.Errorf("verifier key: %w", err)
	}
	if kept, err = openCheckpoint(b.Note, key); err == nil && kept.Size == 0 {
		err = errors.New("it covers no event")
	} else if id := signedAs(b.Note, key.Name()); err != nil && kept.Origin == key.Name() && id != "" && id != fmt.Sprintf("%08x", key.KeyHash()) {
		err = fmt.Errorf("%w; key %s signed it: if that log's key was rotated, give that log (--previous-export, --previous-data), or that key once you know it", err, id)
	}
	return kept, key, err
}

// signedLater reports whether the log before shows that the remembered checkpoint is
// one of its own, signed by keys that the given one handed over to.
func (b *Before) signedLater(kept Checkpoint, key note.Verifier) bool {
	if b.Log == nil || key == nil || kept.Size == 0 || kept.Origin != key.Name() || kept.Size > b.Size {
		return false
	}
	r, err := b.Log(Options{VKey: b.VKey, Remembered: b.Note, FaultsMax: 1})
	return err == nil && r.Exit == ExitPass && slices.ContainsFunc(r.Completeness.Checks, func(c Check) bool { return c.Name == "remembered" && c.Status == Pass })
}

// succeeds holds what event 1 names against what is remembered, as far as that
// takes no log. Empty is no fault.
func (v *Verifier) succeeds(kept, given Checkpoint, err error) (expected, found string) {
	base, epoch := events.SplitEpoch(kept.Origin)
	of, own := events.SplitEpoch(v.origin)
	switch {
	case v.named.Origin != kept.Origin:
		return "a log that continues " + quote(kept.Origin), "one that continues " + quote(v.named.Origin)
	case of != base || own != epoch+1:
		return fmt.Sprintf("epoch %d of %s", epoch+1, quote(base)), quote(v.origin)
	case err != nil && v.opts.Before.Log == nil:
		found := err.Error()
		if id := signedAs([]byte(v.named.Checkpoint), kept.Origin); id != "" {
			found += "; key " + id + " signed it: if that log's key was rotated, only the log shows it (--previous-export, --previous-data)"
		}
		return "a checkpoint of " + quote(kept.Origin) + " signed by the given key", found
	case err != nil: // keys may have been rotated: the log tells
		return "", ""
	case given.Size < kept.Size:
		return fmt.Sprintf("a checkpoint of at least the remembered size %d", kept.Size), fmt.Sprintf("size %d: %d events that were seen are left out", given.Size, kept.Size-given.Size)
	case given.Size == kept.Size && given.Root != kept.Root:
		return fmt.Sprintf("root %s at size %d", kept.Root, kept.Size), "root " + given.Root.String() + ": two histories under one key"
	}
	return "", ""
}

// continued has the log before say that the checkpoint given is a later state
// than the one kept; open says why that cannot be told.
func (b *Before) continued(kept, given Checkpoint, signed []byte) (open string, f *Fault) {
	if b.Log == nil {
		return fmt.Sprintf("event 1 names size %d, and size %d is remembered: whether that goes on from this takes the log before (--previous-export, --previous-data)", given.Size, kept.Size), nil
	}
	switch {
	case given.Size < kept.Size:
		return "", &Fault{Expected: fmt.Sprintf("a checkpoint of at least the remembered size %d", kept.Size), Found: fmt.Sprintf("size %d", given.Size)}
	case b.Size < given.Size:
		return fmt.Sprintf("event 1 names size %d, and the log before that was given has %d events", given.Size, b.Size), nil
	}
	r, err := b.Log(Options{VKey: b.VKey, Remembered: b.Note, Compared: [][]byte{signed}, FaultsMax: 1})
	switch {
	case err != nil:
		return "the log before could not be checked: " + err.Error(), nil
	case r.Exit == ExitFail && len(r.Faults) > 0:
		return "", &Fault{Expected: fmt.Sprintf("the log before to hold what is remembered at size %d and what event 1 names at size %d", kept.Size, given.Size), Found: "in it, " + r.Faults[0].String()}
	case slices.ContainsFunc(r.Completeness.Checks, func(c Check) bool { return c.Name == "compare" && c.Status == Impossible }):
		return "", &Fault{Expected: "a checkpoint of " + quote(kept.Origin) + " signed by the keys that were in force", Found: "another"}
	case r.Exit != ExitPass:
		return "the log before could not be checked whole", nil
	}
	return "", nil
}

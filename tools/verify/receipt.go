package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
)

// holding is what somebody was promised: the log must hold the receipt's event.
var holding = part{
	usage: "  --receipt FILE     a receipt, or the reply it came with: the log must hold exactly this event\n",
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.receipt, "receipt", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		return refuseEmpty(given, "file", map[string]string{"receipt": a.receipt})
	},
	then: (*arguments).holds,
}

// proofSource verifies a receipt without the log.
var proofSource = part{
	usage: `  --proof FILE       a C2SP tlog-proof for the event of --receipt, as ledgerd proof makes it
      --event FILE   the event itself, as ledgerd proof --event writes it: what the reply says is held against it
`,
	flags: func(a *arguments, f *flag.FlagSet) {
		f.StringVar(&a.proof, "proof", "", "")
		f.StringVar(&a.event, "event", "", "")
	},
	source: "proof",
	refuse: func(a *arguments, given map[string]bool) error {
		if given["proof"] && !given["receipt"] {
			return errors.New("--proof of what? give --receipt FILE")
		}
		if given["event"] && !given["proof"] {
			return errors.New("--event goes with --proof: a log has the event itself")
		}
		if err := withoutLog(given, "proof", "receipt"); err != nil {
			return err
		}
		return refuseEmpty(given, "file", map[string]string{"proof": a.proof, "event": a.event})
	},
	open: (*arguments).openProof,
}

// consistencySource verifies without the log that a newer checkpoint continues
// the remembered one.
var consistencySource = part{
	usage: `  --consistency FILE a newer checkpoint and the proof that it continues that of --checkpoint, as ledgerd proof
                     consistency makes it

`,
	flags:  func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.consistency, "consistency", "", "") },
	source: "consistency",
	refuse: func(a *arguments, given map[string]bool) error {
		if given["consistency"] && !given["checkpoint"] {
			return errors.New("--consistency with what? give --checkpoint FILE, the one remembered from before")
		}
		if err := withoutLog(given, "consistency", ""); err != nil {
			return err
		}
		return refuseEmpty(given, "file", map[string]string{"consistency": a.consistency})
	},
	open: (*arguments).openConsistency,
}

// withoutLog refuses what a source without events cannot answer.
func withoutLog(given map[string]bool, source, also string) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		switch name {
		case source, also, "checkpoint", "vkey", "faults", "o", "require-quorum", "witness", "witness-policy", "max-age", "event", "rotations":
		case "data", "export", "server", "proof", "consistency": // two sources are refused by themselves
		default:
			if given[source] {
				return fmt.Errorf("--%s is about a log, and --%s comes without: give --data or --export instead", name, source)
			}
		}
	}
	return nil
}

// holds adds to the report on a log whether it holds the receipt's event.
func (a *arguments) holds(s *subject, report *audit.Report) error {
	if a.receipt == "" || a.proof != "" {
		return nil
	}
	r, err := readReceipt(a.receipt)
	if err != nil {
		return err
	}
	check := audit.Check{Name: "receipt", Status: audit.Pass, Text: fmt.Sprintf("event %d is the one that was promised", r.Seq), Open: r.Uncompared()}
	if r.IsReply() {
		check.Text += ", and says what the reply does"
	}
	if s.log == nil {
		check = audit.Check{Name: "receipt", Status: audit.Impossible, Open: "the log cannot be read"}
	} else if err := inLog(s, r, report.Origin); err != nil {
		check = failure(report, "receipt", err)
	}
	report.Integrity.Checks = append(report.Integrity.Checks, check)
	return nil
}

func inLog(s *subject, r *audit.Receipt, origin string) error {
	source, err := s.log()
	switch {
	case err != nil:
		return err
	case r.Origin != "" && r.Origin != origin:
		return &audit.Fault{Check: "receipt", Seq: r.Seq, Expected: fmt.Sprintf("the log %+q", r.Origin), Found: fmt.Sprintf("%+q", origin)}
	case r.Seq > source.Size:
		return &audit.Fault{Check: "receipt", Seq: r.Seq, Expected: "event " + r.EventID + ", hash " + r.Hash.String(), Found: fmt.Sprintf("a log of %d events", source.Size)}
	}
	var event []byte
	err = source.Events(r.Seq, r.Seq, func(_ uint64, b []byte) error {
		event = append([]byte{}, b...)
		return nil
	})
	if err != nil {
		return err
	}
	return r.Holds(event)
}

// failure is a check that did not pass: by its fault, which joins the report's,
// or because it could not be done.
func failure(report *audit.Report, name string, err error) audit.Check {
	var fault *audit.Fault
	if !errors.As(err, &fault) {
		return audit.Check{Name: name, Status: audit.Impossible, Open: err.Error()}
	}
	report.Faults = append(report.Faults, *fault)
	return audit.Check{Name: name, Status: audit.Fail}
}

func (a *arguments) openProof() (*subject, error) {
	r, err := readReceipt(a.receipt)
	if err != nil {
		return nil, err
	}
	b, err := readAtMost(a.proof, audit.ProofBytesMax)
	if err != nil {
		return nil, err
	}
	var event []byte
	if a.event != "" {
		if event, err = readAtMost(a.event, events.EventBytesMax); err != nil {
			return nil, err
		}
	}
	return &subject{verify: func(opts audit.Options) (*audit.Report, error) {
		keys, err := a.trusted(opts)
		if err != nil {
			return nil, err
		}
		report := proven(r, b, keys, opts)
		if check := replied(report, r, event); check.Name != "" {
			report.Integrity.Checks = append(report.Integrity.Checks, check)
		}
		return report, nil
	}, log: func() (*audit.Source, error) {
		p, err := audit.ParseInclusionProof(b)
		if err != nil {
			return nil, err
		}
		return &audit.Source{Checkpoint: p.Checkpoint}, nil
	}}, nil
}

// replied is the check of what a reply says beside its receipt: against the
// event, where it is here.
func replied(report *audit.Report, r *audit.Receipt, event []byte) audit.Check {
	if event == nil {
		if !r.IsReply() {
			return audit.Check{}
		}
		return audit.Check{Name: "reply", Status: audit.NotRun, Open: r.Unshown() + "; give --event FILE, or verify against the log"}
	}
	for i := range report.Integrity.Checks { // the event is here
		if c := &report.Integrity.Checks[i]; c.Name == "inclusion" && c.Status == audit.Pass {
			c.Open = ""
		}
	}
	if err := r.Holds(event); err != nil {
		return failure(report, "event", err)
	}
	check := audit.Check{Name: "event", Status: audit.Pass, Text: "it has the receipt's hash and id", Open: r.Uncompared()}
	if r.IsReply() {
		check.Text += ", and says what the reply does"
	}
	return check
}

// proven is the report on a receipt and its proof.
func proven(r *audit.Receipt, b []byte, keys *trusted, opts audit.Options) *audit.Report {
	report := evidence(keys, opts)
	p, err := audit.ParseInclusionProof(b)
	if err != nil {
		report.Integrity.Checks = []audit.Check{failure(report, "proof", &audit.Fault{Check: "proof", Expected: "a tlog-proof", Found: unparsed(b, err)})}
		return report
	}
	head := signedBy(report, p.Checkpoint, keys)
	inclusion := audit.Check{Name: "inclusion", Status: audit.Pass, Text: fmt.Sprintf("event %d, hash %s, is in the tree of %d events, by %d hashes", r.Seq, r.Hash, head.Size, len(p.Hashes)),
		Open: "the id of the event stands in the event, which is not here"}
	if keys != nil {
		_, err = p.Check(r, keys.Keys)
	} else if err = p.CheckPath(r.Hash, head); p.Index != r.Seq-1 {
		err = &audit.Fault{Check: "inclusion", Seq: r.Seq, Expected: fmt.Sprintf("a proof of index %d", r.Seq-1), Found: fmt.Sprintf("one of index %d", p.Index)}
	}
	var fault *audit.Fault
	switch {
	case errors.As(err, &fault) && fault.Check == "checkpoint": // said already
		inclusion = audit.Check{Name: "inclusion", Status: audit.NotRun, Open: "under a root that the key did not sign, nothing is shown"}
	case err != nil:
		inclusion = failure(report, "inclusion", err)
	}
	report.Integrity.Checks = append(report.Integrity.Checks, inclusion)
	report.Completeness.Checks = []audit.Check{alike(report, head, p.Checkpoint, keys, opts.Remembered)}
	return report
}

// evidence is a report on what is checked without the log.
func evidence(keys *trusted, opts audit.Options) *audit.Report {
	report := &audit.Report{KeySource: "none", Faults: []audit.Fault{}}
	if keys != nil {
		report.Origin, report.Key, report.KeySource = keys.Origin(), opts.VKey, "pinned"
		if list := keys.Trusted(); len(list) > 1 {
			report.Keys = list
		}
	}
	report.Completeness.Checks = []audit.Check{{Name: "remembered", Status: audit.NotRun, Open: "not checked against a remembered checkpoint: the log may show others another history"}}
	report.Semantics.Checks = []audit.Check{{Name: "replay", Status: audit.NotRun, Open: "the log is not here: whether the decision is the one the rules give was not checked"}}
	return report
}

// signedBy adds whether the key signed the checkpoint. Without a key nothing
// that is shown is authentic, and that is not a pass: anybody could have made it.
func signedBy(report *audit.Report, signed []byte, keys *trusted) audit.Checkpoint {
	head, err := audit.ReadCheckpoint(signed)
	check := audit.Check{Name: "checkpoint", Status: audit.Impossible, Open: "no key to check the signature with: anybody can have made this; give --vkey"}
	if keys != nil && err == nil {
		check = audit.Check{Name: "checkpoint", Status: audit.Pass, Text: fmt.Sprintf("size %d, signed", head.Size)}
		head, err = keys.Open(signed)
	}
	if err != nil {
		fault := &audit.Fault{Check: "checkpoint", Expected: "a signed checkpoint", Found: err.Error()}
		if keys != nil {
			fault = keys.Unsigned(err)
		}
		check = failure(report, "checkpoint", fault)
	}
	if report.Origin == "" {
		report.Origin = head.Origin
	}
	report.Events, report.Root = head.Size, head.Root.String()
	report.Integrity.Checks = append(report.Integrity.Checks, check)
	keys.told(report)
	return head
}

// alike holds a proof's checkpoint against the remembered one, where they are of
// one size.
func alike(report *audit.Report, head audit.Checkpoint, signed []byte, keys *trusted, remembered []byte) audit.Check {
	const name = "remembered"
	if remembered == nil {
		return report.Completeness.Checks[0]
	}
	kept, err := rememberedBy(remembered, keys)
	switch {
	case err != nil:
		return audit.Check{Name: name, Status: audit.Impossible, Open: err.Error()}
	case kept.Size != head.Size:
		return audit.Check{Name: name, Status: audit.Impossible, Open: fmt.Sprintf("the remembered checkpoint is of %d events, the proof's of %d: give --consistency with the proof between them, in a run of its own", kept.Size, head.Size)}
	}
	if _, err := (&audit.ConsistencyProof{From: head.Size, Checkpoint: signed}).Check(kept, keys.Keys); err != nil {
		return failure(report, name, err)
	}
	return audit.Check{Name: name, Status: audit.Pass, Text: "the proof is under the remembered checkpoint"}
}

func rememberedBy(signed []byte, keys *trusted) (audit.Checkpoint, error) {
	if keys == nil {
		return audit.Checkpoint{}, errors.New("no key to check the remembered checkpoint with: give --vkey")
	}
	kept, err := keys.Open(signed)
	switch {
	case err != nil:
		return kept, fmt.Errorf("the remembered checkpoint is not signed by the pinned key: %w", err)
	case kept.Size == 0:
		return kept, errors.New("the remembered checkpoint covers no event")
	}
	return kept, nil
}

func (a *arguments) openConsistency() (*subject, error) {
	b, err := readAtMost(a.consistency, audit.ProofBytesMax)
	if err != nil {
		return nil, err
	}
	return &subject{verify: func(opts audit.Options) (*audit.Report, error) {
		keys, err := a.trusted(opts)
		if err != nil {
			return nil, err
		}
		return continued(b, keys, opts), nil
	}, log: func() (*audit.Source, error) {
		p, err := audit.ParseConsistencyProof(b)
		if err != nil {
			return nil, err
		}
		return &audit.Source{Checkpoint: p.Checkpoint}, nil
	}}, nil
}

// continued is the report on a newer checkpoint and the remembered one.
func continued(b []byte, keys *trusted, opts audit.Options) *audit.Report {
	report := evidence(keys, opts)
	p, err := audit.ParseConsistencyProof(b)
	if err != nil {
		report.Integrity.Checks = []audit.Check{failure(report, "proof", &audit.Fault{Check: "proof", Expected: "a consistency proof", Found: unparsed(b, err)})}
		return report
	}
	head := signedBy(report, p.Checkpoint, keys)
	check := audit.Check{Name: "remembered"}
	kept, err := rememberedBy(opts.Remembered, keys)
	if err != nil {
		check.Status, check.Open = audit.Impossible, err.Error()
	} else if _, err := p.Check(kept, keys.Keys); err != nil {
		check = failure(report, "remembered", err)
		var fault *audit.Fault
		if errors.As(err, &fault) && fault.Check == "checkpoint" { // said already
			report.Faults = report.Faults[:len(report.Faults)-1]
		}
	} else {
		check.Status, check.Text = audit.Pass, fmt.Sprintf("the log of %d events begins with the %d of the remembered checkpoint, unchanged", head.Size, kept.Size)
	}
	report.Completeness.Checks = []audit.Check{check}
	return report
}

// unparsed says why a file is not what it was given for: that it is something else
// of what verify takes, where it is.
func unparsed(b []byte, err error) string {
	is := ""
	if _, err := audit.ReadCheckpoint(b); err == nil {
		is = "a checkpoint"
	} else if _, err := audit.ParseInclusionProof(b); err == nil {
		is = "a tlog-proof"
	} else if _, err := audit.ParseConsistencyProof(b); err == nil {
		is = "a consistency proof"
	} else if _, err := audit.ParseReceipt(b); err == nil {
		is = "a receipt"
	}
	if is == "" {
		return err.Error()
	}
	return "a file that is " + is + ": is it the right one?"
}

func readReceipt(name string) (*audit.Receipt, error) {
	b, err := readAtMost(name, audit.ReceiptBytesMax)
	if err != nil {
		return nil, err
	}
	r, err := audit.ParseReceipt(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// readAtMost reads a file of at most max bytes.
func readAtMost(name string, max int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(max)+1))
	if err == nil && len(b) > max {
		err = fmt.Errorf("%s is over %d bytes", name, max)
	}
	return b, err
}

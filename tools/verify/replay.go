package main

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/replay"
)

// judging is semantics.
var judging = part{
	usage: "  --replay           judge every decision again\n",
	flags: func(a *arguments, f *flag.FlagSet) { f.BoolVar(&a.judged, "replay", false, "") },
	then: func(a *arguments, s *subject, r *audit.Report) error {
		if a.first && len(r.Faults) > 0 {
			return nil // it has stopped, and says so
		}
		if a.judged && s.judged != nil {
			source, err := s.judged()
			a.judge(r, source, err)
		}
		return nil
	},
}

// judge answers --replay: whether every decision is the one the rules give. It
// is the only place where the verifier meets them. err says that there is no
// source to judge.
func (a *arguments) judge(report *audit.Report, source replay.Source, err error) {
	check := audit.Check{Name: "replay", Status: audit.Impossible}
	if err != nil {
		check.Open = "the log cannot be read: " + err.Error()
	} else {
		check = a.replay(report, source)
	}
	report.Semantics.Checks = []audit.Check{check}
}

func (a *arguments) replay(report *audit.Report, source replay.Source) audit.Check {
	judge := replay.Run
	if a.first {
		judge = replay.RunToFirst
	}
	r := judge(source)
	check := audit.Check{Name: "replay", Status: audit.Pass, Text: fmt.Sprintf("%d of %d decisions judged again", r.Judged, r.Decisions), Open: left(&r)}
	for _, under := range slices.Sorted(maps.Keys(r.Erased)) {
		check.Text += fmt.Sprintf(", %d could not be: erased under #%d", r.Erased[under], under)
	}
	if r.UnjudgedSteps > 0 {
		check.Text += fmt.Sprintf(", %d decisions on steps not judged whole", r.UnjudgedSteps)
	}
	if r.Stored {
		check.Text += fmt.Sprintf(", the stored state of seq %d compared", r.StoredSeq)
	}
	switch {
	case r.Found > 0:
		check.Status = audit.Fail
	case check.Open != "":
		check.Status = audit.Impossible
	}
	if len(r.Unverifiable) > 0 && a.data == "" {
		check.Open += sealedAway
	}
	listed := 0
	for _, f := range r.Findings {
		if len(report.Faults) < a.faults {
			report.Faults = append(report.Faults, audit.Fault{Check: "replay", Seq: f.Seq, Where: f.Where, Expected: f.Expected, Found: f.Found, Derivation: f.Derivation})
			listed++
		}
	}
	report.FaultsMore += r.Found - uint64(listed)
	return check
}

// left says what could not be judged, empty if nothing.
func left(r *replay.Report) string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(r.Unverifiable)) {
		parts = append(parts, fmt.Sprintf("%d decisions were not judged: %s", r.Unverifiable[why], why))
	}
	if r.UnverifiedEvents > 0 {
		parts = append(parts, fmt.Sprintf("%d events that follow from them were taken as they are", r.UnverifiedEvents))
	}
	if r.MissingPayloads > 0 {
		parts = append(parts, fmt.Sprintf("%d payloads are missing", r.MissingPayloads))
	}
	if r.UncomparedIDs > 0 {
		parts = append(parts, fmt.Sprintf("%d event ids were not held against the others of their millisecond", r.UncomparedIDs))
	}
	if r.Err != nil {
		parts = append(parts, "it was not judged to its end: "+r.Err.Error())
	}
	return strings.Join(parts, "; ")
}

const sealedAway = "; an export has no sealed payloads: judge the data directory (--data), or an export made with --payloads"

// exported is the source of an export, which holds open payloads only.
func exported(s *audit.Source, err error) (replay.Source, error) {
	if err != nil {
		return replay.Source{}, err
	}
	return replay.Source{Size: s.Size, Events: s.Events, Payload: func(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
		p, err := s.Payload(seq)
		return p.Salt, p.Bytes, p.State == audit.PayloadReadable, err
	}}, nil
}

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// TestMistakesOfTheAuditor: what was given wrongly is told as such, and blames
// no log.
func TestMistakesOfTheAuditor(t *testing.T) {
	p := promise(t)
	dir := export(t, p.log.Files())
	for _, format := range []audit.RowFormat{audit.JSONLines, audit.CloudEvents} {
		var rows bytes.Buffer
		if err := audit.WriteRows(&rows, p.log.Source(), format); err != nil {
			t.Fatal(err)
		}
		file := p.file("rows", rows.Bytes())
		if exit, r := verifyJSON(t, "--export", dir, "--vkey", p.log.VKey, "--mirror", file); exit != 0 {
			t.Errorf("%s as a mirror: exit %d: %+v", format, exit, r)
		}
		var out, errs bytes.Buffer
		if exit := run([]string{"--export", file}, nil, &out, &errs); exit != 0 || !strings.Contains(out.String(), "a file of lines has no payloads") {
			t.Errorf("%s as an export: exit %d: %s%s", format, exit, out.String(), errs.String())
		}
		other := logtest.Sample(p.log.Origin, 1, 40)
		other.Edit(39, func(e *events.Event) { e.Time++ })
		rows.Reset()
		if err := audit.WriteRows(&rows, other.Source(), format); err != nil {
			t.Fatal(err)
		}
		if exit, r := verifyJSON(t, "--export", dir, "--vkey", p.log.VKey, "--mirror", p.file("rows", rows.Bytes())); exit != 1 || len(r.Faults) != 2 || r.Faults[0].Seq != 40 { // the event, and the checkpoint that covers it
			t.Errorf("another log's %s: exit %d: %+v", format, exit, r)
		}
	}
	if exit, r := verifyJSON(t, "--export", dir, "--vkey", p.log.VKey, "--mirror", p.file("x", []byte("no events\n"))); exit != 2 || len(r.Faults) != 0 {
		t.Errorf("no mirror: exit %d: %+v", exit, r)
	}
	var out, errs bytes.Buffer
	if exit := run([]string{"--proof", p.file("11", inclusion(t, p.log, 11)), "--receipt", p.receipt(10), "--vkey", p.log.VKey}, nil, &out, &errs); exit != 1 || strings.Contains(out.String(), "do not rely on this log") || !strings.Contains(out.String(), "The log itself was not looked at") {
		t.Errorf("the proof of another event: exit %d: %s", exit, out.String())
	}
	out.Reset()
	if exit := run([]string{"--proof"}, nil, &out, &errs); exit != 2 || strings.Count(errs.String(), "\n") != 2 || !strings.Contains(errs.String(), "see verify --help") {
		t.Errorf("usage: exit %d: %s", exit, errs.String())
	}
}

// TestOneReasonIsSaidOnce: of what is open for one reason.
func TestOneReasonIsSaidOnce(t *testing.T) {
	r := &audit.Report{}
	for _, name := range []string{"parse", "chain", "tree"} {
		r.Integrity.Checks = append(r.Integrity.Checks, audit.Check{Name: name, Status: audit.Impossible, Open: "401"})
	}
	if said := text(r); strings.Count(said, "401") != 1 || strings.Count(said, "as above") != 2 {
		t.Error(said)
	}
}

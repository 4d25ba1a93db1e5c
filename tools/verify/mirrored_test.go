package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
)

// A row of a mirror says of its event what is so, in every member: whoever reads the
// rows reads these, and not the event in them.
func TestR80_AMirrorsRowsSayWhatTheirEventsSay(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	dir := export(t, l.Files())
	rows := map[audit.RowFormat]string{}
	for _, format := range []audit.RowFormat{audit.JSONLines, audit.CloudEvents} {
		var b bytes.Buffer
		if err := audit.WriteRows(&b, l.Source(), format); err != nil {
			t.Fatal(err)
		}
		rows[format] = b.String()
		says(t, audit.ExitPass, "the checkpoint behind them has their root", "--export", dir, "--mirror", put(t, "whole", b.Bytes()))
	}
	zeros := strings.Repeat("0", 64)
	type change struct{ from, to string }
	for format, changes := range map[audit.RowFormat][]change{
		audit.JSONLines: {
			{`{"seq":10,`, `{"seq":11,`}, {`{"seq":10,`, `{"Seq":10,`}, {`{"seq":10,`, `{ "seq":10,`}, {`"prev":"`, `"prev":"` + zeros + `","prev":"`}, {`"hash":"`, `"hash":"` + zeros + `","was":"`},
			{`"hash":"`, `"hash":"` + zeros + `","hash":"`},
		},
		audit.CloudEvents: {
			{`"ledgerseq":"10"`, `"ledgerseq":"11"`}, {`/10","source"`, `/11","source"`}, {`.v1","time"`, `.v2","time"`}, {`"type":"io.ledgerd.`, `"type":"io.ledgerd.x.`},
			{`"source":"/ledgers/main"`, `"source":"/ledgers/other"`}, {`"time":"2`, `"time":"3`}, {`"ledgerprev":"`, `"ledgerprev":"` + zeros + `","ledgerprev":"`},
			{`"specversion":"1.0"`, `"specversion":"1.1"`},
		},
	} {
		for _, c := range changes {
			lines := strings.SplitAfter(rows[format], "\n")
			was := lines[9]
			if lines[9] = strings.Replace(was, c.from, c.to, 1); lines[9] == was {
				t.Fatalf("%s: nothing to change in %s", c.from, was)
			}
			finds(t, "mirror", 10, "--export", dir, "--mirror", put(t, "rows", []byte(strings.Join(lines, ""))))
		}
	}
}

// The checkpoint ends the rows: one of something else, one more or a row behind it
// is a fault, however many there are, and one that is missing is said.
func TestR80_ACheckpointEndsAMirror(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	dir := export(t, l.Files())
	var b bytes.Buffer
	if err := audit.WriteRows(&b, l.Source(), audit.JSONLines); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(b.String(), "\n")
	events, end := strings.Join(lines[:14], ""), lines[14]
	row := func(signed []byte) string {
		return fmt.Sprintf(`{"checkpoint":%q}`, signed) + "\n"
	}
	other := logtest.Sample(testOrigin, 1, 14)
	other.Entries[13] = []byte("x")
	for what, text := range map[string]string{
		"nonsense":                 events + `{"checkpoint":"nonsense"}` + "\n",
		"twice":                    events + end + end,
		"a row behind it":          events + end + lines[13],
		"an event behind it":       events + end + string(l.Entries[13]) + "\n",
		"of fewer":                 events + row(l.Note(13)),
		"another root":             events + row(other.Note(14)),
		"of another log":           events + row(logtest.Sample("example.org/other", 1, 14).Note(14)),
		"before the last event":    strings.Join(lines[:13], "") + end + lines[13],
		"an event in it":           events + strings.Replace(end, `{`, `{"event":"x",`, 1),
		"very many":                events + strings.Repeat(`{"checkpoint":"a"}`+"\n", 200_000),
		"very many behind the end": events + end + strings.Repeat(`{"checkpoint":"a"}`+"\n", 200_000),
	} {
		exit, r := verifyJSON(t, "--export", dir, "--mirror", put(t, "rows", []byte(text)))
		if exit != audit.ExitFail || len(r.Faults) == 0 || r.Faults[0].Check != "mirror" {
			t.Errorf("%s: exit %d %v", what, exit, r.Faults)
		}
	}
	says(t, audit.ExitPass, "no checkpoint ends them", "--export", dir, "--mirror", put(t, "rows", []byte(events)))
}

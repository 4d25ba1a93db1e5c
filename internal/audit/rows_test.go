package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// From either form the log is built again, byte for byte and hash for hash.
func TestRowsAreTheLog(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 700)
	for _, format := range []audit.RowFormat{audit.JSONLines, audit.CloudEvents} {
		var out bytes.Buffer
		s := log.Source()
		s.Checkpoint = log.Note(650)
		if err := audit.WriteRows(&out, s, format); err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(out.Bytes(), []byte("\n")); lines != 651 {
			t.Errorf("%s: %d lines", format, lines)
		}
		again := &logtest.Log{Origin: log.Origin, Signer: log.Signer, VKey: log.VKey}
		note, err := audit.ReadRows(bytes.NewReader(out.Bytes()), func(seq uint64, b []byte) error {
			again.Entries = append(again.Entries, bytes.Clone(b))
			if !bytes.Equal(b, log.Entries[seq-1]) {
				return fmt.Errorf("event %d is another", seq)
			}
			return nil
		})
		if err != nil || !bytes.Equal(note, log.Note(650)) || len(again.Entries) != 650 {
			t.Fatalf("%s: %v", format, err)
		}
		v, err := audit.NewVerifier(note, audit.Options{VKey: log.VKey})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range again.Entries {
			v.Event(b)
		}
		if r := v.Finish(); r.Exit != audit.ExitPass || r.Events != 650 {
			t.Errorf("%s: %+v", format, r)
		}
		lines := strings.SplitAfter(out.String(), "\n")
		for name, changed := range map[string]string{
			"hash": strings.Replace(out.String(), events.LeafHash(log.Entries[9]).String()+`"`, strings.Repeat("0", 64)+`"`, 1), "missing": strings.Join(append(lines[:5:5], lines[6:]...), ""),
			"twice": strings.Join(append(lines[:5:5], lines[4:]...), ""), "after the checkpoint": out.String() + lines[0], "unknown field": strings.Replace(out.String(), "{", `{"x":1,`, 1), "torn": out.String()[:1500],
		} {
			if _, err := audit.ReadRows(strings.NewReader(changed), func(uint64, []byte) error { return nil }); err == nil {
				t.Errorf("%s, %s: taken", format, name)
			}
		}
	}
}

// A row of CloudEvents is one: its required attributes, named as the
// specification has them, and the id that messages of the stream carry.
func TestRowsAreCloudEvents(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 10)
	var out bytes.Buffer
	if err := audit.WriteRows(&out, log.Source(), audit.CloudEvents); err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(out.String()) {
		n++
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		for name := range e {
			if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" && name != "data_base64" {
				t.Errorf("attribute %s", name)
			}
		}
		if e["specversion"] != "1.0" || e["source"] != "/ledgers/main" || !strings.HasPrefix(e["type"].(string), "io.ledgerd.") || n <= 10 && e["id"] != fmt.Sprintf("example.org/lab/1/%d", n) {
			t.Errorf("%s", line)
		}
	}
}

func TestADamagedLogIsNotWrittenAsRows(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 100)
	log.Entries[50] = bytes.Replace(log.Entries[50], []byte(`"researcher"`), []byte(`"researches"`), 1)
	if err := audit.WriteRows(&bytes.Buffer{}, log.Source(), audit.JSONLines); err == nil {
		t.Error("it is written")
	}
	good := logtest.Sample("example.org/lab/1", 1, 100).Source()
	good.Checkpoint = logtest.Sample("example.org/lab/1", 1, 200).Note(200)
	if err := audit.WriteRows(&bytes.Buffer{}, good, audit.JSONLines); err == nil {
		t.Error("a checkpoint beyond the log")
	}
}

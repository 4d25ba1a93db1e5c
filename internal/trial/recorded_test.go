package trial

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/store"
)

var update = flag.Bool("update", false, "record the examples' logs anew")

// entry is a line of testdata/recorded: an event's exact bytes and the payload
// beside it, opened.
type entry struct {
	Event   string `json:"event"`
	Salt    []byte `json:"salt,omitempty"`
	Payload []byte `json:"payload,omitempty"`
}

func recorded(name string) string { return filepath.Join("testdata", "recorded", name+".jsonl") }

// record runs an example's cases one after the other, whatever they come to,
// and writes down what its ledger then holds.
func (e example) record(t *testing.T) {
	t.Helper()
	o, s := e.start(t)
	for _, c := range e.cases {
		for _, step := range c.Given {
			send(s, step)
		}
		send(s, c.Step)
	}
	s.Stop()
	st, err := store.OpenReadOnly(o.Dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	src, err := replay.Stored(o.Dir, st)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	lines := json.NewEncoder(&out)
	lines.SetEscapeHTML(false)
	err = src.Events(1, src.Size, func(seq uint64, b []byte) error {
		line := entry{Event: string(b)}
		salt, payload, ok, err := src.Payload(seq)
		if ok {
			line.Salt, line.Payload = salt[:], payload
		}
		if err != nil {
			return err
		}
		return lines.Encode(line)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(recorded(e.name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recorded(e.name), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readRecorded is a recorded log as a source to judge.
func readRecorded(t *testing.T, name string) ([]entry, replay.Source) {
	t.Helper()
	b, err := os.ReadFile(recorded(name))
	if err != nil {
		t.Fatal(err)
	}
	var log []entry
	for lines := bufio.NewReader(bytes.NewReader(b)); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		log = append(log, e)
	}
	return log, judgeable(log)
}

func judgeable(log []entry) replay.Source {
	return replay.Source{
		Size: uint64(len(log)),
		Events: func(from, to uint64, fn func(uint64, []byte) error) error {
			for seq := from; seq <= to; seq++ {
				if err := fn(seq, []byte(log[seq-1].Event)); err != nil {
					return err
				}
			}
			return nil
		},
		Payload: func(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
			e := log[seq-1]
			if e.Salt == nil {
				return salt, nil, false, nil
			}
			return [events.SaltLen]byte(e.Salt), e.Payload, true, nil
		},
	}
}

// The examples' logs as they were recorded once, on another machine than the one
// that runs this: judged again, here and now, every decision comes out as it did
// there, and one that did not is found.
func TestExamples_LogsOfAnotherMachineJudgedAgain(t *testing.T) {
	all := allExamples(t)
	for _, e := range all {
		if *update {
			e.record(t)
		}
		log, src := readRecorded(t, e.name)
		for range 2 {
			r := replay.Run(src)
			if r.Err != nil || r.Found != 0 || r.Judged != r.Decisions || r.Events != uint64(len(log)) || int(r.Decisions) < len(e.cases) {
				t.Errorf("%s: %d events, %d of %d decisions judged again: %v %v", e.name, r.Events, r.Judged, r.Decisions, r.Err, r.Findings)
			}
		}
		turned := false
		for i := range log {
			if v := log[i].Event; strings.Contains(v, `"reason_code":"requirement_failed"`) {
				forged := append([]entry{}, log...)
				forged[i].Event = strings.Replace(v, `"reason_code":"requirement_failed"`, `"reason_code":"argument_schema"`, 1)
				if r := replay.Run(judgeable(forged)); r.Found == 0 || r.Findings[0].Seq != uint64(i+1) {
					t.Errorf("%s: the turned verdict %d is not found: %v", e.name, i+1, r.Findings)
				}
				turned = true
				break
			}
		}
		if !turned {
			t.Errorf("%s: no requirement failed in the log", e.name)
		}
	}
	files, err := os.ReadDir(filepath.Dir(recorded("")))
	if err != nil || len(files) != len(all) {
		t.Errorf("%d recorded logs of %d examples (%v)", len(files), len(all), err)
	}
}

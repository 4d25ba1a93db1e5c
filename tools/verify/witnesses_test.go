package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

func cosign(name string, at time.Time, note []byte) (line, vkey string) {
	seed := sha256.Sum256([]byte(name))
	return audit.Cosign(name, ed25519.NewKeyFromSeed(seed[:]), at, note)
}

// A quorum of witnesses is completeness: enough of them, each once, lately, and
// of this log.
func TestR81_AQuorumOfWitnesses(t *testing.T) {
	log := logtest.Sample("example.org/lab/1", 1, 600)
	keys, now := map[string]string{}, time.Now()
	for _, name := range []string{"a", "b", "c"} {
		_, keys[name] = cosign(name, now, nil)
	}
	cosigned := func(note []byte, at time.Time, names ...string) []byte {
		out := bytes.Clone(note)
		for _, name := range names {
			line, _ := cosign(name, at, note)
			out = append(out, line...)
		}
		return out
	}
	fork := log.Clone()
	fork.Entries = fork.Entries[:500]
	fork.Add("researcher", 0, &events.LedgerOpened{Rules: 1, Build: "another"})
	file := func(b []byte) string {
		name := filepath.Join(t.TempDir(), "note")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	two := []string{"--require-quorum", "2", "--witness", keys["a"], "--witness", keys["b"], "--witness", keys["c"]}
	policy := file([]byte("witness A " + keys["a"] + "\nwitness B " + keys["b"] + "\ngroup all all A B\nquorum all\n"))
	for name, c := range map[string]struct {
		note []byte // the export's checkpoint
		args []string
		exit int
		says string
	}{
		"two of three":        {cosigned(log.Note(600), now, "a", "c"), two, 0, "2 of 3 witnesses"},
		"all of a policy":     {cosigned(log.Note(600), now, "a", "b"), []string{"--witness-policy", policy}, 0, "2 of 2 witnesses"},
		"one too few":         {cosigned(log.Note(600), now, "a"), two, 1, "1 of 3 witnesses"},
		"a policy not met":    {cosigned(log.Note(600), now, "a", "c"), []string{"--witness-policy", policy}, 1, "1 of 2"},
		"one twice":           {cosigned(log.Note(600), now, "a", "a"), two, 1, "any of the 3"},
		"nobody":              {log.Note(600), two, 1, "any of the 3"},
		"of another size":     {append(log.Note(600), cosigned(log.Note(599), now, "a", "b")[len(log.Note(599)):]...), two, 1, "any of the 3"},
		"old":                 {cosigned(log.Note(600), now.Add(-time.Hour), "a", "b"), append(two[:8:8], "--max-age", "10m"), 1, "1h0m"},
		"old, and one new":    {append(cosigned(log.Note(600), now.Add(-time.Hour), "a"), cosigned(log.Note(600), now, "b")[len(log.Note(600)):]...), append(two[:8:8], "--max-age", "10m"), 0, "2 of 3"},
		"by the remembered":   {log.Note(600), append(two[:8:8], "--checkpoint", file(cosigned(log.Note(400), now, "a", "b"))), 0, "events 401–600 came after it"},
		"remembered, another": {log.Note(600), append(two[:8:8], "--checkpoint", file(cosigned(fork.Note(501), now, "a", "b"))), 1, "root"},
		"remembered, beyond":  {log.Note(600), append(two[:8:8], "--checkpoint", file(cosigned(logtest.Sample("example.org/lab/1", 1, 700).Note(700), now, "a", "b"))), 1, "the 700 events that witnesses saw"},
		"not asked":           {cosigned(log.Note(600), now, "a", "b"), nil, 0, "no witness was asked for"},
	} {
		files := log.Files()
		files["checkpoint"] = c.note
		exit, r := verifyJSON(t, append(c.args, "--export", export(t, files), "--vkey", log.VKey)...)
		var check audit.Check
		for _, found := range r.Completeness.Checks {
			if found.Name == "witnesses" {
				check = found
			}
		}
		said := check.Text + check.Open
		for _, f := range r.Faults {
			said += f.String()
		}
		if exit != c.exit || !strings.Contains(said, c.says) {
			t.Errorf("%s: exit %d, want %d: %s", name, exit, c.exit, said)
		}
		want := map[bool]audit.Status{true: audit.NotRun, false: map[int]audit.Status{0: audit.Pass, 1: audit.Fail}[c.exit]}[c.args == nil]
		if check.Status != want {
			t.Errorf("%s: %s, want %s", name, check.Status, want)
		}
	}
	for _, args := range [][]string{{"--require-quorum", "2"}, {"--witness", keys["a"]}, {"--require-quorum", "2", "--witness", keys["a"]}, {"--require-quorum", "2", "--witness", keys["a"], "--witness", keys["a"]},
		{"--require-quorum", "0", "--witness", keys["a"]}, {"--max-age", "1m"}, {"--witness-policy", "/no/such"}, {"--witness-policy", policy, "--require-quorum", "1", "--witness", keys["a"]}, {"--witness-policy", ""}} {
		var out, errs bytes.Buffer
		if exit := run(append(args, "--export", golden), nil, &out, &errs); exit != 2 || errs.Len() == 0 {
			t.Errorf("%v: exit %d %s", args, exit, out.String())
		}
	}
}

// What witnesses cosigned is read before the log: beside a writer at work it may
// be of more events a moment later, and that is no log cut short.
func TestWitnessesBesideAWriter(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 14)
	for seq := uint64(7); seq <= 14; seq += 2 {
		delete(l.Payloads, seq)
	}
	cut := cutTo(l, 12)
	dir := build(t, cut, cut.Leaves(), 12)
	if err := os.Mkdir(filepath.Join(dir, "witness"), 0o700); err != nil {
		t.Fatal(err)
	}
	line, key := cosign("a", time.Now(), l.Note(12))
	later, _ := cosign("a", time.Now(), l.Note(14))
	quorum := filepath.Join(dir, "witness", "quorum")
	if err := os.WriteFile(quorum, append(l.Note(12), line...), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := parse([]string{"--data", dir, "--vkey", l.VKey, "--require-quorum", "1", "--witness", key})
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.openData()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := os.WriteFile(quorum, append(l.Note(14), later...), 0o600); err != nil { // while the log is read
		t.Fatal(err)
	}
	r, err := s.verify(audit.Options{VKey: l.VKey})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := a.witnesses(s, r); err != nil || c.Status != audit.Pass {
		t.Errorf("%v %+v %+v", err, c, r.Faults)
	}
}

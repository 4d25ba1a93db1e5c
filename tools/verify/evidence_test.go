package main

import (
	"maps"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// shell runs the commands that a README.txt of evidence gives, as its reader
// does, with the Python program at hand, and returns what they say.
func shell(t *testing.T, dir string) (out string, commands int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "README.txt"))
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(program)
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	for line := range strings.Lines(string(b)) {
		for _, start := range []string{"  sha256sum ", "  openssl ", "  (printf ", "  grep ", "  python3 verify.py "} {
			if strings.HasPrefix(line, start) {
				script.WriteString(strings.Replace(line, "python3 verify.py", "python3 "+path, 1))
				commands++
			}
		}
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, text, script.String())
	}
	return string(text), commands
}

// TestEvidence: what a verdict rests on is checked by a third party with
// sha256sum, openssl and the Python program, by the commands that lie with it.
func TestEvidence(t *testing.T) {
	l := logtest.Sample(testOrigin, 1, 300)
	kept := put(t, "kept", l.Note(9))
	evidence := func() string { return filepath.Join(t.TempDir(), "evidence") }
	holds := func(dir, name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}

	// A log without a fault: its note, and that it grew out of the remembered one.
	dir := evidence()
	says(t, audit.ExitPass, "authentic", "--export", export(t, l.Files()), "--vkey", l.VKey, "--checkpoint", kept, "--evidence", dir)
	out, n := shell(t, dir)
	if n < 4 || strings.Count(out, "Signature Verified Successfully") != 2 || !holds(dir, "proofs/consistency") || !holds(dir, "report.json") {
		t.Errorf("%d commands: %s", n, out)
	}
	says(t, audit.ExitImpossible, "is not empty", "--export", export(t, l.Files()), "--evidence", dir)

	// An entry that the key's holder changed: the chain breaks behind it, and the
	// entry stands in the log under the signed note.
	edited := l.Clone()
	edited.Edit(6, func(e *events.Event) { e.Agent = "other" })
	dir = evidence()
	says(t, audit.ExitFail, "seq 8: chain", "--export", export(t, edited.Files()), "--vkey", l.VKey, "--evidence", dir)
	out, _ = shell(t, dir)
	for _, name := range []string{"entries/7.event", "entries/8.event", "entries/9.event", "proofs/7.tlog-proof", "notes/log.note"} {
		if !holds(dir, name) {
			t.Errorf("no %s", name)
		}
	}
	leaf, _ := events.Parse(edited.Entries[7])
	if changed := events.LeafHash(edited.Entries[6]).String(); !strings.Contains(out, changed) || strings.Contains(out, `"prev":"`+changed) || !strings.Contains(out, leaf.Prev.String()) {
		t.Errorf("the break does not show: %s", out)
	}

	// A rewritten history: two notes by one key, and no proof between them.
	rewritten := l.Clone()
	rewritten.Edit(6, func(e *events.Event) { e.Agent = "other" })
	rewritten.Relink(7)
	dir = evidence()
	says(t, audit.ExitFail, "remembered", "--export", export(t, rewritten.Files()), "--vkey", l.VKey, "--checkpoint", kept, "--evidence", dir)
	out, _ = shell(t, dir)
	readme, _ := os.ReadFile(filepath.Join(dir, "README.txt"))
	if strings.Count(out, "Signature Verified Successfully") != 2 || holds(dir, "proofs/consistency") || !strings.Contains(string(readme), "it signed two histories") {
		t.Errorf("%s\n%s", out, readme)
	}

	// Two views without a log, a wrong decision, and a log too damaged to prove.
	dir = evidence()
	says(t, audit.ExitFail, "two views", "--compare", put(t, "a", l.Note(300)), put(t, "b", rewritten.Note(300)), "--vkey", l.VKey, "--evidence", dir)
	if out, _ := shell(t, dir); strings.Count(out, "Signature Verified Successfully") != 2 {
		t.Error(out)
	}
	dir = evidence()
	says(t, audit.ExitFail, "no: declared(helper) removes it", "--export", filepath.Join(corpus, "allowed-instead-of-denied"), "--replay", "--evidence", dir)
	if out, _ := shell(t, dir); !holds(dir, "entries/10.event") || !strings.Contains(out, "OK") {
		t.Error(out)
	}
	broken := l.Files()
	broken["tile/entries/000"] = broken["tile/entries/000"][:5000]
	broken["tile/0/000"][3] ^= 1
	dir = evidence()
	says(t, audit.ExitFail, "parse", "--export", export(t, broken), "--evidence", dir)
	readme, _ = os.ReadFile(filepath.Join(dir, "README.txt"))
	if !strings.Contains(string(readme), "What is not here:") {
		t.Errorf("%s", readme)
	}
	shell(t, dir)
}

// TestR81_EvidenceAfterARotation: the commands that lie with the evidence hold for
// a third party whichever of the log's keys was pinned, where two sign and where
// the first is retired; and what nobody can check is said to be left out.
func TestR81_EvidenceAfterARotation(t *testing.T) {
	l := handedOver()
	kept, newer := put(t, "kept", noteBy(l, 14, 1)), put(t, "kept", noteBy(l, 18, 2))
	evidence := func() string { return filepath.Join(t.TempDir(), "evidence") }
	for what, c := range map[string]struct {
		vkey, kept string
		size       int
		commands   int
		left       string
	}{
		"the first key":                     {l.VKey, kept, 20, 4, ""},
		"the first key, remembered later":   {l.VKey, newer, 20, 4, ""},
		"the second key":                    {l.Next[0], newer, 20, 4, ""},
		"the second key, remembered before": {l.Next[0], kept, 20, 3, "has signed both notes"},
		"no key":                            {"", kept, 20, 4, ""},
		"two in force":                      {l.VKey, kept, 16, 4, ""},
	} {
		log := l.Clone()
		if c.size < 20 {
			log.Entries = log.Entries[:c.size]
			log.Signer, _ = logtest.Key(l.Origin, 1)
			next, _ := logtest.Key(l.Origin, 2)
			log.Also = append(log.Also, next)
		}
		args, dir := []string{"--export", export(t, log.Files()), "--checkpoint", c.kept}, evidence()
		want := "consistent"
		if c.vkey != "" {
			args, want = append(args, "--vkey", c.vkey), "authentic"
		}
		says(t, audit.ExitPass, want, append(args, "--evidence", dir)...)
		out, n := shell(t, dir)
		readme, err := os.ReadFile(filepath.Join(dir, "README.txt"))
		if err != nil || n != c.commands || strings.Count(out, "Signature Verified Successfully") != 2 || c.left != "" && !strings.Contains(string(readme), c.left) || !strings.Contains(string(readme), "verify.py follows them") {
			t.Errorf("%s: %d commands: %s\n%s", what, n, out, readme)
		}
	}
	// An entry that was changed behind the rotation stands under the newer key's note.
	edited := l.Clone()
	edited.Edit(17, func(e *events.Event) { e.Agent = "other" })
	dir := evidence()
	says(t, audit.ExitFail, "seq 19: chain", "--export", export(t, edited.Files()), "--vkey", l.VKey, "--evidence", dir)
	if out, _ := shell(t, dir); strings.Count(out, "is in the tree of 20 events") < 2 {
		t.Error(out)
	}
	// Under a key that nobody handed over to, nothing is said to be checked with it.
	foreign := l.Files()
	foreign["checkpoint"] = noteBy(l, 20, 9)
	dir = evidence()
	says(t, audit.ExitFail, "checkpoint", "--export", export(t, foreign), "--vkey", l.VKey, "--evidence", dir)
	shell(t, dir)
	if readme, err := os.ReadFile(filepath.Join(dir, "README.txt")); err != nil || !strings.Contains(string(readme), "a way to check the signature of notes/log.note") {
		t.Errorf("%v %s", err, readme)
	}
}

// The base64 of every other key has a plus, which also parts a verifier key.
func TestEvidenceHasEveryKeyForOpenSSL(t *testing.T) {
	pluses := 0
	for i := range 64 {
		signer, vkey, err := note.GenerateKey(rand.New(rand.NewSource(int64(i))), "ledgerd.example/log")
		if err != nil {
			t.Fatal(err)
		}
		key, err := note.NewSigner(signer)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := store.SignCheckpoint(key, store.Checkpoint{Origin: "ledgerd.example/log", Size: 1})
		if err != nil {
			t.Fatal(err)
		}
		b := &dossier{files: map[string][]byte{}, report: &audit.Report{Key: vkey}}
		b.key()
		b.note("log", signed)
		b.readme()
		if strings.Count(vkey, "+") > 2 {
			pluses++
		}
		if b.files["key.pem"] == nil || b.files["notes/log.sig"] == nil || len(b.left) > 0 || !strings.Contains(string(b.files["README.txt"]), "in vkey (C2SP signed note) and key.pem") {
			t.Fatalf("%s: files %v, left out %q", vkey, slices.Sorted(maps.Keys(b.files)), b.left)
		}
	}
	if pluses == 0 {
		t.Error("no key had a plus")
	}
}

func TestEvidenceOfNothingNamesNoFileThatIsNotThere(t *testing.T) {
	b := &dossier{files: map[string][]byte{}, report: &audit.Report{KeySource: "none"}}
	b.key()
	b.readme()
	if got := string(b.files["README.txt"]); strings.Contains(got, "key.pem") || strings.Contains(got, "in vkey") || !strings.Contains(got, "No key of the log is known") {
		t.Error(got)
	}
}

package main

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// promised is a log with what its auditor was given of it: receipts, proofs and
// checkpoints, each in a file.
type promised struct {
	t   testing.TB
	dir string
	log *logtest.Log
}

func promise(t testing.TB) *promised {
	return &promised{t, t.TempDir(), logtest.Sample("ledgerd.example/receipts", 1, 40)}
}

func (p *promised) file(name string, b []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func (p *promised) receipt(seq int) string {
	return p.file(fmt.Sprintf("receipt-%d", seq), receiptOf(p.t, p.log, seq).Encode())
}

func receiptOf(t testing.TB, l *logtest.Log, seq int) *audit.Receipt {
	t.Helper()
	e, err := events.Parse(l.Entries[seq-1])
	if err != nil {
		t.Fatal(err)
	}
	return &audit.Receipt{Origin: l.Origin, Seq: uint64(seq), EventID: events.UUIDString(e.ID), Hash: events.LeafHash(l.Entries[seq-1])}
}

func inclusion(t testing.TB, l *logtest.Log, seq int) []byte {
	t.Helper()
	p, _, err := l.Source().Prove(uint64(seq))
	if err != nil {
		t.Fatal(err)
	}
	return p.Encode()
}

func consistency(t testing.TB, l *logtest.Log, from int) []byte {
	t.Helper()
	p, _, err := l.Source().ProveConsistency(uint64(from))
	if err != nil {
		t.Fatal(err)
	}
	return p.Encode()
}

// TestR81_ReceiptsOffline: with the pinned key a receipt and its proof are
// authentic; everything else is exit 1 with what was expected and found, and
// what has no key to be checked with is exit 2, never a pass.
func TestR81_ReceiptsOffline(t *testing.T) {
	p := promise(t)
	l := p.log
	foreign := logtest.New(l.Origin, 2)
	foreign.Entries = l.Entries
	receipt, vkey := p.receipt(10), "--vkey="+l.VKey
	reply := p.file("reply", []byte(strings.Replace(strings.Replace(string(receiptOf(t, l, 10).Encode()), "receipt.v1", "decision.v1", 1), `"origin"`, `"message"`, 1)))
	ten, eleven := p.file("10", inclusion(t, l, 10)), p.file("11", inclusion(t, l, 11))
	renamed := p.file("renamed", bytes.Replace(inclusion(t, l, 11), []byte("index 10"), []byte("index 9"), 1))
	theirs := p.file("theirs", inclusion(t, foreign, 10))
	unsigned := p.file("unsigned", bytes.Replace(inclusion(t, l, 10), []byte("\n40\n"), []byte("\n41\n"), 1))
	cut := p.file("cut", inclusion(t, l, 10)[:200])
	more := p.file("more", append(inclusion(t, l, 10), 'x'))
	elsewhere := receiptOf(t, l, 10)
	elsewhere.Origin = "ledgerd.example/other"
	other := p.file("other", elsewhere.Encode())
	forked := l.Clone()
	forked.Edit(20, func(e *events.Event) { e.Time++ })
	forked.Relink(21)
	kept, keptOther, keptSmall := p.file("kept", l.Note(40)), p.file("kept-other", forked.Note(40)), p.file("kept-small", l.Note(30))
	for what, c := range map[string]struct {
		args  []string
		exit  int
		check string // that failed
	}{
		"good":                          {[]string{"--receipt", receipt, "--proof", ten, vkey}, 0, ""},
		"the reply itself":              {[]string{"--receipt", reply, "--proof", ten, vkey}, 0, ""},
		"the proof of another event":    {[]string{"--receipt", receipt, "--proof", eleven, vkey}, 1, "inclusion"},
		"and its index changed":         {[]string{"--receipt", receipt, "--proof", renamed, vkey}, 1, "inclusion"},
		"under another key":             {[]string{"--receipt", receipt, "--proof", theirs, vkey}, 1, "checkpoint"},
		"a root that nobody signed":     {[]string{"--receipt", receipt, "--proof", unsigned, vkey}, 1, "checkpoint"},
		"cut off":                       {[]string{"--receipt", receipt, "--proof", cut, vkey}, 1, "proof"},
		"something behind it":           {[]string{"--receipt", receipt, "--proof", more, vkey}, 1, "proof"},
		"another log's receipt":         {[]string{"--receipt", other, "--proof", ten, vkey}, 1, "inclusion"},
		"no key":                        {[]string{"--receipt", receipt, "--proof", ten}, 2, ""},
		"no key, another event":         {[]string{"--receipt", receipt, "--proof", eleven}, 1, "inclusion"},
		"under what was remembered":     {[]string{"--receipt", receipt, "--proof", ten, vkey, "--checkpoint", kept}, 0, ""},
		"another history of that size":  {[]string{"--receipt", receipt, "--proof", ten, vkey, "--checkpoint", keptOther}, 1, "remembered"},
		"remembered at another size":    {[]string{"--receipt", receipt, "--proof", ten, vkey, "--checkpoint", keptSmall}, 2, ""},
		"remembered, with no key":       {[]string{"--receipt", receipt, "--proof", ten, "--checkpoint", kept}, 2, ""},
		"continued":                     {[]string{"--consistency", p.file("c", consistency(t, l, 30)), "--checkpoint", keptSmall, vkey}, 0, ""},
		"continued, with no key":        {[]string{"--consistency", p.file("c", consistency(t, l, 30)), "--checkpoint", keptSmall}, 2, ""},
		"continued from another size":   {[]string{"--consistency", p.file("c29", consistency(t, l, 29)), "--checkpoint", keptSmall, vkey}, 1, "remembered"},
		"another history":               {[]string{"--consistency", p.file("cf", consistency(t, forked, 30)), "--checkpoint", keptSmall, vkey}, 1, "remembered"},
		"two histories of one size":     {[]string{"--consistency", p.file("ce", consistency(t, l, 40)), "--checkpoint", keptOther, vkey}, 1, "remembered"},
		"smaller than remembered":       {[]string{"--consistency", p.file("cs", consistency(t, shortened(l, 30), 20)), "--checkpoint", kept, vkey}, 1, "remembered"},
		"continued under another key":   {[]string{"--consistency", p.file("ck", consistency(t, foreign, 30)), "--checkpoint", keptSmall, vkey}, 1, "checkpoint"},
		"an inclusion proof instead":    {[]string{"--consistency", ten, "--checkpoint", keptSmall, vkey}, 1, "proof"},
		"a checkpoint instead":          {[]string{"--consistency", kept, "--checkpoint", keptSmall, vkey}, 1, "proof"},
		"a receipt as its own proof":    {[]string{"--receipt", receipt, "--proof", receipt, vkey}, 1, "proof"},
		"remembered under another key":  {[]string{"--consistency", p.file("c", consistency(t, l, 30)), "--checkpoint", p.file("kf", foreign.Note(30)), vkey}, 2, ""},
		"a consistency proof of itself": {[]string{"--consistency", p.file("c40", consistency(t, l, 40)), "--checkpoint", kept, vkey}, 0, ""},
	} {
		exit, r := verifyJSON(t, c.args...)
		if exit != c.exit || c.check != "" && !failed(r, c.check) {
			t.Errorf("%s: exit %d, want %d with %q: %+v", what, exit, c.exit, c.check, r)
		}
		if (exit == 0) != (r.Verdict == "authentic") {
			t.Errorf("%s: %s", what, r.Verdict)
		}
		for _, f := range r.Faults {
			if f.Expected == "" || f.Found == "" || strings.Contains(what, "instead") != strings.Contains(f.Found, "is it the right one?") && !strings.Contains(what, "its own proof") {
				t.Errorf("%s: %+v", what, f)
			}
		}
		if exit == 1 && len(r.Faults) == 0 {
			t.Errorf("%s: no fault", what)
		}
		if !strings.Contains(open(r), "history") && !strings.Contains(strings.Join(c.args, " "), "--checkpoint") {
			t.Errorf("%s: it is not said that completeness was not checked: %q", what, open(r))
		}
	}
}

func shortened(l *logtest.Log, n int) *logtest.Log {
	s := l.Clone()
	s.Entries = s.Entries[:n]
	return s
}

// TestR81_ReceiptsAgainstTheLog: the log holds exactly the event of the receipt,
// or it is exit 1.
func TestR81_ReceiptsAgainstTheLog(t *testing.T) {
	p := promise(t)
	dir := export(t, p.log.Files())
	changed := receiptOf(t, p.log, 10)
	changed.EventID = receiptOf(t, p.log, 11).EventID
	moved := receiptOf(t, p.log, 10)
	moved.Seq = 11
	beyond := receiptOf(t, p.log, 10)
	beyond.Seq = 41
	elsewhere := receiptOf(t, p.log, 10)
	elsewhere.Origin = "ledgerd.example/other"
	for what, c := range map[string]struct {
		receipt *audit.Receipt
		exit    int
	}{
		"good": {receiptOf(t, p.log, 10), 0}, "another id": {changed, 1}, "another seq": {moved, 1}, "beyond the end": {beyond, 1}, "another log": {elsewhere, 1},
	} {
		exit, r := verifyJSON(t, "--export", dir, "--receipt", p.file("r", c.receipt.Encode()), "--vkey", p.log.VKey)
		if exit != c.exit || failed(r, "receipt") != (c.exit == 1) {
			t.Errorf("%s: exit %d: %+v", what, exit, r)
		}
		if c.exit == 1 && (len(r.Faults) != 1 || r.Faults[0].Seq != c.receipt.Seq) {
			t.Errorf("%s: %+v", what, r)
		}
	}
	rewritten := p.log.Clone()
	rewritten.Edit(9, func(e *events.Event) { e.Time++ })
	rewritten.Relink(10)
	exit, r := verifyJSON(t, "--export", export(t, rewritten.Files()), "--receipt", p.receipt(10), "--vkey", p.log.VKey)
	if exit != 1 || !failed(r, "receipt") || len(r.Faults) != 1 {
		t.Errorf("a log written anew: exit %d: %+v", exit, r)
	}
}

// TestR81_WitnessesOfAProof: a proof may carry cosignatures, and be asked for them.
func TestR81_WitnessesOfAProof(t *testing.T) {
	p := promise(t)
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	line, witness := audit.Cosign("witness.example/w", key, time.Now(), p.log.Note(40))
	seen := append(p.log.Note(40), line...)
	proof, err := audit.ParseInclusionProof(inclusion(t, p.log, 10))
	if err != nil {
		t.Fatal(err)
	}
	con, err := audit.ParseConsistencyProof(consistency(t, p.log, 30))
	if err != nil {
		t.Fatal(err)
	}
	alone, kept := [2]string{p.file("alone", proof.Encode()), p.file("con", con.Encode())}, p.file("kept", p.log.Note(30))
	proof.Checkpoint, con.Checkpoint = seen, seen
	cosigned := [2]string{p.file("cosigned", proof.Encode()), p.file("con-cosigned", con.Encode())}
	for exit, files := range map[int][2]string{0: cosigned, 1: alone} {
		for i, args := range [][]string{{"--receipt", p.receipt(10), "--proof"}, {"--checkpoint", kept, "--consistency"}} {
			got, r := verifyJSON(t, append(args, files[i], "--vkey", p.log.VKey, "--require-quorum", "1", "--witness", witness)...)
			if got != exit || failed(r, "witnesses") != (exit == 1) {
				t.Errorf("%v %s: exit %d: %+v", args, files[i], got, r)
			}
		}
	}
}

// TestReceiptArguments: what cannot be asked, or read, is exit 2.
func TestReceiptArguments(t *testing.T) {
	p := promise(t)
	receipt, proof, kept := p.receipt(10), p.file("10", inclusion(t, p.log, 10)), p.file("kept", p.log.Note(30))
	con := p.file("con", consistency(t, p.log, 30))
	for _, args := range [][]string{
		{"--proof", proof}, {"--receipt", receipt}, {"--consistency", con}, {"--proof", "", "--receipt", receipt}, {"--proof", proof, "--receipt", ""},
		{"--proof", proof, "--receipt", receipt, "--consistency", con, "--checkpoint", kept}, {"--proof", proof, "--receipt", receipt, "--export", p.dir},
		{"--proof", proof, "--receipt", receipt, "--replay"}, {"--consistency", con, "--checkpoint", kept, "--receipt", receipt}, {"--consistency", con, "--checkpoint", kept, "--replay"},
		{"--proof", "none", "--receipt", receipt}, {"--proof", proof, "--receipt", "none"}, {"--consistency", "none", "--checkpoint", kept}, {"--consistency", con, "--checkpoint", "none"},
		{"--proof", proof, "--receipt", receipt, "--vkey", "x"}, {"--proof", proof, "--receipt", proof}, {"--consistency", con, "--checkpoint", kept, "--vkey", "x"},
		{"--proof", p.file("long", make([]byte, audit.ProofBytesMax+1)), "--receipt", receipt},
	} {
		var out, errs bytes.Buffer
		if exit := run(args, nil, &out, &errs); exit != audit.ExitImpossible || errs.Len() == 0 || out.Len() > 0 {
			t.Errorf("%v: exit %d\n%s%s", args, exit, out.String(), errs.String())
		}
	}
}

const proofVectors = "../../docs/format/vectors/proofs"

// TestR84_ProofsInPython: the second implementation agrees on the published
// receipts and proofs, and on each of them with one bit of any byte changed:
// nothing but the event's id, which no proof shows, can change unnoticed.
func TestR84_ProofsInPython(t *testing.T) {
	if exit, out := python(t, "--vectors", proofVectors); exit != 0 || !strings.HasPrefix(out, "vectors agree: 197 receipts and proofs") {
		t.Errorf("exit %d: %s", exit, out)
	}
	p := promise(t)
	vectors := map[string][]byte{}
	for _, name := range []string{"receipt.json", "10.tlog-proof", "remembered", "newer.consistency", "cases.jsonl"} {
		b, err := os.ReadFile(filepath.Join(proofVectors, name))
		if err != nil {
			t.Fatal(err)
		}
		vectors[name] = b
		p.file(name, b)
	}
	b, err := os.ReadFile(filepath.Join(proofVectors, "vkey"))
	if err != nil {
		t.Fatal(err)
	}
	p.file("vkey", b)
	p.file("cases.jsonl", bytes.Replace(vectors["cases.jsonl"], []byte(`"exit":1`), []byte(`"exit":0`), 1))
	if exit, out := python(t, "--vectors", p.dir); exit != 1 {
		t.Errorf("a wrong list is taken: exit %d: %s", exit, out)
	}
	both := func(args ...string) int {
		var out, errs bytes.Buffer
		exit := run(append(args, "--vkey", "@"+filepath.Join(p.dir, "vkey")), nil, &out, &errs)
		other, said := python(t, append(args, "--vkey", "@"+filepath.Join(p.dir, "vkey"))...)
		if exit != other {
			t.Errorf("exit %d, in Python %d\n%s%s%s", exit, other, out.String(), errs.String(), said)
		}
		return exit
	}
	proven := []string{"--receipt", filepath.Join(p.dir, "receipt.json"), "--proof", filepath.Join(p.dir, "10.tlog-proof")}
	continued := []string{"--consistency", filepath.Join(p.dir, "newer.consistency"), "--checkpoint", filepath.Join(p.dir, "remembered")}
	if both(proven...) != 0 || both(continued...) != 0 {
		t.Fatal("the vectors are not good")
	}
	checked := 0
	for name, args := range map[string][]string{"receipt.json": proven, "10.tlog-proof": proven, "newer.consistency": continued, "remembered": continued} {
		id := bytes.Index(vectors[name], []byte("-7000-8000-"))
		for i := range vectors[name] {
			b := bytes.Clone(vectors[name])
			b[i] ^= 1 << (i % 8)
			p.file(name, b)
			shown := both(args...) == 0
			blank := bytes.TrimSpace(b)
			harmless := name == "receipt.json" && (id >= 0 && i >= id-13 && i < id+23 || len(blank) < len(vectors[name])-1 || i == len(b)-1)
			if shown && !harmless {
				t.Errorf("%s: byte %d changed from %q to %q is not noticed", name, i, vectors[name][i], b[i])
			}
			checked++
		}
		p.file(name, vectors[name])
	}
	t.Logf("%d changed files", checked)
}

// TestR84_ReceiptsOfAnExportInPython: as the verifier in Go says.
func TestR84_ReceiptsOfAnExportInPython(t *testing.T) {
	p := promise(t)
	dir := export(t, p.log.Files())
	for seq, exit := range map[int]int{1: 0, 10: 0, 40: 0, 41: 1} {
		r := receiptOf(t, p.log, min(seq, 40))
		r.Seq = uint64(seq)
		for _, change := range []func(){func() {}, func() { r.EventID = "01937a1b-2c02-7000-8000-000000000002"; exit = 1 }, func() { r.Hash[0] ^= 1 }} {
			change()
			args := []string{"--receipt", p.file("r", r.Encode()), "--vkey", p.log.VKey}
			got, _ := verifyJSON(t, append([]string{"--export", dir}, args...)...)
			other, said := python(t, append([]string{dir}, args...)...)
			if got != exit || other != exit {
				t.Errorf("%d: exit %d, in Python %d, want %d: %s", seq, got, other, exit, said)
			}
		}
	}
	for _, args := range [][]string{{"--proof", "x"}, {"--receipt", "x"}, {"--consistency", "x"}, {dir, "--receipt", "none"}, {dir, "--proof", "x", "--receipt", "x"}} {
		if exit, out := python(t, args...); exit != 2 {
			t.Errorf("%v: exit %d: %s", args, exit, out)
		}
	}
}

package audit_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

const proofVectors = "../../docs/format/vectors/proofs"

// proofCase is one line of cases.jsonl.
type proofCase struct {
	Kind       string `json:"kind"`
	Why        string `json:"why"`
	Receipt    []byte `json:"receipt,omitempty"`
	Remembered []byte `json:"remembered,omitempty"`
	Proof      []byte `json:"proof,omitempty"`
	Rotations  []byte `json:"rotations,omitempty"`
	Exit       int    `json:"exit"`
}

// exit is what this implementation makes of a case.
func (c *proofCase) exit(key *audit.Keys) int {
	var err error
	switch c.Kind {
	case "inclusion", "rotated":
		if c.Kind == "rotated" {
			if key, err = key.Follow(c.Rotations); err != nil {
				return audit.ExitFail
			}
		}
		r, bad := audit.ParseReceipt(c.Receipt)
		if bad != nil {
			return audit.ExitImpossible
		}
		var p *audit.InclusionProof
		if p, err = audit.ParseInclusionProof(c.Proof); err == nil {
			_, err = p.Check(r, key)
		}
	case "consistency":
		var p *audit.ConsistencyProof
		if p, err = audit.ParseConsistencyProof(c.Proof); err == nil {
			kept, bad := key.Open(c.Remembered)
			if bad != nil || kept.Size == 0 {
				return audit.ExitImpossible
			}
			_, err = p.Check(kept, key)
		}
	default:
		if _, err := audit.ParseReceipt(c.Receipt); err != nil {
			return audit.ExitImpossible
		}
	}
	if err != nil {
		return audit.ExitFail
	}
	return audit.ExitPass
}

// TestR84_ProofVectors: the published receipts and proofs, good and spoilt, are
// what they are said to be; docs/format/verify.py reads the same list.
func TestR84_ProofVectors(t *testing.T) {
	if *update {
		writeProofVectors(t)
	}
	b, err := os.ReadFile(filepath.Join(proofVectors, "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	vkey, err := os.ReadFile(filepath.Join(proofVectors, "vkey"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := audit.Pin(string(bytes.TrimSpace(vkey)))
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range bytes.Lines(b) {
		var c proofCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if got := c.exit(key); got != c.Exit {
			t.Errorf("%s: %s: %d, want %d", c.Kind, c.Why, got, c.Exit)
		}
		count[fmt.Sprint(c.Kind, c.Exit)]++
	}
	for _, kind := range []string{"inclusion0", "inclusion1", "inclusion2", "consistency0", "consistency1", "consistency2", "rotated0", "rotated1", "receipt0", "receipt2"} {
		if count[kind] == 0 {
			t.Errorf("no case of %s: %v", kind, count)
		}
	}
	t.Log(count)
}

// writeProofVectors makes them from a log of 40 events.
func writeProofVectors(t *testing.T) {
	t.Helper()
	l := logtest.Sample("ledgerd.example/proofs/1", 1, 40)
	v := &vectorList{t: t, log: l, forked: l.Clone(), foreign: logtest.New(l.Origin, 2)}
	v.foreign.Entries = l.Entries
	v.forked.Edit(20, func(e *events.Event) { e.Time++ })
	v.forked.Relink(21)
	v.inclusions()
	v.consistencies()
	v.receipts()
	shown := v.rotations()
	if err := os.MkdirAll(proofVectors, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"vkey": []byte(l.VKey + "\n"), "receipt.json": receiptOf(l, 10).Encode(), "10.tlog-proof": v.proof(l, 10).Encode(),
		"remembered": l.Note(30), "newer.consistency": v.continuity(l, 30).Encode(), "cases.jsonl": v.out.Bytes(), "log.rotations": shown,
	} {
		if err := os.WriteFile(filepath.Join(proofVectors, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type vectorList struct {
	t                    *testing.T
	log, forked, foreign *logtest.Log
	out                  bytes.Buffer
}

func (v *vectorList) add(c proofCase) {
	b, err := json.Marshal(c)
	if err != nil {
		v.t.Fatal(err)
	}
	v.out.Write(append(b, '\n'))
}

func (v *vectorList) proof(l *logtest.Log, seq int) *audit.InclusionProof {
	p, _, err := l.Source().Prove(uint64(seq))
	if err != nil {
		v.t.Fatal(err)
	}
	return p
}

func (v *vectorList) continuity(l *logtest.Log, from int) *audit.ConsistencyProof {
	p, _, err := l.Source().ProveConsistency(uint64(from))
	if err != nil {
		v.t.Fatal(err)
	}
	return p
}

// head is the first n events of a log.
func head(l *logtest.Log, n int) *logtest.Log {
	c := l.Clone()
	c.Entries = c.Entries[:n]
	return c
}

func (v *vectorList) inclusions() {
	l := v.log
	add := func(why string, r *audit.Receipt, proof []byte, exit int) {
		v.add(proofCase{Kind: "inclusion", Why: why, Receipt: r.Encode(), Proof: proof, Exit: exit})
	}
	for _, seq := range []int{1, 2, 10, 32, 33, 39, 40} {
		add(fmt.Sprintf("event %d of 40", seq), receiptOf(l, seq), v.proof(l, seq).Encode(), 0)
	}
	for _, size := range []int{1, 2, 3, 7, 8, 9} {
		add(fmt.Sprintf("the last of %d events", size), receiptOf(l, size), v.proof(head(l, size), size).Encode(), 0)
	}
	ten, receipt := v.proof(l, 10), receiptOf(l, 10)
	extra := *ten
	extra.Extra = []byte("said by nobody")
	add("extra data", receipt, extra.Encode(), 0)
	v.add(proofCase{Kind: "inclusion", Why: "the receipt is a reply", Receipt: replyOf(receipt), Proof: ten.Encode()})
	add("a signature of another beside its own", receipt, append(ten.Encode(), "— witness.example/w AAAAAAAA\n"...), 0)
	add("the proof of the next event", receipt, v.proof(l, 11).Encode(), 1)
	add("the proof of the next event, its index changed", receipt, bytes.Replace(v.proof(l, 11).Encode(), []byte("index 10"), []byte("index 9"), 1), 1)
	add("another key", receipt, v.proof(v.foreign, 10).Encode(), 1)
	add("the same event in another history", receiptOf(l, 30), v.proof(v.forked, 30).Encode(), 1)
	elsewhere, moved, changed := *receipt, *receipt, *receipt
	elsewhere.Origin, moved.Seq, changed.Hash[0] = "ledgerd.example/proofs/2", 11, receipt.Hash[0]^1
	add("a receipt of another log", &elsewhere, ten.Encode(), 1)
	add("a receipt of another seq", &moved, ten.Encode(), 1)
	add("a receipt of another hash", &changed, ten.Encode(), 1)
	v.spoiltPaths(ten.Hashes, func(why string, hashes []events.Hash) {
		p := *ten
		p.Hashes = hashes
		add(why, receipt, p.Encode(), 1)
	})
	for _, root := range []events.Hash{{}, events.LeafHash(nil), logtest.Root(l.Leaves()[:39])} {
		p := *ten
		p.Checkpoint = l.Sign(fmt.Sprintf("%s\n40\n%s\n", l.Origin, base64Of(root)))
		add("a signed root that is another", receipt, p.Encode(), 1)
	}
	for size := range 4 {
		p := *ten
		p.Checkpoint = l.Note(size * 3)
		add("a checkpoint that ends before", receipt, p.Encode(), 1)
	}
	v.spoiltFiles(string(ten.Encode()), func(why, file string) { add(why, receipt, []byte(file), 1) })
	v.add(proofCase{Kind: "inclusion", Why: "a receipt that is none", Receipt: []byte("{}"), Proof: ten.Encode(), Exit: 2})
}

func replyOf(r *audit.Receipt) []byte {
	return fmt.Appendf(nil, `{"type":"io.ledgerd.decision.v1","allowed":true,"seq":%d,"event_id":"%s","hash":"%s","record":{"seq":1}}`, r.Seq, r.EventID, r.Hash)
}

// spoiltPaths are hashes that lead nowhere.
func (v *vectorList) spoiltPaths(hashes []events.Hash, add func(why string, hashes []events.Hash)) {
	add("without its first hash", hashes[1:])
	add("without its last hash", hashes[:len(hashes)-1])
	add("without hashes", nil)
	add("with one hash more", append(slices.Clone(hashes), hashes[0]))
	add("with one hash before", append([]events.Hash{hashes[0]}, hashes...))
	for i := range hashes {
		c := slices.Clone(hashes)
		c[i][i] ^= 1 << (i % 8)
		add(fmt.Sprintf("a bit of hash %d flipped", i), c)
	}
	for i := range hashes[1:] {
		c := slices.Clone(hashes)
		c[i], c[i+1] = c[i+1], c[i]
		add(fmt.Sprintf("hashes %d and %d swapped", i, i+1), c)
	}
}

// spoiltFiles are files that are none: for either kind of proof.
func (v *vectorList) spoiltFiles(file string, add func(why, file string)) {
	first := base64.StdEncoding.EncodeToString([]byte(file)) // any text that is base64 and no hash
	lines := strings.SplitAfter(file, "\n")
	note := strings.Index(file, "\n\n") + 2
	for _, n := range []int{0, 1, len(lines[0]), len(file) / 2, note - 1, note, note + 20, len(file) - 1} {
		add(fmt.Sprintf("its first %d bytes", n), file[:n])
	}
	add("a byte behind it", file+"x")
	add("a line feed behind it", file+"\n")
	add("a byte before it", " "+file)
	add("carriage returns", strings.ReplaceAll(file, "\n", "\r\n"))
	add("a line that is no hash", file[:note-1]+"x\n"+file[note-1:])
	add("a line of base64 that is no hash", file[:note-1]+first+"\n"+file[note-1:])
	add("base64 that is not canonical", strings.Replace(file, "=\n", "\n", 1))
	add("64 hashes", file[:note-1]+strings.Repeat(base64Of(events.Hash{1})+"\n", 64)+file[note-1:])
	add("an empty line more", file[:note]+"\n"+file[note:])
	add("no empty line", strings.Replace(file, "\n\n", "\n", 1))
	add("an extension line", strings.Replace(file, "\n\n—", "\nextension\n\n—", 1))
	add("no signature", file[:strings.LastIndex(file, "—")])
	add("its signature twice", file+lines[len(lines)-2])
	add("101 signatures", file+strings.Repeat("— w AAAAAAAA\n", 100))
	add("a control character in a name", file+"— w\x01 AAAAAAAA\n")
	add("a name with white space", file+"— w\u00a0x AAAAAAAA\n")
	add("no UTF-8", file+"— w\xff AAAAAAAA\n")
	add("a signature line without its dash", file+"w AAAAAAAA\n")
	add("another size, as it was signed", strings.Replace(file, "\n40\n", "\n41\n", 1))
	add("a number with a leading zero", numbered(file, "0"))
	add("a number with a sign", numbered(file, "+"))
	add("a number with a blank", numbered(file, " "))
	add("a number beyond 2^53", numbered(file, "9007199254740992"))
	add("another origin", strings.Replace(file, "proofs/1\n", "proofs/2\n", 1))
	add("two files", file+file)
}

// numbered puts s before the digits of the proof's own number.
func numbered(file, s string) string {
	for _, word := range []string{"index ", "old "} {
		if before, after, ok := strings.Cut(file, word); ok {
			return before + word + s + after
		}
	}
	panic("no number")
}

func (v *vectorList) consistencies() {
	l := v.log
	add := func(why string, remembered, proof []byte, exit int) {
		v.add(proofCase{Kind: "consistency", Why: why, Remembered: remembered, Proof: proof, Exit: exit})
	}
	for _, from := range []int{1, 2, 6, 8, 30, 32, 33, 39, 40} {
		add(fmt.Sprintf("from %d to 40", from), l.Note(from), v.continuity(l, from).Encode(), 0)
	}
	p, kept := v.continuity(l, 30), l.Note(30)
	add("a smaller one", l.Note(40), v.continuity(head(l, 30), 30).Encode(), 1)
	add("another of the same size", l.Note(40), v.continuity(v.forked, 40).Encode(), 1)
	add("another history", kept, v.continuity(v.forked, 30).Encode(), 1)
	add("another key", kept, v.continuity(v.foreign, 30).Encode(), 1)
	add("from another size", kept, v.continuity(l, 29).Encode(), 1)
	add("from another size, its number changed", kept, bytes.Replace(v.continuity(l, 29).Encode(), []byte("old 29"), []byte("old 30"), 1), 1)
	add("from no events", kept, []byte("old 0\n\n"+string(l.Note(40))), 1)
	add("an inclusion proof", kept, v.proof(l, 30).Encode(), 1)
	v.spoiltPaths(p.Hashes, func(why string, hashes []events.Hash) {
		c := *p
		c.Hashes = hashes
		add(why, kept, c.Encode(), 1)
	})
	v.spoiltFiles(string(p.Encode()), func(why, file string) { add(why, kept, []byte(file), 1) })
	add("remembered under another key", v.foreign.Note(30), p.Encode(), 2)
	add("remembered, and signed by nobody", bytes.Replace(l.Note(30), []byte("\n30\n"), []byte("\n29\n"), 1), p.Encode(), 2)
	add("remembered, and no checkpoint", []byte("x"), p.Encode(), 2)
	add("remembered, and of no events", l.Sign(l.Text(0)), p.Encode(), 2)
}

func (v *vectorList) receipts() {
	r := receiptOf(v.log, 10)
	file := string(r.Encode())
	add := func(why, file string, exit int) {
		v.add(proofCase{Kind: "receipt", Why: why, Receipt: []byte(file), Exit: exit})
	}
	add("as it is written", file, 0)
	add("with white space", strings.ReplaceAll(file, ",", " ,\n\t"), 0)
	add("in another order", fmt.Sprintf(`{"hash":"%s","event_id":"%s","seq":10,"origin":"%s","type":"io.ledgerd.receipt.v1"}`, r.Hash, r.EventID, r.Origin), 0)
	add("a reply", string(replyOf(r)), 0)
	for _, c := range [][2]string{
		{"empty", ""}, {"a list", "[" + file + "]"}, {"a text", `"x"`}, {"cut off", file[:60]}, {"something behind it", file + "x"}, {"two", file + file}, {"a mark before it", "\ufeff" + file},
		{"no UTF-8", strings.Replace(file, "ledgerd.example", "ledgerd.\xff", 1)}, {"another type", strings.Replace(file, "receipt.v1", "receipt.v2", 1)}, {"no type", strings.Replace(file, `"type"`, `"kind"`, 1)},
		{"a member more", strings.Replace(file, `,"seq"`, `,"x":1,"seq"`, 1)}, {"a member twice", strings.Replace(file, `,"seq"`, `,"seq":10,"seq"`, 1)}, {"a member twice, escaped", strings.Replace(file, `,"seq"`, `,"\u0073eq":10,"seq"`, 1)},
		{"no origin", strings.Replace(file, `"origin":"`+r.Origin+`",`, "", 1)}, {"an empty origin", strings.Replace(file, r.Origin, "", 1)}, {"an origin with a blank", strings.Replace(file, r.Origin, "a b", 1)},
		{"seq 0", strings.Replace(file, ":10,", ":0,", 1)}, {"seq below 0", strings.Replace(file, ":10,", ":-10,", 1)}, {"seq as text", strings.Replace(file, ":10,", `:"10",`, 1)},
		{"seq with a fraction", strings.Replace(file, ":10,", ":10.0,", 1)}, {"seq with an exponent", strings.Replace(file, ":10,", ":1e1,", 1)}, {"seq beyond 2^53", strings.Replace(file, ":10,", ":9007199254740992,", 1)},
		{"a hash in upper case", strings.Replace(file, r.Hash.String(), strings.ToUpper(r.Hash.String()), 1)}, {"a short hash", strings.Replace(file, r.Hash.String(), r.Hash.String()[1:], 1)}, {"a hash of zeros", strings.Replace(file, r.Hash.String(), events.Hash{}.String(), 1)},
		{"an id of version 4", strings.Replace(file, r.EventID, "01937a1b-2c02-4000-8000-000000000002", 1)}, {"an id in upper case", strings.Replace(file, r.EventID, "01937A1B-2C02-7000-8000-000000000002", 1)},
		{"a refusal", `{"type":"io.ledgerd.error.v1","reason_code":"overloaded","message":"x"}`}, {"a reply that was not judged", `{"type":"io.ledgerd.decision.v1","allowed":false}`},
	} {
		add(c[0], c[1], 2)
	}
}

// TestProofsAreFaultsOrImpossible: an error of a check is a fault, which says
// what was expected and found, for every spoilt proof that can be read.
func TestProofsAreFaultsOrImpossible(t *testing.T) {
	l, key := small(t, 13)
	p, _, err := l.Source().Prove(10)
	if err != nil {
		t.Fatal(err)
	}
	for i, hashes := range wrong(p.Hashes) {
		bad := *p
		bad.Hashes = hashes
		var f *audit.Fault
		if _, err := bad.Check(receiptOf(l, 10), key); !errors.As(err, &f) || f.Seq != 10 || !strings.Contains(f.Expected, receiptOf(l, 10).Hash.String()) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
)

// evidencing writes down what a verdict rests on, for somebody who has neither
// the log nor this program.
var evidencing = part{
	usage: `  --evidence DIR     write what the verdict rests on to DIR, which must not exist or be empty: notes, the entries at fault and
                     beside it, proofs, and how to check each without this program
`,
	flags: func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.evidence, "evidence", "", "") },
	refuse: func(a *arguments, given map[string]bool) error {
		return refuseEmpty(given, "directory", map[string]string{"evidence": a.evidence})
	},
	options: func(a *arguments, _ *audit.Options) error { // better now than after hours
		if a.evidence == "" {
			return nil
		}
		if names, err := os.ReadDir(a.evidence); err == nil && len(names) > 0 {
			return fmt.Errorf("%s is not empty", a.evidence)
		}
		return os.MkdirAll(a.evidence, 0o755)
	},
	then: func(a *arguments, s *subject, r *audit.Report) error {
		if a.evidence == "" {
			return nil
		}
		r.Settle()
		b := &dossier{files: map[string][]byte{}, report: r}
		if err := b.gather(a, s); err != nil {
			return fmt.Errorf("evidence: %w", err)
		}
		return b.write(a.evidence)
	},
}

const evidenceFaults = 20 // whose entries are gathered

// dossier is the evidence of one verdict.
type dossier struct {
	files  map[string][]byte
	report *audit.Report
	howTo  strings.Builder
	left   []string // what is not in it, and why

	keys *audit.Keys // that the notes are to be signed by, nil where none is known
	with string      // how the Python program is told of them
}

func (b *dossier) gather(a *arguments, s *subject) error {
	report, err := json.MarshalIndent(b.report, "", "  ")
	if err != nil {
		return err
	}
	b.files["report.json"] = append(report, '\n')
	b.key()
	var source *audit.Source
	if s.log != nil {
		if source, err = s.log(); err != nil {
			b.left = append(b.left, "the log: it cannot be read: "+err.Error())
			source = nil
		}
	}
	if source != nil {
		b.follow(source)
		b.note("log", source.Checkpoint)
	}
	for name, path := range map[string]string{"remembered": a.checkpoint, "compared-1": a.compared[0], "compared-2": a.compared[1]} {
		if path == "" {
			continue
		}
		signed, err := readSmall(path)
		if err != nil {
			return err
		}
		b.note(name, signed)
	}
	if source != nil {
		b.entries(source)
		b.consistency(source)
	}
	b.readme()
	return nil
}

// key writes the verifier keys, and in a form that openssl reads: the one that was
// asked about, and the others that the log has had.
func (b *dossier) key() {
	if b.report.Key == "" {
		return
	}
	b.files["vkey"], b.with = []byte(b.report.Key+"\n"), "--vkey @vkey"
	b.keys, _ = audit.Pin(b.report.Key)
	for _, vkey := range b.vkeys() {
		raw, err := base64.StdEncoding.DecodeString(events.KeyText(vkey))
		if err != nil || len(raw) != 1+ed25519.PublicKeySize || raw[0] != 1 {
			continue
		}
		if der, err := x509.MarshalPKIXPublicKey(ed25519.PublicKey(raw[1:])); err == nil {
			b.files[b.pem(vkey)] = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		}
	}
}

// vkeys are the keys of the log, the one that was asked about first.
func (b *dossier) vkeys() []string {
	list := []string{b.report.Key}
	for _, vkey := range slices.Backward(b.report.Keys) {
		if vkey != b.report.Key {
			list = append(list, vkey)
		}
	}
	return list
}

// pem is the file of a key for openssl.
func (b *dossier) pem(vkey string) string {
	key, err := note.NewVerifier(vkey)
	if vkey == b.report.Key || err != nil {
		return "key.pem"
	}
	return fmt.Sprintf("keys/%08x.pem", key.KeyHash())
}

// follow writes how the key that was asked about handed over to the others.
func (b *dossier) follow(source *audit.Source) {
	if len(b.report.Keys) < 2 || b.keys == nil {
		return
	}
	list, err := source.Rotations()
	shown := audit.EncodeRotations(list)
	if err == nil {
		var keys *audit.Keys
		if keys, err = b.keys.Follow(shown); err == nil {
			b.keys, b.files["rotations"], b.with = keys, shown, "--vkey @vkey --rotations rotations"
			return
		}
	}
	b.left = append(b.left, "the rotations, by which the key in vkey handed over to those in keys: the log gives none that hold: "+err.Error())
}

// note writes a signed checkpoint, and its text and signature apart.
func (b *dossier) note(name string, signed []byte) {
	if signed == nil {
		return
	}
	b.files["notes/"+name+".note"] = signed
	text, lines, _ := strings.Cut(string(signed), "\n\n")
	for _, vkey := range b.vkeys() {
		key, err := note.NewVerifier(vkey)
		if err != nil || b.files[b.pem(vkey)] == nil {
			continue
		}
		for line := range strings.Lines(lines) {
			b64, ours := strings.CutPrefix(line, "— "+key.Name()+" ")
			sig, err := base64.StdEncoding.DecodeString(strings.TrimSpace(b64))
			if err != nil || !ours || len(sig) != 4+ed25519.SignatureSize || binary.BigEndian.Uint32(sig) != key.KeyHash() {
				continue
			}
			b.files["notes/"+name+".text"] = []byte(text + "\n")
			b.files["notes/"+name+".sig"] = sig[4:]
			fmt.Fprintf(&b.howTo, "The signature of notes/%s.note (its text and signature apart are the other two files):\n  openssl pkeyutl -verify -pubin -inkey %s -rawin -in notes/%s.text -sigfile notes/%s.sig\n\n", name, b.pem(vkey), name, name)
			return
		}
	}
	what := "it has none by the key in vkey"
	if b.report.Key == "" {
		what = "no key is known to be the log's"
	}
	b.left = append(b.left, "a way to check the signature of notes/"+name+".note: "+what)
}

// opens reports whether the keys have signed a note, so that the Python program
// takes what is proved under it.
func (b *dossier) opens(signed []byte) bool {
	if b.keys == nil {
		return false
	}
	_, err := b.keys.Open(signed)
	return err == nil
}

// entries writes the entries at fault and those beside them, each with a proof
// where the log's tree gives one.
func (b *dossier) entries(source *audit.Source) {
	wanted := map[uint64]bool{}
	for i, f := range b.report.Faults {
		if i == evidenceFaults {
			b.left = append(b.left, fmt.Sprintf("the entries of %d faults beyond the first %d", len(b.report.Faults)-i, evidenceFaults))
			break
		}
		if f.Seq == 0 {
			continue
		}
		for _, seq := range []uint64{f.Seq - 1, f.Seq, f.Seq + 1, f.To} {
			if 0 < seq && seq <= source.Size {
				wanted[seq] = true
			}
		}
	}
	linked := false
	for _, seq := range slices.Sorted(maps.Keys(wanted)) {
		var entry []byte
		err := source.Events(seq, seq, func(_ uint64, e []byte) error {
			entry = slices.Clone(e)
			return nil
		})
		if err != nil || entry == nil {
			b.left = append(b.left, fmt.Sprintf("entry %d: it cannot be read: %v", seq, err))
			continue
		}
		b.files[fmt.Sprintf("entries/%d.event", seq)] = entry
		b.prove(source, seq)
		if !linked && b.files[fmt.Sprintf("entries/%d.event", seq-1)] != nil {
			linked = true
			fmt.Fprintf(&b.howTo, "The chain: the hash of an entry after a zero byte is what the next one names as its prev. These two are one text if entry %d follows on entry %d:\n  (printf '\\000'; cat entries/%d.event) | sha256sum\n  grep -o '\"prev\":\"[0-9a-f]*\"' entries/%d.event\n\n", seq, seq-1, seq-1, seq)
		}
	}
}

func (b *dossier) prove(source *audit.Source, seq uint64) {
	p, event, err := source.Prove(seq)
	if err != nil {
		b.left = append(b.left, fmt.Sprintf("a proof of entry %d: the log's tree gives none: %v", seq, err))
		return
	}
	e, err := events.Parse(event)
	if err != nil {
		b.left = append(b.left, fmt.Sprintf("a receipt of entry %d: it is no event: %v", seq, err))
		return
	}
	r := audit.Receipt{Origin: b.report.Origin, Seq: seq, EventID: events.UUIDString(e.ID), Hash: events.LeafHash(event)}
	proof, receipt := fmt.Sprintf("proofs/%d.tlog-proof", seq), fmt.Sprintf("proofs/%d.receipt", seq)
	b.files[proof], b.files[receipt] = p.Encode(), r.Encode()
	if !b.opens(p.Checkpoint) {
		b.left = append(b.left, fmt.Sprintf("a way to check %s with a key: none that is known to be the log's has signed its note", proof))
		return
	}
	fmt.Fprintf(&b.howTo, "Entry %d is in the log that notes/log.note signs (docs/format/verify.py of ledgerd is one reader of C2SP tlog-proof; the hash in the receipt is that of the chain, above):\n  python3 verify.py --receipt %s --proof %s %s\n\n", seq, receipt, proof, b.with)
}

// consistency writes the proof that the log grew out of what was remembered.
func (b *dossier) consistency(source *audit.Source) {
	remembered := b.files["notes/remembered.note"]
	c, err := audit.ReadCheckpoint(remembered)
	if remembered == nil || err != nil {
		return
	}
	p, root, err := source.ProveConsistency(c.Size)
	switch {
	case err != nil:
		b.left = append(b.left, "a proof that the log grew out of notes/remembered.note: there is none: "+err.Error())
	case root != c.Root:
		b.left = append(b.left, fmt.Sprintf("a proof that the log grew out of notes/remembered.note: there can be none; at size %d the log's root is %s, the remembered one %s. Both notes, signed by one key, are proof that it signed two histories", c.Size, root, c.Root))
	case !b.opens(remembered) || !b.opens(p.Checkpoint):
		b.files["proofs/consistency"] = p.Encode()
		b.left = append(b.left, "a way to check proofs/consistency with the key in vkey: not it, nor one that it handed over to, has signed both notes")
	default:
		b.files["proofs/consistency"] = p.Encode()
		fmt.Fprintf(&b.howTo, "The log grew out of what notes/remembered.note signs:\n  python3 verify.py --consistency proofs/consistency --checkpoint notes/remembered.note %s\n\n", b.with)
	}
}

func (b *dossier) readme() {
	var t strings.Builder
	origin := b.report.Origin
	if origin == "" {
		origin = "a log that could not be read"
	}
	fmt.Fprintf(&t, "Evidence of a verification of %s, %d events.\nVerdict: %s. Every fault, with what was expected and found, is in report.json.\n\n", origin, b.report.Events, b.report.Verdict)
	source := "It came from the data itself: that the log was signed by whom it says is not shown."
	if b.report.KeySource == "pinned" {
		source = "It was given by the auditor."
	}
	switch {
	case b.files["key.pem"] != nil:
		fmt.Fprintf(&t, "The key is in vkey (C2SP signed note) and key.pem. %s\n", source)
	case b.files["vkey"] != nil:
		fmt.Fprintf(&t, "The key is in vkey (C2SP signed note). %s\n", source)
	default:
		t.WriteString("No key of the log is known: none was given, and the data shows none.\n")
	}
	if b.files["rotations"] != nil {
		t.WriteString("The log's key was rotated. How each key handed over to the next is in rotations (FORMAT.md of ledgerd, section 14),\nand the other keys are in keys; verify.py follows them from the key in vkey.\n")
	}
	t.WriteString("How to check each part without the program that wrote this, in this directory:\n\n")
	t.WriteString("That no file was changed since:\n  sha256sum -c SHA256SUMS\n\n")
	t.WriteString(b.howTo.String())
	for _, f := range b.report.Faults {
		if f.Derivation != nil {
			t.WriteString("A decision that is not what the rules give cannot be shown by hashes: whoever doubts it judges the whole log again\n(verify --replay, or by hand along the derivation in report.json, from the policy document of the event it names).\n\n")
			break
		}
	}
	if len(b.left) > 0 {
		t.WriteString("What is not here:\n")
		for _, what := range b.left {
			t.WriteString("  " + plain(what) + "\n")
		}
	}
	b.files["README.txt"] = []byte(t.String())
}

func (b *dossier) write(dir string) error {
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b.files[name]), name)
	}
	b.files["SHA256SUMS"] = []byte(sums.String())
	for name, content := range b.files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
		if err != nil {
			return err
		}
	}
	return nil
}

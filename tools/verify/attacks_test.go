package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

const testOrigin = "ledgerd.example/attacks/1"

// attack is one way to deceive an auditor, and what gives it away.
type attack struct {
	name  string
	files func(l *logtest.Log) map[string][]byte // the export after the attack; l is its own copy
	seq   uint64                                 // the first bad event; 0 where none is to blame
	check string                                 // the check that fails
	// kept: only a remembered checkpoint can tell; without one the log passes
	// and the report says that this was not looked at.
	kept bool
	// pinned: only a key from elsewhere can tell.
	pinned bool
}

const bundle14 = "tile/entries/000.p/14"

// attacks are those of whoever has the files, and of whoever has the key too.
var attacks = []attack{
	{name: "01 flip one entry at rest", seq: 7, check: "tree", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		b := l.Clone()
		b.Entries[6] = bytes.Replace(b.Entries[6], []byte("op-1"), []byte("op-2"), 1)
		f[bundle14] = logtest.Bundle(b.Entries...)
		return f
	}},
	{name: "02 edit an entry and its leaf hash", seq: 8, check: "chain", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		l.Edit(6, func(e *events.Event) { e.Agent = "other" })
		f[bundle14] = logtest.Bundle(l.Entries...)
		leaf := events.LeafHash(l.Entries[6])
		copy(f["tile/0/000.p/14"][6*32:], leaf[:])
		return f
	}},
	{name: "03 key holder edits an entry, rebuilds the tree, signs", seq: 8, check: "chain", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(6, func(e *events.Event) { e.Agent = "other" })
		return l.Files()
	}},
	{name: "04 key holder rewrites the tail", kept: true, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(6, func(e *events.Event) { e.Agent = "other" })
		l.Relink(7)
		return l.Files()
	}},
	{name: "05 the tail cut off, an old checkpoint shown again", kept: true, seq: 11, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = l.Entries[:10]
		return l.Files()
	}},
	{name: "06 cut off and filled up to the same size", kept: true, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = l.Entries[:10]
		for len(l.Entries) < 14 {
			l.Add("researcher", 0, &events.AgentUpdated{AgentID: "researcher"})
		}
		return l.Files()
	}},
	{name: "07 replaced by a fresh log of the same name and key", kept: true, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		fresh := logtest.Sample(testOrigin, 1, 20)
		fresh.Edit(1, func(e *events.Event) { e.Body = &events.LedgerOpened{Rules: 2} })
		fresh.Relink(2)
		return fresh.Files()
	}},
	{name: "07 replaced by a log of another name", kept: true, seq: 1, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		return logtest.Sample("ledgerd.example/attacks/2", 1, 14).Files()
	}},
	{name: "07 replaced by a log under another key", kept: true, pinned: true, seq: 1, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		return logtest.Sample(testOrigin, 2, 14).Files()
	}},
	{name: "09 an entry deleted", seq: 7, check: "parse", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f[bundle14] = logtest.Bundle(slices.Delete(l.Entries, 6, 7)...)
		return f
	}},
	{name: "09 key holder deletes an entry", seq: 7, check: "sequence", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = slices.Delete(l.Entries, 6, 7)
		moved := map[uint64]audit.Payload{}
		for seq, p := range l.Payloads {
			moved[seq] = p
		}
		l.Payloads = moved
		return l.Files()
	}},
	{name: "10 two entries exchanged", seq: 7, check: "sequence", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		l.Entries[6], l.Entries[7] = l.Entries[7], l.Entries[6]
		f[bundle14] = logtest.Bundle(l.Entries...)
		return f
	}},
	{name: "10 key holder exchanges two entries", seq: 7, check: "sequence", files: func(l *logtest.Log) map[string][]byte {
		l.Entries[6], l.Entries[7] = l.Entries[7], l.Entries[6]
		return l.Files()
	}},
	{name: "11 an entry appended again", seq: 15, check: "sequence", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = append(l.Entries, l.Entries[8])
		return l.Files()
	}},
	{name: "11 an entry twice in a row", seq: 10, check: "sequence", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = slices.Insert(l.Entries, 9, l.Entries[8])
		return l.Files()
	}},
	{name: "12 an operation id used again for something else", seq: 11, check: "operations", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(10, func(e *events.Event) { e.Body.(*events.Decision).OperationID = "op-1" })
		l.Relink(11)
		return l.Files()
	}},
	{name: "12 an operation id used again for the same", seq: 15, check: "operations", files: func(l *logtest.Log) map[string][]byte {
		again, _ := events.Parse(l.Entries[6])
		l.Add("researcher", 0, again.Body)
		return l.Files()
	}},
	{name: "13 an entry of another log in its place", seq: 9, check: "chain", files: func(l *logtest.Log) map[string][]byte {
		l.Entries[8] = logtest.Sample("ledgerd.example/other/1", 1, 14).Entries[8]
		return l.Files()
	}},
	{name: "13 the tail of another epoch", seq: 9, check: "chain", files: func(l *logtest.Log) map[string][]byte {
		copy(l.Entries[8:], logtest.Sample("ledgerd.example/attacks/2", 1, 14).Entries[8:])
		return l.Files()
	}},
	{name: "13 another log's entries under this name", seq: 1, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = logtest.Sample("ledgerd.example/other/1", 1, 14).Entries
		return l.Files()
	}},
	{name: "13 another log's chain with this log's name written in", seq: 1, check: "chain", files: func(l *logtest.Log) map[string][]byte {
		other := logtest.Sample("ledgerd.example/other/1", 1, 14)
		first := l.Entries[0]
		l.Entries = other.Entries
		prev := events.GenesisHash("ledgerd.example/other/1")
		l.Entries[0] = bytes.Replace(first, []byte(events.GenesisHash(testOrigin).String()), []byte(prev.String()), 1)
		return l.Files()
	}},
	{name: "14 a byte moved from one entry to the next", seq: 7, check: "parse", files: func(l *logtest.Log) map[string][]byte {
		last := len(l.Entries[6]) - 1
		l.Entries[7] = append([]byte{l.Entries[6][last]}, l.Entries[7]...)
		l.Entries[6] = l.Entries[6][:last]
		return l.Files()
	}},
	{name: "15 a space in an entry", seq: 7, check: "parse", files: rewrite(`"seq":7`, `"seq": 7`)},
	{name: "15 a duplicate key", seq: 7, check: "parse", files: rewrite(`"seq":7`, `"seq":7,"seq":7`)},
	{name: "15 bytes that are no UTF-8", seq: 7, check: "parse", files: rewrite(`"op-1"`, "\"op-\xff\"")},
	{name: "15 an unknown field", seq: 7, check: "parse", files: rewrite(`"seq":7`, `"seq":7,"sure":true`)},
	{name: "15 an unknown type", seq: 7, check: "parse", files: rewrite(`decision.allowed`, `decision.praised`)},
	{name: "15 an empty entry", seq: 7, check: "parse", files: func(l *logtest.Log) map[string][]byte {
		l.Entries[6] = nil
		l.Relink(7)
		return l.Files()
	}},
	{name: "16 an extension line", check: "checkpoint", files: noted(func(text string) string { return text + "head 123\n" })},
	{name: "17 a leading zero", check: "checkpoint", files: noted(func(text string) string { return strings.Replace(text, "\n14\n", "\n014\n", 1) })},
	{name: "17 a plus sign", check: "checkpoint", files: noted(func(text string) string { return strings.Replace(text, "\n14\n", "\n+14\n", 1) })},
	{name: "17 a short root", check: "checkpoint", files: noted(func(text string) string {
		lines := strings.Split(text, "\n")
		root, _ := base64.StdEncoding.DecodeString(lines[2])
		lines[2] = base64.StdEncoding.EncodeToString(root[:31])
		return strings.Join(lines, "\n")
	})},
	{name: "17 base64 with stray bits", check: "checkpoint", files: noted(func(text string) string {
		i := strings.LastIndex(text, "=") - 1
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
		return text[:i] + string(alphabet[strings.IndexByte(alphabet, text[i])|1]) + text[i+1:]
	})},
	{name: "17 base64 without padding", check: "checkpoint", files: noted(func(text string) string { return strings.Replace(text, "=", "", 1) })},
	{name: "17 carriage returns", check: "checkpoint", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["checkpoint"] = bytes.ReplaceAll(f["checkpoint"], []byte("\n"), []byte("\r\n"))
		return f
	}},
	{name: "18 signed by another key of the same name", check: "checkpoint", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["checkpoint"] = logtest.New(testOrigin, 9).Sign(l.Text(14))
		return f
	}},
	{name: "18 signed under another origin", seq: 1, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["checkpoint"] = logtest.New("ledgerd.example/other/1", 1).Sign(strings.Replace(l.Text(14), testOrigin, "ledgerd.example/other/1", 1))
		return f
	}},
	{name: "18 signed twice", check: "checkpoint", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		_, line, _ := bytes.Cut(f["checkpoint"], []byte("\n\n"))
		f["checkpoint"] = append(f["checkpoint"], line...)
		return f
	}},
	{name: "18 not signed", check: "checkpoint", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["checkpoint"] = []byte(l.Text(14))
		return f
	}},
	{name: "19 the key stolen: another history of the same size signed with it", kept: true, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(4, func(e *events.Event) {
			e.Body.(*events.AgentRegistered).Capabilities = []string{"external.upload", "memory.write"}
		})
		l.Relink(5)
		return l.Files()
	}},
	{name: "21 a bundle with an entry too few", seq: 14, check: "parse", files: bundle(func(l *logtest.Log, b []byte) []byte { return logtest.Bundle(l.Entries[:13]...) })},
	{name: "21 a bundle with an entry too many", seq: 14, check: "parse", files: bundle(func(l *logtest.Log, b []byte) []byte { return append(b, logtest.Bundle(l.Entries[13])...) })},
	{name: "21 a bundle cut off in an entry", seq: 14, check: "parse", files: bundle(func(l *logtest.Log, b []byte) []byte { return b[:len(b)-5] })},
	{name: "21 a bundle cut off in a length", seq: 14, check: "parse", files: bundle(func(l *logtest.Log, b []byte) []byte { return append(logtest.Bundle(l.Entries[:13]...), 0) })},
	{name: "21 a length too long", seq: 1, check: "parse", files: bundle(func(l *logtest.Log, b []byte) []byte { b[0], b[1] = 0xff, 0xff; return b })},
	{name: "21 a length one too short", seq: 1, check: "parse", files: bundle(func(l *logtest.Log, b []byte) []byte { b[1]--; return b })},
	{name: "21 a tile cut short", seq: 1, check: "tree", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["tile/0/000.p/14"] = f["tile/0/000.p/14"][:13*32]
		return f
	}},
	{name: "21 a tile missing", seq: 1, check: "tree", files: without("tile/0/000.p/14")},
	{name: "21 a file that is no part of it", check: "files", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["tile/entries/001.p/1"] = logtest.Bundle(l.Entries[0])
		return f
	}},
	{name: "22 an entry dated back", seq: 9, check: "time", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(8, func(e *events.Event) { e.Time -= 1_000_000 })
		l.Relink(9)
		return l.Files()
	}},
	{name: "23 a stale log served", kept: true, seq: 13, check: "remembered", files: func(l *logtest.Log) map[string][]byte {
		l.Entries = l.Entries[:12]
		return l.Files()
	}},
	{name: "24 an open payload edited", seq: 6, check: "payloads", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["payloads/6"] = bytes.Replace(f["payloads/6"], []byte("false"), []byte("true"), 1)
		return f
	}},
	{name: "25 an open payload missing", seq: 4, check: "payloads", files: without("payloads/4")},
	{name: "25 a payload without its salt", seq: 6, check: "payloads", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["payloads/6"] = []byte("false")
		return f
	}},
	{name: "25 a payload of no event", check: "files", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["payloads/5"] = f["payloads/6"]
		return f
	}},
	{name: "31 a policy document other than the one named", seq: 4, check: "payloads", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(3, func(e *events.Event) { e.Body.(*events.PolicyActivated).Digest[0]++ })
		l.Relink(4)
		return l.Files()
	}},
	{name: "38 a log of the attacker's own, under the attacker's key", pinned: true, seq: 1, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		return logtest.Sample(testOrigin, 2, 14).Files()
	}},
	{name: "a second beginning", seq: 9, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		l.Edit(8, func(e *events.Event) {
			first, _ := events.Parse(l.Entries[0])
			e.Body = first.Body
		})
		l.Relink(9)
		return l.Files()
	}},
	{name: "no beginning", seq: 1, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		l.Entries[0] = l.Entries[1]
		l.Relink(0)
		return l.Files()
	}},
	{name: "a checkpoint key of another name", seq: 1, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		other := logtest.New("ledgerd.example/other/1", 2)
		l.Edit(0, func(e *events.Event) { e.Body.(*events.LedgerCreated).CheckpointKey = other.VKey })
		l.Relink(1)
		l.Signer = other.Signer
		return l.Files()
	}},
	{name: "18 another origin signed by this key", seq: 1, check: "origin", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["checkpoint"] = l.Sign(strings.Replace(l.Text(14), testOrigin, "ledgerd.example/other/1", 1))
		return f
	}},
	{name: "an old checkpoint beside newer entries", seq: 13, check: "checkpoint", files: func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f["checkpoint"] = l.Note(12)
		return f
	}},
	{name: "a beginning that names another key", seq: 1, check: "origin", pinned: true, files: func(l *logtest.Log) map[string][]byte {
		other := logtest.New(testOrigin, 2)
		l.Edit(0, func(e *events.Event) { e.Body.(*events.LedgerCreated).CheckpointKey = other.VKey })
		l.Relink(1)
		l.Signer = other.Signer
		return l.Files()
	}},
}

// rewrite is a key holder's change of the bytes of entry 7.
func rewrite(old, new string) func(l *logtest.Log) map[string][]byte {
	return func(l *logtest.Log) map[string][]byte {
		if !bytes.Contains(l.Entries[6], []byte(old)) {
			panic(old)
		}
		l.Entries[6] = bytes.Replace(l.Entries[6], []byte(old), []byte(new), 1)
		l.Relink(7)
		return l.Files()
	}
}

// noted is a key holder's checkpoint of another form, properly signed.
func noted(change func(text string) string) func(l *logtest.Log) map[string][]byte {
	return func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		text := change(l.Text(14))
		if text == l.Text(14) {
			panic("nothing changed")
		}
		f["checkpoint"] = l.Sign(text)
		return f
	}
}

func bundle(change func(l *logtest.Log, b []byte) []byte) func(l *logtest.Log) map[string][]byte {
	return func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		f[bundle14] = change(l, f[bundle14])
		return f
	}
}

func without(name string) func(l *logtest.Log) map[string][]byte {
	return func(l *logtest.Log) map[string][]byte {
		f := l.Files()
		if f[name] == nil {
			panic(name)
		}
		delete(f, name)
		return f
	}
}

// TestAttacks runs every attack through verify and through the Python program:
// both exit 1 and name the first bad event. What only an outside memory or key
// can tell passes without it, and is then said to be unchecked.
func TestAttacks(t *testing.T) {
	honest := logtest.Sample(testOrigin, 1, 14)
	kept := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(kept, honest.Note(14), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("none", func(t *testing.T) {
		dir := export(t, honest.Files())
		for _, args := range [][]string{nil, {"--checkpoint", kept}, {"--vkey", honest.VKey}, {"--checkpoint", kept, "--vkey", honest.VKey}} {
			if exit, r := verifyJSON(t, append([]string{"--export", dir}, args...)...); exit != audit.ExitPass {
				t.Errorf("%v: exit %d: %+v", args, exit, r)
			}
			if exit, out := python(t, append([]string{dir}, args...)...); exit != audit.ExitPass {
				t.Errorf("python %v: exit %d: %s", args, exit, out)
			}
		}
	})
	seen := map[string]bool{}
	for _, a := range attacks {
		seen[strings.Fields(a.name)[0]] = true
		t.Run(a.name, func(t *testing.T) {
			dir := export(t, a.files(honest.Clone()))
			args := []string{"--export", dir}
			outside := []string{}
			switch {
			case a.kept:
				outside = []string{"--checkpoint", kept}
			case a.pinned:
				outside = []string{"--vkey", honest.VKey}
			}
			if len(outside) > 0 {
				exit, r := verifyJSON(t, args...)
				if exit != audit.ExitPass || r.Verdict != "consistent" || r.Completeness.Status != audit.NotRun || !strings.Contains(open(r), "cannot be ruled out") {
					t.Errorf("without outside help: exit %d, %s: %+v", exit, r.Verdict, r)
				}
				if exit, out := python(t, dir); exit != audit.ExitPass || !strings.Contains(out, "not checked: a truncated") {
					t.Errorf("python without outside help: exit %d: %s", exit, out)
				}
			}
			exit, r := verifyJSON(t, append(args, outside...)...)
			if exit != audit.ExitFail || r.Verdict != "failed" || len(r.Faults) == 0 {
				t.Fatalf("exit %d, %s: %+v", exit, r.Verdict, r)
			}
			if !failed(r, a.check) {
				t.Errorf("%s did not fail: %+v", a.check, r.Faults)
			}
			first := r.Faults[0]
			if first.Seq != a.seq || first.Expected == "" || first.Found == "" {
				t.Errorf("first fault %+v, want seq %d", first, a.seq)
			}
			exit, out := python(t, append([]string{dir}, outside...)...)
			if exit != audit.ExitFail {
				t.Errorf("python: exit %d: %s", exit, out)
			}
			if want := fmt.Sprintf("FAULT seq %d:", a.seq); a.seq != 0 && !strings.HasPrefix(out, want) && a.check != "remembered" && a.check != "checkpoint" {
				t.Errorf("python says %q, want %q", out, want)
			}
			// Under the true key and against the true memory, too.
			if exit, r := verifyJSON(t, append(args, "--vkey", honest.VKey, "--checkpoint", kept)...); exit != audit.ExitFail {
				t.Errorf("with everything known: exit %d: %+v", exit, r)
			}
		})
	}
	for _, a := range wider {
		seen[strings.Fields(a.name)[0]] = true
		t.Run(a.name, a.run)
	}
	for n := 1; n <= 39; n++ {
		if number := fmt.Sprintf("%02d", n); !seen[number] {
			t.Errorf("attack %s is not tried", number)
		}
	}
}

// TestINT04 is the abuse row of that name: what is done to an export by who
// has its files, without the key: every way is found.
func TestINT04(t *testing.T) {
	honest := logtest.Sample(testOrigin, 1, 14)
	other := logtest.Sample("ledgerd.example/other/1", 2, 14)
	for name, change := range map[string]func(entries [][]byte) [][]byte{
		"drop the last five": func(e [][]byte) [][]byte { return e[:9] },
		"swap two":           func(e [][]byte) [][]byte { e[3], e[10] = e[10], e[3]; return e },
		"duplicate one":      func(e [][]byte) [][]byte { return slices.Insert(e, 5, e[4]) },
		"splice": func(e [][]byte) [][]byte {
			copy(e[6:9], other.Entries[6:9])
			return e
		},
		"change one byte": func(e [][]byte) [][]byte { e[6][100] ^= 1; return e },
	} {
		t.Run(name, func(t *testing.T) {
			l := honest.Clone()
			l.Entries = change(l.Entries)
			onlyEntries := honest.Files()
			onlyEntries[bundle14] = logtest.Bundle(l.Entries...)
			everything := l.Files() // without the key: the tiles fit, the old checkpoint stays
			everything["checkpoint"] = honest.Note(14)
			renamed := maps.Clone(everything) // with an older note, as far as one fits
			if len(l.Entries) <= 14 {
				renamed["checkpoint"] = honest.Note(len(l.Entries))
			}
			for what, files := range map[string]map[string][]byte{"entries alone": onlyEntries, "entries and tiles": everything} {
				dir := export(t, files)
				exit, r := verifyJSON(t, "--export", dir)
				if exit != audit.ExitFail || len(r.Faults) == 0 || r.Faults[0].Seq == 0 {
					t.Errorf("%s: exit %d: %+v", what, exit, r.Faults)
				}
				if exit, out := python(t, dir); exit != audit.ExitFail {
					t.Errorf("%s: python: exit %d: %s", what, exit, out)
				}
			}
			kept := filepath.Join(t.TempDir(), "kept")
			if err := os.WriteFile(kept, honest.Note(14), 0o644); err != nil {
				t.Fatal(err)
			}
			dir := export(t, renamed)
			if exit, r := verifyJSON(t, "--export", dir, "--checkpoint", kept); exit != audit.ExitFail {
				t.Errorf("with an older checkpoint: exit %d: %+v", exit, r)
			}
			if exit, out := python(t, dir, "--checkpoint", kept); exit != audit.ExitFail {
				t.Errorf("with an older checkpoint: python: exit %d: %s", exit, out)
			}
		})
	}
}

package audit_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
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

// pathOf and subproof are RFC 6962 2.1.1 and 2.1.2 word for word.
func pathOf(m int, d []events.Hash) []events.Hash {
	if len(d) == 1 {
		return nil
	}
	k := split(len(d))
	if m < k {
		return append(pathOf(m, d[:k]), logtest.Root(d[k:]))
	}
	return append(pathOf(m-k, d[k:]), logtest.Root(d[:k]))
}

func subproof(m int, d []events.Hash, whole bool) []events.Hash {
	if m == len(d) {
		if whole {
			return nil
		}
		return []events.Hash{logtest.Root(d)}
	}
	k := split(len(d))
	if m <= k {
		return append(subproof(m, d[:k], whole), logtest.Root(d[k:]))
	}
	return append(subproof(m-k, d[k:], false), logtest.Root(d[:k]))
}

func split(n int) int {
	k := 1
	for k*2 < n {
		k *= 2
	}
	return k
}

// small is a log of n events, and the verifier of its key.
func small(t testing.TB, n int) (*logtest.Log, *audit.Keys) {
	t.Helper()
	l := logtest.New("ledgerd.example/proofs", 1)
	for len(l.Entries) < n {
		l.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: fmt.Sprint(len(l.Entries))})
	}
	key, err := audit.Pin(l.VKey)
	if err != nil {
		t.Fatal(err)
	}
	return l, key
}

// cut is the source of the log of the first n events.
func cut(l *logtest.Log, n int) *audit.Source {
	c := l.Clone()
	c.Entries = c.Entries[:n]
	return c.Source()
}

// TestR84_ProofsOfAllSmallTrees: for every size below 65, every inclusion and
// consistency proof is RFC 6962's, shows what it is for, and nothing else: no
// other leaf, index, size or root, not one hash less, more or changed.
func TestR84_ProofsOfAllSmallTrees(t *testing.T) {
	const most = 64
	l, _ := small(t, most)
	leaves := l.Leaves()
	roots := make([]events.Hash, most+1)
	for n := 1; n <= most; n++ {
		roots[n] = logtest.Root(leaves[:n])
	}
	checked := 0
	for n := 1; n <= most; n++ {
		s := cut(l, n)
		at := audit.Checkpoint{Origin: l.Origin, Size: uint64(n), Root: roots[n]}
		for m := 1; m <= n; m++ {
			in, event, err := s.Prove(uint64(m))
			if err != nil || !bytes.Equal(event, l.Entries[m-1]) || !slices.Equal(in.Hashes, pathOf(m-1, leaves[:n])) {
				t.Fatalf("inclusion of %d in %d: %v %v", m, n, err, in)
			}
			for other := range n {
				p := *in
				if p.Index = uint64(other); (p.CheckPath(leaves[m-1], at) == nil) != (other == m-1) {
					t.Fatalf("the proof of index %d in %d shows index %d", m-1, n, other)
				}
				if (in.CheckPath(leaves[other], at) == nil) != (other == m-1) {
					t.Fatalf("the proof of leaf %d in %d shows leaf %d", m-1, n, other)
				}
				checked += 2
			}
			con, root, err := s.ProveConsistency(uint64(m))
			if err != nil || root != roots[m] || !slices.Equal(con.Hashes, subproof(m, leaves[:n], true)) {
				t.Fatalf("consistency of %d with %d: %v %v", m, n, err, con)
			}
			for other := 1; other <= n; other++ {
				p := *con
				if p.From = uint64(other); (p.CheckPath(roots[other], at) == nil) != (other == m) {
					t.Fatalf("the proof from %d to %d shows %d", m, n, other)
				}
				if (con.CheckPath(roots[other], at) == nil) != (other == m) {
					t.Fatalf("the proof from root %d to %d takes root %d", m, n, other)
				}
				checked += 2
			}
			for _, hashes := range [][]events.Hash{in.Hashes, con.Hashes} {
				for i := range wrong(hashes) {
					bad := wrong(hashes)[i]
					if (&audit.InclusionProof{Index: in.Index, Hashes: bad}).CheckPath(leaves[m-1], at) == nil && !slices.Equal(bad, in.Hashes) ||
						(&audit.ConsistencyProof{From: con.From, Hashes: bad}).CheckPath(roots[m], at) == nil && !slices.Equal(bad, con.Hashes) {
						t.Fatalf("size %d, %d: wrong hashes %d show something", n, m, i)
					}
					checked += 2
				}
			}
		}
	}
	t.Logf("%d checks", checked)
}

// wrong returns hashes with the first, last and one more left out, added,
// exchanged and changed.
func wrong(hashes []events.Hash) (list [][]events.Hash) {
	list = append(list, append(slices.Clone(hashes), events.Hash{1}), append([]events.Hash{{1}}, hashes...))
	if len(hashes) == 0 {
		return list
	}
	list = append(list, hashes[1:], hashes[:len(hashes)-1], append(slices.Clone(hashes), hashes[0]))
	for i := range hashes {
		c := slices.Clone(hashes)
		c[i][31] ^= 1
		list = append(list, c)
	}
	if len(hashes) > 1 {
		c := slices.Clone(hashes)
		c[0], c[1] = c[1], c[0]
		list = append(list, c)
	}
	return list
}

func receiptOf(l *logtest.Log, seq int) *audit.Receipt {
	e, err := events.Parse(l.Entries[seq-1])
	if err != nil {
		panic(err)
	}
	return &audit.Receipt{Origin: l.Origin, Seq: uint64(seq), EventID: events.UUIDString(e.ID), Hash: events.LeafHash(l.Entries[seq-1])}
}

// refused says which check failed, and fails where none did.
func refused(t testing.TB, what string, err error, check string) {
	t.Helper()
	var f *audit.Fault
	if !errors.As(err, &f) || f.Check != check || f.Expected == "" || f.Found == "" {
		t.Errorf("%s: %v, want a fault of %s", what, err, check)
	}
}

// TestR84_WhatAProofMustNotShow: a proof for another event, under another key,
// under a root nobody signed, of another log; trees that hash otherwise.
func TestR84_WhatAProofMustNotShow(t *testing.T) {
	l, key := small(t, 13)
	s := l.Source()
	receipt := receiptOf(l, 10)
	proof, _, err := s.Prove(10)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := proof.Check(receipt, key); err != nil || c.Size != 13 {
		t.Fatal(c, err)
	}
	next, _, err := s.Prove(11)
	if err != nil {
		t.Fatal(err)
	}
	_, err = next.Check(receipt, key)
	refused(t, "the proof of 11 for the receipt of 10", err, "inclusion")
	renamed := *next
	renamed.Index = 9
	_, err = renamed.Check(receipt, key)
	refused(t, "the proof of 11 called one of 10", err, "inclusion")

	other := logtest.New(l.Origin, 2)
	other.Entries = l.Entries
	forged, _, err := other.Source().Prove(10)
	if err != nil {
		t.Fatal(err)
	}
	_, err = forged.Check(receipt, key)
	refused(t, "the same log signed by another key", err, "checkpoint")

	unsigned := *proof
	short := l.Clone()
	short.Entries = short.Entries[:11]
	unsigned.Checkpoint = bytes.Replace(proof.Checkpoint, []byte("\n13\n"), []byte("\n12\n"), 1)
	_, err = unsigned.Check(receipt, key)
	refused(t, "a size nobody signed", err, "checkpoint")
	unsigned.Checkpoint = short.Note(11)
	_, err = unsigned.Check(receipt, key)
	refused(t, "under the checkpoint of another size", err, "inclusion")
	short.Entries = short.Entries[:9]
	unsigned.Checkpoint = short.Note(9)
	_, err = unsigned.Check(receipt, key)
	refused(t, "under a checkpoint that ends before", err, "inclusion")

	elsewhere := *receipt
	elsewhere.Origin = "ledgerd.example/other"
	_, err = proof.Check(&elsewhere, key)
	refused(t, "a receipt of another log", err, "receipt")

	for what, leaf := range map[string]events.Hash{
		"no tag on the leaf": sha256.Sum256(l.Entries[9]),
		"a node as a leaf":   events.NodeHash(events.LeafHash(l.Entries[8]), events.LeafHash(l.Entries[9])),
	} {
		r := *receipt
		r.Hash = leaf
		_, err = proof.Check(&r, key)
		refused(t, what, err, "inclusion")
	}
}

// TestR84_TreesThatHashOtherwise: roots over a last leaf counted twice, and over
// leaves and nodes without their tags, are not taken, be they signed.
func TestR84_TreesThatHashOtherwise(t *testing.T) {
	l, key := small(t, 13)
	twice := func(h []events.Hash) events.Hash { // the odd one out is its own sibling
		for len(h) > 1 {
			if len(h)%2 == 1 {
				h = append(slices.Clone(h), h[len(h)-1])
			}
			var up []events.Hash
			for i := 0; i < len(h); i += 2 {
				up = append(up, events.NodeHash(h[i], h[i+1]))
			}
			h = up
		}
		return h[0]
	}
	var untagged func(h []events.Hash) events.Hash
	untagged = func(h []events.Hash) events.Hash {
		if len(h) == 1 {
			return h[0]
		}
		k := split(len(h))
		a, b := untagged(h[:k]), untagged(h[k:])
		return sha256.Sum256(append(a[:], b[:]...))
	}
	proof, _, err := l.Source().Prove(13)
	if err != nil {
		t.Fatal(err)
	}
	con, old, err := l.Source().ProveConsistency(6)
	if err != nil {
		t.Fatal(err)
	}
	for what, root := range map[string]events.Hash{"the last leaf twice": twice(l.Leaves()), "no tags": untagged(l.Leaves())} {
		signed := l.Sign(fmt.Sprintf("%s\n13\n%s\n", l.Origin, base64Of(root)))
		p, c := *proof, *con
		p.Checkpoint, c.Checkpoint = signed, signed
		_, err := p.Check(receiptOf(l, 13), key)
		refused(t, what, err, "inclusion")
		_, err = c.Check(audit.Checkpoint{Origin: l.Origin, Size: 6, Root: old}, key)
		refused(t, what, err, "consistency")
		// The odd leaf's own path, were it its own sibling.
		p.Hashes = append([]events.Hash{events.LeafHash(l.Entries[12])}, p.Hashes...)
		_, err = p.Check(receiptOf(l, 13), key)
		refused(t, what+", with its path", err, "inclusion")
	}
}

// TestR81_ConsistencyOfWhatIsRemembered: a log that shrinks, forks, changes its
// key or name does not continue the one remembered.
func TestR81_ConsistencyOfWhatIsRemembered(t *testing.T) {
	l, key := small(t, 13)
	at := func(n int) audit.Checkpoint {
		return audit.Checkpoint{Origin: l.Origin, Size: uint64(n), Root: logtest.Root(l.Leaves()[:n])}
	}
	for n := 1; n <= 13; n++ {
		p, root, err := l.Source().ProveConsistency(uint64(n))
		if err != nil || root != at(n).Root {
			t.Fatal(n, err)
		}
		if c, err := p.Check(at(n), key); err != nil || c.Size != 13 {
			t.Errorf("from %d: %v", n, err)
		}
	}
	check := func(what string, source *audit.Source, from uint64, remembered audit.Checkpoint, key *audit.Keys, want string) {
		t.Helper()
		p, _, err := source.ProveConsistency(from)
		if err != nil {
			t.Fatal(what, err)
		}
		_, err = p.Check(remembered, key)
		refused(t, what, err, want)
	}
	check("a shorter log", cut(l, 9), 9, at(13), key, "consistency")
	forked := l.Clone()
	forked.Edit(11, func(e *events.Event) { e.Body = &events.LedgerOpened{Rules: 1, Build: "other"} })
	forked.Relink(12)
	check("two histories of one size", forked.Source(), 13, at(13), key, "consistency")
	check("a history changed at 12", forked.Source(), 12, at(12), key, "consistency")
	check("a proof from another size", l.Source(), 7, at(6), key, "consistency")
	foreign := logtest.New(l.Origin, 2)
	foreign.Entries = l.Entries
	check("another key", foreign.Source(), 6, at(6), key, "checkpoint")
	named := at(6)
	named.Origin = "ledgerd.example/other"
	check("another log", l.Source(), 6, named, key, "consistency")
}

// TestProofsOfAnExport: an export gives the proofs that its ledger gives, from
// its tiles, and none where a tile was changed.
func TestProofsOfAnExport(t *testing.T) {
	l, key := small(t, 600)
	dir := filepath.Join(t.TempDir(), "export")
	if err := logtest.Write(dir, l.Files()); err != nil {
		t.Fatal(err)
	}
	exported, err := audit.OpenExport(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{1, 2, 255, 256, 257, 512, 513, 599, 600} {
		want, event, err := l.Source().Prove(seq)
		got, same, err2 := exported.Prove(seq)
		if err != nil || err2 != nil || !bytes.Equal(want.Encode(), got.Encode()) || !bytes.Equal(event, same) {
			t.Fatalf("%d: %v %v", seq, err, err2)
		}
		if _, err := got.Check(receiptOf(l, int(seq)), key); err != nil {
			t.Error(err)
		}
		con, _, err := l.Source().ProveConsistency(seq)
		gotCon, _, err2 := exported.ProveConsistency(seq)
		if err != nil || err2 != nil || !bytes.Equal(con.Encode(), gotCon.Encode()) {
			t.Fatalf("%d: %v %v", seq, err, err2)
		}
	}
	for _, seq := range []uint64{0, 601} {
		if _, _, err := exported.Prove(seq); !errors.Is(err, audit.ErrNoProof) {
			t.Errorf("%d: %v", seq, err)
		}
		if _, _, err := exported.ProveConsistency(seq); !errors.Is(err, audit.ErrNoProof) {
			t.Errorf("%d: %v", seq, err)
		}
	}
}

// TestNoProofFromAChangedTile: whichever hash of an export is changed, on the
// path or beside it, what is proved from it is right or nothing.
func TestNoProofFromAChangedTile(t *testing.T) {
	l, _ := small(t, 600)
	files, refused := l.Files(), 0
	for name, original := range files {
		if !strings.HasPrefix(name, "tile/") || strings.HasPrefix(name, "tile/entries") {
			continue
		}
		for _, at := range []int{0, 40, len(original) / 2, len(original) - 1} {
			changed := maps.Clone(files)
			changed[name] = bytes.Clone(original)
			changed[name][at] ^= 1
			exported, err := audit.OpenExport(mapFS(changed))
			if err != nil {
				t.Fatal(err)
			}
			for _, seq := range []uint64{1, 2, 256, 257, 300, 513, 600} {
				good, _, err := l.Source().Prove(seq)
				if err != nil {
					t.Fatal(err)
				}
				con, root, err := l.Source().ProveConsistency(seq)
				if err != nil {
					t.Fatal(err)
				}
				if p, _, err := exported.Prove(seq); err != nil {
					refused++
				} else if !bytes.Equal(p.Encode(), good.Encode()) {
					t.Errorf("%s, byte %d: event %d is proved by\n%s", name, at, seq, p.Encode())
				}
				if p, r, err := exported.ProveConsistency(seq); err != nil {
					refused++
				} else if r != root || !bytes.Equal(p.Encode(), con.Encode()) {
					t.Errorf("%s, byte %d: size %d is proved by\n%s", name, at, seq, p.Encode())
				}
			}
		}
	}
	if refused == 0 {
		t.Error("no change was noticed")
	}
}

// TestProofFiles: what is written is read again, and nothing else is.
func TestProofFiles(t *testing.T) {
	l, _ := small(t, 13)
	p, _, err := l.Source().Prove(10)
	if err != nil {
		t.Fatal(err)
	}
	file := string(p.Encode())
	if !strings.HasPrefix(file, "c2sp.org/tlog-proof@v1\nindex 9\n") || !strings.HasSuffix(file, "\n\n"+string(p.Checkpoint)) {
		t.Fatal(file)
	}
	p.Extra = []byte("extra")
	for _, good := range []string{file, string(p.Encode())} {
		again, err := audit.ParseInclusionProof([]byte(good))
		if err != nil || string(again.Encode()) != good {
			t.Errorf("%v\n%s", err, good)
		}
	}
	first := base64Of(p.Hashes[0])
	for what, bad := range map[string]string{
		"empty": "", "another format": strings.Replace(file, "@v1", "@v2", 1), "no index": strings.Replace(file, "index 9\n", "", 1),
		"leading zero": strings.Replace(file, "index 9", "index 09", 1), "plus": strings.Replace(file, "index 9", "index +9", 1),
		"negative": strings.Replace(file, "index 9", "index -1", 1), "beyond 2^53": strings.Replace(file, "index 9", "index 9007199254740992", 1),
		"two spaces": strings.Replace(file, "index 9", "index  9", 1), "carriage return": strings.ReplaceAll(file, "\n", "\r\n"),
		"a short hash": strings.Replace(file, first, first[4:], 1), "base64 not canonical": strings.Replace(file, "=\n", "\n", 1),
		"64 hashes": strings.Replace(file, first+"\n", strings.Repeat(first+"\n", 64), 1), "no empty line": strings.Replace(file, "\n\n", "\n", 1),
		"trailing garbage": file + "x", "trailing line": file + "\n", "before": "\n" + file, "empty extra": strings.Replace(file, "index", "extra \nindex", 1),
		"two extras": strings.Replace(file, "index", "extra YQ==\nextra YQ==\nindex", 1), "extra after": strings.Replace(file, first, "extra YQ==\n"+first, 1),
		"too long": file + strings.Repeat("— a AAAAAAAA\n", 12000), "a consistency proof": strings.Replace(file, "c2sp.org/tlog-proof@v1\nindex", "old", 1),
	} {
		if _, err := audit.ParseInclusionProof([]byte(bad)); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for i := range len(file) - 1 {
		if _, err := audit.ParseInclusionProof([]byte(file[:i])); err == nil {
			t.Errorf("the first %d bytes are taken", i)
		}
	}
	c, _, err := l.Source().ProveConsistency(6)
	if err != nil {
		t.Fatal(err)
	}
	con := string(c.Encode())
	if again, err := audit.ParseConsistencyProof([]byte(con)); err != nil || string(again.Encode()) != con || !strings.HasPrefix(con, "old 6\n") {
		t.Fatal(err, con)
	}
	for what, bad := range map[string]string{
		"from nothing": strings.Replace(con, "old 6", "old 0", 1), "an inclusion proof": file, "trailing garbage": con + "x", "no number": strings.Replace(con, "old 6", "old", 1),
	} {
		if _, err := audit.ParseConsistencyProof([]byte(bad)); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

// TestReceiptFiles: a receipt is read as it is written, and out of a reply.
func TestReceiptFiles(t *testing.T) {
	l, _ := small(t, 3)
	r := receiptOf(l, 2)
	file := string(r.Encode())
	if again, err := audit.ParseReceipt([]byte(file)); err != nil || *again != *r {
		t.Fatal(again, err)
	}
	reply := strings.Replace(strings.Replace(file, "receipt.v1", "decision.v1", 1), `"origin":"ledgerd.example/proofs"`, `"allowed":true,"record":{"seq":9}`, 1)
	if again, err := audit.ParseReceipt([]byte(reply)); err != nil || again.Origin != "" || again.Seq != 2 || again.Hash != r.Hash || again.EventID != r.EventID {
		t.Fatal(again, err)
	}
	for what, bad := range map[string]string{
		"empty": "", "a list": "[]", "no object": "1", "another type": strings.Replace(file, "receipt.v1", "receipt.v2", 1), "no type": strings.Replace(file, "type", "typ", 1),
		"one member more": strings.Replace(file, `,"seq"`, `,"x":1,"seq"`, 1), "one member twice": strings.Replace(file, `,"seq"`, `,"seq":1,"seq"`, 1), "no origin": strings.Replace(file, l.Origin, "", 1),
		"seq 0": strings.Replace(file, `"seq":2`, `"seq":0`, 1), "seq as text": strings.Replace(file, `"seq":2`, `"seq":"2"`, 1), "seq with a point": strings.Replace(file, `"seq":2`, `"seq":2.0`, 1),
		"negative": strings.Replace(file, `"seq":2`, `"seq":-2`, 1), "upper case": strings.Replace(file, r.Hash.String(), strings.ToUpper(r.Hash.String()), 1),
		"a short hash": strings.Replace(file, r.Hash.String(), r.Hash.String()[2:], 1), "zeros": strings.Replace(file, r.Hash.String(), events.Hash{}.String(), 1),
		"an id of version 4": strings.Replace(file, r.EventID, "01937a1b-2c02-4000-8000-000000000002", 1), "trailing garbage": file + "x", "two": file + file,
		"a refusal": `{"type":"io.ledgerd.error.v1","reason_code":"overloaded"}`, "a reply without seq": `{"type":"io.ledgerd.decision.v1","allowed":true}`,
	} {
		if _, err := audit.ParseReceipt([]byte(bad)); err == nil {
			t.Errorf("%s is taken: %s", what, bad)
		}
	}
	if err := r.Holds(l.Entries[1]); err != nil {
		t.Error(err)
	}
	refused(t, "another event", r.Holds(l.Entries[2]), "receipt")
	other := *r
	other.EventID = receiptOf(l, 3).EventID
	refused(t, "another id", other.Holds(l.Entries[1]), "receipt")
	other = *r
	other.Seq = 1
	refused(t, "another seq", other.Holds(l.Entries[1]), "receipt")
}

// FuzzProofFiles: no input panics; what is read is what would be written, and
// what shows something is signed and leads to its root.
func FuzzProofFiles(f *testing.F) {
	l, key := small(f, 13)
	p, _, _ := l.Source().Prove(10)
	c, old, _ := l.Source().ProveConsistency(6)
	f.Add(p.Encode())
	f.Add(c.Encode())
	f.Add(receiptOf(l, 10).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := audit.ParseInclusionProof(b); err == nil {
			if !bytes.Equal(got.Encode(), b) {
				t.Fatalf("read, and written as\n%s", got.Encode())
			}
			if _, err := got.Check(receiptOf(l, 10), key); err == nil && !slices.Equal(got.Hashes, p.Hashes) {
				t.Fatalf("shown by\n%s", b)
			}
		}
		if got, err := audit.ParseConsistencyProof(b); err == nil {
			if !bytes.Equal(got.Encode(), b) {
				t.Fatalf("read, and written as\n%s", got.Encode())
			}
			if _, err := got.Check(audit.Checkpoint{Origin: l.Origin, Size: 6, Root: old}, key); err == nil && !slices.Equal(got.Hashes, c.Hashes) {
				t.Fatalf("shown by\n%s", b)
			}
		}
		if got, err := audit.ParseReceipt(b); err == nil && got.Origin != "" {
			if again, err := audit.ParseReceipt(got.Encode()); err != nil || *again != *got {
				t.Fatalf("%v: %v", err, got)
			}
		}
	})
}

func base64Of(h events.Hash) string { return base64.StdEncoding.EncodeToString(h[:]) }

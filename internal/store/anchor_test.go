package store

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

func testKey(t testing.TB, origin string) (note.Signer, note.Verifier) {
	t.Helper()
	skey, vkey, err := NewCheckpointKey(origin)
	must(t, err)
	s, err := note.NewSigner(skey)
	must(t, err)
	v, err := note.NewVerifier(vkey)
	must(t, err)
	return s, v
}

func TestCheckpointIsParsedStrictly(t *testing.T) {
	signer, verifier := testKey(t, testOrigin)
	root := events.LeafHash([]byte("x"))
	b64 := base64.StdEncoding.EncodeToString(root[:])
	good := Checkpoint{testOrigin, 70_000, root}
	signed, err := SignCheckpoint(signer, good)
	must(t, err)
	if got, err := ParseCheckpoint(signed, verifier); err != nil || got != good {
		t.Fatalf("%v %v", got, err)
	}
	if want := testOrigin + "\n70000\n" + b64 + "\n"; good.Text() != want || !strings.HasPrefix(string(signed), want+"\n— "+testOrigin+" ") {
		t.Fatalf("note is\n%s", signed)
	}
	// Every text is rightly signed; only its form is wrong.
	sloppy := b64[:42] + string(b64[42]+1) + "=" // same bytes, other padding bits
	for name, text := range map[string]string{
		"leading zero":    testOrigin + "\n070000\n" + b64 + "\n",
		"plus":            testOrigin + "\n+70000\n" + b64 + "\n",
		"negative":        testOrigin + "\n-1\n" + b64 + "\n",
		"hex":             testOrigin + "\n0x10\n" + b64 + "\n",
		"space":           testOrigin + "\n70000 \n" + b64 + "\n",
		"no size":         testOrigin + "\n\n" + b64 + "\n",
		"size too large":  testOrigin + "\n9223372036854775807\n" + b64 + "\n",
		"extension line":  good.Text() + "chain-head AAAA\n",
		"two lines":       testOrigin + "\n70000\n",
		"empty fourth":    good.Text() + "\n",
		"short root":      testOrigin + "\n70000\n" + base64.StdEncoding.EncodeToString(root[:31]) + "\n",
		"long root":       testOrigin + "\n70000\n" + base64.StdEncoding.EncodeToString(append(root[:], 0)) + "\n",
		"sloppy base64":   testOrigin + "\n70000\n" + sloppy + "\n",
		"unpadded base64": testOrigin + "\n70000\n" + strings.TrimRight(b64, "=") + "\n",
		"no root":         testOrigin + "\n70000\n\n",
		"other origin":    "other\n70000\n" + b64 + "\n",
		"blank first":     "\n" + good.Text(),
	} {
		n, err := note.Sign(&note.Note{Text: text}, signer)
		must(t, err)
		if c, err := ParseCheckpoint(n, verifier); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %v %v", name, c, err)
		}
	}
	if b, err := base64.StdEncoding.DecodeString(sloppy); err != nil || events.Hash(b) != root {
		t.Fatalf("the sloppy root is no good as a case: %v", err)
	}
	other, otherVerifier := testKey(t, testOrigin)
	if _, err := ParseCheckpoint(signed, otherVerifier); !errors.Is(err, ErrCheckpoint) {
		t.Errorf("another key of the same name: %v", err)
	}
	// A cosignature beside ours changes nothing, one in place of ours is no signature.
	both, err := note.Sign(&note.Note{Text: good.Text()}, other, signer)
	must(t, err)
	if _, err := ParseCheckpoint(both, verifier); err != nil {
		t.Errorf("cosigned: %v", err)
	}
	for i := range signed { // every byte matters, or stands in a name or base64 that no longer parses
		bad := append([]byte(nil), signed...)
		bad[i] ^= 0x04
		if c, err := ParseCheckpoint(bad, verifier); err == nil && c != good {
			t.Fatalf("byte %d: took %v", i, c)
		}
	}
	if _, err := SignCheckpoint(other, Checkpoint{Origin: "else"}); err == nil {
		t.Error("signed for another origin")
	}
}

func TestAnchorOnlyMovesForward(t *testing.T) {
	signer, verifier := testKey(t, testOrigin)
	dir := t.TempDir()
	path := filepath.Join(dir, "anchor")
	at := func(size uint64, root string) []byte {
		n, err := SignCheckpoint(signer, Checkpoint{testOrigin, size, events.LeafHash([]byte(root))})
		must(t, err)
		return n
	}
	a := NewAnchor(path, verifier)
	holds := func(want []byte) {
		t.Helper()
		if got, err := a.Read(); err != nil || string(got) != string(want) {
			t.Fatalf("anchor holds %q %v, want %q", got, err, want)
		}
		if _, err := os.Stat(path + ".tmp"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("temporary file left: %v", err)
		}
	}
	if _, err := a.Read(); !errors.Is(err, ErrNoAnchor) {
		t.Fatal(err)
	}
	if err := a.Advance(at(1, "a")); !errors.Is(err, ErrNoAnchor) {
		t.Fatalf("advance without a file: %v", err)
	}
	must(t, a.Create(at(1, "a")))
	if err := a.Create(at(2, "b")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("create over a file: %v", err)
	}
	must(t, a.Advance(at(100, "b")))
	holds(at(100, "b"))
	must(t, a.Advance(at(100, "b")))
	evil, _ := testKey(t, testOrigin)
	forged, err := SignCheckpoint(evil, Checkpoint{testOrigin, 200, events.LeafHash(nil)})
	must(t, err)
	for _, c := range []struct {
		note []byte
		want error
	}{
		{at(99, "b"), ErrBehindAnchor},
		{at(1, "a"), ErrBehindAnchor},
		{at(100, "c"), ErrDiverged},
		{forged, ErrCheckpoint},
		{[]byte("x"), ErrCheckpoint},
		{nil, ErrCheckpoint},
	} {
		if err := a.Advance(c.note); !errors.Is(err, c.want) {
			t.Errorf("%.60q: %v, want %v", c.note, err, c.want)
		}
		holds(at(100, "b"))
	}
	// Another hand moved the file: what counts is what it says now.
	must(t, NewAnchor(path, verifier).Advance(at(150, "d")))
	if err := a.Advance(at(120, "e")); !errors.Is(err, ErrBehindAnchor) {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, forged, 0o600))
	if err := a.Advance(at(300, "f")); !errors.Is(err, ErrCheckpoint) {
		t.Fatalf("over a forged anchor: %v", err)
	}
	must(t, os.Remove(path))
	if err := a.Advance(at(300, "f")); !errors.Is(err, ErrNoAnchor) {
		t.Fatalf("over a removed anchor: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("anchor came back")
	}
}

// R81 at open: the anchor is compared before anything is written.
func TestR81_OpenComparesTheAnchor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	l := newLedger(t, dir, Options{})
	l.mustAppend(60)
	good := l.sign()
	l.mustClose()
	at := func(c Checkpoint) []byte {
		n, err := SignCheckpoint(l.signer, c)
		must(t, err)
		return n
	}
	root := naiveRoot(l.events)
	evil, evilVerifier := testKey(t, testOrigin)
	forged, err := SignCheckpoint(evil, Checkpoint{testOrigin, 61, root})
	must(t, err)
	for name, c := range map[string]struct {
		note []byte
		want error
		says string
	}{
		"none":            {nil, ErrNoAnchor, "no anchor"},
		"empty":           {[]byte{}, ErrCheckpoint, "malformed"},
		"ahead":           {at(Checkpoint{testOrigin, 100, root}), ErrBehindAnchor, "log ends at 61, anchor says 100: events 62–100 are lost (nothing was changed)"},
		"another root":    {at(Checkpoint{testOrigin, 61, events.LeafHash(nil)}), ErrDiverged, "root at 61"},
		"another earlier": {at(Checkpoint{testOrigin, 32, root}), ErrDiverged, "root at 32"},
		"size 0":          {at(Checkpoint{testOrigin, 0, naiveRoot(nil)}), ErrNoAnchor, "no event"},
		"forged":          {forged, ErrCheckpoint, "signature"},
	} {
		l.note = c.note
		if err := l.refused(c.want); !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.note = good
	v := l.verifier
	l.verifier = evilVerifier
	l.refused(ErrCheckpoint)
	l.verifier = nil
	l.refused(ErrNoAnchor)
	l.verifier = v
	// The caller's own look comes before anything is written, too.
	before := contents(t, l.opts.fs(), dir)
	ahead := errors.New("stream is ahead")
	_, err = Open(dir, l.opts, AnchorCheck{Note: good, Verifier: v, Look: func(s *Store) error {
		if _, err := verifyLog(s, l.events); err != nil {
			return err
		}
		return ahead
	}})
	if !errors.Is(err, ahead) {
		t.Fatal(err)
	}
	same(t, before, contents(t, l.opts.fs(), dir))
	for _, size := range []uint64{1, 2, 3, 32, 60, 61} { // an older anchor of the same log fits
		l.note = at(Checkpoint{testOrigin, size, naiveRoot(l.events[:size])})
		l.mustOpen()
		l.check()
		l.mustClose()
	}
}

// A log of another origin, put in this one's place.
func TestR81_AnotherLogIsRefused(t *testing.T) {
	parent := t.TempDir()
	l := newLedger(t, filepath.Join(parent, "d"), Options{})
	l.mustAppend(10)
	l.note = l.sign()
	l.mustClose()
	// Same origin and key, other events of the same number: the root tells.
	twin := newLedger(t, filepath.Join(parent, "twin"), Options{})
	twin.filler = 1
	twin.mustAppend(10)
	twin.check()
	twin.mustClose()
	twin.note, twin.verifier = l.note, l.verifier
	twin.refused(ErrDiverged)
	// Another origin under the same key text is caught by name.
	other := "ledgerd.test/other/1"
	dir := filepath.Join(parent, "other")
	must(t, Init(dir, Options{}, other, func(_ string, s *Store) error {
		e := []byte("one")
		c, err := s.Append(Batch{First: 1, Events: [][]byte{e}, Leaves: []events.Hash{events.LeafHash(e)}})
		if err != nil {
			return err
		}
		return c.Wait()
	}))
	o := *l
	o.dir = dir
	if err := o.refused(ErrDiverged); !strings.Contains(err.Error(), other) {
		t.Error(err)
	}
}

package audit_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
)

func cosigner(name string) (sign func(at time.Time, note []byte) string, vkey string) {
	seed := sha256.Sum256([]byte(name))
	key := ed25519.NewKeyFromSeed(seed[:])
	_, vkey = audit.Cosign(name, key, time.Now(), nil)
	return func(at time.Time, note []byte) string { line, _ := audit.Cosign(name, key, at, note); return line }, vkey
}

func TestCosignatures(t *testing.T) {
	note := logtest.Sample("example.org/lab/1", 1, 20).Note(20)
	sign, vkey := cosigner("w.example/one")
	w, err := audit.ParseWitness(vkey)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_796_000_000, 0)
	good := append(bytes.Clone(note), sign(at, note)...)
	if got, err := w.Cosigned(good); err != nil || !got.Equal(at) {
		t.Fatalf("%v %v", got, err)
	}
	if _, err := w.Cosigned(note); err == nil {
		t.Error("nobody cosigned it")
	}
	if _, err := w.Cosigned(append(bytes.Clone(good), sign(at.Add(time.Second), note)...)); err == nil {
		t.Error("two cosignatures by one")
	}
	for i := range good { // every bit that is the witness's, and every one that it signed
		for bit := range 8 {
			changed := bytes.Clone(good)
			changed[i] ^= 1 << bit
			before, _, _ := bytes.Cut(good, []byte("\n\n"))
			own := i >= len(note) || i < len(before)
			if _, err := w.Cosigned(changed); own && err == nil {
				t.Fatalf("byte %d, bit %d: still cosigned", i, bit)
			}
		}
	}
	other, otherKey := cosigner("w.example/two")
	if _, err := w.Cosigned(append(bytes.Clone(note), strings.Replace(other(at, note), "two", "one", 1)...)); err == nil {
		t.Error("another's key under this name")
	}
	for _, bad := range []string{"", "a+b", "w+00000000+", vkey + "x", strings.Replace(vkey, "one", "uno", 1), "a b" + vkey[13:], logtest.New("x.org/1", 1).VKey, otherKey[:len(otherKey)-1]} {
		if _, err := audit.ParseWitness(bad); err == nil {
			t.Errorf("%q is a witness's key", bad)
		}
	}
	with, when, err := w.AddCosignatures(note, []byte(other(at, note)+sign(at, note)))
	if err != nil || !bytes.Equal(with, good) || !when.Equal(at) {
		t.Errorf("only its own line is taken: %v", err)
	}
}

func TestWitnessPolicies(t *testing.T) {
	_, a := cosigner("a")
	_, b := cosigner("b")
	_, c := cosigner("c")
	head := "witness A " + a + "\nwitness B " + b + " https://b.example/w/\n\n# and\nwitness C " + c + "\n"
	for _, p := range []struct {
		rest string
		met  []string // who suffices
		not  []string
	}{
		{"quorum none\n", []string{""}, nil},
		{"quorum A\n", []string{"a", "ab"}, []string{"", "bc"}},
		{"group g 2 A B C\nquorum g\n", []string{"ab", "bc", "abc"}, []string{"a", "c", ""}},
		{"group g any A B\nquorum g\n", []string{"a", "b"}, []string{"c", ""}},
		{"group g any A B\ngroup h all g C\nquorum h\n", []string{"ac", "bc"}, []string{"ab", "c"}},
	} {
		policy, err := audit.ParseWitnessPolicy([]byte("log " + logtest.New("x.org/1", 1).VKey + "\n" + head + p.rest))
		if err != nil {
			t.Fatal(err)
		}
		if policy.Witnesses[1].URL != "https://b.example/w" || len(policy.Logs) != 1 {
			t.Errorf("%+v", policy)
		}
		for i, list := range [][]string{p.met, p.not} {
			for _, who := range list {
				if got := policy.Met(func(w *audit.Witness) bool { return strings.Contains(who, w.Name) }); got != (i == 0) {
					t.Errorf("%q: %q meets it: %v", p.rest, who, got)
				}
			}
		}
	}
	for _, bad := range []string{
		"", head, "quorum A\n", head + "quorum D\n", head + "quorum A\nquorum A\n", head + "group g 4 A B C\nquorum g\n", head + "group g 0 A\nquorum g\n", head + "group g 1 g\nquorum g\n",
		head + "group g 1 A A\nquorum g\n", head + "group A 1 B\nquorum A\n", head + "group none 1 B\nquorum none\n", head + "witness D " + a + "\nquorum A\n", head + "witness A " + a + "\nquorum A\n",
		"witness A " + a + " ftp://x\nquorum A\n", "witness A " + a + " https://x y\nquorum A\n", "witness A x\nquorum A\n", "sigsum 1\nquorum none\n", head + "quorum\n", "log\nquorum none\n",
	} {
		if _, err := audit.ParseWitnessPolicy([]byte(bad)); err == nil {
			t.Errorf("taken: %q", bad)
		}
	}
	if _, err := audit.Quorum(2, []string{a, a}); err == nil {
		t.Error("one witness counts twice")
	}
	if p, err := audit.Quorum(2, []string{a, b, c}); err != nil || p.Met(func(w *audit.Witness) bool { return w.Name == "a" }) || !p.Met(func(w *audit.Witness) bool { return w.Name != "a" }) {
		t.Errorf("two of three: %v", err)
	}
}

package audit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// countedKey counts how often a key is asked anything.
type countedKey struct {
	note.Verifier
	asked *int
}

func (k countedKey) Name() string { *k.asked++; return k.Verifier.Name() }

func (k countedKey) Verify(text, sig []byte) bool { *k.asked++; return k.Verifier.Verify(text, sig) }

func numberedKey(t *testing.T, origin string, n int) (note.Signer, string) {
	t.Helper()
	seed := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(n)))
	vkey, err := note.NewEd25519VerifierKey(origin, ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner("PRIVATE+KEY+" + origin + "+" + strings.Split(vkey, "+")[1] + "+" + base64.StdEncoding.EncodeToString(append([]byte{1}, seed[:]...)))
	if err != nil {
		t.Fatal(err)
	}
	return signer, vkey
}

// manyKeys is a verifier at the end of a log of n checkpoint keys: events 2i-2 and
// 2i-1 bring key i and retire the one before it.
func manyKeys(t *testing.T, n int) (v *Verifier, list []note.Signer, asked *int) {
	t.Helper()
	const origin = "example.org/log"
	v, err := NewVerifier(nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	v.past = func(level int, n uint64) (events.Hash, string, bool, error) {
		return events.Hash{byte(level), byte(n), 1}, "", true, nil
	}
	signer, vkey := numberedKey(t, origin, 1)
	list = []note.Signer{signer}
	v.origin = origin
	v.keys.first(vkey)
	for i := 2; i <= n; i++ {
		signer, vkey := numberedKey(t, origin, i)
		list = append(list, signer)
		at := uint64(2*i - 2)
		v.keyEvent(at, &events.KeyRotated{Key: events.KeyCheckpoint, Number: uint64(i), PublicKey: vkey})
		v.keyEvent(at+1, &events.KeyRetired{Key: events.KeyCheckpoint, Number: uint64(i - 1), Checkpoint: string(v.noteAt(t, at, list[i-2:]...))})
	}
	v.size = uint64(2*n - 1)
	asked = new(int)
	for i := range v.keys {
		v.keys[i].verifier = countedKey{v.keys[i].verifier, asked}
	}
	return v, list, asked
}

func (v *Verifier) noteAt(t *testing.T, size uint64, by ...note.Signer) []byte {
	t.Helper()
	root, err := v.rootAt(size)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", v.origin, size, base64.StdEncoding.EncodeToString(root[:]))}, by...)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// What the check of the keys costs goes with the number of rotations, not with its
// square: a small log that rotated often must not hold an auditor up.
func TestR81_KeysAreAskedAFewTimesEach(t *testing.T) {
	for _, n := range []int{2, 20, 400} {
		v, _, asked := manyKeys(t, n)
		if c := v.keysCheck(); c.Status != Pass || c.Text != fmt.Sprintf("%d checkpoint keys, %d handed over", n, n-1) {
			t.Fatalf("%d keys: %+v %v", n, c, v.faults)
		}
		if *asked > 20*n {
			t.Errorf("%d keys were asked %d times", n, *asked)
		}
		*asked = 0
		v.keyEvent(v.size+1, &events.KeyRotated{Key: events.KeyCheckpoint, Number: uint64(n + 1), PublicKey: v.keys[0].public})
		if len(v.keys) != n || !v.failed["keys"] || *asked > 20 {
			t.Errorf("%d keys, and the first once more: %d, asked %d times", n, len(v.keys), *asked)
		}
	}
}

// A checkpoint is signed by the keys in force at its size, each of them, and by no
// other key that the log ever had.
func TestR81_AKeyOutOfForceIsRefused(t *testing.T) {
	const n = 9
	v, keys, _ := manyKeys(t, n)
	for size := uint64(1); size <= v.size; size++ {
		newest := int(size/2) + 1 // brought by event 2·newest-2
		both := size > 1 && size%2 == 0
		for i := range n {
			number := i + 1
			by := []note.Signer{keys[newest-1]}
			if both {
				by = append(by, keys[newest-2])
			}
			inForce := number == newest || both && number == newest-1
			if _, err := v.open(v.noteAt(t, size, by...), nil); err != nil {
				t.Fatalf("size %d: %v", size, err)
			}
			if inForce {
				continue
			}
			if _, err := v.open(v.noteAt(t, size, append(by, keys[i])...), nil); err == nil || !strings.Contains(err.Error(), " signed size ") {
				t.Errorf("size %d, and key %d: %v", size, number, err)
			}
			if _, err := v.open(v.noteAt(t, size, keys[i]), nil); err == nil {
				t.Errorf("size %d, key %d alone", size, number)
			}
		}
		if both {
			for _, alone := range []note.Signer{keys[newest-1], keys[newest-2]} {
				if _, err := v.open(v.noteAt(t, size, alone), nil); err == nil || !strings.Contains(err.Error(), "needs the signature of key") {
					t.Errorf("size %d, one of two: %v", size, err)
				}
			}
		}
	}
}

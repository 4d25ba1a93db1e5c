package audit_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// rotatedLog has had three checkpoint keys: 15 brings the second, 17 retires the
// first, 19 brings the third, 21 retires the second; 23 events.
func rotatedLog(t testing.TB, origin string) *logtest.Log {
	t.Helper()
	l := logtest.Sample(origin, 1, 14)
	fill := func() { l.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"}) }
	for _, n := range []byte{2, 3} {
		l.Rotate(n)
		fill()
		l.Retire()
		fill()
	}
	for len(l.Entries) < 23 {
		fill()
	}
	return l
}

func rotations(t testing.TB, l *logtest.Log) []*audit.InclusionProof {
	t.Helper()
	list, err := l.Source().Rotations()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func pin(t testing.TB, vkey string) *audit.Keys {
	t.Helper()
	k, err := audit.Pin(vkey)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func follow(t testing.TB, vkey string, list []*audit.InclusionProof) *audit.Keys {
	t.Helper()
	k, err := pin(t, vkey).Follow(audit.EncodeRotations(list))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// as is the checkpoint of the first size events signed by the keys numbered n.
func as(l *logtest.Log, size int, n ...byte) []byte {
	c := *l
	c.Also = nil
	for i, n := range n {
		signer, _ := logtest.Key(l.Origin, n)
		if i == 0 {
			c.Signer = signer
		} else {
			c.Also = append(c.Also, signer)
		}
	}
	return c.Note(size)
}

// Whoever pinned a key of the log takes what the keys after it have signed, from
// the event on that brought each, and nothing else.
func TestR81_APinnedKeyIsFollowedOverRotations(t *testing.T) {
	l := rotatedLog(t, "example.org/log")
	list := rotations(t, l)
	if len(list) != 3 || list[0].Index != 0 || list[1].Index != 14 || list[2].Index != 18 {
		t.Fatalf("%d rotations", len(list))
	}
	receipt := receiptOf(l, 10)
	proof, _, err := l.Source().Prove(10)
	if err != nil {
		t.Fatal(err)
	}
	for i, vkey := range append([]string{l.VKey}, l.Next...) {
		k := follow(t, vkey, list)
		if c, err := proof.Check(receipt, k); err != nil || c.Size != 23 || len(k.Trusted()) != 3-i {
			t.Errorf("key %d: %v", i+1, err)
		}
		if _, err := proof.Check(receipt, pin(t, vkey)); (err == nil) != (i == 2) {
			t.Errorf("key %d, shown nothing: %v", i+1, err)
		}
	}
	k := follow(t, l.VKey, list)
	for what, c := range map[string]struct {
		signed []byte
		good   bool
	}{
		"the first key, before":                {as(l, 14, 1), true},
		"both, while two are in force":         {as(l, 16, 1, 2), true},
		"the next one, after":                  {as(l, 18, 2), true},
		"the last one":                         {as(l, 22, 3), true},
		"the first key alone, beside the next": {as(l, 16, 1), false},
		"the first key, retired":               {as(l, 18, 1), false},
		"the first key, long retired":          {as(l, 23, 1), false},
		"the second key, retired":              {as(l, 23, 2), false},
		"the second key before its time":       {as(l, 14, 2), false},
		"a stranger":                           {as(l, 23, 9), false},
	} {
		if _, err := k.Open(c.signed); (err == nil) != c.good {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := k.Open(as(l, 23, 1)); err == nil || !strings.Contains(err.Error(), "alone signed size 23, which since event 19") {
		t.Errorf("a retired key: %v", err)
	}
	// Whoever pinned the second key trusts nothing from before it.
	if _, err := follow(t, l.Next[0], list).Open(as(l, 14, 1)); err == nil {
		t.Error("a key before the pinned one is trusted")
	}
	// A log of one key has nothing to follow, while two are in force both sign.
	one := logtest.Sample("example.org/log", 1, 14)
	if k := follow(t, one.VKey, rotations(t, one)); k.Handed() != "" {
		t.Error(k.Handed())
	}
	one.Rotate(2)
	if k := follow(t, one.VKey, rotations(t, one)); len(k.Trusted()) != 2 {
		t.Error(k.Trusted())
	}
}

// What does not show that one key handed over to the next is refused.
func TestR81_WhatHandsOverNothing(t *testing.T) {
	l := rotatedLog(t, "example.org/log")
	under := func(l *logtest.Log, seq int, signed []byte) *audit.InclusionProof {
		t.Helper()
		c, err := audit.ReadCheckpoint(signed)
		if err != nil {
			t.Fatal(err)
		}
		cut := l.Clone()
		cut.Entries = cut.Entries[:c.Size]
		p, event, err := cut.Source().Prove(uint64(seq))
		if err != nil {
			t.Fatal(err)
		}
		p.Extra, p.Checkpoint = event, signed
		return p
	}
	first, second, third := under(l, 1, as(l, 16, 1, 2)), under(l, 15, as(l, 16, 1, 2)), under(l, 19, as(l, 20, 2, 3))
	follow(t, l.VKey, []*audit.InclusionProof{first, second, third})

	thief := l.Clone() // has the first key, and makes one of his own
	thief.Entries = thief.Entries[:14]
	thief.Signer, _ = logtest.Key(l.Origin, 1)
	thief.Next, thief.Also = nil, nil
	thief.Rotate(7)
	number := logtest.Sample(l.Origin, 1, 14)
	number.Next = []string{"x"}
	number.Rotate(2)
	foreign := rotatedLog(t, "example.org/other")
	other := logtest.Sample(l.Origin, 1, 14)
	_, stranger := logtest.Key("example.org/other", 2)
	other.Add("admin", 0, &events.KeyRotated{Key: events.KeyCheckpoint, Number: 2, PublicKey: stranger})
	permit := logtest.Sample(l.Origin, 1, 14)
	permit.Add("admin", 0, &events.KeyRotated{Key: events.KeyPermit, Number: 2, PublicKey: l.Next[0]})
	swapped := *second
	swapped.Extra = thief.Entries[14]
	moved := *second
	moved.Index = 13
	for what, list := range map[string][]*audit.InclusionProof{
		"nothing":                              {},
		"no event 1":                           {second, third},
		"a gap":                                {first, third},
		"another order":                        {first, third, second},
		"one twice":                            {first, second, second},
		"by the new key alone":                 {first, under(l, 15, as(l, 16, 2))},
		"by the old key alone":                 {first, under(l, 15, as(l, 16, 1))},
		"by a stranger beside the old one":     {first, under(l, 15, as(l, 16, 1, 9))},
		"event 1 under the new key alone":      {under(l, 1, as(l, 16, 2)), second},
		"signed once the third was there":      {first, under(l, 15, as(l, 20, 1, 2)), third},
		"of a key that is not the thief's":     {first, under(thief, 15, as(thief, 15, 1, 2))},
		"an event that the tree does not hold": {first, &swapped},
		"another place":                        {first, &moved},
		"another number":                       {first, under(number, 15, as(number, 15, 1, 2))},
		"a key of another name":                {first, under(other, 15, as(other, 15, 1))},
		"a permit key":                         {first, under(permit, 15, as(permit, 15, 1, 2))},
		"another log's":                        rotations(t, foreign),
		"no event":                             {first, {Extra: []byte("x"), Index: 14, Checkpoint: second.Checkpoint, Hashes: second.Hashes}},
	} {
		_, err := pin(t, l.VKey).Follow(audit.EncodeRotations(list))
		var f *audit.Fault
		if !errors.As(err, &f) || f.Check != "rotation" || f.Expected == "" || f.Found == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The third key is no successor's: an older key is not handed back to, though
	// both have signed a tree that holds the event which brought it.
	back := under(l, 15, as(l, 20, 2, 3))
	for what, list := range map[string][]*audit.InclusionProof{
		"alone": {under(l, 1, as(l, 20, 3, 2)), back}, "after the genuine ones": {first, second, third, back},
	} {
		if _, err := pin(t, l.Next[1]).Follow(audit.EncodeRotations(list)); err == nil {
			t.Errorf("handed back, %s", what)
		}
	}
	// A pinned key of which nothing is shown.
	_, unknown := logtest.Key(l.Origin, 9)
	if _, err := pin(t, unknown).Follow(audit.EncodeRotations([]*audit.InclusionProof{first, second, third})); err == nil {
		t.Error("a key that is not among them")
	}
	// Every bit of what is shown counts, but for signatures of others.
	whole := audit.EncodeRotations([]*audit.InclusionProof{first, second, third})
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 1
		if k, err := pin(t, l.VKey).Follow(bad); err == nil && len(k.Trusted()) == 3 {
			t.Fatalf("byte %d: %q", i, bad[max(0, i-20):i+1])
		}
	}
	for i := range whole {
		if k, err := pin(t, l.VKey).Follow(whole[:i]); err == nil && len(k.Trusted()) == 3 {
			t.Fatalf("cut at %d", i)
		}
	}
}

// Whoever has stolen a key after it handed over cannot hand over to his own where
// the genuine one was seen: a key has one successor.
func TestR81_AStolenKeyHandsOverToNobodyElse(t *testing.T) {
	l := rotatedLog(t, "example.org/log")
	seen := follow(t, l.VKey, rotations(t, l))
	thief := logtest.Sample("example.org/log", 1, 14)
	thief.Rotate(7)
	forged := audit.EncodeRotations(rotations(t, thief))
	_, err := seen.Follow(forged)
	var f *audit.Fault
	if !errors.As(err, &f) || f.Check != "rotation" || !strings.Contains(f.Found, "two histories, or was stolen") {
		t.Errorf("%v", err)
	}
	// The same key, brought by another event, is another history too.
	later := logtest.Sample("example.org/log", 1, 16)
	later.Rotate(2)
	if _, err := seen.Follow(audit.EncodeRotations(rotations(t, later))); err == nil {
		t.Error("another event brings the same key")
	}
	// Fewer, as were shown earlier, are no news; what was known stays.
	was := l.Clone()
	was.Entries = was.Entries[:18]
	was.Next = was.Next[:1]
	was.Signer, _ = logtest.Key(l.Origin, 2)
	if k, err := seen.Follow(audit.EncodeRotations(rotations(t, was))); err != nil || len(k.Trusted()) != 3 {
		t.Errorf("%v", err)
	}
	// Whoever saw nothing is shown what the thief likes: a rotation is no answer to a leak.
	if _, err := pin(t, l.VKey).Follow(forged); err != nil {
		t.Errorf("%v", err)
	}
}

// A note that names a key nobody was shown says that there is something to ask for.
func TestR81_UnknownSignersAreNoticed(t *testing.T) {
	l := rotatedLog(t, "example.org/log")
	k := pin(t, l.VKey)
	followed := follow(t, l.VKey, rotations(t, l))
	witness, _, err := note.GenerateKey(zeros{}, "witness.example")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(witness)
	if err != nil {
		t.Fatal(err)
	}
	cosigned := l.Clone()
	cosigned.Also = []note.Signer{signer}
	for what, c := range map[string]struct {
		signed        []byte
		pinned, after bool
	}{
		"the pinned key": {as(l, 14, 1), false, false}, "two in force": {as(l, 16, 1, 2), true, false}, "the newest": {as(l, 23, 3), true, false},
		"a stranger": {as(l, 23, 3, 9), true, true}, "a witness": {cosigned.Note(23), true, false}, "nothing": {[]byte("x"), false, false},
	} {
		if got := k.Unknown(c.signed); got != c.pinned {
			t.Errorf("%s: %v", what, got)
		}
		if got := followed.Unknown(c.signed); got != c.after {
			t.Errorf("%s, after the rotations: %v", what, got)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

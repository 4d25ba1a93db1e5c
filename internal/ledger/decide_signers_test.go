package ledger

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

type signer struct {
	t    testing.TB
	pair nkeys.KeyPair
}

func newSigner(t testing.TB) signer {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	return signer{t, pair}
}

func (s signer) key() string {
	key, err := s.pair.PublicKey()
	if err != nil {
		s.t.Fatal(err)
	}
	return key
}

func (s signer) sign(statement []byte) string {
	seed, err := s.pair.Seed()
	if err != nil {
		s.t.Fatal(err)
	}
	signature, err := policy.Sign(seed, statement)
	if err != nil {
		s.t.Fatal(err)
	}
	return signature
}

func signedVersion(version string) string {
	return "apiVersion: ledgerd/v1\nkind: Policy\nversion: " + version + "\nenvironment: [memory.read]\n"
}

// TestR67_PoliciesAreSigned: with signers, none of them having signed exactly
// this document for exactly this ledger leaves the policy in force as it was.
func TestR67_PoliciesAreSigned(t *testing.T) {
	l := newRules(t)
	one, two, stranger := newSigner(t), newSigner(t), newSigner(t)
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "signers.set", object{"keys": []string{one.key(), two.key()}})
	text := signedVersion("signed-1")
	digest := sha256.Sum256([]byte(text))
	statement := policy.Statement(tinyOrigin, "signed-1", digest)
	good := one.sign(statement)
	key, encoded, _ := strings.Cut(good, " ")
	signature, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}

	refused := map[string]any{
		"none":            []string{},
		"no form":         []string{"", " ", key, "x y z"},
		"another's":       []string{stranger.sign(statement)},
		"under another":   []string{two.key() + " " + encoded},
		"another ledger":  []string{one.sign(policy.Statement(tinyOrigin+"x", "signed-1", digest))},
		"another version": []string{one.sign(policy.Statement(tinyOrigin, "signed-2", digest))},
		"another text":    []string{one.sign(policy.Statement(tinyOrigin, "signed-1", sha256.Sum256([]byte(text+"#\n"))))},
		"signers":         []string{one.sign(policy.SignersStatement(tinyOrigin, 1, []string{one.key()}))},
		"cut":             []string{key + " " + base64.StdEncoding.EncodeToString(signature[:63])},
		"more":            []string{key + " " + base64.StdEncoding.EncodeToString(append(signature[:64:64], 0))},
	}
	for i := range len(signature) * 8 {
		flipped := append([]byte{}, signature...)
		flipped[i/8] ^= 1 << (i % 8)
		if ok, _ := policy.Signed(policy.NewSet(one.key()), statement, []string{key + " " + base64.StdEncoding.EncodeToString(flipped)}); ok {
			t.Fatalf("taken with bit %d flipped", i)
		}
	}
	for name, signatures := range refused {
		o := l.mustAsk(reason.PolicyNotSigned, wire.Control, AdminID, "apply", object{"documents": []string{text}, "signatures": signatures})
		if len(o.Effects) > 0 || l.state.PolicyVersion() != "rules-1" {
			t.Fatalf("%s: %s is in force", name, l.state.PolicyVersion())
		}
	}
	l.mustAsk(reason.PolicyNotSigned, wire.Control, AdminID, "apply", object{"documents": []string{text}})
	l.mustAsk(reason.PolicyNotSigned, wire.Control, AdminID, "apply", object{"documents": []string{text}, "dry_run": true})

	// One signer's word among others' is enough; and documents of another kind,
	// beside the policy that is in force, need none.
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{text}, "signatures": []string{stranger.sign(statement), good}})
	if l.state.PolicyVersion() != "signed-1" {
		t.Fatal(l.state.PolicyVersion())
	}
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{text}})

	// What the signers replaced does not come back, whoever may apply.
	next := signedVersion("signed-2")
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{next},
		"signatures": []string{two.sign(policy.Statement(tinyOrigin, "signed-2", sha256.Sum256([]byte(next))))}})
	l.mustAsk(reason.PolicyVersionExists, wire.Control, AdminID, "apply", object{"documents": []string{text}, "signatures": []string{good}})
	if l.state.PolicyVersion() != "signed-2" {
		t.Fatal(l.state.PolicyVersion())
	}
}

// TestR67_SignersChangeEachOther: an admin names the first signers, and nobody
// but a signer any others, or none, and each signature serves once.
func TestR67_SignersChangeEachOther(t *testing.T) {
	l := newRules(t)
	one, two := newSigner(t), newSigner(t)
	set := func(want reason.Code, keys []string, signatures ...string) {
		t.Helper()
		l.mustAsk(want, wire.Control, AdminID, "signers.set", object{"keys": keys, "signatures": append([]string{}, signatures...)})
	}
	is := func(number uint64, keys ...string) {
		t.Helper()
		if !l.state.Signers.Equal(policy.NewSet(keys...)) || l.state.SignersNo != number {
			t.Fatalf("%d %v", l.state.SignersNo, l.state.Signers)
		}
	}
	if o := l.ask(wire.Propose, "root", "signers.set", `{"keys":[]}`); o.Decision.Allowed {
		t.Error("an agent set the signers")
	}
	set(reason.MalformedRequest, []string{"U"})
	set(reason.MalformedRequest, []string{one.key(), one.key()})
	set(reason.ControlDone, []string{one.key()})
	is(1, one.key())
	set(reason.ControlDone, []string{one.key()}) // so it is already
	set(reason.PolicyNotSigned, []string{})
	set(reason.PolicyNotSigned, []string{two.key()})
	set(reason.PolicyNotSigned, []string{two.key()}, two.sign(policy.SignersStatement(tinyOrigin, 2, []string{two.key()})))
	set(reason.PolicyNotSigned, []string{two.key()}, one.sign(policy.SignersStatement(tinyOrigin, 1, []string{two.key()})))
	is(1, one.key())
	toTwo := one.sign(policy.SignersStatement(tinyOrigin, 2, []string{two.key()}))
	set(reason.ControlDone, []string{two.key()}, toTwo)
	is(2, two.key())
	set(reason.ControlDone, []string{one.key()}, two.sign(policy.SignersStatement(tinyOrigin, 3, []string{one.key()})))
	set(reason.PolicyNotSigned, []string{two.key()}, toTwo)
	is(3, one.key())
	set(reason.ControlDone, []string{}, one.sign(policy.SignersStatement(tinyOrigin, 4, nil)))
	is(4)
	l.mustAsk(reason.ControlDone, wire.Control, AdminID, "apply", object{"documents": []string{signedVersion("free")}})
}

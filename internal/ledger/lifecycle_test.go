package ledger

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func lifePolicy(version, environment string) string {
	return "apiVersion: ledgerd/v1\nkind: Policy\nversion: " + version + "\nenvironment: [" + environment + "]\nactions:\n  x.one: {}\n"
}

func applyBody(documents ...string) string {
	b := []byte(`{"documents":[`)
	for i, text := range documents {
		if i > 0 {
			b = append(b, ',')
		}
		b = events.AppendString(b, text)
	}
	return string(append(b, `]}`...))
}

func activations(l *tinyLog) (n int) {
	for _, b := range l.events {
		if strings.Contains(string(b), `"type":"policy.activated"`) {
			n++
		}
	}
	return n
}

// R63: each decision names the one document it was made under, switched in
// mid-stream; a version is one document for ever, and the same again is no
// event.
func TestR63_EveryDecisionNamesItsPolicy(t *testing.T) {
	l := newTinyLog(t)
	top := "kind: Agent\nid: top\ncapabilities: [x.one]\npublic_key: " + publicKey("top") + "\n"
	first, second := lifePolicy("v1", "x.one"), lifePolicy("v2", "memory.read")
	apply := func(text string, want reason.Code) {
		t.Helper()
		if o := l.ask(wire.Control, AdminID, "apply", applyBody(text)); o.Decision.Reason != string(want) {
			t.Fatalf("apply: %s, want %s", o.Decision.Reason, want)
		}
	}
	authorize := func(text string, want reason.Code) {
		t.Helper()
		d := l.ask(wire.Propose, "top", "action.authorize", `{"action":"x.one"}`).Decision
		digest := events.Hash(sha256.Sum256([]byte(text)))
		if d.Reason != string(want) || d.PolicyDigest != digest || !strings.Contains(text, "version: "+d.PolicyVersion+"\n") {
			t.Fatalf("%s under %s %s, want %s under %s", d.Reason, d.PolicyVersion, d.PolicyDigest, want, digest)
		}
	}
	if o := l.ask(wire.Control, AdminID, "apply", applyBody(first, top)); !o.Decision.Allowed {
		t.Fatal(o.Decision.Reason, o.Faults)
	}
	authorize(first, reason.ActionAllowed)
	apply(second, reason.ControlDone)
	authorize(second, reason.ActionNotInEffectiveCapabilities)
	apply(second, reason.ControlDone) // unchanged
	apply(strings.Replace(second, "memory.read", "x.one", 1), reason.PolicyVersionExists)
	apply(first+"# a word more\n", reason.PolicyVersionExists)
	authorize(second, reason.ActionNotInEffectiveCapabilities)
	apply(first, reason.ControlDone) // back to it
	authorize(first, reason.ActionAllowed)
	if n := activations(l); n != 3 {
		t.Errorf("%d activations, want 3", n)
	}
	l.verify()
}

// R60: a policy that cannot be used is refused and recorded, and the last good
// one stays in force: there is no way to none.
func TestR60_TheLastGoodPolicyStays(t *testing.T) {
	l := newTinyLog(t)
	top := "kind: Agent\nid: top\ncapabilities: [x.one]\npublic_key: " + publicKey("top") + "\n"
	good := lifePolicy("v1", "x.one")
	bad := []string{
		"", "kind: Policy\n", "apiVersion: ledgerd/v1\nkind: Policy\nversion: v2\n", "\xff", "\ufeff" + lifePolicy("v2", "x.one"),
		lifePolicy("v2", "x.two"), lifePolicy("none", "x.one"), lifePolicy("v2", "x.one") + "unknown: 1\n", lifePolicy("v2", "x.one") + "version: v3\n",
		strings.Replace(lifePolicy("v2", "x.one"), "x.one: {}", "x.one: {unknown: true}", 1),
		strings.Replace(lifePolicy("v2", "x.one"), "x.one: {}", "x.one: null", 1),
		strings.Replace(lifePolicy("v2", "x.one"), "ledgerd/v1", "ledgerd/v2", 1),
	}
	for _, text := range bad { // before any policy: nobody gets anything
		if o := l.ask(wire.Control, AdminID, "apply", applyBody(text, top)); o.Decision.Allowed || l.state.Policy != nil {
			t.Fatalf("applied %q", text)
		}
	}
	if o := l.ask(wire.Control, AdminID, "apply", applyBody(good, top)); !o.Decision.Allowed {
		t.Fatal(o.Decision.Reason, o.Faults)
	}
	for _, text := range bad {
		before := l.state.Seq
		o := l.ask(wire.Control, AdminID, "apply", applyBody(text))
		if o.Decision.Allowed || l.state.PolicyVersion() != "v1" || l.state.Seq != before+1 {
			t.Fatalf("%q: %s, %s in force, %d events", text, o.Decision.Reason, l.state.PolicyVersion(), l.state.Seq-before)
		}
		if d := l.ask(wire.Propose, "top", "action.authorize", `{"action":"x.one"}`).Decision; d.Reason != string(reason.ActionAllowed) || d.PolicyVersion != "v1" {
			t.Fatalf("after %q: %s under %s", text, d.Reason, d.PolicyVersion)
		}
	}
	l.verify()
}

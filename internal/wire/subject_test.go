package wire

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
)

func TestParseSubject(t *testing.T) {
	long := strings.Repeat("a", events.IDBytesMax)
	for _, s := range []Subject{
		{"main", Propose, "researcher", "memory.write"},
		{"main", Query, "a-b_c", "capabilities"},
		{"0", Control, "admin", "emergency.deny"},
		{long, Propose, long, strings.Repeat("a", events.ActionBytesMax)},
		{"main", Propose, "bob", "a.b.c.d.e.f"},
		{"main", Propose, "bob", "no.such.operation"}, // the grammar alone
	} {
		if got, ok := ParseSubject(s.String()); !ok || got != s {
			t.Errorf("%s is read as %+v, %v", s, got, ok)
		}
	}
	for _, s := range []string{
		"", ".", "....", "gov", "gov.main.propose.bob", "gov.main.propose.bob.", "gov.main.propose..memory.read",
		"gov..propose.bob.memory.read", "Gov.main.propose.bob.memory.read", "led.main.propose.bob.memory.read",
		"gov.main.exec.bob.memory.read", "gov.main..bob.memory.read", "gov.main.PROPOSE.bob.memory.read",
		"gov.main.propose.bob.*", "gov.main.propose.bob.memory.>", "gov.main.propose.*.memory.read", "gov.*.propose.bob.memory.read",
		"gov.main.propose.bob.memory..read", "gov.main.propose.bob.memory.read.", ".gov.main.propose.bob.memory.read",
		"gov.main.propose.Bob.memory.read", "gov.main.propose.b ob.memory.read", "gov.main.propose.b\tob.memory.read",
		"gov.main.propose.b\xffb.memory.read", "gov.main.propose.b\u043eb.memory.read", "gov.main.propose.bob.memory.read\x00",
		"gov.main.propose.bob.memory.Read", "gov.main.propose.bob.memory read", "gov.main.propose.bob.memory.read\n",
		"gov.main.propose._bob.memory.read", "gov.main.propose.-bob.memory.read",
		"gov.main.propose.sys.memory.read", "gov.main.propose.all.memory.read", "gov.any.propose.bob.memory.read",
		"gov.main.propose." + long + "a.memory.read", "gov.main.propose.bob." + strings.Repeat("a", events.ActionBytesMax+1),
		"gov.main.propose.bob.a.b.c.d.e.f.g",
	} {
		if got, ok := ParseSubject(s); ok {
			t.Errorf("%q is read as %+v", s, got)
		}
	}
}

func TestOwnInbox(t *testing.T) {
	for _, reply := range []string{"_INBOX.bob.x", "_INBOX.bob.x.y.1", "_INBOX.bob.Ab-_9$", "_INBOX.bob." + strings.Repeat("x", 500)} {
		if !OwnInbox("bob", reply) {
			t.Errorf("%q is not bob's", reply)
		}
	}
	for _, reply := range []string{
		"", "_INBOX", "_INBOX.bob", "_INBOX.bob.", "_INBOX.bob..x", "_INBOX.bob.x.", "_INBOX.bobby.x", "_INBOX.alice.x", "_INBOX.x",
		"_INBOX.bob.*", "_INBOX.bob.>", "_INBOX.bob.x.*", "_INBOX.bob.x>", "_INBOX.bob.a*b", "_INBOX.bob.a b", "_INBOX.bob.a\tb",
		"_INBOX.bob.a\xff", "_INBOX.bob.\u00e9", "_INBOX.bob.a\x00", "_inbox.bob.x", " _INBOX.bob.x", "gov.main.propose.bob.memory.read",
		"led.main.decision.bob.allowed.memory.read", "$JS.API.STREAM.PURGE.LEDGER_main", "_INBOX.bob." + strings.Repeat("x", 502),
	} {
		if OwnInbox("bob", reply) {
			t.Errorf("%q is bob's", reply)
		}
	}
}

// Whatever the bytes, a subject that parses is the only form of what it says,
// and every token of it is legal in a subject of ours.
func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{
		"gov.main.propose.bob.memory.read", "gov.main.control.admin.apply", "prop.bob.*", "gov.main.propose.bob.*", "gov.main.query.bob.run\x00", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if parsed, ok := ParseSubject(s); ok {
			if parsed.String() != s || strings.ContainsAny(s, "*> \t\r\n\x00") {
				t.Fatalf("%q is read as %+v", s, parsed)
			}
		}
		if OwnInbox("bob", s) && (strings.ContainsAny(s, "*> \t\r\n\x00") || !strings.HasPrefix(s, "_INBOX.bob.")) {
			t.Fatalf("%q is an inbox of bob's", s)
		}
	})
}

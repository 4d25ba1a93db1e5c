package natsapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// probeSubject is one class of subjects and the identities that may use it;
// ID and OTHER stand for the prober's and another's id.
type probeSubject struct {
	subject string // "subject queue" for a queue subscription
	allowed string // space-separated ids, "*" for all
}

var publishClasses = []probeSubject{
	{"gov.main.propose.ID.memory.write", "bot"},
	{"gov.main.propose.ID.x", "bot"},
	{"gov.main.propose.ID.*", "bot"}, // literal; the handler refuses it
	{"gov.main.propose.ID.>", "bot"},
	{"gov.main.propose.ID", ""},
	{"gov.main.propose.OTHER.memory.write", ""},
	{"gov.main.propose.*.memory.write", ""},
	{"gov.main.propose.>", ""},
	{"gov.other.propose.ID.memory.write", ""},
	{"gov.*.propose.ID.memory.write", ""},
	{"GOV.main.propose.ID.memory.write", ""},
	{"gov.main.query.ID.capabilities", "*"},
	{"gov.main.query.OTHER.capabilities", ""},
	{"gov.other.query.ID.capabilities", ""},
	{"gov.main.effect.ID.hello", "tools"},
	{"gov.main.effect.ID.report", "tools"},
	{"gov.main.effect.ID.other", ""},
	{"gov.main.effect.OTHER.hello", ""},
	{"gov.main.permit.ID.redeem", "tools"},
	{"gov.main.permit.OTHER.redeem", ""},
	{"gov.main.approve.ID.a1", "boss"},
	{"gov.main.approve.ID.>", "boss"}, // literal
	{"gov.main.approve.ID.a1.b", ""},
	{"gov.main.approve.OTHER.a1", ""},
	{"gov.main.control.ID.agent.register", "desk admin"},
	{"gov.main.control.ID.agent.revoke", "desk admin"},
	{"gov.main.control.ID.apply", "admin"},
	{"gov.main.control.ID.emergency.deny", "admin"},
	{"gov.main.control.OTHER.apply", ""},
	{"gov.main.control.state", ""},
	{"gov.main.exec.artifact.save", ""},
	{"gov.main.notify.ID.x", ""},
	{"gov.main.notify.OTHER.x", ""},
	{"gov.main.pending.security.a1", ""},
	{"gov.main.checkpoint", ""},
	{"led.main.decision.ID.denied", ""},
	{"led.main.x", ""},
	{"$JS.API.INFO", ""},
	{"$JS.API.STREAM.NAMES", ""},
	{"$JS.API.STREAM.LIST", ""},
	{"$JS.API.STREAM.INFO.LEDGER_main", ""},
	{"$JS.API.STREAM.CREATE.EVIL", ""},
	{"$JS.API.STREAM.UPDATE.LEDGER_main", ""},
	{"$JS.API.STREAM.DELETE.LEDGER_main", ""},
	{"$JS.API.STREAM.PURGE.LEDGER_main", ""},
	{"$JS.API.STREAM.MSG.GET.LEDGER_main", ""},
	{"$JS.API.STREAM.MSG.DELETE.LEDGER_main", ""},
	{"$JS.API.STREAM.SNAPSHOT.LEDGER_main", ""},
	{"$JS.API.STREAM.RESTORE.LEDGER_main", ""},
	{"$JS.API.DIRECT.GET.LEDGER_main", ""},
	{"$JS.API.CONSUMER.CREATE.LEDGER_main.c", ""},
	{"$JS.API.CONSUMER.MSG.NEXT.LEDGER_main.c", ""},
	{"LJS.API.INFO", ""},
	{"LJS.API.STREAM.INFO.LEDGER_main", "eye audit"},
	{"LJS.API.STREAM.INFO.OTHER", ""},
	{"LJS.API.STREAM.CREATE.LEDGER_main", ""},
	{"LJS.API.STREAM.UPDATE.LEDGER_main", ""},
	{"LJS.API.STREAM.DELETE.LEDGER_main", ""},
	{"LJS.API.STREAM.PURGE.LEDGER_main", ""},
	{"LJS.API.STREAM.MSG.GET.LEDGER_main", ""},
	{"LJS.API.STREAM.MSG.DELETE.LEDGER_main", ""},
	{"LJS.API.STREAM.SNAPSHOT.LEDGER_main", ""},
	{"LJS.API.STREAM.RESTORE.LEDGER_main", ""},
	{"LJS.API.CONSUMER.CREATE.LEDGER_main.c", "eye audit"},
	{"LJS.API.CONSUMER.CREATE.LEDGER_main.c.led.main.>", "eye audit"},
	{"LJS.API.CONSUMER.CREATE.LEDGER_main", ""},
	{"LJS.API.CONSUMER.DURABLE.CREATE.LEDGER_main.c", ""},
	{"LJS.API.CONSUMER.CREATE.OTHER.c", ""},
	{"LJS.API.CONSUMER.INFO.LEDGER_main.c", "eye audit"},
	{"LJS.API.CONSUMER.DELETE.LEDGER_main.c", "eye audit"},
	{"LJS.API.CONSUMER.MSG.NEXT.LEDGER_main.c", "eye audit"},
	{"LJS.API.CONSUMER.PAUSE.LEDGER_main.c", ""},
	{"LJS.API.CONSUMER.LIST.LEDGER_main", ""},
	{"$JS.ACK.LEDGER_main.c.1.1.1.1.0", ""},
	{"$JS.FC.LEDGER_main.c.x", ""},
	{"$KV.x.y", ""},
	{"$O.x.C.y", ""},
	{"$SRV.PING", "admin"},
	{"$SRV.INFO.ledgerd", "admin"},
	{"$SYS.REQ.USER.INFO", ""},
	{"$SYS.REQ.SERVER.PING", ""},
	{"$SYS.ACCOUNT.WORK.CONNECT", ""},
	{"$NRG.x", ""},
	{"_GR_.x", ""},
	{"_R_.x", ""},
	{"_INBOX.ID.x", ""},
	{"_INBOX.OTHER.x", ""},
	{"_INBOX.svc.x", ""},
	{"feed.main.x", ""},
	{"x", ""},
}

var subscribeClasses = []probeSubject{
	{"_INBOX.ID.>", "*"},
	{"_INBOX.ID.x.y", "*"},
	{"_INBOX.ID.x q", "*"},
	{"_INBOX.ID", ""},
	{"_INBOX.>", ""},
	{"_INBOX.*.>", ""},
	{"_INBOX.*.x", ""},
	{"_INBOX.OTHER.>", ""},
	{"_INBOX.svc.>", ""},
	{"_INBOX.> q", ""},
	{">", ""},
	{"> q", ""},
	{"*", ""},
	{"*.>", ""},
	{"gov.>", ""},
	{"gov.> q", ""},
	{"gov.main.>", ""},
	{"gov.main.*", ""},
	{"gov.main.propose.>", ""},
	{"gov.main.propose.> ledgerd", ""},
	{"gov.main.propose.ID.>", ""},
	{"gov.main.query.>", ""},
	{"gov.main.query.ID.>", ""},
	{"gov.main.control.>", ""},
	{"gov.main.control.*", ""},
	{"gov.main.control.ID.>", ""},
	{"gov.main.control.state", "tools desk boss admin"},
	{"gov.main.checkpoint", "*"},
	{"gov.*.checkpoint", ""},
	{"gov.main.notify.ID.>", "bot"},
	{"gov.main.notify.ID.x", "bot"},
	{"gov.main.notify.OTHER.>", ""},
	{"gov.main.notify.*.x", ""},
	{"gov.main.exec.artifact.save exec-artifact.save", "tools"},
	{"gov.main.exec.ping exec-ping", "tools"},
	{"gov.main.exec.artifact.save", ""},
	{"gov.main.exec.artifact.save exec-ping", ""},
	{"gov.main.exec.artifact.save x", ""},
	{"gov.main.exec.external.upload exec-external.upload", ""},
	{"gov.main.exec.>", ""},
	{"gov.main.exec.> exec-ping", ""},
	{"gov.main.exec.* exec-ping", ""},
	{"gov.main.pending.security.*", "boss"},
	{"gov.main.pending.security.a1", "boss"},
	{"gov.main.pending.security.>", "boss"}, // the server takes > for a token; no group has a dot
	{"gov.main.pending.security.a.b", ""},
	{"gov.main.pending.a.b.*", ""},
	{"gov.main.pending.a.*", ""},
	{"gov.main.pending.other.*", ""},
	{"gov.main.pending.>", ""},
	{"led.main.>", "eye audit"},
	{"led.main.decision.>", "eye audit"},
	{"led.main.> q", "eye audit"},
	{"led.>", ""},
	{"led.*.>", ""},
	{"led.other.>", ""},
	{"$JS.>", ""},
	{"$JS.API.>", ""},
	{"$JS.EVENT.>", ""},
	{"LJS.API.>", ""},
	{"$KV.>", ""},
	{"$SRV.>", ""},
	{"$SRV.PING", ""},
	{"$SYS.>", ""},
	{"$SYS.ACCOUNT.>", ""},
	{"_R_.>", ""},
	{"feed.>", ""},
}

// Every role tries to publish and subscribe on every kind of subject over a
// real connection; what it gets is exactly the table.
func TestR91_R92_EveryRoleOnEverySubject(t *testing.T) {
	b := startBench(t)
	tried, allowed := 0, 0
	for _, who := range everyone() {
		b.reg.add(t, who)
		w := b.enter(t, who.ID)
		may := func(p probeSubject) bool {
			return p.allowed == "*" || slices.Contains(strings.Fields(p.allowed), who.ID)
		}
		subject := func(s string) string {
			return strings.NewReplacer(".ID", "."+who.ID, ".OTHER", ".peer").Replace(s)
		}
		for _, p := range publishClasses {
			s := subject(p.subject)
			w.send("PUB %s 0\r\n\r\n", s)
			errs := w.errors()
			if got := len(errs) == 0; got != may(p) {
				t.Errorf("%s (%s) publishes to %s: allowed %v, want %v %q", who.ID, who.Role, s, got, may(p), errs)
			}
			if may(p) {
				allowed++
			}
			tried++
		}
		for i, p := range subscribeClasses {
			s := subject(p.subject)
			w.send("SUB %s %d\r\n", s, i+1)
			errs := w.errors()
			if got := len(errs) == 0; got != may(p) {
				t.Errorf("%s (%s) subscribes to %s: allowed %v, want %v %q", who.ID, who.Role, s, got, may(p), errs)
			}
			w.send("UNSUB %d\r\n", i+1)
			if may(p) {
				allowed++
			}
			tried++
		}
		want := 0
		for _, p := range slices.Concat(publishClasses, subscribeClasses) {
			if !may(p) {
				want++
			}
		}
		eventually(t, fmt.Sprintf("%d refusals of %s reported", want, who.ID), func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.denied) >= want
		})
		for _, d := range b.refusals() {
			if d.ID != who.ID {
				t.Errorf("refusal of %s is put to %q", who.ID, d.ID)
			}
		}
	}
	t.Logf("%d of %d allowed", allowed, tried)
}

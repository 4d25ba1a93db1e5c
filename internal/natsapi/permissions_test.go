package natsapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// everyone is one identity of each kind that differs in rights.
func everyone() []Identity {
	return []Identity{
		{ID: "bot", Role: RoleAgent},
		{ID: "tools", Role: RoleHandler, Actions: []string{"artifact.save", "ping"}},
		{ID: "desk", Role: RoleRegistrar},
		{ID: "boss", Role: RoleApprover, Groups: []string{"security", "a.b"}},
		{ID: "eye", Role: RoleObserver},
		{ID: "half", Role: RoleObserver, Root: "bot"},
		{ID: "audit", Role: RoleAuditor},
		{ID: "admin", Role: RoleAdmin},
	}
}

// The rights of every role, written out. docs/API.md prints the same.
func TestR91_PermissionsTable(t *testing.T) {
	const want = `
bot agent WORK
  pub gov.main.propose.bot.>
  pub gov.main.query.bot.>
  sub _INBOX.bot.>
  sub gov.main.checkpoint
  sub gov.main.notify.bot.>
tools handler WORK
  pub gov.main.effect.tools.hello
  pub gov.main.effect.tools.report
  pub gov.main.permit.tools.redeem
  pub gov.main.query.tools.>
  sub _INBOX.tools.>
  sub gov.main.checkpoint
  sub gov.main.control.state
  sub gov.main.exec.artifact.save exec-artifact.save
  sub gov.main.exec.ping exec-ping
desk registrar WORK
  pub gov.main.control.desk.agent.register
  pub gov.main.control.desk.agent.revoke
  pub gov.main.query.desk.>
  sub _INBOX.desk.>
  sub gov.main.checkpoint
  sub gov.main.control.state
boss approver WORK
  pub gov.main.approve.boss.*
  pub gov.main.query.boss.>
  sub _INBOX.boss.>
  sub gov.main.checkpoint
  sub gov.main.control.state
  sub gov.main.pending.security.*
eye observer FEED
  pub LJS.API.CONSUMER.CREATE.LEDGER_main.>
  pub LJS.API.CONSUMER.DELETE.LEDGER_main.*
  pub LJS.API.CONSUMER.INFO.LEDGER_main.*
  pub LJS.API.CONSUMER.MSG.NEXT.LEDGER_main.*
  pub LJS.API.STREAM.INFO.LEDGER_main
  pub gov.main.query.eye.>
  sub _INBOX.eye.>
  sub gov.main.checkpoint
  sub led.main.>
half observer FEED
  pub gov.main.query.half.>
  sub _INBOX.half.>
  sub gov.main.checkpoint
audit auditor FEED
  pub LJS.API.CONSUMER.CREATE.LEDGER_main.>
  pub LJS.API.CONSUMER.DELETE.LEDGER_main.*
  pub LJS.API.CONSUMER.INFO.LEDGER_main.*
  pub LJS.API.CONSUMER.MSG.NEXT.LEDGER_main.*
  pub LJS.API.STREAM.INFO.LEDGER_main
  pub gov.main.query.audit.>
  sub _INBOX.audit.>
  sub gov.main.checkpoint
  sub led.main.>
admin admin WORK
  pub $SRV.>
  pub gov.main.control.admin.>
  pub gov.main.query.admin.>
  sub _INBOX.admin.>
  sub gov.main.checkpoint
  sub gov.main.control.state
`
	var got strings.Builder
	for _, who := range everyone() {
		r := Permissions("main", who)
		fmt.Fprintf(&got, "\n%s %s %s", who.ID, who.Role, r.Account)
		for _, s := range slices.Sorted(slices.Values(r.Publish)) {
			got.WriteString("\n  pub " + s)
		}
		for _, s := range slices.Sorted(slices.Values(r.Subscribe)) {
			got.WriteString("\n  sub " + s)
		}
	}
	got.WriteString("\n")
	if got.String() != want {
		t.Errorf("got:%s", got.String())
	}
}

// What is unknown, revoked or ill-named has no rights at all, and no name can
// widen a pattern.
func TestR91_NoRightsWithoutStanding(t *testing.T) {
	for _, who := range []Identity{
		{},
		{ID: "bot"},
		{ID: "bot", Role: "root"},
		{ID: "bot", Role: "Agent"},
		{ID: "bot", Role: RoleAgent, Revoked: true},
		{ID: "*", Role: RoleAgent},
		{ID: ">", Role: RoleAdmin},
		{ID: "bot.sub", Role: RoleAgent},
		{ID: "bot bot", Role: RoleAgent},
		{ID: "all", Role: RoleAgent},
		{ID: "svc", Role: RoleAdmin},
		{ID: "Bot", Role: RoleAgent},
		{ID: "", Role: RoleAdmin},
	} {
		if r := Permissions("main", who); r.Account != "" || r.Publish != nil || r.Subscribe != nil {
			t.Errorf("%+v has rights %+v", who, r)
		}
	}
	if r := Permissions("*", Identity{ID: "bot", Role: RoleAgent}); r.Account != "" {
		t.Errorf("a ledger called * gives rights %+v", r)
	}
	bad := Permissions("main", Identity{ID: "tools", Role: RoleHandler, Actions: []string{"*", ">", "a..b", "", "a b", "x exec-y"}})
	good := Permissions("main", Identity{ID: "tools", Role: RoleHandler})
	if !slices.Equal(bad.Subscribe, good.Subscribe) {
		t.Errorf("odd actions give %q", bad.Subscribe)
	}
	bad = Permissions("main", Identity{ID: "boss", Role: RoleApprover, Groups: []string{"*", ">", "a..b", "a.b", "", "a.", "x y"}})
	good = Permissions("main", Identity{ID: "boss", Role: RoleApprover})
	if !slices.Equal(bad.Subscribe, good.Subscribe) {
		t.Errorf("odd groups give %q", bad.Subscribe)
	}
}

// ledgerd's own connections: what answers cannot write to the stream, what
// writes to the stream hears no request, nobody may delete or purge.
func TestR91_OwnRightsAreApart(t *testing.T) {
	for part, r := range ownRights("main") {
		if r.Account == "" || len(r.Publish) == 0 || len(r.Subscribe) == 0 {
			t.Errorf("%s: an empty list would mean everything: %+v", part, r)
		}
		for _, s := range slices.Concat(r.Publish, r.Subscribe) {
			if s == ">" || strings.Contains(s, "DELETE") || strings.Contains(s, "PURGE") || strings.Contains(s, "RESTORE") {
				t.Errorf("%s may use %s", part, s)
			}
		}
		responder := part == WorkResponder || part == ControlResponder || part == FeedResponder
		if responder != slices.Equal(r.Publish, []string{"_INBOX.>"}) {
			t.Errorf("%s publishes %q", part, r.Publish)
		}
		if (part == FeedWriter) != (r.Account == accountLog) {
			t.Errorf("%s is in %s", part, r.Account)
		}
	}
}

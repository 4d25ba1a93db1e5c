package audit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// The members of a reply that its event says too. Whoever shows a reply can have
// changed them: its hash is that of the event, not of the reply.
const repliedMembers = "allowed, reason_code, subject, operation, resource, policy_version, owner, rule and operation_id"

// IsReply reports whether the receipt was read from a reply, which says more than
// a receipt does.
func (r *Receipt) IsReply() bool { return r.reply != nil }

// Unshown is what a reply says that only its event can bear out.
func (r *Receipt) Unshown() string {
	return "what the reply says beside seq and hash (" + repliedMembers + ", the record) is not covered by the hash: it stands in the event, which is not here"
}

// Uncompared is what a reply says that its event does not.
func (r *Receipt) Uncompared() string {
	if r.reply == nil {
		return ""
	}
	return "the reply's record, failed, decisions and run were not compared: they do not stand in this event"
}

// says holds what a reply says against its event. The error is a *Fault.
func (r *Receipt) says(b events.Body) error {
	if r.reply == nil {
		return nil
	}
	d, ok := b.(*events.Decision)
	if !ok {
		return &Fault{Check: "receipt", Seq: r.Seq, Expected: "a decision, as the reply is of one", Found: string(b.Type())}
	}
	for _, m := range []struct{ name, event, told string }{
		{"allowed", strconv.FormatBool(d.Allowed), ""},
		{"reason_code", d.Reason, string(reason.Told(reason.Code(d.Reason)))},
		{"subject", d.Subject, ""},
		{"operation", d.Operation, ""},
		{"resource", d.Resource, ""},
		{"policy_version", d.PolicyVersion, ""},
		{"owner", d.Owner, ""},
		{"rule", d.Rule, ""},
		{"operation_id", d.OperationID, ""},
	} {
		v, given := r.reply.Get(m.name)
		if said, ok := plainText(v); given && (!ok || (v.Kind == events.String) == (m.name == "allowed") || said != m.event && (m.told == "" || said != m.told)) {
			return &Fault{Check: "receipt", Seq: r.Seq, Where: m.name, Expected: "what event " + r.EventID + " says, " + quote(m.event), Found: "a reply that says " + quote(strings.TrimSpace(said))}
		}
	}
	return nil
}

// plainText is a string, or true or false; ok is false for anything else.
func plainText(v events.Value) (text string, ok bool) {
	switch v.Kind {
	case events.String:
		return v.Text, true
	case events.True, events.False:
		return strconv.FormatBool(v.Kind == events.True), true
	}
	return fmt.Sprintf("something else (%s)", v.Text), false
}

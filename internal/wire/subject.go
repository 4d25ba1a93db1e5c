// Package wire is what travels over NATS: subjects, decoded requests and
// encoded replies. It holds no rule: a Request says what was asked, a Reply
// what was decided. The first call for an incoming message is ParseSubject,
// then Decode.
package wire

import (
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Lane is the kind of a request subject.
type Lane string

// The lanes that end at the ledger.
const (
	Propose Lane = "propose"
	Query   Lane = "query"
	Control Lane = "control"
	Effect  Lane = "effect" // handlers: hello, report
)

// Subject is gov.<ledger>.<lane>.<id>.<name>, taken apart.
type Subject struct {
	Ledger string
	Lane   Lane
	ID     string // the sender: the server pins it to the connection's key
	Name   string // operation, query or verb, within the grammar of actions
}

// ParseSubject takes a request's own subject apart and checks every token,
// since a server delivers whatever its client wrote: wildcards, spaces, bytes
// that are no UTF-8. It reports false where no sender can be told.
func ParseSubject(s string) (Subject, bool) {
	parts := strings.SplitN(s, ".", 5)
	if len(parts) != 5 || parts[0] != "gov" || !events.ValidID(parts[1]) || !events.ValidID(parts[3]) {
		return Subject{}, false
	}
	lane := Lane(parts[2])
	if lane != Propose && lane != Query && lane != Control && lane != Effect {
		return Subject{}, false
	}
	if !events.ValidAction(parts[4]) {
		return Subject{}, false
	}
	return Subject{Ledger: parts[1], Lane: lane, ID: parts[3], Name: parts[4]}, true
}

// String is the subject in NATS form.
func (s Subject) String() string {
	return "gov." + s.Ledger + "." + string(s.Lane) + "." + s.ID + "." + s.Name
}

// InboxPrefix is the prefix, two tokens, of the only subjects id may ask
// answers on.
func InboxPrefix(id string) string { return "_INBOX." + id }

// OwnInbox reports whether reply is a literal subject under id's inbox. The
// server checks no reply subject, so whoever answers must.
func OwnInbox(id, reply string) bool {
	rest, ok := strings.CutPrefix(reply, InboxPrefix(id)+".")
	if !ok || len(reply) > 512 {
		return false
	}
	for _, token := range strings.Split(rest, ".") {
		if token == "" || strings.ContainsAny(token, "*>") {
			return false
		}
	}
	for i := 0; i < len(rest); i++ {
		if rest[i] <= 0x20 || rest[i] > 0x7e {
			return false
		}
	}
	return true
}

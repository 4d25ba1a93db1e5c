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
	rest, ok := strings.CutPrefix(s, "gov.")
	ledger, rest, _ := strings.Cut(rest, ".")
	lane, rest, _ := strings.Cut(rest, ".")
	id, name, _ := strings.Cut(rest, ".")
	if !ok || !events.ValidID(ledger) || !events.ValidID(id) || !events.ValidAction(name) {
		return Subject{}, false
	}
	switch l := Lane(lane); l {
	case Propose, Query, Control, Effect:
		return Subject{Ledger: ledger, Lane: l, ID: id, Name: name}, true
	}
	return Subject{}, false
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
	rest, inbox := strings.CutPrefix(reply, "_INBOX.")
	rest, own := strings.CutPrefix(rest, id)
	if !inbox || !own || len(reply) > 512 || rest == "" || rest[0] != '.' {
		return false
	}
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '.':
			if i+1 == len(rest) || rest[i+1] == '.' {
				return false
			}
		case c <= 0x20 || c > 0x7e || c == '*' || c == '>':
			return false
		}
	}
	return true
}

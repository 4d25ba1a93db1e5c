package natsapi

import (
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// The roles a registered key may have.
const (
	RoleAgent     = "agent"
	RoleHandler   = "handler"
	RoleRegistrar = "registrar"
	RoleApprover  = "approver"
	RoleObserver  = "observer"
	RoleAuditor   = "auditor"
	RoleAdmin     = "admin"
)

// The three accounts of the embedded server. Nothing passes between them but
// what the configuration imports: FEED reads the stream of LOG.
const (
	accountWork = "WORK" // agents, handlers, approvers, registrars, admins
	accountFeed = "FEED" // observers, auditors
	accountLog  = "LOG"  // JetStream; only the feed's own connection enters
)

// feedAPI is the prefix under which FEED sees the JetStream API of LOG.
const feedAPI = "LJS.API"

// Identity is what the registry knows of a public key.
type Identity struct {
	ID      string
	Role    string
	Actions []string // of a handler
	Groups  []string // of an approver
	Root    string   // of an observer confined to a subtree; empty for the whole
	Revoked bool
}

// Rights is what a connection may do: publish and subscribe on these subjects,
// in this account, and nothing else. An entry "subject queue" allows that queue
// group only. The zero value allows nothing.
type Rights struct {
	Account   string
	Publish   []string
	Subscribe []string
}

// Permissions lists the rights of who on the server of ledger. A revoked
// identity, an unknown role and names outside their grammar get none.
//
// A wildcard stands for whole tokens only. A group whose name holds a dot has no
// announcements, its approvers ask: the server lets a subscription to a.>
// through where a.* is allowed, so group a would see what a.b is sent.
func Permissions(ledger string, who Identity) Rights {
	if who.Revoked || !events.ValidID(ledger) || !events.ValidID(who.ID) {
		return Rights{}
	}
	gov := func(parts ...string) string { return "gov." + ledger + "." + strings.Join(parts, ".") }
	id := who.ID
	r := Rights{
		Account:   accountWork,
		Publish:   []string{gov("query", id, ">")},
		Subscribe: []string{"_INBOX." + id + ".>", gov("checkpoint")},
	}
	publish := func(s ...string) { r.Publish = append(r.Publish, s...) }
	subscribe := func(s ...string) { r.Subscribe = append(r.Subscribe, s...) }

	switch who.Role {
	case RoleAgent:
		publish(gov("propose", id, ">"))
		subscribe(gov("notify", id, ">"))
	case RoleHandler:
		publish(gov("effect", id, "hello"), gov("effect", id, "report"), gov("permit", id, "redeem"))
		subscribe(gov("control.state"))
		for _, action := range who.Actions {
			if events.ValidAction(action) {
				subscribe(gov("exec", action) + " exec-" + action)
			}
		}
	case RoleRegistrar:
		publish(gov("control", id, "agent.register"), gov("control", id, "agent.revoke"))
		subscribe(gov("control.state"))
	case RoleApprover:
		publish(gov("approve", id, "*"))
		subscribe(gov("control.state"))
		for _, group := range who.Groups {
			if events.ValidToken(group) && !strings.Contains(group, ".") {
				subscribe(gov("pending", group, "*"))
			}
		}
	case RoleObserver, RoleAuditor:
		r.Account = accountFeed
		if who.Root == "" {
			publish(streamAPI(feedAPI, ledger)...)
			subscribe("led." + ledger + ".>")
		}
	case RoleAdmin:
		publish(gov("control", id, ">"), "$SRV.>")
		subscribe(gov("control.state"))
	default:
		return Rights{}
	}
	return r
}

// streamAPI is the part of the JetStream API that reading the ledger's stream
// takes: enough for an ordered consumer, nothing that writes or deletes a
// message or a stream.
func streamAPI(prefix, ledger string) []string {
	stream := StreamName(ledger)
	return []string{
		prefix + ".STREAM.INFO." + stream,
		prefix + ".CONSUMER.CREATE." + stream + ".>",
		prefix + ".CONSUMER.INFO." + stream + ".*",
		prefix + ".CONSUMER.DELETE." + stream + ".*",
		prefix + ".CONSUMER.MSG.NEXT." + stream + ".*",
	}
}

// StreamName is the name of the stream that carries the events of ledger.
func StreamName(ledger string) string { return "LEDGER_" + ledger }

// Part names one of ledgerd's own connections. Each runs in the process, has a
// key that exists only in memory, and can do its part and no other: what
// answers requests cannot write anywhere but to inboxes, what writes to the
// stream answers nobody.
type Part string

// The parts.
const (
	WorkResponder    Part = "responder in WORK"
	ControlResponder Part = "control responder in WORK" // what must not stand in line with proposals
	FeedResponder    Part = "responder in FEED"
	WorkDispatcher   Part = "dispatcher in WORK"
	FeedDispatcher   Part = "dispatcher in FEED"
	FeedWriter       Part = "feed in LOG"
)

// ownInbox is the inbox prefix of ledgerd's own connections; svc is no id.
const ownInbox = "_INBOX.svc"

// ownRights lists the rights of ledgerd's own connections. The feed may create
// its stream, adjust its limits and read it back; nobody may delete or purge it.
func ownRights(ledger string) map[Part]Rights {
	gov := func(s string) string { return "gov." + ledger + "." + s }
	inbox := ownInbox + ".>"
	stream := StreamName(ledger)
	return map[Part]Rights{
		WorkResponder: {
			Account:   accountWork,
			Publish:   []string{"_INBOX.>"},
			Subscribe: []string{gov("propose.>"), gov("query.>"), "$SRV.>"},
		},
		ControlResponder: {
			Account:   accountWork,
			Publish:   []string{"_INBOX.>"},
			Subscribe: []string{gov("control.*.>"), gov("effect.>"), gov("permit.>"), gov("approve.>"), "$SRV.>"},
		},
		FeedResponder: {
			Account:   accountFeed,
			Publish:   []string{"_INBOX.>"},
			Subscribe: []string{gov("query.>")},
		},
		WorkDispatcher: {
			Account:   accountWork,
			Publish:   []string{gov("exec.>"), gov("notify.>"), gov("pending.>"), gov("control.state"), gov("checkpoint")},
			Subscribe: []string{inbox},
		},
		FeedDispatcher: {
			Account:   accountFeed,
			Publish:   []string{gov("checkpoint")},
			Subscribe: []string{inbox},
		},
		FeedWriter: {
			Account: accountLog,
			Publish: []string{
				"led." + ledger + ".>",
				"$JS.API.STREAM.INFO." + stream, "$JS.API.STREAM.CREATE." + stream,
				"$JS.API.STREAM.UPDATE." + stream, "$JS.API.STREAM.MSG.GET." + stream,
			},
			Subscribe: []string{inbox},
		},
	}
}

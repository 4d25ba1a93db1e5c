package events

import (
	"slices"
	"strings"
)

// The event types of erasure and of holds.
const (
	TypePayloadErased Type = "payload.erased"
	TypeMemoryErased  Type = "memory.erased"
	TypeHoldPlaced    Type = "hold.placed"
	TypeHoldLifted    Type = "hold.lifted"
)

func newErasureBody(t Type) Body {
	switch t {
	case TypePayloadErased:
		return &PayloadErased{}
	case TypeMemoryErased:
		return &MemoryErased{}
	case TypeHoldPlaced:
		return &HoldPlaced{}
	case TypeHoldLifted:
		return &HoldLifted{}
	}
	return nil
}

// PayloadErased says that payloads are destroyed from here on, each with its
// salt, and on what ground: those of Seqs, or all of Owner's that may be erased
// and lie beside events before Before, and then its data key too. It names
// nobody for whose sake that is.
type PayloadErased struct {
	Basis  string // one of Bases
	Owner  string // empty where Seqs are erased
	Before uint64
	Seqs   []uint64 // ascending
}

// Bases are the grounds on which payloads are erased.
func Bases() []string {
	return []string{"court_order", "mistake", "retention_end", "subject_request"}
}

// MemoryErased says that a record is gone because its value is; the revision
// counts on.
type MemoryErased struct{ Record }

// HoldPlaced keeps payloads from being erased until HoldLifted says the same.
type HoldPlaced struct{ Hold }

// HoldLifted ends a hold.
type HoldLifted struct{ Hold }

// Hold names what is held: all that is Owner's, one record of it, or the
// payload beside one event.
type Hold struct {
	Owner          string
	Namespace, Key string // of the record; else empty
	Seq            uint64 // of the event; else 0
}

// Type implements Body.
func (*PayloadErased) Type() Type { return TypePayloadErased }

// Type implements Body.
func (*MemoryErased) Type() Type { return TypeMemoryErased }

// Type implements Body.
func (*HoldPlaced) Type() Type { return TypeHoldPlaced }

// Type implements Body.
func (*HoldLifted) Type() Type { return TypeHoldLifted }

func (b *PayloadErased) fields(c *coder) {
	c.str("basis", &b.Basis)
	c.optStr("owner_agent_id", &b.Owner)
	c.optUint("before", &b.Before)
	c.optUints("seqs", &b.Seqs)
}

func (b *Hold) fields(c *coder) {
	c.str("owner_agent_id", &b.Owner)
	c.optStr("namespace", &b.Namespace)
	c.optStr("key", &b.Key)
	c.optUint("seq", &b.Seq)
}

// erasable are the operations whose requests may be erased: none that makes or
// changes an agent, a principal, a key, the policy or what may be erased.
var erasable = map[string]bool{
	"memory.read": true, "memory.write": true, "memory.delete": true, "memory.load": true,
	"action.authorize": true, "sop.validate": true, "sop.submit": true, "run.cancel": true, "run.resolve": true,
	"grant.give": true, "grant.revoke": true, "emergency.deny": true, "emergency.lift": true,
}

// Sealed says of the payload that e commits to whose it is, and whether it may
// ever be erased. Without one, or with an open one, there is no owner.
func (e *Event) Sealed() (owner string, mayErase bool) {
	if e.Payload.IsZero() {
		return "", false
	}
	switch b := e.Body.(type) {
	case *Decision:
		owner = b.Subject
		if of, _, named := strings.Cut(b.Resource, ":"); b.Operation == "memory.load" && named {
			owner = of
		}
		return owner, erasable[b.Operation]
	case *MemoryWritten:
		if b.Class == "mandatory" {
			return "", false
		}
		return b.Owner, true
	case *EffectFinished, *EffectFailed:
		return e.Agent, true
	}
	return "", false
}

// Covering are erasures of all that one owner has, to be asked which is the first
// that a payload falls under.
type Covering struct{ under, before []uint64 }

// Add adds the next such erasure of a log: the seq of its event, and its Before.
func (c *Covering) Add(under, before uint64) {
	if n := len(c.before); n > 0 {
		before = max(before, c.before[n-1])
	}
	c.under, c.before = append(c.under, under), append(c.before, before)
}

// Over is the first erasure over the payload beside event seq, 0 for none.
func (c *Covering) Over(seq uint64) uint64 {
	if c == nil {
		return 0
	}
	i, _ := slices.BinarySearch(c.before, seq+1)
	if i == len(c.before) {
		return 0
	}
	return c.under[i]
}

// Covers reports whether the erasure is of the payload that event e commits to.
// What may not be erased is covered only where it is named.
func (b *PayloadErased) Covers(e *Event) bool {
	if b.Owner == "" {
		for _, seq := range b.Seqs {
			if seq == e.Seq {
				return true
			}
		}
		return false
	}
	owner, mayErase := e.Sealed()
	return mayErase && owner == b.Owner && e.Seq < b.Before
}

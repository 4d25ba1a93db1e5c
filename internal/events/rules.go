package events

// Types of events about the rules on arguments.
const (
	TypeRestrictionAdded   Type = "restriction.added"
	TypeRestrictionRemoved Type = "restriction.removed"
	TypeResourceSet        Type = "resource.set"
	TypeSignersSet         Type = "signers.set"
)

func newRuleBody(t Type) Body {
	switch t {
	case TypeRestrictionAdded:
		return &RestrictionAdded{}
	case TypeRestrictionRemoved:
		return &RestrictionRemoved{}
	case TypeResourceSet:
		return &ResourceSet{}
	case TypeSignersSet:
		return &SignersSet{}
	}
	return nil
}

// RestrictionAdded holds an agent and all beneath it to one more requirement.
type RestrictionAdded struct {
	AgentID string
	ID      string // unique among those of the agent that are in force
	Action  string
	Require string // in CEL
}

// RestrictionRemoved ends a restriction. Only an admin causes it.
type RestrictionRemoved struct{ AgentID, ID string }

// ResourceSet says what an object is that arguments may name, in the place of
// whatever was said of it before.
type ResourceSet struct {
	ID             string
	Classification string
	Owner          string   // empty for none
	Tags           []string // sorted
}

// SignersSet says who signs the policies of the ledger from here on, in the
// place of those before. Without any, policies need no signature.
type SignersSet struct {
	Number uint64   // counts these events from 1
	Keys   []string // NATS user keys, U…, sorted
}

// Type returns TypeRestrictionAdded.
func (*RestrictionAdded) Type() Type { return TypeRestrictionAdded }

// Type returns TypeRestrictionRemoved.
func (*RestrictionRemoved) Type() Type { return TypeRestrictionRemoved }

// Type returns TypeResourceSet.
func (*ResourceSet) Type() Type { return TypeResourceSet }

// Type returns TypeSignersSet.
func (*SignersSet) Type() Type { return TypeSignersSet }

func (b *RestrictionAdded) fields(c *coder) {
	c.str("agent_id", &b.AgentID)
	c.str("id", &b.ID)
	c.str("action", &b.Action)
	c.str("require", &b.Require)
}

func (b *RestrictionRemoved) fields(c *coder) {
	c.str("agent_id", &b.AgentID)
	c.str("id", &b.ID)
}

func (b *ResourceSet) fields(c *coder) {
	c.str("id", &b.ID)
	c.str("classification", &b.Classification)
	c.optStr("owner", &b.Owner)
	c.optStrs("tags", &b.Tags)
}

func (b *SignersSet) fields(c *coder) {
	c.uint("number", &b.Number)
	c.strs("keys", &b.Keys)
}

package events

// The event types of grants.
const (
	TypeGrantGiven   Type = "grant.given"
	TypeGrantRevoked Type = "grant.revoked"
)

// GrantGiven lets one agent read one secret of another until ledger time
// reaches Expires. It takes the place of one to the same agent for the same
// record.
type GrantGiven struct {
	Grant
	Expires Time
	Uses    uint64 // how often it may be read; 0 for any number
}

// GrantRevoked ends a grant.
type GrantRevoked struct{ Grant }

// Grant names a grant: one record, one grantee.
type Grant struct{ Owner, Namespace, Key, To string }

// Type implements Body.
func (*GrantGiven) Type() Type { return TypeGrantGiven }

// Type implements Body.
func (*GrantRevoked) Type() Type { return TypeGrantRevoked }

func (b *Grant) fields(c *coder) {
	c.str("owner_agent_id", &b.Owner)
	c.str("namespace", &b.Namespace)
	c.str("key", &b.Key)
	c.str("to", &b.To)
}

func (b *GrantGiven) fields(c *coder) {
	b.Grant.fields(c)
	c.time("expires", &b.Expires)
	c.optUint("uses", &b.Uses)
}

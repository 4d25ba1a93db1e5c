package ledger

import (
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// rules holds the arguments of a declared action to its schema. It returns ""
// where nothing forbids them.
func (j *judge) rules(action string, arguments events.Value) reason.Code {
	schema := j.s.Policy.Actions[action].Arguments
	if schema == nil {
		return ""
	}
	if err := schema.Validate(arguments); err != nil {
		j.note("%s: %v", action, err)
		return reason.ArgumentSchema
	}
	return ""
}

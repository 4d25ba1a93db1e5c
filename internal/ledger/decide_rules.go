package ledger

import (
	"github.com/ledgerd/ledgerd/internal/reason"
)

// rules holds the canonical arguments of a declared action to its schema. It
// returns "" where nothing forbids them.
func (j *judge) rules(action string, arguments []byte) reason.Code {
	schema := j.s.Policy.Actions[action].Arguments
	if schema == nil {
		return ""
	}
	err := schema.ValidateJSON(arguments)
	if j.fails("argument schema", err != nil) {
		j.note("%s: %v", action, err)
		return reason.ArgumentSchema
	}
	return ""
}

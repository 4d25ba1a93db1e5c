package ledger

import (
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// checkValue holds a value to what a policy says of its name: the type that its
// combination takes, and every value rule over it.
func checkValue(p *policy.Policy, namespace, key string, value []byte) reason.Code {
	if how := p.Combination(namespace, key); how != "" && !policy.Typed(how, value) {
		return reason.MandatoryTypeMismatch
	}
	if !p.AllowsValue(namespace, key, value) {
		return reason.ValueNotAllowed
	}
	return ""
}

// mandatory is what the mandatory records of the sender's lineage come to under
// a name, canonical JSON: every one counts, shown or hidden. ok is false where
// there is none, where one is of the wrong type, and where the name is not
// mandatory: whoever needs the value denies.
func (j *judge) mandatory(namespace, key string) (value []byte, read int, ok bool) {
	how := j.s.Policy.Combination(namespace, key)
	if how == "" {
		return nil, 0, false
	}
	var values [][]byte
	named, now := j.s.Named(namespace, key), j.now()
	for a := j.agent; a != nil; a = a.Parent {
		if record := named.Of(a.ID); j.s.Stands(record, now) {
			values = append(values, record.Mandatory)
			read += len(record.Mandatory)
		}
	}
	value, ok = policy.Combine(how, values)
	return value, read, ok
}

// readCombined reads a mandatory name: every record of the lineage counts,
// shown or hidden, so that no descendant loosens what an ancestor laid down.
// One must be visible for there to be an answer.
func (j *judge) readCombined(namespace, key string) reason.Code {
	how := j.s.Policy.Combination(namespace, key)
	var nearest, hidden *projection.Record
	var owners []string
	mistyped := "" // nearest visible owner of a value of the wrong type
	levels := 0
	named, now := j.s.Named(namespace, key), j.now()
	for a := j.agent; a != nil; a = a.Parent {
		record := named.Of(a.ID)
		switch {
		case !j.s.Stands(record, now):
		case !j.s.Visible(record, levels):
			if hidden == nil {
				hidden = record
			}
		default:
			if nearest == nil {
				nearest = record
			}
			owners = append(owners, a.ID)
			if mistyped == "" && !policy.Typed(how, record.Mandatory) {
				mistyped = a.ID
			}
		}
		levels++
	}
	switch {
	case nearest == nil && hidden == nil:
		return reason.RecordNotFound
	case nearest == nil:
		j.d.Owner = hidden.Owner
		return reason.NotVisibleFrom
	}
	combined, _, ok := j.mandatory(namespace, key)
	if !ok {
		j.d.Owner = mistyped
		return reason.MandatoryTypeMismatch
	}
	j.d.Owner = nearest.Owner
	j.show(Reading{Record: nearest, Class: j.s.ClassOf(nearest), Combined: combined, Contributors: owners})
	return reason.CombinedFrom
}

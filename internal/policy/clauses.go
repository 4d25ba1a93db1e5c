package policy

import (
	"cmp"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Restriction is a requirement that an agent and all beneath it are held to
// when they ask for an action, beside those of the policy.
type Restriction struct {
	ID     string // unique among those of its agent
	Action string
	Text   string // the requirement, in CEL
}

// Valid reports whether a restriction has the form of one. Whether its text
// compiles depends on the policy.
func (r Restriction) Valid() bool {
	return events.ValidToken(r.ID) && events.ValidAction(r.Action) && r.Text != "" && len(r.Text) <= ClauseBytesMax
}

// clauses reads the requirements of an action. Their order in the document
// means nothing.
func (d *decoder) clauses(n node, schema *Schema, action map[string]node) []*Clause {
	var list []*Clause
	_, typed := action["arguments"]
	d.named(n, "require", ClausesMax, func(id string, item node) {
		f := d.fields(item, "requirement", "id", "that")
		d.require(item, "requirement", f, "id", "that")
		that, ok := f["that"]
		if !ok {
			return
		}
		text := d.word(that, "that")
		if text == "" {
			return
		}
		var clause *Clause
		var err error
		if typed && schema == nil { // no types to compile against
			err = untypedFaults(text)
		} else {
			clause, err = compileClause(schema, text)
		}
		if err != nil {
			d.faultf(that, "%v", err)
		}
		if clause == nil {
			return
		}
		clause.ID = id
		list = append(list, clause)
	})
	slices.SortFunc(list, func(a, b *Clause) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// restrictions reads those of an agent.
func (d *decoder) restrictions(n node) (list []Restriction, at map[string]place) {
	at = map[string]place{}
	d.named(n, "restrictions", RestrictionsMax, func(id string, item node) {
		f := d.fields(item, "restriction", "id", "action", "require")
		d.require(item, "restriction", f, "id", "action", "require")
		r := Restriction{ID: id, Action: d.name(f["action"], "action", events.ValidAction, actionGrammar)}
		if require, ok := f["require"]; ok {
			at[id] = require.place
			r.Text = d.word(require, "require")
			if len(r.Text) > ClauseBytesMax {
				d.faultf(require, "a requirement is at most %d bytes", ClauseBytesMax)
			}
		}
		list = append(list, r)
	})
	slices.SortFunc(list, func(a, b Restriction) int { return cmp.Compare(a.ID, b.ID) })
	return list, at
}

// named goes over a list of mappings, each with an id of its own.
func (d *decoder) named(n node, what string, most int, each func(id string, item node)) {
	if n.kind != listKind {
		d.faultf(n, "%s is a list, not %s", what, n.kind)
		return
	}
	if len(n.items) == 0 {
		d.faultf(n, "%s is empty; leave it out where there is none", what)
		return
	}
	if len(n.items) > most {
		d.faultf(n, "%s has %d entries; at most %d are allowed", what, len(n.items), most)
		return
	}
	seen := map[string]bool{}
	for _, item := range n.items {
		id := ""
		for _, f := range item.fields {
			if f.key.text == "id" {
				id = d.name(f.value, "id", events.ValidToken, tokenGrammar)
				if id != "" && seen[id] {
					d.faultf(f.value, "%s stands twice in %s", quote(id), what)
				}
				seen[id] = true
			}
		}
		each(id, item)
	}
}

package projection

import "iter"

// records is the index of current memory. It is by name before it is by owner,
// for whoever reads asks for one name at every level of a lineage.
type records struct {
	named map[recordName]Named
	count int
}

type recordName struct{ namespace, key string }

// Named are the records of one name, one for each owner at most.
type Named struct {
	one  *Record            // where there is one
	more map[string]*Record // by owner, where there are more
}

// Of returns an owner's record, deleted or not, or nil. It must not be changed.
func (n Named) Of(owner string) *Record {
	switch {
	case n.more != nil:
		return n.more[owner]
	case n.one != nil && n.one.Owner == owner:
		return n.one
	}
	return nil
}

func (r *records) get(owner, namespace, key string) *Record {
	return r.named[recordName{namespace, key}].Of(owner)
}

// same returns what stands in the place of a record of this name.
func (r *records) same(rec *Record) *Record { return r.get(rec.Owner, rec.Namespace, rec.Key) }

// put puts rec in the place of the one of its name and owner.
func (r *records) put(rec *Record) {
	name := recordName{rec.Namespace, rec.Key}
	n := r.named[name]
	if n.Of(rec.Owner) == nil {
		r.count++
	}
	switch {
	case n.more != nil:
		n.more[rec.Owner] = rec
		return
	case n.one == nil || n.one.Owner == rec.Owner:
		n.one = rec
	default:
		n = Named{more: map[string]*Record{n.one.Owner: n.one, rec.Owner: rec}}
	}
	r.named[name] = n
}

// all goes over every record, in no order.
func (r *records) all() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for _, n := range r.named {
			if n.one != nil && !yield(n.one) {
				return
			}
			for _, rec := range n.more {
				if !yield(rec) {
					return
				}
			}
		}
	}
}

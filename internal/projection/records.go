package projection

import (
	"hash/maphash"
	"iter"
	"strings"

	"github.com/ledgerd/ledgerd/internal/policy"
)

// records is the index of current memory. It is by name before it is by owner,
// for whoever reads asks for one name at every level of a lineage. Most names
// have one record, which is found by a hash of the name: the key of a large map
// costs more than what is in it.
type records struct {
	named map[uint64]*Record                // by the hash of its name; nil where names or owners are more
	more  map[recordName]map[string]*Record // those, by owner
	count int
}

func newRecords(room int) records {
	return records{named: make(map[uint64]*Record, room), more: map[recordName]map[string]*Record{}}
}

type recordName struct{ namespace, key string }

func (r *Record) name() recordName { return recordName{r.Namespace, r.Key} }

// hash is another in each process; nothing depends on it but where a record is.
func (n recordName) hash() uint64 { return maphash.Comparable(nameSeed, n) }

var nameSeed = maphash.MakeSeed()

// kinds has one of each kind of record.
type kinds map[Kind]*Kind

// of returns k in memory that all records of the kind share.
func (all kinds) of(k Kind) *Kind {
	if kept := all[k]; kept != nil {
		return kept
	}
	kept := &Kind{strings.Clone(k.Namespace), strings.Clone(k.Visibility), policy.Class(strings.Clone(string(k.Class)))}
	all[*kept] = kept
	return kept
}

// noExtra is that of most records.
var noExtra = &Extra{}

// Named are the records of one name, one for each owner at most.
type Named struct {
	one  *Record
	more map[string]*Record
}

// Of returns an owner's record, deleted or not, or nil. It must not be changed.
func (n Named) Of(owner string) *Record {
	if n.one != nil && n.one.Owner == owner {
		return n.one
	}
	return n.more[owner]
}

func (r *records) of(name recordName) Named {
	switch one, ok := r.named[name.hash()]; {
	case ok && one == nil:
		return Named{more: r.more[name]}
	case ok && one.name() == name:
		return Named{one: one}
	}
	return Named{}
}

func (r *records) get(owner, namespace, key string) *Record {
	return r.of(recordName{namespace, key}).Of(owner)
}

// same returns what stands in the place of a record of this name.
func (r *records) same(rec *Record) *Record { return r.get(rec.Owner, rec.Namespace, rec.Key) }

// put puts rec in the place of the one of its name and owner, which it returns,
// nil for none.
func (r *records) put(rec *Record) (old *Record) {
	hash := rec.name().hash()
	one, ok := r.named[hash]
	switch {
	case !ok:
		r.named[hash] = rec
	case one != nil && one.Owner == rec.Owner && one.name() == rec.name():
		old, r.named[hash] = one, rec
	default:
		if one != nil {
			r.named[hash] = nil
			r.more[one.name()] = map[string]*Record{one.Owner: one}
		}
		owners := r.more[rec.name()]
		if owners == nil {
			owners = map[string]*Record{}
			r.more[rec.name()] = owners
		}
		old, owners[rec.Owner] = owners[rec.Owner], rec
	}
	if old != nil {
		rec.Key = old.Key // the same, in memory that it had
	} else {
		r.count++
	}
	return old
}

// all goes over every record, in no order.
func (r *records) all() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for _, one := range r.named {
			if one != nil && !yield(one) {
				return
			}
		}
		for _, more := range r.more {
			for _, rec := range more {
				if !yield(rec) {
					return
				}
			}
		}
	}
}

package projection

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// ReadSnapshot takes the next part of a snapshot, up to the reader's end. Any
// bytes that Write would not have written are an error, however they came about;
// the state is then of no use.
func (s *State) ReadSnapshot(in io.Reader, key []byte) error {
	operations, records := Operations{s.Seq, s.operations}, Records{seq: s.Seq, index: s.records, lasting: s.lasting, kinds: s.kinds}
	r := newSnapshotReader(in, key, snapshotTag)
	h := r.head(s.Seq)
	operations.read(r, h)
	records.read(r, h)
	s.read(r, h)
	if r.err != nil {
		return r.failed()
	}
	return s.Join(&operations, &records)
}

// ReadApart is ReadSnapshot but for operations and records, which an Operations
// and a Records read from the same parts, at the same time if they like. Join
// then brings all together.
func (s *State) ReadApart(in io.Reader, key []byte) error {
	r := newSnapshotReader(in, key, snapshotTag)
	h := r.head(s.Seq)
	r.skipOperations()
	r.skipRecords()
	s.read(r, h)
	return r.failed()
}

// Join gives s the operations and records that were read apart from the rest of
// the same parts.
func (s *State) Join(o *Operations, r *Records) error {
	if o.seq != s.Seq || r.seq != s.Seq {
		return fmt.Errorf("snapshot: operations up to seq %d, records up to %d, the rest up to %d", o.seq, r.seq, s.Seq)
	}
	for _, c := range r.counts {
		owner := s.agents[c.owner]
		if owner == nil {
			return errors.New("snapshot: record of nobody")
		}
		owner.Records += c.n
		owner.add(Usage{Records: c.n})
	}
	s.operations, s.records, s.lasting, s.kinds = o.ids, r.index, r.lasting, r.kinds
	for _, rec := range r.ending {
		if s.records.same(rec) == rec {
			s.willEnd(rec)
		}
	}
	return nil
}

// Operations are the operation ids of a snapshot. The zero value has read none.
type Operations struct {
	seq uint64 // at which the last part ends
	ids operations
}

// Read takes the operations of the next part and leaves what follows unread.
func (o *Operations) Read(in io.Reader, key []byte) error {
	r := newSnapshotReader(in, key, snapshotTag)
	o.read(r, r.head(o.seq))
	return r.failed()
}

func (o *Operations) read(r *snapshotReader, h partHead) {
	names, n := r.operationNames(o.ids.names), r.uint()
	if uint64(o.ids.count)+n != uint64(h.operations) {
		r.fail("%d operations and %d more, counted %d", o.ids.count, n, h.operations)
	}
	if r.err != nil {
		return
	}
	o.seq, o.ids.names = h.seq, names
	o.ids.reserve(h.operations)
	for before := (digest{}); n > 0 && r.err == nil; n-- {
		e := r.operation()
		switch {
		case r.err != nil:
		case !before.less(e.digest), e.use>>16 == 0, e.use>>16 > h.seq, e.use&(operationNamesMax-1) >= uint64(len(names)):
			r.fail("operations out of order")
		case !o.ids.insert(e):
			r.fail("an operation twice")
		}
		before = e.digest
	}
	r.checkSum()
}

// operationNames reads the names of operations: those known before, and more.
func (r *snapshotReader) operationNames(known []string) []string {
	names, seen := r.texts(), map[string]bool{}
	for _, name := range names {
		seen[name] = true
	}
	if len(names) < len(known) || len(names) > operationNamesMax || len(seen) != len(names) || !slices.Equal(names[:len(known)], known) {
		r.fail("other names of operations")
	}
	return names
}

func (r *snapshotReader) skipOperations() {
	r.texts()
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		r.take(operationBytes)
	}
	r.checkSum()
}

// Records are the records of a snapshot. The zero value has read none.
type Records struct {
	seq     uint64 // at which the last part ends
	index   records
	lasting int
	kinds   kinds
	counts  []recordCount
	ending  []*Record // some of them changed by a later part
}

// recordCount is by how much a part changes the number of an owner's records.
type recordCount struct {
	owner string
	n     int
}

// Read takes the records of the next part and leaves what follows unread.
func (r *Records) Read(in io.Reader, key []byte) error {
	from := newSnapshotReader(in, key, snapshotTag)
	h := from.head(r.seq)
	from.skipOperations()
	r.read(from, h)
	return from.failed()
}

func (r *Records) read(in *snapshotReader, h partHead) {
	if in.err != nil {
		return
	}
	if r.kinds == nil {
		r.kinds = kinds{}
	}
	if r.index.count == 0 { // a quarter more, so that no part of the map has to grow
		r.index, r.counts = newRecords(h.records*5/4), make([]recordCount, 0, h.agents)
	}
	r.seq = h.seq
	for before := (*Record)(nil); in.flag(); {
		rec := in.record(r.kinds, before)
		if _, ok := policy.ParseClass(string(rec.Class)); !ok || !events.ValidVisibility(rec.Visibility) {
			in.fail("record without class or visibility")
		}
		if rec.RunID != "" && rec.Deleted || rec.Expires != 0 && (rec.Deleted || rec.Mandatory != nil) {
			in.fail("record with an end that it cannot have")
		}
		if before != nil && before.compare(rec) >= 0 {
			in.fail("records out of order")
		}
		if in.err != nil {
			return
		}
		r.put(rec, before == nil || rec.Owner != before.Owner)
		before = rec
	}
	if in.checkSum(); r.index.count != h.records {
		in.fail("%d records, counted %d", r.index.count, h.records)
	}
}

// put puts rec in the place of the one of its name. first is whether it is the
// first of its owner in this part.
func (r *Records) put(rec *Record, first bool) {
	if first {
		r.counts = append(r.counts, recordCount{owner: rec.Owner})
	}
	count := &r.counts[len(r.counts)-1].n
	old := r.index.put(rec)
	if old != nil && !old.Deleted {
		*count--
	}
	if !rec.Deleted {
		*count++
	}
	if old.ends() {
		r.lasting--
	}
	if rec.ends() {
		r.lasting++
		r.ending = append(r.ending, rec)
	}
}

// record reads a record. What it has like the one before, nil for none, is in the
// same memory, and so is what all of its kind have.
func (r *snapshotReader) record(all kinds, before *Record) *Record {
	if before == nil {
		before = &Record{Kind: &Kind{}}
	}
	rec := &Record{Owner: r.like(before.Owner), Extra: noExtra}
	kind := Kind{r.like(before.Namespace), r.like(before.Visibility), policy.Class(r.like(string(before.Class)))}
	if rec.Kind = before.Kind; kind != *before.Kind {
		rec.Kind = all.of(kind)
	}
	rec.Key = r.text()
	rec.Revision, rec.Deleted, rec.Decision, rec.Written, rec.OwnPayload = r.uint(), r.flag(), r.uint(), r.uint(), r.flag()
	var value []byte
	if b := r.take(r.uint()); len(b) > 0 {
		value = slices.Clone(b)
	}
	if expires, run := r.time(), r.text(); value != nil || expires != 0 || run != "" {
		rec.Extra = &Extra{value, expires, run}
	}
	return rec
}

// like reads a text, and returns before if it is the same.
func (r *snapshotReader) like(before string) string {
	if b := r.take(r.uint()); string(b) != before {
		return string(b)
	}
	return before
}

func (r *snapshotReader) skipRecords() {
	text := func() { r.take(r.uint()) }
	for r.flag() {
		for range 5 { // owner to class
			text()
		}
		r.uint()
		r.flag()
		r.uint()
		r.uint()
		r.flag()
		text()
		r.uint()
		text()
	}
	r.checkSum()
}

// partHead is what a part begins with.
type partHead struct {
	after, seq uint64
	partSizes
}

func (w *snapshotWriter) head(after, seq uint64, n partSizes) {
	w.uint(after)
	w.uint(seq)
	w.uint(uint64(n.agents))
	w.uint(uint64(n.records))
	w.uint(uint64(n.operations))
	w.sum()
}

// head reads the head of a part that stands on seq and checks its sum.
func (r *snapshotReader) head(seq uint64) partHead {
	h := r.anyHead()
	if h.after != seq {
		r.fail("a part that stands on seq %d after one that ends at %d", h.after, seq)
	}
	return h
}

func (r *snapshotReader) anyHead() partHead {
	h := partHead{r.uint(), r.uint(), partSizes{r.int(), r.int(), r.int()}}
	if r.checkSum(); h.seq < h.after {
		r.fail("a part that ends before it begins")
	}
	return h
}

// read reads what is in a part beside operations and records, to its end, into
// s, which stands where the part begins.
func (s *State) read(r *snapshotReader, h partHead) {
	if r.err != nil {
		return
	}
	if len(s.agents) == 0 { // as with the records
		s.agents, s.agentKeys = make(map[string]*Agent, h.agents*5/4), make(map[string]*Agent, h.agents*5/4)
	}
	s.Seq = h.seq
	document := r.small(s)
	for before := (*Agent)(nil); r.flag(); {
		a := r.agent(s, before)
		if before != nil && before.compare(a) >= 0 {
			r.fail("agents out of order")
			return
		}
		before = a
	}
	r.principalsOwn(s)
	if len(s.agents) != h.agents {
		r.fail("%d agents, counted %d", len(s.agents), h.agents)
	}
	for before := (*Run)(nil); r.flag(); {
		run := r.run(s)
		if before != nil && before.compare(run) >= 0 {
			r.fail("runs out of order")
			return
		}
		before = run
	}
	r.policy(s, document)
	s.rights++
	r.close()
}

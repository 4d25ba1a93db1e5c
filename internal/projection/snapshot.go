package projection

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"maps"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// A snapshot is a state in bytes, whole or in parts that are read one after the
// other: the first stands on nothing, each other one on the seq at which the one
// before it ends, and holds what changed since. A part is
//
//	its tag, the seq it stands on and the one it ends at, and how many agents,
//	           records and operations the state then has; a sum
//	operations their names, whole; what is new, by digest; a sum
//	records    by owner, namespace, key; a sum
//	what is small, whole: place, policy, principals, resources
//	agents     by depth and id, so that a parent comes before its children
//	runs       by id; a sum
//
// A sum is HMAC-SHA256 of all before it, under a key of the caller's. There are
// so many that room is made only for what was counted, and that operations and
// records, most of what there is, can each be read by themselves. Integers are unsigned varints, texts their length and bytes, lists their
// length and entries; each agent, record and run has a 1 before it and the last a
// 0 after it. An operation is 24 bytes: digest, use, big-endian. What can be
// counted again (children, admins) is left out. The same state has the same
// bytes, whatever led to it.
//
// It holds no sealed value; the values of mandatory records and the policy
// document, which it does hold, are open payloads.
const (
	snapshotTag = "ledgerd/snapshot/v7\n"
	digestTag   = "ledgerd/state/v6\n"
)

// Changes are what a state has come to since an earlier seq: the writer's hands
// are free as soon as they are taken, and whoever has them writes them down.
type Changes struct {
	After, Seq uint64
	Leaf       events.Hash // of the event at Seq

	sizes      partSizes
	names      []string // of operations
	small      []byte
	agents     []*Agent // some more than once; each is a copy
	records    []*Record
	runs       []*Run // as agents
	operations []operationEntry
}

// partSizes are how much a state holds.
type partSizes struct{ agents, records, operations int }

// TakeChanges returns what changed since it was last called, and goes on
// counting. The first call returns the state whole. It takes some microseconds
// for each hundred changes.
func (s *State) TakeChanges() (*Changes, error) {
	if err := s.documentKept(); err != nil {
		return nil, err
	}
	c := s.changes
	if c == nil {
		c = s.whole()
	}
	s.changes = &Changes{After: s.Seq}
	c.end(s)
	for i, a := range c.agents {
		kept := *a
		c.agents[i] = &kept
	}
	for i, r := range c.runs {
		kept := *r
		kept.Steps = slices.Clone(r.Steps)
		c.runs[i] = &kept
	}
	return c, nil
}

// end is s as it stands: what is counted and what is small.
func (c *Changes) end(s *State) {
	c.Seq, c.Leaf, c.names, c.small = s.Seq, s.Leaf, s.operations.names, s.small(nil)
	c.sizes = partSizes{len(s.agents), s.records.count, s.operations.count}
}

// Restored says that the state as it stands is written down already, so that
// TakeChanges returns only what comes from here on.
func (s *State) Restored() { s.changes = &Changes{After: s.Seq} }

// Unwritten says that nothing that is written down is of use any more, so that
// TakeChanges returns all of the state.
func (s *State) Unwritten() { s.changes = nil }

func (s *State) whole() *Changes {
	return &Changes{
		agents: slices.Collect(maps.Values(s.agents)), records: slices.Collect(s.records.all()),
		runs: slices.Collect(maps.Values(s.runs)), operations: slices.Collect(s.operations.all()),
	}
}

func (s *State) documentKept() error {
	var digest events.Hash
	if len(s.document) > 0 {
		digest = sha256.Sum256(s.document)
	}
	if digest != s.PolicyDigest() {
		return errors.New("snapshot: the policy in force is not that of the document kept")
	}
	return nil
}

// Write writes the changes as a part of a snapshot.
func (c *Changes) Write(w io.Writer, key []byte) error {
	out := newSnapshotWriter(w, key, snapshotTag)
	c.write(out)
	return out.close()
}

func (c *Changes) write(out *snapshotWriter) {
	out.head(c.After, c.Seq, c.sizes)
	out.texts(c.names)
	slices.SortFunc(c.operations, operationEntry.compare)
	out.uint(uint64(len(c.operations)))
	for _, e := range c.operations {
		out.operation(e)
	}
	out.sum()
	slices.SortStableFunc(c.records, (*Record).compare)
	for _, r := range last(c.records, (*Record).compare) {
		out.flag(true)
		out.record(r)
	}
	out.flag(false)
	out.sum()
	out.bytes(c.small)
	slices.SortStableFunc(c.agents, (*Agent).compare)
	for _, a := range last(c.agents, (*Agent).compare) {
		out.flag(true)
		out.agent(a)
	}
	out.flag(false)
	slices.SortStableFunc(c.runs, (*Run).compare)
	for _, r := range last(c.runs, (*Run).compare) {
		out.flag(true)
		out.run(r)
	}
	out.flag(false)
}

// last yields the last of equal neighbours.
func last[T any](list []T, compare func(a, b T) int) iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for i, v := range list {
			if (i == len(list)-1 || compare(v, list[i+1]) != 0) && !yield(i, v) {
				return
			}
		}
	}
}

func (a *Agent) compare(b *Agent) int {
	return cmp.Or(cmp.Compare(a.Depth, b.Depth), cmp.Compare(a.ID, b.ID))
}

func (r *Record) compare(q *Record) int {
	return cmp.Or(cmp.Compare(r.Owner, q.Owner), cmp.Compare(r.Namespace, q.Namespace), cmp.Compare(r.Key, q.Key))
}

func (r *Run) compare(q *Run) int { return cmp.Compare(r.ID, q.ID) }

func (e operationEntry) compare(f operationEntry) int {
	return cmp.Or(cmp.Compare(e.hi, f.hi), cmp.Compare(e.lo, f.lo))
}

// EncodeSnapshot returns the whole state as one part. The error means that
// Policy was not set by Apply.
func (s *State) EncodeSnapshot(key []byte) ([]byte, error) {
	if err := s.documentKept(); err != nil {
		return nil, err
	}
	return s.encode(key), nil
}

func (s *State) encode(key []byte) []byte {
	var b bytes.Buffer
	c := s.whole()
	c.end(s)
	_ = c.Write(&b, key) // a buffer takes all
	return b.Bytes()
}

// Digest is SHA-256 over a tag and the fields of a whole snapshot, so that two
// states are the same exactly if their digests are.
func (s *State) Digest() events.Hash {
	sum := sha256.New()
	out := &snapshotWriter{buf: []byte(digestTag), out: sum}
	c := s.whole()
	c.end(s)
	c.write(out)
	out.flush()
	return events.Hash(sum.Sum(nil))
}

// DecodeSnapshot returns the state that EncodeSnapshot was given.
func DecodeSnapshot(b, key []byte) (*State, error) {
	s := New()
	if err := s.ReadSnapshot(bytes.NewReader(b), key); err != nil {
		return nil, err
	}
	return s, nil
}

// small appends what is written whole in every part.
func (s *State) small(b []byte) []byte {
	w := &snapshotWriter{buf: b}
	w.uint(uint64(s.Time))
	w.bytes(s.Leaf[:])
	w.text(s.Origin)
	w.text(s.Ledger)
	w.uint(s.Rules)
	w.text(string(s.document))
	w.flag(s.IsNarrowed)
	w.texts(s.Narrowed)
	w.texts(s.Signers)
	w.uint(s.SignersNo)
	w.ownKeys(s)
	w.uint(s.DenyEpoch)
	w.uint(uint64(len(s.denies)))
	for i := range s.denies {
		w.deny(&s.denies[i])
	}
	w.uint(uint64(len(s.keys)))
	for _, key := range sortedKeys(s.keys) {
		w.text(key)
		w.text(s.keys[key])
	}
	w.uint(uint64(len(s.principals)))
	for _, id := range sortedKeys(s.principals) {
		w.principal(s.principals[id])
	}
	w.uint(uint64(len(s.versions)))
	for _, version := range sortedKeys(s.versions) {
		digest := s.versions[version]
		w.text(version)
		w.bytes(digest[:])
	}
	w.grants(s)
	w.resources(s)
	w.erasures(s)
	return w.buf
}

func (r *snapshotReader) small(s *State) (document []byte) {
	at := r.time()
	if at < s.Time {
		r.fail("a part that ends before it begins")
	}
	s.Time = at
	copy(s.Leaf[:], r.take(uint64(len(s.Leaf))))
	s.Origin, s.Ledger, s.Rules = r.text(), r.text(), r.uint()
	document = bytes.Clone(r.take(r.uint()))
	s.IsNarrowed, s.Narrowed = r.flag(), r.set()
	s.Signers, s.SignersNo = r.set(), r.uint()
	r.ownKeys(s)
	s.DenyEpoch, s.denies = r.uint(), nil
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		s.denies = append(s.denies, Deny{r.uint(), r.text(), r.set(), r.flag()})
	}
	s.keys, s.principals, s.versions, s.admins = map[string]string{}, map[string]*Principal{}, map[string]events.Hash{}, 0
	r.ascending(func() string {
		key := r.text()
		s.keys[key] = r.text()
		return key
	})
	r.ascending(func() string { return r.principal(s) })
	r.ascending(func() string {
		version := r.text()
		var digest events.Hash
		copy(digest[:], r.take(uint64(len(digest))))
		s.versions[version] = digest
		return version
	})
	r.grants(s)
	r.resources(s)
	r.erasures(s)
	return document
}

func (r *snapshotReader) policy(s *State, document []byte) {
	s.Policy, s.document = nil, nil
	if r.err != nil || len(document) == 0 {
		return
	}
	p, err := policy.Load(document)
	switch {
	case err != nil:
		r.fail("%w", err)
		return
	case s.versions[p.Version] != p.Digest:
		r.fail("the policy in force is not the document of its version")
	}
	s.Policy, s.document, s.clauses = p, document, nil
}

// agent reads an agent, new or in the place of what was known of it. before is
// the one before it, nil for none.
func (r *snapshotReader) agent(s *State, before *Agent) *Agent {
	a, parent := r.agentAlone(before)
	a.Parent = s.agents[parent]
	old := s.agents[a.ID]
	switch {
	case r.err != nil:
	case a.Parent == nil && (parent != "" || a.Depth != 1), a.Parent != nil && a.Depth != a.Parent.Depth+1:
		r.fail("agent without its parent")
	case old != nil && (old.Parent != a.Parent || old.PublicKey != a.PublicKey):
		r.fail("agent with another parent or key")
	case old != nil:
		if a.Revoked && !old.Revoked {
			old.add(Usage{Agents: -1})
		}
		old.add(Usage{Restrictions: len(a.Restrictions) - len(old.Restrictions)})
		old.Declared, old.Use, old.Writes, old.Revoked, old.Restrictions = a.Declared, a.Use, a.Writes, a.Revoked, a.Restrictions
		return old
	case s.IDTaken(a.ID) || s.KeyTaken(a.PublicKey):
		r.fail("id or key twice")
	default:
		if a.Parent != nil {
			a.Parent.Children++
		}
		s.agents[a.ID], s.agentKeys[a.PublicKey] = a, a
		a.add(Usage{Restrictions: len(a.Restrictions)})
		if !a.Revoked {
			a.add(Usage{Agents: 1})
		}
	}
	return a
}

// agentAlone reads an agent that knows its parent by id only. What it has like
// the one before is in the same memory.
func (r *snapshotReader) agentAlone(before *Agent) (a *Agent, parent string) {
	if before == nil {
		before = &Agent{}
	}
	a = &Agent{ID: r.text()}
	a.Depth, parent = r.int(), r.text()
	a.Declared, a.Use, a.Writes = r.setLike(before.Declared), r.setLike(before.Use), r.setLike(before.Writes)
	a.PublicKey, a.Revoked = r.text(), r.flag()
	a.Restrictions = r.restrictions()
	return a, parent
}

func (r *snapshotReader) principal(s *State) (id string) {
	p := &Principal{ID: r.text(), Role: r.text(), PublicKey: r.text(), Actions: r.texts(), Groups: r.texts(), Root: r.text(), Revoked: r.flag()}
	s.principals[p.ID] = p
	if p.Role == "admin" && !p.Revoked {
		s.admins++
	}
	return p.ID
}

// principalsOwn checks that principals and agents share no id and no key, and
// that each principal has the key that is its own.
func (r *snapshotReader) principalsOwn(s *State) {
	for id, p := range s.principals {
		if s.agents[id] != nil || s.keys[p.PublicKey] != id {
			r.fail("id twice, or with another's key")
		}
	}
	for key, id := range s.keys {
		if s.principals[id] == nil || s.agentKeys[key] != nil {
			r.fail("key of nobody, or of two")
		}
	}
}

// run reads a run, new or in the place of what was known of it.
func (r *snapshotReader) run(s *State) *Run {
	run := r.runAlone()
	agent, old := s.agents[run.Agent], s.runs[run.ID]
	switch {
	case r.err != nil:
		return run
	case agent == nil || run.Next > len(run.Steps) || old != nil && (old.Agent != run.Agent || old.Decision != run.Decision):
		r.fail("run without its agent or step, or in the place of another")
		return run
	case old == nil && s.runAt[run.Decision] != nil:
		r.fail("two runs of one decision")
		return run
	}
	if old != nil && old.Open() {
		agent.Runs--
		agent.add(Usage{Runs: -1})
		delete(s.open, run.ID)
		if old.State == InDoubt {
			s.doubts--
		}
	}
	s.runs[run.ID], s.runAt[run.Decision] = run, run
	if run.Open() {
		agent.Runs++
		agent.add(Usage{Runs: 1})
		s.open[run.ID] = run
		if run.State == InDoubt {
			s.doubts++
		}
	} else {
		s.endRun(run.ID)
	}
	return run
}

func (r *snapshotReader) runAlone() *Run {
	run := &Run{
		ID: r.text(), Agent: r.text(), SOPID: r.text(), SOPVersion: r.uint(), Decision: r.uint(), Admitted: r.time(),
		State: RunState(r.text()), Reason: r.text(), Cancelling: r.flag(), Next: r.int(),
	}
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		run.Steps = append(run.Steps, RunStep{
			ID: r.text(), Action: r.text(), State: StepState(r.text()), Granted: r.uint(), Deadline: r.time(), Ended: r.uint(),
		})
	}
	return run
}

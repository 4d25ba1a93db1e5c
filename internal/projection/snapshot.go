package projection

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// A snapshot is its tag, then the fields in the order of encode, then the
// SHA-256 of both. Integers are unsigned varints, texts their length and bytes,
// lists their length and entries, maps lists in ascending order. Agents stand by
// depth, so that a parent comes before its children. What can be counted again
// (depth, children, admins) is left out.
const (
	snapshotTag = "ledgerd/snapshot/v1\n"
	digestTag   = "ledgerd/state/v1\n"
)

// EncodeSnapshot returns the whole state as bytes: the same state, the same
// bytes, whatever led to it. They hold no sealed value; the values of mandatory
// records and the policy document, which they do hold, are open payloads. The
// error means that Policy was not set by Apply.
func (s *State) EncodeSnapshot() ([]byte, error) {
	var digest events.Hash
	if len(s.document) > 0 {
		digest = sha256.Sum256(s.document)
	}
	if digest != s.PolicyDigest() {
		return nil, errors.New("snapshot: the policy in force is not that of the document kept")
	}
	b := s.encode(snapshotTag)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// Digest is SHA-256 over a tag and the fields of a snapshot, so that two states
// are the same exactly if their digests are.
func (s *State) Digest() events.Hash { return sha256.Sum256(s.encode(digestTag)) }

// DecodeSnapshot returns the state that EncodeSnapshot was given. Any bytes it
// would not have written are an error, however they came about.
func DecodeSnapshot(b []byte) (*State, error) {
	body := b[:max(0, len(b)-sha256.Size)]
	rest, ok := bytes.CutPrefix(body, []byte(snapshotTag))
	if !ok {
		return nil, errors.New("snapshot: not of this form")
	}
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], b[len(body):]) {
		return nil, errors.New("snapshot: damaged")
	}
	r := &snapshotReader{rest: rest}
	s := r.state()
	if r.err == nil && len(r.rest) > 0 {
		r.fail("bytes after the end")
	}
	if r.err == nil && !bytes.Equal(s.encode(snapshotTag), body) {
		r.fail("not the one way to write this state")
	}
	if r.err != nil {
		return nil, fmt.Errorf("snapshot: %w", r.err)
	}
	return s, nil
}

func (s *State) encode(tag string) []byte {
	w := snapshotWriter(tag)
	w.uint(s.Seq)
	w.uint(uint64(s.Time))
	w = append(w, s.Leaf[:]...)
	w.text(s.Origin)
	w.text(s.Ledger)
	w.uint(s.Rules)
	w.text(string(s.document))
	w.flag(s.IsNarrowed)
	w.texts(s.Narrowed)
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
	w.uint(uint64(len(s.agents)))
	for _, a := range slices.SortedFunc(maps.Values(s.agents), func(a, b *Agent) int {
		return cmp.Or(cmp.Compare(a.Depth, b.Depth), cmp.Compare(a.ID, b.ID))
	}) {
		w.agent(a)
	}
	w.uint(uint64(len(s.principals)))
	for _, id := range sortedKeys(s.principals) {
		w.principal(s.principals[id])
	}
	w.uint(uint64(len(s.versions)))
	for _, version := range sortedKeys(s.versions) {
		digest := s.versions[version]
		w.text(version)
		w = append(w, digest[:]...)
	}
	w.uint(uint64(len(s.records)))
	for _, name := range slices.SortedFunc(maps.Keys(s.records), recordName.compare) {
		w.record(s.records[name])
	}
	w.uint(uint64(len(s.operations)))
	for _, name := range slices.SortedFunc(maps.Keys(s.operations), operationName.compare) {
		w.text(name.agent)
		w.text(name.id)
		w.uint(s.operations[name].Seq)
		w.text(s.operations[name].Name)
	}
	w.uint(uint64(len(s.runs)))
	for _, id := range sortedKeys(s.runs) {
		w.run(s.runs[id])
	}
	return w
}

func (n recordName) compare(m recordName) int {
	return cmp.Or(cmp.Compare(n.owner, m.owner), cmp.Compare(n.namespace, m.namespace), cmp.Compare(n.key, m.key))
}

func (n operationName) compare(m operationName) int {
	return cmp.Or(cmp.Compare(n.agent, m.agent), cmp.Compare(n.id, m.id))
}

type snapshotWriter []byte

func (w *snapshotWriter) uint(n uint64) { *w = binary.AppendUvarint(*w, n) }

func (w *snapshotWriter) text(s string) {
	w.uint(uint64(len(s)))
	*w = append(*w, s...)
}

func (w *snapshotWriter) texts(list []string) {
	w.uint(uint64(len(list)))
	for _, s := range list {
		w.text(s)
	}
}

func (w *snapshotWriter) flag(b bool) {
	if b {
		w.uint(1)
	} else {
		w.uint(0)
	}
}

func (w *snapshotWriter) agent(a *Agent) {
	parent := ""
	if a.Parent != nil {
		parent = a.Parent.ID
	}
	w.text(a.ID)
	w.text(parent)
	w.texts(a.Declared)
	w.text(a.PublicKey)
	w.flag(a.Revoked)
}

func (w *snapshotWriter) principal(p *Principal) {
	w.text(p.ID)
	w.text(p.Role)
	w.text(p.PublicKey)
	w.texts(p.Actions)
	w.texts(p.Groups)
	w.text(p.Root)
	w.flag(p.Revoked)
}

func (w *snapshotWriter) record(r *Record) {
	w.text(r.Owner)
	w.text(r.Namespace)
	w.text(r.Key)
	w.text(r.Visibility)
	w.text(string(r.Class))
	w.uint(r.Revision)
	w.flag(r.Deleted)
	w.uint(r.Decision)
	w.uint(r.Written)
	w.flag(r.OwnPayload)
	w.text(string(r.Mandatory))
}

func (w *snapshotWriter) deny(d *Deny) {
	w.uint(d.Epoch)
	w.text(d.Scope)
	w.texts(d.Capabilities)
	w.flag(d.All)
}

func (w *snapshotWriter) run(r *Run) {
	w.text(r.ID)
	w.text(r.Agent)
	w.text(r.SOPID)
	w.uint(r.SOPVersion)
	w.uint(r.Decision)
	w.uint(uint64(r.Admitted))
	w.text(string(r.State))
	w.text(r.Reason)
	w.flag(r.Cancelling)
	w.uint(uint64(r.Next))
	w.uint(uint64(len(r.Steps)))
	for i := range r.Steps {
		step := &r.Steps[i]
		w.text(step.ID)
		w.text(step.Action)
		w.text(string(step.State))
		w.uint(step.Granted)
		w.uint(uint64(step.Deadline))
		w.uint(step.Ended)
	}
}

// snapshotReader takes fields from rest. After an error it gives zeros, and
// every list is empty, so that nothing is read in vain.
type snapshotReader struct {
	rest []byte
	err  error
}

func (r *snapshotReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *snapshotReader) uint() uint64 {
	n, size := binary.Uvarint(r.rest)
	if r.err != nil || size <= 0 {
		r.fail("no integer where one belongs")
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *snapshotReader) take(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.rest)) {
		r.fail("cut short")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *snapshotReader) text() string { return string(r.take(r.uint())) }

func (r *snapshotReader) texts() []string {
	var list []string
	r.list(func() { list = append(list, r.text()) })
	return list
}

func (r *snapshotReader) flag() bool {
	n := r.uint()
	if n > 1 {
		r.fail("flag %d", n)
	}
	return n == 1
}

func (r *snapshotReader) hash() (h events.Hash) {
	copy(h[:], r.take(uint64(len(h))))
	return h
}

// list reads a length and calls entry as often, or until an error. An entry is
// no fewer bytes than one, so a false length ends with the input.
func (r *snapshotReader) list(entry func()) {
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		entry()
	}
}

func (r *snapshotReader) state() *State {
	s := New()
	s.Seq = r.uint()
	if at := r.uint(); at <= math.MaxInt64 {
		s.Time = events.Time(at)
	}
	s.Leaf = r.hash()
	s.Origin, s.Ledger, s.Rules = r.text(), r.text(), r.uint()
	document := r.take(r.uint())
	s.IsNarrowed = r.flag()
	s.Narrowed = policy.NewSet(r.texts()...)
	s.DenyEpoch = r.uint()
	r.list(func() { s.denies = append(s.denies, Deny{r.uint(), r.text(), policy.NewSet(r.texts()...), r.flag()}) })

	r.list(func() {
		key := r.text()
		s.keys[key] = r.text()
	})
	r.list(func() { r.agent(s) })
	r.list(func() { r.principal(s) })
	for _, id := range s.keys {
		if !s.IDTaken(id) {
			r.fail("key of nobody")
		}
	}
	r.list(func() {
		version := r.text()
		s.versions[version] = r.hash()
	})
	r.list(func() { r.record(s) })
	r.list(func() {
		name := operationName{r.text(), r.text()}
		s.operations[name] = Operation{r.uint(), r.text()}
	})
	r.list(func() { r.run(s) })
	r.policy(s, document)
	return s
}

func (r *snapshotReader) time() events.Time {
	n := r.uint()
	if n > math.MaxInt64 {
		r.fail("no time where one belongs")
		return 0
	}
	return events.Time(n)
}

func (r *snapshotReader) run(s *State) {
	run := &Run{
		ID: r.text(), Agent: r.text(), SOPID: r.text(), SOPVersion: r.uint(), Decision: r.uint(), Admitted: r.time(),
		State: RunState(r.text()), Reason: r.text(), Cancelling: r.flag(), Next: int(r.uint()),
	}
	r.list(func() {
		run.Steps = append(run.Steps, RunStep{
			ID: r.text(), Action: r.text(), State: StepState(r.text()), Granted: r.uint(), Deadline: r.time(), Ended: r.uint(),
		})
	})
	agent := s.agents[run.Agent]
	if agent == nil || run.Next < 0 || run.Next > len(run.Steps) {
		r.fail("run without its agent or step")
		return
	}
	s.runs[run.ID], s.runAt[run.Decision] = run, run
	if run.Open() {
		s.open[run.ID] = run
		agent.Runs++
	}
}

func (r *snapshotReader) policy(s *State, document []byte) {
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
	s.Policy, s.document = p, bytes.Clone(document)
}

func (r *snapshotReader) agent(s *State) {
	a := &Agent{ID: r.text(), Depth: 1}
	if parent := r.text(); parent != "" {
		a.Parent = s.agents[parent]
		if a.Parent == nil {
			r.fail("agent without its parent")
			return
		}
		a.Parent.Children++
		a.Depth = a.Parent.Depth + 1
	}
	a.Declared, a.PublicKey, a.Revoked = policy.NewSet(r.texts()...), r.text(), r.flag()
	r.own(s, a.ID, a.PublicKey)
	s.agents[a.ID] = a
}

func (r *snapshotReader) principal(s *State) {
	p := &Principal{ID: r.text(), Role: r.text(), PublicKey: r.text(), Actions: r.texts(), Groups: r.texts(), Root: r.text(), Revoked: r.flag()}
	r.own(s, p.ID, p.PublicKey)
	s.principals[p.ID] = p
	if p.Role == "admin" && !p.Revoked {
		s.admins++
	}
}

// own checks that a new id has the key that is its own.
func (r *snapshotReader) own(s *State, id, key string) {
	if s.IDTaken(id) || s.keys[key] != id {
		r.fail("id twice, or with another's key")
	}
}

func (r *snapshotReader) record(s *State) {
	rec := &Record{
		Owner: r.text(), Namespace: r.text(), Key: r.text(),
		Visibility: r.text(), Class: policy.Class(r.text()), Revision: r.uint(), Deleted: r.flag(),
		Decision: r.uint(), Written: r.uint(), OwnPayload: r.flag(),
	}
	if value := r.take(r.uint()); len(value) > 0 {
		rec.Mandatory = bytes.Clone(value)
	}
	if _, ok := policy.ParseClass(string(rec.Class)); !ok || !policy.ValidVisibility(rec.Visibility) || s.agents[rec.Owner] == nil {
		r.fail("record without class, visibility or owner")
	}
	s.records[recordName{rec.Owner, rec.Namespace, rec.Key}] = rec
}

package projection

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Difference is one key of a projection that two states give other values; an
// empty value is none.
type Difference struct{ Projection, Key, Want, Got string }

// The projections that a State consists of, as a Difference names them.
const (
	OfLedger     = "ledger"
	OfAgents     = "agents"
	OfPrincipals = "principals"
	OfPolicies   = "policies"
	OfMemory     = "memory"
	OfGrants     = "grants"
	OfResources  = "resources"
	OfRuns       = "runs"
	OfEmergency  = "emergency"
	OfOperations = "operations"
)

// Diff finds where got differs from s, key by key, as far as the first max
// differences. Two states of one Digest have none.
func (s *State) Diff(got *State, max int) (list []Difference) {
	add := func(projection, key, want, got string) {
		if len(list) < max {
			list = append(list, Difference{projection, key, want, got})
		}
	}
	section(add, OfLedger, s.place(), got.place(), text, text)
	section(add, OfPolicies, s.versions, got.versions, events.Hash.String, events.Hash.String)
	section(add, OfPrincipals, s.principals, got.principals, form((*snapshotWriter).principal), func(p *Principal) string {
		return fmt.Sprintf("role %s, key %s, actions %v, groups %v, root %q, revoked %t", p.Role, p.PublicKey, p.Actions, p.Groups, p.Root, p.Revoked)
	})
	section(add, OfAgents, s.agents, got.agents, form((*snapshotWriter).agent), (*Agent).describe)
	section(add, OfMemory, recordsByText(s), recordsByText(got), form((*snapshotWriter).record), (*Record).describe)
	section(add, OfGrants, grantsByText(s), grantsByText(got), describeGrant, describeGrant)
	section(add, OfResources, s.resources, got.resources, anything, anything)
	section(add, OfRuns, s.runs, got.runs, form((*snapshotWriter).run), func(r *Run) string {
		return fmt.Sprintf("of %s, %s, step %d of %d, reason %q, cancelling %t", r.Agent, r.State, r.Next, len(r.Steps), r.Reason, r.Cancelling)
	})
	section(add, OfEmergency, deniesByText(s), deniesByText(got), anything, anything)
	s.diffOperations(got, add)
	return list
}

// section compares two maps, in the order of their keys: by what same makes of a
// value, shown as what show makes of it.
func section[V any](add func(projection, key, want, got string), name string, want, got map[string]V, same, show func(V) string) {
	keys := slices.Collect(maps.Keys(want))
	for key := range got {
		if _, both := want[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		a, inWant := want[key]
		b, inGot := got[key]
		switch {
		case inWant && inGot && same(a) == same(b):
		case !inWant:
			add(name, key, "", show(b))
		case !inGot:
			add(name, key, show(a), "")
		default:
			add(name, key, show(a), show(b))
		}
	}
}

func text(s string) string       { return s }
func anything[V any](v V) string { return fmt.Sprintf("%+v", v) }

// form is a value's form in a snapshot.
func form[V any](write func(*snapshotWriter, V)) func(V) string {
	w := &snapshotWriter{}
	return func(v V) string {
		w.buf = w.buf[:0]
		write(w, v)
		return string(w.buf)
	}
}

// place is what a state is besides its collections.
func (s *State) place() map[string]string {
	m := map[string]string{
		"seq": strconv.FormatUint(s.Seq, 10), "time": s.Time.String(), "leaf": s.Leaf.String(), "origin": s.Origin, "name": s.Ledger,
		"rules": strconv.FormatUint(s.Rules, 10), "policy": s.PolicyVersion() + " " + s.PolicyDigest().String(),
		"environment": "the policy's", "signers": fmt.Sprintf("%v, change %d", []string(s.Signers), s.SignersNo),
		"emergency epoch": strconv.FormatUint(s.DenyEpoch, 10),
	}
	if s.IsNarrowed {
		m["environment"] = fmt.Sprintf("narrowed to %v", []string(s.Narrowed))
	}
	for key, id := range s.keys {
		m["key "+key] = id
	}
	return m
}

func (a *Agent) describe() string {
	parent := "no parent"
	if a.Parent != nil {
		parent = "parent " + a.Parent.ID
	}
	return fmt.Sprintf("%s, capabilities %v, use %v, writes %v, key %s, %d restrictions, revoked %t",
		parent, []string(a.Declared), []string(a.Use), []string(a.Writes), a.PublicKey, len(a.Restrictions), a.Revoked)
}

func (r *Record) describe() string {
	b := fmt.Sprintf("revision %d, visibility %s, class %s, deleted %t, of decision %d, written by event %d", r.Revision, r.Visibility, r.Class, r.Deleted, r.Decision, r.Written)
	if r.Mandatory != nil {
		b += ", value " + string(bytes.TrimSpace(r.Mandatory))
	}
	if r.Expires != 0 {
		b += ", until " + r.Expires.String()
	}
	if r.RunID != "" {
		b += ", of run " + r.RunID
	}
	return b
}

// RecordKey is the key of a record in the memory projection.
func RecordKey(owner, namespace, key string) string { return owner + ":" + namespace + "." + key }

func recordsByText(s *State) map[string]*Record {
	m := make(map[string]*Record, s.records.count)
	for r := range s.records.all() {
		m[RecordKey(r.Owner, r.Namespace, r.Key)] = r
	}
	return m
}

func grantsByText(s *State) map[string]*Grant {
	m := map[string]*Grant{}
	for _, g := range s.grants {
		m[RecordKey(g.Owner, g.Namespace, g.Key)+" to "+g.To] = g
	}
	return m
}

func describeGrant(g *Grant) string {
	if !g.Counted {
		return "until " + g.Expires.String()
	}
	return fmt.Sprintf("until %s, %d uses left", g.Expires, g.Uses)
}

func deniesByText(s *State) map[string]Deny {
	m := map[string]Deny{}
	for _, d := range s.denies {
		m[strconv.FormatUint(d.Epoch, 10)] = d
	}
	return m
}

// diffOperations compares the operation ids, both in ascending order.
func (s *State) diffOperations(got *State, add func(projection, key, want, got string)) {
	show := func(o *operations, e operationEntry) string {
		return fmt.Sprintf("%s, first used by decision %d", o.names[e.use&(operationNamesMax-1)], e.use>>16)
	}
	key := func(e operationEntry) string { return fmt.Sprintf("%016x%016x", e.hi, e.lo) }
	o := func(s *State, e operationEntry) string { return s.operations.names[e.use&(operationNamesMax-1)] }
	next, stop := iter.Pull(got.operations.all())
	defer stop()
	other, more := next()
	for e := range s.operations.all() {
		for more && other.compare(e) < 0 {
			add(OfOperations, key(other), "", show(&got.operations, other))
			other, more = next()
		}
		switch {
		case !more || other.compare(e) != 0:
			add(OfOperations, key(e), show(&s.operations, e), "")
		default:
			if e.use>>16 != other.use>>16 || o(s, e) != o(got, other) {
				add(OfOperations, key(e), show(&s.operations, e), show(&got.operations, other))
			}
			other, more = next()
		}
	}
	for ; more; other, more = next() {
		add(OfOperations, key(other), "", show(&got.operations, other))
	}
}

// OperationKey is the key of an operation id in that projection.
func OperationKey(agent, id string) string {
	d := operationDigest(agent, id)
	return fmt.Sprintf("%016x%016x", d.hi, d.lo)
}

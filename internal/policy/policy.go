package policy

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Policy is one Policy document. The nil *Policy stands for "no policy": it
// knows no action, has an empty environment and calls every record a secret.
type Policy struct {
	Version     string      // a token, never "none"
	Digest      events.Hash // SHA-256 of the document's bytes as sent
	Environment Set         // what any agent may be allowed at most
	Actions     map[string]Action
	Namespaces  []NamespaceRule // sorted by name, each name once
	TreeDepth   int             // agents on the longest path from a root, itself included
	Children    int             // agents under one parent
	Quotas      Quotas

	RetentionDays int // a payload is not erased before it is this old; 0 for no such floor
}

const retentionDaysMax = 36_500

type namedQuota struct {
	name string
	most int
}

func (q Quotas) list() []namedQuota {
	return []namedQuota{{"records", q.Records}, {"tree_records", q.TreeRecords}, {"runs", q.Runs}, {"tree_runs", q.TreeRuns}, {"tree_agents", q.TreeAgents}}
}

const quotaMax = 1_000_000_000 // more is no limit

// Quotas limit what agents may bring about themselves. 0 limits nothing.
type Quotas struct {
	Records, TreeRecords int // of one agent, and of a tree together
	Runs, TreeRuns       int // open ones
	TreeAgents           int // not revoked
}

// Action is what a policy declares of an action. It is never tried again.
type Action struct {
	Arguments *Schema   // what it takes; nil = any object within the limits
	Require   []*Clause // of its arguments, sorted by id
	Timeout   int64     // microseconds in which its effect must be reported; 0 = TimeoutDefault
	MaxBytes  int       // of its result; 0 = OutputDefault
}

// What holds for an action that does not say otherwise, and the bounds of what
// it may say.
const (
	TimeoutDefault int64 = 30_000_000 // microseconds
	timeoutMin           = 100_000
	timeoutMax           = 3600_000_000
	OutputDefault        = events.ValueBytesMax
)

// Timeout is how long an action's effect may take, in microseconds.
func (p *Policy) Timeout(action string) int64 {
	if p == nil || p.Actions[action].Timeout == 0 {
		return TimeoutDefault
	}
	return p.Actions[action].Timeout
}

// MaxOutput is how large an action's result may be, in bytes of canonical JSON.
func (p *Policy) MaxOutput(action string) int {
	if p == nil || p.Actions[action].MaxBytes == 0 {
		return OutputDefault
	}
	return p.Actions[action].MaxBytes
}

// Class says how records under a name are read.
type Class string

// The classes of this release.
const (
	Preference Class = "preference" // a nearer record shadows a farther one
	Secret     Class = "secret"     // read by its owner only, never through the hierarchy
	Mandatory  Class = "mandatory"  // the records of the whole lineage are combined
	Task       Class = "task"       // as a preference, and gone with its run or after a time
)

// ParseClass returns the class that s names.
func ParseClass(s string) (Class, bool) {
	c := Class(s)
	return c, c == Preference || c.binds()
}

// binds reports whether a rule of class c holds for all beneath it.
func (c Class) binds() bool { return c == Secret || c == Mandatory || c == Task }

// NamespaceRule gives a class to a namespace or to one key, and to all beneath.
type NamespaceRule struct {
	Name    string // a namespace, or namespace.key
	Class   Class
	Combine string  // one of Combinations for Mandatory, else empty
	Value   *Schema // what values under it must be; nil = any
	Seconds uint64  // of class Task: how long a record lasts at most, and if it does not say; 0 = not limited here
}

// Load reads a Policy document that was in force once, as it stands in a log.
func Load(document []byte) (*Policy, error) {
	doc, faults := ParseDocument(string(document))
	switch {
	case len(faults) > 0:
		return nil, fmt.Errorf("policy document, line %d column %d: %s", faults[0].Line, faults[0].Column, faults[0].Message)
	case doc.Policy == nil:
		return nil, errors.New("the document is no Policy")
	}
	return doc.Policy, nil
}

// KnownAction reports whether an agent can ask for the action at all: the
// policy declares it, or it is memory.read or memory.write. What else has a
// dotted name, such as agent.register, is an operation and no action.
func (p *Policy) KnownAction(action string) bool {
	if p == nil {
		return false
	}
	_, declared := p.Actions[action]
	return declared || action == "memory.read" || action == "memory.write"
}

// CheckCapabilities returns, sorted, the names in set that mean nothing: that
// are neither declared as actions nor built in. Applying a Policy or an Agent
// document fails if there are any.
func CheckCapabilities(p *Policy, set Set) []string {
	var undeclared []string
	for _, name := range set {
		if !p.knownCapability(name) {
			undeclared = append(undeclared, name)
		}
	}
	return undeclared
}

// knownCapability needs no policy for what is built in, so that a tree may be
// registered before its policy; without one nothing is effective anyway.
func (p *Policy) knownCapability(name string) bool {
	switch name {
	case "memory.read", "memory.write", "agent.register":
		return true
	}
	return p.KnownAction(name)
}

// reservedAction reports whether name belongs to the ledger itself and cannot
// be declared as an action.
func reservedAction(name string) bool {
	switch name {
	case "agent.register", "action.authorize", "sop.validate", "sop.submit",
		"run.cancel", "grant.give", "grant.revoke", "restriction.add":
		return true
	}
	return name == "memory" || strings.HasPrefix(name, "memory.")
}

// Class returns the class of a record: that of the longest rule which names
// namespace.key or a namespace above it, by whole segments. Without a rule it
// is a preference.
func (p *Policy) Class(namespace, key string) Class {
	if p == nil {
		return Secret
	}
	if len(p.Namespaces) == 0 {
		return Preference
	}
	var room [events.NamespaceBytesMax + 1 + events.KeyBytesMax]byte
	name := append(append(append(room[:0], namespace...), '.'), key...)
	if rule, ok := covering(p.Namespaces, name); ok {
		return rule.Class
	}
	return Preference
}

// covering returns the longest of the sorted rules that names name or a prefix
// of it which ends where a segment ends.
func covering(rules []NamespaceRule, name []byte) (NamespaceRule, bool) {
	for {
		if i, ok := findRule(rules, name); ok {
			return rules[i], true
		}
		dot := bytes.LastIndexByte(name, '.')
		if dot < 0 {
			return NamespaceRule{}, false
		}
		name = name[:dot]
	}
}

func findRule(rules []NamespaceRule, name []byte) (int, bool) {
	i := sort.Search(len(rules), func(i int) bool { return rules[i].Name >= string(name) })
	return i, i < len(rules) && rules[i].Name == string(name)
}

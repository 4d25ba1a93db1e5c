package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Known is what an auditor keeps of a log that was verified, so that the next
// time only what came since is read. It is memory of the auditor's own: whoever
// can write it can have anything before Size pass.
type Known struct {
	Format string   `json:"format"`
	Origin string   `json:"origin"`
	VKey   string   `json:"vkey"`   // the key that the log's checkpoint was checked with
	Pinned bool     `json:"pinned"` // it came from the auditor, not from the log
	Size   uint64   `json:"size"`
	Range  []string `json:"range"` // roots of the complete subtrees, the largest first
	Leaf   string   `json:"leaf"`  // of event Size
	Time   string   `json:"time"`  // of event Size
	At     string   `json:"at"`    // when it was verified, by the auditor's clock

	Keys []KnownKey `json:"keys,omitempty"` // the log's checkpoint keys, where they are several
}

// KnownKey is a checkpoint key, the event that brought it and the one that retired
// it: what it handed over by was held against the log.
type KnownKey struct {
	VKey  string `json:"vkey"`
	From  uint64 `json:"from"`
	Until uint64 `json:"until,omitempty"`
}

// Forms of the state. A reader that knows the first only must not take a log of
// several keys for one of its first.
const (
	knownFormat   = "ledgerd/verified/v1"
	knownWithKeys = "ledgerd/verified/v2"
)

// ParseKnown reads what Known was written as.
func ParseKnown(b []byte) (*Known, error) {
	k := &Known{}
	if err := json.Unmarshal(b, k); err != nil {
		return nil, fmt.Errorf("state of an earlier verification: %w", err)
	}
	_, err := events.ParseTime(k.Time)
	for _, h := range append([]string{k.Leaf}, k.Range...) {
		if _, bad := events.ParseHash(h); bad != nil {
			err = bad
		}
	}
	switch {
	case err != nil:
	case k.Format != knownFormat && k.Format != knownWithKeys, (k.Format == knownWithKeys) != (k.Keys != nil):
		err = fmt.Errorf("format %s", quote(k.Format))
	case k.Size == 0 || k.Size > events.IntegerMax || len(k.Range) != bits.OnesCount64(k.Size):
		err = errors.New("size and range do not go together")
	case !events.ValidOrigin(k.Origin):
		err = fmt.Errorf("origin %s", quote(k.Origin))
	case k.Keys != nil:
		err = k.checkKeys()
	}
	if err != nil {
		return nil, fmt.Errorf("state of an earlier verification: %w", err)
	}
	return k, nil
}

// checkKeys refuses keys that are no timeline of the log's.
func (k *Known) checkKeys() error {
	at, used := uint64(0), map[string]bool{}
	for i, key := range k.Keys {
		verifier, err := newVerifier(key.VKey)
		last := i >= len(k.Keys)-2
		switch {
		case err != nil || verifier.Name() != k.Origin || used[key.VKey]:
			return fmt.Errorf("key %s is none of %s", quote(key.VKey), quote(k.Origin))
		case key.From <= at || i == 0 && key.From != 1 || key.From > k.Size || key.Until > k.Size,
			key.Until == 0 && !last || key.Until != 0 && (i == len(k.Keys)-1 || key.Until <= k.Keys[i+1].From), i >= 2 && key.From <= k.Keys[i-2].Until:
			return fmt.Errorf("key %s was not in force from %d until %d", quote(key.VKey), key.From, key.Until)
		}
		at, used[key.VKey] = key.From, true
	}
	if len(k.Keys) < 2 || !used[k.VKey] {
		return errors.New("keys and vkey do not go together")
	}
	return nil
}

// Knows reports whether vkey is the key that the log was verified with, or another
// of its keys: what each handed over by was verified.
func (k *Known) Knows(vkey string) bool {
	return vkey == k.VKey || slices.ContainsFunc(k.Keys, func(key KnownKey) bool { return key.VKey == vkey })
}

// timeline is what was known of the keys.
func (k *Known) timeline() (t timeline) {
	if k.Keys == nil {
		t.first(k.VKey)
	}
	for _, key := range k.Keys {
		verifier, _ := newVerifier(key.VKey)
		t = append(t, keyTerm{public: key.VKey, verifier: verifier, from: key.From, until: key.Until})
	}
	return t
}

// edge is the tree's right edge as it was at the known size.
func (k *Known) edge() (t tree) {
	t.size = k.Size
	for i, level := 0, 63; level >= 0; level-- {
		if k.Size>>level&1 == 1 {
			t.edge[level].hash, _ = events.ParseHash(k.Range[i])
			i++
		}
	}
	return t
}

// known is what the verifier now knows, to be kept; nil where anything failed.
func (v *Verifier) known(key string) *Known {
	if len(v.failed) > 0 || v.links || v.size == 0 || v.leaf.IsZero() {
		return nil
	}
	k := &Known{Format: knownFormat, Origin: v.origin, VKey: key, Pinned: v.pinned != nil, Size: v.size, Leaf: v.leaf.String(), Time: v.time.String()}
	for level := len(v.edge) - 1; level >= 0; level-- {
		if v.size>>level&1 == 1 {
			k.Range = append(k.Range, v.edge[level].hash.String())
		}
	}
	if len(v.keys) > 1 {
		k.Format = knownWithKeys
		for _, t := range v.keys {
			k.Keys = append(k.Keys, KnownKey{VKey: t.public, From: t.from, Until: t.until})
		}
	}
	return k
}

// resume takes up where an earlier verification ended, if the log still is, at
// that size, what it was then. If not that is a fault, and everything is read.
// total is the log's size, read how its events are read.
func (v *Verifier) resume(total uint64, read func(from, to uint64, fn func(seq uint64, event []byte) error) error) {
	k := v.opts.Known
	if k == nil || v.links {
		return
	}
	const name = "resumed"
	if total < k.Size {
		v.fault(Fault{Check: name, Seq: total + 1, To: k.Size, Expected: fmt.Sprintf("the %d events that were verified %s", k.Size, k.At), Found: fmt.Sprintf("%d", total)})
		return
	}
	var leaf events.Hash
	was, _ := events.ParseHash(k.Leaf)
	err := read(k.Size, k.Size, func(_ uint64, b []byte) error {
		leaf = events.LeafHash(b)
		return nil
	})
	if err != nil || leaf != was {
		found := "event " + leaf.String()
		if err != nil {
			found = err.Error()
		}
		v.fault(Fault{Check: name, Seq: k.Size, Expected: "event " + k.Leaf + " as it was verified " + k.At, Found: found})
		return
	}
	edge := k.edge()
	if seq, to, found := v.differs(&edge); found != "" {
		v.fault(Fault{Check: name, Seq: seq, To: to, Expected: "the stored hashes of what was verified " + k.At, Found: found})
		return
	}
	at, _ := events.ParseTime(k.Time)
	edge.nodes, edge.completed = v.nodes, v.completed
	v.tree, v.leaf, v.next, v.time = edge, was, k.Size+1, at
	v.keys = k.timeline()
	v.origin, v.vkey, v.looked.origin, v.from = k.Origin, v.keys[0].public, 1, k.Size
	if _, asked := v.roots[v.size]; asked {
		v.roots[v.size] = v.root()
	}
	v.datedBefore(read)
}

// differs compares a tree's edge with the stored hashes, as far as they are
// stored.
func (v *Verifier) differs(t *tree) (seq, to uint64, found string) {
	if v.nodes == nil {
		return 0, 0, ""
	}
	for level := range t.edge {
		if t.size>>level&1 == 0 {
			continue
		}
		n := t.size>>level - 1
		switch h, _, stored, err := v.nodes(level, n); {
		case err != nil:
			return n<<level + 1, (n + 1) << level, err.Error()
		case stored && h != t.edge[level].hash:
			return n<<level + 1, (n + 1) << level, fmt.Sprintf("hash %s for node %d of level %d, which was %s", h, n, level, t.edge[level].hash)
		}
	}
	return 0, 0, ""
}

func (v *Verifier) resumedCheck() Check {
	c := v.check("resumed", fmt.Sprintf("events 1–%d were verified before (%s) and not read again; the log grew out of them", v.from, v.opts.Known.At))
	switch {
	case c.Status == Fail:
		c.Text = "the log is not what was verified before; all of it was read"
	default:
		c.Open = fmt.Sprintf("payloads, stored hashes and operation ids of events 1–%d were not looked at again", v.from)
	}
	return c
}

package audit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// keyTerm is a checkpoint key, and the sizes of the log that it signs.
type keyTerm struct {
	public      string
	verifier    note.Verifier // nil where public is none
	from, until uint64        // events that bring and retire it; until 0: in force
	handoff     []byte        // what it and the next one have signed, once it is retired
}

func (k *keyTerm) in(size uint64) bool { return k.from <= size && (k.until == 0 || size < k.until) }

func (k *keyTerm) id() string { return fmt.Sprintf("%08x", k.verifier.KeyHash()) }

// timeline lists the checkpoint keys as the events say, the first first.
type timeline []keyTerm

func (t *timeline) first(public string) {
	k := keyTerm{public: public, from: 1}
	k.verifier, _ = newVerifier(public) // the check of event 1 tells
	*t = timeline{k}
}

// take follows one event about keys; what is wrong with it is a fault. called
// lists the keys of an id.
func (t *timeline) take(seq uint64, origin string, b events.Body, called func(keyID) []int) (expected, found string) {
	list := *t
	switch b := b.(type) {
	case *events.KeyRotated:
		if b.Key != events.KeyCheckpoint {
			return "", ""
		}
		verifier, err := newVerifier(b.PublicKey)
		switch {
		case b.Number != uint64(len(list))+1 || len(list) > 1 && list[len(list)-2].until == 0:
			return fmt.Sprintf("key %d, with one key in force before it", len(list)+1), fmt.Sprintf("key %d", b.Number)
		case err != nil || verifier.Name() != origin || slices.ContainsFunc(called(idOf(verifier)), func(i int) bool { return list[i].public == b.PublicKey }):
			return "a new checkpoint key named after the origin", quote(b.PublicKey)
		}
		*t = append(list, keyTerm{public: b.PublicKey, verifier: verifier, from: seq})
	case *events.KeyRetired:
		if b.Key != events.KeyCheckpoint {
			return "", ""
		}
		if n := uint64(len(list)); n < 2 || b.Number != n-1 || list[n-2].until != 0 {
			return "the retirement of the older of two keys in force", fmt.Sprintf("that of key %d", b.Number)
		}
		old := &list[b.Number-1]
		old.until, old.handoff = seq, []byte(b.Checkpoint)
	}
	return "", ""
}

// newVerifier reads a verifier key that is written the one way a key is written.
func newVerifier(vkey string) (note.Verifier, error) {
	key, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, err
	}
	text, _ := strings.CutPrefix(vkey, fmt.Sprintf("%s+%08x+", key.Name(), key.KeyHash()))
	if _, ok := canonicalBase64(text); !ok {
		return nil, fmt.Errorf("verifier key %s is not written as keys are", quote(vkey))
	}
	return key, nil
}

// vouched reports whether the pinned key answers for a checkpoint that is signed
// as the log's own events ask: it is among those that did, or one that handed
// over to them, which the check of the keys looks at.
func (v *Verifier) vouched(c Checkpoint) error {
	if v.pinned == nil || len(v.keys) < 2 {
		return nil
	}
	for i := range v.keys {
		if k := &v.keys[i]; k.public == v.opts.VKey && k.from > c.Size {
			return fmt.Errorf("the pinned key %s signed nothing: event %d brings it, and the checkpoint is of size %d", k.id(), k.from, c.Size)
		}
	}
	return nil
}

// keyEvent follows the log's own keys.
func (v *Verifier) keyEvent(position uint64, b events.Body) {
	if expected, found := v.keys.take(position, v.origin, b, v.called); expected != "" {
		v.fault(Fault{Check: "keys", Seq: position, Expected: expected, Found: found})
	}
}

// keyID is what a signature line says of its key.
type keyID struct {
	name string
	hash uint32
}

func idOf(key note.Verifier) keyID { return keyID{key.Name(), key.KeyHash()} }

// called lists the log's keys of an id, by their place. Every key is entered once:
// a log may have rotated its key as often as it likes.
func (v *Verifier) called(id keyID) []int {
	if v.places == nil {
		v.places = map[keyID][]int{}
	}
	for ; v.placed < len(v.keys); v.placed++ {
		if key := v.keys[v.placed].verifier; key != nil {
			v.places[idOf(key)] = append(v.places[idOf(key)], v.placed)
		}
	}
	return v.places[id]
}

// newest is the place of the last key that a log of size events has brought; -1
// where there is none. It and the one before it are all that may be in force.
func (t timeline) newest(size uint64) int {
	n, found := slices.BinarySearchFunc(t, size, func(k keyTerm, size uint64) int { return cmp.Compare(k.from, size) })
	if found {
		return n
	}
	return n - 1
}

// open reads a checkpoint and checks that each key in force at its size has
// signed it once, and no other key of the log at all. key is what it is held
// against where the log has had one key only.
func (v *Verifier) open(signed []byte, key note.Verifier) (Checkpoint, error) {
	if len(v.keys) < 2 {
		return openCheckpoint(signed, key)
	}
	c, err := readCheckpoint(signed)
	if err != nil {
		return c, err
	}
	at, known := v.keys.newest(c.Size), 0
	for i := max(at-1, 0); i <= at; i++ {
		k := &v.keys[i]
		if k.verifier == nil || !k.in(c.Size) {
			continue
		}
		if _, err := openCheckpoint(signed, k.verifier); err != nil {
			return c, fmt.Errorf("size %d needs the signature of key %s, in force from event %d on: %w", c.Size, k.id(), k.from, err)
		}
		known++
	}
	for _, id := range signers(signed) {
		for _, i := range v.called(id) {
			switch k := &v.keys[i]; {
			case k.in(c.Size):
			case k.until != 0 && c.Size >= k.until:
				return c, fmt.Errorf("key %s signed size %d after event %d had retired it", k.id(), c.Size, k.until)
			default:
				return c, fmt.Errorf("key %s signed size %d before event %d brought it", k.id(), c.Size, k.from)
			}
		}
	}
	if known == 0 {
		return c, fmt.Errorf("no key is in force at size %d", c.Size)
	}
	return c, nil
}

// signers are the keys that a note's signature lines name, good or not.
func signers(signed []byte) (ids []keyID) {
	for line := range strings.Lines(string(signed)) {
		rest, ok := strings.CutPrefix(line, "— ")
		name, b64, _ := strings.Cut(rest, " ")
		sig, _ := canonicalBase64(strings.TrimSuffix(b64, "\n"))
		if ok && len(sig) > 4 {
			ids = append(ids, keyID{name, binary.BigEndian.Uint32(sig)})
		}
	}
	return ids
}

// keysCheck holds every handing over from one key to the next against the log:
// a note that both have signed, of a size at which both were in force.
func (v *Verifier) keysCheck() Check {
	const name = "keys"
	handed, open := 0, ""
	for i := range v.keys {
		k := &v.keys[i]
		if k.until == 0 {
			continue
		}
		if k.until <= v.from { // verified before
			handed++
			continue
		}
		c, err := v.open(k.handoff, k.verifier)
		if err == nil && (c.Origin != v.origin || c.Size < v.keys[i+1].from || c.Size >= k.until) {
			err = fmt.Errorf("it is of %s at size %d", quote(c.Origin), c.Size)
		}
		if err != nil {
			v.fault(Fault{Check: name, Seq: k.until, Expected: fmt.Sprintf("a note of size %d to %d signed by keys %s and %s", v.keys[i+1].from, k.until-1, k.id(), v.keys[i+1].id()), Found: err.Error()})
			continue
		}
		root, err := v.rootAt(c.Size)
		switch {
		case err != nil:
			open = fmt.Sprintf("the root at size %d could not be told, so that nobody says that key %s handed over to key %s: %v", c.Size, k.id(), v.keys[i+1].id(), err)
		case root != c.Root:
			v.fault(Fault{Check: name, Seq: k.until, Expected: fmt.Sprintf("root %s at size %d, as handed over", c.Root, c.Size), Found: "root " + root.String()})
		default:
			handed++
		}
	}
	out := v.check(name, fmt.Sprintf("%d checkpoint keys, %d handed over", len(v.keys), handed))
	if open != "" && out.Status == Pass {
		out.Status, out.Open = Impossible, open
	}
	return out
}

// rootAt is the root at an earlier size, from the stored nodes, which are compared
// with the entries.
func (v *Verifier) rootAt(size uint64) (root events.Hash, err error) {
	if size == v.size {
		return v.root(), nil
	}
	if 0 < size && size <= v.from {
		_, root, err = v.before(size)
		return root, err
	}
	if v.past == nil {
		v.past = v.nodes
	}
	if v.past == nil {
		return root, fmt.Errorf("no tree hash is stored")
	}
	for level := range 64 {
		if size>>level&1 == 0 {
			continue
		}
		h, err := v.node(level, size>>level-1)
		if err != nil {
			return root, err
		}
		if root.IsZero() {
			root = h
		} else {
			root = events.NodeHash(h, root)
		}
	}
	return root, nil
}

// node is a node of the tree as it is stored, or made of those below it.
func (v *Verifier) node(level int, n uint64) (events.Hash, error) {
	h, _, stored, err := v.past(level, n)
	if err != nil || stored {
		return h, err
	}
	if level == 0 {
		return h, fmt.Errorf("leaf %d is not stored", n)
	}
	left, err := v.node(level-1, 2*n)
	if err != nil {
		return h, err
	}
	right, err := v.node(level-1, 2*n+1)
	return events.NodeHash(left, right), err
}

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Keys are the checkpoint keys of one log that an auditor trusts: the pinned one,
// and those it handed over to, as far as that was shown. They are never changed.
type Keys struct {
	terms  timeline // all that is known, the log's first one first; the pinned one alone where nothing was shown
	pinned int
}

// Pin returns the keys of an auditor who was given vkey and nothing else.
func Pin(vkey string) (*Keys, error) {
	key, err := newVerifier(vkey)
	if err == nil && !events.ValidOrigin(key.Name()) {
		err = errors.New("it is <origin>+<id>+<key>")
	}
	if err != nil {
		return nil, fmt.Errorf("verifier key: %w", err)
	}
	return &Keys{terms: timeline{{public: vkey, verifier: key}}}, nil
}

// Origin is the log's name, which each of its keys has.
func (k *Keys) Origin() string { return k.terms[k.pinned].verifier.Name() }

// Trusted lists the pinned key and those that follow on it.
func (k *Keys) Trusted() (vkeys []string) {
	for _, t := range k.terms[k.pinned:] {
		vkeys = append(vkeys, t.public)
	}
	return vkeys
}

// Handed says how the pinned key handed over; empty where it did not.
func (k *Keys) Handed() string {
	said := ""
	for i := k.pinned + 1; i < len(k.terms); i++ {
		said += fmt.Sprintf(", to key %s with event %d", k.terms[i].id(), k.terms[i].from)
	}
	if said == "" {
		return ""
	}
	return "key " + k.terms[k.pinned].id() + " handed over" + strings.TrimPrefix(said, ",")
}

// signer is the key that a checkpoint of size events needs: the newest that is
// in force there. The one before it may sign beside it, and never alone.
func (k *Keys) signer(size uint64) *keyTerm {
	if i := k.terms.newest(size); i >= k.pinned {
		return &k.terms[i]
	}
	return nil
}

// Open reads a checkpoint that the key in force at its size has signed.
func (k *Keys) Open(signed []byte) (Checkpoint, error) {
	c, err := readCheckpoint(signed)
	if err != nil {
		return c, err
	}
	if hint := otherEpoch(k.Origin(), c.Origin); hint != "" {
		return c, fmt.Errorf("it is of %s%s", quote(c.Origin), hint)
	}
	t := k.signer(c.Size)
	if t == nil {
		return c, fmt.Errorf("it is of size %d, and the pinned key %s signs from event %d on: check it under the key you had then, or have a newer proof made", c.Size, k.terms[k.pinned].id(), k.terms[k.pinned].from)
	}
	ids := signers(signed)
	if _, err = openCheckpoint(signed, t.verifier); err == nil || c.Origin != k.Origin() || slices.Contains(ids, idOf(t.verifier)) {
		return c, err
	}
	for i := range k.terms {
		if old := &k.terms[i]; old.public != t.public && slices.Contains(ids, idOf(old.verifier)) {
			return c, fmt.Errorf("key %s alone signed size %d, which since event %d takes the signature of key %s", old.id(), c.Size, t.from, t.id())
		}
	}
	return c, rotatedHint(signed, k.Origin(), err)
}

// Unsigned is the fault of a checkpoint that Open did not take.
func (k *Keys) Unsigned(err error) *Fault {
	expected := "a checkpoint signed by " + quote(k.Origin()) + ", key " + k.terms[k.pinned].id()
	for _, t := range k.terms[k.pinned+1:] {
		expected += ", from event " + fmt.Sprint(t.from) + " on key " + t.id()
	}
	return &Fault{Check: "checkpoint", Expected: expected, Found: err.Error()}
}

// rotatedHint says of a checkpoint that an unknown key of the log's name has
// signed what a rotation takes.
func rotatedHint(signed []byte, origin string, err error) error {
	id := signedAs(signed, origin)
	if id == "" {
		return err
	}
	return fmt.Errorf("%w; key %s signed it: if the log's key was rotated, its rotations (ledgerd proof rotations) show whether the pinned key handed over to it; or run verify on the log (--data, --export or --server) with this --vkey, and if it passes pin the newer key. If the pinned key is the newer one, check this under the key you had before it, or have a newer proof made", err, id)
}

// Unknown reports whether a note is signed under the log's name by a key of which
// nothing was shown: the log's key was rotated, or somebody says so.
func (k *Keys) Unknown(signed []byte) bool {
	for line := range strings.Lines(string(signed)) {
		if id := signedAs([]byte(line), k.Origin()); id != "" && !slices.ContainsFunc(k.terms, func(t keyTerm) bool { return t.id() == id }) {
			return true
		}
	}
	return false
}

// Follow returns the keys that the pinned one is shown to have handed over to.
// What was shown before must not change: a key has one successor. The error is a
// *Fault, or ErrRotationsSize.
func (k *Keys) Follow(rotations []byte) (*Keys, error) {
	fault := func(expected, found string) (*Keys, error) {
		return nil, &Fault{Check: "rotation", Expected: expected, Found: found}
	}
	list, err := handovers(rotations, k.Origin())
	if errors.Is(err, ErrRotationsSize) {
		return nil, err
	}
	if err != nil {
		return fault("the events that brought the keys of "+quote(k.Origin())+", each under a note by that key and the one before it", err.Error())
	}
	at := slices.IndexFunc(list, func(t keyTerm) bool { return t.public == k.terms[k.pinned].public })
	if at < 0 {
		return fault("the pinned key "+k.terms[k.pinned].id()+" among the log's keys", fmt.Sprintf("%d others", len(list)))
	}
	if k.terms[0].from == 0 { // nothing was shown before
		return &Keys{list, at}, nil
	}
	for i := range min(len(list), len(k.terms)) {
		if was, is := &k.terms[i], &list[i]; was.public != is.public || was.from != is.from {
			return fault(fmt.Sprintf("as key %d key %s, brought by event %d, as was shown before", i+1, was.id(), was.from),
				fmt.Sprintf("key %s, by event %d: the key before it signed two histories, or was stolen", is.id(), is.from))
		}
	}
	if len(list) < len(k.terms) {
		return k, nil
	}
	return &Keys{list, at}, nil
}

// Notes are the signed notes by which the pinned key and those after it handed
// over: each is a state of the log.
func (k *Keys) Notes() (list [][]byte) {
	for i := k.pinned + 1; i < len(k.terms); i++ {
		list = append(list, k.terms[i].handoff)
	}
	return list
}

// handovers reads rotations: a log's checkpoint keys from the first on, each
// brought by an event of a tree that this key and the one before it have signed.
func handovers(b []byte, origin string) (timeline, error) {
	proofs, err := ParseRotations(b)
	if err != nil {
		return nil, err
	}
	var list timeline
	known := map[string]bool{}
	for i, p := range proofs {
		e, err := events.Parse(p.Extra)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		public := ""
		switch b := e.Body.(type) {
		case *events.LedgerCreated:
			if i == 0 && b.Origin == origin && e.Seq == 1 {
				public = b.CheckpointKey
			}
		case *events.KeyRotated:
			if i > 0 && b.Key == events.KeyCheckpoint && b.Number == uint64(i)+1 && e.Seq > list[i-1].from {
				public = b.PublicKey
			}
		}
		if public == "" || e.Seq != p.Index+1 {
			return nil, fmt.Errorf("event %d, a %s, does not bring key %d of %s", e.Seq, e.Body.Type(), i+1, quote(origin))
		}
		key, err := newVerifier(public)
		if err != nil || key.Name() != origin || known[public] {
			return nil, fmt.Errorf("event %d brings no new key of that name: %s", e.Seq, quote(public))
		}
		list, known[public] = append(list, keyTerm{public: public, verifier: key, from: e.Seq, handoff: p.Checkpoint}), true
		if err := list.handover(i, p); err != nil {
			return nil, err
		}
	}
	all := &Keys{terms: list}
	for i := range list {
		if _, err := all.Open(list[i].handoff); err != nil {
			return nil, fmt.Errorf("the note with key %d: %w", i+1, err)
		}
	}
	return list, nil
}

// handover checks that key i and the one before it have signed a tree that holds
// the event which brings key i.
func (t timeline) handover(i int, p *InclusionProof) error {
	for j := max(i-1, 0); j <= i; j++ {
		c, err := openCheckpoint(p.Checkpoint, t[j].verifier)
		if err != nil {
			return fmt.Errorf("the note with key %d, by key %s: %w", i+1, t[j].id(), err)
		}
		if err := p.CheckPath(events.LeafHash(p.Extra), c); err != nil {
			return fmt.Errorf("key %d: %w", i+1, err)
		}
	}
	return nil
}

// RotationsBytesMax bounds the file: a key a day for twenty years.
const RotationsBytesMax = 16 << 20

// ErrRotationsSize says that rotations are more than is read: nothing is wrong with
// them, and nothing was looked at.
var ErrRotationsSize = fmt.Errorf("rotations of over %d bytes are not read", RotationsBytesMax)

// ParseRotations reads tlog-proofs that stand one after another, each with the
// event it is of as its extra data. It checks neither hashes nor signatures.
func ParseRotations(b []byte) (list []*InclusionProof, err error) {
	if len(b) > RotationsBytesMax {
		return nil, ErrRotationsSize
	}
	for rest := b; len(rest) > 0 || list == nil; {
		one, more := rest, []byte(nil)
		if at := bytes.Index(rest[min(1, len(rest)):], []byte("\n"+inclusionHead)); at >= 0 {
			one, more = rest[:at+2], rest[at+2:]
		}
		p, err := ParseInclusionProof(one)
		if err != nil {
			return nil, err
		}
		if list = append(list, p); len(p.Extra) == 0 {
			return nil, fmt.Errorf("%w: rotations are proofs each with its event", errProof)
		}
		rest = more
	}
	return list, nil
}

// EncodeRotations is ParseRotations the other way round.
func EncodeRotations(list []*InclusionProof) (b []byte) {
	for _, p := range list {
		b = append(b, p.Encode()...)
	}
	return b
}

var ofKeys = []byte(`"type":"key.`)

// Rotations returns what shows whoever pinned one of the log's checkpoint keys
// which follow on it: event 1 and every event that brought another, each under
// the note by which it took over, or under the log's own checkpoint while two are
// in force. Where the events about keys are known they are the ones looked at.
func (s *Source) Rotations(at ...uint64) ([]*InclusionProof, error) {
	c, err := readCheckpoint(s.Checkpoint)
	if err != nil {
		return nil, err
	}
	var list []*InclusionProof
	look := func(seq uint64, b []byte) error {
		if seq > 1 && !bytes.Contains(b, ofKeys) {
			return nil
		}
		e, err := events.Parse(b)
		if err != nil {
			return fmt.Errorf("event %d: %w", seq, err)
		}
		switch body := e.Body.(type) {
		case *events.LedgerCreated:
			list = append(list, &InclusionProof{Extra: bytes.Clone(b), Index: seq - 1, Checkpoint: s.Checkpoint})
		case *events.KeyRotated:
			if body.Key == events.KeyCheckpoint {
				list = append(list, &InclusionProof{Extra: bytes.Clone(b), Index: seq - 1, Checkpoint: s.Checkpoint})
			}
		case *events.KeyRetired:
			if body.Key != events.KeyCheckpoint || len(list) < 2 {
				return nil
			}
			list[len(list)-1].Checkpoint = []byte(body.Checkpoint)
			if body.Number == 1 {
				list[0].Checkpoint = []byte(body.Checkpoint)
			}
		}
		return nil
	}
	if at == nil {
		err = s.Events(1, c.Size, look)
	}
	for _, seq := range at {
		if err == nil && seq <= c.Size {
			err = s.Events(seq, seq, look)
		}
	}
	if err != nil {
		return nil, err
	}
	return list, s.proveEach(c, list)
}

func (s *Source) proveEach(c Checkpoint, list []*InclusionProof) error {
	tree := s.tree(c)
	for _, p := range list {
		under, err := readCheckpoint(p.Checkpoint)
		if err != nil {
			return err
		}
		path, err := tlog.ProveRecord(int64(under.Size), int64(p.Index), tree)
		if err != nil {
			return err
		}
		p.Hashes = eventsHashes(path)
	}
	return CheckRotations(list)
}

// CheckRotations reports whether rotations hold for who pinned the first key that
// they name: whose key that is is another question.
func CheckRotations(list []*InclusionProof) error {
	if len(list) == 0 {
		return fmt.Errorf("%w: no event 1", errProof)
	}
	e, err := events.Parse(list[0].Extra)
	if err != nil {
		return err
	}
	created, ok := e.Body.(*events.LedgerCreated)
	if !ok {
		return fmt.Errorf("%w: event %d, a %s, is not the first of a log", errProof, e.Seq, e.Body.Type())
	}
	_, err = handovers(EncodeRotations(list), created.Origin)
	return err
}

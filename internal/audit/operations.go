package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
)

// operations looks for operation ids that one agent used twice: what was decided
// once under an id is decided for ever, and a retry leaves no event. Reads are
// outside of this, steps carry no id, and a few denials may name an id again.
//
// Of each use it holds 16 bytes, a keyed hash and the seq. Where they are too
// many it keeps those with the lower half of the hashes, and takes the others in
// a further pass over the log: exact, in bounded memory.
type operations struct {
	seed maphash.Seed
	max  int // uses held at a time

	from, to uint64 // hashes looked at, to excluded unless it is the last
	uses     []operationUse
	counted  uint64 // in ranges that are done
}

type operationUse struct {
	hash uint64 // 0 for no use
	seq  uint64 // seq<<1, and 1 where the reason lets an id come again
}

// operationUsesMax is 96 MiB of uses.
const operationUsesMax = 6 << 20

func newOperations() operations {
	return operations{seed: maphash.MakeSeed(), max: operationUsesMax, to: math.MaxUint64}
}

// add takes a use, in ascending seqs.
func (o *operations) add(u operationUse) {
	if u.hash < o.from || u.hash > o.to {
		return
	}
	if len(o.uses) == o.max {
		for len(o.uses) > o.max/2+1 && o.to > o.from {
			o.to = o.from + (o.to-o.from)/2
			o.uses = slices.DeleteFunc(o.uses, func(u operationUse) bool { return u.hash > o.to })
		}
		if u.hash > o.to {
			return
		}
	}
	o.uses = append(o.uses, u)
}

// twice ends a range: it calls found with each use that should not be, and the
// first of its id. It reports whether hashes are left for another pass.
func (o *operations) twice(found func(first, again uint64)) (more bool) {
	o.counted += uint64(len(o.uses))
	slices.SortFunc(o.uses, func(a, b operationUse) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.seq, b.seq)) })
	for i, first := 1, 0; i < len(o.uses); i++ {
		if o.uses[i].hash != o.uses[first].hash {
			first = i
		} else if o.uses[i].seq&1 == 0 {
			found(o.uses[first].seq>>1, o.uses[i].seq>>1)
		}
	}
	o.uses = o.uses[:0]
	if o.to == math.MaxUint64 {
		return false
	}
	o.from, o.to = o.to+1, math.MaxUint64
	return true
}

// mayComeAgain are the reasons of denials that leave an operation id as it is:
// given before an id is looked at, or because it was used.
var mayComeAgain = map[string]bool{
	"operation_id_conflict": true, "unknown_agent": true, "agent_revoked": true, "not_permitted_for_role": true, "emergency_deny": true,
}

// What no string of an event can hold, since quotes in it are escaped.
var (
	subjectKey   = []byte(`"body":{"subject":"`)
	operationKey = []byte(`],"operation":"`)
	reasonKey    = []byte(`,"reason_code":"`)
	idKey        = []byte(`,"operation_id":"`)
	stepKey      = []byte(`,"step_id":"`)
	readName     = []byte("memory.read")
	stepName     = []byte("sop.validate")
)

// use reads the use of an operation id off the bytes of a decision that parsed.
func (o *operations) use(seq uint64, b []byte) (u operationUse) {
	subject, rest := member(b, subjectKey)
	name, rest := member(rest, operationKey)
	code, rest := member(rest, reasonKey)
	id, rest := member(rest, idKey)
	if id == nil || bytes.Equal(name, readName) {
		return u
	}
	if step, _ := member(rest, stepKey); step != nil && bytes.Equal(name, stepName) {
		return u
	}
	var h maphash.Hash
	h.SetSeed(o.seed)
	h.Write(subject)
	h.WriteByte(0)
	h.Write(id)
	u = operationUse{max(1, h.Sum64()), seq << 1}
	if mayComeAgain[string(code)] {
		u.seq |= 1
	}
	return u
}

// member returns the string after a key, escapes and all, and what follows it;
// nil where there is no such key.
func member(b, key []byte) (value, rest []byte) {
	at := bytes.Index(b, key)
	if at < 0 {
		return nil, b
	}
	value = b[at+len(key):]
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case '\\':
			i++
		case '"':
			return value[:i], value[i:]
		}
	}
	return nil, b
}

// operationsCheck ends the search, with as many further passes as it takes. read
// reads the log again.
func (v *Verifier) operationsCheck(read func(from, to uint64, fn func(seq uint64, event []byte) error) error) Check {
	const name = "operations"
	if v.links {
		return Check{Name: name, Status: NotRun, Open: "operation ids were not looked at"}
	}
	open := ""
	for v.ops.twice(func(first, again uint64) { v.twice(read, first, again) }) {
		if read == nil {
			open = "more operation ids than can be held at once, and no way to read the log again: not all were compared"
			break
		}
		var x examiner
		err := read(v.from+1, v.size, func(seq uint64, b []byte) error {
			if e, err := x.skimmer.Parse(b); err == nil {
				if _, ok := e.Body.(*events.Decision); ok {
					if u := v.ops.use(seq, b); u.hash != 0 {
						v.ops.add(u)
					}
				}
			}
			return nil
		})
		if err != nil {
			open = "not every operation id was compared: " + err.Error()
			break
		}
	}
	c := v.check(name, fmt.Sprintf("%d decisions under an operation id, none under a used one", v.ops.counted))
	if open != "" && c.Status == Pass {
		c.Status = Impossible
	}
	if c.Open = open; v.from > 0 && c.Status == Pass {
		c.Status, c.Open = NotRun, fmt.Sprintf("ids used up to event %d, where the log was taken up, were not held against these: one used before and again after it is not found; read all without --resume for that", v.from)
	}
	return c
}

// twice reports a second use, having read both events to be sure.
func (v *Verifier) twice(read func(from, to uint64, fn func(seq uint64, event []byte) error) error, first, again uint64) {
	f := Fault{Check: "operations", Seq: again, Expected: fmt.Sprintf("an operation id that event %d did not use", first), Found: "the same"}
	if read != nil {
		var ids [2]string
		var leaves [2]events.Hash
		for i, seq := range []uint64{first, again} {
			err := read(seq, seq, func(_ uint64, b []byte) error {
				subject, rest := member(b, subjectKey)
				id, _ := member(rest, idKey)
				ids[i], leaves[i] = string(subject)+" "+string(id), events.LeafHash(b)
				return nil
			})
			if err != nil {
				ids[i] = ""
			}
		}
		if ids[0] != "" && ids[1] != "" && ids[0] != ids[1] {
			return // one hash by chance
		}
		if ids[0] != "" && ids[1] != "" {
			agent, id, _ := bytes.Cut([]byte(ids[0]), []byte(" "))
			var text string
			if json.Unmarshal([]byte(`"`+string(id)+`"`), &text) != nil {
				text = string(id)
			}
			f.Expected = fmt.Sprintf("an operation id that %s had not used", agent)
			f.Found = fmt.Sprintf("%s, decided by event %d (%s) and again by event %d (%s)", quote(text), first, leaves[0], again, leaves[1])
		}
	}
	v.fault(f)
}

package audit_test

import (
	"bytes"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
)

// rotations adds cases of a log of the same name and first key, whose key was
// rotated twice.
func (v *vectorList) rotations() []byte {
	l := rotatedLog(v.t, v.log.Origin)
	list := rotations(v.t, l)
	shown := audit.EncodeRotations(list)
	add := func(why string, exit int, l *logtest.Log, shown []byte) {
		v.add(proofCase{Kind: "rotated", Why: why, Receipt: receiptOf(l, 10).Encode(), Proof: v.proof(l, 10).Encode(), Rotations: shown, Exit: exit})
	}
	by := func(n byte) *logtest.Log {
		c := l.Clone()
		c.Signer, _ = logtest.Key(l.Origin, n)
		c.Also = nil
		return c
	}
	thief := logtest.Sample(l.Origin, 1, 14)
	thief.Rotate(7)
	before := logtest.Sample(l.Origin, 1, 14)
	add("two rotations", 0, l, shown)
	add("a proof from before the first", 0, before, shown)
	add("the first key, retired", 1, by(1), shown)
	add("the second key, retired", 1, by(2), shown)
	add("a stranger's key", 1, by(9), shown)
	add("the second rotation is not shown", 1, l, audit.EncodeRotations(list[:2]))
	add("the first rotation is not shown", 1, l, audit.EncodeRotations([]*audit.InclusionProof{list[0], list[2]}))
	add("event 1 is not shown", 1, l, audit.EncodeRotations(list[1:]))
	add("the key hands over to another", 1, l, audit.EncodeRotations(rotations(v.t, thief)))
	add("of another log", 1, l, audit.EncodeRotations(rotations(v.t, rotatedLog(v.t, "ledgerd.example/other"))))
	add("nothing", 1, l, nil)
	add("cut off", 1, l, shown[:len(shown)-20])
	add("another event", 1, l, bytes.Replace(shown, []byte("\nindex 14\n"), []byte("\nindex 15\n"), 1))
	add("something between", 1, l, bytes.Replace(shown, []byte("\nc2sp.org"), []byte("\n\nc2sp.org"), 1))
	return shown
}

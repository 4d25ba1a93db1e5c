package projection

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MergeSnapshots writes the part that says what two parts of a snapshot say of
// which the newer stands on the older. It holds neither in memory. What it wrote
// before an error is of no use.
func MergeSnapshots(w io.Writer, older, newer io.Reader, key []byte) error {
	m := merger{
		snapshotWriter: newSnapshotWriter(w, key, snapshotTag),
		older:          newSnapshotReader(older, key, snapshotTag), newer: newSnapshotReader(newer, key, snapshotTag),
		texts: New(),
	}
	m.merge()
	m.older.close()
	m.newer.close()
	if err := errors.Join(m.older.err, m.newer.err); err != nil {
		return fmt.Errorf("merge snapshots: %w", err)
	}
	return m.close()
}

type merger struct {
	*snapshotWriter
	older, newer *snapshotReader
	texts        *State // gives one copy of what many records say
}

func (m *merger) merge() {
	after, stands := m.older.uint(), m.newer.uint()
	m.uint(after)
	before, now := New(), New()
	m.older.small(before)
	document := m.newer.small(now)
	if stands != before.Seq {
		m.newer.fail("a part that stands on seq %d after one that ends at %d", stands, before.Seq)
		return
	}
	now.document = bytes.Clone(document)
	m.buf = now.small(m.buf)
	m.agents()
	m.records()
	union(m, (*snapshotReader).runAlone, (*Run).compare, m.run)
	m.operations()
}

// union takes two ascending lists of marked entries and writes one; of two equal
// entries the newer.
func union[T any](m *merger, read func(*snapshotReader) T, compare func(a, b T) int, write func(T)) {
	next := func(r *snapshotReader) (v T, ok bool) {
		if r.flag() {
			v = read(r)
		} else {
			return v, false
		}
		return v, r.err == nil
	}
	a, moreA := next(m.older)
	b, moreB := next(m.newer)
	for moreA || moreB {
		order := 0
		switch {
		case !moreB:
			order = -1
		case !moreA:
			order = 1
		default:
			order = compare(a, b)
		}
		m.flag(true)
		if order < 0 {
			write(a)
		} else {
			write(b)
		}
		if order <= 0 {
			a, moreA = next(m.older)
		}
		if order >= 0 {
			b, moreB = next(m.newer)
		}
	}
	m.flag(false)
}

func (m *merger) agents() {
	type child struct {
		*Agent
		parent string
	}
	union(m, func(r *snapshotReader) child {
		a, parent := r.agentAlone()
		return child{a, parent}
	}, func(a, b child) int { return a.compare(b.Agent) }, func(c child) { m.agentUnder(c.Agent, c.parent) })
}

func (m *merger) records() {
	union(m, func(r *snapshotReader) *Record { return r.recordAlone(m.texts) }, (*Record).compare, m.record)
}

// operations are of one part only, each.
func (m *merger) operations() {
	a, b := m.older.uint(), m.newer.uint()
	m.uint(a + b)
	var x, y operationEntry
	for haveX, haveY := false, false; (a > 0 || b > 0) && m.older.err == nil && m.newer.err == nil; {
		if !haveX && a > 0 {
			x, haveX = m.older.operation(), true
		}
		if !haveY && b > 0 {
			y, haveY = m.newer.operation(), true
		}
		if a > 0 && b > 0 && x.digest == y.digest {
			m.newer.fail("an operation twice")
		}
		if b == 0 || a > 0 && x.less(y.digest) {
			m.operation(x)
			a, haveX = a-1, false
		} else {
			m.operation(y)
			b, haveY = b-1, false
		}
	}
}

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
		kinds: kinds{},
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
	kinds        kinds
}

func (m *merger) merge() {
	first := m.older.anyHead()
	last := m.newer.head(first.seq)
	if m.older.err != nil || m.newer.err != nil {
		return
	}
	m.head(first.after, last.seq, last.partSizes)
	m.operations()
	m.records()
	before, now := New(), New()
	before.Seq, now.Seq = first.seq, last.seq
	m.older.small(before)
	now.document = bytes.Clone(m.newer.small(now))
	m.buf = now.small(m.buf)
	m.agents()
	union(m, (*snapshotReader).runAlone, (*Run).compare, m.run)
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
		a, parent := r.agentAlone(nil)
		return child{a, parent}
	}, func(a, b child) int { return a.compare(b.Agent) }, func(c child) { m.agentUnder(c.Agent, c.parent) })
}

func (m *merger) records() {
	union(m, func(r *snapshotReader) *Record { return r.record(m.kinds, nil) }, (*Record).compare, m.record)
	m.sum()
	m.older.checkSum()
	m.newer.checkSum()
}

// operations are of one part only, each.
func (m *merger) operations() {
	m.texts(m.newer.operationNames(m.older.operationNames(nil)))
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
	m.sum()
	m.older.checkSum()
	m.newer.checkSum()
}

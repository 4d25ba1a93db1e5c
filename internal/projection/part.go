package projection

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
)

// snapshotWriter writes a part of a snapshot to out, or into buf where out is
// nil, and its sum at the end.
type snapshotWriter struct {
	buf []byte
	out io.Writer
	mac hash.Hash
	err error
}

const snapshotBuffer = 64 << 10

func newSnapshotWriter(out io.Writer, key []byte, tag string) *snapshotWriter {
	mac := hmac.New(sha256.New, key)
	return &snapshotWriter{buf: append(make([]byte, 0, snapshotBuffer), tag...), out: io.MultiWriter(mac, out), mac: mac}
}

func (w *snapshotWriter) flush() {
	if w.err == nil {
		_, w.err = w.out.Write(w.buf)
	}
	w.buf = w.buf[:0]
}

// item is called after each item, to pass on what is buffered.
func (w *snapshotWriter) item() {
	if w.out != nil && len(w.buf) >= snapshotBuffer {
		w.flush()
	}
}

// sum writes the sum of all before it, where there is a key.
func (w *snapshotWriter) sum() {
	if w.mac != nil {
		w.flush()
		w.buf = w.mac.Sum(w.buf)
	}
}

func (w *snapshotWriter) close() error {
	w.sum()
	w.flush()
	return w.err
}

func (w *snapshotWriter) uint(n uint64) { w.buf = binary.AppendUvarint(w.buf, n) }

func (w *snapshotWriter) bytes(b []byte) { w.buf = append(w.buf, b...) }

func (w *snapshotWriter) text(s string) {
	w.uint(uint64(len(s)))
	w.buf = append(w.buf, s...)
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
	w.agentUnder(a, parent)
}

func (w *snapshotWriter) agentUnder(a *Agent, parent string) {
	w.text(a.ID)
	w.uint(uint64(a.Depth))
	w.text(parent)
	w.texts(a.Declared)
	w.texts(a.Use)
	w.texts(a.Writes)
	w.text(a.PublicKey)
	w.flag(a.Revoked)
	w.restrictions(a.Restrictions)
	w.item()
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
	w.text(r.Visibility)
	w.text(string(r.Class))
	w.text(r.Key)
	w.uint(r.Revision)
	w.flag(r.Deleted)
	w.uint(r.Decision)
	w.uint(r.Written)
	w.flag(r.OwnPayload)
	w.text(string(r.Mandatory))
	w.uint(uint64(r.Expires))
	w.text(r.RunID)
	w.item()
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
	w.item()
}

const operationBytes = 24

func (w *snapshotWriter) operation(e operationEntry) {
	w.buf = binary.BigEndian.AppendUint64(w.buf, e.hi)
	w.buf = binary.BigEndian.AppendUint64(w.buf, e.lo)
	w.buf = binary.BigEndian.AppendUint64(w.buf, e.use)
	w.item()
}

// snapshotReader reads a part of a snapshot. After an error it gives zeros, and
// every list is empty, so that nothing is read in vain.
type snapshotReader struct {
	in  io.Reader
	mac hash.Hash
	buf []byte
	pos int // of buf, what is not yet taken
	err error
}

// textMax bounds what one length can make the reader hold.
const textMax = 16 << 20

func newSnapshotReader(in io.Reader, key []byte, tag string) *snapshotReader {
	r := &snapshotReader{in: in, mac: hmac.New(sha256.New, key)}
	if string(r.take(uint64(len(tag)))) != tag {
		r.err = errors.New("not of this form")
	}
	return r
}

func (r *snapshotReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// fill has n bytes ready, unless the input ends before.
func (r *snapshotReader) fill(n int) {
	r.mac.Write(r.buf[:r.pos])
	rest := copy(r.buf, r.buf[r.pos:])
	r.buf, r.pos = slices.Grow(r.buf[:rest], max(n, snapshotBuffer)-rest), 0
	for len(r.buf) < n {
		got, err := r.in.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+got]
		if err == io.EOF {
			return
		}
		if err != nil {
			r.fail("%w", err)
			return
		}
	}
}

// take returns the next n bytes, good until the next call.
func (r *snapshotReader) take(n uint64) []byte {
	if n > uint64(len(r.buf)-r.pos) && n <= textMax && r.err == nil {
		r.fill(int(n))
	}
	if r.err != nil || n > uint64(len(r.buf)-r.pos) {
		r.fail("cut short")
		return nil
	}
	b := r.buf[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b
}

// checkSum checks that the sum of all that was taken follows.
func (r *snapshotReader) checkSum() {
	r.mac.Write(r.buf[:r.pos])
	r.buf, r.pos = r.buf[r.pos:], 0
	want := r.mac.Sum(nil)
	if got := r.take(uint64(len(want))); r.err == nil && !hmac.Equal(got, want) {
		r.fail("damaged, or made with another key")
	}
}

// close checks that the sum of all that was taken follows, and nothing after it.
func (r *snapshotReader) close() {
	r.checkSum()
	if len(r.buf) == r.pos && r.err == nil {
		r.fill(1)
	}
	if r.err == nil && len(r.buf) > r.pos {
		r.fail("bytes after the end")
	}
}

// failed is what kept the part from being read, nil for nothing.
func (r *snapshotReader) failed() error {
	if r.err != nil {
		return fmt.Errorf("snapshot: %w", r.err)
	}
	return nil
}

// uint reads a varint in its one shortest form.
func (r *snapshotReader) uint() uint64 {
	if len(r.buf)-r.pos < binary.MaxVarintLen64 && r.err == nil {
		r.fill(binary.MaxVarintLen64)
	}
	n, size := binary.Uvarint(r.buf[r.pos:])
	if r.err != nil || size <= 0 || size > 1 && r.buf[r.pos+size-1] == 0 {
		r.fail("no integer where one belongs")
		return 0
	}
	r.pos += size
	return n
}

// int is a small number.
func (r *snapshotReader) int() int {
	n := r.uint()
	if n > math.MaxInt32 {
		r.fail("number %d", n)
		return 0
	}
	return int(n)
}

func (r *snapshotReader) time() events.Time {
	n := r.uint()
	if n > math.MaxInt64 {
		r.fail("no time where one belongs")
		return 0
	}
	return events.Time(n)
}

func (r *snapshotReader) text() string { return string(r.take(r.uint())) }

func (r *snapshotReader) texts() []string {
	var list []string
	for n := r.uint(); n > 0 && r.err == nil; n-- {
		list = append(list, r.text())
	}
	return list
}

// set reads texts in ascending order, each once.
func (r *snapshotReader) set() policy.Set { return r.setLike(nil) }

// setLike reads a set, and returns like if it is the same.
func (r *snapshotReader) setLike(like policy.Set) policy.Set {
	n, same := r.uint(), 0 // so many as in like, from the first on
	var set policy.Set
	for i := uint64(0); i < n && r.err == nil; i++ {
		b := r.take(r.uint())
		if set == nil && same < len(like) && like[same] == string(b) {
			same++
			continue
		}
		if set == nil {
			set = slices.Clone(like[:same])
		}
		if len(set) > 0 && set[len(set)-1] >= string(b) {
			r.fail("a set out of order")
		}
		set = append(set, string(b))
	}
	switch {
	case set != nil:
		return set
	case same == 0:
		return nil
	case same < len(like):
		return slices.Clone(like[:same])
	}
	return like
}

// ascending reads a list of entries, each of which returns its name.
func (r *snapshotReader) ascending(entry func() (name string)) {
	n, before := r.uint(), ""
	for i := uint64(0); i < n && r.err == nil; i++ {
		name := entry()
		if i > 0 && name <= before {
			r.fail("a list out of order")
		}
		before = name
	}
}

func (r *snapshotReader) flag() bool {
	n := r.uint()
	if n > 1 {
		r.fail("flag %d", n)
	}
	return n == 1
}

func (r *snapshotReader) operation() (e operationEntry) {
	if b := r.take(operationBytes); b != nil {
		e.hi, e.lo, e.use = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
	}
	return e
}

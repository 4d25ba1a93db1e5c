package client

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/wire"
)

// Errors of an EffectStore; what was found is in the text.
var (
	// ErrStoreInUse: another process has the store open. Each has its own.
	ErrStoreInUse = errors.New("the effect store is in use")
	// ErrStoreDamaged: the file is damaged before its end. What it held of the
	// effects there is not known; nothing is done until a person has looked.
	ErrStoreDamaged = errors.New("the effect store is damaged")
	// ErrStoreFailed: a write failed, so that nothing can be promised any more.
	// Open the store anew to see what is on disk.
	ErrStoreFailed = errors.New("the effect store has failed")
)

// Retention says how long an effect is remembered after the ledger has
// acknowledged its report, so that the same order seen again does nothing. It
// is forgotten when it is older than Age, or when Count newer ones are
// remembered. What is in doubt, or not acknowledged, is never forgotten.
type Retention struct {
	Count int           // default 10,000
	Age   time.Duration // default 7 days
}

// EffectStore is a handler's memory of the effects it was asked for, in one
// directory: what was begun, what came of it, what the ledger has acknowledged.
// It is why an effect is done once or is in doubt, and never twice. One process
// has it at a time. Safe for concurrent use.
type EffectStore struct {
	keep Retention
	lock *os.File

	mu      sync.Mutex
	effects map[string]*effect // by operation id
	settled []string           // those that may be forgotten, in the order they were settled
	next    *frame             // what the next write takes
	live    int64              // bytes of the file that are still of use
	closed  bool

	writing sync.Mutex // held by whoever writes; taken before mu
	journal *journal
}

// effectState is where an effect stands.
type effectState int

const (
	effectRunning  effectState = iota // begun by this process, its function has not returned
	effectDoubtful                    // begun by an earlier process, which left no result
	effectDone                        // its report is to be acknowledged
	effectRefused                     // the ledger does not take its report
	effectSettled                     // acknowledged, or a person has resolved it
)

type effect struct {
	digest [sha256.Size]byte // of the order: an operation id stands for one only
	order  record            // the record of its beginning, or its report if it was never begun
	state  effectState
	report []byte // nil once settled; then it is read from the file
	at     int64  // where the file has the record with the report
	size   int
	last   record // acknowledged, refused or resolved
	bytes  int64  // of the file
}

// Doubt is an effect that needs a person: it was begun and nothing tells
// whether it happened, or the ledger does not take the report of it.
type Doubt struct {
	OperationID string
	RunID       string
	StepID      string
	Action      string
	Since       time.Time // begun, or refused
	Refused     Reason    // why the ledger refuses the report; empty for an effect without a result
}

// OpenEffects opens the store in dir, and makes it if there is none. A write
// that a crash cut short is cut off: nothing rested on it. Other damage is
// ErrStoreDamaged. Effects that were begun and have no result are in doubt from
// here on, see Doubts.
func OpenEffects(dir string, keep Retention) (*EffectStore, error) {
	if keep.Count <= 0 {
		keep.Count = 10_000
	}
	if keep.Age <= 0 {
		keep.Age = 7 * 24 * time.Hour
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("effect store: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("effect store %s: %w", dir, err)
	}
	s := &EffectStore{keep: keep, lock: lock, effects: map[string]*effect{}, next: &frame{}}
	s.journal, err = openJournal(filepath.Join(dir, "effects.log"), s.replay)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("effect store %s: %w", dir, err), lock.Close())
	}
	for _, e := range s.effects {
		if e.state == effectRunning {
			e.state = effectDoubtful
		}
	}
	s.forget(time.Now())
	return s, nil
}

// Close writes what is still to be written and lets go of the directory.
func (s *EffectStore) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.writeNext()
	return errors.Join(err, s.journal.close(), s.lock.Close())
}

// Doubts lists what needs a person, oldest first.
func (s *EffectStore) Doubts() []Doubt {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Doubt
	for _, e := range s.effects {
		d := Doubt{OperationID: e.order.Op, RunID: e.order.Run, StepID: e.order.Step, Action: e.order.Action, Since: time.UnixMilli(e.order.At)}
		switch e.state {
		case effectRefused:
			d.Since, d.Refused = time.UnixMilli(e.last.At), Reason(e.last.Note)
		case effectDoubtful:
		default:
			continue
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Doubt) int { return a.Since.Compare(b.Since) })
	return list
}

// Resolve ends a doubt: a person has found out whether the effect happened, and
// settles the run in the ledger as well (Client.ResolveRun). It returns when
// that is durable. The effect is not done again.
func (s *EffectStore) Resolve(operationID string, done bool) error {
	outcome := "not_done"
	if done {
		outcome = "done"
	}
	s.mu.Lock()
	e := s.effects[operationID]
	if e == nil || e.state != effectDoubtful && e.state != effectRefused {
		s.mu.Unlock()
		return fmt.Errorf("resolve effect %q: it is not in doubt here", operationID)
	}
	f := s.settle(e, record{Op: operationID, Is: isResolved, At: time.Now().UnixMilli(), Note: outcome})
	s.mu.Unlock()
	return s.commit(f)
}

// ErrOtherOrder: an order came under an operation id that stands for another.
var ErrOtherOrder = errors.New("the operation id of another effect")

// begin notes durably that e is about to be done. fresh is false for an effect
// known before; report is then what to tell the ledger again, nil for nothing.
func (s *EffectStore) begin(e *Effect) (fresh bool, report []byte, err error) {
	return s.first(e, record{Is: isStarted})
}

// decline notes durably that e was not begun and never will be, for the reason
// in report; as begin does for an effect that is.
func (s *EffectStore) decline(e *Effect, report []byte) (fresh bool, known []byte, err error) {
	return s.first(e, record{Is: isDone, Report: report})
}

func (s *EffectStore) first(e *Effect, r record) (fresh bool, report []byte, err error) {
	digest := e.digest()
	s.mu.Lock()
	if known := s.effects[e.OperationID]; known != nil {
		defer s.mu.Unlock()
		if known.digest != digest {
			return false, nil, fmt.Errorf("order %s: %w", e.OperationID, ErrOtherOrder)
		}
		report, err = s.reportOf(known)
		return false, report, err
	}
	r.Op, r.Run, r.Step, r.Action, r.Digest, r.At = e.OperationID, e.RunID, e.StepID, e.Action, digest[:], time.Now().UnixMilli()
	f := s.add(r)
	s.mu.Unlock()
	return true, nil, s.commit(f)
}

// finish notes durably what came of an effect that was begun.
func (s *EffectStore) finish(operationID string, report []byte) error {
	s.mu.Lock()
	f := s.add(record{Op: operationID, Is: isDone, At: time.Now().UnixMilli(), Report: report})
	s.mu.Unlock()
	return s.commit(f)
}

// acknowledged notes that the ledger has the report. It is not waited for: an
// acknowledgement forgotten is one asked for again.
func (s *EffectStore) acknowledged(operationID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if e := s.effects[operationID]; e != nil && e.state == effectDone {
		s.settle(e, record{Op: operationID, Is: isAcknowledged, At: now.UnixMilli()})
		s.forget(now)
	}
}

// refused notes durably that the ledger will never take the report.
func (s *EffectStore) refused(operationID string, code Reason) error {
	s.mu.Lock()
	if e := s.effects[operationID]; e == nil || e.state != effectDone {
		s.mu.Unlock()
		return nil
	}
	f := s.add(record{Op: operationID, Is: isRefused, At: time.Now().UnixMilli(), Note: string(code)})
	s.mu.Unlock()
	return s.commit(f)
}

// unreported lists the effects whose reports the ledger has not acknowledged.
func (s *EffectStore) unreported() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for id, e := range s.effects {
		if e.state == effectDone {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// reported returns the report of an effect, nil if there is none.
func (s *EffectStore) reported(operationID string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.effects[operationID]
	if e == nil {
		return nil, nil
	}
	return s.reportOf(e)
}

// reportOf needs s.mu.
func (s *EffectStore) reportOf(e *effect) ([]byte, error) {
	if e.report != nil || e.size == 0 {
		return e.report, nil
	}
	r, err := s.journal.read(e.at, e.size)
	return r.Report, err
}

// settle is add for a record after which an effect may be forgotten some day.
func (s *EffectStore) settle(e *effect, r record) *frame {
	f := s.add(r)
	if e.size > 0 { // else its report is not in the file yet, and is kept till it is
		e.report = nil
	}
	return f
}

// add applies r and returns the frame that will carry it. It needs s.mu.
func (s *EffectStore) add(r record) *frame {
	s.apply(r)
	s.next.records = append(s.next.records, r)
	return s.next
}

// apply moves the effect that r speaks of.
func (s *EffectStore) apply(r record) {
	e := s.effects[r.Op]
	switch {
	case e == nil && len(r.Digest) == 0, e != nil && e.state == effectSettled:
		return // written again around a rewriting of the file
	case e == nil:
		e = &effect{order: r}
		e.order.Report = nil
		copy(e.digest[:], r.Digest)
		s.effects[r.Op] = e
	}
	switch r.Is {
	case isStarted:
		e.state = effectRunning
	case isDone:
		e.state, e.report = effectDone, r.Report
	case isRefused:
		e.state, e.last = effectRefused, r
	case isAcknowledged, isResolved:
		e.state, e.last = effectSettled, r
		s.settled = append(s.settled, r.Op)
	}
}

// replay takes a record that the file has at this place.
func (s *EffectStore) replay(r record, at int64, size int) {
	s.apply(r)
	s.placed(r, at, size)
	if e := s.effects[r.Op]; e != nil && e.state == effectSettled {
		e.report = nil // it is in the file
	}
}

// placed notes where the file has a record.
func (s *EffectStore) placed(r record, at int64, size int) {
	e := s.effects[r.Op]
	if e == nil {
		return // forgotten in the meantime
	}
	e.bytes += int64(size)
	s.live += int64(size)
	if r.Is == isDone {
		e.at, e.size = at, size
		if e.state == effectSettled {
			e.report = nil
		}
	}
}

// forget drops what the retention does not keep. It needs s.mu.
func (s *EffectStore) forget(now time.Time) {
	for len(s.settled) > 0 {
		e := s.effects[s.settled[0]]
		if len(s.settled) <= s.keep.Count && now.Sub(time.UnixMilli(e.last.At)) < s.keep.Age {
			return
		}
		s.live -= e.bytes
		delete(s.effects, s.settled[0])
		s.settled = s.settled[1:]
	}
}

// frame is what one write carries, and what became of it.
type frame struct {
	records []record
	written bool // guarded by EffectStore.writing
	err     error
}

// commit returns when f is durable. Those who come while another writes find
// that the next of them has written for all.
func (s *EffectStore) commit(f *frame) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if f.written {
		return f.err
	}
	return s.writeNext()
}

// writeNext needs s.writing.
func (s *EffectStore) writeNext() error {
	s.mu.Lock()
	f := s.next
	s.next = &frame{}
	s.mu.Unlock()
	f.written = true
	if len(f.records) == 0 {
		return nil
	}
	var places []int64
	places, f.err = s.journal.write(f.records)
	if f.err != nil {
		return f.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range f.records {
		s.placed(r, places[i], int(places[i+1]-places[i]))
	}
	if s.journal.size > compactMin && s.journal.size > 2*s.live {
		f.err = s.compact()
	}
	return f.err
}

// compactMin is the size under which a file with forgotten effects is left as it is.
const compactMin = 1 << 20

// compact writes what is remembered into a new file that takes the old one's
// place. It needs both locks.
func (s *EffectStore) compact() error {
	settled := make(map[string]bool, len(s.settled))
	ids := make([]string, 0, len(s.effects))
	for id, e := range s.effects {
		if settled[id] = e.state == effectSettled; !settled[id] {
			ids = append(ids, id)
		}
	}
	ids = append(slices.Clone(s.settled), ids...) // these in their order
	places := map[string]placeOf{}
	err := s.journal.rewrite(func(put func(record) (int64, int, error)) error {
		for _, id := range ids {
			place, err := s.rewriteOne(s.effects[id], put)
			if err != nil {
				return err
			}
			places[id] = place
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.live = 0
	for id, p := range places {
		e := s.effects[id]
		e.at, e.size, e.bytes = p.at, p.size, p.bytes
		s.live += p.bytes
	}
	return nil
}

type placeOf struct {
	at    int64
	size  int
	bytes int64
}

func (s *EffectStore) rewriteOne(e *effect, put func(record) (int64, int, error)) (p placeOf, err error) {
	report, err := s.reportOf(e)
	if err != nil {
		return p, err
	}
	records := []record{e.order}
	switch {
	case e.order.Is == isDone:
		records[0].Report = report
	case report != nil:
		records = append(records, record{Op: e.order.Op, Is: isDone, At: e.order.At, Report: report})
	}
	if e.last.Is != "" {
		records = append(records, e.last)
	}
	for _, r := range records {
		at, size, err := put(r)
		if err != nil {
			return p, err
		}
		p.bytes += int64(size)
		if r.Is == isDone {
			p.at, p.size = at, size
		}
	}
	return p, nil
}

// digest is what makes an order this one.
func (e *Effect) digest() [sha256.Size]byte {
	order := wire.Exec{OperationID: e.OperationID, RunID: e.RunID, SOPID: e.SOPID, StepID: e.StepID, Agent: e.Agent, Action: e.Action, Arguments: e.Arguments}
	return sha256.Sum256(order.Encode())
}

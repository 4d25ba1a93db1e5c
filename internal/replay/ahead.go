package replay

import (
	"bytes"
	"runtime"
	"sync"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// What needs no state is done ahead of the judge, by as many goroutines as there
// are cores: reading, parsing and hashing events, opening payloads and holding
// them against their commitments, decoding requests. What they find is what the
// judge would have found at that place.
const stretchSize = 512 // events

// stretch is some events in a row, read ahead.
type stretch struct {
	events []ahead
	arena  []byte
	err    error // why no more could be read
}

// ahead is one event read ahead.
type ahead struct {
	logged
	err     error // why it is no event
	leaf    events.Hash
	payload *aheadPayload // nil where the event has none
}

// aheadPayload is what Source.Payload says of an event.
type aheadPayload struct {
	salt    [events.SaltLen]byte
	bytes   []byte
	ok      bool
	err     error
	fits    bool // it is the one the event commits to
	lane    wire.Lane
	request *wire.Request // what it is in that lane, nil where that was not tried
	code    reason.Code
}

// readAhead calls take with each stretch of the log, in order, until an error or a
// stretch that is short. What it takes is bounded by what it reads, not by the size
// that the source says.
func (s *Source) readAhead(take func(*stretch) error) error {
	type job struct {
		from  uint64
		ready chan *stretch
	}
	workers := runtime.GOMAXPROCS(0)
	jobs, ordered, done := make(chan job), make(chan chan *stretch, 2*workers), make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer close(done)
	running.Go(func() {
		defer close(jobs)
		defer close(ordered)
		for from := uint64(1); from <= s.Size; from += stretchSize {
			next := job{from, make(chan *stretch, 1)}
			select {
			case ordered <- next.ready:
			case <-done:
				return
			}
			select {
			case jobs <- next:
			case <-done:
				return
			}
		}
	})
	for range workers {
		running.Go(func() {
			for next := range jobs {
				next.ready <- s.stretch(next.from, min(next.from+stretchSize-1, s.Size))
			}
		})
	}
	for ready := range ordered {
		t := <-ready
		if err := take(t); err != nil {
			return err
		}
		if t.err != nil || len(t.events) < stretchSize {
			return t.err
		}
	}
	return nil
}

func (s *Source) stretch(from, to uint64) *stretch {
	t := &stretch{events: make([]ahead, 0, to-from+1), arena: make([]byte, 0, (to-from+1)*640)}
	payload, end := s.Payload, func() error { return nil }
	if s.Payloads != nil {
		var err error
		if payload, end, err = s.Payloads(from, to); err != nil {
			t.err = err
			return t
		}
	}
	t.err = s.Events(from, to, func(seq uint64, b []byte) error {
		start := len(t.arena)
		t.arena = append(t.arena, b...)
		a := ahead{logged: logged{bytes: t.arena[start:len(t.arena):len(t.arena)]}, leaf: events.LeafHash(b)}
		if a.Event, a.err = events.Parse(b); a.err == nil && !a.Payload.IsZero() {
			a.payload = open(&a.Event, seq, payload)
		}
		t.events = append(t.events, a)
		return nil
	})
	if err := end(); t.err == nil {
		t.err = err
	}
	return t
}

func open(e *events.Event, seq uint64, payload func(uint64) ([events.SaltLen]byte, []byte, bool, error)) *aheadPayload {
	p := &aheadPayload{}
	p.salt, p.bytes, p.ok, p.err = payload(seq)
	if p.err != nil || !p.ok {
		return p
	}
	p.bytes = bytes.Clone(p.bytes)
	p.fits = events.PayloadCommitment(p.salt, p.bytes) == e.Payload
	d, ok := e.Body.(*events.Decision)
	if !ok || !p.fits {
		return p
	}
	for _, lane := range []wire.Lane{wire.Propose, wire.Control} {
		if wire.Known(lane, d.Operation) == d.Operation {
			p.lane = lane
			p.request, p.code = wire.Decode(lane, d.Operation, p.bytes)
			break
		}
	}
	return p
}

// decode is wire.Decode of the payload of the event at hand.
func (r *run) decode(lane wire.Lane, operation string, b []byte) (*wire.Request, reason.Code) {
	if p := r.at.payload; p != nil && p.lane == lane && (p.request != nil || p.code != "") {
		return p.request, p.code
	}
	return wire.Decode(lane, operation, b)
}

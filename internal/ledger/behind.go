package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// The state is written down behind the log, so that opening folds only the end
// of it: every so many events the writer hands over what changed, which takes it
// about a millisecond, and another goroutine sorts that into a part, waits until
// the log is durable so far, and writes it. Parts of about one size are merged,
// so that there are few, and each change is written once for every doubling.
// Nothing waits for any of it. A part carries a MAC under a key made from
// seal.key, so that nobody without the ledger's keys can plant a state.
const behindPoll = 5 * time.Millisecond

var behindEvents uint64 = 1 << 16 // tests make it small

// behind is what is written down. Owned by the goroutine of writeBehind while
// the ledger runs, and by Open and shut before and after.
type behind struct {
	mu     sync.Mutex // of what follows
	parts  []store.Part
	key    []byte // that they were made with
	frozen bool   // parts do not merge: one is damaged, which the next opening will find
}

// handed is what writeBehind is given, and the key to make its part with.
type handed struct {
	*projection.Changes
	key []byte
}

func stateKey(sealKey []byte, origin string) []byte {
	mac := hmac.New(sha256.New, sealKey)
	io.WriteString(mac, "ledgerd/state/v1\n"+origin)
	return mac.Sum(nil)
}

// StoredState returns the state that is written down beside the log st in the
// data directory dir, nil if there is none, and refuses one that is damaged, not
// made with a seal key at hand, or not of this log. had is as for OpenPayloads.
func StoredState(dir string, st *store.Store, had ...SealKeys) (*projection.State, error) {
	keys, err := sealKeysOf(dir, had)
	if err != nil {
		return nil, err
	}
	state, _, _, err := anyStoredState(st, keys, func(*projection.State) {})
	return state, err
}

// anyStoredState is storedState with whichever seal key fits, and its number.
func anyStoredState(st Log, keys []sealKey, early func(*projection.State)) (state *projection.State, parts []store.Part, number uint64, err error) {
	var first error
	for _, k := range slices.Backward(keys) {
		state, parts, err = storedState(st, stateKey(k.key, st.Origin()), early)
		if err == nil || errors.Is(err, store.ErrStopped) {
			return state, parts, k.number, err
		}
		first = cmp.Or(first, err)
	}
	return nil, nil, 0, first
}

// storedState reads what is written down of the state. early is called with it
// when all is there but records and operations, while those are read.
func storedState(st Log, key []byte, early func(*projection.State)) (*projection.State, []store.Part, error) {
	parts, err := st.Parts()
	if err != nil || len(parts) == 0 {
		return nil, nil, err
	}
	// Operations and records are most of what there is to read.
	state, operations, records := projection.New(), &projection.Operations{}, &projection.Records{}
	beside := make(chan error, 2)
	apart := func(read func(io.Reader, []byte) error) {
		beside <- eachPart(st, parts, func(_ store.Part, in io.Reader) error { return read(in, key) })
	}
	go apart(operations.Read)
	go apart(records.Read)
	err = eachPart(st, parts, func(p store.Part, in io.Reader) error {
		if err := state.ReadApart(in, key); err != nil {
			return err
		}
		return standsAt(st, state, p.Seq)
	})
	if err == nil {
		early(state)
	}
	if err = cmp.Or(err, <-beside, <-beside); err == nil {
		err = state.Join(operations, records)
	}
	if err != nil {
		return nil, nil, err
	}
	return state, parts, nil
}

func eachPart(st Log, parts []store.Part, read func(store.Part, io.Reader) error) error {
	for _, p := range parts {
		if err := st.ReadPart(p, func(in io.Reader) error { return read(p, in) }); err != nil {
			return fmt.Errorf("state %d-%d: %w", p.After, p.Seq, err)
		}
	}
	return nil
}

// standsAt refuses a state that is not of the log's event at seq.
func standsAt(st Log, state *projection.State, seq uint64) error {
	b, err := st.Event(seq)
	if err != nil {
		return err
	}
	if leaf := events.LeafHash(b); state.Seq != seq || state.Leaf != leaf || state.Origin != st.Origin() {
		return fmt.Errorf("of %s at %d (%s), not of %s at %d (%s)", state.Origin, state.Seq, state.Leaf, st.Origin(), seq, leaf)
	}
	return nil
}

// handOver gives the changes of the state to writeBehind, if enough came
// together and it has nothing to do. Called by the writer.
func (l *Ledger) handOver() error {
	if l.state.Seq-l.handed < behindEvents || len(l.changes) > 0 {
		return nil
	}
	c, err := l.state.TakeChanges()
	if err != nil {
		return err
	}
	l.handed = c.Seq
	l.changes <- handed{c, l.stateKey}
	return nil
}

// writeBehind writes down what the writer hands over.
func (l *Ledger) writeBehind(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-l.changes:
			if err := l.writePart(ctx, c); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// writePart writes a part once its events are durable and there is room, and
// merges it with those before it.
func (l *Ledger) writePart(ctx context.Context, c handed) error {
	tick := time.NewTicker(behindPoll)
	defer tick.Stop()
	for l.store.Durable() < c.Seq || l.low.Load() > 0 {
		select {
		case <-ctx.Done():
			if l.store.Durable() < c.Seq || l.Err() != nil {
				return nil
			}
		case <-tick.C:
			continue
		}
		break
	}
	b := &l.behind
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.After == 0: // whole: nothing from before is of use
		b.parts, b.key, b.frozen = nil, c.key, false
	case !bytes.Equal(b.key, c.key): // of before the seal key was rotated, and a whole one follows
		return nil
	}
	err := l.store.PutPart(c.After, c.Seq, func(w io.Writer) error { return c.Write(w, b.key) })
	if err == nil {
		err = l.listPart(c.After, c.Seq)
	}
	for err == nil && b.unmerged() && ctx.Err() == nil {
		err = l.mergeParts()
	}
	if err != nil {
		return fmt.Errorf("write the state behind: %w", err)
	}
	return l.store.DropParts(b.parts)
}

// listPart adds a part that was written, with its size.
func (l *Ledger) listPart(after, seq uint64) error {
	parts, err := l.store.Parts()
	for _, p := range parts {
		if p.After == after && p.Seq == seq {
			l.behind.parts = append(l.behind.parts, p)
			return nil
		}
	}
	return errors.Join(err, fmt.Errorf("part %d-%d was written and is not there", after, seq))
}

// unmerged reports whether the last part has grown half as large as the one
// before it.
func (b *behind) unmerged() bool {
	n := len(b.parts)
	return n > 1 && !b.frozen && 2*b.parts[n-1].Size >= b.parts[n-2].Size
}

// mergeParts makes one part of the last two.
func (l *Ledger) mergeParts() error {
	b, n := &l.behind, len(l.behind.parts)
	older, newer := b.parts[n-2], b.parts[n-1]
	free, err := l.store.Free()
	if err != nil || free < l.options.MinFree+uint64(older.Size+newer.Size) {
		b.frozen = true
		return err
	}
	err = l.store.PutPart(older.After, newer.Seq, func(w io.Writer) error {
		return l.store.ReadPart(older, func(x io.Reader) error {
			return l.store.ReadPart(newer, func(y io.Reader) error { return projection.MergeSnapshots(w, x, y, b.key) })
		})
	})
	if err != nil {
		if l.store.Err() == nil { // a damaged part
			l.log.Warn("parts of the state cannot be merged; the next opening will fold the log", "error", err)
			b.frozen = true
			return nil
		}
		return err
	}
	b.parts = b.parts[:n-2]
	return l.listPart(older.After, newer.Seq)
}

// saveState writes down the rest of the state. Nothing else uses it any more.
func (l *Ledger) saveState() error {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	select {
	case c := <-l.changes:
		if err := l.writePart(done, c); err != nil {
			return err
		}
	default:
	}
	c, err := l.state.TakeChanges()
	if err != nil || c.Seq == c.After {
		return err
	}
	return l.writePart(done, handed{c, l.stateKey})
}

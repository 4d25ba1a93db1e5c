package ledger

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

// What a payload.erased says, or a key.rotated of a seal key, is done once it is
// durable, by a goroutine of its own and in order, and only then is its asker answered. What a crash leaves
// undone is done at the next opening: the store notes how far it has come.

// erasing is one erasure to be carried out, and whom to tell.
type erasing struct {
	projection.Erasure
	seal  uint64 // or the number of a new seal key, to wrap every data key anew
	job   *job
	reply *wire.Reply
}

// erasingQueueMax is how many are answered later; beyond them an admin is refused
// before anything is judged, so that nobody else's answer waits.
const erasingQueueMax = 64

// tooManyErasures refuses a job that would be one more erasure than are carried
// out behind.
func (l *Ledger) tooManyErasures(j *job) bool {
	if j.proposal == nil || j.proposal.Request == nil || l.erasing.Load() < erasingQueueMax {
		return false
	}
	switch b := j.proposal.Request.Body.(type) {
	case *wire.PayloadErase:
		if b.DryRun {
			return false
		}
	case *wire.KeyRotate:
		if b.Key != events.KeySeal {
			return false
		}
	default:
		return false
	}
	if _, recorded := l.state.Operation(j.proposal.Subject, j.proposal.Request.OperationID); recorded {
		return false // a retry
	}
	j.refused = reason.Overloaded
	return true
}

// handErasure reports whether j's answer waits for an erasure, which is then queued.
func (l *Ledger) handErasure(j *job, r *wire.Reply) bool {
	switch {
	case j.newSeal() != 0:
		l.erasures <- &erasing{seal: j.newSeal(), job: j, reply: r}
		return true
	case !j.erases():
		return false
	}
	body := j.outcome.Effects[0].Body.(*events.PayloadErased)
	l.erasures <- &erasing{Erasure: projection.Erasure{Seq: j.sealed.event.Seq + 1, PayloadErased: *body}, job: j, reply: r}
	return true
}

func (j *job) erases() bool {
	return j.outcome != nil && j.outcome.Erased != nil && len(j.outcome.Effects) > 0
}

// eraseAll carries out what is handed over, until that is closed.
func (l *Ledger) eraseAll() {
	for e := range l.erasures {
		l.eraseOne(e)
		l.erasing.Add(-1)
	}
}

func (l *Ledger) eraseOne(e *erasing) {
	err := l.Err()
	switch {
	case err != nil:
	case e.seal != 0:
		err = l.wrapAnew(e.seal)
	default:
		err = l.carryOut(&e.Erasure)
	}
	switch {
	case errors.Is(err, store.ErrPending) && e.seal != 0:
		l.log.Warn("the old seal key stays until old files are gone; the next opening looks again", "number", e.seal, "error", err)
	case errors.Is(err, store.ErrPending):
		l.log.Warn("erased bytes are not off the disk yet; the next opening looks again", "under", e.Seq, "error", err)
		e.reply.Erased.Pending = true
	case err != nil:
		l.fail(err)
		e.job.finish(notKnown)
		return
	}
	e.job.finish(answerOf(e.reply))
}

// finishErasures carries out what an earlier run of the program has left undone.
func (l *Ledger) finishErasures() error {
	purged, err := l.store.Purged()
	if err != nil {
		return err
	}
	l.erasedTo.Store(purged)
	all := l.state.Erasures()
	for i := range all {
		if all[i].Seq <= purged {
			continue
		}
		switch err := l.carryOut(&all[i]); {
		case errors.Is(err, store.ErrPending):
			l.log.Warn("erased bytes are not off the disk yet", "under", all[i].Seq, "error", err)
		case err != nil:
			return err
		}
	}
	return nil
}

// carryOut destroys what an erasure is of. It may be called again.
func (l *Ledger) carryOut(e *projection.Erasure) (err error) {
	out := store.Erasure{Payloads: e.Seqs}
	if e.Owner != "" {
		if out, err = l.eraseOwner(e); err != nil {
			return err
		}
	}
	if err := l.store.Erase(out); err != nil {
		return err
	}
	l.values.clear()
	l.sealer.forget(out.Keys)
	if err := l.store.Purge(e.Seq); err != nil {
		return err
	}
	l.erasedTo.Store(e.Seq)
	return nil
}

// eraseStretch is how many bytes of an owner's payloads are deleted or sealed anew
// at a time. Tests change it.
var eraseStretch = 4 << 20

// eraseOwner finds an owner's payloads: those to be erased, and those to be kept,
// sealed anew under the data key that has taken the place of its old ones. It
// returns the last of them, with the keys, after which none of them opens.
func (l *Ledger) eraseOwner(e *projection.Erasure) (out store.Erasure, err error) {
	names, err := l.store.DataKeys()
	if err != nil {
		return out, err
	}
	var keys []string
	for _, name := range names {
		if owner, since := keyOwner(name); owner == e.Owner && since < e.Seq {
			keys = append(keys, name)
		}
	}
	held := 0
	err = l.store.EachPayload(1, e.Seq-1, func(seq uint64, record []byte) error {
		if name, sealed := sealedUnder(record); !sealed || !slices.Contains(keys, name) {
			return nil
		}
		event, _, err := l.event(seq)
		switch {
		case err != nil:
		case e.Covers(&event):
			out.Payloads = append(out.Payloads, seq)
		default:
			err = l.sealAnew(&out, e, seq, record)
		}
		if held += len(record); err != nil || held < eraseStretch {
			return err
		}
		err = l.store.Erase(out)
		out, held = store.Erasure{}, 0
		return err
	})
	out.Keys = keys
	return out, err
}

// sealAnew puts a payload that is kept under the owner's next data key.
func (l *Ledger) sealAnew(out *store.Erasure, e *projection.Erasure, seq uint64, record []byte) error {
	salt, b, err := l.sealer.open(seq, record)
	if errors.Is(err, ErrPayload) { // it was damaged before: it stays as it is
		l.log.Error("a payload that is kept does not open", "seq", seq, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	sealed, err := l.sealer.sealUnder(dataKeyName(e.Owner, e.Seq), seq, salt, b, l.store)
	if err != nil {
		return err
	}
	out.Records = append(out.Records, store.Payload{Seq: seq, Record: sealed})
	return nil
}

// dataKeyName is the name of the data key that an owner has since an erasure; the
// first has the owner's. It never comes again, so that what was sealed under a
// key that is destroyed opens under no other.
func dataKeyName(owner string, since uint64) string {
	if since == 0 {
		return owner
	}
	return owner + "#" + strconv.FormatUint(since, 10)
}

func keyOwner(name string) (owner string, since uint64) {
	owner, text, renewed := strings.Cut(name, "#")
	if renewed {
		since, _ = strconv.ParseUint(text, 10, 64)
	}
	return owner, since
}

// sealedUnder is the name of the data key of a sealed payload record.
func sealedUnder(record []byte) (name string, ok bool) {
	if len(record) < 2 || record[0] != payloadSealed || len(record) < 2+int(record[1]) {
		return "", false
	}
	return string(record[2 : 2+record[1]]), true
}

// renew has an owner's payloads sealed under another data key from here on.
func (s *sealer) renew(owner string, since uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current[owner] = dataKeyName(owner, since)
}

// name is the name of the data key that an owner's payloads are sealed under.
func (s *sealer) name(owner string) string {
	if name, ok := s.current[owner]; ok {
		return name
	}
	return owner
}

// forget drops data keys that are destroyed.
func (s *sealer) forget(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.keys, name)
	}
}

// sealUnder seals a payload of an earlier event again, apart from the writer. A
// data key that it makes is on disk before anyone else may seal under it.
func (s *sealer) sealUnder(name string, seq uint64, salt [events.SaltLen]byte, b []byte, st *store.Store) ([]byte, error) {
	if err := s.awaitStored(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key, err := s.existing(name)
	if err != nil {
		return nil, err
	}
	if key == nil {
		var wrapped []byte
		if key, wrapped, err = s.newKey(name, rand.Reader); err == nil {
			err = st.Erase(store.Erasure{NewKeys: map[string][]byte{name: wrapped}})
		}
		if err != nil {
			delete(s.keys, name)
			return nil, fmt.Errorf("data key of %s: %w", name, err)
		}
	}
	record := append([]byte{payloadSealed, byte(len(name))}, name...)
	sealed, err := encryptWith(rand.Reader, key, append(salt[:len(salt):len(salt)], b...), s.place(seq))
	return append(record, sealed...), err
}

// awaitStored waits, where the writer has just made the data key of a name, until
// it is handed to the store: what is sealed under it must not be there first.
func (s *sealer) awaitStored(name string) error {
	for end := time.Now().Add(storedPatience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		made := s.keys[name] != nil
		_, stored, err := s.fetch(name)
		s.mu.Unlock()
		switch {
		case err != nil:
			return err
		case stored || !made:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("data key of %s: it was made and is not stored", name)
		}
	}
}

const storedPatience = 30 * time.Second

// sealedOrDurable is an event of the log, on disk yet or not; nil for one that is
// not in it.
func (l *Ledger) sealedOrDurable(w *sealing, seq uint64) (*events.Event, error) {
	inFlight := [][]sealedEvent{w.sealed}
	for _, b := range l.flying {
		inFlight = append(inFlight, b.sealed)
	}
	for _, sealed := range inFlight {
		if n := len(sealed); n > 0 && sealed[0].event.Seq <= seq && seq <= sealed[n-1].event.Seq {
			return &sealed[seq-sealed[0].event.Seq].event, nil
		}
	}
	if seq > l.reads.Durable() {
		return nil, nil
	}
	e, _, err := l.event(seq)
	return &e, err
}

// Package witness has others cosign a log's checkpoints: it submits them to
// C2SP tlog-witness servers with proof that the log only grew, verifies what
// comes back, and keeps it on disk before anybody sees it. Nothing waits for a
// witness: one that is away or refuses is an alarm, and the log goes on.
//
// First call: New; then Run.
package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/store"
)

// The times of a submitter, unless Options say otherwise.
const (
	Every     = 10 * time.Second // between submissions of a log that grows
	Republish = 10 * time.Minute // of one that does not: a cosignature also says that the log was there then
)

// Options say who cosigns what.
type Options struct {
	Policy *audit.WitnessPolicy
	Dir    string                                     // where cosigned checkpoints are kept; made if need be
	Note   func() []byte                              // the last signed checkpoint
	Hashes func(indexes []int64) ([]tlog.Hash, error) // of the log's tree, by tlog.StoredHashIndex
	Every  time.Duration                              // 0 for the constant
	Log    *slog.Logger
}

// State is how a witness answered last.
type State string

// States of a witness.
const (
	Waiting     State = "waiting"     // not asked yet
	Cosigned    State = "cosigned"    //
	Unavailable State = "unavailable" // no answer, or one that may be another next time
	Refused     State = "refused"     // it holds that this log is not what it saw, or does not know it
)

// Status is what is known of one witness.
type Status struct {
	Label string    `json:"name"`
	URL   string    `json:"url,omitempty"`
	State State     `json:"state"`
	Size  uint64    `json:"size"` // of the last checkpoint it cosigned
	At    time.Time `json:"at"`   // when it did
	Why   string    `json:"why,omitempty"`
}

// Stats are counts since the start, and where the quorum stands.
type Stats struct {
	Witnesses                      []Status
	Cosigned, Unavailable, Refused uint64 // answers
	Quorum                         uint64 // size of the last checkpoint with enough cosignatures
	QuorumAt                       time.Time
}

// Submitter has the checkpoints of one log cosigned.
type Submitter struct {
	o       Options
	client  *http.Client
	current atomic.Pointer[[]byte] // the newest cosigned checkpoint, as it lies on disk

	mu    sync.Mutex
	stats Stats
}

// The files in Options.Dir, beside <key id>.note for each witness: the last
// checkpoint it cosigned, whole.
const (
	currentFile = "checkpoint" // the newest with any cosignature
	quorumFile  = "quorum"     // the newest with enough of them
)

// New reads what is on disk.
func New(o Options) (*Submitter, error) {
	if o.Every == 0 {
		o.Every = Every
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	s := &Submitter{o: o, client: newClient()}
	var err error
	if s.stats.Witnesses, err = Read(o.Dir, o.Policy); err != nil {
		return nil, err
	}
	if b, err := os.ReadFile(filepath.Join(o.Dir, currentFile)); err == nil {
		s.current.Store(&b)
	}
	if b, err := os.ReadFile(filepath.Join(o.Dir, quorumFile)); err == nil && s.met(b) {
		s.stats.Quorum, s.stats.QuorumAt = audit.SizeOf(b), s.newest(b)
	}
	return s, nil
}

// Read tells of each witness of a policy what dir holds of it.
func Read(dir string, p *audit.WitnessPolicy) ([]Status, error) {
	list := make([]Status, len(p.Witnesses))
	for i, w := range p.Witnesses {
		list[i] = Status{Label: w.Label, URL: w.URL, State: Waiting}
		b, err := os.ReadFile(noteFile(dir, w.Witness))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("witness: %w", err)
		}
		at, err := w.Cosigned(b)
		if err != nil {
			return nil, fmt.Errorf("witness: %s: %w", noteFile(dir, w.Witness), err)
		}
		list[i].State, list[i].Size, list[i].At = Cosigned, audit.SizeOf(b), at
	}
	return list, nil
}

func noteFile(dir string, w *audit.Witness) string { return filepath.Join(dir, w.ID()+".note") }

// Run submits until ctx ends.
func (s *Submitter) Run(ctx context.Context) {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for {
		if note := s.o.Note(); note != nil {
			s.Submit(ctx, note)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Submit has one checkpoint cosigned by every witness that takes checkpoints
// and has not cosigned it lately, and keeps what they give.
func (s *Submitter) Submit(ctx context.Context, note []byte) {
	size := audit.SizeOf(note)
	lines := make([][]byte, len(s.o.Policy.Witnesses))
	var asking sync.WaitGroup
	for i, w := range s.o.Policy.Witnesses {
		s.mu.Lock()
		st := s.stats.Witnesses[i]
		s.mu.Unlock()
		if w.URL == "" || size == 0 || st.State == Cosigned && st.Size == size && time.Since(st.At) < Republish {
			continue
		}
		asking.Go(func() { lines[i] = s.witness(ctx, i, st.Size, note) })
	}
	asking.Wait()
	s.keep(note, lines)
}

// witness asks one witness and returns its line, nil if it gave none.
func (s *Submitter) witness(ctx context.Context, i int, old uint64, note []byte) []byte {
	w := s.o.Policy.Witnesses[i]
	cosigned, at, state, err := s.cosign(ctx, w, old, note)
	if err == nil {
		err = store.ReplaceFile(noteFile(s.o.Dir, w.Witness), cosigned)
		if err != nil {
			state = Unavailable
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.stats.Witnesses[i]
	before := st.State
	st.State, st.Why = state, ""
	switch state {
	case Cosigned:
		s.stats.Cosigned++
		st.Size, st.At = audit.SizeOf(note), at
		return cosigned[len(note):]
	case Refused:
		s.stats.Refused++
		st.Why = err.Error()
		s.o.Log.Error("a witness refuses to cosign: it does not see the log that we keep", "witness", w.Label, "error", err)
	default:
		s.stats.Unavailable++
		if st.Why = err.Error(); before != Unavailable {
			s.o.Log.Warn("a witness cannot be asked", "witness", w.Label, "error", err)
		}
	}
	return nil
}

// keep writes the checkpoint with its cosignatures, and only then shows it.
func (s *Submitter) keep(note []byte, lines [][]byte) {
	cosigned := bytes.Join(append([][]byte{note}, lines...), nil)
	if len(cosigned) == len(note) {
		return
	}
	if before := s.Checkpoint(); sameText(before, note) {
		cosigned = s.merge(before, note, lines)
	}
	if err := store.ReplaceFile(filepath.Join(s.o.Dir, currentFile), cosigned); err != nil {
		s.o.Log.Error("a cosigned checkpoint cannot be kept", "error", err)
		return
	}
	s.current.Store(&cosigned)
	if !s.met(cosigned) {
		return
	}
	if err := store.ReplaceFile(filepath.Join(s.o.Dir, quorumFile), cosigned); err != nil {
		s.o.Log.Error("a cosigned checkpoint cannot be kept", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Quorum, s.stats.QuorumAt = audit.SizeOf(note), s.newest(cosigned)
}

// merge adds to the new lines those that other witnesses gave for the same
// checkpoint before.
func (s *Submitter) merge(before, note []byte, lines [][]byte) []byte {
	out := bytes.Clone(note)
	for i, w := range s.o.Policy.Witnesses {
		if lines[i] != nil {
			out = append(out, lines[i]...)
		} else if with, _, err := w.AddCosignatures(note, before); err == nil {
			out = append(out, with[len(note):]...)
		}
	}
	return out
}

func sameText(a, b []byte) bool {
	x, _, okX := bytes.Cut(a, []byte("\n\n"))
	y, _, okY := bytes.Cut(b, []byte("\n\n"))
	return okX && okY && bytes.Equal(x, y)
}

func (s *Submitter) met(signed []byte) bool {
	return s.o.Policy.Met(func(w *audit.Witness) bool { _, err := w.Cosigned(signed); return err == nil })
}

func (s *Submitter) newest(signed []byte) (at time.Time) {
	for _, w := range s.o.Policy.Witnesses {
		if t, err := w.Cosigned(signed); err == nil && t.After(at) {
			at = t
		}
	}
	return at
}

// Checkpoint is the newest checkpoint that any witness cosigned, nil if there
// is none. It is on disk. Safe for concurrent use.
func (s *Submitter) Checkpoint() []byte {
	if b := s.current.Load(); b != nil {
		return *b
	}
	return nil
}

// Stats are for metrics and readiness. Safe for concurrent use.
func (s *Submitter) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Witnesses = append([]Status(nil), st.Witnesses...)
	return st
}

package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A Part is a file DIR/state/<after>-<seq> with a piece of the state folded from
// the log: what the events after After up to Seq came to. Parts stand on one
// another, the first on nothing. They lie beside the database, not in it, so
// that a large one does not compete with the log's commits; each is there whole
// or not at all, and all may be lost without harm. What they say is the caller's.
type Part struct {
	After, Seq uint64
	Size       int64
}

func (p Part) name() string { return fmt.Sprintf("%d-%d", p.After, p.Seq) }

func partOf(name string) (p Part, ok bool) {
	_, err := fmt.Sscanf(name, "%d-%d", &p.After, &p.Seq)
	return p, err == nil && p.After < p.Seq && p.name() == name
}

func (s *Store) partPath(name string) string {
	return s.fs.PathJoin(stateDir(s.fs, s.dir), name)
}

func stateDir(sys vfs.FS, dir string) string { return sys.PathJoin(dir, "state") }

const (
	partTmp       = "tmp"
	partSyncBytes = 1 << 20 // written at a time, so that the log's syncs do not wait behind a whole part
)

// PutPart writes a part, durably when it returns. Its events must be durable. An
// error of write is returned and leaves nothing behind; any other stops the
// store.
func (s *Store) PutPart(after, seq uint64, write func(io.Writer) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	switch {
	case s.frozen != nil:
		return ErrReadOnly
	case after >= seq:
		return fmt.Errorf("part of the state after %d up to %d: nothing lies between", after, seq)
	case seq > s.Durable():
		return fmt.Errorf("part of the state up to %d: %w, which ends at %d", seq, ErrNotFound, s.Durable())
	}
	p := Part{After: after, Seq: seq}
	refused, err := s.putPart(p, write)
	if err != nil {
		return s.fault.set(fmt.Errorf("part %s of the state: %w", p.name(), err))
	}
	if refused != nil {
		return refused
	}
	return s.Err()
}

func (s *Store) putPart(p Part, write func(io.Writer) error) (refused, err error) {
	dir, tmp := stateDir(s.fs, s.dir), s.partPath(partTmp)
	if _, err := s.fs.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(s.fs.MkdirAll(dir, 0o700), syncDir(s.fs, s.dir)); err != nil {
			return nil, err
		}
	}
	f, err := s.fs.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: partSyncBytes})
	out := &partWriter{out: f}
	refused = write(out)
	if refused == nil || out.err != nil {
		err = errors.Join(out.err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if refused != nil {
		return refused, s.fs.Remove(tmp)
	}
	if err := s.fs.Rename(tmp, s.partPath(p.name())); err != nil {
		return nil, err
	}
	return nil, syncDir(s.fs, dir)
}

// partWriter tells an error of the file from one of whoever writes to it.
type partWriter struct {
	out io.Writer
	err error
}

// Write implements io.Writer.
func (w *partWriter) Write(b []byte) (n int, err error) {
	n, err = w.out.Write(b)
	w.err = errors.Join(w.err, err)
	return n, err
}

// Parts lists the parts that lead from nothing to a state within the durable
// log, each standing on the one before it.
func (s *Store) Parts() ([]Part, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	if s.frozen != nil {
		return chain(s.parts.list, s.Durable()), s.parts.err
	}
	parts, _, err := listParts(s.fs, s.dir)
	return chain(parts, s.Durable()), err
}

// chain picks from each place the part that leads furthest.
func chain(parts []Part, durable uint64) (list []Part) {
	at := uint64(0)
	for {
		var next Part
		for _, p := range parts {
			if p.After == at && p.Seq <= durable && p.Seq > next.Seq {
				next = p
			}
		}
		if next.Seq == 0 {
			return list
		}
		list, at = append(list, next), next.Seq
	}
}

// listParts lists the parts of a data directory, and whatever else lies there.
func listParts(sys vfs.FS, dir string) (parts []Part, others []string, err error) {
	names, err := sys.List(stateDir(sys, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("parts of the state: %w", err)
	}
	for _, name := range names {
		p, ok := partOf(name)
		if !ok {
			others = append(others, name)
			continue
		}
		info, err := sys.Stat(sys.PathJoin(stateDir(sys, dir), name))
		if errors.Is(err, fs.ErrNotExist) { // merged and gone
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("part %s of the state: %w", name, err)
		}
		p.Size = info.Size()
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(p, q Part) int { return cmp.Compare(p.After, q.After) })
	return parts, others, nil
}

// ReadPart gives read a part from its first byte to its last.
func (s *Store) ReadPart(p Part, read func(io.Reader) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		f, ok := s.parts.files[p.name()]
		if !ok {
			return fmt.Errorf("part %s of the state: %w", p.name(), fs.ErrNotExist)
		}
		return read(io.NewSectionReader(f, 0, p.Size))
	}
	f, err := s.fs.Open(s.partPath(p.name()), vfs.SequentialReadsOption)
	if err != nil {
		return fmt.Errorf("part %s of the state: %w", p.name(), err)
	}
	return errors.Join(read(f), f.Close())
}

// DropParts removes every part but those to keep, and what was left half
// written. A failure stops the store.
func (s *Store) DropParts(keep []Part) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		return ErrReadOnly
	}
	parts, others, err := listParts(s.fs, s.dir)
	for _, p := range parts {
		if !slices.ContainsFunc(keep, func(k Part) bool { return k.name() == p.name() }) {
			others = append(others, p.name())
		}
	}
	for _, name := range others {
		if _, isPart := partOf(name); isPart || name == partTmp { // anything else is not ours
			err = errors.Join(err, s.fs.Remove(s.partPath(name)))
		}
	}
	if err != nil {
		return s.fault.set(fmt.Errorf("remove parts of the state: %w", err))
	}
	return s.Err()
}

// heldParts are the parts open for a reader, so that they stay when the writer
// merges them.
type heldParts struct {
	list   []Part
	files  map[string]vfs.File
	others []string // what else lies beside them
	err    error    // why they cannot be read, which is no reason not to read the log
}

func holdParts(sys vfs.FS, dir string) *heldParts {
	for try := 1; ; try++ {
		h := &heldParts{files: map[string]vfs.File{}}
		h.list, h.others, h.err = listParts(sys, dir)
		for _, p := range h.list {
			f, err := sys.Open(sys.PathJoin(stateDir(sys, dir), p.name()))
			if h.err = errors.Join(h.err, err); err != nil {
				break
			}
			h.files[p.name()] = f
		}
		if !errors.Is(h.err, fs.ErrNotExist) || try == freezeTriesMax {
			return h
		}
		h.close() // merged meanwhile
		time.Sleep(freezePause)
	}
}

func (h *heldParts) close() {
	for _, f := range h.files {
		f.Close()
	}
}

// dropOldSnapshot removes what earlier releases kept in the database in the
// place of parts.
func (s *Store) dropOldSnapshot() error {
	from, to := []byte{oldSnapshotKeys}, []byte{oldSnapshotKeys + 1}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	found := it.First()
	if err := it.Close(); err != nil || !found {
		return err
	}
	return s.db.DeleteRange(from, to, pebble.NoSync)
}

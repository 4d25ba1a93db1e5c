package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Init makes the data directory dir for a new log named origin. It builds in a
// temporary directory beside dir, where fill appends event 1 and waits for it,
// and writes keys and anchor (durably) under tmp or elsewhere; then it syncs
// everything and renames. Whatever fails, dir is as before: absent or empty.
//
// It refuses with ErrNotEmpty a directory that holds anything.
//
// The database is closed and opened again before fill, because the first WAL
// of a new Pebble is written in a form that hides damage.
func Init(dir string, opts Options, origin string, fill func(tmp string, s *Store) error) (err error) {
	sys := opts.fs()
	if dir, err = absolute(sys, dir); err != nil {
		return err
	}
	defer wrap(&err, "init %s", dir)
	if !events.ValidOrigin(origin) {
		return fmt.Errorf("origin %q: want 1 to %d printable characters without space or plus", origin, events.OriginBytesMax)
	}
	present, err := vacant(sys, dir)
	if err != nil {
		return err
	}
	if err := makeParents(sys, sys.PathDir(dir)); err != nil {
		return err
	}
	var id [8]byte
	rand.Read(id[:])
	tmp := dir + ".init-" + hex.EncodeToString(id[:])
	if err := sys.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sys.RemoveAll(tmp))
		}
	}()
	if err := create(sys, tmp, opts, origin); err != nil {
		return err
	}
	if err := fillNew(tmp, opts, fill); err != nil {
		return err
	}
	if err := syncTree(sys, tmp); err != nil {
		return err
	}
	if present { // rename replaces no directory
		if err := sys.Remove(dir); err != nil {
			return fmt.Errorf("%w (if it is a mount point, name a directory below it)", err)
		}
	}
	if err := sys.Rename(tmp, dir); err != nil {
		return err
	}
	return syncDir(sys, sys.PathDir(dir))
}

// create makes the empty database and says in it what it is.
func create(sys vfs.FS, tmp string, opts Options, origin string) error {
	f := newFault(opts.Log)
	p := opts.pebble(sys, f, false)
	p.ErrorIfNotExists, p.ErrorIfExists = false, true
	db, err := openPebble(dbDir(sys, tmp), p, f)
	if err != nil {
		return err
	}
	b := db.NewBatch()
	err = errors.Join(
		b.Set(nameKey(metaKeys, "format"), []byte(format), nil),
		b.Set(nameKey(metaKeys, "origin"), []byte(origin), nil),
		b.Commit(pebble.Sync))
	return errors.Join(err, db.Close(), f.err())
}

func fillNew(tmp string, opts Options, fill func(string, *Store) error) error {
	sys := opts.fs()
	lock, err := lockDir(sys, dbDir(sys, tmp))
	if err != nil {
		return err
	}
	s, err := openWriter(tmp, opts, lock)
	if err != nil {
		return err
	}
	err = fill(tmp, s)
	if err == nil && s.Durable() == 0 {
		err = errors.New("event 1 was not written")
	}
	return errors.Join(err, s.Close())
}

// AnchorCheck is what Open compares a log with before it writes anything.
type AnchorCheck struct {
	Note     []byte        // the anchor: the last signed checkpoint; none is refused
	Verifier note.Verifier // the log's checkpoint key

	Others []note.Verifier // its other ones, where it has had several

	// Look, if any, is given the log opened for reading, once the anchor fits,
	// for what else is known of it (the stream's tail). Its error refuses.
	Look func(s *Store) error
}

// Open opens the log in dir for writing. It locks the directory, opens it for
// reading only, compares it with the anchor, and only when that fits opens it
// for writing; until then nothing on disk has been touched.
//
// It refuses with ErrLocked beside another writer, ErrNoAnchor without a
// usable anchor, ErrBehindAnchor when events are missing, ErrDiverged when the
// log is another one, ErrCorrupt when bytes and hashes disagree, ErrFormat,
// ErrStorageLow, and fs.ErrNotExist where there is no log: Open never creates.
// ErrStopped says that storage failed on the way; the process must end.
func Open(dir string, opts Options, anchor AnchorCheck) (_ *Store, err error) {
	sys := opts.fs()
	if dir, err = absolute(sys, dir); err != nil {
		return nil, err
	}
	defer wrap(&err, "open %s", dir)
	lock, err := lockDir(sys, dbDir(sys, dir))
	if err != nil {
		return nil, err
	}
	seen, err := look(dir, opts, anchor)
	if err == nil {
		err = roomToOpen(sys, dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w (nothing was changed)", err), lock.release())
	}
	s, err := openWriter(dir, opts, lock)
	if err != nil {
		return nil, err
	}
	if got := *s.head.Load(); got != seen {
		return nil, errors.Join(fmt.Errorf("%w: it ended at %d (%s) when looked at and ends at %d (%s) now",
			ErrCorrupt, seen.size, seen.leaf, got.size, got.leaf), s.Close())
	}
	return s, nil
}

// look is the read-only look at the log before it is opened for writing.
func look(dir string, opts Options, anchor AnchorCheck) (head, error) {
	s, err := openFrozen(dir, opts, true)
	if err != nil {
		return head{}, err
	}
	defer s.Close()
	if err := s.fits(anchor); err != nil {
		return head{}, err
	}
	if anchor.Look != nil {
		if err := anchor.Look(s); err != nil {
			return head{}, err
		}
	}
	return *s.head.Load(), nil
}

// roomToOpen refuses a nearly full disk, on which Pebble's own opening hangs.
func roomToOpen(sys vfs.FS, dir string) error {
	u, err := sys.GetDiskUsage(dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("free space: %w", err)
	}
	if u.AvailBytes < openFreeMin {
		return fmt.Errorf("%w: %d bytes, opening needs %d", ErrStorageLow, u.AvailBytes, openFreeMin)
	}
	return nil
}

// fits compares the log with the anchor, and everything from 256 events before
// the anchor or from the last flush on, whichever is earlier, with its own
// hashes: below, the anchor's root vouches for the tree, and a log that ends
// in the WAL can have a hole only where the tables end.
func (s *Store) fits(anchor AnchorCheck) error {
	if anchor.Note == nil || anchor.Verifier == nil {
		return ErrNoAnchor
	}
	cp, err := ParseCheckpoint(anchor.Note, append([]note.Verifier{anchor.Verifier}, anchor.Others...)...)
	if err != nil {
		return fmt.Errorf("%w that can be used: %w", ErrNoAnchor, err)
	}
	size, _ := s.Head()
	switch {
	case cp.Origin != s.origin:
		return fmt.Errorf("%w: it names %q, the log is %q", ErrDiverged, cp.Origin, s.origin)
	case cp.Size == 0:
		return fmt.Errorf("%w: it covers no event", ErrNoAnchor)
	case size < cp.Size:
		return fmt.Errorf("%w: log ends at %d, anchor says %d: events %d–%d are lost",
			ErrBehindAnchor, size, cp.Size, size+1, cp.Size)
	}
	flushed, err := s.lastEvent(true)
	if err != nil {
		return err
	}
	from := min(cp.Size, flushed.size)
	from -= min(from, rehashBefore)
	_, root, err := s.rehash(from+1, size, cp.Size)
	if err != nil {
		return err
	}
	if root != cp.Root {
		return fmt.Errorf("%w: root at %d is %s, anchor says %s", ErrDiverged, cp.Size, root, cp.Root)
	}
	return nil
}

// rehashBefore is how many events below the anchor are hashed again at open.
const rehashBefore = 256

// openWriter opens for writing under lock, which it takes over.
func openWriter(dir string, opts Options, lock *dirLock) (*Store, error) {
	sys := opts.fs()
	s := &Store{fault: newFault(opts.Log), dir: dir, fs: sys, lock: lock}
	var err error
	if s.pebble, err = pebble.LockDirectory(dbDir(sys, dir), sys); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrLocked, err), lock.release())
	}
	p := opts.pebble(sys, s.fault, false)
	p.Lock = s.pebble
	if s.db, err = openPebble(dbDir(sys, dir), p, s.fault); err != nil {
		if s.Err() == nil { // a stopped Pebble may not be done with the directory
			err = errors.Join(err, s.pebble.Close(), lock.release())
		}
		return nil, err
	}
	if err = s.load(); err == nil {
		size, _ := s.Head()
		s.edge, err = s.storedEdge(size)
	}
	if err == nil {
		err = s.dropOldSnapshot()
	}
	if err == nil {
		err = s.useFormat()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenReadOnly opens the log in dir as it is at this moment, for verify and
// export. It writes nothing, takes no lock and leaves a writer alone, whether
// one is at work or not; it holds one descriptor per table until Close. It
// checks nothing but that there is a log: reads say what is wrong with it.
//
// Beside a writer its end may be some events past the writer's durable one.
func OpenReadOnly(dir string, opts Options) (_ *Store, err error) {
	sys := opts.fs()
	if dir, err = absolute(sys, dir); err != nil {
		return nil, err
	}
	defer wrap(&err, "open %s for reading", dir)
	db := dbDir(sys, dir)
	before := ""
	for try := 1; ; try++ {
		s, err := openFrozen(dir, opts, false)
		if err == nil || errors.Is(err, ErrFormat) || errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		// A writer may have taken a file away. When nothing moves, it was not that.
		now := dirState(sys, db)
		if now == before || try == freezeTriesMax {
			return nil, err
		}
		before = now
		time.Sleep(freezePause)
	}
}

const (
	freezeTriesMax = 100 // beside a busy writer a try fails now and then
	freezePause    = 5 * time.Millisecond
)

// openFrozen opens the log as it is on disk at this moment, in one try. locked is
// whether the caller has locked it.
func openFrozen(dir string, opts Options, locked bool) (*Store, error) {
	sys := opts.fs()
	parts := holdParts(sys, dir) // before the log, which only grows, so that they stand within it
	frozen, err := freeze(sys, dbDir(sys, dir), locked)
	if err != nil {
		parts.close()
		return nil, err
	}
	s := &Store{fault: newFault(opts.Log), dir: dir, fs: sys, frozen: frozen, parts: parts}
	if s.db, err = openPebble(frozenDir, opts.pebble(frozen, s.fault, true), s.fault); err != nil {
		s.release()
		if failed := frozen.failed.Load(); failed != nil {
			return nil, fmt.Errorf("read a log: %w", *failed)
		}
		return nil, fmt.Errorf("%w: %v", ErrCorrupt, err) // no %w: a file missing inside is not a log missing
	}
	if err := s.load(); err != nil {
		s.db.Close()
		s.release()
		return nil, err
	}
	return s, nil
}

// openPebble opens a database and makes every way in which Pebble says no an
// error: a panic on damaged files, and a fatal message after which it parks.
func openPebble(dir string, p *pebble.Options, f *fault) (*pebble.DB, error) {
	type result struct {
		db  *pebble.DB
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- result{nil, fmt.Errorf("pebble panicked: %v", r)}
			}
		}()
		db, err := pebble.Open(dir, p)
		done <- result{db, err}
	}()
	select {
	case r := <-done:
		return r.db, r.err
	case <-f.stopped:
		return nil, f.err()
	}
}

// load reads what the database says it is, and where the log ends.
func (s *Store) load() error {
	got, err := s.get(nameKey(metaKeys, "format"))
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: the format is not stated", ErrCorrupt)
	}
	if err != nil {
		return err
	}
	if string(got) != format && string(got) != firstFormat {
		return fmt.Errorf("%w: %q, this program reads %q and %q", ErrFormat, got, firstFormat, format)
	}
	origin, err := s.get(nameKey(metaKeys, "origin"))
	if err != nil {
		return fmt.Errorf("%w: origin: %w", ErrCorrupt, err)
	}
	s.origin = string(origin)
	end, err := s.lastEvent(false)
	if err != nil {
		return err
	}
	s.head.Store(&end)
	s.leaf = end.leaf
	return nil
}

// useFormat notes the format that is written from now on, so that an older
// release says that it does not know it, and not that hashes are missing.
func (s *Store) useFormat() error {
	key := nameKey(metaKeys, "format")
	got, err := s.get(key)
	if err != nil || string(got) == format {
		return err
	}
	return s.db.Set(key, []byte(format), pebble.Sync)
}

func dbDir(sys vfs.FS, dir string) string { return sys.PathJoin(dir, "db") }

// absolute makes a path on disk independent of the working directory.
func absolute(sys vfs.FS, dir string) (string, error) {
	if vfs.Root(sys) != vfs.Default {
		return strings.TrimRight(dir, "/"), nil
	}
	return filepath.Abs(dir)
}

func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...)
	}
}

// vacant reports whether dir exists, and refuses one that holds anything.
func vacant(sys vfs.FS, dir string) (present bool, err error) {
	names, err := sys.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case len(names) > 0:
		return true, ErrNotEmpty
	}
	return true, nil
}

// makeParents makes dir and what is missing above it, durably.
func makeParents(sys vfs.FS, dir string) error {
	var missing []string
	for d := dir; ; d = sys.PathDir(d) {
		if _, err := sys.Stat(d); err == nil || d == sys.PathDir(d) {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, d)
	}
	if err := sys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range missing {
		if err := syncDir(sys, sys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

// syncTree syncs every file and directory under dir, dir included.
func syncTree(sys vfs.FS, dir string) error {
	names, err := sys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := sys.PathJoin(dir, name)
		info, err := sys.Stat(p)
		if err != nil {
			return err
		}
		if info.IsDir() {
			err = syncTree(sys, p)
		} else {
			err = syncFile(sys.Open(p))
		}
		if err != nil {
			return err
		}
	}
	return syncDir(sys, dir)
}

func syncDir(sys vfs.FS, dir string) error { return syncFile(sys.OpenDir(dir)) }

func syncFile(f vfs.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

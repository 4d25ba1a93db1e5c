// Package store keeps one ledger's log in Pebble: the events' exact bytes, the
// hashes of the RFC 6962 tree over them, sealed payloads and wrapped data keys,
// and beside it parts of the state folded from it, which may be lost without
// harm. It is the only importer of Pebble.
//
// First call: Init once, then Open (the writer) or OpenReadOnly (verify and
// export, also beside a running writer).
//
// It promises that
//
//   - what Commit.Wait has confirmed survives a crash at any byte, and what is
//     on disk after one is a prefix of what was appended;
//   - no event, payload or tree hash above the durable position is ever
//     readable;
//   - Open compares the log with the anchor, a signed checkpoint outside the
//     database, before it writes a byte, because Pebble by itself opens a log
//     with a damaged WAL or MANIFEST as if nothing were missing, and then
//     deletes the files it no longer knows;
//   - one process at a time writes, whatever path it came by;
//   - after the first failure of storage every call fails with ErrStopped. There
//     is no repair in place: the process ends and the next Open reads what is
//     really there.
//
// It trusts its caller for the events themselves (form, seq, prev): it deals in
// bytes, sequence numbers and leaf hashes.
//
// # Keys
//
// Numbers are 8 bytes big-endian, so that the log only ever grows at the end
// of each range; a batch is written in ascending order of its keys.
//
//	'e' seq            an event's exact bytes
//	'h' index          the 32-byte hashes of tree nodes from index on, numbered
//	                   as in golang.org/x/mod/sumdb/tlog.StoredHashIndex: a
//	                   run of 1 to 512, as one batch completed them, which ends
//	                   where the next begins
//	'k' name           a wrapped data key, opaque here
//	'm' name           "format" and "origin", written by Init; "purged",
//	                   how far erased bytes are off the disk, and "purging",
//	                   where more of them lie until they are
//	'p' seq            the payload kept beside event seq, opaque here
package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Errors a caller branches on; all come wrapped with what was found.
var (
	ErrStopped      = errors.New("store stopped after a storage failure")
	ErrClosed       = errors.New("store is closed")
	ErrReadOnly     = errors.New("store is open for reading only")
	ErrLocked       = errors.New("another process writes this ledger")
	ErrNotEmpty     = errors.New("directory is not empty")
	ErrNotFound     = errors.New("not in the durable log")
	ErrCorrupt      = errors.New("log is damaged")
	ErrFormat       = errors.New("not a store of this format")
	ErrNoAnchor     = errors.New("no anchor")
	ErrBehindAnchor = errors.New("log is behind its anchor")
	ErrDiverged     = errors.New("log is not the one its anchor signed")
	ErrReplaced     = errors.New("data directory was replaced or removed")
	ErrStorageLow   = errors.New("too little free space")
)

// Options say where and how a store runs. The zero value is the disk, silent.
type Options struct {
	FS  vfs.FS       // nil is the operating system's
	Log *slog.Logger // nil discards; told of storage errors only, never of contents

	memTableBytes uint64 // tests make tables small; 0 is memTableBytes
	noCompactions bool   // tests keep them apart
}

const (
	format      = "ledgerd/2"
	firstFormat = "ledgerd/1" // every run of its tree hashes is of one

	hashRunMax = 512 // tree hashes under one key: a block's worth, and what a look for one has to read

	memTableBytes = 32 << 20 // a WAL is copied into memory when a log is read beside its writer

	blockBytes = 16 << 10 // some 30 events: a walk pays for each block, a look for the whole of one

	openFreeMin = 32 << 20 // opening flushes the WAL, and Pebble spins for ever on a full disk

	closePatience = 5 * time.Second // a stopped Pebble may never close
)

func (o Options) fs() vfs.FS {
	if o.FS == nil {
		return ordered(vfs.Default)
	}
	return ordered(o.FS)
}

// orderedFS syncs the directory before a marker file is made, so that a marker
// never reaches the disk ahead of the manifest it names. Pebble leaves that
// order to the file system; where it does not hold, a crash between the two
// would leave a database that cannot be opened. And it paces whoever writes tables.
type orderedFS struct {
	vfs.FS
	fresh *atomic.Int32 // above 0 while no file is to be written over
	pace  *pace
}

// Create implements vfs.FS.
func (o orderedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(o.PathBase(name), "marker.") {
		if err := syncDir(o, o.PathDir(name)); err != nil {
			return nil, err
		}
	}
	f, err := o.FS.Create(name, category)
	if err == nil && strings.HasSuffix(name, ".sst") {
		f = &pacedFile{File: f, pace: o.pace, at: time.Now()}
	}
	return f, err
}

// Unwrap implements vfs.FS.
func (o orderedFS) Unwrap() vfs.FS { return o.FS }

// pebble returns Pebble's options for fs, reporting to f. A writer's background
// errors stop it: Pebble itself would retry them for ever.
func (o Options) pebble(fs vfs.FS, f *fault, readOnly bool) *pebble.Options {
	p := &pebble.Options{
		FS:                 fs,
		Logger:             f,
		ReadOnly:           readOnly,
		ErrorIfNotExists:   true,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       memTableBytes,

		DisableAutomaticCompactions: o.noCompactions,

		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				f.background.Add(1)
				f.set(fmt.Errorf("background work: %w", err))
			},
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				f.set(fmt.Errorf("%w: %s: %w", ErrCorrupt, i.Path, i.Details))
			},
			WALCreated: func(i pebble.WALCreateInfo) { // Pebble panics next, without a reason
				if i.Err != nil {
					f.set(fmt.Errorf("start WAL %s: %w", i.Path, i.Err))
				}
			},
		},
	}
	if sys, ok := fs.(orderedFS); ok {
		p.EventListener.FlushBegin, p.EventListener.FlushEnd = sys.pace.begin, sys.pace.end
	}
	for i := range p.Levels {
		p.Levels[i].BlockSize = blockBytes
	}
	// A burst is taken up rather than stopped: writes wait for flushes and
	// compactions only far behind them.
	p.MemTableStopWritesThreshold, p.L0StopWritesThreshold = 4, 40
	// Of all keys only those of data keys come in no order. Their few tables may
	// overlap four deep before everything above them is written again.
	p.L0CompactionThreshold = 8
	// No table holds keys of two kinds. Each kind only grows at its end, so that
	// tables do not overlap, and what was flushed need not be written again soon.
	p.Experimental.SpanPolicyFunc = func(start []byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{}, []byte{start[0] + 1}, nil
	}
	p.Levels[0].Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
	if o.memTableBytes != 0 {
		p.MemTableSize = o.memTableBytes
	}
	if readOnly { // a reader hears of damage from the read itself, and may read on elsewhere
		p.EventListener.BackgroundError = func(err error) { f.Errorf("background work: %v", err) }
		p.EventListener.DataCorruption = func(i pebble.DataCorruptionInfo) { f.Errorf("damage in %s", i.Path) }
	}
	return p
}

// Store is an open log. Reading methods may be used by any number of
// goroutines; Append and Wait too, though a ledger has one writer.
type Store struct {
	dir    string // the data directory, absolute on disk
	fs     vfs.FS
	db     *pebble.DB
	origin string
	fault  *fault

	lock   *dirLock     // a writer's, nil in memory
	pebble *pebble.Lock // a writer's
	frozen *frozenFS    // a reader's
	parts  *heldParts   // a reader's

	head atomic.Pointer[head] // the durable end; only Wait moves it

	appendMu sync.Mutex
	edge     edge // the tree's right edge after the last append
	leaf     events.Hash
	last     *Commit // the last append
	buf      []byte  // for a key
	run      []byte  // of tree hashes

	waitMu sync.Mutex // Waits run one after another

	useMu  sync.Mutex
	closed bool
	uses   sync.WaitGroup // calls under way, for Close
}

// head is a position in the log: how many events, and the last one's leaf hash.
type head struct {
	size uint64
	leaf events.Hash
}

// fault remembers the first error after which a store cannot be trusted. It is
// also Pebble's logger.
type fault struct {
	log     *slog.Logger
	mu      sync.Mutex
	cause   error
	stopped chan struct{}

	background atomic.Uint64 // errors of the engine's own work
}

func newFault(log *slog.Logger) *fault {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &fault{log: log, stopped: make(chan struct{})}
}

// set stops the store because of err and returns the error callers get.
func (f *fault) set(err error) error {
	f.mu.Lock()
	if f.cause == nil {
		f.cause = err
		close(f.stopped)
		f.log.Error("store stopped", "error", err)
	}
	f.mu.Unlock()
	return f.err()
}

// err returns nil, or ErrStopped with the failure that stopped the store.
func (f *fault) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cause == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrStopped, f.cause)
}

func (f *fault) Infof(string, ...any) {}
func (f *fault) Errorf(format string, args ...any) {
	f.log.Error("pebble", "message", fmt.Sprintf(format, args...))
}

// Fatalf stops the store and parks the goroutine for ever: Pebble would go on
// to write after what it calls fatal, and spoil the MANIFEST for good. Only the
// owner of the process may end it.
func (f *fault) Fatalf(format string, args ...any) {
	f.set(fmt.Errorf("pebble: "+format, args...))
	select {}
}

// enter admits a call, which must leave; it refuses on a closed or stopped store.
func (s *Store) enter() error {
	s.useMu.Lock()
	defer s.useMu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.uses.Add(1)
	return nil
}

func (s *Store) leave() { s.uses.Done() }

// Err returns nil, or ErrStopped with the failure that stopped the store.
func (s *Store) Err() error { return s.fault.err() }

// Stopped is closed when the store fails. The owner of the process must end it
// then: an Append may be stuck in Pebble and never return.
func (s *Store) Stopped() <-chan struct{} { return s.fault.stopped }

// Origin is the log's name, as Init was given it.
func (s *Store) Origin() string { return s.origin }

// Head returns the durable log's size and its last event's leaf hash.
func (s *Store) Head() (size uint64, leaf events.Hash) {
	h := s.head.Load()
	return h.size, h.leaf
}

// Durable is the highest seq whose sync has returned, 0 in an empty log.
func (s *Store) Durable() uint64 { return s.head.Load().size }

// Free returns the bytes still free for this process on the log's file system.
func (s *Store) Free() (uint64, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	u, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		return 0, fmt.Errorf("free space of %s: %w", s.dir, err)
	}
	return u.AvailBytes, nil
}

// Check stops the store when the directory at its path is no longer the one it
// locked: somebody moved, removed or replaced it, and what is written now would
// be lost. Wait checks by itself; an idle writer calls this once a second.
func (s *Store) Check() error {
	if err := s.Err(); err != nil {
		return err
	}
	if err := s.lock.check(); err != nil {
		return s.fault.set(err)
	}
	return nil
}

// Checkpoint writes a consistent copy of the log to dir, which must hold none
// yet and then opens like any data directory; keys and anchor are the caller's
// to add. It is the only way to copy a live log.
func (s *Store) Checkpoint(dir string) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.frozen != nil {
		return ErrReadOnly
	}
	if err := s.fs.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("back up to %s: %w", dir, err)
	}
	if err := s.db.Checkpoint(dbDir(s.fs, dir), pebble.WithFlushedWAL()); err != nil {
		return fmt.Errorf("back up to %s: %w", dir, err)
	}
	return s.Err()
}

// Close waits for calls under way and closes the store. What was appended but
// not waited for may or may not be found at the next Open. A stopped store may
// be beyond closing; its lock is then held until the process ends.
func (s *Store) Close() error {
	s.useMu.Lock()
	closed := s.closed
	s.closed = true
	s.useMu.Unlock()
	if closed {
		return ErrClosed
	}
	done := make(chan error, 1)
	go func() {
		s.uses.Wait()
		done <- s.shut()
	}()
	if s.Err() == nil {
		return <-done
	}
	select {
	case err := <-done:
		return err
	case <-time.After(closePatience):
		return fmt.Errorf("close: %w", s.Err())
	}
}

func (s *Store) shut() error {
	err := s.db.Close()
	if s.pebble != nil {
		err = errors.Join(err, s.pebble.Close())
	}
	s.release()
	return errors.Join(err, s.lock.release())
}

// release lets go of the files that a reader holds.
func (s *Store) release() {
	if s.frozen != nil {
		s.frozen.close()
		s.parts.close()
	}
}

// The key ranges; see the package comment.
const (
	eventKeys       = 'e'
	hashKeys        = 'h'
	dataKeys        = 'k'
	metaKeys        = 'm'
	payloadKeys     = 'p'
	oldSnapshotKeys = 's' // of earlier releases
)

func numKey(prefix byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefix}, n)
}

func nameKey(prefix byte, name string) []byte { return append([]byte{prefix}, name...) }

// keyNum reads the number of a key made by numKey.
func keyNum(key []byte) (uint64, error) {
	if len(key) != 9 {
		return 0, fmt.Errorf("%w: key %x of %d bytes, want 9", ErrCorrupt, key, len(key))
	}
	return binary.BigEndian.Uint64(key[1:]), nil
}

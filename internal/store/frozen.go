package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// frozenFS shows a Pebble directory as it was at one moment, so that it can be
// opened and read while a writer goes on, without a trace on disk: the files
// that grow are copied into memory, and of the tables, which never change, it
// holds open descriptors, which stay good when the writer deletes the files.
// Whoever has locked the directory, so that there is no writer, has logs held
// like tables. Nothing can be written through it, and its locks are its own.
type frozenFS struct {
	vfs.FS // in memory: logs, manifests, markers, options
	held   map[string]vfs.File
	bare   bool  // without its logs
	copied int64 // bytes in memory

	failed atomic.Pointer[error] // reading a log that is held
}

// What is copied into memory is bounded, whatever a directory claims to hold: a
// writer makes logs of some memTableBytes, of which some are not flushed yet and
// some not deleted, and a manifest of at most 128 MiB and an edit.
const (
	grownMax  = 256 << 20 // bytes of a log or manifest
	statedMax = 1 << 20   // of any other
	copiedMax = 1 << 30   // of all
)

// DropLogs frees the copies of the write-ahead logs in memory, which opening for
// reading has read. A log of some length has 200 MiB of them. The store cannot
// be copied any more.
func (s *Store) DropLogs() error {
	if s.frozen == nil {
		return nil
	}
	s.frozen.bare = true
	names, err := s.frozen.List(frozenDir)
	for _, name := range names {
		if _, isLog := logNumber(name); isLog {
			err = errors.Join(err, s.frozen.Remove(s.frozen.PathJoin(frozenDir, name)))
		}
	}
	return err
}

// frozenDir is where a frozenFS shows the directory.
const frozenDir = "db"

// errMoved says that files came and went while a directory was frozen.
var errMoved = errors.New("directory changed while it was read")

// freeze captures the directory db. The order is what makes the capture one
// consistent moment, of the time the manifest is read:
//
//  1. logs. All but the newest are complete, and it is copied up to some byte,
//     so they hold a prefix of what was written. One that is gone or reused by
//     now had been flushed, which the manifest, read later, says.
//  2. manifest. What it says happened before 1 is in the copy. Flushes go in
//     order, so the logs it still asks for are a prefix of what came after.
//  3. tables, by descriptor. One it names may be gone already: Pebble then refuses to open,
//     and the caller freezes again.
func freeze(sys vfs.FS, db string, locked bool) (*frozenFS, error) {
	names, err := sys.List(db)
	if err != nil {
		return nil, err
	}
	if err := oldFormat(names); err != nil {
		return nil, err
	}
	f := &frozenFS{FS: vfs.NewMem(), held: map[string]vfs.File{}}
	if err := f.MkdirAll(frozenDir, 0o755); err != nil {
		return nil, err
	}
	logs := map[uint64]bool{}
	var newest uint64
	for _, name := range names {
		if n, ok := logNumber(name); ok {
			logs[n] = true
			newest = max(newest, n)
			if locked {
				continue
			}
			if err := f.copy(sys, db, name); err != nil {
				return nil, err
			}
		}
	}
	if names, err = sys.List(db); err != nil {
		return nil, err
	}
	for _, name := range names {
		if n, ok := logNumber(name); ok && n < newest && !logs[n] {
			return nil, fmt.Errorf("%w: %s", errMoved, name) // a listing is no snapshot
		}
		if strings.HasPrefix(name, "marker.") || strings.HasPrefix(name, "MANIFEST-") || strings.HasPrefix(name, "OPTIONS-") {
			if err := f.copy(sys, db, name); err != nil {
				return nil, err
			}
		}
	}
	return f, f.hold(sys, db, locked)
}

func logNumber(name string) (n uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// oldFormat recognises a store of Pebble's first format, which this Pebble
// would take for no store at all.
func oldFormat(names []string) error {
	for _, name := range names {
		if name == "CURRENT" {
			return fmt.Errorf("%w: written by an old Pebble (it has a file CURRENT)", ErrFormat)
		}
	}
	return nil
}

// dirState describes the directory's files; equal states mean that nothing moved.
func dirState(sys vfs.FS, db string) string {
	names, err := sys.List(db)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, name := range slices.Sorted(slices.Values(names)) {
		if info, err := sys.Stat(sys.PathJoin(db, name)); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}

func (f *frozenFS) copy(sys vfs.FS, db, name string) error {
	if err := regular(sys, sys.PathJoin(db, name)); err != nil {
		return err
	}
	src, err := sys.Open(sys.PathJoin(db, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer src.Close()
	most := int64(statedMax)
	if path.Ext(name) == ".log" || strings.HasPrefix(name, "MANIFEST-") {
		most = grownMax
	}
	size, err := sizeWithin(src, name, min(most, copiedMax-f.copied))
	if err != nil {
		return err
	}
	b := make([]byte, size) // what is written to it from here on is not of this moment
	n, err := io.ReadFull(src, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	b = b[:n]
	f.copied += int64(len(b))
	dst, err := f.Create(f.PathJoin(frozenDir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := dst.Write(b); err != nil {
		return err
	}
	return dst.Close()
}

func sizeWithin(file vfs.File, name string, most int64) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	if size := info.Size(); size > most {
		return 0, fmt.Errorf("%w: %s has %d bytes, more than a ledger writes", ErrCorrupt, name, size)
	}
	return info.Size(), nil
}

// regular refuses what is there and no file: to open it could block.
func regular(sys vfs.FS, path string) error {
	info, err := sys.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is no regular file", ErrCorrupt, path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// hold opens the tables, and the logs too if the directory is locked.
func (f *frozenFS) hold(sys vfs.FS, db string, locked bool) error {
	names, err := sys.List(db)
	if err != nil {
		return err
	}
	for _, name := range names {
		switch path.Ext(name) {
		case ".sst", ".blob":
		case ".log":
			if !locked {
				continue
			}
		default:
			continue
		}
		var t vfs.File
		err := regular(sys, sys.PathJoin(db, name))
		if err == nil {
			t, err = sys.Open(sys.PathJoin(db, name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			f.held[name] = t
			if path.Ext(name) == ".log" {
				_, err = sizeWithin(t, name, grownMax)
			}
		}
		if err != nil {
			f.close()
			return err
		}
	}
	return nil
}

func (f *frozenFS) close() {
	for _, t := range f.held {
		t.Close()
	}
}

// frozenFile is one more handle on a held file.
type frozenFile struct {
	vfs.File
	from *io.SectionReader
	fs   *frozenFS
}

func (*frozenFile) Close() error { return nil }

// Read is how logs are read. Pebble would call its error damage.
func (f *frozenFile) Read(b []byte) (int, error) {
	n, err := f.from.Read(b)
	if err != nil && err != io.EOF {
		f.fs.failed.Store(&err)
	}
	return n, err
}

// Open implements vfs.FS.
func (f *frozenFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if t, ok := f.held[f.PathBase(name)]; ok {
		return &frozenFile{t, io.NewSectionReader(t, 0, math.MaxInt64), f}, nil
	}
	return f.FS.Open(name, opts...)
}

// Stat implements vfs.FS.
func (f *frozenFS) Stat(name string) (vfs.FileInfo, error) {
	if t, ok := f.held[f.PathBase(name)]; ok {
		return t.Stat()
	}
	return f.FS.Stat(name)
}

// List implements vfs.FS.
func (f *frozenFS) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	for name := range f.held {
		names = append(names, name)
	}
	return names, err
}

package audit

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ledgerd/ledgerd/internal/events"
)

// WriteExport writes the log that s.Checkpoint covers to dir, with its open
// payloads, in the layout of docs/FORMAT.md: a C2SP tlog-tiles directory that
// third-party tools read unmodified. dir must not exist or be empty; it appears
// whole or not at all. A log with a fault is not exported.
func WriteExport(dir string, s *Source) error { return writeExport(dir, s, false) }

// WriteExportOpened is WriteExport with every payload, the sealed ones opened,
// in a directory that its owner alone may read. Whoever has it has all that
// agents ever wrote and asked for.
func WriteExportOpened(dir string, s *Source) error { return writeExport(dir, s, true) }

func writeExport(dir string, s *Source, opened bool) (err error) {
	head, err := readCheckpoint(s.Checkpoint)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if head.Size == 0 || head.Size > s.Size {
		return fmt.Errorf("export: the checkpoint covers %d events, the log has %d", head.Size, s.Size)
	}
	if err := vacant(dir); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".*")
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer os.RemoveAll(tmp)
	w := exporter{dir: tmp, source: s, size: head.Size, opened: opened}
	if err := w.write(head); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if !opened { // else it stays as it was made, its owner's alone
		if err := os.Chmod(tmp, 0o755); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("export: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return syncDir(filepath.Dir(dir))
}

// vacant refuses a directory with anything in it.
func vacant(dir string) error {
	names, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(names) > 0:
		return fmt.Errorf("%s is not empty", dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// exporter writes one export while a verifier reads along.
type exporter struct {
	dir    string
	source *Source
	size   uint64
	opened bool      // sealed payloads too
	bundle []byte    // entries of the bundle at hand
	tiles  [8][]byte // hashes of each level's tile at hand
}

func (w *exporter) write(head Checkpoint) error {
	v, err := NewVerifier(w.source.Checkpoint, Options{FaultsMax: 1})
	if err != nil {
		return err
	}
	var failed error
	v.payload = w.payload
	if w.source.Hashes != nil {
		v.past = storedNodes(w.source.Hashes)
	}
	v.completed = func(level int, n uint64, h events.Hash) {
		if failed == nil {
			failed = w.node(level, n, h)
		}
	}
	err = w.source.Events(1, head.Size, func(seq uint64, event []byte) error {
		v.Event(event)
		switch {
		case failed != nil:
			return failed
		case len(v.faults) > 0:
			return errors.New(v.faults[0].String())
		}
		return w.entry(seq, event)
	})
	if err != nil {
		return err
	}
	if err := w.partials(); err != nil {
		return err
	}
	if r := v.Finish(); r.Exit != ExitPass {
		if len(r.Faults) > 0 {
			return errors.New(r.Faults[0].String())
		}
		return errors.New("the log could not be checked")
	}
	return w.file(checkpointFile, w.source.Checkpoint)
}

// entry appends an entry to its bundle, and writes the bundle when it is full.
func (w *exporter) entry(seq uint64, event []byte) error {
	w.bundle = binary.BigEndian.AppendUint16(w.bundle, uint16(len(event)))
	w.bundle = append(w.bundle, event...)
	if seq%tileWidth != 0 {
		return nil
	}
	b := w.bundle
	w.bundle = w.bundle[:0]
	return w.file(bundlePath(seq/tileWidth-1, tileWidth), b)
}

// node appends a completed node to its tile, and writes the tile when it is full.
func (w *exporter) node(level int, n uint64, h events.Hash) error {
	if level%8 != 0 {
		return nil
	}
	t := &w.tiles[level/8]
	if *t = append(*t, h[:]...); len(*t) < tileWidth*len(h) {
		return nil
	}
	b := *t
	*t = nil
	return w.file(tilePath(level/8, n/tileWidth, tileWidth), b)
}

// partials writes what did not fill a bundle or tile.
func (w *exporter) partials() error {
	if width := int(w.size % tileWidth); width > 0 {
		if err := w.file(bundlePath(w.size/tileWidth, width), w.bundle); err != nil {
			return err
		}
	}
	for level, t := range w.tiles {
		if len(t) == 0 {
			continue
		}
		hashes := w.size >> (8 * level)
		if err := w.file(tilePath(level, hashes/tileWidth, int(hashes%tileWidth)), t); err != nil {
			return err
		}
	}
	return nil
}

// payload hands the verifier a payload, having written it: open ones, and
// sealed ones where they are asked for.
func (w *exporter) payload(seq uint64, open bool) (Payload, error) {
	if !open && !w.opened {
		return Payload{State: PayloadLocked}, nil
	}
	p, err := w.source.Payload(seq)
	if err == nil && p.State == PayloadLocked {
		err = errors.New("it is sealed, and its key is not at hand")
	}
	if err != nil || p.State != PayloadReadable {
		return p, err
	}
	return p, w.file(payloadPath(seq), payloadText(p))
}

// payloadText is a payload's file: the salt in hex, a line feed, the bytes.
func payloadText(p Payload) []byte {
	b := hex.AppendEncode(nil, p.Salt[:])
	return append(append(b, '\n'), p.Bytes...)
}

func (w *exporter) file(name string, b []byte) error {
	path := filepath.Join(w.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if w.opened {
		mode = 0o600
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

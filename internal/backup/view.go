package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/store"
)

// view is a log at one moment, with what lay beside it then.
type view struct {
	*datadir.Dir
	signed []byte
	keys   keyFiles
}

// How long Write looks for a moment at which all that the log says is erased is
// gone, and no key has just been replaced. Tests change it.
var (
	settledWithin = time.Minute
	settledPoll   = 200 * time.Millisecond
)

// settled opens the log in data at a moment of which a copy is good. What an event
// says is erased is destroyed behind that event: a copy of the time between would
// hold it for ever, where nobody can carry it out.
func settled(data string, o Options) (*view, error) {
	var looked, erased uint64
	for end := time.Now().Add(settledWithin); ; time.Sleep(settledPoll) {
		v, changing, err := look(data, o)
		if err != nil {
			return nil, err
		}
		var purged uint64
		if erased, err = lastErasure(v.Store, looked+1, erased); err == nil {
			purged, err = v.Store.Purged()
		}
		late := time.Now().After(end)
		if err == nil && purged >= erased && (!changing || late) {
			return v, nil
		}
		looked = v.Store.Durable()
		if err := errors.Join(err, v.Close()); err != nil {
			return nil, err
		}
		if late && purged < erased {
			return nil, fmt.Errorf("%w: what event %d erased is still on the disk after %v; the server does that behind its answers, or at its next start", ErrErased, erased, settledWithin)
		}
	}
}

// look opens the log, with the anchor and the keys of then. The anchor is read
// first: the log only grows, so that the copy reaches it. The keys are read before
// the log and after it: a rotation of the seal key removes the old one when nothing
// is wrapped by it any more, but the log as it was opened may be. changing says that
// they differ.
func look(data string, o Options) (v *view, changing bool, err error) {
	v = &view{}
	if v.signed, err = os.ReadFile(o.Anchor); err != nil {
		return nil, false, fmt.Errorf("anchor: %w", err)
	}
	read := func() (keyFiles, error) {
		if !o.Keys {
			return nil, nil
		}
		return readKeys(filepath.Join(data, keysDir))
	}
	before, err := read()
	if err != nil {
		return nil, false, err
	}
	if v.Dir, err = datadir.Open(data); err != nil {
		return nil, false, err
	}
	after, err := read()
	if err != nil {
		return nil, false, errors.Join(err, v.Close())
	}
	changing = !maps.EqualFunc(before, after, bytes.Equal)
	v.keys = before
	maps.Copy(v.keys, after)
	return v, changing, nil
}

// lastErasure is the last event from seq from on that says what is erased, or
// before.
func lastErasure(s *store.Store, from, before uint64) (last uint64, err error) {
	last = before
	kind := fmt.Appendf(nil, `,"type":"%s",`, events.TypePayloadErased)
	err = s.Events(from, s.Durable(), func(seq uint64, b []byte) error {
		if bytes.Contains(b, kind) {
			last = seq
		}
		return nil
	})
	return last, err
}

// keyFiles are the files of a directory with keys, by name.
type keyFiles map[string][]byte

// readKeys reads the key files of a directory. One that is gone by the time it is
// read was of a rotation that has come to its end, and what is being written, or was
// when its writer was killed, is none yet.
func readKeys(dir string) (keyFiles, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := keyFiles{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if whole, cut := strings.CutSuffix(e.Name(), ".tmp"); cut && keyName(whole) {
			continue
		}
		if !e.Type().IsRegular() || !keyName(e.Name()) {
			return nil, fmt.Errorf("%s: no key file", path)
		}
		b, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			files[e.Name()] = b
		}
	}
	return files, nil
}

// write writes the files to a new directory, 0600.
func (f keyFiles) write(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if err := writeNew(filepath.Join(dir, name), f[name]); err != nil {
			return err
		}
	}
	return nil
}

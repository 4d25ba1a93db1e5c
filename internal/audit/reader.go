package audit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/ledgerd/ledgerd/internal/events"
)

const (
	bundleBytesMax  = tileWidth * (2 + events.EventBytesMax)
	payloadBytesMax = 2*events.SaltLen + 1 + events.RequestBytesMax
)

// export reads an export directory. No file of it is trusted: sizes are
// bounded, and only regular files are opened, since a pipe would hang.
type export struct {
	fsys   fs.FS
	size   uint64 // what the checkpoint covers
	signed []byte
	tiles  [8]cachedTile

	hole    *hole
	missing int // bundles that were read past
}

// hole is a row of missing bundles, with one behind it that is there: it is looked
// for once, and not for each of them.
type hole struct {
	sync.Mutex
	from, to uint64
}

type cachedTile struct {
	loaded bool
	n      uint64
	data   []byte
	err    error
}

func newExport(fsys fs.FS) (*export, error) {
	x := &export{fsys: fsys, hole: &hole{}}
	signed, err := x.file(checkpointFile, noteBytesMax)
	if err != nil {
		return x, err
	}
	x.signed = signed
	c, err := readCheckpoint(signed)
	if err != nil {
		return x, err
	}
	x.size = c.Size
	return x, nil
}

// file reads a regular file of at most max bytes.
func (x *export) file(name string, max int) ([]byte, error) {
	info, err := fs.Stat(x.fsys, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errMissing
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("no regular file")
	case info.Size() > int64(max):
		return nil, fmt.Errorf("a file of %d bytes", info.Size())
	}
	f, err := x.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(max)+1))
	if err == nil && len(b) > max {
		err = fmt.Errorf("a file of over %d bytes", max)
	}
	return b, err
}

var errMissing = errors.New("no file")

// bundle returns the entries of bundle n. With an error it returns those before
// the place where the bundle stops making sense.
func (x *export) bundle(n uint64) (entries [][]byte, where string, err error) {
	width := widthAt(x.size, 0, n)
	where = bundlePath(n, width)
	b, err := x.file(where, bundleBytesMax)
	if err != nil {
		return nil, where, err
	}
	for len(b) > 0 && len(entries) < width {
		if len(b) < 2 {
			return entries, where, errors.New("half a length")
		}
		size := int(binary.BigEndian.Uint16(b))
		if b = b[2:]; size > len(b) {
			return entries, where, fmt.Errorf("a length of %d with %d bytes left", size, len(b))
		}
		entries, b = append(entries, b[:size:size]), b[size:]
	}
	switch {
	case len(entries) < width:
		return entries, where, fmt.Errorf("%d entries, want %d", len(entries), width)
	case len(b) > 0:
		return entries, where, fmt.Errorf("%d bytes after entry %d", len(b), width)
	}
	return entries, where, nil
}

// node is the hash that a tile holds for a node; tiles hold every eighth level.
func (x *export) node(level int, n uint64) (h events.Hash, where string, stored bool, err error) {
	if level%8 != 0 {
		return h, "", false, nil
	}
	width := widthAt(x.size, level/8, n/tileWidth)
	if int(n%tileWidth) >= width {
		return h, "", false, nil // past the checkpoint
	}
	where = tilePath(level/8, n/tileWidth, width)
	t := &x.tiles[level/8]
	if !t.loaded || t.n != n/tileWidth {
		*t = cachedTile{loaded: true, n: n / tileWidth}
		t.data, t.err = x.file(where, tileWidth*len(h))
		if t.err == nil && len(t.data) != width*len(h) {
			t.err = fmt.Errorf("a tile of %d bytes, want %d", len(t.data), width*len(h))
		}
	}
	if t.err != nil {
		return h, where, true, t.err
	}
	copy(h[:], t.data[n%tileWidth*uint64(len(h)):])
	return h, where, true, nil
}

// payload reads payloads/<seq>.
func (x *export) payload(seq uint64) (Payload, error) {
	p := Payload{Where: payloadPath(seq)}
	b, err := x.file(p.Where, payloadBytesMax)
	if errors.Is(err, errMissing) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	const digits = 2 * events.SaltLen
	if len(b) <= digits || b[digits] != '\n' {
		return p, errors.New("no line with a salt")
	}
	salt, err := events.ParseHash(string(b[:digits]))
	if err != nil {
		return p, fmt.Errorf("salt: %w", err)
	}
	p.State, p.Salt, p.Bytes = PayloadReadable, salt, b[digits+1:]
	return p, nil
}

// VerifyExport verifies an export directory: as VerifyLog, and that it holds
// the files of the layout and no others. An error says that an option is
// unusable.
func VerifyExport(fsys fs.FS, opts Options) (*Report, error) {
	x, headErr := newExport(fsys)
	v, err := NewVerifier(x.signed, opts)
	if err != nil {
		return nil, err
	}
	if x.signed == nil && !errors.Is(headErr, errMissing) {
		v.fault(Fault{Check: "checkpoint", Where: checkpointFile, Expected: "a signed checkpoint", Found: headErr.Error()})
	}
	claimed := x.size
	x.measure()
	if claimed > 0 && x.size > claimed {
		v.fault(Fault{Check: "checkpoint", Seq: claimed + 1, To: x.size, Expected: fmt.Sprintf("%d events, as the checkpoint says", claimed), Found: fmt.Sprintf("%d", x.size)})
	}
	v.total, v.nodes, v.again = x.size, x.node, x.events
	payloads := map[uint64]bool{}
	v.payload = func(seq uint64, _ bool) (Payload, error) {
		p, err := x.payload(seq)
		if err != nil || p.State != PayloadAbsent {
			payloads[seq] = true
		}
		return p, err
	}
	v.source = &Source{Size: x.size, Events: x.events}
	v.resume(x.size, x.events)
	if !v.halts() {
		v.bundles(x, payloads)
	}
	if !v.halts() {
		v.strangers(x, payloads)
	}
	return v.Finish(), nil
}

// bundles feeds the entries of an export, and notes where it has payloads.
func (v *Verifier) bundles(x *export, payloads map[uint64]bool) {
	alone := x.size // up to which they are read one after the other
	if !v.opts.Serial {
		alone = (v.size + chunkSize - 1) / chunkSize * chunkSize
	}
	for n := v.size / tileWidth; v.size < min(alone, x.size); n++ {
		if !v.bundle(x, n) || v.size%chunkSize == 0 && v.holed(x) {
			return
		}
	}
	base, sizes := v.size, slices.Sorted(maps.Keys(v.roots))
	inOrder((x.size-base+chunkSize-1)/chunkSize, func(i uint64) *chunk {
		return v.examineBundles(x, base+i*chunkSize, sizes)
	}, func(c *chunk) bool {
		for _, seq := range c.present {
			payloads[seq] = true
		}
		x.missing += c.missing
		return v.takeChunk(c, nil) && !v.holed(x)
	})
}

// holed gives up a log of which too much is not there: a checkpoint may claim any
// size, and a bundle here and there must not have all between them looked for.
func (v *Verifier) holed(x *export) bool {
	if x.missing <= bundlesMissingMax {
		return false
	}
	v.gaveUp = fmt.Sprintf("more than %d bundles are missing: what is behind event %d was not read", bundlesMissingMax, v.size)
	v.fault(Fault{Check: "parse", Seq: v.size + 1, To: max(x.size, v.size+1), Expected: "a bundle for every 256 events", Found: v.gaveUp})
	return true
}

// examineBundles reads and examines the bundles of the entries after the first base
// ones, as bundle feeds them.
func (v *Verifier) examineBundles(whole *export, base uint64, sizes []uint64) *chunk {
	x := &export{fsys: whole.fsys, size: whole.size, hole: whole.hole} // with tiles at hand of its own
	to := min(base+chunkSize, x.size)
	c := v.newChunk(base, to, sizes)
	c.tree.nodes = x.node
	if !v.links {
		c.payload = func(seq uint64, _ bool) (Payload, error) {
			p, err := x.payload(seq)
			if err != nil || p.State != PayloadAbsent {
				c.present = append(c.present, seq)
			}
			return p, err
		}
	}
	for n := base / tileWidth; c.tree.size < to; n++ {
		entries, faults, ends := x.entries(n)
		if c.over = ends; ends {
			break
		}
		for _, b := range entries {
			c.add(c.examine(c.tree.size+1, b), &faults)
		}
		for width := uint64(widthAt(x.size, 0, n)); c.tree.size < n*tileWidth+width; {
			c.add(entry{unreadable: unreadableBundle, leaf: c.tree.stored(c.tree.size)}, &faults)
		}
	}
	c.missing = x.missing
	return c
}

const unreadableBundle = "unreadable: its bundle is damaged"

// entries are a bundle's, as far as it makes sense, and what is wrong with it. Where
// its lengths do not add up, the first entry that does not parse is where they went
// wrong, and what follows it in this bundle is unreadable. ends says that the log ends
// before it: a checkpoint may claim any size, and no more is read than is there.
func (x *export) entries(n uint64) (entries [][]byte, faults []Fault, ends bool) {
	entries, where, err := x.bundle(n)
	switch {
	case err == nil:
		return entries, nil, false
	case errors.Is(err, errMissing) && !x.goesOn(n):
		return nil, nil, true
	case errors.Is(err, errMissing):
		x.missing++
	}
	for i, b := range entries {
		if _, bad := events.Parse(b); bad != nil {
			entries = entries[:i]
			break
		}
	}
	width := uint64(widthAt(x.size, 0, n))
	seq := n*tileWidth + min(uint64(len(entries)), width-1) + 1
	return entries, []Fault{{Check: "parse", Seq: seq, Where: where, Expected: fmt.Sprintf("%d entries, each after its length", width), Found: err.Error()}}, false
}

// bundle feeds a bundle's entries. It reports false where the log ends.
func (v *Verifier) bundle(x *export, n uint64) bool {
	entries, faults, ends := x.entries(n)
	if ends {
		return false
	}
	v.told(faults)
	for i, b := range entries {
		if n*tileWidth+uint64(i) >= v.size { // else it was verified earlier
			if v.Event(b); v.halts() {
				return false
			}
		}
	}
	for width := uint64(widthAt(x.size, 0, n)); v.size < n*tileWidth+width; {
		v.Unreadable(unreadableBundle)
	}
	return !v.halts()
}

// bundlesMissingMax is how many missing bundles are read past.
const bundlesMissingMax = 256

// goesOn reports whether a bundle not far behind the missing bundle n exists.
func (x *export) goesOn(n uint64) bool {
	x.hole.Lock()
	defer x.hole.Unlock()
	if x.hole.from <= n && n < x.hole.to {
		return true
	}
	for next := n + 1; next <= n+bundlesMissingMax; next++ {
		if x.has(next) {
			x.hole.from, x.hole.to = n, next
			return true
		}
	}
	return false
}

// measure settles how many events to read: as many as the checkpoint says, if
// the bundles reach so far; else as many as there are.
func (x *export) measure() {
	claimed := x.size
	if claimed > 0 && x.has((claimed-1)/tileWidth) {
		return
	}
	x.size = x.found()
	if x.size == 0 && claimed > 0 {
		if x.size = claimed; !x.goesOn(0) {
			x.size = 0
		}
	}
}

// has reports whether bundle n exists.
func (x *export) has(n uint64) bool {
	width := widthAt(x.size, 0, n)
	if width == 0 {
		return false
	}
	_, err := fs.Stat(x.fsys, bundlePath(n, width))
	return err == nil
}

// found is how many entries the bundles hold: bundle after bundle up to the
// first that is not full.
func (x *export) found() uint64 {
	exists := func(n uint64, width int) bool {
		_, err := fs.Stat(x.fsys, bundlePath(n, width))
		return err == nil
	}
	n := uint64(0)
	for exists(n, tileWidth) {
		n++
	}
	for width := tileWidth - 1; width > 0; width-- {
		if exists(n, width) {
			return n*tileWidth + uint64(width)
		}
	}
	return n * tileWidth
}

// strangers finds files that are no part of an export of this size: what is
// not accounted for was not checked.
func (v *Verifier) strangers(x *export, payloads map[uint64]bool) {
	known := func(name string) bool {
		if name == checkpointFile {
			return true
		}
		if rest, ok := strings.CutPrefix(name, payloadDir+"/"); ok {
			seq, err := parseNumber(rest)
			return err == nil && (payloads[seq] || 0 < seq && seq <= v.from)
		}
		if rest, ok := strings.CutPrefix(name, "tile/entries/"); ok {
			n, ok := parseNumberPath(rest)
			width := widthAt(x.size, 0, n)
			return ok && width > 0 && name == bundlePath(n, width)
		}
		if rest, ok := strings.CutPrefix(name, "tile/"); ok {
			levelText, rest, _ := strings.Cut(rest, "/")
			level, err := parseNumber(levelText)
			n, ok := parseNumberPath(rest)
			if err != nil || !ok || level > 7 {
				return false
			}
			width := widthAt(x.size, int(level), n)
			return width > 0 && name == tilePath(int(level), n, width)
		}
		return false
	}
	err := fs.WalkDir(x.fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			v.fault(Fault{Check: "files", Where: quote(name), Expected: "a readable directory", Found: err.Error()})
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.IsDir() && (!d.Type().IsRegular() || !known(name)) {
			v.fault(Fault{Check: "files", Where: quote(name), Expected: fmt.Sprintf("only the files of an export of %d events", x.size), Found: "another file"})
		}
		return nil
	})
	if err != nil {
		v.fault(Fault{Check: "files", Expected: "a readable directory", Found: err.Error()})
	}
}

// OpenExport returns an export directory as a source, to be replayed. Nothing
// of it is verified.
func OpenExport(fsys fs.FS) (*Source, error) {
	x, err := newExport(fsys)
	if err != nil {
		return nil, fmt.Errorf("export: %s: %w", checkpointFile, err)
	}
	return &Source{Size: x.size, Checkpoint: x.signed, Payload: x.payload, Events: x.events, tiles: x}, nil
}

func (x *export) events(from, to uint64, fn func(seq uint64, event []byte) error) error {
	if from == 0 {
		return errors.New("events are numbered from 1")
	}
	for seq := from; seq <= min(to, x.size); {
		n := (seq - 1) / tileWidth
		entries, where, err := x.bundle(n)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		for _, b := range entries[(seq-1)%tileWidth:] {
			if seq > to {
				return nil
			}
			if err := fn(seq, b); err != nil {
				return err
			}
			seq++
		}
	}
	return nil
}

package audit

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// PathKind is what a file of the export layout holds.
type PathKind uint8

// The kinds of files. The zero kind is no file of the layout.
const (
	PathCheckpoint PathKind = iota + 1
	PathTile
	PathBundle
	PathPayload
)

// Path names one file of the layout of docs/FORMAT.md, on disk and over HTTP.
type Path struct {
	Kind  PathKind
	Level int    // of a tile
	N     uint64 // of a tile or bundle; the seq of a payload
	Width int    // hashes or entries
}

// ParsePath reads a path strictly: it is false for every string but the one
// that String writes.
func ParsePath(name string) (p Path, ok bool) {
	if name == checkpointFile {
		return Path{Kind: PathCheckpoint}, true
	}
	var err error
	if rest, found := strings.CutPrefix(name, payloadDir+"/"); found {
		p.Kind = PathPayload
		p.N, err = parseNumber(rest)
		return p, err == nil && p.N > 0
	}
	rest, found := strings.CutPrefix(name, "tile/entries/")
	if p.Kind = PathBundle; !found {
		p.Kind = PathTile
		rest, found = strings.CutPrefix(name, "tile/")
		level, after, cut := strings.Cut(rest, "/")
		n, err := parseNumber(level)
		if !found || !cut || err != nil || n > 7 {
			return Path{}, false
		}
		p.Level, rest = int(n), after
	}
	p.Width = tileWidth
	if _, width, partial := strings.Cut(rest, ".p/"); partial {
		w, err := parseNumber(width)
		if err != nil || w == 0 || w >= tileWidth {
			return Path{}, false
		}
		p.Width = int(w)
	}
	if p.N, ok = parseNumberPath(rest); !ok || p.String() != name {
		return Path{}, false
	}
	return p, true
}

// String is the path, without a leading slash.
func (p Path) String() string {
	switch p.Kind {
	case PathCheckpoint:
		return checkpointFile
	case PathPayload:
		return payloadPath(p.N)
	case PathBundle:
		return bundlePath(p.N, p.Width)
	case PathTile:
		return tilePath(p.Level, p.N, p.Width)
	}
	return ""
}

// Full reports whether a tile or bundle will never be longer.
func (p Path) Full() bool { return p.Width == tileWidth }

// Within reports whether a log of size events has all that the tile or bundle
// holds, or the event of the payload.
func (p Path) Within(size uint64) bool {
	if p.Kind == PathPayload {
		return p.N <= size
	}
	return p.Width <= widthAt(size, p.Level, p.N)
}

// Tile reads the hashes of a tile from those stored by tlog.StoredHashIndex.
func (p Path) Tile(read func(indexes []int64) ([]tlog.Hash, error)) ([]byte, error) {
	indexes := make([]int64, p.Width)
	for i := range indexes {
		indexes[i] = tlog.StoredHashIndex(8*p.Level, int64(p.N*tileWidth)+int64(i))
	}
	hashes, err := read(indexes)
	if err != nil {
		return nil, err
	}
	if len(hashes) != len(indexes) {
		return nil, fmt.Errorf("%s: %d hashes", p, len(hashes))
	}
	b := make([]byte, 0, len(hashes)*tlog.HashSize)
	for i := range hashes {
		b = append(b, hashes[i][:]...)
	}
	return b, nil
}

// Bundle reads the entries of a bundle.
func (p Path) Bundle(read func(from, to uint64, fn func(seq uint64, event []byte) error) error) ([]byte, error) {
	var b []byte
	first, n := p.N*tileWidth+1, 0
	err := read(first, first+uint64(p.Width)-1, func(_ uint64, event []byte) error {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(event))), event...)
		n++
		return nil
	})
	if err == nil && n != p.Width {
		err = fmt.Errorf("%s: %d entries", p, n)
	}
	return b, err
}

// PayloadText is the content of an open payload's file.
func PayloadText(salt [events.SaltLen]byte, b []byte) []byte {
	return payloadText(Payload{Salt: salt, Bytes: b})
}

// SizeOf is the size that a signed checkpoint names, 0 if it is none. Nothing
// of it is verified.
func SizeOf(signed []byte) uint64 {
	lines := strings.SplitN(string(signed), "\n", 3)
	if len(lines) < 3 {
		return 0
	}
	size, err := strconv.ParseUint(lines[1], 10, 53)
	if err != nil {
		return 0
	}
	return size
}

// BundleAt is bundle n of a log of size events; its width is 0 if there is none.
func BundleAt(size, n uint64) Path { return Path{Kind: PathBundle, N: n, Width: widthAt(size, 0, n)} }

// BytesMax bounds the file.
func (p Path) BytesMax() int {
	switch p.Kind {
	case PathTile:
		return p.Width * tlog.HashSize
	case PathBundle:
		return p.Width * (2 + events.EventBytesMax)
	case PathPayload:
		return payloadBytesMax
	}
	return noteBytesMax
}

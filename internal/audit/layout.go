package audit

import (
	"fmt"
	"strconv"
	"strings"
)

// tileWidth is the number of hashes of a full tile and of entries of a full
// bundle (C2SP tlog-tiles).
const tileWidth = 256

const (
	checkpointFile = "checkpoint"
	payloadDir     = "payloads"
)

// tilePath is the path of tile n of a level with width hashes.
func tilePath(level int, n uint64, width int) string {
	return "tile/" + strconv.Itoa(level) + "/" + numberPath(n, width)
}

// bundlePath is the path of entry bundle n with width entries.
func bundlePath(n uint64, width int) string { return "tile/entries/" + numberPath(n, width) }

// numberPath writes n in groups of three digits, x before all but the last.
func numberPath(n uint64, width int) string {
	s := fmt.Sprintf("%03d", n%1000)
	for n >= 1000 {
		n /= 1000
		s = fmt.Sprintf("x%03d/%s", n%1000, s)
	}
	if width < tileWidth {
		s += ".p/" + strconv.Itoa(width)
	}
	return s
}

func payloadPath(seq uint64) string { return payloadDir + "/" + strconv.FormatUint(seq, 10) }

// widthAt is the width of tile n of a level, or bundle n of level 0, in a tree
// of size leaves; 0 if there is none.
func widthAt(size uint64, level int, n uint64) int {
	if level > 7 {
		return 0
	}
	hashes := size >> (8 * level)
	if n > hashes/tileWidth {
		return 0
	}
	return int(min(hashes-n*tileWidth, tileWidth))
}

// parseNumber reads a decimal number without leading zeros.
func parseNumber(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err == nil && strconv.FormatUint(n, 10) != s {
		err = strconv.ErrSyntax
	}
	return n, err
}

// parseNumberPath reads the number of a tile's path. The caller compares the
// path it belongs to, which settles its form.
func parseNumberPath(s string) (uint64, bool) {
	s, _, _ = strings.Cut(s, ".p/")
	n, err := strconv.ParseUint(strings.NewReplacer("x", "", "/", "").Replace(s), 10, 63)
	return n, err == nil
}

package audit

import (
	"fmt"
	"strconv"
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

// tileLevels is how many levels of tiles a tree of size leaves has.
func tileLevels(size uint64) int {
	n := 0
	for ; size > 0; size >>= 8 {
		n++
	}
	return n
}

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

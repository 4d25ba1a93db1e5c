package audit

import (
	"encoding/base64"
	"fmt"
	"testing"
)

func TestPaths(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{tilePath(0, 5, 256), "tile/0/005"},
		{tilePath(2, 1234067, 256), "tile/2/x001/x234/067"},
		{tilePath(1, 0, 1), "tile/1/000.p/1"},
		{tilePath(0, 1000, 112), "tile/0/x001/000.p/112"},
		{bundlePath(999, 255), "tile/entries/999.p/255"},
		{bundlePath(1_000_000, 256), "tile/entries/x001/x000/000"},
		{payloadPath(17), "payloads/17"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	for _, n := range []uint64{0, 1, 999, 1000, 1234067, 1 << 40} {
		for _, width := range []int{1, 256} {
			if got, ok := parseNumberPath(numberPath(n, width)); !ok || got != n {
				t.Errorf("%d reads as %d", n, got)
			}
		}
	}
}

// TestWidths: the example of C2SP tlog-tiles, and the edges.
func TestWidths(t *testing.T) {
	for _, c := range []struct {
		size  uint64
		level int
		n     uint64
		want  int
	}{
		{70_000, 0, 272, 256}, {70_000, 0, 273, 112}, {70_000, 0, 274, 0}, {70_000, 1, 0, 256}, {70_000, 1, 1, 17}, {70_000, 1, 2, 0}, {70_000, 2, 0, 1}, {70_000, 3, 0, 0},
		{256, 0, 0, 256}, {256, 0, 1, 0}, {256, 1, 0, 1}, {255, 1, 0, 0}, {0, 0, 0, 0}, {1, 0, 0, 1}, {1<<53 - 1, 6, 0, 31}, {1<<53 - 1, 7, 0, 0}, {1<<53 - 1, 8, 0, 0}, {300, 0, 1 << 60, 0},
	} {
		if got := widthAt(c.size, c.level, c.n); got != c.want {
			t.Errorf("size %d, level %d, tile %d: width %d, want %d", c.size, c.level, c.n, got, c.want)
		}
	}
}

// FuzzReadCheckpoint: what is accepted is written in the one way there is.
func FuzzReadCheckpoint(f *testing.F) {
	f.Add([]byte("ledgerd.example/a/1\n3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n— ledgerd.example/a/1 AAAAAAAA\n"))
	f.Add([]byte("a\n03\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=\n\n— a AAAAAAAA\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readCheckpoint(b)
		if err != nil {
			return
		}
		want := fmt.Sprintf("%s\n%d\n%s\n\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
		if len(b) < len(want) || string(b[:len(want)]) != want {
			t.Fatalf("%q is accepted as %q", b, want)
		}
	})
}

package audit

import "testing"

func TestPathsAreReadStrictly(t *testing.T) {
	for name, want := range map[string]Path{
		"checkpoint":                     {Kind: PathCheckpoint},
		"tile/0/000":                     {Kind: PathTile, Width: 256},
		"tile/3/x001/x234/067.p/12":      {Kind: PathTile, Level: 3, N: 1234067, Width: 12},
		"tile/entries/005":               {Kind: PathBundle, N: 5, Width: 256},
		"tile/entries/x001/000.p/255":    {Kind: PathBundle, N: 1000, Width: 255},
		"payloads/17":                    {Kind: PathPayload, N: 17},
		"tile/7/000.p/1":                 {Kind: PathTile, Level: 7, Width: 1},
		"tile/0/x999/x999/x999/x999/999": {Kind: PathTile, N: 999999999999999, Width: 256},
	} {
		if got, ok := ParsePath(name); !ok || got != want || got.String() != name {
			t.Errorf("%s is %+v %v", name, got, ok)
		}
	}
	for _, name := range []string{
		"", "/", "tile", "tile/", "tile/0", "tile/0/", "tile/0/0", "tile/0/0000", "tile/8/000", "tile/00/000", "tile/-1/000", "tile/+1/000",
		"tile/0/000.p/0", "tile/0/000.p/256", "tile/0/000.p/01", "tile/0/000.p/", "tile/0/000.p", "tile/0/000.p/1/", "tile/0/000.p/1.p/1",
		"tile/0/x000/001", "tile/0/001/000", "tile/0/x001", "tile/0/X001/000", "tile/0/x1/000", "tile/entries", "tile/entries/", "tile/entries/5",
		"tile/entries/../checkpoint", "tile//000", "payloads/", "payloads/0", "payloads/01", "payloads/1/", "payloads/-1", "checkpoint/", "Checkpoint",
		"tile/0/x999999999999999999999/000", "tile/0/000?", "tile/0/000\x00", "tile/entries/000.p/1 ", "checkpoint\n",
	} {
		if got, ok := ParsePath(name); ok {
			t.Errorf("%q is read as %+v", name, got)
		}
	}
}

func TestPathsWithinALog(t *testing.T) {
	for _, c := range []struct {
		name string
		size uint64
		want bool
	}{
		{"tile/0/000.p/1", 0, false}, {"tile/0/000.p/1", 1, true}, {"tile/0/000.p/2", 1, false}, {"tile/0/000.p/7", 300, true},
		{"tile/0/000", 255, false}, {"tile/0/000", 256, true}, {"tile/1/000.p/1", 255, false}, {"tile/1/000.p/1", 256, true},
		{"tile/entries/001.p/44", 300, true}, {"tile/entries/001.p/45", 300, false}, {"tile/entries/001", 300, false},
		{"payloads/300", 300, true}, {"payloads/301", 300, false}, {"tile/0/x999/x999/x999/999", 300, false}, {"tile/7/000.p/1", 1 << 52, false},
	} {
		if p, ok := ParsePath(c.name); !ok || p.Within(c.size) != c.want {
			t.Errorf("%s within %d: %v", c.name, c.size, !c.want)
		}
	}
}

package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// An export read by several goroutines gives the report that one gives, whatever is
// wrong with it.
func TestExportsInParallelAreReportedAsOneByOne(t *testing.T) {
	const size = 8300 // two chunks and a bit
	l := logtest.Sample(origin, 1, size)
	again := logtest.Sample(origin, 1, size)
	again.Edit(4096, func(e *events.Event) { e.Time-- })
	again.Edit(4500, func(e *events.Event) { e.Agent = "other" })
	honest, edited := l.Files(), again.Files()
	bundle := func(n int) string {
		for name := range honest {
			if strings.HasPrefix(name, "tile/entries/") && (strings.HasSuffix(name, fmt.Sprintf("/%03d", n)) || strings.Contains(name, fmt.Sprintf("/%03d.p/", n))) {
				return name
			}
		}
		t.Fatal("no such bundle")
		return ""
	}
	damages := map[string]func(f map[string][]byte){
		"none":          func(map[string][]byte) {},
		"a byte":        func(f map[string][]byte) { f[bundle(20)][400] ^= 1 },
		"a length":      func(f map[string][]byte) { f[bundle(16)][0] ^= 8 },
		"half a bundle": func(f map[string][]byte) { f[bundle(31)] = f[bundle(31)][:5000] },
		"a bundle gone": func(f map[string][]byte) { delete(f, bundle(17)) },
		"a chunk gone": func(f map[string][]byte) {
			for n := 15; n < 32; n++ {
				delete(f, bundle(n))
			}
		},
		"the end gone": func(f map[string][]byte) {
			for n := 18; n < 33; n++ {
				delete(f, bundle(n))
			}
		},
		"all gone": func(f map[string][]byte) {
			maps.DeleteFunc(f, func(name string, _ []byte) bool { return strings.HasPrefix(name, "tile/") })
		},
		"two swapped":   func(f map[string][]byte) { f[bundle(3)], f[bundle(19)] = f[bundle(19)], f[bundle(3)] },
		"no checkpoint": func(f map[string][]byte) { delete(f, "checkpoint") },
		"a tile":        func(f map[string][]byte) { f["tile/0/018"][40] ^= 1 },
		"an upper tile": func(f map[string][]byte) {
			for name := range f {
				if strings.HasPrefix(name, "tile/1/") {
					f[name][700] ^= 1
				}
			}
		},
		"tiles gone": func(f map[string][]byte) {
			maps.DeleteFunc(f, func(name string, _ []byte) bool { return strings.HasPrefix(name, "tile/0/") })
		},
		"a payload":      func(f map[string][]byte) { f["payloads/6"][66] ^= 1 },
		"a payload gone": func(f map[string][]byte) { delete(f, "payloads/4") },
		"a stranger":     func(f map[string][]byte) { f["payloads/5000"] = f["payloads/4"] },
		"another log":    func(f map[string][]byte) { clear(f); maps.Copy(f, edited) },
		"its bundles": func(f map[string][]byte) {
			for name := range f {
				if strings.HasPrefix(name, "tile/entries") {
					f[name] = edited[name]
				}
			}
		},
		"a smaller claim": func(f map[string][]byte) { f["checkpoint"] = l.Note(5000) },
		"garbage": func(f map[string][]byte) {
			for n := 10; n < 30; n++ {
				f[bundle(n)] = bytes.Repeat([]byte{0, 3, 'x', 'y', 'z'}, 256)
			}
		},
	}
	all := []audit.Options{{VKey: l.VKey, Remembered: l.Note(4100), FaultsMax: 1 << 20}, {FaultsMax: 3, Remembered: l.Note(8192)}, {LinksOnly: true}}
	for i, name := range slices.Sorted(maps.Keys(damages)) {
		files := map[string][]byte{}
		for file, b := range honest {
			files[file] = bytes.Clone(b)
		}
		damages[name](files)
		fsys := fstest.MapFS{}
		for file, b := range files {
			fsys[file] = &fstest.MapFile{Data: b, Mode: 0o644}
		}
		for _, opts := range []audit.Options{all[0], all[1+i%2]} {
			one := verifiedAs(t, fsys, opts, true)
			if many := verifiedAs(t, fsys, opts, false); one != many {
				t.Errorf("%s, %d faults, %v: one goroutine says\n%s\nseveral\n%s", name, opts.FaultsMax, opts.LinksOnly, one, many)
			}
		}
		var known audit.Options
		if r, err := audit.VerifyExport(fsys, audit.Options{}); err == nil && name == "none" {
			known.Known = r.Known
			if known.Known == nil || verifiedAs(t, fsys, known, true) != verifiedAs(t, fsys, known, false) {
				t.Error("resumed")
			}
		}
	}
}

func verifiedAs(t *testing.T, fsys fs.FS, opts audit.Options, serial bool) string {
	t.Helper()
	opts.Serial = serial
	r, err := audit.VerifyExport(fsys, opts)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

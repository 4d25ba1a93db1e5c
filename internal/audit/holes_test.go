package audit_test

import (
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
)

// counted counts how often a file is looked for.
type counted struct {
	fstest.MapFS
	looks *atomic.Int64
}

func (c counted) Stat(name string) (fs.FileInfo, error) {
	c.looks.Add(1)
	return c.MapFS.Stat(name)
}

// A checkpoint that claims a log a thousand times as large, and a bundle here and
// there, do not have an auditor look for all that lies between.
func TestR80_AnExportOfHolesIsGivenUp(t *testing.T) {
	const bundles = 256 * 256
	l := logtest.Sample(origin, 1, 300)
	for _, apart := range []int{17, 256} {
		files := fstest.MapFS{}
		for name, b := range l.Files() {
			if name != "checkpoint" {
				files[name] = &fstest.MapFile{Data: b}
			}
		}
		text := strings.Split(l.Text(300), "\n")
		text[1] = fmt.Sprint(bundles * 256)
		files["checkpoint"] = &fstest.MapFile{Data: l.Sign(strings.Join(text, "\n"))}
		there := 0
		for n := apart - 1; n < bundles; n = min(n+apart, max(n+1, bundles-1)) {
			name := fmt.Sprintf("tile/entries/%03d", n%1000)
			if n >= 1000 {
				name = fmt.Sprintf("tile/entries/x%03d/%03d", n/1000, n%1000)
			}
			if files[name] == nil {
				files[name] = &fstest.MapFile{}
			}
			there++
		}
		for _, serial := range []bool{true, false} {
			looks := &atomic.Int64{}
			r, err := audit.VerifyExport(counted{files, looks}, audit.Options{FaultsMax: 20, Serial: serial})
			if err != nil {
				t.Fatal(err)
			}
			if most := int64(5_000 + there/8); looks.Load() > most || r.Events > 300*256*2 || r.Exit != audit.ExitFail {
				t.Errorf("%d apart, serial %v: %d events, looked %d times, at most %d; exit %d", apart, serial, r.Events, looks.Load(), most, r.Exit)
			}
			if c := r.Integrity.Checks[0]; c.Status != audit.Fail || !strings.Contains(c.Open, "more than 256 bundles are missing") {
				t.Errorf("%d apart, serial %v: %+v", apart, serial, c)
			}
		}
	}
}

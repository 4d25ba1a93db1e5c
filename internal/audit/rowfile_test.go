package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// rowsOf is the file of a log whose checkpoint is at size.
func rowsOf(t testing.TB, l *logtest.Log, format audit.RowFormat) []string {
	t.Helper()
	var out bytes.Buffer
	if err := audit.WriteRows(&out, l.Source(), format); err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func verifyRows(t testing.TB, text string, opts audit.Options) (*audit.Report, error) {
	t.Helper()
	x, err := audit.OpenRows(strings.NewReader(text), int64(len(text)))
	if err != nil {
		return nil, err
	}
	r, err := audit.VerifyRows(x, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r, nil
}

// A file of lines is verified as far as the directory of tiles of the same log: the
// verdict is the same, and so is each check but those of what lines have not.
func TestR80_AFileOfLinesIsVerifiedAsItsLogIs(t *testing.T) {
	l := logtest.Sample(origin, 1, 1500)
	for _, format := range []audit.RowFormat{audit.JSONLines, audit.CloudEvents} {
		file := strings.Join(rowsOf(t, l, format), "") + "\n"
		for _, opts := range []audit.Options{{}, {VKey: l.VKey}, {VKey: l.VKey, Remembered: l.Note(700)}, {Remembered: logtest.Sample(origin, 1, 1600).Note(1600)}, {VKey: logtest.New(origin, 9).VKey}} {
			whole := verifyLog(t, l.Source(), opts)
			r, err := verifyRows(t, file, opts)
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != whole.Verdict || r.Exit != whole.Exit || r.Root != whole.Root || r.Head != whole.Head || r.Events != whole.Events {
				t.Errorf("%s: %s\nwant %s", format, text(r), text(whole))
			}
			for _, c := range append(slices.Clone(r.Integrity.Checks), r.Completeness.Checks...) {
				switch c.Name {
				case "tree", "payloads":
					if c.Status != audit.NotRun || c.Open == "" {
						t.Errorf("%s: %+v", format, c)
					}
				case "rows":
				default:
					if c.Status != status(whole, c.Name) {
						t.Errorf("%s: %s is %s, of the log %s", format, c.Name, c.Status, status(whole, c.Name))
					}
				}
			}
		}
	}
}

// What is changed in a file of lines is found, and its line named.
func TestR80_AChangedFileOfLinesIsFound(t *testing.T) {
	l := logtest.Sample(origin, 1, 1500)
	for _, format := range []audit.RowFormat{audit.JSONLines, audit.CloudEvents} {
		honest := rowsOf(t, l, format)
		edited := l.Clone()
		edited.Edit(600, func(e *events.Event) { e.Agent = "other" })
		relinked := edited.Clone()
		relinked.Relink(601)
		other := logtest.Sample(origin, 2, 1500)
		for name, c := range map[string]struct {
			seq    uint64
			check  string
			change func(lines []string) []string
		}{
			"a line gone":       {700, "sequence", func(s []string) []string { return slices.Delete(s, 699, 700) }},
			"a line twice":      {701, "sequence", func(s []string) []string { return slices.Insert(s, 700, s[699]) }},
			"two lines swapped": {700, "sequence", func(s []string) []string { s[699], s[700] = s[700], s[699]; return s }},
			"an event edited": {601, "rows", func(s []string) []string {
				s[600] = strings.Replace(s[600], honestPart(format, l.Entries[600]), honestPart(format, edited.Entries[600]), 1)
				return s
			}},
			"an event of another log": {602, "chain", func(s []string) []string { s[600] = rowsOf(t, relinked, format)[600]; return s }},
			"a hash": {300, "rows", func(s []string) []string {
				s[299] = strings.Replace(s[299], events.LeafHash(l.Entries[299]).String(), strings.Repeat("0", 64), 1)
				return s
			}},
			"a seq":         {300, "rows", func(s []string) []string { s[299] = strings.Replace(s[299], "300", "301", 1); return s }},
			"a member more": {300, "parse", func(s []string) []string { s[299] = strings.Replace(s[299], "{", `{"x":1,`, 1); return s }},
			"a member twice": {300, "rows", func(s []string) []string {
				s[299] = strings.Replace(s[299], "{", `{"`+first(s[299])+`":`+value(s[299])+`,`, 1)
				return s
			}},
			"white space":              {300, "rows", func(s []string) []string { s[299] = strings.Replace(s[299], ":", ": ", 1); return s }},
			"an empty line":            {300, "parse", func(s []string) []string { s[299] = "\n"; return s }},
			"no JSON":                  {300, "parse", func(s []string) []string { s[299] = "{\"seq\"\n"; return s }},
			"binary":                   {300, "parse", func(s []string) []string { s[299] = "\xff\x00\x01\n"; return s }},
			"the checkpoint elsewhere": {300, "parse", func(s []string) []string { return slices.Insert(s, 299, s[1500]+"\n") }},
			"lines after it":           {1501, "parse", func(s []string) []string { return append(s[:1500:1500], s[1500]+"\n", s[0]) }},
			"another log's checkpoint": {0, "checkpoint", func(s []string) []string { s[1500] = rowsOf(t, other, format)[1500]; return s }},
			"cut at a line":            {1400, "checkpoint", func(s []string) []string { return append(s[:1399:1399], s[1500]) }},
		} {
			lines := slices.Clone(honest)
			if c.change(lines) == nil {
				t.Fatal(name)
			}
			changed := strings.Join(c.change(slices.Clone(honest)), "") + "\n"
			r, err := verifyRows(t, changed, audit.Options{VKey: l.VKey, FaultsMax: 5000})
			if err != nil {
				t.Errorf("%s, %s: %v", format, name, err)
				continue
			}
			named := slices.ContainsFunc(r.Faults, func(f audit.Fault) bool { return f.Seq == c.seq && f.Check == c.check })
			if r.Exit != audit.ExitFail || !named {
				t.Errorf("%s, %s: %d: %s", format, name, r.Exit, text(r))
			}
		}
		// A file that ends before its checkpoint says nothing false, and is not good.
		cut := strings.Join(honest[:1200], "")
		if r, err := verifyRows(t, cut, audit.Options{VKey: l.VKey}); err != nil || r.Exit != audit.ExitImpossible || r.Events != 1200 {
			t.Errorf("%s, cut: %v %s", format, err, text(r))
		}
		if r, err := verifyRows(t, cut, audit.Options{VKey: l.VKey, Remembered: l.Note(1300)}); err != nil || r.Exit != audit.ExitFail {
			t.Errorf("%s, cut and remembered: %v %s", format, err, text(r))
		}
		if r, err := verifyRows(t, cut+honest[1200][:100], audit.Options{}); err != nil || r.Exit != audit.ExitFail {
			t.Errorf("%s, cut within a line: %v %s", format, err, text(r))
		}
	}
}

// honestPart is the bytes of an event as they stand in a line.
func honestPart(format audit.RowFormat, event []byte) string {
	b, _ := json.Marshal(event)
	if format == audit.JSONLines {
		b, _ = json.Marshal(string(event))
	}
	return strings.Trim(string(b), `"`)
}

// first is the first member of a line, and value what it says.
func first(line string) string { return strings.Split(line, `"`)[1] }
func value(line string) string {
	_, rest, _ := strings.Cut(line, ":")
	v, _, _ := strings.Cut(rest, ",")
	return v
}

// What is no such file is said quickly, and a line without end is not read.
func TestR80_AHostileFileOfLinesFailsQuickly(t *testing.T) {
	l := logtest.Sample(origin, 1, 300)
	honest := rowsOf(t, l, audit.JSONLines)
	began := time.Now()
	for name, file := range map[string]string{
		"empty": "", "gzip": "\x1f\x8b\x08\x00abc\n", "text": "hello\n", "events": string(l.Entries[0])[1:] + "\n", "blank": "\n\n",
	} {
		if r, err := verifyRows(t, file, audit.Options{}); err == nil {
			t.Errorf("%s: %s", name, text(r))
		}
	}
	long := strings.Join(honest[:250], "") + `{"seq":251,"prev":"` + strings.Repeat("a", 40<<20)
	r, err := verifyRows(t, long, audit.Options{})
	if err != nil || r.Exit != audit.ExitFail || !slices.ContainsFunc(r.Faults, func(f audit.Fault) bool { return f.Check == "rows" && f.Seq == 251 && f.Where == "line 251" }) {
		t.Errorf("a long line: %v %s", err, text(r))
	}
	r, err = verifyRows(t, honest[0]+strings.Repeat("{}\n", 1_000_000), audit.Options{})
	if err != nil || r.Exit != audit.ExitFail || r.Events > 5000 {
		t.Errorf("lines of nothing: %v %d events, %s", err, r.Events, text(r))
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// Whatever is done to the bytes of a file of lines, it ends, and is never better than
// it was.
func TestR80_ADamagedFileOfLinesIsNeverGood(t *testing.T) {
	l := logtest.Sample(origin, 1, 40)
	r := rand.New(rand.NewPCG(1, 2))
	for _, format := range []audit.RowFormat{audit.JSONLines, audit.CloudEvents} {
		honest := []byte(strings.Join(rowsOf(t, l, format), "") + "\n")
		for n := range 400 {
			b := bytes.Clone(honest)
			at := r.IntN(len(b))
			switch n % 4 {
			case 0:
				b[at] ^= byte(1 + r.IntN(255))
			case 1:
				b = append(b[:at], b[at+1:]...)
			case 2:
				b = slices.Insert(b, at, byte(r.IntN(256)))
			default:
				b = b[:at]
			}
			x, err := audit.OpenRows(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				continue
			}
			report, err := audit.VerifyRows(x, audit.Options{VKey: l.VKey})
			if err != nil || report.Exit == audit.ExitPass {
				t.Errorf("%s, change %d at byte %d: %v, %s", format, n%4, at, err, fmt.Sprint(report))
			}
		}
	}
}

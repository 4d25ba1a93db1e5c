package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Report is what was measured, one row for each figure that there is, measured
// or not.
type Report struct {
	Machine Machine `json:"machine"`
	Rows    []Row   `json:"rows"`

	figures []figure
	at      map[string]int // key of a figure → its row
}

// Machine is where and how it was measured.
type Machine struct {
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"`
	GoMaxProcs int     `json:"gomaxprocs"`
	OS         string  `json:"os"`
	Go         string  `json:"go"`
	Build      string  `json:"build"`
	Dir        string  `json:"dir"`          // the disk that was written to
	SyncP50    float64 `json:"sync_p50_ms"`  // fdatasync of a 4 KiB append there
	Mix        string  `json:"mix"`          // what was sent, unless a row says otherwise
	Runs       int     `json:"runs"`         // pairs of each comparison
	Duration   string  `json:"run_duration"` // of one run
	Quick      bool    `json:"quick"`        // too little of everything for the figures to mean much
}

// Row is one figure. Value and Met are nil where it was not measured, and Base
// then says why; Met is nil too where there is no mark, or the conditions are
// not those the mark is for.
type Row struct {
	Figure string    `json:"figure"`
	Value  *float64  `json:"value"` // median of Runs
	Unit   string    `json:"unit"`
	Base   string    `json:"base"` // what it was measured against, with numbers
	Mark   string    `json:"mark"`
	Met    *bool     `json:"met"`
	Runs   []float64 `json:"runs"`
}

// figure is one thing to know of a ledger. Why says why it is not measured here,
// if it never is.
type figure struct {
	key, name, unit string
	mark            mark
	why             string
}

// mark is what a figure must reach: at least or at most a limit.
type mark struct {
	sign  string
	limit float64
	more  string
}

func (m mark) String() string {
	if m.sign == "" {
		return ""
	}
	return m.sign + " " + strconv.FormatFloat(m.limit, 'f', -1, 64) + m.more
}

func (m mark) met(v float64) bool {
	if m.sign == "≥" {
		return v >= m.limit
	}
	return v <= m.limit
}

func atLeast(limit float64) mark { return mark{"≥", limit, ""} }
func atMost(limit float64) mark  { return mark{"≤", limit, ""} }

const (
	outside  = "not measured: needs the other program beside it"
	tenMilli = "not measured: needs a long log, see --grow"
)

// figures lists every figure, in the order of the report. Ratios have the unit
// "×".
var figures = []figure{
	{"rate-256", "decisions/s ÷ bare echo, 256 outstanding, feed off", "×", atLeast(0.22), ""},
	{"rate-1024", "decisions/s ÷ bare echo, 1,024 outstanding, feed off", "×", atLeast(0.20), ""},
	{"feed-256", "decisions/s ÷ bare echo, 256 outstanding, feed on", "×", atLeast(0.10), ""},
	{"feed-1024", "decisions/s ÷ bare echo, 1,024 outstanding, feed on", "×", atLeast(0.10), ""},
	{"lag", "how far the feed lags at the end of a run", "s", atMost(1), ""},
	{"one", "p50 of one decision, 1 outstanding ÷ (fdatasync + echo)", "×", atMost(1.8), ""},
	{"clock-20000", "p99 at 20 k/s on a clock ÷ the echo's p99", "×", atMost(3), ""},
	{"clock-50000", "p99 at 50 k/s on a clock ÷ the echo's p99", "×", atMost(6), ""},
	{"immudb-set", "÷ immudb tuned, Set, 64 clients", "×", atLeast(6), outside},
	{"immudb-verified", "÷ immudb tuned, VerifiedSet, 64 clients", "×", atLeast(12), outside},
	{"sqlite", "÷ SQLite behind the same front, 256 outstanding", "×", atLeast(1.3), "not measured: needs SQLite beside it, which interop/sqlite has"},
	{"ids", "with operation ids ÷ without", "×", atLeast(0.85), ""},
	{"ids-restart", "with operation ids ÷ without, right after a restart", "×", atLeast(0.85), ""},
	{"permits", "with permits ÷ without", "×", atLeast(0.7), "not measured: there are no permits in this release"},
	{"decision", "one decision alone, 3 levels", "ns", mark{"≤", 500, " and 0 allocations"}, ""},
	{"sop", "10-step procedures judged in process", "/s", atLeast(400_000), ""},
	{"ruled", "one authorisation alone, with a schema and three inherited requirements", "ns", mark{}, ""},
	{"growth", "decisions/s with 10 M events and 1 M records ÷ with 10 k events", "×", atLeast(0.8), tenMilli},
	{"rules", "standard mix with argument rules ÷ without", "×", mark{}, ""},
	{"depth", "decisions/s of agents at depth 16 ÷ at depth 2", "×", atLeast(0.8), ""},
	{"restart", "ready after a restart", "s", mark{"≤", 2, " with 10 M events"}, ""},
	{"restart-killed", "ready after its process was killed", "s", mark{"≤", 2, " with 10 M events"}, tenMilli},
	{"links", "verify, links and tree only ÷ chain hash on one core", "×", atLeast(0.6), ""},
	{"verify", "verify, strict parse, tree and payloads ÷ chain hash on one core", "×", atLeast(0.25), ""},
	{"replay", "events judged again", "/s", atLeast(100_000), ""},
	{"disk", "bytes on disk ÷ bytes of the events", "×", atMost(1.6), ""},
	{"memory", "resident memory", "MiB", mark{"≤", 1536, " with 100 k agents and 1 M records"}, ""},
	{"only-read", "memory.read alone, decisions/s ÷ bare echo, 256 outstanding", "×", mark{}, ""},
	{"only-write", "memory.write alone, decisions/s ÷ bare echo, 256 outstanding", "×", mark{}, ""},
	{"only-authorize", "action.authorize alone, decisions/s ÷ bare echo, 256 outstanding", "×", mark{}, ""},
	{"only-sop", "ten-step sop.validate alone, decisions/s ÷ bare echo, 256 outstanding", "×", mark{}, ""},
}

// newReport has a row for every figure, none measured yet.
func newReport(m Machine, figures []figure) *Report {
	r := &Report{Machine: m, figures: figures, at: map[string]int{}}
	for i, f := range figures {
		why := f.why
		if why == "" {
			why = "not measured: the run ended before"
		}
		r.at[f.key] = i
		r.Rows = append(r.Rows, Row{Figure: f.name, Unit: f.unit, Base: why, Mark: f.mark.String(), Runs: []float64{}})
	}
	return r
}

func (r *Report) figure(key string) string { return r.Rows[r.at[key]].Figure }

// set enters what was measured. Without comparable the conditions are not those
// of the mark, which is then neither met nor missed.
func (r *Report) set(key string, comparable bool, base string, runs ...float64) {
	row, m := &r.Rows[r.at[key]], r.figures[r.at[key]].mark
	v := round(median(runs))
	row.Value, row.Base, row.Runs = &v, base, make([]float64, len(runs))
	for i, run := range runs {
		row.Runs[i] = round(run)
	}
	if met := m.met(v); comparable && m.sign != "" {
		row.Met = &met
	}
}

// round keeps four digits, all of the whole part.
func round(v float64) float64 {
	digits := 4
	for limit := 1.0; digits > 0 && (v >= limit || -v >= limit); limit *= 10 {
		digits--
	}
	short, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'f', digits, 64), 64)
	return short
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// count writes a number with a comma every three digits.
func count(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return strings.Join(append([]string{digits}, parts...), ",")
}

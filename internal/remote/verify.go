package remote

import (
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
)

// Verify verifies the log as audit.VerifyExport does. Where the server ended
// it, the report keeps the faults found in what was had before, and all else
// could not be checked.
func (l *Log) Verify(opts audit.Options) (*audit.Report, error) {
	l.mu.Lock()
	l.reached = l.size
	l.mu.Unlock()
	opts.Serial = true // it reads ahead itself, within its bounds
	r, err := audit.VerifyExport(l, opts)
	if err != nil {
		return nil, err
	}
	if failure := l.Err(); failure != nil {
		l.unfinished(r, failure)
	}
	return r, nil
}

// unfinished takes out of a report what only says that the server failed.
func (l *Log) unfinished(r *audit.Report, failure error) {
	l.mu.Lock()
	reached := l.reached
	l.mu.Unlock()
	seen := map[string]bool{}
	r.Faults = slices.DeleteFunc(r.Faults, func(f audit.Fault) bool {
		consequence := f.Seq == 0 || max(f.Seq, f.To) > reached || f.Check == "checkpoint" || f.Check == "remembered" ||
			strings.Contains(f.Found, ErrUnreachable.Error()+": ")
		seen[f.Check] = seen[f.Check] || !consequence
		return consequence
	})
	r.FaultsMore, r.Events = 0, min(r.Events, reached)
	for _, v := range []*audit.Verdict{&r.Integrity, &r.Completeness} {
		for i := range v.Checks {
			if c := &v.Checks[i]; c.Status != audit.NotRun && !seen[c.Name] {
				*c = audit.Check{Name: c.Name, Status: audit.Impossible, Open: failure.Error()}
			}
		}
	}
	r.Settle()
}

package natsapi

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Refusal counts what one id was refused for one reason.
type Refusal struct {
	ID    string // empty for unknown keys, and for ids beyond the limit
	Code  string
	Count uint64
	First time.Time
	Last  time.Time
}

// Refusals counts refusals between two drains, so that a flood of them becomes
// a few events instead of a full log. Safe for concurrent use.
type Refusals struct {
	mu    sync.Mutex
	max   int
	ids   map[string]bool
	count map[refusalKey]*Refusal
}

type refusalKey struct{ id, code string }

// NewRefusals keeps at most idsMax ids apart; those after them are counted
// under the empty id. Codes must come from a closed list.
func NewRefusals(idsMax int) *Refusals {
	return &Refusals{max: idsMax, ids: map[string]bool{}, count: map[refusalKey]*Refusal{}}
}

// Add counts one refusal.
func (r *Refusals) Add(id, code string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != "" && !r.ids[id] {
		if len(r.ids) < r.max {
			r.ids[id] = true
		} else {
			id = ""
		}
	}
	k := refusalKey{id, code}
	c := r.count[k]
	if c == nil {
		c = &Refusal{ID: id, Code: code, First: now}
		r.count[k] = c
	}
	c.Count++
	c.Last = now
}

// Drain returns what was counted since the last Drain, by id and code, and
// starts anew.
func (r *Refusals) Drain() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.count) == 0 {
		return nil
	}
	out := make([]Refusal, 0, len(r.count))
	for _, c := range r.count {
		out = append(out, *c)
	}
	clear(r.count)
	clear(r.ids)
	slices.SortFunc(out, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Code, b.Code))
	})
	return out
}

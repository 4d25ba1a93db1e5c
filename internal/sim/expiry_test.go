package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// ends says when a record's end is due, 0 where its run has ended; ok is false
// where it has none as things are.
func (m *model) ends(r *record) (at events.Time, ok bool) {
	switch {
	case r.deleted:
		return 0, false
	case r.run != "" && !m.run(r.run).open():
		return 0, true
	}
	return r.expires, r.expires != 0
}

func (m *model) gone(r *record) bool {
	at, ok := m.ends(r)
	return ok && at <= m.now
}

// expiry is the event that says of a record that it is gone, nil where it is
// not or that has been said.
func (m *model) expiry(owner, name string) *fact {
	r := m.change(owner, name)
	if r == nil || !m.gone(r) {
		return nil
	}
	said := record{owner: owner, name: name, visibility: r.visibility, class: r.class, revision: r.revision + 1, deleted: true}
	return &fact{kind: "memory.expired", record: said}
}

// due lists what is to be said of records that are gone, in the order of their ends.
func (m *model) due() (list []fact) {
	type end struct {
		fact
		at events.Time
	}
	var all []end
	seen := map[string]bool{}
	for i := range m.facts {
		r := m.facts[i].record
		if !strings.HasPrefix(m.facts[i].kind, "memory.") || seen[r.owner+":"+r.name] {
			continue
		}
		seen[r.owner+":"+r.name] = true
		if f := m.expiry(r.owner, r.name); f != nil {
			at, _ := m.ends(m.change(r.owner, r.name))
			all = append(all, end{*f, at})
		}
	}
	slices.SortFunc(all, func(a, b end) int {
		x, y := strings.LastIndexByte(a.record.name, '.'), strings.LastIndexByte(b.record.name, '.')
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.record.owner, b.record.owner),
			cmp.Compare(a.record.name[:x], b.record.name[:y]), cmp.Compare(a.record.name[x:], b.record.name[y:]))
	})
	for _, e := range all {
		list = append(list, e.fact)
	}
	return list
}

// lifetime says what is wrong with the seconds that a write names, 0 for none.
func (m *model) lifetime(name string, seconds uint64, inRun bool) string {
	class := m.classOf(name)
	switch {
	case class == "mandatory" && seconds > 0,
		class == "task" && m.policy.most > 0 && seconds > uint64(m.policy.most),
		class == "task" && m.policy.most == 0 && seconds == 0 && !inRun:
		return "value_not_allowed"
	}
	return ""
}

// lasts gives a record its end.
func (m *model) lasts(r *record, seconds uint64, run string) {
	if m.classOf(r.name) == "task" && seconds == 0 {
		seconds, r.run = uint64(m.policy.most), run
	}
	if seconds > 0 {
		r.expires = m.now + events.Time(seconds)*1_000_000
	}
}

// compareExpiries: after every batch it has been said of all that is gone.
func (w *world) compareExpiries(c *cursor) error {
	w.model.now = c.time()
	for _, f := range w.model.due() {
		if err := c.expect(events.System, 0, f); err != nil {
			return fmt.Errorf("what is gone: %w", err)
		}
		w.volumes.expired++
	}
	return nil
}

// ttl gives a write a time to live, where there may be one mostly.
func (w *world) ttl(body object) {
	if w.percent(12) || body["namespace"] == any("task") && w.percent(60) {
		body["ttl_seconds"] = pick(w, []int{1, 2, 5, 30, 600, 86400, events.TTLSecondsMax})
	}
}

// full says whose quota of records has no room for one more of an agent's: its
// own, or its tree's, which is the root's.
func (m *model) full(agent string) string {
	own, all := 0, 0
	line := m.ancestors(agent)
	root := line[len(line)-1]
	seen := map[string]bool{}
	for i := range m.facts {
		r := m.facts[i].record
		if !strings.HasPrefix(m.facts[i].kind, "memory.") || seen[r.owner+":"+r.name] {
			continue
		}
		seen[r.owner+":"+r.name] = true
		if m.change(r.owner, r.name).deleted {
			continue
		}
		if r.owner == agent {
			own++
		}
		if slices.Contains(m.ancestors(r.owner), root) {
			all++
		}
	}
	switch {
	case m.policy.records > 0 && own >= m.policy.records:
		return agent
	case m.policy.treeRecords > 0 && all >= m.policy.treeRecords:
		return root
	}
	return ""
}

package ledger

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/events"
)

// rootOf is the part of a test's id before the dot.
func rootOf(id string) string {
	root, _, _ := strings.Cut(id, ".")
	return root
}

// labelled is a job that its tester knows again.
func labelled(id string, n, bytes int) *job {
	return &job{note: &events.AgentRevoked{AgentID: fmt.Sprintf("%s#%d", id, n)}, bytes: bytes}
}

func label(j *job) string { return j.note.(*events.AgentRevoked).AgentID }

func (q *fairQueue) rest() []string {
	var list []string
	for j := q.pop(); j != nil; j = q.pop() {
		list = append(list, label(j))
	}
	return list
}

func TestR66_TreesTakeTurnsAndAgentsWithinThem(t *testing.T) {
	q := newFairQueue(queueLimits{100, 1000, 50, 500})
	for i, id := range []string{"a", "a", "a", "a.x", "a.x", "b", "b", "c.z", "a.y"} {
		if !q.push(id, labelled(id, i, 1), rootOf) {
			t.Fatal(id)
		}
	}
	got := strings.Join(q.rest(), " ")
	if want := "a#0 b#5 c.z#7 a.x#3 b#6 a.y#8 a#1 a.x#4 a#2"; got != want {
		t.Errorf("served %s\nwant   %s", got, want)
	}
	if q.jobs != 0 || q.bytes != 0 || len(q.senders) != 0 || len(q.trees) != 0 || q.turns.len() != 0 {
		t.Errorf("an empty queue holds %+v", q)
	}
}

// However many send however much, who has nothing waiting finds room.
func TestR66_AFloodLeavesRoomForOthers(t *testing.T) {
	for _, floods := range []int{1, 3, 50} {
		for _, trees := range []bool{true, false} {
			q := newFairQueue(queueLimits{10_000, 10 << 20, 10_000, 10 << 20})
			refused := 0
			for n := range 12_000 / floods {
				for f := range floods {
					id := fmt.Sprintf("t.%d", f)
					if trees {
						id = fmt.Sprint("t", f)
					}
					if !q.push(id, labelled(id, n, 100), rootOf) {
						refused++
					}
				}
			}
			if refused == 0 {
				t.Fatalf("%d floods were all taken", floods)
			}
			for _, id := range []string{"quiet", "t.quiet"} {
				for n := range 5 {
					if !q.push(id, labelled(id, n, 100), rootOf) {
						t.Fatalf("%d floods, trees %v: no room for %s after %d of its own; %d wait", floods, trees, id, n, q.jobs)
					}
				}
			}
		}
	}
}

func TestR66_BytesCountToo(t *testing.T) {
	q := newFairQueue(queueLimits{1000, 10_000, 100, 2000})
	if !q.push("b", labelled("b", 0, 1900), rootOf) || q.push("b", labelled("b", 1, 200), rootOf) || !q.push("b", labelled("b", 2, 100), rootOf) {
		t.Error("the bytes of one sender are not held to their limit")
	}
	if !q.push("a", labelled("a", 0, 5000), rootOf) {
		t.Error("a first job was refused for its size")
	}
	if q.push("a", labelled("a", 1, 1), rootOf) {
		t.Error("a sender over its bytes may add")
	}
	if q.push("c", labelled("c", 0, 3001), rootOf) || !q.push("c", labelled("c", 0, 3000), rootOf) {
		t.Error("the bytes of all are not held to their limit")
	}
}

// model says what a fair queue must do, slowly: a list for each sender.
type model struct {
	waiting map[string][]string // by sender, in order
	passed  map[string]map[string]int
}

// Whatever is pushed and popped: nothing is lost or doubled, the order of one
// sender is kept, the limits hold, and between two turns of a tree no other has
// more than one; so with the agents of a tree.
func TestR66_NobodyWaitsForMoreThanARound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := queueLimits{
			rapid.IntRange(1, 60).Draw(t, "jobs"), rapid.IntRange(100, 5000).Draw(t, "bytes"),
			rapid.IntRange(1, 30).Draw(t, "sender jobs"), rapid.IntRange(50, 3000).Draw(t, "sender bytes"),
		}
		q := newFairQueue(limits)
		m := model{map[string][]string{}, map[string]map[string]int{}}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		bytes, sizes := 0, map[string]int{}
		for n := range rapid.IntRange(1, 400).Draw(t, "steps") {
			if rng.IntN(5) < 3 {
				id := fmt.Sprintf("%d.%d", rng.IntN(4), rng.IntN(4))
				j := labelled(id, n, 1+rng.IntN(100))
				if q.push(id, j, rootOf) {
					if len(m.waiting[id]) == 0 {
						m.arrive(id)
					}
					m.waiting[id] = append(m.waiting[id], label(j))
					sizes[label(j)], bytes = j.bytes, bytes+j.bytes
				} else if len(m.waiting[id]) == 0 && q.jobs < limits.jobs && q.bytes+j.bytes <= limits.bytes && q.trees[rootOf(id)] == nil {
					t.Fatalf("%s has nothing waiting, there is room, and it is refused: %d jobs, %d bytes", id, q.jobs, q.bytes)
				}
			} else if j := q.pop(); j != nil {
				m.serve(t, label(j))
				bytes -= sizes[label(j)]
			} else if q.jobs != 0 {
				t.Fatalf("%d wait and none is served", q.jobs)
			}
			if q.bytes != bytes || q.jobs > limits.jobs || q.bytes > limits.bytes {
				t.Fatalf("%d jobs of %d bytes, counted %d", q.jobs, bytes, q.bytes)
			}
		}
		for j := q.pop(); j != nil; j = q.pop() {
			m.serve(t, label(j))
		}
		for id, list := range m.waiting {
			if len(list) > 0 {
				t.Fatalf("%s: %v lost", id, list)
			}
		}
	})
}

// arrive begins a sender's wait: nobody has passed it yet. Trees stand under
// their root with a dot before it.
func (m *model) arrive(id string) {
	if !m.trees()["."+rootOf(id)] {
		m.passed["."+rootOf(id)] = map[string]int{}
	}
	m.passed[id] = map[string]int{}
}

// trees are those of which somebody waits.
func (m *model) trees() map[string]bool {
	waiting := map[string]bool{}
	for id, list := range m.waiting {
		if len(list) > 0 {
			waiting["."+rootOf(id)] = true
		}
	}
	return waiting
}

func (m *model) serve(t *rapid.T, got string) {
	id, _, _ := strings.Cut(got, "#")
	tree := "." + rootOf(id)
	if list := m.waiting[id]; len(list) == 0 || list[0] != got {
		t.Fatalf("%s is served, %v waits", got, list)
	}
	for other, list := range m.waiting {
		if other != id && rootOf(other) == rootOf(id) && len(list) > 0 {
			m.pass(t, other, id)
		}
	}
	for other := range m.trees() {
		if other != tree {
			m.pass(t, other, tree)
		}
	}
	m.waiting[id] = m.waiting[id][1:]
	m.passed[id], m.passed[tree] = map[string]int{}, map[string]int{}
}

// pass counts a turn of one while another waits.
func (m *model) pass(t *rapid.T, waits, served string) {
	if m.passed[waits][served]++; m.passed[waits][served] > 1 {
		t.Fatalf("%s had more than a turn while %s waited", served, waits)
	}
}

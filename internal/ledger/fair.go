package ledger

// queueLimits bound a fairQueue.
type queueLimits struct {
	jobs, bytes             int // of all
	senderJobs, senderBytes int // of one sender
}

// fairQueue holds jobs until it is their turn. Trees take turns, and within a
// tree its agents, one job each; the jobs of one sender keep their order. So
// who sends much waits behind itself, and many children of one agent have no
// more turns together than a single agent elsewhere.
//
// What may wait shrinks as the queue fills: a tree may hold as much as is still
// free of the whole, a sender as much as its tree may still add. A flood, of
// however many trees, leaves room for who has nothing waiting yet.
type fairQueue struct {
	limits  queueLimits
	senders map[string]*sender // those with a job
	trees   map[string]*tree   // those with a sender here
	turns   fifo[*tree]
	jobs    int
	bytes   int
}

// tree is what waits of all agents under one root.
type tree struct {
	root        string
	turns       fifo[*sender]
	jobs, bytes int
}

// sender is what waits of one agent or principal.
type sender struct {
	id    string
	tree  *tree
	queue fifo[*job]
	bytes int
}

func newFairQueue(limits queueLimits) fairQueue {
	return fairQueue{limits: limits, senders: map[string]*sender{}, trees: map[string]*tree{}}
}

// push queues j of id, or reports false where id has no room left. rootOf names
// the root of an id that has nothing waiting.
func (q *fairQueue) push(id string, j *job, rootOf func(string) string) bool {
	s := q.senders[id]
	if s == nil {
		s = &sender{id: id}
		root := rootOf(id)
		if s.tree = q.trees[root]; s.tree == nil {
			s.tree = &tree{root: root}
		}
	}
	if !q.room(s, j.bytes) {
		return false
	}
	t := s.tree
	if s.queue.len() == 0 {
		q.senders[id] = s
		if t.turns.len() == 0 {
			q.trees[t.root] = t
			q.turns.push(t)
		}
		t.turns.push(s)
	}
	s.queue.push(j)
	q.count(s, 1, j.bytes)
	return true
}

// room reports whether s may have one more job, of so many bytes. The first of
// a sender counts as one of no bytes, so that size alone keeps nobody out.
func (q *fairQueue) room(s *sender, bytes int) bool {
	jobs, limits := s.queue.len(), &q.limits
	if q.jobs >= limits.jobs || q.bytes+bytes > limits.bytes {
		return false
	}
	if jobs == 0 {
		bytes = 0
	}
	return jobs < min(limits.senderJobs, limits.jobs-q.jobs-s.tree.jobs) &&
		s.bytes+bytes <= min(limits.senderBytes, limits.bytes-q.bytes-s.tree.bytes)
}

func (q *fairQueue) count(s *sender, jobs, bytes int) {
	s.bytes += bytes
	s.tree.jobs, s.tree.bytes = s.tree.jobs+jobs, s.tree.bytes+bytes
	q.jobs, q.bytes = q.jobs+jobs, q.bytes+bytes
}

// pop takes the job whose turn it is, nil when none waits.
func (q *fairQueue) pop() *job {
	if q.jobs == 0 {
		return nil
	}
	t := q.turns.pop()
	s := t.turns.pop()
	j := s.queue.pop()
	q.count(s, -1, -j.bytes)
	if s.queue.len() > 0 {
		t.turns.push(s)
	} else {
		delete(q.senders, s.id)
	}
	if t.turns.len() > 0 {
		q.turns.push(t)
	} else {
		delete(q.trees, t.root)
	}
	return j
}

// fifo is a first-in first-out list in a ring that grows.
type fifo[T any] struct {
	ring    []T // a power of two long
	head, n int
}

func (f *fifo[T]) len() int { return f.n }

func (f *fifo[T]) push(v T) {
	if f.n == len(f.ring) {
		grown := make([]T, max(4, 2*f.n))
		n := copy(grown, f.ring[f.head:])
		copy(grown[n:], f.ring[:f.head])
		f.ring, f.head = grown, 0
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = v
	f.n++
}

func (f *fifo[T]) pop() T {
	var none T
	v := f.ring[f.head]
	f.ring[f.head] = none
	f.head, f.n = (f.head+1)&(len(f.ring)-1), f.n-1
	return v
}

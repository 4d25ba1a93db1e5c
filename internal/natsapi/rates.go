package natsapi

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rates gives each sender a bucket of tokens, and each tree one for all its
// agents: they could otherwise multiply their rate by registering children.
// Senders are registered ids, since the server pins them, so that the map is
// bounded by the registry. Safe for concurrent use.
type rates struct {
	one, tree limit
	rootOf    func(id string) string

	mu    sync.Mutex
	by    map[string]*buckets
	trees map[string]*rate.Limiter
}

// limit is tokens a second, 0 for none, and how many may be taken at once.
type limit struct {
	rate  rate.Limit
	burst int
}

// buckets are those that one sender's tokens come from.
type buckets struct{ own, tree *rate.Limiter }

func newRates(one, tree limit, rootOf func(string) string) *rates {
	return &rates{one: one, tree: tree, rootOf: rootOf, by: map[string]*buckets{}, trees: map[string]*rate.Limiter{}}
}

// take takes n tokens of id, or none. Those of its tree are left alone while its
// own are used up, so that one agent's flood costs its kin nothing.
func (r *rates) take(id string, n int) bool {
	if r.one.rate == 0 || n == 0 {
		return true
	}
	b, now := r.of(id), time.Now()
	return b.own.AllowN(now, n) && b.tree.AllowN(now, n)
}

func (r *rates) of(id string) *buckets {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.by[id]
	if b == nil {
		root := r.rootOf(id)
		tree := r.trees[root]
		if tree == nil {
			tree = rate.NewLimiter(r.tree.rate, r.tree.burst)
			r.trees[root] = tree
		}
		b = &buckets{rate.NewLimiter(r.one.rate, r.one.burst), tree}
		r.by[id] = b
	}
	return b
}

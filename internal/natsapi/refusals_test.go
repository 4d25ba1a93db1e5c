package natsapi

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"
)

// R76: refusals are counted per id and code, with the first and the last time;
// a flood of ids ends in one counter and none is lost.
func TestR76_RefusalsAreCounted(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	r := NewRefusals(2)
	r.Add("bot", DeniedPublish, at(1))
	r.Add("", DeniedAuth, at(2))
	r.Add("bot", DeniedPublish, at(3))
	r.Add("bot", DeniedSubscribe, at(4))
	r.Add("ant", DeniedPublish, at(5))
	r.Add("cat", DeniedPublish, at(6)) // the third id
	r.Add("dog", DeniedPublish, at(7))
	r.Add("bot", DeniedPublish, at(8))
	want := []Refusal{
		{"", DeniedAuth, 1, at(2), at(2)},
		{"", DeniedPublish, 2, at(6), at(7)},
		{"ant", DeniedPublish, 1, at(5), at(5)},
		{"bot", DeniedPublish, 3, at(1), at(8)},
		{"bot", DeniedSubscribe, 1, at(4), at(4)},
	}
	if got := r.Drain(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := r.Drain(); got != nil {
		t.Errorf("again %+v", got)
	}
	r.Add("cat", DeniedPublish, at(9))
	if got := r.Drain(); len(got) != 1 || got[0].ID != "cat" {
		t.Errorf("after a drain %+v", got)
	}
}

func TestR76_RefusalsUnderConcurrency(t *testing.T) {
	r := NewRefusals(5)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				r.Add(fmt.Sprintf("a%d", (g+i)%20), DeniedPublish, time.Unix(int64(i), 0))
			}
		})
	}
	var total uint64
	for range 50 {
		for _, c := range r.Drain() {
			total += c.Count
		}
	}
	wg.Wait()
	last := r.Drain()
	if len(last) > 6 {
		t.Errorf("%d counters", len(last))
	}
	for _, c := range last {
		total += c.Count
	}
	if total != 8000 {
		t.Errorf("%d counted of 8000", total)
	}
}

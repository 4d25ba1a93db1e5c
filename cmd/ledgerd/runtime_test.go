package main

import "testing"

// Between two collections the heap grows by heapSpare, or by half where more
// than twice that lives in it.
func TestTheHeapGrowsByAConstant(t *testing.T) {
	for live, want := range map[uint64]int{0: gcPercentMax, 1 << 20: gcPercentMax, 48 << 20: 800, heapSpare: 100, 4 * heapSpare: gcPercentMin} {
		if got := gcPercent(live); got != want {
			t.Errorf("of %d bytes: %d %%, want %d", live, got, want)
		}
	}
}

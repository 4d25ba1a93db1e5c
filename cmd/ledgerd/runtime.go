package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// tuneRuntime sets what a serving process gains from, unless the environment
// says otherwise: a heap that may grow further between collections, since most
// of it lives long, and more threads than cores on a small machine, where flush
// and collection otherwise run in slices of 10 ms that requests wait for.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		go tuneHeap()
	}
	if n := runtime.NumCPU(); os.Getenv("GOMAXPROCS") == "" && n <= 4 {
		runtime.GOMAXPROCS(2 * n)
	}
}

const (
	gcPercentMin = 50
	gcPercentMax = 10_000
	heapSpare    = 384 << 20 // bytes that may be garbage where less than twice as much is live
	heapLook     = time.Second
)

// tuneHeap lets the heap grow by heapSpare between collections, so that memory is
// what lives in it and a constant. A collection takes a core or more from the
// decisions for as long as it marks: the fewer, the fewer wait for one.
// GOMEMLIMIT, where it is set, holds all the same.
func tuneHeap() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for percent := 0; ; time.Sleep(heapLook) {
		metrics.Read(live)
		want := gcPercent(live[0].Value.Uint64())
		if want < percent*9/10 || want > percent*11/10 {
			percent = want
			debug.SetGCPercent(percent)
		}
	}
}

func gcPercent(live uint64) int {
	return int(min(gcPercentMax, max(gcPercentMin, heapSpare*100/max(1, live))))
}

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
		debug.SetGCPercent(gcPercentMax)
		go tuneHeap()
	}
	if n := runtime.NumCPU(); os.Getenv("GOMAXPROCS") == "" && n <= 4 {
		runtime.GOMAXPROCS(2 * n)
	}
}

const (
	gcPercentMax = 400
	gcPercentMin = 50
	heapSpare    = 384 << 20 // bytes that may be garbage where more is live
	heapLook     = time.Second
)

// tuneHeap lets a small heap grow fourfold and a large one by heapSpare, so that
// memory is what lives in it and a constant.
func tuneHeap() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for percent := gcPercentMax; ; time.Sleep(heapLook) {
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

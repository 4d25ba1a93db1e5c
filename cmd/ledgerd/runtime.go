package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// tuneRuntime sets what a serving process gains from, unless the environment
// says otherwise: a heap that may grow further between collections, since most
// of it lives long, and more threads than cores on a small machine, where flush
// and collection otherwise run in slices of 10 ms that requests wait for.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if n := runtime.NumCPU(); os.Getenv("GOMAXPROCS") == "" && n <= 4 {
		runtime.GOMAXPROCS(2 * n)
	}
}

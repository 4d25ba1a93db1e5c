// Command sqlite measures a ledger beside a writer on SQLite in its place, behind
// the same front:
//
//	go run . [-runs 5] [-duration 1s] [-dir DIR]
//
// The writer is kinder to SQLite than a ledger could be. It decides nothing, keeps
// no tree, seals nothing, remembers no operation id and answers 300 constant bytes;
// what it does is what any log of decisions has to: take each request apart as
// strictly as ledgerd does, chain as many events as ledgerd would, of as many
// bytes, and commit all that waits in one transaction before it answers. The
// database is one table in WAL mode, synchronous FULL.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench"
)

func main() {
	runs := flag.Int("runs", 5, "pairs")
	duration := flag.Duration("duration", time.Second, "of one run")
	dir := flag.String("dir", "", "directory on the disk to measure")
	flag.Parse()
	if n := runtime.NumCPU(); os.Getenv("GOMAXPROCS") == "" && n <= 4 {
		runtime.GOMAXPROCS(2 * n) // as ledgerd does
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	row, err := measure(ctx, bench.Options{Runs: *runs, Duration: *duration, Dir: *dir, Progress: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s: %.3g %s (%s): %s\n", row.Figure, *row.Value, row.Unit, row.Mark, row.Base)
}

func measure(ctx context.Context, o bench.Options) (bench.Row, error) {
	o.Only, o.Peer, o.Version = "SQLite", serve, "0.0.0"
	report, err := bench.Run(ctx, o)
	if err != nil {
		return bench.Row{}, err
	}
	for _, row := range report.Rows {
		if row.Value != nil {
			return row, nil
		}
	}
	return bench.Row{}, fmt.Errorf("nothing was measured")
}

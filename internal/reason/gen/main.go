// Command gen writes docs/REASONS.md from the reason table.
package main

import (
	"fmt"
	"os"

	"github.com/ledgerd/ledgerd/internal/reason"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(reason.Markdown()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

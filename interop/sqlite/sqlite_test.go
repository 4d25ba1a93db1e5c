package main

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/bench"
)

// The peer answers everything, and what it answered is in its table: serve's stop
// counts it.
func TestThePeerIsMeasured(t *testing.T) {
	row, err := measure(t.Context(), bench.Options{Quick: true, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if row.Value == nil || *row.Value <= 0 || row.Met == nil {
		t.Errorf("%+v", row)
	}
	t.Log(row.Base)
}

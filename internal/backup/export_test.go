package backup

import (
	"testing"
	"time"
)

// SettleWithin changes for a test how long Write looks for a good moment.
func SettleWithin(t testing.TB, d time.Duration) {
	was := settledWithin
	settledWithin = d
	t.Cleanup(func() { settledWithin = was })
}

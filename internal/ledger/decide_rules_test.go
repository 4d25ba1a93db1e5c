package ledger

import "testing"

func TestX(t *testing.T) {
	for _, f := range []string{"worked_case", "who", "write", "read", "secrets", "mandatory", "authorize", "sop", "register", "principals", "environment", "load", "retry", "requests", "apply"} {
		t.Run(f, func(t *testing.T) { runTable(t, f) })
	}
}

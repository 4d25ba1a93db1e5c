package main

import (
	"os/exec"
	"testing"
)

// The second implementation too reads each key of a log a few times, and takes the
// signatures of the keys in force and of no others.
func TestR81_KeysInPython(t *testing.T) {
	if out, err := exec.Command("python3", "testdata/rotated.py", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
)

// What blocks whoever opens it, or has no end, is refused before it is opened.
func TestFilesThatAreNoneDoNotHang(t *testing.T) {
	for _, name := range []string{"anchor", "keys/seal.key", "db/000099.sst", "db/000099.log"} {
		dir := realLedger(t)
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if exit, says := whatever("--data", dir); exit == audit.ExitPass || !strings.Contains(says, "no regular file") {
			t.Errorf("%s is a pipe: exit %d, %s", name, exit, says)
		}
	}
	dir := realLedger(t)
	anchor := filepath.Join(dir, "anchor")
	if err := os.Remove(anchor); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", anchor); err != nil {
		t.Fatal(err)
	}
	if exit, says := whatever("--data", dir); exit == audit.ExitPass {
		t.Errorf("the anchor has no end: exit %d, %s", exit, says)
	}
}

func whatever(args ...string) (int, string) {
	var out, errs bytes.Buffer
	exit := run(args, nil, &out, &errs)
	return exit, out.String() + errs.String()
}

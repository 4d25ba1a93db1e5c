package main

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/store"
)

// asNobody runs f as somebody who may not read what this user made.
func asNobody(t *testing.T, dir string, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(dir, 0o700)
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0)
	}
	f()
}

// What may not be read is no damage: one finding, no word of restoring or verifying,
// and no exit code of integrity.
func TestDoctorMayNotRead(t *testing.T) {
	for _, part := range []string{"", "db", "keys"} {
		place := t.TempDir()
		data := filepath.Join(place, "data")
		if err := ledger.Init(data, ledger.InitOptions{}); err != nil {
			t.Fatal(err)
		}
		if part != "" { // the way there is open to all
			for _, dir := range []string{data, place, filepath.Dir(place)} {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		var out bytes.Buffer
		var err error
		d := &doctor{app: &app{stdout: &out}, data: data}
		asNobody(t, filepath.Join(data, part), func() {
			d.examine(context.Background())
			err = d.tell()
		})
		if len(d.findings) != 1 || d.findings[0].exit != exitInternal || err == nil || !strings.Contains(out.String(), "next: look as ") || strings.Contains(out.String(), "restore") {
			t.Errorf("%q: %v %s", part, err, out.String())
		}
	}
	fault := openFault(t.TempDir(), &fs.PathError{Op: "open", Path: "anchor", Err: fs.ErrPermission})
	if code := exitCode(fault); code != exitInternal || !strings.Contains(fault.Error(), "next: run this as user ") {
		t.Errorf("exit %d: %v", code, fault)
	}
	if code := exitCode(openFault(t.TempDir(), store.ErrNoAnchor)); code != exitIntegrity {
		t.Errorf("exit %d", code)
	}
}

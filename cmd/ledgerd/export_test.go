package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
)

// Who interrupts an export has none, and nothing half written is left.
func TestAnExportEndsWithItsContext(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	if err := ledger.Init(data, ledger.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	for _, o := range []exportOptions{{format: "tiles"}, {format: "tiles", payloads: true}, {format: "jsonl"}, {format: "cloudevents"}} {
		place := t.TempDir()
		o.data, o.out = data, filepath.Join(place, "out")
		if _, err := export(ended, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v: %v", o, err)
		}
		if left, err := os.ReadDir(place); err != nil || len(left) > 0 {
			t.Errorf("%+v left %v, %v", o, left, err)
		}
		if size, err := export(context.Background(), o); err != nil || size == 0 {
			t.Errorf("%+v: %d events, %v", o, size, err)
		}
	}
	if _, err := os.Stat(filepath.Join(data, "out")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

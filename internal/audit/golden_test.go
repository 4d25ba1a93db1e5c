package audit_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
)

var update = flag.Bool("update", false, "write the golden export anew")

const vectors = "../events/testdata/v1"

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectors, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenSource is the golden log of package events with its open payloads.
func goldenSource(t testing.TB) *audit.Source {
	t.Helper()
	var meta struct {
		Payloads []struct {
			Seq           uint64
			Open          bool
			Salt, Payload string
		}
	}
	if err := json.Unmarshal(read(t, "log.json"), &meta); err != nil {
		t.Fatal(err)
	}
	log := bytes.Split(bytes.TrimSuffix(read(t, "log.jsonl"), []byte("\n")), []byte("\n"))
	return &audit.Source{
		Size: uint64(len(log)), Checkpoint: read(t, "checkpoint"),
		Events: func(from, to uint64, fn func(uint64, []byte) error) error {
			for seq := from; seq <= to; seq++ {
				if err := fn(seq, log[seq-1]); err != nil {
					return err
				}
			}
			return nil
		},
		Payload: func(seq uint64) (audit.Payload, error) {
			for _, p := range meta.Payloads {
				if p.Seq == seq {
					salt, err := hex.DecodeString(p.Salt)
					return audit.Payload{State: audit.PayloadReadable, Salt: [32]byte(salt), Bytes: []byte(p.Payload)}, err
				}
			}
			return audit.Payload{}, nil
		},
	}
}

// TestR78_GoldenLogVerifies: the stored golden log, sealed payloads included,
// passes today's verifier under its key; so does its stored export, which
// today's writer writes byte for byte.
func TestR78_GoldenLogVerifies(t *testing.T) {
	vkey := string(bytes.TrimSpace(read(t, "vkey")))
	r, err := audit.VerifyLog(goldenSource(t), audit.Options{VKey: vkey, Remembered: read(t, "checkpoint")})
	if err != nil || r.Exit != audit.ExitPass || r.Verdict != "authentic" || r.Events != 11 {
		t.Fatalf("%v\n%s", err, text(r))
	}
	stored := filepath.Join(vectors, "export")
	if *update {
		if err := os.RemoveAll(stored); err != nil {
			t.Fatal(err)
		}
		if err := audit.WriteExport(stored, goldenSource(t)); err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(t, os.DirFS(stored), audit.Options{VKey: vkey}); r.Exit != audit.ExitPass || r.Verdict != "authentic" || r.Events != 11 {
		t.Errorf("stored export: %s", text(r))
	}
	fresh := filepath.Join(t.TempDir(), "out")
	if err := audit.WriteExport(fresh, goldenSource(t)); err != nil {
		t.Fatal(err)
	}
	got, want := tree(t, fresh), tree(t, stored)
	if len(got) != len(want) || len(got) < 5 {
		t.Errorf("%d files, stored %d", len(got), len(want))
	}
	for name, b := range want {
		if got[name] != b {
			t.Errorf("%s differs", name)
		}
	}
}

func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := os.DirFS(dir)
	err := walkFiles(root, func(name string, b []byte) { files[name] = string(b) })
	if err != nil {
		t.Fatal(err)
	}
	return files
}

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/bench"
)

// TestBenchQuick sees that every figure has its row, measured or with the
// reason why not. The figures themselves are nobody's test.
func TestBenchQuick(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	env := func(string) string { return "" }
	if code := run(t.Context(), []string{"bench", "--quick", "-o", "json", "--dir", dir}, env, nil, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	strict := json.NewDecoder(bytes.NewReader(stdout.Bytes()))
	strict.DisallowUnknownFields()
	var r bench.Report
	if err := strict.Decode(&r); err != nil {
		t.Fatalf("%v in %s", err, &stdout)
	}
	if r.Machine.Cores == 0 || r.Machine.CPU == "" || r.Machine.SyncP50 <= 0 || !r.Machine.Quick {
		t.Errorf("machine %+v", r.Machine)
	}
	measured, named := 0, map[string]bool{}
	for _, row := range r.Rows {
		named[row.Figure] = true
		if row.Figure == "" || row.Unit == "" || row.Base == "" || row.Runs == nil {
			t.Errorf("incomplete row %+v", row)
		}
		if row.Value != nil {
			measured++
			if len(row.Runs) == 0 || *row.Value < 0 {
				t.Errorf("%s: value %v of runs %v", row.Figure, *row.Value, row.Runs)
			}
			continue
		}
		if row.Met != nil || len(row.Runs) > 0 || !strings.HasPrefix(row.Base, "not measured: ") || strings.Contains(row.Base, "ended before") {
			t.Errorf("a row without a value: %+v", row)
		}
	}
	if measured < 21 || len(r.Rows) != 31 || len(named) != len(r.Rows) {
		t.Errorf("%d rows, %d of them measured", len(r.Rows), measured)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v left behind (%v)", left, err)
	}
}

// TestBenchOverload sees that every figure of the overload run is measured, and
// those that no other work on the machine can spoil are what they must be: who
// keeps to its rate is not refused, everybody is answered, every refusal counted.
func TestBenchOverload(t *testing.T) {
	var stdout, stderr bytes.Buffer
	env := func(string) string { return "" }
	if code := run(t.Context(), []string{"bench", "--overload", "--quick", "-o", "json", "--dir", t.TempDir()}, env, nil, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	var r bench.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	exact := 0
	for _, row := range r.Rows {
		if row.Value == nil || row.Met == nil {
			t.Errorf("not measured: %+v", row)
		} else if row.Mark == "≤ 0" {
			if exact++; *row.Value != 0 {
				t.Errorf("%+v", row)
			}
		}
	}
	if len(r.Rows) != 8 || exact != 4 {
		t.Errorf("%d rows, %d of them exact", len(r.Rows), exact)
	}
}

func TestBenchRefusesMistakes(t *testing.T) {
	env := func(string) string { return "" }
	for _, args := range [][]string{{"--mix", "none"}, {"--runs", "-1"}, {"--duration", "-1s"}, {"extra"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"bench"}, args...), env, nil, &stdout, &stderr); code != exitUsage || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, %s %s", args, code, &stdout, &stderr)
		}
	}
}

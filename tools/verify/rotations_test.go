package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// handedOver is a log of 20 events whose second key, brought by event 15, follows
// on the first, which event 17 retires.
func handedOver() *logtest.Log {
	l := logtest.Sample(testOrigin, 1, 14)
	fill := func() { l.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"}) }
	l.Rotate(2)
	fill()
	l.Retire()
	for len(l.Entries) < 20 {
		fill()
	}
	return l
}

func rotationsOf(t testing.TB, l *logtest.Log) []byte {
	t.Helper()
	list, err := l.Source().Rotations()
	if err != nil {
		t.Fatal(err)
	}
	return audit.EncodeRotations(list)
}

// TestR81_R84_RotationsOffline: with the rotations a proof, and a newer checkpoint,
// hold under the key that was pinned before; the second implementation agrees.
func TestR81_R84_RotationsOffline(t *testing.T) {
	l, dir := handedOver(), t.TempDir()
	file := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	thief := logtest.Sample(testOrigin, 1, 14)
	thief.Rotate(7)
	retired := l.Clone()
	retired.Signer, _ = logtest.Key(l.Origin, 1)
	before := logtest.Sample(testOrigin, 1, 14)
	newKey, _ := logtest.Key(l.Origin, 2)
	early := before.Clone()
	early.Signer = newKey
	shown, damaged := rotationsOf(t, l), rotationsOf(t, l)
	damaged[len(damaged)-10] ^= 1
	receipt, proof := file("receipt", receiptOf(t, l, 10).Encode()), file("proof", inclusion(t, l, 10))
	kept, newer := file("kept", before.Note(14)), file("newer", consistency(t, l, 14))
	rotations := []string{"--rotations", file("rotations", shown)}
	first, second := []string{"--vkey", l.VKey}, []string{"--vkey", l.Next[0]}
	for what, c := range map[string]struct {
		args  []string
		exit  int
		check string
	}{
		"a proof":                        {cat([]string{"--receipt", receipt, "--proof", proof}, first, rotations), 0, ""},
		"a proof, with the newer key":    {cat([]string{"--receipt", receipt, "--proof", proof}, second, rotations), 0, ""},
		"a newer checkpoint":             {cat([]string{"--consistency", newer, "--checkpoint", kept}, first, rotations), 0, ""},
		"a proof, nothing shown":         {cat([]string{"--receipt", receipt, "--proof", proof}, first), 1, "checkpoint"},
		"remembered before its key":      {cat([]string{"--consistency", newer, "--checkpoint", kept}, second, rotations), 2, ""},
		"damaged rotations":              {cat([]string{"--receipt", receipt, "--proof", proof}, first, []string{"--rotations", file("damaged", damaged)}), 1, "rotation"},
		"a thief's rotations":            {cat([]string{"--receipt", receipt, "--proof", proof}, first, []string{"--rotations", file("thief", rotationsOf(t, thief))}), 1, "checkpoint"},
		"the rotations of another key":   {cat([]string{"--receipt", receipt, "--proof", proof}, []string{"--vkey", logtest.New(l.Origin, 9).VKey}, rotations), 1, "rotation"},
		"a retired key's proof":          {cat([]string{"--receipt", receipt, "--proof", file("retired", inclusion(t, retired, 10))}, first, rotations), 1, "checkpoint"},
		"a retired key's newer one":      {cat([]string{"--consistency", file("retired-newer", consistency(t, retired, 14)), "--checkpoint", kept}, first, rotations), 1, "checkpoint"},
		"the new key before its event":   {cat([]string{"--receipt", receipt, "--proof", file("early", inclusion(t, early, 10))}, first, rotations), 1, "checkpoint"},
		"an old proof, by the old key":   {cat([]string{"--receipt", receipt, "--proof", file("old", inclusion(t, before, 10))}, first, rotations), 0, ""},
		"no proof, and rotations":        {cat([]string{"--receipt", receipt, "--proof", file("none", []byte("x"))}, first, rotations), 1, "proof"},
		"rotations that are no rotation": {cat([]string{"--receipt", receipt, "--proof", proof}, first, []string{"--rotations", kept}), 1, "rotation"},
	} {
		exit, r := verifyJSON(t, c.args...)
		if exit != c.exit || c.check != "" && !failed(r, c.check) {
			t.Errorf("%s: exit %d, want %d with %q: %+v", what, exit, c.exit, c.check, r)
		}
		for _, f := range r.Faults {
			if f.Expected == "" || f.Found == "" {
				t.Errorf("%s: %+v", what, f)
			}
		}
		if got, out := python(t, c.args...); got != c.exit {
			t.Errorf("%s: python: exit %d, want %d: %s", what, got, c.exit, out)
		}
	}
	exit, r := verifyJSON(t, cat([]string{"--receipt", receipt, "--proof", proof}, first, rotations)...)
	said := ""
	for _, c := range r.Integrity.Checks {
		if c.Name == "rotation" {
			said = c.Text
		}
	}
	if exit != 0 || len(r.Keys) != 2 || !strings.Contains(said, "handed over to key") || !strings.Contains(said, "with event 15") {
		t.Errorf("exit %d, %v, %q", exit, r.Keys, said)
	}
	for _, args := range [][]string{{"--export", "x", "--rotations", "y", "--vkey", l.VKey}, cat([]string{"--receipt", receipt, "--proof", proof}, rotations), {"--proof", proof, "--receipt", receipt, "--vkey", l.VKey, "--rotations", ""}, cat([]string{"--receipt", receipt, "--proof", proof}, first, []string{"--rotations", filepath.Join(dir, "nowhere")})} {
		var out, errs bytes.Buffer
		if exit := run(args, nil, &out, &errs); exit != audit.ExitImpossible || errs.Len() == 0 {
			t.Errorf("%q: exit %d, %q", args, exit, errs.String())
		}
	}
}

func cat(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/replay"
)

// audit verifies the closed log and judges it again, as an auditor who was
// given the verifier key and has kept a checkpoint, and then has two damaged
// copies found out.
func (d *demo) audit() (err error) {
	d.say("\nThe auditor, offline")
	data, err := datadir.Open(d.data)
	if err != nil {
		return fmt.Errorf("open the log for the auditor: %w", err)
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	vkey, err := os.ReadFile(filepath.Join(d.data, "keys", "checkpoint.vkey"))
	if err != nil {
		return fmt.Errorf("read the verifier key: %w", err)
	}
	source := data.Source()
	opts := audit.Options{VKey: strings.TrimSpace(string(vkey)), Remembered: source.Checkpoint}
	report, err := audit.VerifyLog(source, opts)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	d.say("      verify     %d events, %s: chain, tree, checkpoint and payloads %s; nothing missing: %s",
		report.Events, report.Verdict, report.Integrity.Status, report.Completeness.Status)
	if more := report.Events - uint64(d.streamed); more > 0 {
		d.say("                 (%d more than the stream had then: what the server itself refused is summed up later)", more)
	}
	d.expect(report.Exit == audit.ExitPass && report.Verdict == "authentic", "%v", report.Faults)
	if err := d.judgeAgain(data); err != nil {
		return err
	}
	if err := d.lookForSecret(); err != nil {
		return err
	}
	if err := d.flipByte(source, opts); err != nil {
		return err
	}
	return d.truncate(*source, opts)
}

func (d *demo) judgeAgain(data *datadir.Dir) error {
	source, err := replay.Stored(d.data, data.Store)
	if err != nil {
		return fmt.Errorf("judge again: %w", err)
	}
	r := replay.Run(source)
	d.say("      re-judged  %d of %d decisions from the state before each: %d that the rules would not give", r.Judged, r.Decisions, r.Found)
	d.expect(r.Err == nil && r.Found == 0 && r.Unjudged() == 0 && r.Decisions > 0, "%v %v", r.Err, r.Findings)
	return nil
}

// lookForSecret reads every byte of the data directory.
func (d *demo) lookForSecret() error {
	files, found := 0, 0
	err := filepath.WalkDir(d.data, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		files++
		if bytes.Contains(b, []byte(demoToken)) {
			found++
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look for the secret: %w", err)
	}
	d.say("      secret     storage_token stands in plain in %d of %d files, and in no event or reply", found, files)
	d.expect(found == 0 && files > 0, "the secret is readable on disk")
	return nil
}

// flipByte changes one byte of one denial in an exported copy.
func (d *demo) flipByte(source *audit.Source, opts audit.Options) error {
	dir := filepath.Join(d.work, "flipped")
	if err := audit.WriteExport(dir, source); err != nil {
		return err
	}
	var event []byte
	if err := source.Events(d.denial, d.denial, func(_ uint64, b []byte) error {
		event = bytes.Clone(b)
		return nil
	}); err != nil {
		return fmt.Errorf("read event %d: %w", d.denial, err)
	}
	forged := bytes.Replace(event, []byte("actor_is_not_owner"), []byte("actor_is_now_owner"), 1)
	bundles, err := filepath.Glob(filepath.Join(dir, "tile", "entries", "*.p", "*"))
	if err != nil || len(bundles) != 1 {
		return fmt.Errorf("the export has %d entry bundles: %w", len(bundles), err)
	}
	b, err := os.ReadFile(bundles[0])
	if err != nil {
		return fmt.Errorf("read the copy: %w", err)
	}
	if err := os.WriteFile(bundles[0], bytes.Replace(b, event, forged, 1), 0o600); err != nil {
		return fmt.Errorf("damage the copy: %w", err)
	}
	report, err := audit.VerifyExport(os.DirFS(dir), opts)
	if err != nil {
		return fmt.Errorf("verify the damaged copy: %w", err)
	}
	d.say("      one byte   of event %d changed in a copy: %s", d.denial, report.Verdict)
	found := false
	for _, f := range report.Faults {
		found = found || f.Seq == d.denial || f.Seq == d.denial+1
		d.say("                 %s", clean(shorten(f.String())))
	}
	d.expect(report.Exit == audit.ExitFail && found && !bytes.Equal(event, forged), "the changed byte was not found")
	return nil
}

// truncate makes a copy that ends early under a checkpoint that the ledger
// itself once signed: by itself nothing is wrong with it.
func (d *demo) truncate(source audit.Source, opts audit.Options) error {
	dir := filepath.Join(d.work, "truncated")
	source.Checkpoint = []byte(d.early)
	if err := audit.WriteExport(dir, &source); err != nil {
		return err
	}
	alone, err := audit.VerifyExport(os.DirFS(dir), audit.Options{VKey: opts.VKey})
	if err != nil {
		return fmt.Errorf("verify the short copy: %w", err)
	}
	held, err := audit.VerifyExport(os.DirFS(dir), opts)
	if err != nil {
		return fmt.Errorf("verify the short copy: %w", err)
	}
	d.say("      truncated  a copy that ends at event %d, properly signed: by itself %s (completeness %s),", alone.Events, alone.Verdict, alone.Completeness.Status)
	d.say("                 against the checkpoint the auditor kept: %s", held.Verdict)
	for _, f := range held.Faults {
		d.say("                 %s", clean(shorten(f.String())))
	}
	d.expect(alone.Exit == audit.ExitPass && alone.Completeness.Status == audit.NotRun, "the short copy fails by itself: %v", alone.Faults)
	d.expect(held.Exit == audit.ExitFail, "the truncation was not found")
	return nil
}

// shorten cuts every hash in a text to its first digits.
func shorten(s string) string {
	words := strings.Fields(s)
	for i, w := range words {
		hash := strings.TrimRight(w, ",;")
		if _, err := events.ParseHash(hash); err == nil {
			words[i] = hash[:8] + "…" + w[len(hash):]
		}
	}
	return strings.Join(words, " ")
}

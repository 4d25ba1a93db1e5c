// Package replaytest checks the logs that tests make, and makes one with every
// kind of event in it.
//
// First call: CheckLedger at the end of every test that leaves a log, or Start
// for a ledger to send requests to.
package replaytest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/store"
)

// CheckLedger fails t unless the log in o.Dir is whole and judged as the rules
// say: the auditor finds chain, tree, payloads and anchor in order, and judging
// again finds nothing and leaves nothing out. The ledger may be open. o is what
// it was opened with.
func CheckLedger(t testing.TB, o ledger.Options) replay.Report {
	t.Helper()
	report, err := Check(o)
	if err != nil {
		t.Fatalf("the log in %s: %v", o.Dir, err)
	}
	return report
}

// Check is CheckLedger without a test.
func Check(o ledger.Options) (replay.Report, error) {
	anchor := o.Anchor
	if anchor == "" {
		anchor = filepath.Join(o.Dir, "anchor")
	}
	signed, err := os.ReadFile(anchor) // before the log, which may have moved on
	if err != nil {
		return replay.Report{}, err
	}
	vkey, err := os.ReadFile(filepath.Join(o.Dir, "keys", "checkpoint.vkey"))
	if err != nil {
		return replay.Report{}, err
	}
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	if err != nil {
		return replay.Report{}, err
	}
	defer st.Close()
	src, err := replay.Stored(o.Dir, st)
	if err != nil {
		return replay.Report{}, err
	}
	if err := verify(st, src, signed, strings.TrimSpace(string(vkey))); err != nil {
		return replay.Report{}, err
	}
	report := replay.Run(src)
	faults := []error{report.Err}
	for _, f := range report.Findings {
		faults = append(faults, errors.New(f.String()))
	}
	for why, n := range report.Unverifiable {
		faults = append(faults, fmt.Errorf("%d decisions not judged: %s", n, why))
	}
	for under, n := range report.Erased {
		if n == 0 {
			faults = append(faults, fmt.Errorf("nothing is erased under %d", under))
		}
	}
	if report.MissingPayloads > 0 {
		faults = append(faults, fmt.Errorf("%d payloads are missing", report.MissingPayloads))
	}
	return report, errors.Join(faults...)
}

// verify has the auditor check the log's integrity.
func verify(st *store.Store, src replay.Source, signed []byte, vkey string) error {
	report, err := audit.VerifyLog(&audit.Source{
		Size: src.Size, Checkpoint: signed, Events: src.Events, Hashes: st.ReadHashes,
		Payload: func(seq uint64) (audit.Payload, error) {
			salt, b, ok, err := src.Payload(seq)
			if err != nil || !ok {
				return audit.Payload{}, err
			}
			return audit.Payload{State: audit.PayloadReadable, Salt: salt, Bytes: b}, nil
		},
	}, audit.Options{VKey: vkey})
	if err != nil {
		return err
	}
	if report.Exit != audit.ExitPass {
		return fmt.Errorf("verified as %s: %v", report.Verdict, report.Faults)
	}
	return nil
}

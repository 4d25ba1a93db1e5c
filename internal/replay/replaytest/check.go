// Package replaytest checks the logs that tests make, and makes one with every
// kind of event in it.
//
// First call: CheckLedger at the end of every test that leaves a log, or Start
// for a ledger to send requests to.
package replaytest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay"
	"github.com/ledgerd/ledgerd/internal/store"
)

// CheckLedger fails t unless the log in o.Dir is whole and judged as the rules
// say: every event reads, names the one before it, has the hashes that are
// stored for it; the anchor signs it; and judging it again finds nothing and
// leaves nothing out. The ledger may be open. o is what it was opened with.
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
	st, err := store.OpenReadOnly(o.Dir, o.Store)
	if err != nil {
		return replay.Report{}, err
	}
	defer st.Close()
	if err := checkChain(o, st); err != nil {
		return replay.Report{}, err
	}
	src, err := replay.Stored(o.Dir, st)
	if err != nil {
		return replay.Report{}, err
	}
	report := replay.Run(src)
	faults := []error{report.Err}
	for _, f := range report.Findings {
		faults = append(faults, errors.New(f.String()))
	}
	for why, n := range report.Unverifiable {
		faults = append(faults, errors.New(why), errorCount("decisions not judged", n))
	}
	if report.MissingPayloads > 0 {
		faults = append(faults, errorCount("payloads missing", report.MissingPayloads))
	}
	return report, errors.Join(faults...)
}

// checkChain checks the chain, the stored tree, and the anchor over them.
func checkChain(o ledger.Options, st *store.Store) error {
	size, _ := st.Head()
	prev := events.GenesisHash(st.Origin())
	var leaves []events.Hash
	err := st.Events(1, size, func(seq uint64, b []byte) error {
		e, err := events.Parse(b)
		switch {
		case err != nil:
			return err
		case e.Seq != seq:
			return errors.New("an event is out of its place")
		case e.Prev != prev:
			return errors.New("an event does not name the one before it")
		}
		prev = events.LeafHash(b)
		leaves = append(leaves, prev)
		return nil
	})
	if err != nil {
		return err
	}
	if err := st.ReadBack(1, size); err != nil {
		return err
	}
	path := o.Anchor
	if path == "" {
		path = filepath.Join(o.Dir, "anchor")
	}
	signed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	vkey, err := os.ReadFile(filepath.Join(o.Dir, "keys", "checkpoint.vkey"))
	if err != nil {
		return err
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(string(vkey)))
	if err != nil {
		return err
	}
	cp, err := store.ParseCheckpoint(signed, verifier)
	switch {
	case err != nil:
		return err
	case cp.Size > size:
		return errorCount("log is behind its anchor at", cp.Size)
	case cp.Root != root(leaves[:cp.Size]):
		return errors.New("the anchor signs another log")
	}
	return nil
}

// root is the RFC 6962 root of leaves, by its definition.
func root(leaves []events.Hash) events.Hash {
	switch len(leaves) {
	case 0:
		empty, _ := tlog.TreeHash(0, nil)
		return events.Hash(empty)
	case 1:
		return leaves[0]
	}
	half := 1
	for half*2 < len(leaves) {
		half *= 2
	}
	return events.NodeHash(root(leaves[:half]), root(leaves[half:]))
}

package audit_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/audit/logtest"
	"github.com/ledgerd/ledgerd/internal/events"
)

// uniform is the tree of a log of any size whose nodes are all one: its proofs
// are as large as anybody's.
func uniform(indexes []int64) ([]tlog.Hash, error) { return make([]tlog.Hash, len(indexes)), nil }

// TestProofSizes: docs/PERFORMANCE.md says how large proofs are.
func TestProofSizes(t *testing.T) {
	document, err := os.ReadFile("../../docs/PERFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	l := logtest.New("ledgerd.local/main/22a28c18eb4b4db1/1", 1)
	for _, size := range []int64{1_000_000, 10_000_000} {
		signed := l.Sign(fmt.Sprintf("%s\n%d\n%s\n", l.Origin, size, base64Of(events.Hash{})))
		in, con, inBytes, conBytes := 0, 0, 0, 0
		const samples = 1024
		for i := range int64(samples) {
			at := size / samples * i
			path, err := tlog.ProveRecord(size, at, tlog.HashReaderFunc(uniform))
			if err != nil {
				t.Fatal(err)
			}
			in = max(in, len(path))
			inBytes = max(inBytes, len((&audit.InclusionProof{Index: uint64(at), Hashes: make([]events.Hash, len(path)), Checkpoint: signed}).Encode()))
			tree, err := tlog.ProveTree(size, at+1, tlog.HashReaderFunc(uniform))
			if err != nil {
				t.Fatal(err)
			}
			con = max(con, len(tree))
			conBytes = max(conBytes, len((&audit.ConsistencyProof{From: uint64(at), Hashes: make([]events.Hash, len(tree)), Checkpoint: signed}).Encode()))
		}
		if row := fmt.Sprintf("| %d M | %d hashes, %s bytes | %d hashes, %s bytes |", size/1_000_000, in, thousands(inBytes), con, thousands(conBytes)); !strings.Contains(string(document), row) {
			t.Errorf("docs/PERFORMANCE.md does not say\n%s", row)
		}
	}
}

func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }

// BenchmarkProof measures what a proof takes that is made from stored hashes, and
// checked with its signature.
func BenchmarkProof(b *testing.B) {
	l, key := small(b, 4096)
	source, receipt := l.Source(), receiptOf(l, 1234)
	p, _, err := source.Prove(1234)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("make", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := source.Prove(1234); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("check", func(b *testing.B) { checkAgain(b, p.Encode(), receipt, key) })
}

func checkAgain(b *testing.B, file []byte, receipt *audit.Receipt, key *audit.Keys) {
	for b.Loop() {
		p, err := audit.ParseInclusionProof(file)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Check(receipt, key); err != nil {
			b.Fatal(err)
		}
	}
}

package projection

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// The index holds what a map would, in ascending order, however the digests
// crowd.
func TestOperationsAreAMap(t *testing.T) {
	for _, crowd := range []uint64{0, 1 << 20, 1 << 40, 1 << 56} {
		rng := rand.New(rand.NewPCG(1, crowd))
		var o operations
		want := map[digest]uint64{}
		for i := range uint64(6_000) {
			e := operationEntry{digest{rng.Uint64(), rng.Uint64N(4)}, (i + 1) << 16}
			if crowd != 0 {
				e.hi %= crowd
			}
			_, used := want[e.digest]
			if o.insert(e) == used {
				t.Fatalf("insert %v: %v", e, used)
			}
			if !used {
				want[e.digest] = e.use
			}
		}
		n, before := 0, digest{}
		for e := range o.all() {
			if n > 0 && !before.less(e.digest) {
				t.Fatal("out of order")
			}
			if want[e.digest] != e.use || o.shards[e.hi>>56].get(e.digest) != e.use {
				t.Fatalf("%v, want use %d", e, want[e.digest])
			}
			n, before = n+1, e.digest
			absent := digest{e.hi, e.lo + 7}
			if o.shards[e.hi>>56].get(absent) != 0 {
				t.Fatal("an absent one is found")
			}
		}
		if n != len(want) || o.count != n {
			t.Fatalf("%d entries, counted %d, want %d", n, o.count, len(want))
		}
	}
}

func TestOperationDigestTellsAgentFromID(t *testing.T) {
	seen := map[digest]string{}
	for _, p := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"abc", ""}, {"", "abc"}, {"a", "b"}, {"b", "a"}} {
		d := operationDigest(p[0], p[1])
		if other, twice := seen[d]; twice {
			t.Errorf("%q and %s have one digest", p, other)
		}
		seen[d] = fmt.Sprint(p)
	}
}

// BenchmarkOperations adds a million ids and reports what each takes.
func BenchmarkOperations(b *testing.B) {
	for b.Loop() {
		var o operations
		var id [8]byte
		for i := range uint64(1_000_000) {
			binary.BigEndian.PutUint64(id[:], i)
			if _, ok, err := o.add("agent", string(id[:]), Operation{i + 1, "memory.write"}); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
		places := 0
		for i := range o.shards {
			places += len(o.shards[i].places)
		}
		b.ReportMetric(float64(24*places)/1e6, "bytes/id")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "ns/id")
}

package projection

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// The index agrees with a map by owner, namespace and key.
func TestRecordsByName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index, want := newRecords(0), map[[3]string]*Record{}
		one := rapid.SampledFrom([]string{"a", "b", "c"})
		for n := range rapid.IntRange(0, 30).Draw(t, "records") {
			r := &Record{Owner: one.Draw(t, "owner"), Kind: &Kind{Namespace: one.Draw(t, "namespace")}, Key: one.Draw(t, "key"), Revision: uint64(n)}
			name := [3]string{r.Owner, r.Namespace, r.Key}
			if old := index.put(r); old != want[name] {
				t.Fatalf("%v took the place of %v, not of %v", r, old, want[name])
			}
			want[name] = r
		}
		for _, o := range []string{"a", "b", "c", "d", ""} {
			for _, n := range []string{"a", "b", "c"} {
				for _, k := range []string{"a", "b", "c"} {
					if got := index.get(o, n, k); got != want[[3]string{o, n, k}] {
						t.Fatalf("%s:%s.%s is %v, want %v", o, n, k, got, want[[3]string{o, n, k}])
					}
				}
			}
		}
		seen := map[string]bool{}
		for r := range index.all() {
			if want[[3]string{r.Owner, r.Namespace, r.Key}] != r || index.same(r) != r {
				t.Fatalf("%v does not stand", r)
			}
			seen[fmt.Sprint(r.Owner, r.Namespace, r.Key)] = true
		}
		if len(seen) != len(want) || index.count != len(want) {
			t.Fatalf("%d of %d records, counted %d", len(seen), len(want), index.count)
		}
	})
}

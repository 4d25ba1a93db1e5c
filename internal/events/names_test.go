package events

import (
	"regexp"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	for _, c := range []struct {
		what  string
		valid func(string) bool
		yes   []string
		no    []string
	}{
		{"id", ValidID,
			[]string{"a", "0", "a-b_c", "admin", a(63)},
			[]string{"", a(64), "-a", "_a", "A", "aB", "a.b", "a b", "a*", "a>", "é", "a\x00", "a\n", "a/b", "$a", "all", "any", "svc", "sys", "none", "ｓys"}},
		{"namespace", ValidNamespace,
			[]string{"a", "a.b", "notes", "0-_.b", a(128), "a.b.c.d.e.f.g.h"},
			[]string{"", ".", "a.", ".a", "a..b", "a.b.c.d.e.f.g.h.i", a(129), "A", "-a", "a.-b", "a._b", "a b", "a.*", "é", "a\x00"}},
		{"key", ValidKey,
			[]string{"a", "client_region", "0-", a(128)},
			[]string{"", "a.b", a(129), "-a", "_a", "A", "é", "a\n", "*"}},
		{"action", ValidAction,
			[]string{"a", "memory.read", "-", "_", "a.b.c.d.e.f", a(64)},
			[]string{"", "a.", ".a", "a..b", "a.b.c.d.e.f.g", a(65), "A", "a b", "a.*", "a>", "é", "memory.read\x00"}},
		{"token", ValidToken,
			[]string{"a", "A", "0", "lab-1", "v1.2_3", a(64), "none"},
			[]string{"", a(65), "-a", ".a", "_a", "a b", "é", "a/b", "a\n"}},
		{"operation id", ValidOperationID,
			[]string{"a", " ", "~!\"\\", a(128)},
			[]string{"", a(129), "a\n", "\x7f", "é", "a\x00"}},
		{"trace id", ValidTraceID,
			[]string{"a", a(64)},
			[]string{"", a(65), "\t"}},
		{"origin", ValidOrigin,
			[]string{"ledgerd.local/main/0123456789abcdef/1", "a", a(255)},
			[]string{"", a(256), "a b", "a+b", "a\n", "é"}},
	} {
		for _, s := range c.yes {
			if !c.valid(s) {
				t.Errorf("%s %q is refused", c.what, s)
			}
		}
		for _, s := range c.no {
			if c.valid(s) {
				t.Errorf("%s %q is accepted", c.what, s)
			}
		}
	}
}

func TestReservedIDsAreWithinTheGrammar(t *testing.T) {
	n := 0
	for _, s := range []string{"all", "any", "svc", "sys", "none", "admin", "a"} {
		if ReservedID(s) {
			n++
			if !isID(s) || ValidID(s) {
				t.Errorf("%s", s)
			}
		}
	}
	if n != 5 {
		t.Errorf("%d reserved words, want 5", n)
	}
}

func TestHashText(t *testing.T) {
	h := filledHash(0xf0)
	back, err := ParseHash(h.String())
	if err != nil || back != h {
		t.Errorf("%s reads as %s (%v)", h, back, err)
	}
	for _, s := range []string{"", "00", strings.Repeat("0", 63), strings.Repeat("0", 65), strings.Repeat("A", 64), strings.Repeat("g", 64), strings.Repeat("é", 32), " " + strings.Repeat("0", 63)} {
		if h, err := ParseHash(s); err == nil {
			t.Errorf("%q reads as %s", s, h)
		}
	}
	if h.IsZero() || !(Hash{}).IsZero() {
		t.Error("IsZero")
	}
}

// TestTagsPartTheHashes: no two of our hash functions meet on any input we
// give them: leaf, node, genesis, payload and arguments each have their tag.
func TestTagsPartTheHashes(t *testing.T) {
	var zero Hash
	both := append(append([]byte{}, zero[:]...), zero[:]...)
	all := []Hash{
		LeafHash(both), NodeHash(zero, zero), LeafHash(nil), GenesisHash(""), GenesisHash("\x00"),
		PayloadCommitment([SaltLen]byte{}, nil), ArgumentsDigest([SaltLen]byte{}, nil),
		PayloadCommitment([SaltLen]byte{}, both), ArgumentsDigest([SaltLen]byte{}, both),
	}
	for i := range all {
		for j := range i {
			if all[i] == all[j] {
				t.Errorf("hashes %d and %d are one", i, j)
			}
		}
	}
}

// The grammars once more, as DESIGN writes them.
var grammars = map[string]struct {
	valid func(string) bool
	form  *regexp.Regexp
	max   int
}{
	"id":        {isID, regexp.MustCompile(`\A[a-z0-9][a-z0-9_-]*\z`), IDBytesMax},
	"namespace": {ValidNamespace, regexp.MustCompile(`\A[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*){0,7}\z`), NamespaceBytesMax},
	"key":       {ValidKey, regexp.MustCompile(`\A[a-z0-9][a-z0-9_-]*\z`), KeyBytesMax},
	"action":    {ValidAction, regexp.MustCompile(`\A[a-z0-9_-]+(\.[a-z0-9_-]+){0,5}\z`), ActionBytesMax},
	"token":     {ValidToken, regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.-]*\z`), TokenBytesMax},
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "a", ".", "a.b", "a..b", "-", "a.-b", "_", "a.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.h.i", "A", "é", "a\n", "a.", ".a", "a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, g := range grammars {
			if want := len(s) <= g.max && g.form.MatchString(s); g.valid(s) != want {
				t.Errorf("%s %q: %v", name, s, !want)
			}
		}
	})
}

package audit

import (
	"strings"
	"testing"
)

// What a signature line may hold is the same in every reader (FORMAT.md, section
// 6), also where no key is at hand to open the note with.
func TestR84_SignatureLines(t *testing.T) {
	const text = "ledgerd.example/a/1\n3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n"
	line := func(name string) string { return "— " + name + " AAAAAAAA\n" }
	for name, c := range map[string]struct {
		lines string
		ok    bool
	}{
		"one":                 {line("ledgerd.example/a/1"), true},
		"a name beyond ASCII": {line("ledgerd.example/ä"), true},
		"a hundred":           {strings.Repeat(line("a"), 100), true},
		"one more":            {strings.Repeat(line("a"), 101), false},
		"none":                {"", false},
		"no line feed":        {"— a AAAAAAAA", false},
		"a plus":              {line("a+b"), false},
		"a tab":               {line("a\tb"), false},
		"a bell":              {line("a\ab"), false},
		"a no-break space":    {line("a\u00a0b"), false},
		"a thin space":        {line("a\u2009b"), false},
		"no UTF-8":            {line("a\xff"), false},
		"no name":             {line(""), false},
	} {
		if _, err := readCheckpoint([]byte(text + c.lines)); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

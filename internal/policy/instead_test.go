package policy

import (
	"slices"
	"strings"
	"testing"
)

// What all levels' writes have in common allows just what every level allows.
func TestCommonWrites(t *testing.T) {
	for _, row := range []struct{ levels, want string }{
		{"a b.* | b.c", "b.c"}, {"a.* | a.b.* | a.b.c", "a.b.c"}, {"a | b", ""}, {"a.* | | a", "a"}, {"a a.* | a.*", "a a.*"},
		{"a.b | a.*", "a.b"}, {"a | a.*", "a"}, {"a.* | ab.*", ""}, {"x.* a | a.* | a.* x", "a"},
	} {
		var levels []Set
		for _, level := range strings.Split(row.levels, "|") {
			levels = append(levels, NewSet(strings.Fields(level)...))
		}
		got := CommonWrites(levels)
		if text := strings.Join(got, " "); text != row.want {
			t.Errorf("%s: %q", row.levels, text)
		}
		for _, namespace := range []string{"a", "a.b", "a.b.c", "ab", "b", "b.c", "x", "x.y"} {
			everywhere := !slices.ContainsFunc(levels, func(level Set) bool { return len(level) > 0 && !Writable(level, namespace) })
			if Writable(got, namespace) != everywhere {
				t.Errorf("%s: %s is allowed by all: %v", row.levels, namespace, everywhere)
			}
		}
	}
	if CommonWrites([]Set{nil, nil}) != nil {
		t.Error("nobody limits it")
	}
}

func TestNearest(t *testing.T) {
	for _, row := range []struct{ name, want string }{{"artifact.sav", "artifact.save"}, {"artifact.save", ""}, {"nothing", ""}, {strings.Repeat("a", 99), ""}} {
		if got := Nearest(row.name, Set{"artifact.save", "document.open"}); got != row.want {
			t.Errorf("%s: %q", row.name, got)
		}
	}
}

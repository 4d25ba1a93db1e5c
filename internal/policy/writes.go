package policy

import (
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// ValidWrites reports whether pattern is one of an agent's writes: a namespace,
// which it names alone, or a namespace and .*, which names it and all beneath.
func ValidWrites(pattern string) bool {
	return events.ValidNamespace(strings.TrimSuffix(pattern, ".*"))
}

// Includes reports whether all that pattern names is named by one of patterns.
func Includes(patterns Set, pattern string) bool {
	base, tree := strings.CutSuffix(pattern, ".*")
	for _, p := range patterns {
		above, all := strings.CutSuffix(p, ".*")
		if base == above && (all || !tree) || all && covers(above, base) {
			return true
		}
	}
	return false
}

// Writable reports whether any of the patterns names a namespace, by whole
// segments: notes.* names notes and notes.x, never notesevil.
func Writable(patterns Set, namespace string) bool {
	for _, pattern := range patterns {
		above, tree := strings.CutSuffix(pattern, ".*")
		if namespace == above || tree && covers(above, namespace) {
			return true
		}
	}
	return false
}

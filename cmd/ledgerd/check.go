package main

import (
	"cmp"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/events"
)

// What names look like. The ledger checks them too; here the mistake can be
// shown to whoever made it.
const (
	idGrammar        = "a-z, 0-9, _ and -, a letter or digit first, at most 63, and not all, any, svc, sys or none"
	namespaceGrammar = "at most 8 parts of a-z, 0-9, _ and - joined by dots, each with a letter or digit first, at most 128 characters"
	keyGrammar       = "a-z, 0-9, _ and -, a letter or digit first, no dot, at most 128"
	tokenGrammar     = "at most 64 of A-Z, a-z, 0-9, _, . and -, a letter or digit first"
	resourceGrammar  = "at most 128 of A-Z, a-z, 0-9 and _ . : / -"
	actionGrammar    = "at most 6 parts of a-z, 0-9, _ and - joined by dots, at most 64 characters"
)

func checkID(what, id string) error {
	if events.ValidID(id) {
		return nil
	}
	return usagef("%s %q: an id is %s", what, id, idGrammar)
}

func checkOptionalID(what, id string) error {
	if id == "" {
		return nil
	}
	return checkID(what, id)
}

// checkRecord checks what names a record; owner may be empty.
func checkRecord(owner, namespace, key string) error {
	switch {
	case !events.ValidNamespace(namespace):
		return usagef("namespace %q: it is %s", namespace, namespaceGrammar)
	case !events.ValidKey(key):
		return usagef("key %q: it is %s", key, keyGrammar)
	}
	return checkOptionalID("--owner", owner)
}

func checkVisibility(v string) error {
	if v == "" || events.ValidVisibility(v) {
		return nil
	}
	return usagef("--visibility %q: it is private, children or descendants", v)
}

// checkWrite checks all that a write names.
func checkWrite(owner, namespace, key, visibility string) error {
	return cmp.Or(checkRecord(owner, namespace, key), checkVisibility(visibility))
}

func notFound(format string, args ...any) error {
	return &exitError{exitNotFound, fmt.Errorf("not found: "+format, args...)}
}

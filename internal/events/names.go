package events

import "strings"

// ValidID reports whether s may name a ledger, an agent or a principal:
// [a-z0-9][a-z0-9_-]{0,62} and not reserved. Ids stand in NATS subjects and
// permissions, so nothing outside this alphabet is ever normalised into it.
func ValidID(s string) bool { return isID(s) && !ReservedID(s) }

// ReservedID reports whether s is a word that no one may be called.
func ReservedID(s string) bool {
	switch s {
	case "all", "any", "svc", "sys", "none":
		return true
	}
	return false
}

func isID(s string) bool {
	return len(s) <= IDBytesMax && segment(s) && s[0] != '_' && s[0] != '-'
}

// ValidNamespace reports whether s is 1–8 segments [a-z0-9][a-z0-9_-]* joined
// by dots, at most 128 bytes.
func ValidNamespace(s string) bool {
	return len(s) <= NamespaceBytesMax && dotted(s, NamespaceSegments, true)
}

// ValidKey reports whether s is one namespace segment, at most 128 bytes.
func ValidKey(s string) bool {
	return len(s) <= KeyBytesMax && segment(s) && s[0] != '_' && s[0] != '-'
}

// ValidAction reports whether s is 1–6 segments [a-z0-9_-]+ joined by dots, at
// most 64 bytes. Capabilities are actions.
func ValidAction(s string) bool {
	return len(s) <= ActionBytesMax && dotted(s, ActionSegments, false)
}

// ValidVisibility reports whether s is private, children or descendants.
func ValidVisibility(s string) bool {
	return s == "private" || s == "children" || s == "descendants"
}

// ValidToken reports whether s is [A-Za-z0-9][A-Za-z0-9_.-]{0,63}: an SOP id,
// step id, policy version, rule id or group.
func ValidToken(s string) bool {
	if s == "" || len(s) > TokenBytesMax || !alphanumeric(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !alphanumeric(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// ValidOperationID reports whether s is 1–128 printable ASCII characters.
func ValidOperationID(s string) bool { return printable(s, OperationIDBytesMax) }

// ValidTraceID reports whether s is 1–64 printable ASCII characters.
func ValidTraceID(s string) bool { return printable(s, TraceIDBytesMax) }

// ValidOrigin reports whether s may name a log: 1–255 printable ASCII
// characters without space or plus, as C2SP key names demand.
func ValidOrigin(s string) bool {
	return printable(s, OriginBytesMax) && !strings.ContainsAny(s, " +")
}

func printable(s string, max int) bool {
	if s == "" || len(s) > max {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// dotted reports whether s is 1 to most segments joined by dots.
func dotted(s string, most int, alphanumericFirst bool) bool {
	segments, first := 0, true // first byte of a segment
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '.':
			if first {
				return false
			}
			first = true
			continue
		case !inSegment[c] || first && alphanumericFirst && (c == '_' || c == '-'):
			return false
		}
		if first {
			segments++
			first = false
		}
	}
	return !first && segments <= most
}

func segment(s string) bool {
	for i := 0; i < len(s); i++ {
		if !inSegment[s[i]] {
			return false
		}
	}
	return s != ""
}

// inSegment are the bytes [a-z0-9_-].
var inSegment = func() (set [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789_-") {
		set[c] = true
	}
	return set
}()

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// ValidResourceID takes at most 128 of A-Z a-z 0-9 _ . : / -.
func ValidResourceID(id string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-"
	return id != "" && len(id) <= 128 && strings.Trim(id, letters) == ""
}

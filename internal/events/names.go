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
	return len(s) <= NamespaceBytesMax && strings.Count(s, ".") < NamespaceSegments && dotted(s, true)
}

// ValidKey reports whether s is one namespace segment, at most 128 bytes.
func ValidKey(s string) bool {
	return len(s) <= KeyBytesMax && segment(s) && s[0] != '_' && s[0] != '-'
}

// ValidAction reports whether s is 1–6 segments [a-z0-9_-]+ joined by dots, at
// most 64 bytes. Capabilities are actions.
func ValidAction(s string) bool {
	return len(s) <= ActionBytesMax && strings.Count(s, ".") < ActionSegments && dotted(s, false)
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

func dotted(s string, alphanumericFirst bool) bool {
	for {
		head, rest, more := strings.Cut(s, ".")
		if !segment(head) || alphanumericFirst && (head[0] == '_' || head[0] == '-') {
			return false
		}
		if !more {
			return true
		}
		s = rest
	}
}

func segment(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return s != ""
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

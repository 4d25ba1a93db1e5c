package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/events"
)

// What rules call. Each is defined for every text: it gives a result or an
// error, and an error denies, negated or not. docs/POLICY.md says what they
// mean; a change of meaning is a new version of the rules.

var (
	errPath   = errors.New("within: no plain relative path")
	errNames  = errors.New("ns: no namespace")
	errHost   = errors.New("host: no URL with one plain host")
	errMIME   = errors.New("mime: no media type")
	errNoFact = errors.New("there is no such value")
	errSpent  = errors.New("the rules of one judgement cost more than they may")

	errInexact = errors.New("a number has more digits than a double holds; write an integer, or fewer")
)

// within reports whether path lies beneath dir, segment by segment. Of the
// file system it knows nothing: links are the handler's to refuse. Where upper
// and lower case alone tell path from what lies there, or path is dir itself, it
// is an error: a rule of what may not be touched must not let that through.
func within(path, dir string) (bool, error) {
	if !plainPath(path) || dir != "." && !plainPath(dir) {
		return false, errPath
	}
	if dir == "." || strings.HasPrefix(path, dir+"/") {
		return true, nil
	}
	if len(path) >= len(dir) && strings.EqualFold(path[:len(dir)], dir) && (len(path) == len(dir) || path[len(dir)] == '/') {
		return false, errPath
	}
	return false, nil
}

// plainPath reports whether every reader of a path takes it for the same one:
// relative, segments by single slashes, none empty or . or .., none that a
// program takes for an option; of printable ASCII alone, since other letters
// have more than one form, without what shells, other systems and URLs read as
// more than a letter.
func plainPath(path string) bool {
	if path == "" || strings.ContainsAny(path, "\\%:*?\"<>|$`~") {
		return false
	}
	for i := range len(path) {
		if path[i] < ' ' || path[i] > '~' {
			return false
		}
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || strings.ContainsRune("- ", rune(segment[0])) || strings.ContainsRune(". ", rune(segment[len(segment)-1])) {
			return false
		}
	}
	return true
}

// ns reports whether a namespace is the pattern's, or beneath it where the
// pattern ends in .*: notes.* is notes and notes.x, never notesevil.
func ns(namespace, pattern string) (bool, error) {
	base, beneath := strings.CutSuffix(pattern, ".*")
	if !events.ValidNamespace(namespace) || !events.ValidNamespace(base) {
		return false, errNames
	}
	return namespace == base || beneath && strings.HasPrefix(namespace, base+"."), nil
}

// The classes of hosts.
const (
	hostName     = "name" // what it resolves to is not known here
	hostPublic   = "public"
	hostPrivate  = "private"
	hostLoopback = "loopback"
	hostLink     = "link_local"
	hostSpecial  = "special"
)

// Host is the one place a URL leads to.
type Host struct {
	Scheme string // in lower case
	Name   string // in lower case, ASCII; an address in its shortest form
	Port   int    // the scheme's where the URL names none; 0 where that has none
	Class  string
}

var schemePorts = map[string]int{"http": 80, "ws": 80, "https": 443, "wss": 443, "ftp": 21}

// parseHost takes scheme://host[:port] and what follows. Whatever two readers
// could take for different hosts is refused.
func parseHost(url string) (Host, error) {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok || !validScheme(scheme) {
		return Host{}, errHost
	}
	for i := range len(url) {
		if url[i] <= ' ' || url[i] == 0x7f || url[i] == '\\' {
			return Host{}, errHost
		}
	}
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	h := Host{Scheme: strings.ToLower(scheme)}
	h.Port = schemePorts[h.Scheme]
	name := authority
	if colon := strings.LastIndexByte(authority, ':'); colon > strings.LastIndexByte(authority, ']') {
		port, err := strconv.ParseUint(authority[colon+1:], 10, 16)
		if err != nil || port == 0 || authority[colon+1] == '0' {
			return Host{}, errHost
		}
		name, h.Port = authority[:colon], int(port)
	}
	h.Name, h.Class, ok = hostOf(name)
	if !ok {
		return Host{}, errHost
	}
	return h, nil
}

func validScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		if (c < 'a' || c > 'z') && (i == 0 || !strings.ContainsRune("0123456789+-.", rune(s[i]))) {
			return false
		}
	}
	return s != "" && len(s) <= 32
}

func hostOf(name string) (normal, class string, ok bool) {
	if inner, bracket := strings.CutPrefix(name, "["); bracket {
		inner, bracket = strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !bracket || err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", "", false
		}
		addr = addr.Unmap()
		return addr.String(), addressClass(addr), true
	}
	name = strings.ToLower(name)
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return "", "", false
		}
	}
	last := labels[len(labels)-1]
	switch {
	case len(name) > 253:
		return "", "", false
	case '0' <= last[0] && last[0] <= '9': // some reader takes it for a number
		addr, err := netip.ParseAddr(name)
		if err != nil || !addr.Is4() {
			return "", "", false
		}
		return addr.String(), addressClass(addr), true
	case last == "localhost":
		return name, hostLoopback, true
	}
	return name, hostName, true
}

// globalUnicast is where all public addresses of IPv6 are.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// special are the networks that are neither public nor named by netip.
var special = func() (list []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10",
	} {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}()

func addressClass(addr netip.Addr) string {
	switch {
	case addr.IsLoopback():
		return hostLoopback
	case addr.IsPrivate():
		return hostPrivate
	case addr.IsLinkLocalUnicast():
		return hostLink
	case addr.IsUnspecified(), addr.IsMulticast():
		return hostSpecial
	}
	for _, network := range special {
		if network.Contains(addr) {
			return embeddedClass(addr)
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return hostSpecial
	}
	return hostPublic
}

// embeddedClass is the class of the IPv4 address that an IPv6 one carries,
// where that is a worse one than special.
func embeddedClass(addr netip.Addr) string {
	if addr.Is4() {
		return hostSpecial
	}
	b := addr.As16()
	at := 12 // v4-compatible, v4-translated and NAT64
	if b[0] == 0x20 && b[1] == 0x02 {
		at = 2 // 6to4
	}
	if class := addressClass(netip.AddrFrom4([4]byte(b[at : at+4]))); class != hostPublic {
		return class
	}
	return hostSpecial
}

const mimeMax = 512 // bytes

// mime is the type/subtype of a media type, in lower case. Parameters are
// checked for their form, and each stands once.
func mime(s string) (string, error) {
	if len(s) > mimeMax {
		return "", errMIME
	}
	essence, rest, more := strings.Cut(s, ";")
	kind, sub, ok := strings.Cut(strings.TrimRight(essence, " "), "/")
	if !ok || !validMIME(kind) || !validMIME(sub) {
		return "", errMIME
	}
	var seen []string
	for more {
		var name, value string
		name, value, ok = strings.Cut(strings.TrimLeft(rest, " "), "=")
		name = strings.ToLower(name)
		if !ok || !validMIME(name) || slices.Contains(seen, name) {
			return "", errMIME
		}
		seen = append(seen, name)
		if rest, more, ok = parameter(value); !ok {
			return "", errMIME
		}
	}
	return strings.ToLower(kind + "/" + sub), nil
}

// parameter passes over one value. more says that another parameter follows.
func parameter(s string) (rest string, more, ok bool) {
	end := 0
	if quoted := strings.HasPrefix(s, `"`); quoted {
		close := strings.IndexByte(s[1:], '"')
		if close < 0 || strings.ContainsFunc(s[1:1+close], func(r rune) bool { return r < ' ' || r > '~' || r == '\\' }) {
			return "", false, false
		}
		end = close + 2
	} else {
		for end < len(s) && s[end] != ';' && s[end] != ' ' {
			end++
		}
		if !validMIME(s[:end]) {
			return "", false, false
		}
	}
	rest = strings.TrimLeft(s[end:], " ")
	if rest == "" {
		return "", false, true
	}
	rest, more = strings.CutPrefix(rest, ";")
	return rest, more, more
}

func validMIME(s string) bool {
	return s != "" && len(s) <= 127 && !strings.ContainsFunc(s, func(r rune) bool {
		return r > 0x7e || r <= ' ' || strings.ContainsRune(`()<>@,;:\"/[]?=`, r)
	})
}

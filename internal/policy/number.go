package policy

import (
	"strconv"
	"strings"
)

// exactNumber reports whether a JSON number, read as a double and written in the
// shortest way that is read as the same double, is the same number again. A rule
// that compares doubles would else judge another number than the one in the
// bytes: 100.000000000000001 is 100 to it, and 1e-400 is 0.
func exactNumber(literal string) bool {
	if !strings.ContainsAny(literal, ".eE") {
		return true // an integer within the limits of the profile
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		return false
	}
	digits, exponent, ok := decimal(literal)
	shortest, at, also := decimal(strconv.FormatFloat(f, 'e', -1, 64))
	return ok && also && digits == shortest && exponent == at
}

// decimal takes a number apart: 0.<digits> × 10^exponent, without zeros at
// either end of the digits. Zero has no digits.
func decimal(literal string) (digits string, exponent int, ok bool) {
	literal = strings.TrimPrefix(literal, "-")
	mantissa, power := literal, ""
	if e := strings.IndexAny(literal, "eE"); e >= 0 {
		mantissa, power = literal[:e], literal[e+1:]
		n, err := strconv.ParseInt(power, 10, 32)
		if err != nil {
			return "", 0, false
		}
		exponent = int(n)
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := whole + fraction
	exponent += len(whole)
	digits = strings.TrimLeft(all, "0")
	exponent -= len(all) - len(digits)
	if digits = strings.TrimRight(digits, "0"); digits == "" {
		return "", 0, true
	}
	return digits, exponent, true
}

package events

import (
	"fmt"
	"time"
)

// Time is a moment in microseconds since 1970 UTC. Its text form has six
// fractional digits and a Z: 2026-11-29T20:31:07.114203Z.
type Time int64

const timeLayout = "2006-01-02T15:04:05.000000Z"

// timeMax is 9999-12-31T23:59:59.999999Z, the last moment with a four-digit year.
const timeMax Time = 253_402_300_799_999_999

// TimeOf cuts t to the microsecond.
func TimeOf(t time.Time) Time { return Time(t.UnixMicro()) }

// Std returns t as a time.Time in UTC.
func (t Time) Std() time.Time { return time.UnixMicro(int64(t)).UTC() }

func (t Time) String() string { return string(t.append(nil)) }

func (t Time) append(dst []byte) []byte {
	if t < 0 || t > timeMax {
		return t.Std().AppendFormat(dst, timeLayout)
	}
	std := t.Std()
	year, month, day := std.Date()
	hour, minute, second := std.Clock()
	dst = append(digits(dst, year, 4), '-')
	dst = append(digits(dst, int(month), 2), '-')
	dst = append(digits(dst, day, 2), 'T')
	dst = append(digits(dst, hour, 2), ':')
	dst = append(digits(dst, minute, 2), ':')
	dst = append(digits(dst, second, 2), '.')
	return append(digits(dst, int(t%1_000_000), 6), 'Z')
}

// digits appends n as width decimal digits.
func digits(dst []byte, n, width int) []byte {
	dst = append(dst, "000000"[:width]...)
	for i := len(dst) - 1; n > 0; i-- {
		dst[i] += byte(n % 10)
		n /= 10
	}
	return dst
}

// ParseTime reads the text form and nothing else: no other zone, no other
// number of digits, no second 60, years 1970 to 9999.
func ParseTime(s string) (Time, error) {
	var n [7]int // year, month, day, hour, minute, second, microsecond
	at := 0
	for i := 0; i < len(s) && at < len(n); i++ {
		if c := s[i]; '0' <= c && c <= '9' && n[at] < 1_000_000 {
			n[at] = 10*n[at] + int(c-'0')
		} else {
			at++
		}
	}
	t := TimeOf(time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], 1000*n[6], time.UTC))
	var form [len(timeLayout)]byte
	if t < 0 || t > timeMax || string(t.append(form[:0])) != s { // any other text gives another time, or none
		return 0, fmt.Errorf("time is not of the form %s", timeLayout)
	}
	return t, nil
}

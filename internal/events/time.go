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

func (t Time) append(dst []byte) []byte { return t.Std().AppendFormat(dst, timeLayout) }

// ParseTime reads the text form and nothing else: no other zone, no other
// number of digits, no second 60, years 1970 to 9999.
func ParseTime(s string) (Time, error) {
	std, err := time.Parse(timeLayout, s)
	if err != nil || std.Format(timeLayout) != s || std.Year() < 1970 {
		return 0, fmt.Errorf("time is not of the form %s", timeLayout)
	}
	return TimeOf(std), nil
}

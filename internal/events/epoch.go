package events

import (
	"strconv"
	"strings"
)

// EpochReasons are the words of Previous.Reason.
func EpochReasons() []string { return []string{"loss", "rollback", "compromise"} }

// SplitEpoch takes an origin apart into the name that all epochs of a log share
// and the epoch's number. One without a number at its end is epoch 1.
func SplitEpoch(origin string) (base string, epoch uint64) {
	at := strings.LastIndexByte(origin, '/')
	if n, err := strconv.ParseUint(origin[at+1:], 10, 32); err == nil && at > 0 {
		return origin[:at], n
	}
	return origin, 1
}

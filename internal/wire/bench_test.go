package wire

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/reason"
)

// The two replies most often sent, in room that is used again.
func BenchmarkReply(b *testing.B) {
	read := &Reply{Decision: decision(reason.VisibleFrom), Seq: 123_456_789, Record: &Record{
		Namespace: "notes", Key: "k000123", Value: []byte(`"0123456789abcdef0123456789abcdef"`), Owner: "root", Visibility: "descendants", Class: "preference", Revision: 3,
	}}
	bare := &Reply{Decision: decision(reason.ActionAllowed), Seq: 123_456_789}
	for name, r := range map[string]*Reply{"read": read, "bare": bare} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var room []byte
			for b.Loop() {
				room = r.EncodeIn(room)
			}
		})
	}
}

package bench

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/wire"
)

var reqs = map[string]string{
	"memory.read":      `{"namespace":"notes","key":"seen"}`,
	"memory.write":     `{"owner_agent_id":"low","namespace":"notes","key":"own","value":"` + filler + `","operation_id":"abc-123.45"}`,
	"action.authorize": `{"action":"bench.act","arguments":{"path":"a","size":4096},"operation_id":"abc-123.45"}`,
	"sop.validate":     "{" + procedure("bench.act") + `,"operation_id":"abc-123.45"}`,
}

func BenchmarkDecode(b *testing.B) {
	for op, body := range reqs {
		b.Run(op, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				wire.Decode(wire.Propose, op, []byte(body))
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	s, err := threeLevels()
	if err != nil {
		b.Fatal(err)
	}
	for op, body := range reqs {
		r, _ := wire.Decode(wire.Propose, op, []byte(body))
		b.Run(op, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ledger.Decide(s, &ledger.Proposal{Lane: wire.Propose, Subject: "low", Operation: op, Request: r})
			}
		})
	}
}

func BenchmarkAppendParse(b *testing.B) {
	s, _ := threeLevels()
	for op, body := range reqs {
		r, _ := wire.Decode(wire.Propose, op, []byte(body))
		o := ledger.Decide(s, &ledger.Proposal{Lane: wire.Propose, Subject: "low", Operation: op, Request: r})
		e := events.Event{Seq: 5, Time: 1764456000000000, Agent: "low", ID: [16]byte{6: 0x70, 8: 0x80}, Body: o.Decision, Payload: events.Hash{1}, Prev: events.Hash{2}}
		buf, err := e.Append(nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("append "+op, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.Append(buf[:0])
			}
		})
		b.Run("parse "+op, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := events.Parse(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
		rep := wire.Reply{Decision: o.Decision, Seq: 5, EventID: events.UUIDString(e.ID), Hash: e.Prev}
		b.Run("encode "+op, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rep.Encode()
			}
		})
		b.Run("leaf "+op, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				events.LeafHash(buf)
			}
		})
		b.Run("time", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = e.Time.String()
			}
		})
	}
}

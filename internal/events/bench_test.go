package events

import "testing"

func benchEvent() *Event {
	return &Event{
		Seq: 123456, Prev: Hash{1, 2, 3}, Time: 1764444444000000, ID: [16]byte{6: 0x70, 8: 0x80}, Agent: "agent42", Payload: Hash{4, 5, 6},
		Body: &Decision{
			Subject: "agent42", Lineage: []string{"agent42", "agent40", "agent36", "agent32", "agent30"}, Operation: "memory.write",
			Resource: "agent42:work.7-0-3", Allowed: true, Reason: "owner_write", PolicyVersion: "bench-1", PolicyDigest: Hash{7, 8, 9},
			OperationID: "7-0-3.12", PreviousRevision: 11,
		},
	}
}

func BenchmarkEvent(b *testing.B) {
	e := benchEvent()
	text, err := e.Append(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			text, _ = e.Append(text[:0])
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("leaf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			LeafHash(text)
		}
	})
	b.Run("commitment", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			PayloadCommitment([SaltLen]byte{}, text[:200])
		}
	})
}

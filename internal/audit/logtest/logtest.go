// Package logtest makes logs for tests: honest ones, and whatever somebody who
// holds a log's bytes, or its key too, could make of them. It writes exports by
// a second, naive reading of docs/FORMAT.md, so that the real writer and the
// verifier are both held against it.
package logtest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
)

// Log is a log being made. All of it may be changed by hand.
type Log struct {
	Origin   string
	Signer   note.Signer
	Also     []note.Signer // that sign checkpoints beside it
	VKey     string        // of event 1
	Next     []string      // those that came after it
	Entries  [][]byte
	Payloads map[uint64]audit.Payload // open ones
}

// Start is the time of event 1; every event is a millisecond later.
const Start = events.Time(1_796_000_000_000_000)

// New returns a log of origin with event 1, signed by a key made from n.
func New(origin string, n byte) *Log {
	signer, vkey := Key(origin, n)
	l := &Log{Origin: origin, Signer: signer, VKey: vkey, Payloads: map[uint64]audit.Payload{}}
	l.Add(events.System, 0, &events.LedgerCreated{Format: events.Format, Origin: origin, Ledger: "main", AdminID: "admin", AdminPublicKey: adminKey, CheckpointKey: vkey, PermitKey: permitKey(origin, n)})
	return l
}

// Key is the key of origin that is made from n.
func Key(origin string, n byte) (note.Signer, string) {
	seed := sha256.Sum256([]byte{n})
	key := ed25519.NewKeyFromSeed(seed[:])
	vkey := must(note.NewEd25519VerifierKey(origin, key.Public().(ed25519.PublicKey)))
	return must(note.NewSigner("PRIVATE+KEY+" + origin + "+" + strings.Split(vkey, "+")[1] + "+" + base64.StdEncoding.EncodeToString(append([]byte{1}, seed[:]...)))), vkey
}

// Rotate brings the checkpoint key made from n, beside the one before it.
func (l *Log) Rotate(n byte) {
	signer, vkey := Key(l.Origin, n)
	l.Next = append(l.Next, vkey)
	l.Add("admin", 0, &events.KeyRotated{Key: events.KeyCheckpoint, Number: uint64(len(l.Next)) + 1, PublicKey: vkey})
	l.Also = append(l.Also, signer)
}

// Retire ends the older of two keys, which signs what it hands over by.
func (l *Log) Retire() {
	l.Add("admin", 0, &events.KeyRetired{Key: events.KeyCheckpoint, Number: uint64(len(l.Next)), Checkpoint: string(l.Note(len(l.Entries)))})
	l.Signer, l.Also = l.Also[0], nil
}

// adminKey is the public key of a NATS user, of no secret that anybody kept.
const adminKey = "UA7PVETEN676L7NCKGECBFLQ7ESYSCIK4WRY5NA2RHOKT26DYG3ZLT26"

// permitKey is the verifier key of permits of a log that n makes the keys of.
func permitKey(origin string, n byte) string {
	seed := sha256.Sum256([]byte{n, 'p'})
	return must(note.NewEd25519VerifierKey(origin+"/permit", ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey)))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Sample returns a log with a policy, a mandatory record, notes and denials:
// open and sealed payloads, and at least n events.
func Sample(origin string, key byte, n int) *Log {
	l := New(origin, key)
	l.Add(events.System, 0, &events.LedgerOpened{Rules: 1, Build: "test"})
	document := []byte("apiVersion: ledgerd/v1\nkind: Policy\nversion: lab-1\n")
	apply := l.Add("admin", 0, &events.Decision{Subject: "admin", Lineage: []string{"admin"}, Operation: "apply", Allowed: true, Reason: "control_done", PolicyVersion: "none"})
	l.AddOpen("admin", apply, document, &events.PolicyActivated{Version: "lab-1", Digest: sha256.Sum256(document)})
	l.Add("admin", apply, &events.AgentRegistered{AgentID: "researcher", Capabilities: []string{"memory.write"}, PublicKey: "U"})
	l.AddOpen("admin", apply, []byte("false"), &events.MemoryWritten{Record: events.Record{Owner: "researcher", Namespace: "policy", Key: "external_upload", Visibility: "descendants", Class: "mandatory", Revision: 1}})
	for revision := uint64(1); len(l.Entries) < n; revision++ {
		d := l.Add("researcher", 0, &events.Decision{Subject: "researcher", Lineage: []string{"researcher"}, Operation: "memory.write", Resource: "researcher:notes.a", Allowed: true, Reason: "owner_write", PolicyVersion: "lab-1", OperationID: fmt.Sprint("op-", revision)})
		l.Add("researcher", d, &events.MemoryWritten{Record: events.Record{Owner: "researcher", Namespace: "notes", Key: "a", Visibility: "private", Class: "preference", Revision: revision}})
	}
	return l
}

// Clone returns a copy whose entries and payloads may be changed.
func (l *Log) Clone() *Log {
	c := *l
	c.Entries = make([][]byte, len(l.Entries))
	for i, b := range l.Entries {
		c.Entries[i] = bytes.Clone(b)
	}
	c.Payloads, c.Next, c.Also = maps.Clone(l.Payloads), slices.Clone(l.Next), slices.Clone(l.Also)
	return &c
}

// Add seals an event at the end of the log and returns its seq.
func (l *Log) Add(agent string, cause uint64, body events.Body) uint64 {
	return l.seal(agent, cause, events.Hash{}, body)
}

// AddOpen is Add with an open payload.
func (l *Log) AddOpen(agent string, cause uint64, payload []byte, body events.Body) uint64 {
	seq := uint64(len(l.Entries) + 1)
	p := audit.Payload{State: audit.PayloadReadable, Salt: sha256.Sum256([]byte{byte(seq)}), Bytes: payload}
	l.Payloads[seq] = p
	return l.seal(agent, cause, events.PayloadCommitment(p.Salt, payload), body)
}

func (l *Log) seal(agent string, cause uint64, payload events.Hash, body events.Body) uint64 {
	seq := uint64(len(l.Entries) + 1)
	e := events.Event{Seq: seq, Prev: l.prev(len(l.Entries)), Time: Start + events.Time(seq)*1000, ID: id(seq), Agent: agent, Cause: cause, Payload: payload, Body: body}
	l.Entries = append(l.Entries, must(e.Append(nil)))
	return seq
}

func (l *Log) prev(i int) events.Hash {
	if i == 0 {
		return events.GenesisHash(l.Origin)
	}
	return events.LeafHash(l.Entries[i-1])
}

func id(seq uint64) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], (uint64(Start)/1000+seq)<<16)
	binary.BigEndian.PutUint64(id[8:], seq)
	id[6], id[8] = 0x70, 0x80
	return id
}

// Relink seals entries from index i on anew, each after the one before it, as
// only somebody with the whole log can.
func (l *Log) Relink(i int) {
	for ; i < len(l.Entries); i++ {
		l.Edit(i, func(e *events.Event) { e.Seq, e.Prev = uint64(i+1), l.prev(i) })
	}
}

// Edit changes one entry and nothing after it.
func (l *Log) Edit(i int, change func(e *events.Event)) {
	e := must(events.Parse(l.Entries[i]))
	change(&e)
	l.Entries[i] = must(e.Append(nil))
}

// Leaves returns the entries' leaf hashes.
func (l *Log) Leaves() []events.Hash {
	leaves := make([]events.Hash, len(l.Entries))
	for i, b := range l.Entries {
		leaves[i] = events.LeafHash(b)
	}
	return leaves
}

// Root is RFC 6962's MTH, as its section 2.1 defines it.
func Root(leaves []events.Hash) events.Hash {
	switch n := len(leaves); n {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return leaves[0]
	default:
		k := 1
		for k*2 < n {
			k *= 2
		}
		return events.NodeHash(Root(leaves[:k]), Root(leaves[k:]))
	}
}

// Note is the signed checkpoint of the first size entries.
func (l *Log) Note(size int) []byte { return l.Sign(l.Text(size)) }

// Text is the unsigned text of that checkpoint.
func (l *Log) Text(size int) string {
	root := Root(l.Leaves()[:size])
	return fmt.Sprintf("%s\n%d\n%s\n", l.Origin, size, base64.StdEncoding.EncodeToString(root[:]))
}

// Sign signs any text with the log's key, and those beside it.
func (l *Log) Sign(text string) []byte {
	return must(note.Sign(&note.Note{Text: text}, append([]note.Signer{l.Signer}, l.Also...)...))
}

// Source is the log as its store would show it.
func (l *Log) Source() *audit.Source {
	var hashes []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		var list []tlog.Hash
		for _, i := range indexes {
			if i >= int64(len(hashes)) {
				return nil, fmt.Errorf("hash %d: none", i)
			}
			list = append(list, hashes[i])
		}
		return list, nil
	})
	for i, b := range l.Entries {
		hashes = append(hashes, must(tlog.StoredHashes(int64(i), b, reader))...)
	}
	return &audit.Source{
		Size: uint64(len(l.Entries)), Checkpoint: l.Note(len(l.Entries)), Hashes: reader.ReadHashes,
		Events: func(from, to uint64, fn func(uint64, []byte) error) error {
			for seq := from; seq <= to && seq <= uint64(len(l.Entries)); seq++ {
				if err := fn(seq, l.Entries[seq-1]); err != nil {
					return err
				}
			}
			return nil
		},
		Payload: func(seq uint64) (audit.Payload, error) {
			if p, ok := l.Payloads[seq]; ok {
				return p, nil
			}
			return audit.Payload{State: audit.PayloadLocked}, nil
		},
	}
}

// Files returns the export of the log as it is, faults and all, with a
// checkpoint signed by its key: path to contents.
func (l *Log) Files() map[string][]byte {
	files := map[string][]byte{"checkpoint": l.Note(len(l.Entries))}
	nodes := l.Leaves()
	for level := 0; len(nodes) > 0; level++ {
		var above []events.Hash
		for n := 0; n*256 < len(nodes); n++ {
			tile := nodes[n*256 : min(len(nodes), n*256+256)]
			var b []byte
			for _, h := range tile {
				b = append(b, h[:]...)
			}
			files[fmt.Sprintf("tile/%d/%s", level, number(n, len(tile)))] = b
			if len(tile) == 256 {
				above = append(above, Root(tile))
			}
		}
		nodes = above
	}
	for n := 0; n*256 < len(l.Entries); n++ {
		bundle := l.Entries[n*256 : min(len(l.Entries), n*256+256)]
		files["tile/entries/"+number(n, len(bundle))] = Bundle(bundle...)
	}
	for seq, p := range l.Payloads {
		if seq <= uint64(len(l.Entries)) {
			files[fmt.Sprintf("payloads/%d", seq)] = fmt.Appendf(nil, "%x\n%s", p.Salt, p.Bytes)
		}
	}
	return files
}

// Bundle frames entries as a bundle does.
func Bundle(entries ...[]byte) (b []byte) {
	for _, e := range entries {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(e))), e...)
	}
	return b
}

func number(n, width int) string {
	s := fmt.Sprintf("%03d", n%1000)
	if n >= 1000 {
		s = fmt.Sprintf("x%03d/%s", n/1000, s) // enough for tests
	}
	if width < 256 {
		s += fmt.Sprintf(".p/%d", width)
	}
	return s
}

// Write writes files under dir.
func Write(dir string, files map[string][]byte) error {
	for name, b := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

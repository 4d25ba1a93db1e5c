package events

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

var update = flag.Bool("update", false, "write the vectors under testdata anew")

const vectorDir = "testdata/v1"

func testSeed(n byte) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte{'k', 'e', 'y', n})
	return ed25519.NewKeyFromSeed(seed[:])
}

func testVKey(name string, n byte) string {
	vkey, err := note.NewEd25519VerifierKey(name, testSeed(n).Public().(ed25519.PublicKey))
	if err != nil {
		panic(err)
	}
	return vkey
}

func testSigner(name string, n byte) note.Signer {
	vkey := testVKey(name, n)
	hash := strings.Split(vkey, "+")[1]
	s, err := note.NewSigner("PRIVATE+KEY+" + name + "+" + hash + "+" + base64.StdEncoding.EncodeToString(append([]byte{1}, testSeed(n).Seed()...)))
	if err != nil {
		panic(err)
	}
	return s
}

func testID(n byte) [16]byte {
	return [16]byte{0x01, 0x93, 0x7a, 0x1b, 0x2c, n, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, n}
}

func testSalt(n byte) (salt [SaltLen]byte) {
	for i := range salt {
		salt[i] = n<<4 + byte(i)
	}
	return salt
}

// goldenPayload is a payload of the golden log beside its event.
type goldenPayload struct {
	Seq        uint64 `json:"seq"`
	Open       bool   `json:"open"`
	Salt       string `json:"salt"`
	Payload    string `json:"payload"`
	Commitment string `json:"commitment"`
}

type goldenDigest struct {
	Seq       uint64 `json:"seq"`
	Salt      string `json:"salt"`
	Arguments string `json:"arguments"`
	Digest    string `json:"digest"`
}

// goldenMeta is testdata/v1/log.json: everything that is computed from the log.
type goldenMeta struct {
	Origin    string          `json:"origin"`
	VKey      string          `json:"vkey"`
	Genesis   string          `json:"genesis"`
	Leaves    []string        `json:"leaves"` // leaf hash of event i+1
	Roots     []string        `json:"roots"`  // tree of the first i+1 events
	Payloads  []goldenPayload `json:"payloads"`
	Arguments []goldenDigest  `json:"arguments"`
}

const goldenPolicy = `apiVersion: ledgerd/v1
kind: Policy
version: lab-1
environment: [memory.read, memory.write, external.upload]
actions:
  external.upload: {}
namespaces:
  policy: {class: mandatory, combine: all_true}
`

// golden builds the golden log: the head of the worked case, made by hand.
func golden() ([][]byte, goldenMeta) {
	g := goldenMeta{Origin: testOrigin, VKey: testVKey(testOrigin, 1), Genesis: GenesisHash(testOrigin).String(), Payloads: []goldenPayload{}}
	var log [][]byte
	var leaves []Hash
	prev := GenesisHash(testOrigin)
	add := func(agent string, cause uint64, payload string, open bool, body Body) {
		n := byte(len(log) + 1)
		e := Event{Seq: uint64(n), Prev: prev, Time: bodyTime("2026-11-29T20:31:07.114203Z") + Time(n/3)*1000, ID: testID(n), Agent: agent, Cause: cause, Body: body}
		if payload != "" {
			e.Payload = PayloadCommitment(testSalt(n), []byte(payload))
			g.Payloads = append(g.Payloads, goldenPayload{e.Seq, open, saltHex(n), payload, e.Payload.String()})
		}
		b, err := e.Append(nil)
		if err != nil {
			panic(fmt.Sprintf("event %d: %v", n, err))
		}
		log, prev = append(log, b), LeafHash(b)
		leaves = append(leaves, prev)
		g.Leaves = append(g.Leaves, prev.String())
		g.Roots = append(g.Roots, naiveRoot(leaves).String())
	}
	const arguments = `{"path":"report.pdf"}`
	argumentsDigest := ArgumentsDigest(testSalt(9), []byte(arguments))
	g.Arguments = []goldenDigest{{9, saltHex(9), arguments, argumentsDigest.String()}}
	policyDigest := Hash(sha256.Sum256([]byte(goldenPolicy)))
	lineage := []string{"researcher", "report_manager"}

	add(System, 0, "", false, bodyCases()[TypeLedgerCreated].minimal)
	add(System, 0, "", false, &LedgerOpened{Rules: 1, Build: "golden"})
	add("admin", 0, `{"documents":["…"]}`, false, &Decision{Subject: "admin", Lineage: []string{"admin"}, Operation: "apply", Allowed: true, Reason: "control_done", PolicyVersion: "none", OperationID: "apply-1"})
	add("admin", 3, goldenPolicy, true, &PolicyActivated{Version: "lab-1", Digest: policyDigest})
	add("admin", 3, "", false, &AgentRegistered{AgentID: "report_manager", Capabilities: []string{"external.upload", "memory.read", "memory.write"}, PublicKey: agentKey})
	add("admin", 3, "false", true, &MemoryWritten{Record: Record{"report_manager", "policy", "external_upload", "descendants", "mandatory", 1}})
	add("researcher", 0, `{"key":"summary","namespace":"notes","owner_agent_id":"researcher","value":"draft"}`, false, &Decision{Subject: "researcher", Lineage: lineage, Operation: "memory.write", Resource: "researcher:notes.summary", Allowed: true, Reason: "owner_write", PolicyVersion: "lab-1", PolicyDigest: policyDigest, OperationID: "op-7", TraceID: "t-1"})
	add("researcher", 7, "", false, &MemoryWritten{Record: Record{"researcher", "notes", "summary", "children", "preference", 1}})
	add("researcher", 0, `{"action":"external.upload","arguments":{"path":"report.pdf"}}`, false, &Decision{Subject: "researcher", Lineage: lineage, Operation: "action.authorize", Resource: "external.upload", Action: "external.upload", Reason: "action_not_in_effective_capabilities", PolicyVersion: "lab-1", PolicyDigest: policyDigest, ArgumentsDigest: argumentsDigest, OperationID: "op-9"})
	add("researcher", 0, `{"key":"storage_token","namespace":"credentials"}`, false, &Decision{Subject: "researcher", Lineage: lineage, Operation: "memory.read", Resource: "credentials.storage_token", Reason: "not_visible_from", PolicyVersion: "lab-1", PolicyDigest: policyDigest, Owner: "report_manager", Blind: "000102030405060708090a0b0c0d0e0f"})
	add(System, 0, "", false, &RequestsRefused{Refusals{ID: "researcher", Code: "rate_limited", Count: 12, First: bodyTime("2026-11-29T20:31:06.000001Z"), Last: bodyTime("2026-11-29T20:31:07.000000Z")}})
	return log, g
}

func saltHex(n byte) string {
	salt := testSalt(n)
	return fmt.Sprintf("%x", salt[:])
}

// naiveRoot is RFC 6962's MTH as its section 2.1 defines it.
func naiveRoot(leaves []Hash) Hash {
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
		return NodeHash(naiveRoot(leaves[:k]), naiveRoot(leaves[k:]))
	}
}

func goldenCheckpoint(g goldenMeta) []byte {
	root, err := ParseHash(g.Roots[len(g.Roots)-1])
	if err != nil {
		panic(err)
	}
	text := fmt.Sprintf("%s\n%d\n%s\n", g.Origin, len(g.Roots), base64.StdEncoding.EncodeToString(root[:]))
	b, err := note.Sign(&note.Note{Text: text}, testSigner(g.Origin, 1))
	if err != nil {
		panic(err)
	}
	return b
}

// vector compares got with a file under testdata, or writes it with -update.
func vector(t *testing.T, name string, got []byte) {
	t.Helper()
	name = filepath.Join(vectorDir, name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("%v (a released vector is never lost; -update writes it)", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s no longer says what this code writes.\ngot:\n%s\nwant:\n%s", name, got, want)
	}
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func lines(list [][]byte) []byte { return append(bytes.Join(list, []byte("\n")), '\n') }

// goldenFile reads the stored golden log, which no code of today wrote.
func goldenFile(t testing.TB) [][]byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectorDir, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
}

// TestR71_OneByteStringIsHashedStoredAndChained: every byte of the golden log is
// pinned, the leaf hash of the stored bytes is the next event's prev, and the
// same hashes are the leaves of the tree that the checkpoint covers.
func TestR71_OneByteStringIsHashedStoredAndChained(t *testing.T) {
	log, meta := golden()
	vector(t, "log.jsonl", lines(log))
	vector(t, "log.json", asJSON(t, meta))
	vector(t, "checkpoint", goldenCheckpoint(meta))
	vector(t, "vkey", []byte(meta.VKey+"\n"))

	stored := goldenFile(t)
	if len(stored) < 6 {
		t.Fatalf("golden log of %d events", len(stored))
	}
	prev := GenesisHash(testOrigin)
	var hashes []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		var list []tlog.Hash
		for _, i := range indexes {
			list = append(list, hashes[i])
		}
		return list, nil
	})
	for i, b := range stored {
		e, err := Parse(b)
		if err != nil {
			t.Fatalf("event %d: %v", i+1, err)
		}
		if e.Seq != uint64(i+1) || e.Prev != prev {
			t.Errorf("event %d: seq %d, prev %s, want prev %s", i+1, e.Seq, e.Prev, prev)
		}
		if prev = LeafHash(b); prev.String() != meta.Leaves[i] || prev != Hash(tlog.RecordHash(b)) {
			t.Errorf("event %d: leaf %s, vector %s", i+1, prev, meta.Leaves[i])
		}
		more, err := tlog.StoredHashes(int64(i), b, reader)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, more...)
		root, err := tlog.TreeHash(int64(i+1), reader)
		if err != nil || Hash(root).String() != meta.Roots[i] {
			t.Errorf("root at %d: %s, vector %s (%v)", i+1, Hash(root), meta.Roots[i], err)
		}
	}
	verifier, err := note.NewVerifier(meta.VKey)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Open(goldenCheckpoint(meta), note.VerifierList(verifier))
	if err != nil {
		t.Fatal(err)
	}
	root, _ := ParseHash(meta.Roots[len(stored)-1])
	if want := fmt.Sprintf("%s\n%d\n%s\n", testOrigin, len(stored), base64.StdEncoding.EncodeToString(root[:])); signed.Text != want {
		t.Errorf("checkpoint says %q, want %q", signed.Text, want)
	}
}

// TestR73_CommitmentsNotValues: a value stands in no event; two equal values
// under two salts leave two commitments, and the vectors pin both functions.
func TestR73_CommitmentsNotValues(t *testing.T) {
	value := []byte(`{"value":"canary-7461"}`)
	a, b := PayloadCommitment(testSalt(1), value), PayloadCommitment(testSalt(2), value)
	if a == b {
		t.Error("equal values under two salts have one commitment")
	}
	if a != PayloadCommitment(testSalt(1), value) {
		t.Error("a commitment is not a function of salt and value")
	}
	if ArgumentsDigest(testSalt(1), value) == a {
		t.Error("a payload and arguments share a commitment: their tags do not part them")
	}
	if PayloadCommitment(testSalt(1), append(value, 0)) == a {
		t.Error("a longer payload has the same commitment")
	}
	_, meta := golden()
	all := string(lines(goldenFile(t)))
	for _, p := range meta.Payloads {
		if strings.Contains(all, p.Salt) {
			t.Errorf("salt of event %d stands in the log", p.Seq)
		}
		if !strings.Contains(all, p.Commitment) {
			t.Errorf("commitment of event %d is missing", p.Seq)
		}
	}
	for _, secret := range []string{"draft", "report.pdf", "mandatory, combine"} {
		if strings.Contains(all, secret) {
			t.Errorf("value %q stands in the log", secret)
		}
	}
	// By construction: no body has a field for a value, arguments or a salt.
	for _, typ := range Types() {
		names := reflect.TypeOf(newBody(typ)).Elem()
		for i := range names.NumField() {
			switch f := names.Field(i); f.Name {
			case "Value", "Arguments", "Salt", "Payload", "Request":
				t.Errorf("%s has a field %s", typ, f.Name)
			}
		}
	}
}

// TestR78_GoldenLogOpens: the stored log reads with owner, visibility and
// revision intact, and is written back byte for byte.
func TestR78_GoldenLogOpens(t *testing.T) {
	stored := goldenFile(t)
	want := map[int]Record{
		6: {"report_manager", "policy", "external_upload", "descendants", "mandatory", 1},
		8: {"researcher", "notes", "summary", "children", "preference", 1},
	}
	for i, b := range stored {
		e, err := Parse(b)
		if err != nil {
			t.Fatalf("event %d: %v", i+1, err)
		}
		again, err := e.Append(nil)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("event %d is written back as %s (%v)", i+1, again, err)
		}
		if w, ok := e.Body.(*MemoryWritten); ok {
			if w.Record != want[i+1] {
				t.Errorf("event %d: %+v, want %+v", i+1, w.Record, want[i+1])
			}
			delete(want, i+1)
		}
	}
	if len(want) != 0 {
		t.Errorf("records not found: %v", want)
	}
}

// TestR78_UnknownTypeOrVersionStops: what this reader does not know is an error
// that says so, never an event left out.
func TestR78_UnknownTypeOrVersionStops(t *testing.T) {
	base := string(goldenFile(t)[7])
	for _, c := range []struct{ old, new, want string }{
		{`"type":"memory.written"`, `"type":"memory.gone"`, "unknown event type"},
		{`"type":"memory.written"`, `"type":"memory.Written"`, "unknown event type"},
		{`{"v":1,`, `{"v":2,`, "unknown format version"},
		{`{"v":1,`, `{"v":10,`, "unknown format version"},
		{`{"v":1,`, `{"v":1.0,`, "unknown format version"},
		{`{"v":1,`, `{"v":"1",`, "unknown format version"},
		{`"revision":1}`, `"revision":1,"label":"x"}`, "expected"},
	} {
		changed := strings.Replace(base, c.old, c.new, 1)
		if changed == base {
			t.Fatalf("%s does not stand in the event", c.old)
		}
		if _, err := Parse([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.new, err, c.want)
		}
	}
}

// typeVector is one line of testdata/v1/types.json; the event itself is the
// same line of types.jsonl.
type typeVector struct {
	Type Type   `json:"type"`
	Form string `json:"form"`
	Leaf string `json:"leaf"`
}

// TestTypeVectors pins the bytes of every type: once with the fewest fields,
// once with all of them.
func TestTypeVectors(t *testing.T) {
	var list [][]byte
	var meta []typeVector
	for _, typ := range Types() {
		c := bodyCases()[typ]
		minimal := Event{Seq: 1, Agent: System, ID: testID(0), Time: bodyTime("1970-01-01T00:00:00.000000Z"), Body: c.minimal}
		maximal := Event{Seq: IntegerMax, Prev: filledHash(0xe1), Agent: strings.Repeat("z", IDBytesMax), ID: testID(255), Time: timeMax, Cause: IntegerMax - 1, Payload: filledHash(0x11), Body: c.maximal}
		for form, e := range map[string]*Event{"minimal": &minimal, "maximal": &maximal} {
			b, err := e.Append(nil)
			if err != nil {
				t.Fatalf("%s %s: %v", typ, form, err)
			}
			back, err := Parse(b)
			if err != nil || !reflect.DeepEqual(&back, e) {
				t.Errorf("%s %s does not read back: %v\n%s", typ, form, err, b)
			}
			if again, err := back.Append([]byte("x")); err != nil || string(again) != "x"+string(b) {
				t.Errorf("%s %s is written back as %s (%v)", typ, form, again, err)
			}
		}
		for _, form := range []string{"minimal", "maximal"} {
			e := &minimal
			if form == "maximal" {
				e = &maximal
			}
			b, _ := e.Append(nil)
			list = append(list, b)
			meta = append(meta, typeVector{typ, form, LeafHash(b).String()})
		}
	}
	vector(t, "types.jsonl", lines(list))
	vector(t, "types.json", asJSON(t, meta))
}

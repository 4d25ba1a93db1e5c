package audit

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/events"
)

// InclusionProof shows that a log holds an event, to whoever has the log's key
// and the event's hash: a C2SP tlog-proof.
type InclusionProof struct {
	Extra      []byte // signed by nobody, and looked at by nobody here
	Index      uint64 // seq−1
	Hashes     []events.Hash
	Checkpoint []byte // the signed note
}

// ConsistencyProof shows that the log of a checkpoint begins with the first From
// events that somebody saw before: what a C2SP witness is sent.
type ConsistencyProof struct {
	From       uint64
	Hashes     []events.Hash
	Checkpoint []byte // the signed note
}

const (
	inclusionHead = "c2sp.org/tlog-proof@v1\n"
	pathMax       = 63 // hashes of a proof in any tree that a checkpoint can name

	// ProofBytesMax bounds the file of a proof.
	ProofBytesMax = 128 << 10
)

var errProof = errors.New("not a proof")

// ParseInclusionProof reads a tlog-proof strictly: what Encode does not write is
// none. It checks neither hashes nor signatures.
func ParseInclusionProof(b []byte) (*InclusionProof, error) {
	text, ok := strings.CutPrefix(string(b), inclusionHead)
	if !ok || len(b) > ProofBytesMax {
		return nil, fmt.Errorf("%w: no tlog-proof of at most %d bytes", errProof, ProofBytesMax)
	}
	p := &InclusionProof{}
	if line, rest, _ := strings.Cut(text, "\n"); strings.HasPrefix(line, "extra ") {
		if p.Extra, ok = canonicalBase64(line[len("extra "):]); !ok || len(p.Extra) == 0 {
			return nil, fmt.Errorf("%w: extra data that is no base64", errProof)
		}
		text = rest
	}
	var err error
	if p.Index, p.Hashes, p.Checkpoint, err = parsePath("index ", text); err != nil {
		return nil, err
	}
	return p, nil
}

// ParseConsistencyProof is ParseInclusionProof for the other kind.
func ParseConsistencyProof(b []byte) (*ConsistencyProof, error) {
	if len(b) > ProofBytesMax {
		return nil, fmt.Errorf("%w: over %d bytes", errProof, ProofBytesMax)
	}
	p := &ConsistencyProof{}
	var err error
	if p.From, p.Hashes, p.Checkpoint, err = parsePath("old ", string(b)); err != nil {
		return nil, err
	}
	if p.From == 0 {
		return nil, fmt.Errorf("%w: from a log of no events", errProof)
	}
	return p, nil
}

// parsePath reads a number behind its name, hashes a line each, an empty line,
// and a checkpoint.
func parsePath(name, text string) (n uint64, hashes []events.Hash, signed []byte, err error) {
	line, rest, _ := strings.Cut(text, "\n")
	digits, ok := strings.CutPrefix(line, name)
	if n, err = parseNumber(digits); !ok || err != nil || n > events.IntegerMax {
		return 0, nil, nil, fmt.Errorf("%w: want %q and a number, found %s", errProof, name, quote(line))
	}
	for {
		line, rest, ok = strings.Cut(rest, "\n")
		switch {
		case !ok:
			return n, nil, nil, fmt.Errorf("%w: it ends before its checkpoint", errProof)
		case line == "":
			signed = []byte(rest)
			if _, err = readCheckpoint(signed); err == nil && (strings.HasSuffix(rest, "\n\n") || !utf8.ValidString(rest)) {
				err = fmt.Errorf("%w: no signatures, or no UTF-8", errNote)
			}
			return n, hashes, signed, err
		}
		h, ok := canonicalBase64(line)
		if !ok || len(h) != len(events.Hash{}) || len(hashes) == pathMax {
			return n, nil, nil, fmt.Errorf("%w: want at most %d hashes and an empty line, found %s", errProof, pathMax, quote(line))
		}
		hashes = append(hashes, events.Hash(h))
	}
}

// Encode is the proof as a file.
func (p *InclusionProof) Encode() []byte {
	b := []byte(inclusionHead)
	if len(p.Extra) > 0 {
		b = fmt.Appendf(b, "extra %s\n", base64.StdEncoding.EncodeToString(p.Extra))
	}
	return encodePath(b, "index ", p.Index, p.Hashes, p.Checkpoint)
}

// Encode is the proof as a file.
func (p *ConsistencyProof) Encode() []byte {
	return encodePath(nil, "old ", p.From, p.Hashes, p.Checkpoint)
}

func encodePath(b []byte, name string, n uint64, hashes []events.Hash, signed []byte) []byte {
	b = strconv.AppendUint(append(b, name...), n, 10)
	b = append(b, '\n')
	for _, h := range hashes {
		b = append(base64.StdEncoding.AppendEncode(b, h[:]), '\n')
	}
	return append(append(b, '\n'), signed...)
}

// Error makes a fault what a check of evidence returns: it does not show what it
// was brought for. Any other error says that it could not be checked.
func (f *Fault) Error() string { return f.String() }

// Check reports whether the proof shows that the log of the keys holds the event
// of the receipt, and under which checkpoint. The error is a *Fault.
func (p *InclusionProof) Check(r *Receipt, keys *Keys) (Checkpoint, error) {
	if r.Origin != "" && r.Origin != keys.Origin() {
		return Checkpoint{}, &Fault{Check: "receipt", Seq: r.Seq, Expected: "a receipt of " + quote(keys.Origin()), Found: "one of " + quote(r.Origin)}
	}
	c, err := keys.Open(p.Checkpoint)
	if err != nil {
		return c, keys.Unsigned(err)
	}
	if p.Index != r.Seq-1 {
		return c, &Fault{Check: "inclusion", Seq: r.Seq, Expected: fmt.Sprintf("a proof of index %d", r.Seq-1), Found: fmt.Sprintf("one of index %d", p.Index)}
	}
	return c, p.CheckPath(r.Hash, c)
}

// CheckPath reports whether leaf is where the proof says in the tree of c, no
// matter who signed it. The error is a *Fault.
func (p *InclusionProof) CheckPath(leaf events.Hash, c Checkpoint) error {
	if p.Index >= c.Size {
		return &Fault{Check: "inclusion", Seq: p.Index + 1, Expected: fmt.Sprintf("a checkpoint of more than %d events", p.Index), Found: fmt.Sprintf("one of %d", c.Size)}
	}
	if err := tlog.CheckRecord(tlogHashes(p.Hashes), int64(c.Size), tlog.Hash(c.Root), int64(p.Index), tlog.Hash(leaf)); err != nil {
		return &Fault{Check: "inclusion", Seq: p.Index + 1,
			Expected: fmt.Sprintf("a path from the event's hash %s to root %s at size %d", leaf, c.Root, c.Size), Found: fmt.Sprintf("%d hashes that do not lead there", len(p.Hashes))}
	}
	return nil
}

// Check reports whether the proof's checkpoint is signed by the keys and continues
// the one remembered: never smaller, at its size the same. The error is a *Fault.
func (p *ConsistencyProof) Check(remembered Checkpoint, keys *Keys) (Checkpoint, error) {
	c, err := keys.Open(p.Checkpoint)
	if err != nil {
		return c, keys.Unsigned(err)
	}
	if remembered.Origin != c.Origin {
		return c, &Fault{Check: "consistency", Expected: "the remembered origin " + quote(remembered.Origin), Found: quote(c.Origin)}
	}
	if c.Size < remembered.Size {
		return c, &Fault{Check: "consistency", Seq: c.Size + 1, To: remembered.Size, Expected: fmt.Sprintf("at least %d events", remembered.Size), Found: fmt.Sprintf("a checkpoint of %d: it is older than the remembered one, or the log was cut back", c.Size)}
	}
	if c.Size == remembered.Size && c.Root != remembered.Root {
		return c, &Fault{Check: "consistency", Expected: fmt.Sprintf("root %s at size %d", remembered.Root, c.Size), Found: "root " + c.Root.String() + ": two histories under one key"}
	}
	if p.From != remembered.Size {
		return c, &Fault{Check: "consistency", Expected: fmt.Sprintf("a proof from size %d", remembered.Size), Found: fmt.Sprintf("one from size %d: \"ledgerd proof consistency %d\" makes the other", p.From, remembered.Size)}
	}
	return c, p.CheckPath(remembered.Root, c)
}

// CheckPath reports whether the tree of c begins with that of root at size From,
// no matter who signed it. The error is a *Fault.
func (p *ConsistencyProof) CheckPath(root events.Hash, c Checkpoint) error {
	err := tlog.CheckTree(tlogHashes(p.Hashes), int64(c.Size), tlog.Hash(c.Root), int64(p.From), tlog.Hash(root))
	if err != nil || p.From == c.Size && root != c.Root {
		return &Fault{Check: "consistency", Expected: fmt.Sprintf("hashes that lead from root %s at size %d to root %s at size %d", root, p.From, c.Root, c.Size),
			Found: fmt.Sprintf("%d that do not", len(p.Hashes))}
	}
	return nil
}

func tlogHashes(list []events.Hash) []tlog.Hash {
	out := make([]tlog.Hash, len(list))
	for i, h := range list {
		out[i] = tlog.Hash(h)
	}
	return out
}

// OpenCheckpoint reads a checkpoint that key must have signed.
func OpenCheckpoint(signed []byte, key note.Verifier) (Checkpoint, error) {
	return openCheckpoint(signed, key)
}

// signedAs is the id of the first key of a name that a note says signed it.
func signedAs(signed []byte, name string) string {
	for line := range strings.Lines(string(signed)) {
		b64, ok := strings.CutPrefix(line, "— "+name+" ")
		sig, _ := canonicalBase64(strings.TrimSuffix(b64, "\n"))
		if ok && len(sig) > 4 {
			return hex.EncodeToString(sig[:4])
		}
	}
	return ""
}

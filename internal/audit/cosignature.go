package audit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
)

// A cosignature is C2SP tlog-cosignature's cosignature/v1: Ed25519 over a
// checkpoint and the second at which the witness saw it, as a signature line of
// the note with u32be key id ‖ u64be seconds ‖ signature.
const (
	cosignatureKind  = 4
	cosignatureBytes = 4 + 8 + ed25519.SignatureSize
)

// Witness is one who cosigns checkpoints, by its verifier key.
type Witness struct {
	Name string
	VKey string
	id   uint32
	key  ed25519.PublicKey
}

// ParseWitness reads a witness's verifier key: <name>+<key id>+<base64 of 0x04 ‖ key>.
func ParseWitness(vkey string) (*Witness, error) {
	bad := func(why string) (*Witness, error) {
		return nil, fmt.Errorf("witness key %s: %s", quote(vkey), why)
	}
	parts := strings.SplitN(vkey, "+", 3)
	if len(parts) != 3 || !events.ValidOrigin(parts[0]) {
		return bad("it is <name>+<key id>+<key>")
	}
	raw, ok := canonicalBase64(parts[2])
	if !ok || len(raw) != 1+ed25519.PublicKeySize || raw[0] != cosignatureKind {
		return bad("it is no Ed25519 key of kind cosignature/v1")
	}
	sum := sha256.Sum256(append([]byte(parts[0]+"\n"), raw...))
	id := binary.BigEndian.Uint32(sum[:])
	if fmt.Sprintf("%08x", id) != parts[1] {
		return bad("its key id is not that of its name and key")
	}
	return &Witness{parts[0], vkey, id, raw[1:]}, nil
}

// ID is the key's id in hexadecimal: a name for files.
func (w *Witness) ID() string { return fmt.Sprintf("%08x", w.id) }

// Cosigned returns when the witness cosigned a signed checkpoint. It has done so
// where exactly one line is its own, and verifies.
func (w *Witness) Cosigned(signed []byte) (at time.Time, err error) {
	text, signatures, ok := strings.Cut(string(signed), "\n\n")
	if !ok {
		return at, errNote
	}
	found := 0
	for line := range strings.Lines(signatures) {
		when, own, err := w.line(text+"\n", line)
		if !own {
			continue
		}
		if err != nil {
			return at, err
		}
		found, at = found+1, when
	}
	switch found {
	case 0:
		return at, fmt.Errorf("not cosigned by %s", w.Name)
	case 1:
		return at, nil
	}
	return at, fmt.Errorf("%d cosignatures by %s", found, w.Name)
}

// line verifies one signature line over a note's text; own says whether it is
// the witness's.
func (w *Witness) line(text, line string) (at time.Time, own bool, err error) {
	b64, ok := strings.CutPrefix(line, "— "+w.Name+" ")
	b64, ended := strings.CutSuffix(b64, "\n")
	if !ok {
		return at, false, nil
	}
	b, ok := canonicalBase64(b64)
	if !ok || len(b) < 4 || binary.BigEndian.Uint32(b) != w.id {
		return at, false, nil
	}
	bad := fmt.Errorf("the cosignature by %s is not good", w.Name)
	if !ended || len(b) != cosignatureBytes {
		return at, true, bad
	}
	seconds := binary.BigEndian.Uint64(b[4:])
	if seconds > events.IntegerMax || !ed25519.Verify(w.key, cosignedMessage(seconds, text), b[12:]) {
		return at, true, bad
	}
	return time.Unix(int64(seconds), 0), true, nil
}

func cosignedMessage(seconds uint64, text string) []byte {
	return []byte("cosignature/v1\ntime " + strconv.FormatUint(seconds, 10) + "\n" + text)
}

// Cosign makes the witness's signature line: what a witness does, for tests and
// vectors.
func Cosign(name string, key ed25519.PrivateKey, at time.Time, signed []byte) (line, vkey string) {
	raw := append([]byte{cosignatureKind}, key.Public().(ed25519.PublicKey)...)
	sum := sha256.Sum256(append([]byte(name+"\n"), raw...))
	text, _, _ := strings.Cut(string(signed), "\n\n")
	b := binary.BigEndian.AppendUint64(sum[:4:4], uint64(at.Unix()))
	b = append(b, ed25519.Sign(key, cosignedMessage(uint64(at.Unix()), text+"\n"))...)
	return "— " + name + " " + base64.StdEncoding.EncodeToString(b) + "\n", fmt.Sprintf("%s+%x+%s", name, sum[:4], base64.StdEncoding.EncodeToString(raw))
}

// AddCosignatures returns a signed checkpoint with the lines of a witness's
// answer that are its own cosignature, once, and when it was made. Other lines
// are left out.
func (w *Witness) AddCosignatures(signed, answer []byte) (_ []byte, at time.Time, err error) {
	text, _, ok := strings.Cut(string(signed), "\n\n")
	if !ok {
		return nil, at, errNote
	}
	found := ""
	for line := range strings.Lines(string(answer)) {
		when, own, err := w.line(text+"\n", line)
		switch {
		case own && err != nil:
			return nil, at, err
		case own && found != "":
			return nil, at, fmt.Errorf("two cosignatures by %s", w.Name)
		case own:
			found, at = line, when
		}
	}
	if found == "" {
		return nil, at, errors.New("the answer holds no cosignature by " + w.Name)
	}
	return append(signed[:len(signed):len(signed)], found...), at, nil
}

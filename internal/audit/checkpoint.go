package audit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// Checkpoint is what a C2SP tlog-checkpoint says in its three lines.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   events.Hash
}

// noteBytesMax bounds a signed note: three lines and as many signatures as any
// witness policy asks for.
const noteBytesMax = 64 << 10

var emptyRoot = events.Hash(sha256.Sum256(nil))

func sha(b []byte) events.Hash { return sha256.Sum256(b) }

var errNote = errors.New("not a signed checkpoint")

// ReadCheckpoint reads a signed checkpoint strictly, without regard to who
// signed it.
func ReadCheckpoint(signed []byte) (Checkpoint, error) { return readCheckpoint(signed) }

// readCheckpoint reads a signed checkpoint strictly, without regard to who
// signed it: exactly three lines as the writer forms them, then an empty line,
// then signature lines in canonical base64.
func readCheckpoint(signed []byte) (Checkpoint, error) {
	var c Checkpoint
	if len(signed) > noteBytesMax {
		return c, fmt.Errorf("%w: %d bytes", errNote, len(signed))
	}
	text, signatures, ok := strings.Cut(string(signed), "\n\n")
	if !ok {
		return c, fmt.Errorf("%w: no signatures", errNote)
	}
	lines := strings.Split(text, "\n")
	if len(lines) != 3 {
		return c, fmt.Errorf("%w: %d lines before the signatures, want 3", errNote, len(lines))
	}
	if !events.ValidOrigin(lines[0]) {
		return c, fmt.Errorf("%w: origin %s", errNote, quote(lines[0]))
	}
	size, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil || size > events.IntegerMax || strconv.FormatUint(size, 10) != lines[1] {
		return c, fmt.Errorf("%w: size %s", errNote, quote(lines[1]))
	}
	root, ok := canonicalBase64(lines[2])
	if !ok || len(root) != len(c.Root) {
		return c, fmt.Errorf("%w: root %s", errNote, quote(lines[2]))
	}
	if n := strings.Count(signatures, "\n"); n < 1 || n > signaturesMax || !utf8.ValidString(signatures) {
		return c, fmt.Errorf("%w: %d signature lines in UTF-8, want 1 to %d", errNote, n, signaturesMax)
	}
	for line := range strings.Lines(signatures) {
		name, b64, _ := strings.Cut(strings.TrimPrefix(line, "— "), " ")
		sig, ok := canonicalBase64(strings.TrimSuffix(b64, "\n"))
		if !strings.HasPrefix(line, "— ") || !strings.HasSuffix(line, "\n") || name == "" || strings.ContainsFunc(name, noName) || !ok || len(sig) < 5 {
			return c, fmt.Errorf("%w: signature line %s", errNote, quote(line))
		}
	}
	return Checkpoint{lines[0], size, events.Hash(root)}, nil
}

// signaturesMax is how many lines a signed note may have, as in C2SP.
const signaturesMax = 100

// noName reports what the name of a key may not have.
func noName(r rune) bool { return r == '+' || r < ' ' || unicode.IsSpace(r) }

func canonicalBase64(s string) ([]byte, bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return b, err == nil && base64.StdEncoding.EncodeToString(b) == s
}

// openCheckpoint reads a checkpoint and checks that key signed it, once, under
// the name of its origin. Signatures of others are ignored.
func openCheckpoint(signed []byte, key note.Verifier) (Checkpoint, error) {
	c, err := readCheckpoint(signed)
	if err != nil {
		return c, err
	}
	if c.Origin != key.Name() {
		return c, fmt.Errorf("origin %s is not the key's name %s", quote(c.Origin), quote(key.Name()))
	}
	if _, err := note.Open(signed, note.VerifierList(key)); err != nil {
		return c, err
	}
	own := 0
	for line := range strings.Lines(string(signed)) {
		b64, ok := strings.CutPrefix(line, "— "+key.Name()+" ")
		sig, _ := canonicalBase64(strings.TrimSuffix(b64, "\n"))
		if ok && len(sig) > 4 && binary.BigEndian.Uint32(sig) == key.KeyHash() {
			own++
		}
	}
	if own != 1 {
		return c, fmt.Errorf("%d signatures by one key", own)
	}
	return c, nil
}

package store

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
)

// ErrCheckpoint says that a note is not a checkpoint signed by the key asked for.
var ErrCheckpoint = errors.New("not a checkpoint of this key")

// Checkpoint is a C2SP tlog-checkpoint of exactly three lines, without extensions.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   events.Hash
}

// Text is the body that is signed.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// NewCheckpointKey makes an Ed25519 key named origin: the signer's text, which
// is secret, and the verifier's, both in the format of x/mod's package note.
// The key must sign nothing but checkpoints: a note's signature carries no tag.
func NewCheckpointKey(origin string) (signer, verifier string, err error) {
	return note.GenerateKey(rand.Reader, origin)
}

// SignCheckpoint returns the signed note over c. Each signer's name must be the
// origin.
func SignCheckpoint(signer note.Signer, c Checkpoint, others ...note.Signer) ([]byte, error) {
	signers := append([]note.Signer{signer}, others...)
	for _, s := range signers {
		if s.Name() != c.Origin {
			return nil, fmt.Errorf("checkpoint of %q cannot be signed by the key of %q", c.Origin, s.Name())
		}
	}
	return note.Sign(&note.Note{Text: c.Text()}, signers...)
}

// ParseCheckpoint verifies a signed note and reads its body strictly: the three
// lines as Text writes them and nothing else, the origin being the keys' name.
// One of the keys has to have signed it; signatures by unknown keys are allowed
// and ignored. Errors are ErrCheckpoint.
func ParseCheckpoint(text []byte, verifiers ...note.Verifier) (Checkpoint, error) {
	if len(verifiers) == 0 {
		return Checkpoint{}, fmt.Errorf("%w: no key to check it with", ErrCheckpoint)
	}
	verifier := verifiers[0]
	n, err := note.Open(text, note.VerifierList(verifiers...))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, fmt.Errorf("%w: %d lines, want 3", ErrCheckpoint, len(lines)-1)
	}
	c := Checkpoint{Origin: lines[0]}
	if c.Origin != verifier.Name() {
		return Checkpoint{}, fmt.Errorf("%w: origin %q, key %q", ErrCheckpoint, c.Origin, verifier.Name())
	}
	size, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil || size > math.MaxInt64/4 { // stored hash indexes must fit an int64
		return Checkpoint{}, fmt.Errorf("%w: size %q", ErrCheckpoint, lines[1])
	}
	c.Size = size
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	if err != nil || len(root) != len(c.Root) {
		return Checkpoint{}, fmt.Errorf("%w: root %q", ErrCheckpoint, lines[2])
	}
	c.Root = events.Hash(root)
	if c.Text() != n.Text { // a leading zero or plus
		return Checkpoint{}, fmt.Errorf("%w: not written canonically: %q", ErrCheckpoint, n.Text)
	}
	return c, nil
}

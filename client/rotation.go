package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// rotations is the file of the rotations that an auditor was shown.
func (a *Auditor) rotations() string { return strings.TrimSuffix(a.file, ".checkpoint") + ".rotations" }

func (a *Auditor) trusted() *audit.Keys {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keys
}

// Keys lists the verifier keys that are trusted: the pinned one, and those it
// was shown to hand over to.
func (a *Auditor) Keys() []string { return a.trusted().Trusted() }

// Learn takes rotations, offline: what "ledgerd proof rotations" writes. From then
// on checkpoints are held to the key that the pinned one handed over to. A key has
// one successor: another than the one shown before is a Mismatch, whoever signed
// for it. Follow and Prove ask the ledger for them, where it lets who asks.
func (a *Auditor) Learn(rotations []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys, err := a.followed(rotations)
	if err != nil {
		return err
	}
	return a.trust(keys, rotations)
}

// followed are the keys after rotations. The remembered checkpoint has to be one
// that they sign, and no other key of the log.
func (a *Auditor) followed(rotations []byte) (*audit.Keys, error) {
	keys, err := a.keys.Follow(rotations)
	if errors.Is(err, audit.ErrRotationsSize) {
		return nil, err
	}
	if err != nil {
		return nil, evidence(err)
	}
	if a.signed == nil || keys == a.keys {
		return keys, nil
	}
	if _, err := keys.Open(a.signed); err != nil {
		return nil, evidence(keys.Unsigned(fmt.Errorf("the remembered one: %w", err)))
	}
	if keys.Unknown(a.signed) {
		return nil, evidence(&Mismatch{Check: "rotation", Expected: "the keys that signed the remembered checkpoint", Found: "rotations that leave one of them out"})
	}
	for _, signed := range keys.Notes() {
		c, err := audit.ReadCheckpoint(signed)
		if err == nil && c.Size == a.at.Size && c.Root != a.at.Root {
			return nil, evidence(twoHistories(a.at, c))
		}
	}
	return keys, nil
}

func twoHistories(kept, shown audit.Checkpoint) *Mismatch {
	return &Mismatch{Check: "consistency", Expected: fmt.Sprintf("root %s at size %d", kept.Root, kept.Size), Found: "root " + shown.Root.String() + " in the note that hands over: two histories"}
}

func (a *Auditor) trust(keys *audit.Keys, rotations []byte) error {
	if keys == a.keys {
		return nil
	}
	if a.file != "" {
		if err := replaceFile(a.rotations(), rotations); err != nil {
			return err
		}
	}
	a.keys = keys
	return nil
}

// rotated asks for the rotations where a checkpoint is signed by a key of the log
// that is not known. The notes in them have to be states of the log that is
// remembered. Who may not ask for them goes on without, as long as a known key
// signs too.
func (a *Auditor) rotated(ctx context.Context, c *Client, signed []byte) error {
	if !a.keys.Unknown(signed) {
		return nil
	}
	answer, err := c.Rotations(ctx)
	if refused := (*Refusal)(nil); errors.As(err, &refused) && (refused.Reason == reason.NotPermittedForRole || refused.Reason == reason.UnsupportedOperation) {
		return nil
	}
	if err != nil {
		return err
	}
	keys, err := a.followed([]byte(answer.Rotations))
	if err != nil {
		return err
	}
	if a.signed != nil {
		for _, handoff := range keys.Notes() {
			if err := a.between(ctx, c, keys, handoff); err != nil {
				return err
			}
		}
	}
	return a.trust(keys, []byte(answer.Rotations))
}

// between asks for the proof that the remembered checkpoint and a note of another
// size are states of one log.
func (a *Auditor) between(ctx context.Context, c *Client, keys *audit.Keys, signed []byte) error {
	shown, err := keys.Open(signed)
	if err != nil || shown.Size == a.at.Size {
		return evidence(err)
	}
	older, newer, note := a.at, shown, signed
	if shown.Size < a.at.Size {
		older, newer, note = shown, a.at, a.signed
	}
	answer, err := c.Consistency(ctx, older.Size, newer.Size)
	if err != nil {
		return err
	}
	hashes, err := parseHashes(answer.Hashes)
	if err != nil {
		return err
	}
	_, err = (&audit.ConsistencyProof{From: older.Size, Hashes: hashes, Checkpoint: note}).Check(older, keys)
	return evidence(err)
}

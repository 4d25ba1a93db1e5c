package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/reason"
)

// Receipt says which event of which log a reply promised. Encode is what to keep
// of it; ParseReceipt reads that again, or a reply.
type Receipt = audit.Receipt

// Mismatch is what evidence was expected to show and what it shows.
type Mismatch = audit.Fault

// ErrEvidence says that a proof, checkpoint or ledger contradicts what was
// promised or seen before. The error is a *Mismatch too.
var ErrEvidence = errors.New("the evidence does not hold")

// ParseReceipt reads a receipt strictly, or takes it out of a reply's bytes.
func ParseReceipt(b []byte) (*Receipt, error) { return audit.ParseReceipt(b) }

// Auditor holds a ledger to its receipts with a verifier key that came from
// elsewhere: it takes no key from the ledger, ever, and none of another origin.
// It remembers the newest checkpoint that it was shown, so that a ledger which
// shrinks, or tells two histories, is found. Where the key hands over to another
// it follows, see Learn. Safe for concurrent use.
type Auditor struct {
	file string   // of the remembered checkpoint; empty where it is kept in memory only
	lock *os.File // of that file

	mu     sync.Mutex
	keys   *audit.Keys
	at     audit.Checkpoint
	signed []byte // the remembered checkpoint, nil for none
}

// NewAuditor returns the auditor of the log that vkey is the key of. What it
// remembers lies in dir, in a file of its own for each key; dir may be empty for
// an auditor that forgets.
func NewAuditor(vkey, dir string) (*Auditor, error) {
	keys, err := audit.Pin(vkey)
	if err != nil {
		return nil, err
	}
	a := &Auditor{keys: keys}
	if dir == "" {
		return a, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := sha256.Sum256([]byte(vkey))
	a.file = filepath.Join(dir, hex.EncodeToString(name[:16])+".checkpoint")
	if a.lock, err = lockFile(a.file + ".lock"); err != nil {
		return nil, err
	}
	if err := a.recall(); err != nil {
		return nil, errors.Join(err, a.lock.Close())
	}
	return a, nil
}

// recall reads what an auditor remembers: rotations, by which it follows its key,
// and the newest checkpoint.
func (a *Auditor) recall() error {
	rotations, err := os.ReadFile(a.rotations())
	if err == nil {
		if a.keys, err = a.keys.Follow(rotations); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrStoreDamaged, a.rotations(), err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	signed, err := os.ReadFile(a.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		if a.at, err = a.keys.Open(signed); err == nil {
			a.signed = signed
			return nil
		}
		err = fmt.Errorf("%w: %s: %w", ErrStoreDamaged, a.file, err)
	}
	return err
}

// Close gives the file back to others.
func (a *Auditor) Close() error {
	if a.lock == nil {
		return nil
	}
	return a.lock.Close()
}

// Remembered is the newest checkpoint seen, nil for none.
func (a *Auditor) Remembered() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.signed
}

// Receipt is what to keep of a reply. A refusal at the door has none.
func (a *Auditor) Receipt(r *Reply) (*Receipt, error) {
	receipt, err := audit.ParseReceipt(r.Raw)
	if err != nil {
		return nil, err
	}
	return &Receipt{Origin: a.trusted().Origin(), Seq: receipt.Seq, EventID: receipt.EventID, Hash: receipt.Hash}, nil
}

// CheckInclusion reports, offline, whether a C2SP tlog-proof shows that the log
// holds the receipt's event. A proof under a checkpoint other than the one
// remembered at its size is refused; whether it continues that of another size
// is for Prove and Remember, since that takes one more proof.
func (a *Auditor) CheckInclusion(r *Receipt, tlogProof []byte) error {
	p, err := audit.ParseInclusionProof(tlogProof)
	if err != nil {
		return evidence(&Mismatch{Check: "proof", Seq: r.Seq, Expected: "a tlog-proof", Found: err.Error()})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c, err := p.Check(r, a.keys)
	if err != nil {
		return evidence(err)
	}
	if a.signed != nil && c.Size == a.at.Size {
		return a.continues(&audit.ConsistencyProof{From: c.Size, Checkpoint: p.Checkpoint})
	}
	return nil
}

// continues reports whether the proof's checkpoint continues the remembered one.
func (a *Auditor) continues(p *audit.ConsistencyProof) error {
	_, err := p.Check(a.at, a.keys)
	return evidence(err)
}

func evidence(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrEvidence, err)
}

// Remember takes a newer checkpoint, offline. The first needs the key's signature
// only. A later one needs a proof that it continues the one remembered, nil where
// it is the same; one that is smaller, or another of the same size, is refused.
func (a *Auditor) Remember(signed []byte, p *Consistency) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	proof := &audit.ConsistencyProof{From: a.at.Size, Checkpoint: signed}
	if p != nil {
		hashes, err := parseHashes(p.Hashes)
		if err != nil {
			return err
		}
		proof.From, proof.Hashes = p.From, hashes
	}
	return a.remember(proof)
}

func (a *Auditor) remember(p *audit.ConsistencyProof) error {
	if a.signed != nil {
		if err := a.continues(p); err != nil {
			return err
		}
	}
	c, err := a.keys.Open(p.Checkpoint)
	if err != nil {
		return evidence(a.keys.Unsigned(err))
	}
	if c.Size == 0 || a.signed != nil && c.Size == a.at.Size {
		return nil
	}
	if a.file != "" {
		if err := replaceFile(a.file, p.Checkpoint); err != nil {
			return err
		}
	}
	a.at, a.signed = c, p.Checkpoint
	return nil
}

// replaceFile puts b in the place of the file, whole, and on disk.
func replaceFile(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// Follow asks the ledger for its newest checkpoint and the proof that it
// continues the remembered one, and remembers it.
func (a *Auditor) Follow(ctx context.Context, c *Client) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.signed != nil {
		p, err := c.Consistency(ctx, a.at.Size, 0)
		if err == nil {
			if err := a.rotated(ctx, c, []byte(p.Checkpoint)); err != nil {
				return err
			}
			return a.extend(p, []byte(p.Checkpoint))
		}
		if refused := (*Refusal)(nil); !errors.As(err, &refused) || refused.Reason != reason.NotFound {
			return err
		}
	}
	signed, err := c.Checkpoint(ctx) // where the log has become shorter, it says so itself
	if err != nil {
		return err
	}
	if err := a.rotated(ctx, c, []byte(signed)); err != nil {
		return err
	}
	return a.remember(&audit.ConsistencyProof{From: a.at.Size, Checkpoint: []byte(signed)})
}

func (a *Auditor) extend(p *Consistency, signed []byte) error {
	hashes, err := parseHashes(p.Hashes)
	if err != nil {
		return err
	}
	return a.remember(&audit.ConsistencyProof{From: p.From, Hashes: hashes, Checkpoint: signed})
}

// Prove asks the ledger for the proof of a receipt, checks it, and that its
// checkpoint continues the remembered one. The proof, a C2SP tlog-proof, can be
// kept and checked by anyone who has the key.
func (a *Auditor) Prove(ctx context.Context, c *Client, r *Receipt) (tlogProof []byte, err error) {
	answer, err := c.Proof(ctx, r.Seq)
	if err != nil {
		return nil, err
	}
	tlogProof = []byte(answer.TlogProof)
	p, err := audit.ParseInclusionProof(tlogProof)
	if err != nil {
		return nil, evidence(&Mismatch{Check: "proof", Seq: r.Seq, Expected: "a tlog-proof", Found: err.Error()})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.rotated(ctx, c, p.Checkpoint); err != nil {
		return nil, err
	}
	head, err := p.Check(r, a.keys)
	if err != nil {
		return nil, evidence(err)
	}
	if err := a.fits(ctx, c, head, p.Checkpoint); err != nil {
		return nil, err
	}
	return tlogProof, nil
}

// fits asks for what lies between a proof's checkpoint and the remembered one:
// one continues the other. The other may be the proof's, where another call has
// moved on meanwhile.
func (a *Auditor) fits(ctx context.Context, c *Client, head audit.Checkpoint, signed []byte) error {
	if a.signed == nil || head.Size == a.at.Size {
		return a.remember(&audit.ConsistencyProof{From: a.at.Size, Checkpoint: signed})
	}
	if head.Size > a.at.Size {
		between, err := c.Consistency(ctx, a.at.Size, head.Size)
		if err != nil {
			return err
		}
		return a.extend(between, signed)
	}
	between, err := c.Consistency(ctx, head.Size, a.at.Size)
	if err != nil {
		return err
	}
	hashes, err := parseHashes(between.Hashes)
	if err != nil {
		return err
	}
	p := &audit.ConsistencyProof{From: between.From, Hashes: hashes, Checkpoint: a.signed}
	_, err = p.Check(head, a.keys)
	return evidence(err)
}

func parseHashes(list []string) ([]events.Hash, error) {
	hashes := make([]events.Hash, len(list))
	for i, s := range list {
		var err error
		if hashes[i], err = events.ParseHash(s); err != nil {
			return nil, fmt.Errorf("%w: a hash of a proof: %w", ErrBadReply, err)
		}
	}
	return hashes, nil
}

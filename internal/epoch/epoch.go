// Package epoch begins the next epoch of a log that cannot go on: another log,
// whose event 1 names the one before, the last checkpoint known of it and why.
// First call: New.
//
// It promises that
//
//   - no position of any log is used twice: the new log has a name and keys of its
//     own and counts from 1, and the old one is not served again;
//   - what is carried over is stated in the new log by ordinary decisions of its
//     first admin, which can be judged again like any other;
//   - what is not carried over is said, and nothing becomes more than it was: what
//     takes away (emergency denies, revocations, restrictions, a narrowed
//     environment) is carried over or the new epoch is not made.
package epoch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/store"
)

// Errors a caller branches on; all come wrapped with what was found.
var (
	ErrUsage  = errors.New("not possible")
	ErrDamage = errors.New("the old log does not verify")
	ErrMade   = errors.New("an epoch was made from here before")
	ErrSealed = errors.New("sealed records cannot be opened")
)

// Reasons for which a new epoch begins.
var Reasons = events.EpochReasons()

// Options say what a new epoch continues, and why.
type Options struct {
	From   string // data directory of the old log
	Data   string // data directory to make
	Reason string // one of Reasons
	Anchor string // file of the last checkpoint known; default From/anchor
	VKey   string // the key that must have signed it; empty takes the log's own
	Epoch  uint64 // of the new log; 0 is one more than the last known
	Build  string

	WithoutSealed bool // leave sealed records behind where the key that opens them is not there
}

// Report says what became of the old state.
type Report struct {
	Origin     string   `json:"origin"`
	Previous   string   `json:"previous"`
	Size       uint64   `json:"previous_size"`  // that the last checkpoint known covers
	Events     uint64   `json:"carried_events"` // of the old log, whose state was carried over
	Agents     int      `json:"agents"`
	Principals int      `json:"principals"`
	Records    int      `json:"records"`
	Resources  int      `json:"resources"`
	Left       []string `json:"not_carried"`
	LeftMore   int      `json:"not_carried_more"`
	AdminKey   bool     `json:"admin_creds"` // keys/admin.nk is there

	sealed int // records left because their key is not there
}

const leftMax = 100

func (r *Report) left(format string, args ...any) {
	if len(r.Left) == leftMax {
		r.LeftMore++
		return
	}
	r.Left = append(r.Left, fmt.Sprintf(format, args...))
}

// New makes o.Data of the log in o.From, which is verified first and not served
// again. What it makes appears whole or not at all.
func New(o Options) (*Report, error) {
	if !slices.Contains(Reasons, o.Reason) {
		return nil, fmt.Errorf("%w: the reason is one of %s", ErrUsage, strings.Join(Reasons, ", "))
	}
	if _, err := os.Lstat(o.Data); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s: there is something already", ErrUsage, o.Data)
	}
	release, err := store.Lock(o.From, store.Options{})
	if err != nil {
		return nil, err
	}
	d, err := datadir.Open(o.From)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	report, err := o.make(d)
	return report, errors.Join(err, d.Close(), release())
}

func (o *Options) make(d *datadir.Dir) (*Report, error) {
	old, err := ledger.ReadOld(o.From, d.Store)
	if err != nil {
		return nil, err
	}
	if err := ledger.CheckKeys(filepath.Join(o.From, "keys"), d.Store, old.State); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	last, err := o.verify(d, old)
	if err != nil {
		return nil, err
	}
	r := &Report{Previous: d.Store.Origin(), Size: last.Size, Events: d.Store.Durable()}
	if r.Origin, err = o.origin(r.Previous); err != nil {
		return nil, err
	}
	init := ledger.InitOptions{
		Ledger: old.State.Ledger, Origin: r.Origin, After: old.State.Time,
		Previous: &events.Previous{Origin: r.Previous, Checkpoint: last.signed, Reason: o.Reason},
	}
	if init.Admin, init.AdminKey, err = o.admin(old.State); err != nil {
		return nil, err
	}
	requests, err := plan(old, init.Admin, r)
	if err != nil {
		return nil, err
	}
	if r.sealed > 0 && !o.WithoutSealed {
		return nil, fmt.Errorf("%w: %d of them, and there is no seal key in %s", ErrSealed, r.sealed, filepath.Join(o.From, "keys"))
	}
	if err := o.mark(r.Origin); err != nil {
		return nil, err
	}
	tmp := filepath.Clean(o.Data) + ".epoch-" + strconv.Itoa(os.Getpid())
	defer os.RemoveAll(tmp)
	if err := o.fill(tmp, init, requests, r); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, o.Data); err != nil {
		return nil, err
	}
	return r, syncDir(filepath.Dir(filepath.Clean(o.Data)))
}

// known is the last checkpoint known of a log.
type known struct {
	audit.Checkpoint
	signed string
}

// verify verifies the old log whole, and the last checkpoint known of it, which
// may cover more than the log has: that is what was lost.
func (o *Options) verify(d *datadir.Dir, old *ledger.Old) (known, error) {
	source := d.Source()
	last := known{signed: string(source.Checkpoint)}
	if o.Anchor != "" {
		b, err := os.ReadFile(o.Anchor)
		if err != nil {
			return last, fmt.Errorf("%w: anchor: %w", ErrUsage, err)
		}
		last.signed = string(b)
	}
	var err error
	if last.Checkpoint, err = audit.ReadCheckpoint([]byte(last.signed)); err != nil {
		return last, fmt.Errorf("%w: the last checkpoint known: %w", ErrDamage, err)
	}
	opts := audit.Options{VKey: o.VKey}
	if last.Size <= d.Store.Durable() {
		opts.Remembered = []byte(last.signed)
	} else if err := signedBy(last, o.VKey, d.Store); err != nil {
		return last, fmt.Errorf("%w: the last checkpoint known: %w; if the log's key was rotated after event %d, the last of this copy, what a later key signed cannot be tied to it: give the newest one that a key in it signed", ErrDamage, err, d.Store.Durable())
	}
	report, err := audit.VerifyLog(source, opts)
	switch {
	case err != nil:
		return last, fmt.Errorf("%w: %w", ErrUsage, err)
	case report.Exit != audit.ExitPass && len(report.Faults) > 0:
		return last, fmt.Errorf("%w: %s", ErrDamage, report.Faults[0])
	case report.Exit != audit.ExitPass:
		return last, fmt.Errorf("%w: it could not be checked", ErrDamage)
	case report.Origin != last.Origin || old.State.Origin != last.Origin:
		return last, fmt.Errorf("%w: the last checkpoint known is of %q, the log is %q", ErrDamage, last.Origin, report.Origin)
	}
	return last, nil
}

// signedBy checks a checkpoint that the log does not reach.
func signedBy(last known, vkey string, st *store.Store) error {
	if vkey == "" {
		b, err := st.Event(1)
		if err != nil {
			return err
		}
		e, err := events.Parse(b)
		if err != nil {
			return err
		}
		created, ok := e.Body.(*events.LedgerCreated)
		if !ok {
			return store.ErrCorrupt
		}
		vkey = created.CheckpointKey
	}
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return err
	}
	_, err = store.ParseCheckpoint([]byte(last.signed), verifier)
	return err
}

// continued is what the marker in an old data directory says.
type continued struct {
	Origin string `json:"origin"`
}

// origin names the new log: as the old one, with the next epoch.
func (o *Options) origin(previous string) (string, error) {
	base, at := events.SplitEpoch(previous)
	var before continued
	b, err := os.ReadFile(filepath.Join(o.From, ledger.ContinuedFile))
	if err == nil {
		err = json.Unmarshal(b, &before)
		if o.Epoch == 0 && err == nil {
			return "", fmt.Errorf("%w: %s; if that was never served, give a higher --epoch", ErrMade, before.Origin)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	_, made := events.SplitEpoch(before.Origin)
	if o.Epoch == 0 {
		o.Epoch = at + 1
	}
	if o.Epoch <= max(at, made) {
		return "", fmt.Errorf("%w: epoch %d; the last one known is %d", ErrUsage, o.Epoch, max(at, made))
	}
	origin := base + "/" + strconv.FormatUint(o.Epoch, 10)
	if !events.ValidOrigin(origin) {
		return "", fmt.Errorf("%w: the origin %q is too long", ErrUsage, origin)
	}
	return origin, nil
}

// mark writes into the old data directory where its log goes on, before there is
// anything there: it is not served again.
func (o *Options) mark(origin string) error {
	b, err := json.Marshal(continued{origin})
	if err != nil {
		return err
	}
	path := filepath.Join(o.From, ledger.ContinuedFile)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(o.From)
}

func syncDir(dir string) error {
	f, err := os.Open(cmp.Or(dir, "."))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

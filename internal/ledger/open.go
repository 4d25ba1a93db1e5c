package ledger

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

// AdminID is the first admin.
const AdminID = "admin"

const (
	minFreeDefault = 256 << 20
	controlFreeMin = 64 << 20 // Pebble spins on a full disk; the control lane writes on down to here
)

// Options say how a ledger runs. Only Dir must be set.
type Options struct {
	Dir        string
	Anchor     string        // file of the last signed checkpoint; default Dir/anchor
	AnchorSync bool          // advance the anchor before every answer, not within 100 ms of it
	MinFree    uint64        // bytes below which proposals are refused; default 256 MiB
	QueueMax   int           // proposals waiting, of all senders; default 32,768
	MaxWait    time.Duration // longest wait of a proposal or query before it is judged; default 2 s
	Build      string        // recorded in ledger.opened
	Clock      Clock         // default the machine's
	Log        *slog.Logger  // default silent; never sees a value
	Store      store.Options

	// Look, if any, is given the log opened for reading before anything is
	// written, to compare it with what else is known of it. Its error refuses.
	Look func(*store.Store) error
}

func (o *Options) ensureDefaults() {
	if o.Anchor == "" {
		o.Anchor = filepath.Join(o.Dir, "anchor")
	}
	if o.MinFree == 0 {
		o.MinFree = minFreeDefault
	}
	if o.QueueMax == 0 {
		o.QueueMax = queueDefault
	}
	if o.MaxWait == 0 {
		o.MaxWait = waitDefault
	}
	if o.Build == "" {
		o.Build = "unknown"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Store.Log == nil {
		o.Store.Log = o.Log
	}
}

// Hooks are called by a running ledger; set them before Run. They must be
// quick and safe for concurrent use.
type Hooks struct {
	Cut     func(id string)     // id's connections must end: revoked or re-keyed
	Durable func(seq uint64)    // the log is durable up to seq
	Note    func(signed []byte) // a new signed checkpoint, at most one a second

	Dispatch func(action string, exec []byte) // an effect has started, durably: the message for its handler
	State    func(state []byte)               // the emergency denies in force have changed, durably
}

// Open opens the ledger in o.Dir for its only writer. It compares the log with
// the anchor before it writes a byte, folds the log, and appends ledger.opened.
// The caller must call Run next, which also closes it.
func Open(o Options) (*Ledger, error) {
	o.ensureDefaults()
	if err := checkRestored(o.Dir); err != nil {
		return nil, err
	}
	keys, err := readKeys(filepath.Join(o.Dir, "keys"))
	if err != nil {
		return nil, blameKeys(o.Dir, err)
	}
	anchor := store.NewAnchor(o.Anchor, keys.verifiers...)
	signed, err := anchor.Read()
	if err != nil {
		return nil, blameKeys(o.Dir, err)
	}
	st, err := store.Open(o.Dir, o.Store, store.AnchorCheck{Note: signed, Verifier: keys.verifiers[0], Others: keys.verifiers[1:], Look: o.Look})
	if err != nil {
		return nil, blameKeys(o.Dir, err)
	}
	l, err := load(o, st, keys.seal)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	l.store, l.keys, l.anchor = st, &ring{dir: filepath.Join(o.Dir, "keys"), files: keys.signing}, anchor
	l.gateStorage()
	if err := l.keys.removeUnfinished(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := l.keys.follow(l.state); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := l.startFrom(signed); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := l.begin(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := l.finishErasures(); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if err := l.finishSealing(keys.seal); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return l, nil
}

// startFrom takes the anchor's checkpoint, which the log has been compared with,
// as the last one signed.
func (l *Ledger) startFrom(signed []byte) error {
	cp, err := l.keys.signedThen(signed)
	if err != nil {
		return fmt.Errorf("%w that can be used: %w", store.ErrNoAnchor, err)
	}
	l.lastNote.Store(&signed)
	l.signed.Store(cp.Size)
	return nil
}

// load folds the log into a ledger that has nothing yet to write it with.
func load(o Options, log Log, sealKeys []sealKey) (*Ledger, error) {
	l := &Ledger{
		reads: log, log: o.Log, options: o, origin: log.Origin(),
		procedures: map[string]*procedure{},
		flights:    newFlights(),
		waiters:    waiters{byRun: map[string][]*waiting{}, last: map[string]runView{}, of: map[string]int{}, expired: make(chan *waiting)},
		pipeline:   make(chan *batch, inFlightMax),
		renders:    make(chan *job, renderQueueMax),
		erasures:   make(chan *erasing, erasingQueueMax),
		poke:       make(chan struct{}, 1),
		changes:    make(chan handed, 1),
		stopped:    make(chan struct{}),
	}
	l.counters.init()
	var err error
	if l.sealer, err = newSealer(l.origin, sealKeys, log.DataKey); err != nil {
		return nil, err
	}
	l.payloads = &Payloads{log, l.sealer}
	if err := l.fold(sealKeys); err != nil {
		return nil, err
	}
	switch {
	case l.state.Origin != l.origin:
		return nil, fmt.Errorf("%w: event 1 names the origin %q, the store %q", store.ErrCorrupt, l.state.Origin, l.origin)
	case l.state.Rules > Rules:
		return nil, fmt.Errorf("the log was judged under rules %d, this program knows rules up to %d: use a newer one", l.state.Rules, Rules)
	}
	for _, e := range l.state.Erasures() {
		if e.Owner != "" {
			l.sealer.renew(e.Owner, e.Seq)
		}
	}
	if err := l.checkSealKey(); err != nil {
		return nil, err
	}
	l.name = l.state.Ledger
	l.controlState()
	l.counters.measure(l.state)
	l.intake.open(o.MaxWait, o.QueueMax, l.Root)
	l.clock = newClock(o.Clock, l.state.Time)
	return l, nil
}

// fold rebuilds the state: from what is written down of it, where that is good,
// and the events after it. A bad state costs a fold of the whole log.
func (l *Ledger) fold(sealKeys []sealKey) error {
	state, parts, with, err := anyStoredState(l.reads, sealKeys, func(s *projection.State) { l.registry = newRegistry(s) })
	switch {
	case errors.Is(err, store.ErrStopped):
		return err
	case err != nil:
		l.log.Warn("the state that is written down is not usable; folding the whole log", "error", err)
	}
	if state == nil {
		state = projection.New()
		l.registry = newRegistry(state)
	} else {
		l.behind.parts, l.handed = parts, state.Seq
		state.Restored()
	}
	l.state = state
	err = l.reads.Events(state.Seq+1, l.reads.Durable(), func(seq uint64, b []byte) error {
		e, err := foldOne(state, seq, b, l.openPayload)
		if err == nil {
			l.registry.apply(e.Body)
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.sealWith(sealKeys, with)
}

// foldOne checks that b follows the state's last event, applies and returns it.
func foldOne(state *projection.State, seq uint64, b []byte, payload func(uint64) ([]byte, error)) (events.Event, error) {
	e, err := events.Parse(b)
	if err != nil {
		return e, fmt.Errorf("event %d: %w", seq, err)
	}
	prev := state.Leaf
	if created, ok := e.Body.(*events.LedgerCreated); ok && seq == 1 {
		prev = events.GenesisHash(created.Origin)
	}
	if e.Prev != prev {
		return e, fmt.Errorf("event %d: prev is %s, want %s: %w", seq, e.Prev, prev, store.ErrCorrupt)
	}
	var open []byte
	if HasOpenPayload(e.Body) {
		if open, err = payload(seq); err != nil {
			return e, err
		}
	}
	if err := state.Apply(&e, open); err != nil {
		return e, err
	}
	state.Leaf = events.LeafHash(b)
	return e, nil
}

// HasOpenPayload reports whether an event's own payload is an open one: a
// policy document or a mandatory record's value.
func HasOpenPayload(b events.Body) bool {
	switch b := b.(type) {
	case *events.PolicyActivated:
		return true
	case *events.MemoryWritten:
		return b.Class == "mandatory"
	}
	return false
}

func (l *Ledger) openPayload(seq uint64) ([]byte, error) {
	b, ok, err := l.payload(seq)
	if err == nil && !ok {
		err = fmt.Errorf("open payload %d is missing", seq)
	}
	return b, err
}

// opening is the batch that every opening appends: ledger.opened, and the doubt
// about every effect that was in flight.
func (l *Ledger) opening() (*sealing, error) {
	w := newSealing(l, 1)
	opened := &events.LedgerOpened{Rules: Rules, Build: l.options.Build}
	if err := w.add(events.Event{Time: l.now(), Agent: events.System, Body: opened}, nil); err != nil {
		return nil, err
	}
	return w, l.doubtAll(w)
}

// begin appends ledger.opened and signs what is there.
func (l *Ledger) begin() error {
	w, err := l.opening()
	if err != nil {
		return err
	}
	commit, err := l.store.Append(w.batch)
	if err == nil {
		err = commit.Wait()
	}
	if err != nil {
		return fmt.Errorf("append ledger.opened: %w", err)
	}
	return l.checkpoint()
}

// checkSealKey opens data keys until one fits, so that another ledger's seal.key
// is found before anything is served. A single one that does not fit is damage,
// and its owner's alone.
func (l *Ledger) checkSealKey() error {
	var wrong error
	for id := range l.state.IDs() {
		name := l.sealer.name(id)
		_, stored, err := l.reads.DataKey(name)
		if err != nil {
			return err
		}
		if !stored {
			continue
		}
		if _, err := l.sealer.existing(name); err == nil {
			return nil
		} else if wrong == nil {
			wrong = fmt.Errorf("keys/%s is %w: %w", keyFile(events.KeySeal, l.state.SealNumber(), "key"), ErrKey, err)
		}
	}
	return wrong
}

// InitOptions say what a new ledger is called.
type InitOptions struct {
	Ledger string // default main
	Origin string // default ledgerd.local/<ledger>/<16 random hex>/1
	Anchor string // default DIR/anchor
	Clock  Clock
	Store  store.Options

	PolicySigners []string // sorted; one of them has to sign every policy

	// Of the next epoch of another log:
	Previous *events.Previous // that log
	Admin    string           // the first admin's id; default AdminID
	AdminKey string           // its public key; empty makes one, with keys/admin.nk
	After    events.Time      // of that log's last event, which no event is before
}

// Init makes a new ledger in dir, which must not exist or be empty: keys,
// event 1 and the anchor. A crash leaves no half-made ledger there.
func Init(dir string, o InitOptions) error {
	if o.Ledger == "" {
		o.Ledger = "main"
	}
	if !events.ValidID(o.Ledger) {
		return fmt.Errorf("ledger name %q is not allowed: a-z, 0-9, _ and -, at most 63, not reserved", o.Ledger)
	}
	if o.Origin == "" {
		var b [8]byte
		if _, err := io.ReadFull(rand.Reader, b[:]); err != nil {
			return err
		}
		o.Origin = "ledgerd.local/" + o.Ledger + "/" + hex.EncodeToString(b[:]) + "/1"
	}
	if !events.ValidOrigin(o.Origin) {
		return fmt.Errorf("origin %q is not allowed: printable ASCII without space and plus, at most %d", o.Origin, events.OriginBytesMax)
	}
	if !policy.ValidSigners(o.PolicySigners) {
		return fmt.Errorf("signers are public keys of NATS users, at most %d", policy.SignersMax)
	}
	return store.Init(dir, o.Store, o.Origin, func(tmp string, st *store.Store) error {
		return found(tmp, st, o)
	})
}

// found writes the keys, event 1 and the anchor of a new ledger.
func found(tmp string, st *store.Store, o InitOptions) error {
	created, err := makeKeys(filepath.Join(tmp, "keys"), o)
	if err != nil {
		return err
	}
	created.Ledger, created.PolicySigners, created.Previous = o.Ledger, o.PolicySigners, o.Previous
	if o.Admin != "" {
		created.AdminID = o.Admin
	}
	e := events.Event{
		Seq: 1, Prev: events.GenesisHash(o.Origin), Time: newClock(o.Clock, o.After).now(), Agent: events.System, Body: created,
	}
	sealer, err := newSealer(o.Origin, nil, nil)
	if err != nil {
		return err
	}
	if err := (&sealing{l: &Ledger{sealer: sealer}}).id(&e); err != nil {
		return err
	}
	b, err := e.Append(nil)
	if err != nil {
		return err
	}
	commit, err := st.Append(store.Batch{First: 1, Events: [][]byte{b}, Leaves: []events.Hash{events.LeafHash(b)}})
	if err == nil {
		err = commit.Wait()
	}
	if err != nil {
		return err
	}
	keys, err := readKeys(filepath.Join(tmp, "keys"))
	if err != nil {
		return err
	}
	root, err := st.Root(1)
	if err != nil {
		return err
	}
	signed, err := store.SignCheckpoint(keys.signing[0].signer, store.Checkpoint{Origin: o.Origin, Size: 1, Root: root})
	if err != nil {
		return err
	}
	anchor := o.Anchor
	if anchor == "" {
		anchor = filepath.Join(tmp, "anchor")
	}
	return store.NewAnchor(anchor, keys.verifiers...).Create(signed)
}

// keys are the files of DIR/keys, all 0600: admin.nk (NATS user seed),
// checkpoint.key and checkpoint.vkey (C2SP note keys), permit.key (the same
// form, for permits), seal.key (64 hex digits). Each key signs or seals one
// kind of thing only.
type keys struct {
	signing   []signingKey
	verifiers []note.Verifier // of all of them
	seal      []sealKey
}

func makeKeys(dir string, o InitOptions) (*events.LedgerCreated, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	origin, public := o.Origin, o.AdminKey
	if public == "" {
		var err error
		if public, err = makeAdmin(dir); err != nil {
			return nil, err
		}
	}
	checkpointKey, checkpointVkey, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return nil, err
	}
	permitKey, permitVkey, err := note.GenerateKey(rand.Reader, origin+"/permit")
	if err != nil {
		return nil, err
	}
	var seal [32]byte
	if _, err := io.ReadFull(rand.Reader, seal[:]); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"checkpoint.key": checkpointKey, "checkpoint.vkey": checkpointVkey,
		"permit.key": permitKey, "seal.key": hex.EncodeToString(seal[:]),
	} {
		if err := writeSynced(filepath.Join(dir, name), text+"\n"); err != nil {
			return nil, err
		}
	}
	return &events.LedgerCreated{
		Format: events.Format, Origin: origin, AdminID: AdminID, AdminPublicKey: public,
		CheckpointKey: checkpointVkey, PermitKey: permitVkey,
	}, nil
}

// makeAdmin makes the first admin's key.
func makeAdmin(dir string) (public string, err error) {
	admin, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	seed, err := admin.Seed()
	if err != nil {
		return "", err
	}
	if public, err = admin.PublicKey(); err != nil {
		return "", err
	}
	return public, writeSynced(filepath.Join(dir, "admin.nk"), string(seed)+"\n")
}

func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func readKeys(dir string) (k *keys, err error) {
	k = &keys{}
	if k.signing, err = readSigning(dir); err != nil {
		return nil, err
	}
	for _, s := range k.signing {
		k.verifiers = append(k.verifiers, s.verifier)
	}
	if k.seal, err = readSealKeys(dir); err != nil {
		return nil, err
	}
	return k, nil
}

package sim

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
	"github.com/ledgerd/ledgerd/internal/wire"
)

const (
	ledgerName = "main"
	logOrigin  = "ledgerd.local/main/0123456789abcdef/1"
	canary     = "canary-"
)

// options are all that a seed says of a history beside its chances. They are
// printed with a failure.
type options struct {
	Steps              int
	Drop, Double       int // percent of messages
	Reorder            int // percent of deliveries that do not take the oldest
	Crash, Jump        int // per mille of steps
	HandlerCrash       int // percent of effects
	Batch, InFlight    int // proposals judged together, batches not answered
	Hostile, Buggy     int // percent of agents
	Retry, Reuse       int // percent of acts
	Admin, Mutate      int // percent of acts
	Big                int // per mille of values
	Snapshot           int // percent of openings that find a snapshot
	Names, Values      int // how many different ones
	LooseClock, Silent bool
	Erase              int // percent of what admins do
	Lend               int // percent of what agents do: grants and restrictions
}

// expand makes a seed's options: swarms, so that some histories have much of a
// fault and others none.
func expand(seed uint64) options {
	r := rand.New(rand.NewPCG(seed, 0))
	some := func(most int) int {
		if r.IntN(3) == 0 {
			return 0
		}
		return r.IntN(most + 1)
	}
	return options{
		Steps: 80 + r.IntN(400), Drop: some(30), Double: some(30), Reorder: some(100), Crash: some(40), Jump: some(60), HandlerCrash: some(30),
		Batch: 1 + r.IntN(8), InFlight: 1 + r.IntN(5), Hostile: some(50), Buggy: some(50), Retry: some(40), Reuse: some(15),
		Admin: 3 + some(25), Mutate: some(20), Big: some(20), Snapshot: some(100), Names: 2 + r.IntN(5), Values: 1 + r.IntN(4),
		LooseClock: r.IntN(2) == 0, Silent: r.IntN(10) == 0, Erase: some(60), Lend: some(50),
	}
}

// world is one history: a ledger, those who use it, and what may go wrong
// between them.
type world struct {
	seed    uint64
	options options
	r       *rand.Rand // of the step at hand
	chance  *rand.ChaCha8
	trace   hash.Hash
	volumes volumes

	log     *memLog
	stepper *ledger.Stepper
	sealKey []byte
	signer  note.Signer
	vkey    string
	ticked  time.Duration // when the ledger last looked after its runs
	anchors [][]byte      // signed checkpoints somebody may remember

	wall    time.Duration // since start
	elapsed time.Duration

	bus    []*message // on their way to the ledger
	queue  []*message // at the ledger, not judged
	flight []*flight
	mail   []letter // answers on their way to their askers

	handlers []*handler
	execs    []wire.Exec              // effects on their way to handlers
	reports  []report                 // on their way to the ledger
	heard    map[string]time.Duration // when handlers said hello, since the ledger was opened
	effects  map[string]int           // what really happened, by operation id

	actors   []*actor
	serial   int
	model    *model
	known    *known
	receipts []receipt
	settled  uint64 // event up to which all is answered
	times    events.Time
}

type message struct {
	from      *actor
	control   bool
	operation string
	body      []byte
	malformed bool   // it cannot be anything else
	mutated   bool   // it may be malformed
	foreign   bool   // reply subject of somebody else's
	silent    bool   // no reply subject
	id        string // operation id, for whoever waits
}

// flight is a batch that was judged and not yet answered.
type flight struct {
	step     *ledger.Step
	messages []*message
	verdicts []verdict
	last     uint64 // seq of its last event, 0 where it has none
	first    uint64 // seq after which it was judged
	report   *report
	told     string // what the report's answer must say
	tick     bool
}

type letter struct {
	to     *actor
	id     string
	answer ledger.Answer
}

type receipt struct {
	seq  uint64
	leaf string
}

var start = time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)

func newWorld(seed uint64) (*world, error) {
	w := &world{
		seed: seed, options: expand(seed), trace: sha256.New(), log: newMemLog(logOrigin),
		known:   &known{documents: map[string]*document{}, policies: map[events.Hash]*policyDoc{}, requests: map[events.Hash]any{}, values: map[events.Hash]any{}},
		effects: map[string]int{}, volumes: newVolumes(),
	}
	var s [32]byte
	copy(s[:], fmt.Sprintf("seed %d", seed))
	w.chance = rand.NewChaCha8(s)
	key := sha256.Sum256([]byte("seal"))
	w.sealKey = key[:]
	w.signer, w.vkey = checkpointKey()
	w.model = &model{known: w.known}
	if err := w.found(); err != nil {
		return nil, err
	}
	w.r = w.chances(0)
	if err := w.open(); err != nil {
		return nil, err
	}
	admin := w.newActor(ledger.AdminID, honest)
	admin.principal = "admin"
	if w.r.IntN(10) > 0 { // else it begins with nothing
		return w, w.begin()
	}
	return w, nil
}

// chances are those of one step, which do not depend on the steps before it, so
// that a history can be cut.
func (w *world) chances(step int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(step)+1))
}

var checkpointKey = sync.OnceValues(func() (note.Signer, string) {
	seed := sha256.Sum256([]byte("checkpoints"))
	key := ed25519.NewKeyFromSeed(seed[:])
	vkey, err := note.NewEd25519VerifierKey(logOrigin, key.Public().(ed25519.PublicKey))
	if err != nil {
		panic(err)
	}
	signer, err := note.NewSigner("PRIVATE+KEY+" + logOrigin + "+" + strings.Split(vkey, "+")[1] + "+" + base64.StdEncoding.EncodeToString(append([]byte{1}, seed[:]...)))
	if err != nil {
		panic(err)
	}
	return signer, vkey
})

var keys sync.Map // name → public key

// publicKey is the same key for the same name.
func publicKey(name string) string {
	if key, ok := keys.Load(name); ok {
		return key.(string)
	}
	seed := sha256.Sum256([]byte(name))
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
	if err != nil {
		panic(err)
	}
	key, err := pair.PublicKey()
	if err != nil {
		panic(err)
	}
	keys.Store(name, key)
	return key
}

// permitKey is the verifier key of permits, which are not there yet.
func permitKey() string {
	seed := sha256.Sum256([]byte("permit"))
	vkey, err := note.NewEd25519VerifierKey(logOrigin+"/permit", ed25519.NewKeyFromSeed(seed[:]).Public().(ed25519.PublicKey))
	if err != nil {
		panic(err)
	}
	return vkey
}

// firstID is the id of event 1.
func firstID() (id [16]byte) {
	for i, ms := 5, events.TimeOf(start)/1000; i >= 0; i, ms = i-1, ms>>8 {
		id[i] = byte(ms)
	}
	id[6], id[8] = 0x70, 0x80
	return id
}

// found writes event 1, which init writes before there is a writer.
func (w *world) found() error {
	e := events.Event{Seq: 1, Prev: events.GenesisHash(logOrigin), Time: events.TimeOf(start), Agent: events.System, ID: firstID(), Body: &events.LedgerCreated{
		Format: events.Format, Origin: logOrigin, Ledger: ledgerName, AdminID: ledger.AdminID, AdminPublicKey: publicKey(ledger.AdminID), CheckpointKey: w.vkey, PermitKey: permitKey(),
	}}
	b, err := e.Append(nil)
	if err != nil {
		return err
	}
	if err := w.log.append(store.Batch{First: 1, Events: [][]byte{b}, Leaves: []events.Hash{events.LeafHash(b)}}); err != nil {
		return err
	}
	w.log.sync(1)
	return nil
}

// open starts the ledger on what is durable, as often as it takes: an opening
// may be cut short too. Its clock's monotonic part begins anew.
func (w *world) open() error {
	for {
		began := w.elapsed
		w.heard = map[string]time.Duration{}
		doubts := w.doubts()
		var first store.Batch
		var err error
		w.stepper, first, err = ledger.NewStepper(w.log, ledger.StepperOptions{
			SealKey: w.sealKey, Random: w.chance, Build: "sim",
			Clock: ledger.Clock{
				Wall:    func() time.Time { return start.Add(w.wall) },
				Elapsed: func() time.Duration { return w.elapsed - began },
			},
		})
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		if err := w.log.append(first); err != nil {
			return err
		}
		if w.r.IntN(8) == 0 && w.options.Crash > 0 {
			w.log.crash(w.r.IntN(2))
			w.volumes.crashes++
			continue
		}
		w.log.sync(1)
		if err := w.relearn(); err != nil {
			return err
		}
		w.carryOut(w.log.Durable())
		return w.checkDoubts(doubts, len(first.Events)-1)
	}
}

// relearn has the model recompute everything from the log, and compares.
func (w *world) relearn() error {
	w.model, w.times = &model{known: w.known}, 0
	for i, b := range w.log.events {
		if err := w.learn(b, w.log.leaves[i]); err != nil {
			return err
		}
	}
	return w.compare()
}

// learn teaches the model one event.
func (w *world) learn(b []byte, leaf events.Hash) error {
	e, err := events.Parse(b)
	if err != nil {
		return err
	}
	if bytes.Contains(b, []byte(canary)) {
		return fmt.Errorf("event %d holds a value: %s", e.Seq, b)
	}
	w.model.learn(factOf(&e, leaf, w.known))
	w.times = e.Time
	if w.model.seq != e.Seq {
		return fmt.Errorf("event %d is the %d-th", e.Seq, w.model.seq)
	}
	return nil
}

// step does the n-th thing.
func (w *world) step(n int) error {
	w.r = w.chances(n)
	w.wall += time.Duration(w.r.IntN(200)) * time.Millisecond
	w.elapsed += time.Duration(w.r.IntN(200)) * time.Millisecond
	w.volumes.steps++
	switch at := w.r.IntN(1000); {
	case at < w.options.Crash:
		w.note("crash")
		if w.percent(w.options.Snapshot / 2) {
			return w.close()
		}
		return w.crash()
	case at < w.options.Crash+w.options.Jump:
		w.jump()
		return nil
	}
	var err error
	switch at := w.r.IntN(100); {
	case at < 28:
		w.act()
	case at < 50:
		w.deliver()
	case at < 66:
		err = w.judge()
	case at < 74:
		w.sync()
	case at < 82:
		err = w.settle()
	case at < 86:
		w.hand()
	case at < 94:
		err = w.work()
	default:
		err = w.tick()
	}
	return err
}

func (w *world) note(format string, args ...any) { fmt.Fprintf(w.trace, format+"\n", args...) }

func (w *world) percent(n int) bool { return w.r.IntN(100) < n }

// jump moves the wall clock, either way, or lets time pass.
func (w *world) jump() {
	far := time.Duration(w.r.Int64N(int64(48*time.Hour))) - 24*time.Hour
	if w.percent(50) {
		far = time.Duration(w.r.Int64N(int64(4*time.Minute))) - 2*time.Minute
	}
	w.wall += far
	if w.options.LooseClock && w.percent(30) {
		w.elapsed += time.Duration(w.r.Int64N(int64(time.Hour)))
	}
	w.note("jump %s", far)
	w.volumes.jumps++
}

// deliver takes a message from the bus to the ledger, which may happen twice, or
// not at all, or out of turn.
func (w *world) deliver() {
	for range 1 + w.r.IntN(4) {
		if len(w.bus) == 0 {
			return
		}
		i := 0
		if w.percent(w.options.Reorder) {
			i = w.r.IntN(len(w.bus))
		}
		m := w.bus[i]
		switch {
		case w.percent(w.options.Double):
			w.volumes.doubled++ // it stays on the bus as well
		default:
			w.bus = slices.Delete(w.bus, i, i+1)
		}
		if w.percent(w.options.Drop) {
			w.volumes.dropped++
			continue
		}
		w.queue = append(w.queue, m)
	}
}

// judge has the writer decide what is queued, control first, and appends the
// batch, unless the ledger dies in between.
func (w *world) judge() error {
	if len(w.flight) >= w.options.InFlight || len(w.queue) == 0 {
		return nil
	}
	if w.elapsed-w.ticked > time.Second { // no writer serves for ever and looks after no run
		return w.tick()
	}
	slices.SortStableFunc(w.queue, func(a, b *message) int { return laneOrder(a) - laneOrder(b) })
	n := min(1+w.r.IntN(w.options.Batch), len(w.queue))
	messages := w.queue[:n:n]
	w.queue = w.queue[n:]
	proposals := make([]*ledger.Proposal, n)
	for i, m := range messages {
		proposals[i] = m.proposal()
	}
	step, err := w.stepper.Judge(proposals...)
	if err != nil {
		return fmt.Errorf("judge: %w", err)
	}
	return w.take(&flight{step: step, messages: messages, first: w.model.seq})
}

// take compares a batch and appends it, unless the ledger dies in between.
func (w *world) take(f *flight) error {
	step := f.step
	if err := w.compareBatch(f); err != nil {
		return err
	}
	if w.r.IntN(1000) < w.options.Crash {
		w.note("crash before append")
		return w.crash()
	}
	if len(step.Batch.Events) > 0 {
		if err := w.log.append(step.Batch); err != nil {
			return err
		}
		f.last = step.Batch.First + uint64(len(step.Batch.Events)) - 1
	}
	for _, leaf := range step.Batch.Leaves {
		w.note("%s", leaf)
	}
	w.flight = append(w.flight, f)
	w.volumes.batches++
	return nil
}

func laneOrder(m *message) int {
	if m.control {
		return 0
	}
	return 1
}

func (m *message) lane() wire.Lane {
	if m.control {
		return wire.Control
	}
	return wire.Propose
}

// proposal is what the door makes of a message.
func (m *message) proposal() *ledger.Proposal {
	lane := m.lane()
	p := &ledger.Proposal{Lane: lane, Subject: m.from.id, Operation: wire.Known(lane, m.operation)}
	if m.foreign {
		p.Refused = reason.BadReplySubject
		return p
	}
	p.Request, p.Refused, p.Fault = wire.Read(lane, m.operation, m.body)
	return p
}

// sync makes some of what was appended durable.
func (w *world) sync() {
	if n := len(w.log.pending); n > 0 {
		w.log.sync(1 + w.r.IntN(n))
		if w.percent(10) {
			w.remember()
		}
	}
}

// remember signs a checkpoint of what is durable, which an auditor keeps.
func (w *world) remember() {
	root, err := w.log.root()
	if err != nil {
		panic(err)
	}
	signed, err := store.SignCheckpoint(w.signer, store.Checkpoint{Origin: logOrigin, Size: w.log.Durable(), Root: root})
	if err != nil {
		panic(err)
	}
	w.anchors = append(w.anchors, signed)
}

// settle answers the oldest batch, if it is durable.
func (w *world) settle() error {
	if len(w.flight) == 0 || w.flight[0].last > w.log.Durable() || w.flight[0].first > w.log.Durable() {
		return nil
	}
	f := w.flight[0]
	w.flight = w.flight[1:]
	answers, err := w.stepper.Settle(f.step)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	if w.settled = max(w.settled, f.last); w.percent(70) {
		w.carryOut(w.settled)
	}
	w.dispatch(f, answers)
	for i, answer := range answers[:len(f.messages)] {
		if err := w.checkReply(f, i, answer); err != nil {
			return fmt.Errorf("%s %s %s: answer %s: %w", f.messages[i].from.id, f.messages[i].operation, f.messages[i].body, answer.Reply, err)
		}
		w.note("%s", answer.Reply)
		w.volumes.answers++
		if m := f.messages[i]; !m.silent && !m.foreign && !w.percent(w.options.Drop) {
			w.mail = append(w.mail, letter{m.from, m.id, answer})
		}
	}
	return nil
}

// hand gives somebody an answer.
func (w *world) hand() {
	for range 3 {
		if len(w.mail) == 0 {
			return
		}
		i := w.r.IntN(len(w.mail))
		l := w.mail[i]
		w.mail = slices.Delete(w.mail, i, i+1)
		l.to.hear(l)
	}
}

// crash ends the ledger here and now and opens it again: what was not durable
// may be lost, from the end; what was not answered nobody hears of.
func (w *world) crash() error {
	w.volumes.crashes++
	w.volumes.lost += len(w.queue)
	kept := 0
	if n := len(w.log.pending); n > 0 {
		kept = w.r.IntN(n + 1)
	}
	w.log.crash(kept)
	w.queue, w.flight = nil, nil
	if err := w.owed(); err != nil {
		return err
	}
	w.wall += time.Duration(w.r.IntN(60)) * time.Second
	return w.open()
}

// close ends the ledger in good order: what was judged is answered, and the next
// opening finds a snapshot, which may have been damaged meanwhile.
func (w *world) close() error {
	w.volumes.closes++
	w.log.sync(len(w.log.pending))
	for len(w.flight) > 0 {
		if err := w.settle(); err != nil {
			return err
		}
	}
	var err error
	if w.log.snapSeq = w.stepper.State().Seq; w.log.snapSeq != w.log.Durable() {
		return fmt.Errorf("closed at %d, durable %d", w.log.snapSeq, w.log.Durable())
	}
	if w.log.snap, err = w.stepper.Snapshot(); err != nil {
		return err
	}
	if w.percent(10) {
		w.log.snap[w.r.IntN(len(w.log.snap))] ^= 1 << w.r.IntN(8)
	}
	w.queue = nil
	return w.open()
}

// owed looks for every answered event in what is durable.
func (w *world) owed() error {
	for _, r := range w.receipts {
		if r.seq > w.log.Durable() || w.log.leaves[r.seq-1].String() != r.leaf {
			return fmt.Errorf("answered event %d is not in the log of %d", r.seq, w.log.Durable())
		}
	}
	return nil
}

// reply is an answer as its asker reads it.
type reply struct {
	Type        string `json:"type"`
	Allowed     bool   `json:"allowed"`
	Reason      string `json:"reason_code"`
	Subject     string `json:"subject"`
	Operation   string `json:"operation"`
	Owner       string `json:"owner"`
	Seq         uint64 `json:"seq"`
	EventID     string `json:"event_id"`
	Hash        string `json:"hash"`
	OperationID string `json:"operation_id"`
	Record      *struct {
		Namespace    string          `json:"namespace"`
		Key          string          `json:"key"`
		Value        json.RawMessage `json:"value"`
		Owner        string          `json:"owner_agent_id"`
		Visibility   string          `json:"visibility"`
		Class        string          `json:"class"`
		Revision     uint64          `json:"revision"`
		Contributors []string        `json:"contributors"`
	} `json:"record"`
	InFlight []struct {
		OperationID string `json:"operation_id"`
	} `json:"in_flight"`
	Erased *struct {
		Under   uint64   `json:"under"`
		Seqs    []uint64 `json:"seqs"`
		AgentID string   `json:"agent_id"`
		Before  uint64   `json:"before"`
		Records []string `json:"records"`
	} `json:"erased"`
	Decisions []struct {
		StepID string `json:"step_id"`
		Reason string `json:"reason_code"`
	} `json:"decisions"`
}

// checkReply holds an answer against the log and the model.
func (w *world) checkReply(f *flight, i int, answer ledger.Answer) error {
	var r reply
	if err := json.Unmarshal(answer.Reply, &r); err != nil {
		return err
	}
	m, v := f.messages[i], f.verdicts[i]
	seq := v.retry
	if seq == 0 {
		_, seq = f.step.Outcome(i)
	}
	if r.Seq != seq || seq > w.log.Durable() || w.log.leaves[seq-1].String() != r.Hash {
		return fmt.Errorf("the receipt is not of event %d", seq)
	}
	w.receipts = append(w.receipts, receipt{r.Seq, r.Hash})
	e, err := events.Parse(w.log.events[seq-1])
	if err != nil {
		return err
	}
	d, ok := e.Body.(*events.Decision)
	if !ok || d.Subject != m.from.id || r.Subject != m.from.id || r.Allowed != d.Allowed || r.EventID != events.UUIDString(e.ID) || r.OperationID != d.OperationID {
		return fmt.Errorf("it is about another decision: %s", w.log.events[seq-1])
	}
	told := d.Reason
	if told == "not_visible_from" || told == "record_not_found" || told == "grant_required" {
		told = "record_unavailable"
	}
	if r.Reason != told || string(answer.Reason) != told || told != d.Reason && r.Owner != "" {
		return fmt.Errorf("the reason told is %s by %q, logged %s", r.Reason, r.Owner, d.Reason)
	}
	return w.checkRecord(m, v, &r, answer)
}

// checkRecord: a read's record and value are what the model knows, a retry
// carries no value, and no canary stands anywhere else.
func (w *world) checkRecord(m *message, v verdict, r *reply, answer ledger.Answer) error {
	valued := r.Record != nil && r.Record.Value != nil
	if err := v.checkErased(r); err != nil {
		return err
	}
	if bytes.Contains(answer.Reply, []byte(canary)) && !valued {
		return errors.New("a value outside a record")
	}
	if v.unknown {
		return nil
	}
	if v.deny && v.reason == "control_done" {
		var told []string
		for _, e := range r.InFlight {
			told = append(told, e.OperationID)
		}
		if !slices.Equal(told, v.inFlight) {
			return fmt.Errorf("in flight are %v, told %v", v.inFlight, told)
		}
	}
	switch {
	case v.retry != 0 && valued:
		return errors.New("a retry with a value")
	case v.read != nil:
		if r.Record == nil || r.Record.Owner != v.read.owner || r.Record.Namespace+"."+r.Record.Key != v.read.name || r.Record.Revision != v.read.revision ||
			r.Record.Visibility != v.read.visibility || !slices.Equal(r.Record.Contributors, v.contributors) || !reflect.DeepEqual(decode(r.Record.Value), v.value) {
			return fmt.Errorf("the record read should be %+v with %v", *v.read, v.value)
		}
	case valued && (m.operation != "memory.write" || !r.Allowed || !reflect.DeepEqual(decode(r.Record.Value), decode(m.body).(map[string]any)["value"])):
		return errors.New("a value that was not asked for")
	}
	return nil
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func itoa(n int) string { return strconv.Itoa(n) }

func (w *world) digest() string { return hex.EncodeToString(w.trace.Sum(nil)) }

// first is the ledger time of the first event.
func (w *world) first() events.Time { return events.TimeOf(start) }

func sha(b []byte) events.Hash { return sha256.Sum256(b) }
